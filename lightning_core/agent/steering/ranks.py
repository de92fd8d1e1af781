"""Agreement of the processes of one training: rank 0 decides, and all ranks act after the same batch.

Every few batches rank 0 broadcasts one small tensor. It chooses the number of batches until the next broadcast from the
measured cost of a broadcast and of a batch, and sends it in the same tensor, so that no rank relies on its own clock.
It also sends the next batch after which the target may be met, where all ranks agree as well: so they stop after the
same batch in every run.
Where it says so, all ranks then tell one another what memory they have.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Any, Self

from lightning_core.agent.reporting.rank_memory import RankMemory, RankUse
from lightning_core.agent.user_code.torch_here import TrainingDevice
from lightning_core.core.limits import MAX_COUNT

# Target seconds of training between two agreements.
AGREEMENT_PERIOD = 0.05
# Maximum fraction of the training time that agreeing may cost.
MAX_AGREEMENT_COST = 0.01


class Action(IntEnum):
    """The next action of a training."""

    GO = 0
    HOLD = 1
    STOP = 2
    """Stop the Trainer: the target is met."""
    LEAVE = 3
    """Save where resuming is exact, and leave."""
    OVER = 4
    """Leave."""
    FENCED = 5
    """Leave without saving: another incarnation has taken over."""


class SideAction(IntFlag):
    """Instructions to a training besides its next :class:`Action`."""

    NOTHING = 0
    SAVE = 1
    """Save a checkpoint where resuming is exact."""
    KEEP = 2
    """Save the model as the best so far."""
    TELL_MEMORY = 4
    """Tell the other ranks what memory this one has."""
    REQUEUE = 8
    """Save, and ask for a new allocation: that of the training is nearly over."""


# A name of its own: to look up a member of an enum takes as long as to read a clock, and each batch needs this one.
NOTHING = SideAction.NOTHING


def batches_between(broadcast: float, batch: float) -> int:
    """Return the number of batches until the next agreement.

    Args:
        broadcast: Seconds that a broadcast takes.
        batch: Seconds that a batch takes.

    Example::

        >>> batches_between(broadcast=2e-4, batch=1e-3), batches_between(broadcast=2e-4, batch=2.0)
        (50, 1)
    """
    return max(1, int(AGREEMENT_PERIOD / batch), math.ceil(broadcast / (MAX_AGREEMENT_COST * batch)))


# Signals that are held back while ranks agree, if this process has a handler of its own for them.
DEFERRED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP") if hasattr(signal, name))


class SignalsDeferred:
    """Context in which signals wait until it ends.

    Lightning's handlers communicate: within an agreement they would meet its messages on the other ranks. After it they
    meet Lightning's own, of its next batch.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        """Signals that have come and wait."""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in DEFERRED:
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, lambda came, _: self.came.append(came))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        came, self.came = self.came, []
        self._handlers = {}
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


class Ranks:
    """Takes part in the agreement for this process.

    Args:
        rank: Number of this rank.
        device: Device of the tensors that the process group of this training can send.
        memory: Memory of this rank; the same on all ranks, None if no rank measures any.
    """

    def __init__(self, rank: int, device: TrainingDevice, memory: RankMemory | None = None) -> None:
        self._first = rank == 0
        self.stops_at: Callable[[], int] = lambda: MAX_COUNT
        """Return the batches after which this training may have met its target, or more; asked of the first rank."""
        import torch

        self._torch = torch
        own: Any = device
        self._tensor = torch.zeros(4, dtype=torch.int64, device=own)
        self._stops_at = MAX_COUNT
        self._memory = memory
        self._between = self._left = 1
        self._cost = math.inf
        self._since = time.perf_counter()

    def due(self, batches: int) -> bool:
        """Count a call after a batch; return whether all ranks agree after it.

        Args:
            batches: Batches done, the same on all ranks.
        """
        self._left -= 1
        return self._left <= 0 or batches >= self._stops_at

    def agree(self, action: Action, side_actions: int) -> tuple[Action, int]:
        """Return what rank 0 has decided; all ranks must call it after the same batch.

        Args:
            action: What to do next. Ignored on all ranks but the first.
            side_actions: What to do besides, as :class:`SideAction`. Ignored on all ranks but the first.
        """
        if self._tensor.is_cuda:  # what is queued for the device is no cost of the broadcast
            self._torch.cuda.current_stream(self._tensor.device).synchronize()
        began = time.perf_counter()
        if self._first:
            if self._memory is not None and self._memory.due():
                side_actions |= SideAction.TELL_MEMORY
            batch = max(began - self._since, 1e-6) / max(self._between - max(self._left, 0), 1)
            between = 1 if self._cost == math.inf else batches_between(self._cost, batch)
            self._tensor.copy_(self._torch.tensor([action, side_actions, between, self.stops_at()], device="cpu"))
        self._torch.distributed.broadcast(self._tensor, 0)
        agreed, agreed_sides, self._between, self._stops_at = self._tensor.tolist()
        self._left = self._between
        # The first broadcast sets up connections, and others wait for a slow rank: the minimum is the true cost.
        self._cost = min(time.perf_counter() - began, 1.1 * self._cost)
        if agreed_sides & SideAction.TELL_MEMORY and self._memory is not None:
            self._tell(self._memory)
        self._since = time.perf_counter()
        return Action(agreed), int(agreed_sides)

    def told(self, *flags: bool) -> list[bool]:
        """Return flags as rank 0 has them; all ranks must call it in the same hook.

        Args:
            flags: Ignored on all ranks but the first.
        """
        tensor = self._torch.tensor(flags, dtype=self._torch.int64, device=self._tensor.device)
        self._torch.distributed.broadcast(tensor, 0)
        return [bool(flag) for flag in tensor.tolist()]

    def common(self, number: int) -> int:
        """Return the number that all ranks have, -1 if they differ; all ranks must call it in the same hook.

        Args:
            number: Number of this rank, -1 or more.
        """
        ends = self._torch.tensor([number, -number], dtype=self._torch.int64, device=self._tensor.device)
        self._torch.distributed.all_reduce(ends, self._torch.distributed.ReduceOp.MAX)
        largest, least = ends.tolist()
        return int(largest) if largest == -least else -1

    def _tell(self, memory: RankMemory) -> None:
        own = self._torch.tensor(memory.own(), dtype=self._torch.int64, device=self._tensor.device)
        all_uses = [self._torch.empty_like(own) for _ in range(self._torch.distributed.get_world_size())]
        self._torch.distributed.all_gather(all_uses, own)
        memory.take([RankUse(*use.tolist()) for use in all_uses])
