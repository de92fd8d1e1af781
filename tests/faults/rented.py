"""A pool on a made-up market, on nodes that are processes of this machine, and what is killed beside it.

Run as ``python -m tests.faults.rented FOLDER STORY``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.cluster.head import down, up
from lightning_core.cluster.ray_head import MARK as HEAD_MARK
from lightning_core.cluster.ray_head import HeadError, joined
from lightning_core.cluster.ray_nodes import list_nodes
from lightning_core.core.answers import End, Grant
from lightning_core.core.codec import decode_answers
from lightning_core.parts.market.cloud.cloud_spec import SIMULATED, CloudSpec
from lightning_core.parts.market.cloud.machine_notes import MARK, Machine, MachineNotes
from lightning_core.parts.market.cloud.provisioner import SPOT, list_zones
from lightning_core.parts.market.cloud.rented_nodes import RentedNodes
from lightning_core.parts.market.cloud_events import NodesWanted
from lightning_core.parts.market.market_section import read_market
from lightning_core.pool.pool import Pool
from lightning_core.scheduler.settings import Settings
from lightning_core.server.discovery import read_head
from lightning_core.server.proxy import POOL, SCHEDULER
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.storage.journals.journal import Journal
from tests.conftest import ROOT

# Seconds: an interval of the market, the notice of a preemption, those a job has to leave, the lease, between saves.
INTERVAL, NOTICE, LEAVE, LEASE, SAVE_EVERY = 10.0, 2.0, 2.0, 6.0, 1.0
# Spot nodes on offer, interval by interval: each third one preempts one of two.
OFFERS, MOST = [2, 2, 1], 2
# What a command quotes of two zones, if it is there: then a job has one node.
QUOTES, ZONES = "quotes.json", {"east": "us-east-1a", "west": "us-west-2b"}
# Seconds that anything may take before it counts as hung.
PATIENCE = 90.0
MANAGER, PROVISIONER = "pool-manager", "pool-provisioner"
ACTORS = {"scheduler": POOL + SCHEDULER, "provisioner": PROVISIONER, "manager": MANAGER}


def bring_up(folder: Path) -> None:
    """Bring the pool up: the command that is killed."""
    trace, quotes = folder / "market.csv", folder / QUOTES
    market: dict[str, Any] = {"interval": INTERVAL, "kept_fraction": 0.8, "save_every": SAVE_EVERY}
    section = {"trace": str(trace), "interval": INTERVAL, "policies": ["max-spot"]}
    if quotes.exists():
        market["policy"] = "max-spot"
    elif not trace.exists():
        offer(folder, OFFERS)
    terms = None if quotes.exists() else read_market(section, folder).terms
    command = f"cat {quotes}" if terms is None else None
    if terms is not None:
        market["terms"] = terms
    settings = Settings("fifo", period=0.5, devices=2 * MOST, resident=2 * MOST, keep_all=True,
                        controllers={"market": market})  # fmt: skip
    told = None if terms is None else dict(terms)
    cloud = CloudSpec("pool", "device", SIMULATED, INTERVAL, told, command, NOTICE, LEAVE, LEASE)
    up(folder / "pool", settings, "cpu", None, RentedNodes(cloud))


def offer(folder: Path, offers: Sequence[int]) -> None:
    """Write how many spot nodes are on offer, again and again."""
    (folder / "market.csv").write_text("available,price\n" + "".join(f"{one},0.3\n" for one in [*offers] * 200))


def quote(folder: Path, **available: int) -> None:
    """Write how many spot nodes are on offer in each of two zones, of which the second one is dearer."""
    offers = [{"zone": ZONES[side], "type": "small", "price": 0.3 + 0.1 * (side == "west"), "available": number}
              for side, number in available.items()]  # fmt: skip
    (folder / f"{QUOTES}.new").write_text(json.dumps({"version": 2, "offers": offers}))
    (folder / f"{QUOTES}.new").rename(folder / QUOTES)


def submit(folder: Path, name: str) -> None:
    """Submit a job, say so, and wait to be killed."""
    job = {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(folder), "pause": 0.05},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False},
        "deadline": "30m", "target": {"batches": 10000}, "min_devices": 1,
        "max_devices": 1 if (folder / QUOTES).exists() else MOST,
        "save_every": f"{SAVE_EVERY:g}s",
    }  # fmt: skip
    bundle = folder / f"{name}.yaml"
    bundle.write_text(json.dumps({"jobs": {name: job}}))
    os.chdir(ROOT)
    with Pool.connect(str(folder / "pool")) as pool:
        pool.submit(bundle, checked=True)
    print("submitted", flush=True)
    time.sleep(600)


class Look(NamedTuple):
    """What there is at a moment."""

    at: float
    """Monotonic time."""
    nodes: int
    """Nodes that are paid for, those about to leave too."""
    staying: int
    """Those that are not about to leave."""
    wanted: int
    """Nodes that the pool wants, as it said last."""
    granted: int
    """Devices of the jobs that train, as it said last."""
    batches: int
    lost: int
    answered: bool
    """Whether the scheduler has answered now."""


@dataclass
class Kill:
    """A kill, and what it cost."""

    what: str
    when: str
    at: float
    paid: float = 0.0
    """Seconds of nodes that no job had, until all was well again."""
    repeated: int = 0
    """Batches that had to be trained again."""
    recovered: float = 0.0
    """Seconds until all was well again."""


@dataclass
class Rented:
    """A pool that is up, watched from outside.

    Attributes:
        looks: What there was, ten times a second.
        kills: What was killed.
        found: Other figures.
    """

    folder: Path
    ray: Any
    looks: list[Look] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    offset: float = 0.0
    """Monotonic time at which the scheduler's is 0."""
    _over: threading.Event = field(default_factory=threading.Event)

    def actor(self, name: str) -> Any:
        return self.ray.get_actor(ACTORS[name], namespace=NAMESPACE)

    def pid(self, name: str) -> int:
        """Return the id of an actor's process as soon as it answers."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return int(self.ray.get(self.actor(name).pid.remote(), timeout=5.0))
            except (self.ray.exceptions.RayError, ValueError):
                assert time.monotonic() < until, f"the {name} does not come back"
                time.sleep(0.05)

    @property
    def notes(self) -> list[Machine]:
        """Nodes whose processes run, as the provisioner has noted them."""
        found = []
        for path in (self.folder / "pool" / "nodes").glob("node-*.json"):
            with suppress(OSError, ValueError):
                found.append(Machine(**json.loads(path.read_text())))
        return [one for one in found if one.is_alive]

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(30.0)

    def _watch(self) -> None:
        wanted = granted = batches = lost = 0
        while not self._over.wait(0.1):
            answered = False
            with suppress(self.ray.exceptions.RayError, ValueError):
                scheduler = self.actor("scheduler")
                calls = [scheduler.nodes_wanted.remote(-1, 0.0), scheduler.status.remote()]
                (now, level), (_, jobs) = self.ray.get(calls, timeout=1.0)
                self.offset = time.monotonic() - now
                wanted, answered = level.spot + level.on_demand, True
                granted = sum(len(job.devices) for job in jobs if job.finished_at is None)
                batches, lost = sum(job.batches for job in jobs), sum(job.lost_batches for job in jobs)
            nodes = self.notes
            staying = sum(one.ends_at is None for one in nodes)
            self.looks.append(Look(time.monotonic(), len(nodes), staying, wanted, granted, batches, lost, answered))

    def wait(self, what: str, true: Callable[[Look], bool], since: float = 0.0, seconds: float = PATIENCE) -> Look:
        """Wait for a look, after a time, at which something holds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.looks and (look := self.looks[-1]).at > since and true(look):
                return look
            time.sleep(0.02)
        raise AssertionError(f"never {what}: {self.looks[-1]}, of the kills {self.kills}; {self._words()}")

    def _words(self) -> str:
        """Return what the actors say, for a wait that was in vain."""
        said = []
        for name, call in (("scheduler", "status"), ("manager", "busy"), ("manager", "starting"), ("manager", "warm")):
            try:
                said.append(f"{call}: {self.ray.get(getattr(self.actor(name), call).remote(), timeout=10.0)}")
            except (self.ray.exceptions.RayError, ValueError) as error:
                said.append(f"{call}: {error}")
        return "; ".join(said)

    def kill(self, what: Sequence[str], when: str, is_well: Callable[[Look, Look], bool]) -> Kill:
        """Kill actors at once; wait until they answer and all is well.

        Args:
            what: Names of the actors.
            when: The moment, in words.
            is_well: Takes the look before and one since; returns whether all is well again.
        """
        pids = {name: self.pid(name) for name in what}
        before = self.looks[-1]
        kill = Kill(" and ".join(what), when, time.monotonic())
        self.kills.append(kill)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for name, pid in pids.items():
            while self.pid(name) == pid:
                time.sleep(0.05)
        self.end(kill, before, is_well)
        return kill

    def end(self, kill: Kill, before: Look, is_well: Callable[[Look, Look], bool]) -> None:
        """Wait until all is well again after a kill, and note what it cost."""

        def holds(look: Look) -> bool:
            return look.answered and look.staying == look.wanted and is_well(before, look)

        back = self.wait(f"well after {kill.what}, {kill.when}", holds, max(kill.at, time.monotonic()))
        kill.recovered = back.at - kill.at
        kill.repeated = back.lost - before.lost
        looks = [before, *(look for look in self.looks if kill.at < look.at <= back.at)]
        kill.paid = sum(max(0, look.nodes - look.granted) * (after.at - look.at) for look, after in pairwise(looks))


