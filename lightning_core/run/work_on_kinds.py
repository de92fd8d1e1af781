"""How long jobs take on each kind of a pool's devices, from the rates of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lightning_core.bundle.job_spec import JobSpec
from lightning_core.core.arrays import FloatArray
from lightning_core.core.durations import format_duration
from lightning_core.core.jobs import Job
from lightning_core.planning.feasibility import JobRequest
from lightning_core.storage.runs.kept_rates import KeptRates
from lightning_core.storage.runs.run_store import RunStore


class WorkOnKinds:
    """How long jobs take on each kind of devices.

    Rates are those that the scheduler would be given and would expect: measured in earlier runs, or else estimated from
    what other trainings gained.

    Args:
        counts: Number of devices of each kind.
        pool: Kind of the pool, ``cpu`` or ``gpu``.
        kept: Runs that a pool remembers; None for none.
    """

    def __init__(self, counts: Mapping[str, int], pool: str, kept: RunStore | None) -> None:
        self._counts, self._pool, self._kinds = dict(counts), pool, tuple(counts)
        self._kept = KeptRates(self._kinds, pool, kept)

    @property
    def known(self) -> bool:
        """Whether anything is known of how the kinds compare."""
        return self._kept.compare

    def allowed(self, job: Job) -> tuple[str, ...]:
        """Return the kinds on which a job may be."""
        wanted = (job.location,) if job.location else job.kinds
        return tuple(kind for kind in self._kinds if not wanted or kind in wanted)

    def request(self, spec: JobSpec, request: JobRequest, origin: str) -> tuple[JobRequest, str]:
        """Return a request with its work on each kind, and the origin of its work.

        Work that its user has given is that on the fastest kind that it may be on. That of an earlier run of which no
        rates are known is that on a kind of medium speed.

        Args:
            spec: The job.
            request: The request, with its work as if all devices were alike.
            origin: Origin of that work.
        """
        job, allowed = spec.identified, self.allowed(spec.job)
        size = min(job.max_devices, max(self._counts[kind] for kind in allowed))
        similar, rates = self._kept.learn(job), self._kept.rates
        rate, _ = rates.expect(job.family, size, self._kinds)
        fastest = max(rate[self._kinds.index(kind)] for kind in allowed)
        work = request.work
        if job.work is None:
            met = next((past for past in similar if past.met_at is not None and past.target == str(job.target)), None)
            if met is not None and rates.has(job.family, size, self._kinds):
                work = (met.for_job(job.batch_size, self._pool).met_at or 1) / float(np.exp(fastest))
                origin = f"as much as {met.name}"
            elif work is not None:
                work *= float(np.exp(rate.mean() - fastest))
        paces: FloatArray = np.exp(rate - fastest)
        own = dict(zip(self._kinds, paces.tolist(), strict=True))
        return request._replace(work=work, size=size, paces=own, kinds=allowed), origin

    def words(self, spec: JobSpec, request: JobRequest) -> str:
        """Return how long a job takes on each kind that it may be on: ``2m on a100, about 8m on t4``."""
        found: dict[str, str] = {}
        for kind in request.kinds:
            work = request.on(kind).work
            assert work is not None  # it is known
            measured = self._kept.is_measured(spec.identified.family, request.size, kind)
            about = "" if measured or request.paces[kind] == 1.0 else "about "
            found[kind] = f"{about}{format_duration(work)}"
        if len({*found.values()}) == 1:
            return next(iter(found.values()))
        return ", ".join(f"{time} on {kind}" for kind, time in found.items())
