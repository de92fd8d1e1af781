"""Jobs of several devices: one worker on each, together one Trainer.

Each worker counts as a node with one device. So Lightning's own environment for processes that somebody else starts
serves, on CPUs and on GPUs of which each worker sees one, and no strategy has to be bent.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

# How long a rank waits for the others in a collective, seconds. Ranks that have parted for good (one hangs, one waits
# in another collective) fail after so long: torch's own default is half an hour.
COLLECTIVE = 120.0
# How long leaving a process group may take, seconds.
LEAVE = 10.0


class Rank(NamedTuple):
    """A worker's place in its job."""

    number: int = 0
    of: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    slots: int = 0
    """Micro-batches of a step, which all ranks share, if the number of ranks may change; else 0."""


ALONE = Rank()


def free_port() -> int:
    """A port that is free now, for the ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trainer_arguments(rank: Rank, kind: str) -> dict[str, Any]:
    """What a Trainer must be told to be one of several; nothing if it is alone."""
    if rank.of == 1:
        return {}
    backend = "gloo" if kind == "cpu" else "nccl"
    arguments = {"process_group_backend": backend, "timeout": timedelta(seconds=COLLECTIVE)}
    ddp = {"class_path": "lightning.pytorch.strategies.DDPStrategy", "init_args": arguments}
    return {"num_nodes": rank.of, "strategy": ddp}


@contextmanager
def joined_ranks(rank: Rank) -> Iterator[None]:
    """The environment in which the ranks of a job find each other, while it trains.

    Those of a job that can be resized, be it one alone, also learn there of how many micro-batches a step is. The
    process group is taken down at the end: ``fit`` leaves it, and the worker's next job may have another size.
    """
    told = {}
    if rank.slots:
        from lightning_core.callbacks.elastic.steps import MICRO_BATCHES

        told[MICRO_BATCHES] = str(rank.slots)
    if rank.of > 1:
        told |= {
            "MASTER_ADDR": rank.address,
            "MASTER_PORT": str(rank.port),
            "RANK": str(rank.number),
            "WORLD_SIZE": str(rank.of),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank.number),
            "TORCHELASTIC_RUN_ID": str(rank.port),  # by this Lightning knows that somebody else starts the processes
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    os.environ.update(told)
    store = None
    try:
        if rank.of > 1 and rank.number == 0:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            # Now, and not when the model is built: whoever finds nobody there looks again after half a second only.
            store = TCPStore(rank.address, rank.port, is_master=True, wait_for_workers=False)
        yield
    finally:
        if rank.of > 1:
            import torch.distributed

            if torch.distributed.is_initialized():
                _leave_group()
        del store
        for name in told:
            os.environ.pop(name, None)


def is_stuck() -> bool:
    """Whether a process group could not be left, so that this process can join no other."""
    return _leaving is not None and _leaving.is_alive()


def _leave_group() -> None:
    """Leaves the process group; one that fell apart may wait for its dead for ever."""
    global _leaving
    import torch.distributed

    _leaving = threading.Thread(target=torch.distributed.destroy_process_group, name="leaving", daemon=True)
    _leaving.start()
    _leaving.join(LEAVE)
    if is_stuck():
        log.warning("the process group could not be left within %.0f s", LEAVE)


_leaving: threading.Thread | None = None
