"""Play trainings whose measured paces are unknown to the scheduler, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.companies.measured import Paces, of_domain, stands_for
from benchmarks.curves.bundles import Bundle, Recording, draw
from lightning_core.core.answers import Grant
from lightning_core.core.events import Event
from lightning_core.core.jobs import Beside, Job, OnHold
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation

# Bytes of a device: two jobs fit while they train, and three do not, whose paces were not measured.
DEVICE, TRAINS = 10_000, 4_900
# Seconds for which endless trainings are played, and those of a whole recording.
LASTS, RECORDED = 1800.0, 3600.0
# Times longer that trainings of the bundles take than in other benchmarks: there they take a minute.
LONGER = 10.0


class Played(NamedTuple):
    """Outcome of one play."""

    work: float
    """Seconds of work alone that were done, per second of the device."""
    met: int
    losing: float
    """Part of the time that the device spent in pairs that do less than turns."""


class _Watched(Simulation):
    """A simulation that counts the time in pairs that lose."""

    def __init__(self, settings: Settings, jobs: Sequence[SimulatedJob], of: dict[str, str], paces: Paces) -> None:
        super().__init__(settings, jobs, pace=self._measured)
        self.of, self.paces = of, paces
        self.losing = self._counted = 0.0
        self._loses = False

    def _measured(self, job: str, others: Sequence[str]) -> float:
        [other] = others
        return self.paces.pace(self.of[job], self.of[other])

    def _handle(self, event: Event) -> None:
        if self._loses:
            self.losing += self._queue.now - self._counted
        super()._handle(event)
        self._counted = self._queue.now
        grants = [self._scheduler.directive(name) for name in self.of]
        groups: dict[int, list[str]] = {}
        for grant in grants:
            if isinstance(grant, Grant) and grant.beside:
                groups.setdefault(grant.beside, []).append(self.of[grant.job])
        self._loses = any(self.paces.together(*pair) < 1.0 for pair in groups.values())


def endless(paces: Paces, names: Sequence[str], pool: Sequence[Recording], seed: int, policy: str) -> Played:
    """Play trainings that never end, each a tenth of the time by turns.

    Args:
        paces: Measured paces.
        names: Trainings.
        pool: Recorded curves, of which each has one.
        seed: Seed of the curves.
        policy: Policy of the pool.
    """
    draw = random.Random(seed)
    jobs, of = [], {}
    for k, name in enumerate(names):
        alike = [one for one in pool if stands_for(name, one.curve.domain)]
        recording = draw.choice(alike or list(pool))
        throughput = float(recording.position[-1]) / RECORDED
        job = _as(name, Job(f"job{k}", 1e6, LossTarget("loss", float(recording.loss.min()) / 2)))
        jobs.append(SimulatedJob(job, recording.position, recording.loss, throughput))
        of[job.name] = name
    watched = _Watched(_settings(policy), jobs, of, paces)
    outcome = watched.run(LASTS)
    done = sum(one.batches / given.throughput for one, given in zip(outcome.jobs, jobs, strict=True))
    return Played(done / LASTS, 0, watched.losing / LASTS)


def bundle(pool: Sequence[Recording], size: int, load: str, seed: int) -> Bundle:
    """Draw a bundle whose trainings take minutes."""
    drawn = draw(pool, size, pure=False, kind=load, seed=seed)
    jobs = tuple(
        replace(one, job=replace(one.job, deadline=one.job.deadline * LONGER), throughput=one.throughput / LONGER)
        for one in drawn.jobs
    )
    return replace(drawn, jobs=jobs, work=drawn.work * LONGER)


def with_deadlines(paces: Paces, drawn: Bundle, names: Sequence[str], seed: int, beside: Beside) -> Played:
    """Play a bundle under the default policy.

    Args:
        paces: Measured paces.
        drawn: The bundle.
        names: Trainings of which each curve has one of its domain.
        seed: Seed of that choice.
        beside: Whether two train at once.
    """
    choice = random.Random(seed)
    of = {one.job.name: of_domain(recording.curve.domain, names, choice)
          for one, recording in zip(drawn.jobs, drawn.recordings, strict=True)}  # fmt: skip
    jobs = [replace(one, job=_as(of[one.job.name], one.job)) for one in drawn.jobs]
    watched = _Watched(replace(_settings(), beside=beside), jobs, of, paces)
    outcome = watched.run()
    ends = [one.finished_at for one in outcome.jobs if one.finished_at is not None]
    return Played(0.0, outcome.met, watched.losing / max(ends, default=1.0))


def _settings(policy: str = "triage") -> Settings:
    return Settings(policy=policy, device_memory=DEVICE)


def _as(training: str, job: Job) -> Job:
    """Return a job as one of a kind of training; its curve says nothing of that."""
    model, _, batch = training.partition(" (batch size ")
    size = int(batch[:-1]) if batch else None
    return replace(job, model=model, batch_size=size, memory=TRAINS, on_hold=OnHold.OFFLOAD)
