"""Rates of trainings on kinds of devices, from the runs that a pool remembers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from lightning_core.core.jobs import Job
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.storage.private_files import this_user
from lightning_core.storage.runs.past_run import PastRun
from lightning_core.storage.runs.run_store import RunStore

# Newest runs from which rates are known.
MAX_RUNS = 1000


class KeptRates:
    """Rates of a user's runs on the kinds of a pool, as its scheduler would know or expect them.

    Args:
        kinds: Names of the kinds.
        pool: Kind of the pool, ``cpu`` or ``gpu``.
        kept: Runs that a pool remembers; None for none.

    Attributes:
        rates: What is known of them.
    """

    def __init__(self, kinds: Sequence[str], pool: str, kept: RunStore | None) -> None:
        self.kinds, self.rates = tuple(kinds), KindRates()
        self._pool, self._kept = pool, kept
        self._seen: dict[tuple[str, int], set[str]] = {}
        for past in islice([] if kept is None else kept.runs(), MAX_RUNS):
            if past.owner == this_user():
                self._recall(past.family, past, past.batch_size)

    def learn(self, job: Job) -> list[PastRun]:
        """Take the rates of the runs that went as a job will go, as those of its family; return these runs."""
        similar = [] if self._kept is None else self._kept.similar(job, this_user())
        for past in similar:
            self._recall(job.family, past, job.batch_size)
        return similar

    def is_measured(self, family: str, devices: int, kind: str) -> bool:
        """Return whether a family was measured on a number of devices of a kind."""
        return kind in self._seen.get((family, devices), ())

    @property
    def compare(self) -> bool:
        """Whether anything is known of how the kinds compare: some training was on several of them."""
        return any(len(kinds) > 1 for kinds in self._seen.values())

    def _recall(self, family: str, past: PastRun, batch_size: int | None) -> None:
        for kind, devices, rate in past.for_job(batch_size, self._pool).on_kinds:
            if kind in self.kinds:
                self.rates.recall(family, devices, kind, rate)
                self._seen.setdefault((family, devices), set()).add(kind)
