"""Specs of the jobs of a bundle: the terms, and the LightningCLI config or the script that trains each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from lightning_core.bundle.preflight import check_plain
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.bundle.scripts import SCRIPT, model_of_script
from lightning_core.bundle.values import exact_duration
from lightning_core.core.codec import job_to_dict
from lightning_core.core.durations import ResolvedTime, WallTime, seconds_until
from lightning_core.core.jobs import Beside, Job, OnHold, Spread
from lightning_core.core.limits import MAX_COUNT, MAX_NAME
from lightning_core.storage.job_specs import HANG, SAVE_EVERY

# Key for the moment of submission, which a run adds; times of day are resolved from that moment on.
SUBMITTED = "submitted"
DEFAULT_CELL = 10


@dataclass(frozen=True)
class JobSpec:
    """A job and what trains it: a LightningCLI config, or a script.

    Args:
        job: Name, deadline, target and the other terms.
        config: Keys ``model``, ``data``, ``trainer``, ``seed_everything``, ..., or ``script`` alone; plain data
            throughout.
        cell: Minimum number of batches in a loss cell; estimators need some ten cells.
        save_every: Minimum seconds between periodic checkpoints; None for the default.
        keep_best: Whether the best model is kept in the job's folder.
        hang: Seconds that any step may take before it hangs; None for any time.
        source: Position of the config, with which a problem names file and line; None for a Python object.
        clock: Terms given as points in wall-clock time (``deadline``, ``begin``). The job has them in seconds from its
            submission or, before that, from when it was read.
        submitted: Moment of the submission; None before that.

    Raises:
        BundleError: If the config holds what cannot be sent to a worker.
    """

    job: Job
    config: Mapping[str, Any]
    cell: int = DEFAULT_CELL
    save_every: float | None = None
    source: Position | None = field(default=None, compare=False, repr=False)
    clock: Mapping[str, WallTime] = field(default_factory=dict)
    submitted: datetime | None = None
    keep_best: bool = field(default=False, kw_only=True)
    hang: float | None = field(default=HANG, kw_only=True)

    def __post_init__(self) -> None:
        problems = Problems(self.position)
        check_plain(self.config, problems)
        if problems.messages:
            raise BundleError(problems.messages)

    @property
    def position(self) -> Position:
        """Position of the config."""
        return self.source or Position("bundle").at("jobs", self.job.name)

    @property
    def script(self) -> str:
        """The script that trains the job; empty if it has a config."""
        return str(self.config.get(SCRIPT, ""))

    @property
    def save_interval(self) -> float:
        """Minimum seconds between periodic checkpoints."""
        return SAVE_EVERY if self.save_every is None else self.save_every

    @property
    def identified(self) -> Job:
        """The job with what its config says of it, by which earlier runs are found, and how often it is saved."""
        model, batch_size = model_of(self.config), batch_size_of(self.config)
        return replace(self.job, model=model, batch_size=batch_size, save_every=self.save_interval)

    def submit(self, now: datetime) -> Self:
        """Return the job as submitted now.

        Raises:
            BundleError: If a point in time has passed.
        """
        terms: dict[str, Any] = {}
        for key, when in self.clock.items():
            try:
                terms[key] = seconds_until(when, now)
            except ValueError as error:
                raise BundleError([self.position.at(key).problem(str(error))]) from None
        try:
            return replace(self, job=replace(self.job, **terms), submitted=now)
        except ValueError as error:
            raise BundleError([self.position.problem(str(error))]) from None

    def moments(self, now: datetime) -> dict[str, ResolvedTime]:
        """Return each point in wall-clock time that the job names, by term."""
        return {key: when.resolve(now) for key, when in self.clock.items()}

    def for_worker(self, folder: Path) -> dict[str, Any]:
        """Return what the pool manager needs to launch the job, as plain data.

        Args:
            folder: Folder in which class paths are looked up, besides the current one, and scripts run.
        """
        paths = [str(folder.absolute()), str(Path.cwd())]
        return {"job": job_to_dict(self.identified), "config": self.config, "cell": self.cell,
                "save_every": self.save_interval, "keep_best": self.keep_best, "hang": self.hang,
                "paths": paths}  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the job as in a bundle file, with its config inline."""
        job = self.job
        terms: dict[str, Any] = {"target": job.target.to_dict()}
        if not job.is_best_effort:
            terms["deadline"] = exact_duration(job.deadline)
        if job.begin:
            terms["begin"] = exact_duration(job.begin)
        terms |= {key: when.text for key, when in self.clock.items()}
        if self.submitted is not None:
            terms[SUBMITTED] = self.submitted.astimezone().isoformat()
        if job.work is not None:
            terms["work"] = exact_duration(job.work)
        if job.restarts is not None:
            terms["restarts"] = job.restarts
        given = {"location": job.location, "kinds": list(job.kinds), "like": job.like, "parts": job.parts}
        terms |= {key: value for key, value in given.items() if value}
        if job.memory is not None:
            terms["memory"] = job.memory
        if job.on_hold is not OnHold.KEEP:
            terms["on_hold"] = str(job.on_hold)
        if job.beside is not Beside.AUTO:
            terms["beside"] = str(job.beside)
        if job.spread is not Spread.MACHINE:
            terms["spread"] = str(job.spread)
        return {
            **self.config,
            **terms,
            "weight": job.weight,
            "min_devices": job.min_devices,
            "max_devices": job.max_devices,
            "on_miss": str(job.on_miss),
            "on_nan": str(job.on_nan),
            "retries": job.retries,
            "cell": self.cell,
            **({} if self.save_every is None else {"save_every": exact_duration(self.save_every)}),
            **({"keep_best": True} if self.keep_best else {}),
            **({} if self.hang == HANG else {"hang": "off" if self.hang is None else exact_duration(self.hang)}),
        }


