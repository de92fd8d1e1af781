"""A run in the store: its course, and the identity of its task; and how fast a kind of trainings was beside others."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from lightning_core.core.earlier_runs import EarlierPace, EarlierRun, check_run
from lightning_core.core.jobs import family_of
from lightning_core.core.targets import Target
from lightning_core.scheduler.ended_runs import EndedRun

# Digits of an id.
ID_LENGTH = 16
# Stands between the kind of a pool's devices, cpu or gpu, and what the pool calls them.
OF = ":"


class PastRun(NamedTuple):
    """A run that has ended."""

    id: str
    """Id of the run and its content: the same run is stored once."""
    name: str
    """Name of its job."""
    owner: int
    """User id to whom it belongs."""
    like: str
    """Tag, or name of another job, by which it is found; empty for none."""
    model: str
    """Class path of its LightningModule; empty if unknown."""
    metric: str
    """Kind of its losses; see :func:`metric_of`."""
    batch_size: int | None
    """Samples in a batch; None if unknown."""
    target: str
    """Its target, in one line; empty if unknown."""
    verdict: str
    """Outcome; empty if unknown."""
    batches: tuple[int, ...]
    """Points of its curve."""
    losses: tuple[float, ...]
    met_at: int | None
    """Batches done when it met its target; None if it did not."""
    throughputs: tuple[tuple[int, str, float], ...]
    """Numbers of devices, their kind, and the batches per second on them."""
    trained: float
    """Seconds that it trained."""
    took: float
    """Seconds from its submission to its end."""
    ended_at: float
    """Date of its end, in seconds since the epoch."""
    memory: int | None = None
    """Bytes of each device's memory that its process had at its peak; None if unknown."""

    @classmethod
    def of(cls, run: EndedRun, owner: int, kind: str, ended_at: float) -> PastRun:
        """Return a run of a pool in its stored form.

        Args:
            run: The run.
            owner: User id to whom it belongs.
            kind: Kind of the pool's devices.
            ended_at: Date of its end, in seconds since the epoch.
        """
        job = run.job
        told = (job.name, run.submitted, run.ended, run.batches, run.losses, run.trained)
        return cls(
            new_id(told), job.name, owner, job.like, job.model, metric_of(job.target), job.batch_size, str(job.target),
            str(run.verdict), run.batches, run.losses, run.met_at,
            (
                *((devices, kind, throughput) for devices, throughput in run.throughputs),
                *((devices, f"{kind}{OF}{name}", throughput) for name, devices, throughput in run.on_kinds),
            ),
            run.trained, run.ended - run.submitted, ended_at, run.memory,
        )  # fmt: skip

    @property
    def family(self) -> str:
        """Kind of its training."""
        return family_of(self.name, self.like, self.model, self.batch_size)

    def for_job(self, batch_size: int | None, kind: str) -> EarlierRun:
        """Return the run as a job is given it.

        Args:
            batch_size: Samples in a batch of the job. If the run had others, its positions are scaled to as many
                samples, and its throughput and its memory say nothing.
            kind: Kind of the devices on which the job trains.

        Raises:
            ValueError: If a value is out of its range.
        """
        batches, losses, met_at = self.batches, self.losses, self.met_at
        throughputs = tuple((devices, rate) for devices, one, rate in self.throughputs if one == kind)
        same_batches = not (batch_size and self.batch_size) or batch_size == self.batch_size
        if batch_size and self.batch_size and not same_batches:
            scale, throughputs = self.batch_size / batch_size, ()
            points = dict(zip((max(round(scale * s), 1) for s in batches), losses, strict=True))
            batches, losses = tuple(points), tuple(points.values())
            met_at = None if met_at is None else max(round(scale * met_at), 1)
        # Memory is measured in another way on each kind of device.
        on_kinds = tuple((one.removeprefix(kind + OF), devices, rate) for devices, one, rate in self.throughputs
                         if one.startswith(kind + OF) and same_batches)  # fmt: skip
        memory = self.memory if throughputs else None
        run = EarlierRun(self.name, batches, losses, met_at, throughputs, memory, on_kinds)
        check_run(run)
        return run


class PastPace(NamedTuple):
    """How fast trainings of a kind were beside others in a pool."""

    owner: int
    """User id of the pool."""
    device: str
    """Kind of the pool's devices, with the number of their cores."""
    pace: EarlierPace
    measured_at: float
    """Date, in seconds since the epoch."""


def metric_of(target: Target) -> str:
    """Return the kind of a job's losses: two curves of the same kind can be compared.

    Example::

        >>> from lightning_core.core.targets import as_target
        >>> [metric_of(as_target(text)) for text in ("val_loss<=0.3", "val_acc>=0.9", "val_acc>=90 of 100")]
        ['val_loss', '1 - val_acc', '100 - val_acc']
    """
    return f"{target.falling(0.0):g} - {target.observed}" if target.grows else target.observed


def new_id(parts: object) -> str:
    """Return an id of a run's identity."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:ID_LENGTH]
