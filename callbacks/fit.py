"""One call of ``Trainer.fit``: everything that the callback needs for it, and forgets after it."""

from __future__ import annotations

import dataclasses
import time
import traceback
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.core.answers import End, JobForecast
from lightning_core.core.durations import format_duration
from lightning_core.core.events import BadLosses, Cell, ExitCause, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnRefused
from lightning_core.core.protocols import Client, DeviceLock
from lightning_core.core.targets import STEP_LOSS, BatchTarget
from lightning_core.view.console_lines import logger, watch_bar_of

from .busy_timer import GpuPace, HostPace, Pace
from .checkpointing.best import Best
from .checkpointing.job_writer import batches_done, write
from .checkpointing.resumable import Saver
from .elastic.steps import slots
from .horizon import ended_by, horizon, is_sigterm, seconds_left
from .joining import Connect, Connection, Join, name_of
from .mailbox import Mailbox
from .meter import LossMeter
from .metric_logging import last_line, say, tell
from .ranks import Also, Ranks
from .reading import Reading, watch
from .record import Record
from .slurm import SaveBeforeEnd, SlurmEnd
from .steering import JobOver, Released, Steering

log = logger(__name__)

# How long a script that ends waits for a scheduler that may be gone, seconds. It is held by shorter calls than that, so
# that the mailbox is not on the line when the script is interrupted.
FAREWELL = 3.0
# Name of the best model's file; of a script, its job's name stands before it.
BEST = "best.ckpt"
# Until a script that could not be saved before its Slurm job ends is saved again, seconds.
SAVE_AGAIN = 5.0


@dataclasses.dataclass(frozen=True)
class Options:
    """What the callback was constructed with: see :class:`CoreCallback`."""

    job: Job
    pool: str
    stop_when_met: bool
    client: Client | None
    device_lock: DeviceLock | None
    launched: bool
    incarnation: int
    devices: tuple[int, ...]
    cores: int
    every: int
    growth: float
    on_refused: OnRefused
    keep_best: bool | Path
    save_to: Path | None
    save_before: float