def trains_on(before: Look, look: Look) -> bool:
    return look.batches > before.batches + 20 and look.granted > 0


def all_are_gone(before: Look, look: Look) -> bool:
    return look.wanted == look.nodes == 0


@contextmanager
def pool_in(folder: Path, environment: dict[str, str] | None = None, command: Sequence[str] = ()) -> Iterator[Rented]:
    """Bring a pool up by a command of its own, by default that of this module, and take it down."""
    folder.mkdir(exist_ok=True)
    ours = dict(os.environ) | (environment or {})
    words = command or (__spec__.name, str(folder), "up")
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=ours, check=True, timeout=150)
    head = read_head(folder / "pool")
    assert head is not None
    try:
        with joined(head) as ray:
            rented = Rented(folder, ray)
            with rented.watched():
                rented.wait("up", lambda look: look.answered)
                yield rented
    finally:
        began = time.monotonic()
        down(folder / "pool", now=True)
        rented.found["down"] = time.monotonic() - began
        machines = MachineNotes(folder / "pool" / "nodes").find()
        rented.found["left behind"] = len(machines)
        for machine in machines:
            os.killpg(machine.pid, signal.SIGKILL)


@contextmanager
def submitted(rented: Rented, name: str) -> Iterator[Callable[[], None]]:
    """Submit a job by a command of its own; yield a function that kills the command."""
    words = [sys.executable, "-m", __spec__.name, str(rented.folder), f"submit {name}"]
    command = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stdout.readline() == "submitted\n"
    try:
        yield command.kill
    finally:
        command.kill()
        command.wait()


