"""The process group of a job on several devices: one worker on each, as the ranks of one Trainer.

Each worker counts as a node with one device. Lightning's own environment for processes that it does not start itself
then works unchanged, on CPUs and on GPUs (each worker sees one), with any strategy.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

from lightning_core.bundle.strategies import DDP, JobStrategy

log = logging.getLogger(__name__)

# Seconds for which a rank waits for the others in a collective. Ranks that are stuck (one hangs, or waits in another
# collective) fail after that; torch's default is half an hour.
COLLECTIVE_TIMEOUT = 120.0
# Variable with the network interface over which ranks on CPUs speak, and Linux's question for an interface's address.
INTERFACE = "GLOO_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915
# Seconds that leaving a process group may take.
LEAVE_TIMEOUT = 10.0


class Rank(NamedTuple):
    """Rank of a worker among those of its job, and where they meet."""

    number: int = 0
    of: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    micro_batches: int = 0
    """Micro-batches of an optimizer step, over all ranks, if the number of ranks may change; otherwise 0."""


ALONE = Rank()
# Strategy of a job whose config names none.
WHOLE = JobStrategy(DDP, {})


def free_port() -> int:
    """Return a port that is free now, at which the ranks can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def interface_towards(address: str) -> str:
    """Return the name of this machine's network interface on the way to an address; empty if that is not known.

    Args:
        address: An IPv4 address, of this machine or another one.

    Example::

        >>> interface_towards("127.0.0.1")
        'lo'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # nothing is sent
        except OSError:
            return ""
        ours = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == ours:
                    return name
    return ""


def trainer_arguments(rank: Rank, kind: str, strategy: JobStrategy = WHOLE) -> dict[str, Any]:
    """Return the arguments of a Trainer that is one of several ranks; empty if it is alone, and its model is whole."""
    if not needs_group(rank, strategy):
        return {}
    backend, timeout = "gloo" if kind == "cpu" else "nccl", timedelta(seconds=COLLECTIVE_TIMEOUT)
    return {"num_nodes": rank.of, "strategy": strategy.for_ranks(rank.of, backend, timeout)}


def needs_group(rank: Rank, strategy: JobStrategy) -> bool:
    """Return whether a training needs a process group: one with a sharded model does even on one rank."""
    return rank.of > 1 or strategy.shards


@contextmanager
def joined_ranks(rank: Rank, strategy: JobStrategy = WHOLE) -> Iterator[None]:
    """Set the environment in which the ranks of a job find each other, while it trains.

    If the job can be resized, the environment also has the number of micro-batches of a step, even for a single rank.
    The process group is destroyed at the end: ``fit`` leaves it open, and the worker's next job may have another size.
    """
    variables = {}
    grouped = needs_group(rank, strategy)
    if grouped and rank.of == 1:
        rank = rank._replace(port=free_port())
    if rank.micro_batches:
        from lightning_core.callbacks.elastic.steps import MICRO_BATCHES

        variables[MICRO_BATCHES] = str(rank.micro_batches)
    if grouped:
        variables |= {
            "MASTER_ADDR": rank.address,
            "MASTER_PORT": str(rank.port),
            "RANK": str(rank.number),
            "WORLD_SIZE": str(rank.of),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank.number),
            "TORCHELASTIC_RUN_ID": str(rank.port),  # tells Lightning that it does not start the processes
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        # Gloo would take the interface of the host's name, by which most machines know their local host.
        if INTERFACE not in os.environ and (interface := interface_towards(rank.address)):
            variables[INTERFACE] = interface
    os.environ.update(variables)
    store = None
    try:
        if grouped and rank.number == 0:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            # Now, not when the model is built: a rank that cannot connect retries only after half a second.
            store = TCPStore(rank.address, rank.port, is_master=True, wait_for_workers=False)
        yield
    finally:
        if grouped:
            import torch.distributed

            if torch.distributed.is_initialized():
                _leave_group()
        del store
        for name in variables:
            os.environ.pop(name, None)


def is_stuck() -> bool:
    """Return whether this process is stuck in a process group, so that it can join no other."""
    return _leaving is not None and _leaving.is_alive()


def _leave_group() -> None:
    """Leave the process group; a broken one may block for ever."""
    global _leaving
    import torch.distributed

    _leaving = threading.Thread(target=torch.distributed.destroy_process_group, name="leaving", daemon=True)
    _leaving.start()
    _leaving.join(LEAVE_TIMEOUT)
    if is_stuck():
        log.warning("the process group could not be left within %.0f s", LEAVE_TIMEOUT)


_leaving: threading.Thread | None = None