class Fit:
    """One fit of one process.

    Args:
        trainer: that fits.
        pl_module: that is fitted.
        options: of the callback.
        saver: of the callback.
        record: of the job, which is kept up to date.
    """

    def __init__(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, options: Options, saver: Saver, record: Record
    ) -> None:
        watch_bar_of(trainer)
        self._name = options.job.name
        self._launched = options.launched
        self._saver = saver
        self._record = record
        self._automatic = pl_module.automatic_optimization
        self._by_step = options.launched and slots() > 0
        self._batches = 0
        self._trained = False
        self._begun = False
        self._new_epoch, self._epoch_began = True, 0
        self._per_epoch: int | None = None
        self._told: JobForecast | None = None
        self.box: Mailbox | None = None
        if trainer.is_global_zero:
            connect = _connect(trainer, pl_module, options)
            if options.launched:
                self.box = Mailbox(connect, self._name, curious=bool(trainer.loggers), listens=True)
            else:
                self.box = Mailbox(connect, self._name, patience=FAREWELL / 2, curious=True)
        target = options.job.target
        self._last = target.batches if isinstance(target, BatchTarget) else 0
        self._meter = LossMeter(self._deliver, options.every, options.growth)
        # A metric may be a number when the losses that are trained on are none.
        step = isinstance(target, BatchTarget) or target.metric == STEP_LOSS
        self._watched = self._meter if step else LossMeter(lambda cell: None, options.every, options.growth)
        self._reading = Reading(target, self._meter, record.place)
        device = pl_module.device
        self._several = trainer.world_size > 1
        self._best = _best(trainer, options, record)
        self._before_end: SaveBeforeEnd | None = None
        self._save_to = options.save_to
        self._slurm = SlurmEnd() if self.box is not None and not options.launched else None
        if self._slurm is not None and options.save_to is not None:
            self._before_end = SaveBeforeEnd(self._slurm, options.save_before)
        self._pace: Pace = GpuPace() if device.type == "cuda" else HostPace()
        ranks = Ranks(trainer.global_rank, device) if trainer.world_size > 1 else None
        self.steering = Steering(
            self._name, self.box, self._pace, ranks, options.device_lock, options.launched, options.devices,
            options.stop_when_met, lambda: trainer.received_sigterm or self._end_is_near(),
            options.cores,
        )  # fmt: skip

    @property
    def best_model(self) -> str:
        """Where the best model lies; empty while there is none."""
        return "" if self._best is None else self._best.path

    def begin(self, trainer: pl.Trainer) -> None:
        """Before the first batch, be it of a sanity check."""
        if not self._begun:
            self._begun = True
            self._batches = batches_done(trainer)
            self._take_up_curve()
            if self.box is not None:
                self.box.begin(self._batches)
            self.steering.first_word()
        self._leave_if_told()  # nothing has been trained: what it was loaded from still holds

    def starts(self, trainer: pl.Trainer) -> None:
        """Before the first training batch: its loaders are set up, so it can be told where the training ends."""
        if self.box is not None:
            self.box.ends_by = time.monotonic() + seconds_left(trainer)
            self.box.horizon = horizon(trainer, self._batches, 0, None)
            self.box.hurry_and_ask()  # what cannot be done at all is told at once

    def batch(self, trainer: pl.Trainer, outputs: Any) -> None:
        """After a training batch."""
        # Lightning divides the loss by it, and may change it from epoch to epoch.
        accumulated = trainer.accumulate_grad_batches if self._automatic else 1
        if accumulated == 1 and not self._by_step:
            self._batches += 1
        else:
            self._batches = trainer.global_step
        self._trained = True
        box, steering = self.box, self.steering
        if box is not None:
            if (complaint := self._reading.batch(trainer, outputs, accumulated, self._batches)) is not None:
                log.warning("%s: %s", self._name, complaint)
            if self._watched is not self._meter:
                watch(outputs, accumulated, self._batches, self._watched)
            if self._newest_bad() is not box.bad:
                self._tell_bad(box)
            box.aside = False
            box.progress = (self._batches, self._pace.batch(), self._meter.rejected)
            if self._new_epoch:
                self._new_epoch = False
                done = trainer.fit_loop.epoch_loop.batch_idx + 1
                box.horizon = horizon(trainer, self._batches, done, self._per_epoch)
            if self._batches == self._last:
                box.hurry()  # the pool waits for it
                if self._best is not None:
                    self._best.done(self._batches)
            if self._slurm is not None and self._slurm.at is not None:
                box.ends_by = min(box.ends_by, time.monotonic() + self._slurm.at - time.time())
            if box.job_forecast is not self._told:
                self._told = box.job_forecast
                tell(trainer, self._told)  # type: ignore[arg-type]  # what was never known cannot be new
        also = Also.SAVE if self._is_to_be_saved() else Also.NOTHING
        if self._best is not None and self._best.wanted is not None:
            if self._several:
                also |= Also.KEEP  # together with the others, when they agree
            else:
                self._best.save(trainer)  # before it may be told to leave
        steering.after_batch(also)
        if self._best is not None and steering.keeping:
            steering.keeping = False
            self._best.save(trainer)
        if steering.stopping:
            trainer.should_stop = True
        if not self._launched and steering.saving:
            steering.saving = False
            self._save_before_end(trainer)
        elif steering.leaving or steering.saving:
            self._saver.between_batches(trainer, self._leave_if_told)

    def epoch_begins(self, trainer: pl.Trainer) -> None:
        """Before the first hook of an epoch."""
        self._new_epoch, self._epoch_began = True, self._batches
        if self.steering.leaving or self.steering.saving:
            self._saver.between_epochs(trainer, self._leave_if_told)

    def evaluated(self, trainer: pl.Trainer, place: Literal["validation", "epoch"]) -> None:
        """At the end of a validation or an epoch."""
        if self.box is not None:
            self._reading.evaluation(trainer, place, self._batches)
            if self._newest_bad() is not self.box.bad:
                self._tell_bad(self.box)
        if self._best is not None:
            wanted = self._best.wanted is not None
            if trainer.strategy.broadcast(wanted) if self._several else wanted:
                self._best.save(trainer)
        self.still_busy()

    def still_busy(self) -> None:
        """After what is work, but no batch."""
        if self.box is not None:
            self.box.aside = True
            self.box.progress = (self._batches, self._pace.batch(), self._meter.rejected)

    def epoch_ends(self, trainer: pl.Trainer) -> None:
        """After an epoch, validation included: whatever this training logs has been logged.

        Raises:
            MisconfigurationException: if a launched job's metric has not been logged.
        """
        self.evaluated(trainer, "epoch")
        self._per_epoch = self._batches - self._epoch_began
        complaint = None if self.box is None else self._reading.missing(trainer)  # only the first rank reads
        if self._several and self._launched:
            complaint = trainer.strategy.broadcast(complaint)  # one that raises alone leaves the others waiting
        if complaint is not None:
            if self._launched:
                raise MisconfigurationException(complaint)
            log.warning("%s: %s", self._name, complaint)

    def close(self, trainer: pl.Trainer, error: BaseException | None = None) -> None:
        """The fit is over, by itself or by an error."""
        box = self.box
        try:
            busy = self.steering.close()
            if box is not None:
                box.progress = (self._batches, busy, self._meter.rejected)
                self._meter.flush()
                if error is None and isinstance(box.directive, End):
                    tell(trainer, box.directive)
        finally:  # a device in trouble may have no answer; the scheduler must hear the end all the same
            if box is not None:
                if self._launched:
                    box.close()
                else:
                    box.close(_parting(trainer, self._name, error), FAREWELL)
                    say(trainer, last_line(box.job, box.last_word, box.refused))
            self._close_best(trainer)

    def _newest_bad(self) -> BadLosses | None:
        """Of the losses that are trained on, or of the target's metric."""
        step, metric = self._watched.bad, self._meter.bad
        return metric if step is None or (step.over and metric is not None and not metric.over) else step

    def _tell_bad(self, box: Mailbox) -> None:
        before, box.bad = box.bad, self._newest_bad()
        if box.bad is not None and (before is None or before.since != box.bad.since):
            if before is None:  # what comes and goes again and again is told once
                log.warning("%s: its losses are NaN or infinite since batch %s", self._name, f"{box.bad.since:,}")
            box.hurry()

    def _deliver(self, cell: Cell) -> None:
        if self.box is not None:
            self.box.evaluated = self._reading.evaluated  # before the cell may be on its way
            self._record.place = self._reading.place
            self._record.curve.add(cell.batches, cell.value)
            self.box.add(cell)
            if self._best is not None:
                self._best.see(cell.value, evaluated=self._reading.evaluated)

    def _is_to_be_saved(self) -> bool:
        if self._launched:
            # While losses are none, what was saved before is what may be gone back to.
            return self._saver.due() and (self.box is None or self.box.bad is None or self.box.bad.over)
        if self._before_end is None:
            return False
        self._before_end.batch()
        return self._before_end.due()

    def _end_is_near(self) -> bool:
        """Whether even a job that is held has to train one batch, after which it is saved."""
        return self._before_end is not None and self._trained and self._before_end.due()

    def _save_before_end(self, trainer: pl.Trainer) -> None:
        """On all ranks together; one that cannot be saved is tried again, as long as there is time."""
        assert self._save_to is not None  # it is the same on all ranks
        place = (self._save_to / f"{self._name}-last.ckpt").absolute()
        before_end = self._before_end
        try:
            write(trainer, place)
        except Exception as error:
            if before_end is not None:
                before_end.failed(SAVE_AGAIN)
                log.warning("%s: it is not saved before its Slurm job ends: %s", self._name, error)
            return
        if before_end is not None and self._slurm is not None and self._slurm.at is not None:
            before_end.saved = True
            left = format_duration(max(self._slurm.at - time.time(), 0.0))
            log.warning(
                "%s: its Slurm job ends in %s. Saved after %d batches to %s; it goes on from there with ckpt_path=%r",
                self._name, left, self._batches, place, str(place),
            )  # fmt: skip

    def _take_up_curve(self) -> None:
        """What was seen before the checkpoint is delivered anew: whichever scheduler there is knows the whole curve."""
        points = [point for point in self._record.curve.points if point.batches <= self._batches]
        self._record.curve.points = points
        self._meter.start_at(self._batches, len(points))
        self._watched.start_at(self._batches, len(points))
        if self.box is not None:
            self.box.evaluated = self._reading.evaluated
            for number, point in enumerate(points, start=1):
                self.box.add(Cell(number, *point))

    def _close_best(self, trainer: pl.Trainer) -> None:
        if self._best is not None and self.box is not None:
            manifest = self._best.close()
            if manifest is not None and self._best.saved:
                self._record.best_model = self._best.path
                say(trainer, f"lightning_core: {self._best.words(manifest)}")

    def _leave_if_told(self) -> None:
        if self.box is not None and self._saver.saved is not None:
            self.box.tell_saved(self._saver.saved)
        self.steering.saving = False
        if self.steering.leaving:
            raise Released(f"{self._name}: saved, to come back later")


