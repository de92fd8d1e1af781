"""A pool on a quoted market whose offers and nodes change in the middle of a long interval.

Run as ``python -m tests.faults.within_interval FOLDER STORY``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_core.core.codec import decode_answers, decode_event
from lightning_core.core.events import Report, WorkerExited
from lightning_core.parts.market.cloud.machine_notes import Machine, MachineNotes
from lightning_core.parts.market.cloud.provisioner import SPOT, drain_node
from lightning_core.parts.market.cloud_events import NodesWanted, Quoted
from lightning_core.pool.pool import Pool
from lightning_core.storage.journals.journal import Journal
from tests.conftest import ROOT
from tests.faults.rented import (
    QUOTES,
    ZONES,
    Rented,
    all_are_gone_now,
    cancel,
    marked,
    pool_in,
    quote,
    spot_places,
)
from tests.waiting import until

# Seconds: an interval, in which the market is quoted four times; from a notice to the end of a node; between saves.
INTERVAL, NOTICE, SAVE_EVERY = 60.0, 10.0, 2.0
# What happens within an interval begins before this fraction of it is over.
EARLY = 0.15
# Batches, each of which waits for so many seconds, and seconds to do them: a little less than twice what they take.
BATCHES, PAUSE, DEADLINE = 5400, 0.2, 1800.0
# Seconds that a job is left beyond those that its work takes where it should not wait for the next interval.
SHORT = 90.0
CHEAP, DEAR = 0.3, 1.5


def now(rented: Rented) -> float:
    """Return scheduler time."""
    return time.monotonic() - rented.offset


def begin_interval(rented: Rented, after: float) -> float:
    """Wait until early in an interval that is later than that of a scheduler time; return the time."""
    while (at := now(rented)) // INTERVAL <= after // INTERVAL or at % INTERVAL > EARLY * INTERVAL:
        time.sleep(0.1)
    return at


def wait_to_train(rented: Rented, what: str, is_there: Callable[[], bool]) -> None:
    """Wait until the job trains on one node, which is as it should be, and no other node is there."""
    seconds = 4 * INTERVAL
    ready = rented.wait(
        what, lambda look: look.granted == look.staying == look.nodes == 1 and is_there(), seconds=seconds
    )
    rented.wait(f"{what} some batches", lambda look: look.batches > ready.batches + 10, seconds=seconds)


def is_on_spot(rented: Rented) -> bool:
    return [one.market_type for one in rented.notes] == [SPOT]


def wait_for_quote(folder: Path, available: int) -> None:
    """Wait until the pool has been told that so many spot nodes are on offer."""
    until(lambda: newest_quote(folder).available == available)


def newest_quote(folder: Path) -> Quoted:
    """Return what the pool was told last of what is on offer."""
    with Journal.open(folder / "pool" / "journal.db", read_only=True) as journal:
        events = [decode_event(entry.event) for entry in journal.entries()]
    return [event for event in events if isinstance(event, Quoted)][-1]


@contextmanager
def training(folder: Path) -> Iterator[Rented]:
    """Bring a pool up on the quotes of the folder, and have a job train there on a spot node."""
    (config := folder / "pool.yaml").write_text(
        "pool: {devices: 2, keep: all}\n"
        f"market: {{quotes: cat {folder / QUOTES}, interval: {INTERVAL:g}s, policies: [semi-markov]}}\n"
    )
    words = ("lightning_core.cli.main", "up", "--folder", str(folder / "pool"), "--config", str(config))
    with pool_in(folder, command=words) as rented:
        with Pool.connect(str(folder / "pool")) as pool:
            submit(folder, pool)
            wait_to_train(rented, "on spot", lambda: is_on_spot(rented))
            yield rented
        cancel(rented, "a")
        rented.wait("nothing", all_are_gone_now)


def submit(folder: Path, pool: Pool) -> None:
    job = {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(folder), "pause": PAUSE},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False},
        "deadline": f"{DEADLINE:g}s", "target": {"batches": BATCHES}, "save_every": f"{SAVE_EVERY:g}s",
    }  # fmt: skip
    bundle = folder / "a.yaml"
    bundle.write_text(json.dumps({"jobs": {"a": job}}))
    os.chdir(ROOT)
    pool.submit(bundle, checked=True)


def offer(folder: Path, price: float, available: int) -> None:
    """Write how many spot nodes are on offer, and their price."""
    (folder / f"{QUOTES}.new").write_text(json.dumps({"price": price, "available": available}))
    (folder / f"{QUOTES}.new").rename(folder / QUOTES)


def offers(folder: Path) -> Rented:
    """The spot node on offer goes and comes back in an interval; in the next one it is dear, and cheap again."""
    offer(folder, CHEAP, 1)
    with training(folder) as rented:
        at = now(rented)
        for name, price, available in (("gone", CHEAP, 0), ("dear", DEAR, 1)):
            rented.found[name] = at = begin_interval(rented, at)
            offer(folder, price, available)
            rented.wait(name, lambda look: look.wanted == look.granted == 0)
            offer(folder, CHEAP, 1)
            wait_to_train(rented, f"after it was {name}", lambda: is_on_spot(rented))
    return rented


def nodes(folder: Path) -> Rented:
    """Nodes are taken with notice, and without, and once more where there is no time to wait and no other zone."""
    quote(folder, east=1, west=1)
    with training(folder) as rented, Pool.connect(str(folder / "pool")) as pool:
        rented.found["notice"] = at = begin_interval(rented, now(rented))
        [node] = rented.notes
        assert drain_node(node.mark, NOTICE)
        wait_to_train(rented, "in the other zone", lambda: places(rented) == [ZONES["west"]])

        rented.found["killed"] = at = begin_interval(rented, at)
        [node] = rented.notes
        end(node)
        wait_to_train(rented, "back in the first zone", lambda: places(rented) == [ZONES["east"]])

        quote(folder, east=1, west=0)
        wait_for_quote(folder, 1)
        at = begin_interval(rented, max(at, now(rented)))
        status = pool.status("a")
        assert status.throughput is not None
        pool.set_deadline("a", (BATCHES - status.batches) / status.throughput + SHORT)
        rented.found["short of time"] = now(rented)
        [node] = rented.notes
        assert drain_node(node.mark, NOTICE)
        wait_to_train(rented, "on demand", lambda: not is_on_spot(rented))
    return rented


def places(rented: Rented) -> list[str]:
    """Return the zones of the spot nodes that are not about to leave."""
    return [zone for zone, _ in spot_places(rented)]


def end(node: Machine) -> None:
    """End all processes of a node."""
    for pid in marked(node.mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def journal_of(folder: Path) -> dict[str, Any]:
    """Return what was wanted and what became of the job, from the journal."""
    wanted, exits, begun, newest = list[Any](), list[Any](), list[Any](), dict[int, int]()
    with Journal.open(folder / "pool" / "journal.db", read_only=True) as journal:
        for entry in journal.entries():
            event = decode_event(entry.event)
            if isinstance(event, Report):
                if event.incarnation not in newest:
                    begun.append([event.incarnation, event.batches_at_start])
                newest[event.incarnation] = event.batches
            elif isinstance(event, WorkerExited):
                exits.append([event.incarnation, entry.now, str(event.cause)])
            for answer in decode_answers(entry.answers):
                if isinstance(answer, NodesWanted):
                    zones = [place.zone for place in answer.places]
                    nodes = [answer.spot, answer.on_demand]
                    wanted.append([entry.now, type(event).__name__, answer.reason.code, *nodes, zones])
    return {"decisions": wanted, "exits": exits, "begun": begun, "reported": newest}


def main(folder: Path, name: str) -> None:
    rented = {"offers": offers, "nodes": nodes}[name](folder)
    found = {**rented.found, **journal_of(folder), "offset": rented.offset,
             "lost": max(look.lost for look in rented.looks),
             "invoice": MachineNotes(folder / "pool" / "nodes").invoice()}  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
