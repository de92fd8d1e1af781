"""Validated arguments of a CoreCallback."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.agent.reporting.joining import MIN_DEADLINE, Connect, Join, SchedulerConnection, device_name
from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.core.durations import WallTime, When, parse_when, seconds_until
from lightning_core.core.jobs import Capability, Job, OnHold, OnMiss, OnNan, OnRefused
from lightning_core.core.limits import MAX_COUNT, MAX_NAME
from lightning_core.core.names import check_name
from lightning_core.core.protocols import Client, DeviceLock
from lightning_core.core.reported import HyperParameters, hyper_parameters
from lightning_core.core.targets import Target, as_target
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)


@dataclass(frozen=True)
class Options:
    """Options of a callback; see :class:`CoreCallback`, and for the last seven :class:`~.launched.LaunchedCallback`."""

    job: Job
    pool: str
    stop_when_met: bool
    every: int
    on_refused: OnRefused
    keep_best: bool | Path
    hang: float | None
    history: Path | None = None
    requeue: bool = False
    client: Client | None = None
    device_lock: DeviceLock | None = None
    launched: bool = False
    incarnation: int = 1
    devices: tuple[int, ...] = (0,)
    cores: int = 1
    give_up: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if not self.pool:
            raise ValueError("pool must be 'auto', 'local' or the address of a pool, got ''")
        LossMeter(lambda cell: None, self.every)  # raises now rather than in fit

    def same_on_all_ranks(self) -> list[object]:
        """Return what must be the same on all ranks of a training, as plain values."""
        return [self.launched, self.keep_best is not False]

    def connect(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, guarded: Guarded, host: Callable[[], str]
    ) -> Connect:
        """Return what connects a fit to its scheduler.

        Args:
            trainer: Trainer that fits.
            pl_module: Module that is fitted.
            guarded: Door to what belongs to the user.
            host: Returns the job of this process within whose grant this one trains; empty once there is none.
        """
        if self.client is not None:
            given = SchedulerConnection(self.client, self.incarnation)
            return lambda: given
        size = trainer.world_size
        can = frozenset({Capability.HOLD}) if size > 1 else frozenset({Capability.HOLD, Capability.TIME_SLICE})
        job = replace(
            self.job, can=can, min_devices=size, max_devices=size, model=model_of(pl_module),
            batch_size=guarded("its batch size", lambda: batch_size_of(trainer, pl_module), None),
        )  # fmt: skip
        return Join(job, self.pool, device_name(trainer.strategy.root_device), self.on_refused, self.history, host)


def read_on_refused(value: str) -> OnRefused:
    """Return what to do if the pool refuses a job; a ValueError names the possible values."""
    if value not in tuple(OnRefused):
        raise ValueError(f"on_refused must be one of {', '.join(OnRefused)}, got {value!r}")
    return OnRefused(value)


def model_of(pl_module: pl.LightningModule) -> str:
    """Return the class path of a module, by which earlier runs are found; empty if it is too long to be one.

    A module of a script is named as if it were imported, so that ``train.py`` and a bundle with ``train.Net`` agree.
    """
    kind = type(pl_module)
    room = kind.__module__
    if room == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        room = Path(file).stem
    path = f"{room}.{kind.__qualname__}"
    return path if len(path) <= MAX_NAME else ""


def batch_size_of(trainer: pl.Trainer, pl_module: pl.LightningModule) -> int | None:
    """Return the batch size of a training, by the names that Lightning knows it under; None if it has none of them.

    Properties are not asked: they are code of the user, which may raise or remember that it was asked.
    """
    data = getattr(trainer, "datamodule", None)
    owners: tuple[Any, ...] = (trainer.train_dataloader, data, _hparams_of(data), pl_module, _hparams_of(pl_module))
    for owner in owners:
        is_mapping = isinstance(owner, dict)
        size = owner.get("batch_size") if is_mapping else inspect.getattr_static(owner, "batch_size", None)
        if type(size) is int and 1 <= size <= MAX_COUNT:
            return size
    return None


def hyper_parameters_of(trainer: pl.Trainer) -> HyperParameters | None:
    """Return what model and data were told to save as hyper-parameters; None for nothing."""
    data, module = getattr(trainer, "datamodule", None), trainer.lightning_module
    return hyper_parameters({**_hparams_of(data), **_hparams_of(module)}) or None


def _hparams_of(owner: Any) -> dict[str, Any]:
    """Return the hyper-parameters that a module or its data was told to save, without resolving any."""
    found = getattr(owner, "__dict__", {}).get("_hparams")
    if not isinstance(found, dict | None) and (omegaconf := sys.modules.get("omegaconf")) is not None:
        found = omegaconf.OmegaConf.to_container(found, resolve=False)
    return found if isinstance(found, dict) else {}


class JobTerms:
    """A job with its deadline, which may be a time of day and then counts from the start of ``fit``.

    Args:
        name: Name of the job.
        deadline: Deadline, a duration or a point in time; None for none.
        target: Target of the job.
        weight: Weight of the job.
        on_miss: What to do when the deadline passes.
        on_nan: What to do when the losses are NaN or infinite.
        like: Name or tag of earlier runs with a similar loss curve.
        on_hold: What becomes of its memory on a GPU while it is held.

    Raises:
        ValueError: If a value is out of range, or the deadline is past.
        MisconfigurationException: If the target is missing.
    """

    def __init__(
        self,
        name: str,
        deadline: When | None,
        target: Target | str | None,
        weight: float = 1.0,
        on_miss: str = "continue",
        on_nan: str = "continue",
        like: str = "",
        on_hold: str = "keep",
    ) -> None:
        if target is None:
            raise MisconfigurationException("CoreCallback needs a target, such as 'train_loss<=0.35'")
        if on_miss not in tuple(OnMiss):
            raise ValueError(f"on_miss must be one of {', '.join(OnMiss)}, got {on_miss!r}")
        if on_hold not in tuple(OnHold):
            raise ValueError(f"on_hold must be one of {', '.join(OnHold)}, got {on_hold!r}")
        if on_nan not in (OnNan.CONTINUE, OnNan.STOP):
            why = ": only a job launched by a pool can go back to a checkpoint" if on_nan == OnNan.RESTART else ""
            raise ValueError(f"on_nan must be 'continue' or 'stop' in a script, got {on_nan!r}{why}")
        self._wall_time: WallTime | None = None
        self.job = Job(
            check_name(name),
            math.inf if deadline is None else self._seconds(deadline),
            as_target(target),
            weight=weight,
            on_miss=OnMiss(on_miss),
            on_nan=OnNan(on_nan),
            like=like,
            on_hold=OnHold(on_hold),
        )

    @property
    def deadline_text(self) -> str:
        """The deadline as it was written, by which a resumed script recognises it."""
        if self.job.is_best_effort:
            return "none"
        return f"{self.job.deadline:g}s" if self._wall_time is None else self._wall_time.text

    def job_now(self) -> Job:
        """Return the job with its deadline, if that is a point in time, counted from now, when ``fit`` starts."""
        if self._wall_time is None:
            return self.job
        try:
            moment = self._wall_time.resolve(datetime.now())
        except ValueError as error:  # it has passed since the callback was created: train nevertheless
            log.warning("%s: deadline: %s", self.job.name, error)
            return replace(self.job, deadline=MIN_DEADLINE)
        inform(f"{self.job.name}: deadline {moment}")
        return replace(self.job, deadline=moment.seconds)

    def _seconds(self, deadline: When) -> float:
        try:
            when = parse_when(deadline)
            if isinstance(when, WallTime):
                self._wall_time = when
            return seconds_until(when, datetime.now())
        except ValueError as error:
            raise ValueError(f"deadline: {error}") from None
