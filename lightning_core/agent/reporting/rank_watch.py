"""Notices that the ranks of a training wait for each other: none moves, and they are not in the same place.

Each rank has a thread that looks whether its training thread moves: whether it begins or ends a batch, or agrees with
the others. One that has stood still for far longer than ever before writes where it is into the store by which the
process group was made, which needs no collective. Rank 0 reads what the others have written, and compares.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.agent.reporting.hang_watch import FACTOR, MAX_GAP, HangWatch
from lightning_core.core.reported import Hang
from lightning_core.view.console_lines import logger

log = logger(__name__)

# Seconds that a rank may stand still at least, and seconds between two looks.
MIN_STILL, LOOK_PERIOD = 15.0, 1.0
# How much longer it may while it saves: the others wait for the rank that writes.
SAVING_FACTOR = 20.0
# Steps of training that must lie behind before ranks are compared: before that, anything may take long.
MIN_MOVES = 10
# Seconds that a call of the store may take.
STORE_TIMEOUT = 5.0
# How a collective is done, and not where it was asked for.
_HOW = ("torch/distributed/", "torch/utils/_contextlib", "torch/_")
# Where a backward pass waits for the gradients of the other ranks, among other things.
_BACKWARD = "torch/autograd/"


class StalledPlace(NamedTuple):
    """Where the training thread of a rank stands still."""

    at: str
    """The function and its line; of a collective, those that have asked for it."""
    waits: bool
    """Whether it is in a collective, and so waits for the others."""
    stack: str


class RankWatch:
    """Watches one rank.

    Args:
        job: Name of the job, for log messages.
        rank: Number of this rank.
        ranks: Number of ranks.
        moves: Watch of the training thread, which counts its moves.
        store: Returns the store of the process group; None if there is none.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        job: str,
        rank: int,
        ranks: int,
        moves: HangWatch,
        store: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_over = False
        """Whether the ranks wait for each other for good: each is in a collective, and not all in the same."""
        self._job = job
        self._rank, self._ranks = rank, ranks
        self._moves = moves
        self._get_store = store
        self._store: Any = None
        self._clock = clock
        self._thread = moves.thread
        self._seen = self._looked_at = -1.0
        self._still = self._longest = 0.0
        self._told: str | None = None
        self._hang: Hang | None = None
        self._story = ""

    def look(self) -> Hang | None:
        """Look whether this rank moves, and on rank 0 whether the ranks wait for each other; to be called often.

        Returns:
            That they do, as it was when that was noticed; None if they do not, and on all ranks but the first.
        """
        now, moves = self._clock(), self._moves.moves
        gap, self._looked_at = min(now - self._looked_at, MAX_GAP), now
        if moves != self._seen:
            if self._told is not None:
                self._tell(None)
            elif self._seen > MIN_MOVES:
                self._longest = max(self._longest, self._still)
            self._seen, self._still, self._hang, self.is_over = moves, 0.0, None, False
            return None
        self._still += gap
        if self._still <= self.limit or moves <= MIN_MOVES:
            return None
        place = _place_of(self._thread)
        if place.stack != self._told:
            self._tell(place)
        if self._rank == 0:
            self._compare(place)
        return self._hang

    @property
    def limit(self) -> float:
        """Seconds that a rank may stand still: many times as long as it ever has, and longer while it saves."""
        return max(MIN_STILL * (SAVING_FACTOR if self._moves.saves else 1.0), FACTOR * self._longest)

    def story(self) -> str:
        """Return where each rank is, and in the last line for how long they wait."""
        return self._story

    def _compare(self, own: StalledPlace) -> None:
        """Compare the places of all ranks; note whether they wait for each other."""
        places = [own, *(self._read(rank) for rank in range(1, self._ranks))]
        known = [place for place in places if place is not None]
        if len({place.at for place in known}) < 2:
            return  # all in the same, which may just be slow; or the others move
        if self._hang is None:
            self._hang = Hang(self._still, self._longest, self._ranks)
            stacks = "".join(f"rank {rank}:\n{place.stack}" for rank, place in enumerate(places) if place is not None)
            self._story = stacks + str(self._hang.reason)
            words = "; ".join(
                f"rank {rank} {'waits' if place.waits else 'is'} in {place.at}"
                for rank, place in enumerate(places)
                if place is not None
            )
            log.warning("%s: no rank has moved for %.0f s: %s\n%s", self._job, self._still, words, self._story)
        stuck = len(known) == len(places) and all(place.waits for place in known)
        self.is_over = stuck and self._still > 2 * self.limit

    def _tell(self, place: StalledPlace | None) -> None:
        """Write where this rank stands still, or that it moves again."""
        self._told = None if place is None else place.stack
        if (store := self._open_store()) is not None:
            store.set(_key(self._rank), json.dumps(place or ["", False, ""]))

    def _read(self, rank: int) -> StalledPlace | None:
        """Return where another rank stands still; None if it moves, or cannot say."""
        if (store := self._open_store()) is None or not store.check([_key(rank)]):
            return None
        place = StalledPlace(*json.loads(store.get(_key(rank))))
        return place if place.stack else None

    def _open_store(self) -> Any:
        if self._store is None and (store := self._get_store()) is not None:
            self._store = own = store.clone()  # a connection of its own: this thread makes no other wait
            own.set_timeout(timedelta(seconds=STORE_TIMEOUT))
        return self._store


def store_of_group() -> Any:
    """Return the store by which the process group was made; None if there is none that a thread can use."""
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store() if distributed_c10d.is_initialized() else None
    return store if hasattr(store, "clone") else None


def _key(rank: int) -> str:
    return f"lightning_core/rank-{rank}"


def _place_of(thread: int) -> StalledPlace:
    frame = sys._current_frames().get(thread)
    calls: Sequence[traceback.FrameSummary] = [] if frame is None else traceback.extract_stack(frame)
    files = ["/".join(Path(call.filename).parts[-4:]) for call in calls]
    within = any("torch/distributed/" in file for file in files) or any(_BACKWARD in file for file in files[-2:])
    how = (*_HOW, _BACKWARD) if within else ()
    asked = [call for call, file in zip(calls, files, strict=True) if not any(part in file for part in how)]
    at = f"{asked[-1].name} ({Path(asked[-1].filename).name}:{asked[-1].lineno})" if asked else ""
    return StalledPlace(at, within, "".join(traceback.format_list(calls)))