def cancel(rented: Rented, name: str) -> None:
    with Pool.connect(str(rented.folder / "pool")) as pool:
        pool.cancel(name)


def cycle(rented: Rented, what: Sequence[str], name: str, moments: Sequence[str]) -> None:
    """Kill actors at each of the moments in the life of a job, which is submitted by a command that is killed."""
    rented.wait("nothing", lambda look: look.answered and look.wanted == look.nodes == 0)
    with submitted(rented, name) as kill_command:
        kill_command()
    if "before the first node came" in moments:
        rented.wait("a node was asked for", lambda look: look.nodes > 0)
        rented.kill(what, "before the first node came", trains_on)
    rented.wait("training", lambda look: look.granted > 0 and look.staying == look.wanted)
    if "training" in moments:
        rented.kill(what, "training", trains_on)
    if "during a hand-over" in moments:
        rented.wait("one node", lambda look: look.staying == 1)
        rented.wait("a second node was asked for", lambda look: look.staying == 2 and look.granted == 1)
        rented.kill(what, "during a hand-over", trains_on)
    if "at a notice" in moments:
        rented.wait("two nodes", lambda look: look.staying == 2 and look.granted == 2)
        rented.wait("a notice", lambda look: look.staying == 1 and look.nodes == 2)
        rented.kill(what, "at a notice", trains_on)
    began = time.monotonic()
    cancel(rented, name)
    if "while nodes are given back" in moments:
        rented.wait("given back", lambda look: look.wanted == 0, began)
        rented.kill(what, "while nodes are given back", all_are_gone)
    rented.wait("nothing", all_are_gone_now, began)


def all_are_gone_now(look: Look) -> bool:
    return look.answered and look.wanted == look.nodes == 0


MOMENTS = ("before the first node came", "training", "during a hand-over", "at a notice", "while nodes are given back")
ALL = ("scheduler", "provisioner", "manager")


def quick(folder: Path) -> Rented:
    """All three are killed, before a node came, in training and while nodes are given back."""
    with pool_in(folder) as rented:
        cycle(rented, ALL, "a", (MOMENTS[0], MOMENTS[1], MOMENTS[4]))
    return rented