def _connect(trainer: pl.Trainer, pl_module: pl.LightningModule, options: Options) -> Connect:
    if options.client is not None:
        given = Connection(options.client, options.incarnation)
        return lambda: given
    can = (
        frozenset({Capability.HOLD}) if trainer.world_size > 1 else frozenset({Capability.HOLD, Capability.TIME_SLICE})
    )
    size = trainer.world_size
    job = dataclasses.replace(options.job, can=can, min_devices=size, max_devices=size)
    return Join(job, options.pool, name_of(pl_module.device), options.on_refused)


def _best(trainer: pl.Trainer, options: Options, record: Record) -> Best | None:
    """Keeps the best model, if that is wanted.

    Raises:
        MisconfigurationException: if there is no local folder for it.
    """
    folder, job = options.keep_best, options.job
    if folder is False:
        return None
    if folder is True:
        if "://" in trainer.default_root_dir:
            raise MisconfigurationException(
                f"keep_best saves to local files, and default_root_dir is {trainer.default_root_dir}: name a folder"
            )
        folder = Path(trainer.default_root_dir) / "lightning_core"
    place = folder / (BEST if options.launched else f"{job.name}-{BEST}")
    resumed = options.incarnation > 1 if options.launched else record.resumed
    return Best(job.name, place.absolute(), job.target, resumed=resumed)


def _parting(trainer: pl.Trainer, job: str, error: BaseException | None) -> WorkerExited:
    if error is None or is_sigterm(error) or isinstance(error, KeyboardInterrupt | JobOver | Released):
        return WorkerExited(job, 0, *ended_by(trainer, error))
    message = " ".join(str(error).split()) or "no message"
    story = f"{''.join(traceback.format_exception(error))}{type(error).__name__}: {message}"
    return WorkerExited(job, 0, ExitCause.RAISED, detail=story)
