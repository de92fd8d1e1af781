"""Simulated nodes: raylets on this machine, real processes that come and go."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.cloud.provisioner import LEAVE_SECONDS, MARKET_LABEL, MARKET_TYPES, ON_DEMAND, SPOT, drain
from lightning_core.market.online.node_counts import NodeCounts

log = logging.getLogger(__name__)

# Seconds between two looks at the nodes.
POLL_SECONDS = 0.1


@dataclass(slots=True)
class _Machine:
    """A raylet in place of a machine."""

    node: Any
    market_type: str
    ends_at: float | None = None
    """Monotonic time at which it is switched off; None while it stays."""


class SimulatedProvisioner:
    """Starts and kills raylets of a ``ray.cluster_utils.Cluster`` on this machine.

    It simulates the market as well: :meth:`offer` says how many spot nodes are on offer, and preempts the others.

    Args:
        cluster: Cluster with a head, made with ``shutdown_at_exit=False``: nodes are added in a thread, which cannot
            set signal handlers. The caller shuts it down.
        notice: Seconds from a preemption notice to the end of the node; 0 for no notice.
        leave: Seconds that a job has to leave a node which is given back.
        options: Options of a node.
    """

    def __init__(self, cluster: Any, notice: float = 10.0, leave: float = LEAVE_SECONDS, **options: Any) -> None:
        self._cluster, self.notice, self._leave = cluster, notice, leave
        self._options = {"num_cpus": 1, "resources": {"device": 1}, "object_store_memory": 80 * 2**20, **options}
        self._wanted, self._offered = NodeCounts(), 10**6
        self._machines: list[_Machine] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.preempted = 0
        """Spot nodes preempted so far."""
        self._thread = threading.Thread(target=self._run, name="lightning-core-nodes", daemon=True)
        self._thread.start()

    def scale_to(self, wanted: NodeCounts) -> None:
        with self._lock:
            self._wanted = wanted

    def offer(self, spot: int) -> None:
        """Offer so many spot nodes from now on; of more, the newest are preempted."""
        with self._lock:
            self._offered = spot
            for machine in self._of(SPOT)[spot:]:
                self.preempted += 1
                self._end(machine, self.notice)

    def present(self) -> NodeCounts:
        """Return the nodes that are up and not draining."""
        with self._lock:
            return NodeCounts(len(self._of(SPOT)), len(self._of(ON_DEMAND)))

    def processes(self, market_type: str) -> list[int]:
        """Return the process ids of those nodes of one market type."""
        with self._lock:
            return [_raylet(machine.node).pid for machine in self._of(market_type)]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for machine in self._machines:
            self._kill(machine)

    def _of(self, market_type: str) -> list[_Machine]:
        return [one for one in self._machines if one.market_type == market_type and one.ends_at is None]

    def _run(self) -> None:
        # The nodes inherit this: closing the terminal ends the run, which lets their jobs save first.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        while not self._closed.wait(POLL_SECONDS):
            try:
                self._step()
            except Exception as error:  # Ray raises many kinds; the thread must go on
                log.warning("a simulated node could not be changed: %s", " ".join(str(error).split()))

    def _step(self) -> None:
        """Kill the nodes whose time is up, and start one that is missing."""
        now = time.monotonic()
        with self._lock:
            ended = [one for one in self._machines if one.ends_at is not None and one.ends_at <= now]
            ended += [one for one in self._machines if one not in ended and _raylet(one.node).poll() is not None]
            self._machines = [machine for machine in self._machines if machine not in ended]
        for machine in ended:
            self._kill(machine)
        with self._lock:
            missing = [self._missing(market_type) for market_type in MARKET_TYPES]
        for market_type, number in zip(MARKET_TYPES, missing, strict=True):
            if number > 0:  # one at a time: the request may change in the meantime
                node = self._cluster.add_node(**self._options, labels={MARKET_LABEL: market_type})
                with self._lock:
                    self._machines.append(_Machine(node, market_type))
                break

    def _missing(self, market_type: str) -> int:
        """Return the number of missing nodes; give back the surplus ones."""
        wanted = min(self._wanted.spot, self._offered) if market_type == SPOT else self._wanted.on_demand
        present = self._of(market_type)
        for machine in present[wanted:]:
            self._end(machine, self._leave)
        return wanted - len(present)

    def _end(self, machine: _Machine, after: float) -> None:
        machine.ends_at = time.monotonic() + after
        if after > 0:
            try:
                drain(self._cluster.address, machine.node.node_id, after)
            except Exception as error:  # it ends all the same
                log.warning("a simulated node ends without notice: %s", " ".join(str(error).split()))

    @staticmethod
    def _kill(machine: _Machine) -> None:
        """Kill all processes of a node at once, as a machine that is switched off, and reap its raylet."""
        process = _raylet(machine.node)
        process.send_signal(signal.SIGSTOP)  # it must not tell the cluster of its children's deaths one by one
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
    """Return the child processes of a process; none where the system does not list them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