def each(folder: Path, what: Sequence[str]) -> Rented:
    with pool_in(folder) as rented:
        cycle(rented, what, "a", MOMENTS)
    return rented


def stopped(folder: Path) -> Rented:
    """The scheduler is stopped for longer than the lease, and goes on."""
    with pool_in(folder) as rented, submitted(rented, "a"):
        rented.wait("training", lambda look: look.granted > 0 and look.batches > 40 and look.staying == look.wanted)
        before, pid = rented.looks[-1], rented.pid("scheduler")
        kill = Kill("scheduler stopped", "training", time.monotonic())
        rented.kills.append(kill)
        os.kill(pid, signal.SIGSTOP)
        gone = rented.wait("given back", lambda look: look.nodes == 0, kill.at)
        rented.found["given back after"] = gone.at - kill.at
        time.sleep(5.0)
        assert not rented.notes
        resumed = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        rented.end(kill, before, trains_on)
        rented.found["back after"] = rented.looks[-1].at - resumed
        cancel(rented, "a")
        rented.wait("nothing", all_are_gone_now)
    return rented


def lost(folder: Path) -> Rented:
    """A node is killed without notice, and later one hangs for longer than it may."""
    offer(folder, [MOST])
    with pool_in(folder) as rented, submitted(rented, "a"):
        for what, number in (("node", signal.SIGKILL), ("node stopped", signal.SIGSTOP)):
            two = rented.wait("two nodes", lambda look: look.granted == look.staying == look.nodes == 2)
            least = two.batches + 60
            rented.wait("training on them", lambda look, least=least: look.batches > least)  # type: ignore[misc]
            before, node = rented.looks[-1], max(rented.notes, key=lambda one: one.number)
            kill = Kill(what, "training", time.monotonic())
            rented.kills.append(kill)
            pids = marked(node.mark)
            for pid in pids:
                os.kill(pid, number)
            rented.end(kill, before, lambda before, look: trains_on(before, look) and look.lost >= before.lost)
            for pid in pids if number is signal.SIGSTOP else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        cancel(rented, "a")
        rented.wait("nothing", all_are_gone_now)
    return rented


def zones(folder: Path) -> Rented:
    """The zone that holds the node of a job has none any more: the job comes back in the other one."""
    quote(folder, east=1, west=1)
    with pool_in(folder) as rented, submitted(rented, "a"):
        rented.wait("training on spot", lambda look: look.granted == 1 and len(spot_places(rented)) == 1)
        first = rented.wait("training", lambda look: look.batches > 60 and look.granted == look.staying == 1)
        rented.found["labels before"] = spot_places(rented)
        quote(folder, east=0, west=1)
        kill = Kill("zone", "training", time.monotonic())
        rented.kills.append(kill)
        rented.wait("moved", lambda look: spot_places(rented) not in ([], rented.found["labels before"]), kill.at)
        rented.end(kill, first, lambda before, look: look.granted == 1 and look.batches > rented.looks[-20].batches)
        rented.found["labels after"] = spot_places(rented)
        cancel(rented, "a")
        rented.wait("nothing", all_are_gone_now)
    return rented


def spot_places(rented: Rented) -> list[list[str]]:
    """Return the labels of zone and type of the spot nodes that Ray has and that are not draining."""
    zones, kinds = list_zones(), list_nodes("device")
    return [list(zones[node]) for node, kind in kinds.items() if kind == SPOT and node in zones]


def failpoints(folder: Path) -> Rented:
    """The provisioner crashes at its second request, each time that it is restarted."""
    with pool_in(folder, {"LC_FAILPOINT": "provisioner.asked:crash@2"}) as rented:
        cycle(rented, (), "a", ())
    return rented


def half_up(folder: Path) -> Rented:
    """The command that brings the pool up is killed on its way: `down` ends what there is, and `up` begins anew."""
    rented, command = Rented(folder, None), [sys.executable, "-m", __spec__.name, str(folder), "up"]
    home = folder / "pool"

    def has_head() -> bool:
        return read_head(home) is not None

    def has_address() -> bool:
        return "address" in (read_head(home) or {})

    for when, holds in (
        ("the head starts", has_head), ("the head has started", has_address),
        ("the provisioner starts", (home / "cloud.json").exists),
    ):  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT)
        until = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.01)
        process.kill()
        process.wait()
        head, began = read_head(home), time.monotonic()
        assert head is not None
        # In a process of its own: Ray reads the token of a head only once.
        subprocess.run([*command[:-1], "down"], cwd=ROOT, check=True, timeout=150)
        rented.found[when] = time.monotonic() - began
        assert not marked(head["mark"], HEAD_MARK)
        assert not rented.notes
        (home / "head.json").unlink()
        (home / "cloud.json").unlink(missing_ok=True)
    with pool_in(folder) as again:
        again.wait("nothing is wanted", all_are_gone_now)
        rented.found["left behind"] = len(again.notes)
    return rented


