r"""
CoreCallback
^^^^^^^^^^^^

Joins a Trainer to a scheduler: reports, takes turns, holds, leaves, stops when the target is met.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_core.core.answers import Directive, JobForecast, Verdict
from lightning_core.core.durations import WallTime, When, parse_duration, parse_when, seconds_until
from lightning_core.core.events import Checkpoint
from lightning_core.core.jobs import Job, OnMiss, OnNan, OnRefused
from lightning_core.core.names import check_name
from lightning_core.core.protocols import Client, DeviceLock
from lightning_core.core.targets import Target, as_target
from lightning_core.scheduler.settings import Settings
from lightning_core.view.console_lines import inform, logger

from .checkpointing.resumable import Saver
from .elastic.steps import Share, slots
from .fit import Fit, Options
from .joining import LEAST
from .meter import LossMeter
from .record import KEY, Record

log = logger(__name__)

# Of a launched job, whose deadline only its scheduler knows.
UNKNOWN = 1.0


class CoreCallback(pl.Callback):
    """Reports loss and progress of a Trainer to a scheduler, and obeys what it grants.

    Training never waits for the scheduler and never fails because of it: if it is gone, the last grant holds.

    Args:
        job: name of the training run, unique among those that share a pool.
        deadline: Time for it from the start of ``fit``, such as ``"2 hours"``, ``"02:30:00"``, seconds or a
            ``timedelta``; or when it should be done, such as ``"18:00"``, ``"2026-11-23T18:00"`` or a ``datetime``, in
            the machine's time zone unless it names one. Not of a launched job.
        target: when it counts as met: a target, or one in a line, such as ``"val_acc>=0.9"``.
        pool: ``"auto"`` joins the pool that runs on this machine, or forecasts alone if there is none; ``"local"`` is
            always alone; else where the pool is.
        begin: Time before which it does not train, in the same forms.
        weight: how many jobs of weight 1 it counts for when not all can make it.
        on_miss: ``"continue"``, ``"stop"`` or ``"hold"`` when the deadline passes. A script that is stopped trains on,
            outside the pool.
        on_nan: ``"continue"`` or ``"stop"`` when losses are NaN or infinite for three loss cells in a row; the first is
            told at once. What a bundle says of a launched job may also be ``restart``.
        on_refused: what a script does if the pool does not take it, say because its name is taken: ``"hold"`` waits
            and asks again every few seconds, ``"rename"`` takes a free name (``resnet-2``), ``"alone"`` trains beside
            the pool. A pool that does not share the device is no reason to wait.
        keep_best: whether the best model so far is kept, or the folder for it: the model that met the target, or came
            closest to it, is saved with its SHA-256 while training goes on, and :attr:`best_model_path` tells where.
        save_to: folder in which a script is saved once before its Slurm job ends, between two batches.
        save_before: how long before that, such as ``"2m"``.
        stop_when_met: whether training stops when the target is met.
        client: of a launched job: speaks with its scheduler, which knows the job already.
        device_lock: of a launched job: its device's turnstile. None: the device is not shared.
        launched: whether a launcher runs this Trainer. It then holds until it may train, is left by :class:`JobOver`
            when the job is over unmet, and saved and left by :class:`Released` when it is granted no device, or others.
        incarnation: of a launched job: which of its lives this is.
        devices: of a launched job: where this one trains.
        cores: of a launched job: of its device, if that is a CPU.
        folder: of a launched job: where ``last.ckpt`` is saved.
        save_every: of a launched job: least seconds between two saves for fear of a power cut.
        every: least batches in a loss cell.
        growth: a cell holds at least this part of the run so far.

    Raises:
        ValueError: if the target is none, a number or a duration is out of its range, or a time is past.
        MisconfigurationException: if the target or the deadline is missing, or a deadline is given beside a
            ``client``; at the end of the first epoch of a launched job, if the target's metric has not been logged.

    .. note::
        A batch is a step of the optimiser, accumulation included; with manual optimisation it is a call of
        ``training_step``, and gradients that the module itself accumulates over calls are not saved. The loss is what
        ``training_step`` returned, else what was logged as ``loss``.

    .. note::
        A launched job leaves in the middle of an epoch if all its training loaders have ``state_dict``, else at the
        end, and goes on bit for bit on the same kind of device. Means of logged training values over that epoch are
        Lightning's, which counts them from the return. One whose number of devices may change leaves in the middle of
        an epoch if any number of ranks can load what its loaders say (``any_ranks``), as of :class:`ElasticLoader`.

    .. note::
        Written for Trainers of ``lightning.pytorch``. One of the package ``pytorch_lightning`` takes it too, in a list.

    .. note::
        With several processes (DDP) rank 0 speaks for all. They hold, stop and leave together, after a training batch
        and never within a validation, and take no turns.

    Example::

        >>> from lightning_core.callbacks import CoreCallback
        >>> callback = CoreCallback("resnet", deadline="2h", target="train_loss<=0.35")
    """

    def __init__(
        self,
        job: str,
        deadline: When | None = None,
        target: Target | str | None = None,
        *,
        pool: str = "auto",
        begin: When | None = None,
        weight: float = 1.0,
        on_miss: str = "continue",
        on_nan: str = "continue",
        on_refused: str = "hold",
        keep_best: bool | str | Path = False,
        save_to: str | Path | None = None,
        save_before: str = "2m",
        stop_when_met: bool = True,
        client: Client | None = None,
        device_lock: DeviceLock | None = None,
        launched: bool = False,
        incarnation: int = 1,
        devices: tuple[int, ...] = (0,),
        cores: int = 1,
        folder: Path | None = None,
        save_every: float = 300.0,
        every: int = 10,
        growth: float = 0.01,
    ) -> None:
        if target is None:
            raise MisconfigurationException("CoreCallback needs a target, such as 'train_loss<=0.35'")
        if (deadline is None) == (client is None):
            raise MisconfigurationException("CoreCallback needs either a deadline or the client of a scheduler")
        if not pool:
            raise ValueError("pool must be 'auto', 'local' or where the pool is, got ''")
        if on_miss not in tuple(OnMiss):
            raise ValueError(f"on_miss must be one of {', '.join(OnMiss)}, got {on_miss!r}")
        if on_nan not in (OnNan.CONTINUE, OnNan.STOP):
            why = ": only a job that a pool has launched can go back to a checkpoint" if on_nan == OnNan.RESTART else ""
            raise ValueError(f"on_nan must be 'continue' or 'stop' in a script, got {on_nan!r}{why}")
        if on_refused not in tuple(OnRefused):
            raise ValueError(f"on_refused must be one of {', '.join(OnRefused)}, got {on_refused!r}")
        now, self._clock = datetime.now(), dict[str, WallTime]()
        wanted = Job(
            check_name(job),
            UNKNOWN if deadline is None else self._seconds("deadline", deadline, now),
            as_target(target),
            begin=0.0 if begin is None else self._seconds("begin", begin, now),
            weight=weight,
            on_miss=OnMiss(on_miss),
            on_nan=OnNan(on_nan),
        )
        self._options = Options(
            wanted, pool, stop_when_met, client, device_lock, launched, incarnation, devices, cores, every, growth,
            OnRefused(on_refused),
            keep_best if isinstance(keep_best, bool) else Path(keep_best),
            None if save_to is None else Path(save_to),
            parse_duration(save_before),
        )  # fmt: skip
        self._folder, self._save_every = folder, save_every
        # These complain now rather than in fit.
        self._saver = Saver(folder, save_every)
        LossMeter(lambda cell: None, every, growth)
        self._aside = False
        self._fit: Fit | None = None
        self._record: Record | None = None
        self._found: object = None

    def __iter__(self) -> NoReturn:
        """Refuse to be walked through: the Trainer of ``pytorch_lightning`` takes any other class's object for a list.

        Raises:
            TypeError: always.
        """
        raise TypeError("pass CoreCallback in a list, callbacks=[CoreCallback(...)], to a pytorch_lightning.Trainer")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fit": None}  # its threads and sockets are this process's

    @property
    def directive(self) -> Directive | None:
        """The newest word of the scheduler; None between fits and on any rank but the first."""
        return None if self._fit is None or self._fit.box is None else self._fit.box.directive

    @property
    def forecast(self) -> JobForecast | None:
        """The newest forecast and verdict: seconds to the early, likely and late end; after ``fit``, the last of them.

        None before there is any, and on any rank but the first.
        """
        if self._fit is not None and self._fit.box is not None and self._fit.box.job_forecast is not None:
            return self._fit.box.job_forecast
        return None if self._record is None else self._record.job_forecast

    @property
    def verdict(self) -> Verdict | None:
        """The newest verdict; after ``fit``, what became of the job. None while it is too early to tell."""
        return None if self.forecast is None else self.forecast.verdict

    @property
    def best_model_path(self) -> str:
        """Where the best model lies, with ``keep_best``; empty if there is none."""
        if self._fit is not None:
            return self._fit.best_model
        return "" if self._record is None else self._record.best_model

    def _repr_html_(self) -> str:
        """As a notebook shows it: a card with verdict, forecast and curve."""
        from lightning_core.report.card import card  # not needed where nobody looks

        record = self._record
        points = [] if record is None else record.curve.points
        window = 1 if record is None or record.place else Settings().window
        job = self._options.job
        rows = [("best model", self.best_model_path)] if self.best_model_path else []
        return card(job.name, job.target, points, self.forecast, window=window, over=self._fit is None, rows=rows)

    @property
    def saved(self) -> Checkpoint | None:
        """The newest checkpoint of a launched job."""
        return self._saver.saved

    @override
    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        first = next(callback for callback in trainer.callbacks if isinstance(callback, CoreCallback))
        self._aside = bool(trainer.fast_dev_run) or stage != "fit" or first is not self
        if first is not self and stage == "fit":
            log.warning("%s: one CoreCallback is enough, this one does nothing", self._options.job.name)
        if not self._aside:
            self._record = self._found = None
            of = slots() if self._options.launched else 0
            share = Share(trainer, pl_module, of) if of else None
            self._saver = Saver(self._folder, self._save_every, share)
        if not self._aside and self._options.launched:
            self._saver.look_after(trainer)
            # A new epoch is saved before the first hook of it. A list of its own: this one is being walked through.
            trainer.callbacks = [self, *(callback for callback in trainer.callbacks if callback is not self)]

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._aside:
            self._saver.before_loaders(trainer)

    @override
    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer, pl_module)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer, pl_module)
        if self._fit is not None:
            self._saver.before_training(trainer)
            self._fit.starts(trainer)

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before the first batch: by now a checkpoint is loaded, whatever the strategy."""
        if self._aside:
            return
        if self._fit is None:
            self._record = self._new_record(trainer)
            options = replace(self._options, job=self._record.job)
            self._fit = Fit(trainer, pl_module, options, self._saver, self._record)
        self._fit.begin(trainer)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fit is not None:
            self._saver.before_epoch(trainer)
            self._fit.epoch_begins(trainer)

    @override
    def on_train_batch_start(self, *_: Any) -> None:
        if self._fit is not None:
            self._fit.steering.enter()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.batch(trainer, outputs)

    @override
    def on_validation_batch_start(self, *_: Any) -> None:
        if self._fit is not None:
            self._fit.steering.enter()

    @override
    def on_validation_batch_end(self, *_: Any) -> None:
        if self._fit is not None:
            self._fit.still_busy()

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fit is not None and not trainer.sanity_checking:
            self._fit.evaluated(trainer, "validation")

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fit is not None:
            self._fit.epoch_ends(trainer)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._saver.add_to(checkpoint)
        if self._record is not None and not self._aside and not self._options.launched and trainer.is_global_zero:
            checkpoint[KEY] = self._record.to_entry()

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._saver.take_from(checkpoint)
        self._found = checkpoint.get(KEY)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close(trainer)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close(trainer, exception)

    def _seconds(self, key: str, value: When, now: datetime) -> float:
        try:
            when = parse_when(value)
            if isinstance(when, WallTime):
                self._clock[key] = when
            return seconds_until(when, now)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None

    def _job_now(self) -> Job:
        """The job with its points in time counted from the start of ``fit``, which is now."""
        now, seconds, job = datetime.now(), dict[str, float](), self._options.job
        for key, when in self._clock.items():
            try:
                moment = when.resolve(now)
            except ValueError as error:  # it passed since the callback was made: that is no reason not to train
                log.warning("%s: %s: %s", job.name, key, error)
                seconds[key] = LEAST if key == "deadline" else 0.0
            else:
                inform(f"{job.name}: {key} {moment}")
                seconds[key] = moment.seconds
        deadline, begin = seconds.get("deadline", job.deadline), seconds.get("begin", job.begin)
        return replace(job, deadline=deadline, begin=begin if begin < deadline else 0.0)

    def _new_record(self, trainer: pl.Trainer) -> Record:
        """Of the fit that begins: on rank 0 it goes on with what the checkpoint held, if it was loaded from one."""
        written = self._clock["deadline"].text if "deadline" in self._clock else f"{self._options.job.deadline:g}s"
        record, now = Record(self._job_now(), written), time.time()
        found, self._found = self._found, None
        if not self._options.launched and trainer.is_global_zero:
            record.take(found, now)
        record.begins(now)
        return record

    def _close(self, trainer: pl.Trainer, error: BaseException | None = None) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.close(trainer, error)
            if fit.box is not None and self._record is not None:
                self._record.job_forecast = fit.box.last_word or fit.box.job_forecast or self._record.job_forecast