def micro_batches_of(config: Mapping[str, Any], max_devices: int) -> int:
    """Return the number of micro-batches in an optimizer step of a job on its maximum number of devices.

    Args:
        config: LightningCLI config.
        max_devices: Maximum number of devices of the job, however many the pool has.

    Example::

        >>> micro_batches_of({"trainer": {"accumulate_grad_batches": 2}}, 3)
        6
    """
    trainer = config.get("trainer")
    accumulated = trainer.get("accumulate_grad_batches") if isinstance(trainer, Mapping) else None
    if type(accumulated) is not int:  # unset, or wrong: the parser reports that
        return max_devices
    return max_devices * max(accumulated, 1)


def model_of(config: Mapping[str, Any]) -> str:
    """Return the class path of a job's model, or its script; empty if there is none, or a longer one than any is.

    Args:
        config: LightningCLI config, or that of a script.
    """
    if SCRIPT in config:
        path = model_of_script(config)
        return path if len(path) <= MAX_NAME else ""
    model = config.get("model")
    path = model.get("class_path", "") if isinstance(model, Mapping) else ""
    return path if isinstance(path, str) and len(path) <= MAX_NAME else ""


def batch_size_of(config: Mapping[str, Any]) -> int | None:
    """Return the batch size that a job's data or, if they name none, its model is given; None if neither is.

    Example::

        >>> batch_size_of({"data": {"class_path": "mine.Data", "init_args": {"batch_size": 64}}})
        64
    """
    for key in ("data", "model"):
        section = config.get(key)
        arguments = section.get("init_args") if isinstance(section, Mapping) else None
        size = arguments.get("batch_size") if isinstance(arguments, Mapping) else None
        if type(size) is int and 1 <= size <= MAX_COUNT:
            return size
    return None


def feasible_sizes(micro_batches: int, min_devices: int, max_devices: int) -> tuple[int, ...]:
    """Return the numbers of devices that divide a step evenly; empty if there is only one.

    Example::

        >>> feasible_sizes(6, 1, 3), feasible_sizes(8, 2, 8), feasible_sizes(3, 2, 3)
        ((1, 2, 3), (2, 4, 8), ())
    """
    sizes = tuple(size for size in range(min_devices, max_devices + 1) if micro_batches % size == 0)
    return sizes if len(sizes) > 1 else ()
