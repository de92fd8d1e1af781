"""Simulated nodes: processes of this machine that come and go, and outlive the process that started them.

Each node is a process group of its own, identified by process id, start time and a random mark in its environment. It
is noted in a file before it is started, so a provisioner that was killed at any moment finds all of its nodes again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning_core.cluster.local_machines import HEALTH, MEMORY
from lightning_core.cluster.ray_nodes import MARKET_LABEL, POOL_LABEL
from lightning_core.node.processes import is_marked, started
from lightning_core.parts.market.cloud.machine_notes import MARK, Machine, MachineNotes
from lightning_core.parts.market.cloud.provisioner import (
    LEAVE_SECONDS,
    MARKET_TYPES,
    NODE_LABEL,
    ON_DEMAND,
    SPOT,
    by_place,
    drain_node,
    has_joined,
    place_labels,
)
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer, PlacedNodes

log = logging.getLogger(__name__)

# Zone and type.
Place = tuple[str, str]
# Seconds between two looks at the nodes, and seconds that they may take to end by themselves once all are returned.
POLL_SECONDS, CLOSE_SECONDS = 0.1, 5.0
# Seconds for which the next node waits for one that has started and not joined the cluster.
JOIN_SECONDS = 10.0
# Variables of Ray that are not settings: settings are in small letters.
_OF_A_WORKER = re.compile("RAY_(?!AUTH_|TMPDIR)[A-Z]")
# Seconds after which a node ends if it cannot reach the head, since the head can no longer end it.
HEAD_TIMEOUT = 20


def raylet_command(address: str, pool: str, resources: Mapping[str, float]) -> Callable[[Machine], Sequence[str]]:
    """Return a function that returns the command of a node of a Ray cluster.

    Args:
        address: Address of the cluster.
        pool: Name of the pool, the label of its nodes.
        resources: Resources of a node, such as ``{"device": 1}``.
    """
    own = {name: number for name, number in resources.items() if name != "GPU"}

    def command(machine: Machine) -> Sequence[str]:
        labels = {MARKET_LABEL: machine.market_type, POOL_LABEL: pool, NODE_LABEL: machine.mark}
        labels |= place_labels(machine.zone, machine.type)
        return [
            sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--block", "--num-cpus=1",
            f"--num-gpus={int(resources.get('GPU', 0))}", f"--resources={json.dumps(own)}",
            f"--labels={','.join(f'{name}={value}' for name, value in labels.items())}",
            f"--object-store-memory={MEMORY}", "--disable-usage-stats", "--include-log-monitor=false",
        ]  # fmt: skip

    return command


class SimulatedProvisioner:
    """Starts and kills nodes on this machine.

    It simulates the market as well: :meth:`offer` sets the number of spot nodes on offer, and preempts the others.
    Nodes of an earlier provisioner of the folder are its own. They start one after the other: of two that Ray starts
    on one machine in the same second, both choose the same names for their sockets, and one fails after half a minute.

    Args:
        folder: Private folder of the notes about nodes, and of ``invoice.jsonl``: when each node began and ended.
        command: Returns the command of a node.
        notice: Seconds from a preemption notice to the end of the node; 0 for no notice.
        leave: Seconds that a job has to leave a node which is returned.
        warn: Gives a node, by its mark, notice of this many seconds; returns whether it is there.
        joined: Returns whether a node, by its mark, is in the cluster.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[Machine], Sequence[str]],
        notice: float = 10.0,
        leave: float = LEAVE_SECONDS,
        warn: Callable[[str, float], bool] = drain_node,
        joined: Callable[[str], bool] = has_joined,
    ) -> None:
        self._notes, self._command, self._warn, self._joined = MachineNotes(folder), command, warn, joined
        self.notice, self._leave = notice, leave
        # By zone and type; a missing offer has no spot nodes. Without zones there is one nameless offer.
        self._wanted: dict[Place, NodeCounts] = {}
        self._offered: dict[Place, int] | None = None
        self._is_asked = False  # until then, those of an earlier provisioner stay
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._machines = self._notes.find()
        self._joining: Machine | None = None
        self._number = self._notes.newest()
        self.preempted = 0
        """Spot nodes preempted so far."""
        self._thread = threading.Thread(target=self._run, name="lightning-core-nodes", daemon=True)
        self._thread.start()

    def scale_to(self, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
        with self._lock:
            self._wanted, self._is_asked = by_place(wanted, places), True

    def offer(self, spot: int, offers: Sequence[Offer] = ()) -> None:
        """Offer this many spot nodes from now on, or this many in each zone; of more, the newest are preempted."""
        with self._lock:
            self._offered = {(one.zone, one.type): one.available for one in offers} if offers else {("", ""): spot}
            for place in {machine.place for machine in self._of(SPOT)}:
                for machine in self._of(SPOT, place)[self._most(place) :]:
                    self.preempted += 1
                    self._end(machine, self.notice)

    def _most(self, place: Place) -> int:
        """Return how many spot nodes there can be in a place."""
        return 10**6 if self._offered is None else self._offered.get(place, 0)

    def present(self) -> NodeCounts:
        """Return the nodes that are up and not draining."""
        with self._lock:
            return NodeCounts(len(self._of(SPOT)), len(self._of(ON_DEMAND)))

    def billed(self) -> dict[str, str]:
        """Return the market type of each node that runs, by its mark: also while it starts or leaves."""
        with self._lock:
            return {machine.mark: machine.market_type for machine in self._machines if machine.pid}

    def processes(self, market_type: str) -> list[int]:
        """Return the process ids of those nodes of one market type."""
        with self._lock:
            return [machine.pid for machine in self._of(market_type)]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for machine in self._machines:  # all have left, so each can tell the cluster that it goes
            for pid in (machine.pid, *_children(machine.pid)) if machine.is_alive else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + CLOSE_SECONDS
        while any(machine.is_alive for machine in self._machines) and time.monotonic() < until:
            self._reap()
            time.sleep(POLL_SECONDS)
        for machine in self._machines:
            self._kill(machine)
        self._machines = []

    def _reap(self) -> None:
        for process in self._children.values():
            process.poll()

    # ------------------------------------------------------------------------------------------------ nodes

    def _of(self, market_type: str, place: Place | None = None) -> list[Machine]:
        found = [one for one in self._machines if one.market_type == market_type and one.ends_at is None]
        return found if place is None else [one for one in found if one.place == place]

    def _run(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                self._step()
            except Exception as error:  # Ray raises many kinds; the thread must survive
                log.warning("a simulated node could not be changed: %s", " ".join(str(error).split()))

    def _step(self) -> None:
        """Kill the nodes whose time is up, and start those that are missing."""
        now = time.monotonic()
        with self._lock:
            ended = [one for one in self._machines if one.ends_at is not None and one.ends_at <= now]
            ended += [one for one in self._machines if one not in ended and not one.is_alive]
            self._machines = [machine for machine in self._machines if machine not in ended]
        for machine in ended:
            self._kill(machine)
        with self._lock:
            places = [*self._wanted, *({one.place for one in self._machines} - self._wanted.keys())]
            kinds = [(one, place) for one in MARKET_TYPES for place in places if self._is_asked]
            missing = [kind for kind in kinds if self._missing(*kind) > 0]
            if missing and not self._is_joining():
                self._start(*missing[0])

    def _missing(self, market_type: str, place: Place) -> int:
        """Drain the surplus nodes, and return the number of missing ones."""
        asked = self._wanted.get(place, NodeCounts())
        wanted = min(asked.spot, self._most(place)) if market_type == SPOT else asked.on_demand
        present = self._of(market_type, place)
        for machine in present[wanted:]:
            self._end(machine, self._leave)
        return wanted - len(present)

    def _is_joining(self) -> bool:
        """Return whether the newest node is about to join the cluster."""
        newest = self._joining
        if newest is None or newest not in self._machines:
            return False
        return time.monotonic() < newest.since + JOIN_SECONDS

    def _await_joining(self, machine: Machine) -> None:
        while self._joining is machine and self._is_joining() and not self._closed.wait(POLL_SECONDS):
            try:
                if self._joined(machine.mark):
                    self._joining = None
            except Exception as error:  # the next node is not delayed for long
                log.warning("a simulated node cannot be looked up: %s", " ".join(str(error).split()))
                return

    def _start(self, market_type: str, place: Place) -> None:
        self._number += 1
        machine = Machine(self._number, market_type, zone=place[0], type=place[1])
        self._notes.write(machine)
        with (self._notes.folder / "nodes.log").open("ab") as output:
            process = subprocess.Popen(
                self._command(machine), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env=_environment() | {MARK: machine.mark},
            )  # fmt: skip
        self._children[process.pid] = process
        machine.pid, machine.started = process.pid, started(process.pid) or 0
        self._notes.write(machine)
        self._machines.append(machine)
        self._joining = machine
        # The cluster may not answer for long, which must delay nothing here.
        threading.Thread(target=self._await_joining, args=(machine,), daemon=True).start()

    def _end(self, machine: Machine, after: float) -> None:
        machine.ends_at = time.monotonic() + after
        self._notes.write(machine)
        if after > 0:  # as above
            threading.Thread(target=self._give_notice, args=(machine, after), daemon=True).start()

    def _give_notice(self, machine: Machine, after: float) -> None:
        try:
            is_there = self._warn(machine.mark, after)
        except Exception as error:  # it ends all the same
            log.warning("a simulated node ends without notice: %s", " ".join(str(error).split()))
        else:
            if not is_there:  # it has not joined yet: it must not join for the rest of its time
                machine.ends_at = time.monotonic()

    def _kill(self, machine: Machine) -> None:
        """Kill all processes of a node at once, as a machine that is switched off."""
        if machine.is_alive and is_marked(machine.pid, MARK, machine.mark):
            stopped = [machine.pid]
            for pid in stopped:  # none must tell the cluster of the others' deaths one by one
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                stopped += _children(pid)
            for pid in reversed(stopped):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if (process := self._children.pop(machine.pid, None)) is not None:
            process.wait()
        self._notes.close(machine)


def _environment() -> dict[str, str]:
    """Return the environment of a node: with Ray's token and settings, without Ray's variables for its workers."""
    ours = {name: value for name, value in os.environ.items() if not _OF_A_WORKER.match(name)}
    return ours | HEALTH | {"RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_TIMEOUT)}


def _children(pid: int) -> list[int]:
    """Return the child processes of a process; none where the system does not list them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
