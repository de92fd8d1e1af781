"""TODO."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.cloud.provisioner import (
    LEAVE_SECONDS,
    MARKET_LABEL,
    MARKET_TYPES,
    ON_DEMAND,
    POLL_SECONDS,
    SPOT,
    drain,
    log,
)
from lightning_core.market.online.node_counts import NodeCounts


@dataclass(slots=True)
class _Machine:
    """A raylet in place of a machine."""

    node: Any
    kind: str
    ends_at: float | None = None
    """When it is switched off, of the monotonic clock; None while it stays."""


class SimulatedProvisioner:
    """Raylets on this machine in place of machines, of a ``ray.cluster_utils.Cluster``: real processes that vanish.

    It is the market as well: :meth:`offer` says how many spot nodes there are to be had, and takes away what is more.

    Args:
        cluster: has a head already, and was made with ``shutdown_at_exit=False``: its nodes come in a thread, which can
            set no signal handlers. Whoever made it shuts it down.
        notice: seconds from the word that a spot node will be taken away to its end; 0 for none.
        leave: seconds that a node which is given back is left.
        options: of a node.
    """

    def __init__(self, cluster: Any, notice: float = 10.0, leave: float = LEAVE_SECONDS, **options: Any) -> None:
        self._cluster, self.notice, self._leave = cluster, notice, leave
        self._options = {"num_cpus": 1, "resources": {"device": 1}, "object_store_memory": 80 * 2**20, **options}
        self._wanted, self._offered = NodeCounts(), 10**6
        self._machines: list[_Machine] = []
        self._changing = threading.Lock()
        self._over = threading.Event()
        self.taken = 0
        """Spot nodes that the market has taken away."""
        self._thread = threading.Thread(target=self._run, name="lightning-core-nodes", daemon=True)
        self._thread.start()

    def want(self, wanted: NodeCounts) -> None:
        with self._changing:
            self._wanted = wanted

    def offer(self, spot: int) -> None:
        """So many spot nodes are to be had from now on; those beyond are taken away, the newest first."""
        with self._changing:
            self._offered = spot
            there = self._of(SPOT)
            for machine in there[spot:]:
                self.taken += 1
                self._end(machine, self.notice)

    def there(self) -> NodeCounts:
        """Nodes that are up and stay."""
        with self._changing:
            return NodeCounts(len(self._of(SPOT)), len(self._of(ON_DEMAND)))

    def processes(self, kind: str) -> list[int]:
        """Of the raylets of a kind that stay."""
        with self._changing:
            return [_raylet(machine.node).pid for machine in self._of(kind)]

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for machine in self._machines:
            self._kill(machine)

    def _of(self, kind: str) -> list[_Machine]:
        return [machine for machine in self._machines if machine.kind == kind and machine.ends_at is None]

    def _run(self) -> None:
        # Its nodes inherit this: a terminal that is closed ends the run, which has them save first.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        while not self._over.wait(POLL_SECONDS):
            try:
                self._change()
            except Exception as error:  # whatever Ray says: else no node would ever come or go again
                log.warning("a node could not be changed: %s", " ".join(str(error).split()))

    def _change(self) -> None:
        now = time.monotonic()
        with self._changing:
            over = [one for one in self._machines if one.ends_at is not None and one.ends_at <= now]
            over += [one for one in self._machines if one not in over and _raylet(one.node).poll() is not None]
            self._machines = [machine for machine in self._machines if machine not in over]
        for machine in over:
            self._kill(machine)
        with self._changing:
            lacking = [self._lacking(kind) for kind in MARKET_TYPES]
        for kind, number in zip(MARKET_TYPES, lacking, strict=True):
            if number > 0:  # one at a time: meanwhile something else may be wanted
                node = self._cluster.add_node(**self._options, labels={MARKET_LABEL: kind})
                with self._changing:
                    self._machines.append(_Machine(node, kind))
                break

    def _lacking(self, kind: str) -> int:
        """How many are missing; those that are too many are given back."""
        wanted = min(self._wanted.spot, self._offered) if kind == SPOT else self._wanted.on_demand
        there = self._of(kind)
        for machine in there[wanted:]:
            self._end(machine, self._leave)
        return wanted - len(there)

    def _end(self, machine: _Machine, after: float) -> None:
        machine.ends_at = time.monotonic() + after
        if after > 0:
            try:
                drain(self._cluster.address, machine.node.node_id, after)
            except Exception as error:  # it goes all the same, without notice
                log.warning("a node was given no notice: %s", " ".join(str(error).split()))

    @staticmethod
    def _kill(machine: _Machine) -> None:
        """As a machine that is switched off: all its processes at once; the raylet is reaped."""
        process = _raylet(machine.node)
        process.send_signal(signal.SIGSTOP)  # so nobody is left who could tell the whole cluster of it, line by line
        others = _children(process.pid) if process.poll() is None else []
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _raylet(node: Any) -> Any:
    [raylet] = node.all_processes["raylet"]
    return raylet.process


def _children(pid: int) -> list[int]:
    """Processes that another one has begun; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