def marked(mark: str, name: str = MARK) -> list[int]:
    """Return the processes with the mark of a node, or of a head, in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{name}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def headless(folder: Path) -> Rented:
    """The control process of Ray is killed: each node ends by itself."""
    rented = Rented(folder, None)
    subprocess.run([sys.executable, "-m", __spec__.name, str(folder), "up"], cwd=ROOT, check=True, timeout=150)
    with submitted(rented, "a") as kill_command:
        kill_command()
    until = time.monotonic() + PATIENCE
    with Pool.connect(str(folder / "pool")) as pool:
        while not (pool.status("a").batches > 40 and len(rented.notes) == MOST):
            assert time.monotonic() < until
            time.sleep(0.2)
    head = read_head(folder / "pool")
    assert head is not None
    machines = {one.mark: marked(one.mark) for one in rented.notes}
    gcs = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_gcs(path, head["temp"])]
    [pid] = gcs
    os.kill(pid, signal.SIGKILL)
    began, ended = time.monotonic(), dict[str, float]()
    while (left := [pid for mark in machines for pid in marked(mark)]) and time.monotonic() < began + PATIENCE:
        for pid in left:
            with suppress(OSError):
                ended[_program(pid)] = time.monotonic() - began
        if rented.notes:
            rented.found["ended after"] = time.monotonic() - began
        time.sleep(0.2)
    rented.found["programs ended after"] = ended
    rented.found["all ended after"] = time.monotonic() - began  # Ray's agents of a node outlive it
    rented.found["left behind"] = sum(len(marked(mark)) for mark in machines)
    for mark in machines:
        for one in marked(mark):
            os.kill(one, signal.SIGKILL)
    with suppress(HeadError):
        down(folder / "pool", now=True)
    return rented


def _program(pid: int) -> str:
    """Return what a process is, in words that are alike for those of several nodes."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return Path(words.split(" ")[0]).name if "ray::" not in words else words.strip()[:40]


def _is_gcs(path: Path, temp: str) -> bool:
    with suppress(OSError):
        words = path.read_bytes().split(b"\0")
        return words[0].endswith(b"gcs_server") and any(temp.encode() in word for word in words)
    return False


STORIES: dict[str, Callable[[Path], Rented]] = {
    "nothing": partial(each, what=()),
    "quick": quick, "stopped": stopped, "failpoints": failpoints, "headless": headless, "half up": half_up,
    "lost": lost, "zones": zones,
    **{name: partial(each, what=(name,)) for name in ALL},
    "scheduler and provisioner": partial(each, what=ALL[:2]), "all three": partial(each, what=ALL),
}  # fmt: skip


def journal_of(folder: Path) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Return how many nodes were wanted, and how many devices jobs had, each from a scheduler time on."""
    wanted, granted, devices = [(0.0, 0)], [(0.0, 0)], dict[str, int]()
    with Journal.open(folder / "pool" / "journal.db", read_only=True) as journal:
        for entry in journal.entries():
            for answer in decode_answers(entry.answers):
                match answer:
                    case NodesWanted(spot=spot, on_demand=on_demand):
                        wanted.append((entry.now, spot + on_demand))
                    case Grant(job=job, devices=several):
                        devices[job] = len(several)
                    case End(job=job):
                        devices[job] = 0
            if (count := sum(devices.values())) != granted[-1][1]:
                granted.append((entry.now, count))
    return wanted, granted


def main(folder: Path, story: str) -> None:
    if story == "up":
        bring_up(folder)
    elif story == "down":
        down(folder / "pool", now=True)
    elif story.startswith("submit "):
        submit(folder, story.removeprefix("submit "))
    else:
        rented = STORIES[story](folder)
        wanted, granted = journal_of(folder) if rented.looks else ([], [])
        found = {**rented.found, "kills": [vars(kill) for kill in rented.kills], "looks": rented.looks,
                 "offset": rented.offset, "wanted": wanted, "granted": granted,
                 "invoice": MachineNotes(folder / "pool" / "nodes").invoice()}  # fmt: skip
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
