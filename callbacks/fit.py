"""One call of ``Trainer.fit``: everything that the callback needs for it and drops afterwards."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.core.answers import End
from lightning_core.core.events import Cell
from lightning_core.view.console_lines import logger, watch_bar_of

from .checkpointing.best_model import best_model_saver
from .checkpointing.job_checkpointer import JobCheckpointer
from .checkpointing.job_writer import batches_done
from .control.busy_timer import BusyTimer, GpuTimer, HostTimer
from .control.fit_signals import JobEnded, JobReleased
from .control.offload import offload_of
from .control.ranks import Ranks, SideAction
from .control.steering import Steering
from .elastic.steps import micro_batches_per_step
from .fit_end import exit_of
from .job_record import JobRecord
from .metric_logging import MetricLog, print_line, summary_line
from .options import Options, hyper_parameters_of
from .reporting.hang_watch import HangWatch, Phase
from .reporting.horizon import epoch_batches, horizon, seconds_left
from .reporting.losses import Losses
from .reporting.lr_watch import LearningRateWatch
from .reporting.mailbox import Mailbox
from .reporting.memory_meter import memory_meter
from .reporting.rank_memory import RankMemory
from .reporting.target_reader import Stage
from .slurm import SlurmEnd, SlurmSaver

log = logger(__name__)

# Seconds that a script waits for its scheduler at the end. While it is held, calls are shorter than that, so that none
# is in progress for longer when the script is interrupted.
CLOSE_TIMEOUT = 3.0


class Fit:
    """One fit in one process.

    Args:
        trainer: Trainer that fits.
        pl_module: Module that is fitted.
        options: Options of the callback.
        checkpointer: Checkpointer of the callback.
        record: Record of the job, which is updated.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        options: Options,
        checkpointer: JobCheckpointer,
        record: JobRecord,
    ) -> None:
        watch_bar_of(trainer)
        self._name = options.job.name
        self._launched = launched = options.launched
        self._checkpointer = checkpointer
        self._record = record
        self._metrics = MetricLog(self._name)
        self._automatic = pl_module.automatic_optimization
        self._is_elastic = options.launched and micro_batches_per_step() > 0
        self._batches = 0
        self._begun = False
        self._new_epoch, self._epoch_began = True, 0
        self._per_epoch: int | None = None
        self.hangs = HangWatch(options.hang)
        """Watch of this thread."""
        device, offload = pl_module.device, offload_of(trainer, pl_module, options.job)
        self._has_ranks = trainer.world_size > 1
        self._rank_memory: RankMemory | None = None
        meter = memory_meter(device, lambda: () if self._rank_memory is None else self._rank_memory.other_ranks)
        meter.frees = None if offload is None else offload.frees
        if self._has_ranks:
            self._rank_memory = RankMemory(trainer.global_rank, meter)
        self.mailbox: Mailbox | None = None
        """Mailbox of the job; None on all ranks but the first."""
        if trainer.is_global_zero:
            self.mailbox = Mailbox(
                options.connect(trainer, pl_module), self._name, hold_timeout=10.0 if launched else CLOSE_TIMEOUT / 2,
                asks_forecast=not launched or bool(trainer.loggers), listens=launched, hangs=self.hangs,
                give_up=options.give_up, memory=self._rank_memory or meter,
            )  # fmt: skip
        self._target = target = options.job.target
        self._last_batch = target.work or 0
        self._rates = LearningRateWatch(self._name, self.mailbox, wanted=target.observes)
        self._losses = Losses(target, self._deliver, options.every, options.growth, record.evaluated_in)
        resumed = options.incarnation > 1 if options.launched else record.resumed
        self._best = best_model_saver(trainer, options.job, options.keep_best, launched=launched, resumed=resumed)
        self._slurm_end = SlurmEnd() if self.mailbox is not None and not options.launched else None
        self._requeue = options.requeue
        self._slurm = SlurmSaver(self._name, options.save_to, options.save_before, self._slurm_end)
        self._timer: BusyTimer = GpuTimer() if device.type == "cuda" else HostTimer()
        ranks = Ranks(trainer.global_rank, device, self._rank_memory) if self._has_ranks else None
        self.steering = Steering(
            self._name, self.mailbox, self._timer, ranks, options.device_lock, options.launched, options.devices,
            options.stop_when_met, lambda: trainer.received_sigterm or self._slurm.due(), options.cores,
            offload,
        )  # fmt: skip

    @property
    def best_model(self) -> str:
        """Path of the best model; empty while there is none."""
        return "" if self._best is None else self._best.path

    def begin(self, trainer: pl.Trainer) -> None:
        """Start reporting, and wait until this process may train; the first batch may be one of the sanity check."""
        if not self._begun:
            self._begun = True
            self._batches = batches_done(trainer)
            self._resume_curve()
            if self.mailbox is not None:
                self.mailbox.outbox.hyper_parameters = hyper_parameters_of(trainer, trainer.lightning_module)
                self.mailbox.begin(self._batches)
            self.steering.wait_for_start()
        self._leave_if_told()  # nothing was trained since the checkpoint that was loaded

    def begin_training(self, trainer: pl.Trainer) -> None:
        """Report where the training will end, which is known once the loaders are set up."""
        if self.mailbox is not None:
            self._resolve_target(epoch_batches(trainer), self.mailbox)
            if not self._target.observes and self._target.work is None:
                log.warning("%s: its loader has no length: the work of %s is known after the first", self._name,
                            self._target)  # fmt: skip
            self.mailbox.outbox.ends_by = time.monotonic() + seconds_left(trainer)
            self.mailbox.outbox.horizon = horizon(trainer, self._batches, 0, None)
            self._rates.begin(trainer, self._batches)
            self.mailbox.hurry_and_ask()  # a target that cannot be met is reported at once

    def begin_epoch(self, trainer: pl.Trainer) -> None:
        """Save or leave, if told to, before the first hook of an epoch."""
        self._new_epoch, self._epoch_began = True, self._batches
        self.steering.between_batches()
        if self.steering.leaving or self.steering.saving:
            self._checkpointer.between_epochs(trainer, self._leave_if_told)
        self.steering.come_back()
        self.hangs.begin(Phase.FIRST_BATCH)

    def begin_batch(self, phase: Phase) -> None:
        """Wait until this process may do a batch of training or validation."""
        self.hangs.done()
        self.steering.enter()
        self.hangs.begin(phase)

    def end_batch(self, trainer: pl.Trainer, outputs: Any) -> None:
        """Report a training batch, obey the newest directive, and save what is due."""
        # Lightning divides the loss by this number, which may change from epoch to epoch.
        accumulated = trainer.accumulate_grad_batches if self._automatic else 1
        if accumulated == 1 and not self._is_elastic:
            self._batches += 1
        else:
            self._batches = trainer.global_step
        if self.mailbox is not None:
            self._report_batch(trainer, outputs, accumulated, self.mailbox)
        self.hangs.done()  # not earlier: the last line may wait for the device
        side_actions = SideAction.SAVE if self._save_due() else SideAction.NOTHING
        best, steering = self._best, self.steering
        if best is not None and best.wanted is not None:
            if self._has_ranks:
                side_actions |= SideAction.KEEP  # together with the other ranks, at their next agreement
            else:
                best.save(trainer)  # before a directive may make it leave
        steering.after_batch(side_actions)
        if best is not None and steering.keeping:
            steering.keeping = False
            best.save(trainer)
        if steering.stopping:
            trainer.should_stop = True
        if not self._launched and steering.saving:
            steering.saving = False
            self._slurm.save(trainer, self._batches)
        elif steering.leaving or steering.saving:
            self._checkpointer.between_batches(trainer, self._leave_if_told)
        if steering.holding:
            self._checkpointer.where_exact(trainer, lambda: self._hold(trainer))
        self.hangs.begin(Phase.NEXT_BATCH)

    def _hold(self, trainer: pl.Trainer) -> None:
        """Hold between two batches, where a job that is told to leave can do so without its device."""
        self.hangs.done()
        self.steering.between_batches()
        if self.steering.leaving:
            self._checkpointer.between_batches(trainer, self._leave_if_told)
        self.hangs.begin(Phase.NEXT_BATCH)

    def _report_batch(self, trainer: pl.Trainer, outputs: Any, accumulated: int, mailbox: Mailbox) -> None:
        outbox, losses = mailbox.outbox, self._losses
        if (complaint := losses.read_batch(trainer, outputs, accumulated, self._batches)) is not None:
            log.warning("%s: %s", self._name, complaint)
        self._report_bad_losses(mailbox)
        outbox.in_slow_phase = False
        outbox.progress = (self._batches, self._timer.batch(), losses.rejected)
        if self._new_epoch:
            self._new_epoch = False
            self._resolve_target(epoch_batches(trainer) or self._per_epoch, mailbox)
            outbox.horizon = horizon(trainer, self._batches, trainer.fit_loop.epoch_loop.batch_idx + 1, self._per_epoch)
        self._rates.look(trainer, self._batches)
        if self._batches == self._last_batch:
            mailbox.hurry()  # the target is met, and the pool waits for the devices
            if self._best is not None:
                self._best.note_batches(self._batches)
        if self._slurm_end is not None and self._slurm_end.at is not None and not self._requeue:
            outbox.ends_by = min(outbox.ends_by, time.monotonic() + self._slurm_end.at - time.time())
        for forecast in mailbox.read_forecasts():
            self._metrics.log(trainer, forecast)

    def _resolve_target(self, epoch_batches: int | None, mailbox: Mailbox) -> None:
        """Report how many batches an epoch has, if the target counts epochs."""
        if epoch_batches is None or (target := self._target.resolved(epoch_batches)).work == self._target.work:
            return
        self._target, self._last_batch = target, target.work or 0
        mailbox.outbox.epoch_batches = epoch_batches
        mailbox.hurry()
        if self._best is not None:
            self._best.aim(target)

    def end_validation_batch(self) -> None:
        """Report a batch of validation."""
        self.report_busy()
        self.hangs.done()
        self.hangs.begin(Phase.VALIDATION_BATCH)

    def end_evaluation(self, trainer: pl.Trainer, stage: Stage) -> None:
        """Read the target's number at the end of a validation or an epoch."""
        if self.mailbox is not None:
            self._losses.read_evaluation(trainer, stage, self._batches)
            self._report_bad_losses(self.mailbox)
        if self._best is not None:
            wanted = self._best.wanted is not None
            if trainer.strategy.broadcast(wanted) if self._has_ranks else wanted:
                self._best.save(trainer)
        self.report_busy()
        self.hangs.begin(Phase.NEXT_BATCH)

    def report_busy(self) -> None:
        """Report work that is not a training batch."""
        if self.mailbox is not None:
            self.mailbox.outbox.in_slow_phase = True
            self.mailbox.outbox.progress = (self._batches, self._timer.batch(), self._losses.rejected)

    def end_epoch(self, trainer: pl.Trainer) -> None:
        """Check, after an epoch and its validation, that the target's number has been logged.

        Raises:
            MisconfigurationException: If the metric of a launched job was not logged.
        """
        self.end_evaluation(trainer, "epoch")
        self.hangs.excuse()
        self._per_epoch = self._batches - self._epoch_began
        complaint = None if self.mailbox is None else self._losses.complaint(trainer)  # only the first rank reads
        if self._has_ranks and self._launched:
            complaint = trainer.strategy.broadcast(complaint)  # if only one raised, the others would wait for it
        if complaint is not None:
            if self._launched:
                raise MisconfigurationException(complaint)
            log.warning("%s: %s", self._name, complaint)

    def close(self, trainer: pl.Trainer, error: BaseException | None = None) -> None:
        """Release the device and leave the pool after the fit, or after the exception that ended it."""
        mailbox = self.mailbox
        self.hangs.excuse()
        if self._rank_memory is not None:
            self._rank_memory.close()
        try:
            busy = self.steering.close()
            if mailbox is not None:
                mailbox.outbox.progress = (self._batches, busy, self._losses.rejected)
                self._losses.flush()
        finally:  # the device may fail, but the scheduler must be told about the end
            if mailbox is not None:
                if self._launched:
                    mailbox.close()
                else:
                    mailbox.close(exit_of(trainer, self._name, error), CLOSE_TIMEOUT)
                    print_line(summary_line(mailbox.job, mailbox.final_forecast, mailbox.refused))
                self._record.job_forecast = mailbox.final_forecast or mailbox.job_forecast or self._record.job_forecast
            self._close_best_model(trainer)
        if mailbox is not None and (error is None or type(error) is JobEnded):  # last, since a logger may be slow
            end = mailbox.inbox.directive
            outcome = end if isinstance(end, End) else mailbox.final_forecast or mailbox.job_forecast
            if outcome is not None:
                self._metrics.log(trainer, outcome)

    def _report_bad_losses(self, mailbox: Mailbox) -> None:
        bad, before = self._losses.bad, mailbox.outbox.bad_losses
        if bad is before:
            return
        mailbox.outbox.bad_losses = bad
        if bad is not None and (before is None or before.since != bad.since):
            if before is None:  # losses may be NaN again and again: log it once
                log.warning("%s: the losses have been NaN or infinite since batch %s", self._name, f"{bad.since:,}")
            mailbox.hurry()

    def _deliver(self, cell: Cell) -> None:
        if self.mailbox is not None:
            self.mailbox.outbox.evaluated = self._losses.evaluated  # before the cell can be reported
            self._record.evaluated_in = self._losses.evaluated_in
            self._record.curve.add(cell.batches, cell.value)
            self.mailbox.add(cell)
            if self._best is not None:
                self._best.see(cell.value, evaluated=self._losses.evaluated)

    def _save_due(self) -> bool:
        if self._launched:
            # While losses are NaN, the previous checkpoint is kept to go back to.
            bad = None if self.mailbox is None else self.mailbox.outbox.bad_losses
            return self._checkpointer.due() and (bad is None or bad.over)
        self._slurm.note_batch()
        return self._slurm.due()

    def _resume_curve(self) -> None:
        """Deliver the points before the checkpoint again, so that any scheduler knows the whole curve."""
        points = [point for point in self._record.curve.points if point.batches <= self._batches]
        self._record.curve.points = points
        self._losses.start_at(self._batches, len(points))
        if self.mailbox is not None:
            self.mailbox.outbox.evaluated = self._losses.evaluated
            for number, point in enumerate(points, start=1):
                self.mailbox.add(Cell(number, *point))

    def _close_best_model(self, trainer: pl.Trainer) -> None:
        if self._best is not None and self.mailbox is not None:
            manifest = self._best.close()
            if manifest is not None and self._best.saved:
                self._record.best_model = self._best.path
                print_line(f"lightning_core: {self._best.summary_line(manifest)}")

    def _leave_if_told(self) -> None:
        if self.mailbox is not None and self._checkpointer.last_checkpoint is not None:
            self.mailbox.report_checkpoint(self._checkpointer.last_checkpoint)
        self.steering.saving = False
        if self.steering.leaving:
            raise JobReleased(f"{self._name}: saved, to be resumed later")
