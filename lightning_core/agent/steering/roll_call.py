"""Roll call of the ranks: without the same callback on all of them, none may start a collective.

Each rank says what it has before a barrier, into the store by which the process group was made, and looks
at what the others have said after it. So all ranks come to the same answer, and none waits for another. A plain loop
has no barrier: there the first rank waits for the others, for a limited time.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

from lightning_core.view.console_lines import logger

log = logger(__name__)

# Counts the changes of what ranks send each other.
PROTOCOL = 2
# Seconds that a rank waits for another one where no barrier follows.
PATIENCE = 60.0
# Numbers of the roll calls of plain loops in this process, which all ranks count alike.
_numbers = count(1)


class RollCall:
    """The callback of one rank, compared with those of the others.

    Args:
        trainer: Object that is about to train on this rank, such as a Trainer; it is not kept alive.
        rank: Rank of this process.
        ranks: Number of ranks.
        job: Name of the job, for log messages.
        terms: Arguments that must be the same on all ranks, as plain values.
    """

    def __init__(self, trainer: object, rank: int, ranks: int, job: str, terms: Sequence[object]) -> None:
        self._trainer = weakref.ref(trainer)
        self._rank, self._ranks = rank, ranks
        self._job, self._terms = job, [PROTOCOL, *terms]
        self._store: Any = None

    def answer(self) -> None:
        """Say what this rank has; to be called where a barrier follows."""
        if self._ranks > 1:
            from torch.distributed import distributed_c10d

            with suppress(Exception):  # the others find that this rank has said nothing; so if there is no group
                store: Any = distributed_c10d._get_default_store()
                store.set(_key(self._rank), json.dumps(self._terms))
                self._store = store

    def is_complete(self) -> bool:
        """Return whether all ranks have the same; if not, one of them logs why. To be called after that barrier."""
        if self._ranks < 2:
            return True
        try:
            said = [self._said_by(rank) for rank in range(self._ranks)]
        except Exception as error:
            log.warning("%s: the callback does nothing here, for the other ranks are unknown: %s", self._job, error)
            return False
        if all(one == self._terms for one in said):
            return True
        if self._rank == next(rank for rank, one in enumerate(said) if one is not None):
            missing = ", ".join(str(rank) for rank, one in enumerate(said) if one is None)
            why = f"none on rank {missing}" if missing else "with other arguments, or of another version"
            log.warning("%s: the callback does nothing here, for it is not the same on all ranks: %s", self._job, why)
        return False

    def withdraw(self, trainer: object) -> None:
        """Say that this rank has no callback any more, if that is what trains: the next training may have none."""
        if self._store is not None and self._trainer() is trainer:
            with suppress(Exception):
                self._store.set(_key(self._rank), "null")

    def _said_by(self, rank: int) -> object:
        """Return what a rank has said; None for nothing."""
        if self._store is None:
            raise RuntimeError("there is no process group of torch, or its store cannot be written")
        return json.loads(self._store.get(_key(rank))) if self._store.check([_key(rank)]) else None


def _key(rank: int) -> str:
    return f"lightning_core/callback-{rank}"


def all_ranks_begin(rank: int, ranks: int, job: str, terms: Sequence[object]) -> bool:
    """Return whether all ranks begin the same training, where no barrier follows; all come to the same answer.

    The first rank waits for what the others say, takes each word, and writes what it has found. Another rank takes its
    word back if nothing is found in time, which it can as long as the first has not taken it.

    Args:
        rank: Rank of this process.
        ranks: Number of ranks.
        job: Name of the job, for log messages.
        terms: Arguments that must be the same on all ranks, as plain values.
    """
    if ranks < 2:
        return True
    from torch.distributed import distributed_c10d

    seconds, number, word, taken = PATIENCE, next(_numbers), json.dumps([PROTOCOL, *terms]), "taken"
    store: Any = distributed_c10d._get_default_store()
    own, found = f"lightning_core/loop-{number}-{rank}", f"lightning_core/loop-{number}-found"
    if rank > 0:
        store.set(own, word)
        with suppress(Exception):  # none has come in time
            store.wait([found], timedelta(seconds=seconds))
        if not store.check([found]) and store.compare_set(own, word, "too late").decode() != taken:
            log.warning("%s: nothing is reported and no share is kept, because rank 0 has not begun it within %.0f s: "
                        "call it on all ranks", job, seconds)  # fmt: skip
            return False
        return bool(json.loads(store.get(found)))
    keys = [f"lightning_core/loop-{number}-{other}" for other in range(1, ranks)]
    with suppress(Exception):  # then one is missing
        store.wait(keys, timedelta(seconds=seconds))
    said = [store.compare_set(key, word, taken).decode() for key in keys]
    missing = [other for other, one in enumerate(said, start=1) if one != taken]
    store.set(found, json.dumps(not missing))
    if missing:
        log.warning("%s: nothing is reported and no share is kept, because it has not begun in the same way on rank %s "
                    "within %.0f s: call it on all ranks", job, ", ".join(map(str, missing)), seconds)  # fmt: skip
    return not missing
