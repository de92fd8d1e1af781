"""Nodes of a pool that come and go: who brings them up, and who takes them away.

A node has one device, and carries the label ``ray.io/market-type``: ``spot`` or ``on-demand``. Who is asked for nodes
answers at once; they come when they come, and what there is Ray says.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ray
from ray._private.state import state as ray_state

from lightning_core.market.online_plan import NodeCounts

log = logging.getLogger(__name__)

MARKET = "ray.io/market-type"
SPOT, ON_DEMAND = "spot", "on-demand"
KINDS = (SPOT, ON_DEMAND)
# How long a node that is given back has to be left by its job, seconds; a job that has left is not waited for.
LEAVE = 10.0
# How often nodes are looked at here, seconds.
LOOK = 0.1
# How long a command may take, and how soon it is tried again, seconds; how often at the end.
COMMAND, AGAIN = 60.0, 5.0
LAST_TRIES = 3


class Provisioner(Protocol):
    """Brings nodes up, and gives them back."""

    def want(self, wanted: NodeCounts) -> None:
        """So many there should be; returns at once."""

    def close(self) -> None:
        """No node is wanted any more."""


def listed_nodes(resource: str = "device") -> dict[str, str]:
    """Nodes of the Ray that this process has joined that have a device and are not being taken away: id and kind.

    A node that says nothing of its kind has none: ``""``.
    """
    draining = ray_state.get_draining_nodes()
    listed: Any = ray.nodes  # it has no types
    return {
        node["NodeID"]: node["Labels"].get(MARKET, "")
        for node in listed()
        if node["Alive"] and node["NodeID"] not in draining and node["Resources"].get(resource, 0) >= 1
    }


def nodes_there(resource: str = "device") -> NodeCounts:
    """How many of those there are of each kind."""
    kinds = list(listed_nodes(resource).values())
    return NodeCounts(kinds.count(SPOT), kinds.count(ON_DEMAND))


class AutoscalerProvisioner:
    """Ray's autoscaler brings them up, on a cloud: node types there carry the label.

    It takes a wish as the whole cluster's: nobody else should ask it. A node that is too many is drained: it ends once
    its job has left it, and then its machine is given back.

    Args:
        resource: of a device, ``"GPU"`` or ``"device"``.
        leave: seconds that a node which is given back is left.

    Raises:
        ValueError: if the Ray that this process has joined has no autoscaler that knows labels.
    """

    def __init__(self, resource: str = "GPU", leave: float = LEAVE) -> None:
        from ray.autoscaler.v2.utils import is_autoscaler_v2

        if not is_autoscaler_v2(fetch_from_server=True):
            raise ValueError("this Ray has no autoscaler that knows labels of nodes: that is version 2 "
                             "(RAY_enable_autoscaler_v2=1); or bring nodes up with --provision COMMAND")  # fmt: skip
        self._resource, self._leave = resource, leave

    def want(self, wanted: NodeCounts) -> None:
        from ray.autoscaler.sdk import request_resources

        listed = listed_nodes(self._resource)
        for kind, number in zip(KINDS, wanted, strict=True):
            for node in [name for name, one in listed.items() if one == kind][number:]:
                drain(ray.get_runtime_context().gcs_address, node, self._leave)
        selectors = [{MARKET: SPOT}] * wanted.spot + [{MARKET: ON_DEMAND}] * wanted.on_demand
        request_resources(bundles=[{self._resource: 1}] * wanted.all, bundle_label_selectors=selectors)

    def close(self) -> None:
        self.want(NodeCounts())


class CommandProvisioner:
    """A command of the user's brings them up: it is run whenever the wish changes, and told by the environment.

    ``LIGHTNING_CORE_SPOT`` and ``LIGHTNING_CORE_ON_DEMAND`` say how many there should be. It is run again with each
    wish, also if that is the same: nodes may have gone meanwhile; and after a while if it failed. A node that it takes
    away it drains first (``ray drain-node``), so that who trains there can save.

    Args:
        words: the command and its arguments; no shell reads them.

    Raises:
        ValueError: if there is no command.
    """

    def __init__(self, words: Sequence[str] | str) -> None:
        self._words = shlex.split(words) if isinstance(words, str) else list(words)
        if not self._words:
            raise ValueError("a command must be named, got none")
        self._wanted: NodeCounts | None = None
        self._news = threading.Condition()
        self._is_news = self._over = False
        self._thread = threading.Thread(target=self._run, name="lightning-core-provision", daemon=True)
        self._thread.start()

    def want(self, wanted: NodeCounts) -> None:
        with self._news:
            self._wanted, self._is_news = wanted, True
            self._news.notify()

    def close(self) -> None:
        """Nodes that are still there when this fails are named in a warning: somebody pays for them."""
        with self._news:
            self._wanted, self._is_news, self._over = NodeCounts(), True, True
            self._news.notify()
        self._thread.join((1 + LAST_TRIES) * (COMMAND + AGAIN))

    def _run(self) -> None:
        tries = LAST_TRIES
        while True:
            with self._news:
                self._news.wait_for(lambda: self._is_news)
                wanted, over, self._is_news = self._wanted, self._over, False
            assert wanted is not None  # somebody has said so
            if self._tell(wanted):
                if over:
                    return
                continue
            if over and (tries := tries - 1) < 1:
                log.error(
                    "%s could not be told that no node is wanted any more: some may still be paid for", self._words[0]
                )
                return
            time.sleep(AGAIN)
            with self._news:
                self._is_news = True

    def _tell(self, wanted: NodeCounts) -> bool:
        told = {"LIGHTNING_CORE_SPOT": str(wanted.spot), "LIGHTNING_CORE_ON_DEMAND": str(wanted.on_demand)}
        try:
            # A group of its own: Ctrl-C is meant for the run, which gives its nodes back with this.
            subprocess.run(
                self._words, env=os.environ | told, check=True, timeout=COMMAND, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            why = f"exit code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
            if isinstance(error, subprocess.TimeoutExpired):  # its words would name the whole command, maybe with a key
                why = f"no answer within {COMMAND:g} s"
            log.warning("%s spot and %s on-demand nodes could not be asked for: %s: %s", *wanted, self._words[0], why)
            return False
        return True


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

    def __init__(self, cluster: Any, notice: float = 10.0, leave: float = LEAVE, **options: Any) -> None:
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
        while not self._over.wait(LOOK):
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
            lacking = [self._lacking(kind) for kind in KINDS]
        for kind, number in zip(KINDS, lacking, strict=True):
            if number > 0:  # one at a time: meanwhile something else may be wanted
                node = self._cluster.add_node(**self._options, labels={MARKET: kind})
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


def drain(address: str, node: str, seconds: float) -> None:
    """Gives notice that a node will be taken away: nothing new comes to it.

    Args:
        address: of the cluster.
        node: its id.
        seconds: from now.

    Raises:
        RuntimeError: if Ray does not take it.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    words: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    reason = words.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(1000 * (time.time() + seconds))
    accepted, why = raylet.GcsClient(address=address).drain_node(node, reason, "taken away", deadline)
    if not accepted:
        raise RuntimeError(f"node {node}: the notice was not taken: {why}")
