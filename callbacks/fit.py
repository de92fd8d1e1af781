"""The state of one call of ``Trainer.fit``, which the callback drops afterwards.

Rules

1. What this process does alone may fail: it costs that piece, is logged once, and the training goes on.
2. What all ranks do together, they do in hooks that all of them reach in the same order, whatever became of rule 1 on
   one of them: :class:`~lightning_core.agent.steering.ranks.Ranks` after a batch, and after a validation or an epoch if
   a model is kept.
3. A value is read where Lightning has computed it for all: after a validation in ``on_validation_end``, after an epoch
   once the module's own hook has run, where Lightning counts the epoch: no hook is there.
4. A training that has met its target stops in the hook that saw it, by the rule of the scheduler
   (:class:`~lightning_core.core.targets.TargetJudge`), not when the scheduler says so.
"""

from __future__ import annotations

import functools
import os
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.agent.job_record import JobRecord
from lightning_core.agent.options import Options
from lightning_core.agent.outcome import summary_line
from lightning_core.agent.reporting.hang_watch import HangWatch, Phase
from lightning_core.agent.reporting.losses import Losses
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.reporting.memory_meter import memory_meter
from lightning_core.agent.reporting.rank_memory import RankMemory
from lightning_core.agent.reporting.rank_watch import RankWatch, store_of_group
from lightning_core.agent.reporting.target_reader import Stage
from lightning_core.agent.slurm import SlurmEnd
from lightning_core.agent.steering.busy_timer import BusyTimer, GpuTimer, HostTimer
from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.steering.ranks import NOTHING, Ranks, SideAction
from lightning_core.agent.steering.steering import Steering
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.core.answers import End
from lightning_core.core.events import Cell, Horizon
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.targets import Target, TargetJudge
from lightning_core.node.processes import is_ancestor
from lightning_core.scheduler.settings import Settings
from lightning_core.view.console_lines import logger, print_line, watch_bar_of

from .checkpointing.best_model import best_model_saver
from .checkpointing.job_checkpointer import JobCheckpointer
from .checkpointing.job_writer import batches_done
from .elastic.steps import micro_batches_per_step
from .fit_end import exit_of
from .held_state import offload_of
from .metric_logging import MetricLog
from .reading.description import connection_of, hyper_parameters_of
from .reading.horizon import epoch_batches, horizon, seconds_left
from .reading.lightning_kinds import AVERAGING, STOCHASTIC_AVERAGING, callbacks_of
from .reading.logged_metrics import TrainerMetrics
from .reading.lr_watch import LearningRateWatch

log = logger(__name__)

# Seconds that a script waits for its scheduler at the end. While it is held, calls are shorter than that, so that none
# is in progress for longer when the script is interrupted.
CLOSE_TIMEOUT = 3.0
# Last batch of a target that does not say how many there are: at 0 a training with accumulation begins.
UNKNOWN = -1
# Variable by which processes that a training starts know of it.
WITHIN = "LIGHTNING_CORE_WITHIN"
# What a fit raises on purpose: it leaves, or a launched job's config is wrong; and what no one can go on after.
MEANT = (JobEnded, JobReleased, MisconfigurationException, torch.OutOfMemoryError)
# A name of its own, for the reason that ``NOTHING`` has one.
_NEXT_BATCH = Phase.NEXT_BATCH

P = ParamSpec("P")
T = TypeVar("T")


def _never_fails(hook: Callable[Concatenate[Fit, P], None]) -> Callable[Concatenate[Fit, P], None]:
    """Make a hook log what it raises, unless that is meant, or there are ranks, which have to part together."""

    @functools.wraps(hook)
    def survives(fit: Fit, /, *args: P.args, **options: P.kwargs) -> None:
        try:
            hook(fit, *args, **options)
        except Exception as error:
            fit.survive(error)

    return survives


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
        self.trainer = trainer
        """Trainer that fits."""
        self.name = options.job.name
        """Name of the job, as its user wants it."""
        self.has_ranks = trainer.world_size > 1
        """Whether the training has several processes."""
        self._launched = launched = options.launched
        self._every = options.every
        self._guarded = Guarded(self.name)
        self._defects: set[str] = set()
        self._checkpointer = checkpointer
        self._record = record
        self._metrics = MetricLog(self.name, everywhere=not self.has_ranks)
        self._stops = options.launched or options.stop_when_met
        self._automatic = pl_module.automatic_optimization
        self._is_elastic = options.launched and micro_batches_per_step() > 0
        self._batches = 0
        self._begun = False
        self._new_epoch, self._epoch_began, self._epoch_ended = True, 0, False
        self._per_epoch: int | None = None
        self.hangs = HangWatch(options.hang)
        """Watch of this thread."""
        device = trainer.strategy.root_device
        offload = self._alone(lambda: offload_of(trainer, pl_module, options.job), None)
        self._rank_memory: RankMemory | None = None
        meter = memory_meter(device, lambda: () if self._rank_memory is None else self._rank_memory.other_ranks)
        meter.frees = None if offload is None else offload.frees
        rank, ranks, watch = trainer.global_rank, trainer.world_size, None
        if self.has_ranks:
            watch = RankWatch(self.name, rank, ranks, self.hangs, store_of_group)
            self._rank_memory = RankMemory(rank, meter, beside=watch.look)
        self._ranks = Ranks(rank, device, self._rank_memory) if self.has_ranks else None
        self._target = target = options.job.target
        self._last_batch = target.work or UNKNOWN
        self.host: Fit | None = None
        """Another fit of this process, within whose grant this one trains; None if there is none."""
        host = first_of_this_process(self)
        self.host = None if launched else host

        def make_mailbox() -> Mailbox:
            return Mailbox(
                connection_of(options, trainer, pl_module, self._guarded, self._host_name), self.name,
                hold_timeout=10.0 if launched else CLOSE_TIMEOUT / 2,
                asks_forecast=not launched or bool(trainer.loggers), listens=launched, hangs=self.hangs,
                give_up=options.give_up, memory=self._rank_memory or meter, ranks=watch,
            )  # fmt: skip

        self.mailbox: Mailbox | None = self._alone(make_mailbox, None) if trainer.is_global_zero else None
        """Mailbox of the job; None on all ranks but the first."""
        self._rates = LearningRateWatch(self.name, self.mailbox, wanted=target.observes)
        self._losses = Losses(target, self._deliver, options.every, TrainerMetrics(trainer), record.evaluated_in)
        resumed = options.incarnation > 1 if options.launched else record.resumed
        self._judge = TargetJudge(target, Settings().window)
        if self._ranks is not None:
            self._ranks.stops_at = self._stops_at
        # On all ranks alike, whatever the first one learns of its target.
        self._agrees = options.keep_best is not False or target.work is None
        self._best = best_model_saver(trainer, options.job, options.keep_best, launched=launched, resumed=resumed)
        self._is_averaged = bool(callbacks_of(trainer, *AVERAGING))
        self._keeps_soon = False
        # The end of an allocation after which the script is requeued is not that of the training.
        ends = self.mailbox is not None and not options.launched and not options.requeue
        self._slurm_end = SlurmEnd() if ends else None
        self._timer: BusyTimer = GpuTimer() if device.type == "cuda" else HostTimer()
        self.steering = Steering(
            self.name, self.mailbox, self.hangs, self._timer, self._ranks, options.device_lock, options.launched,
            options.devices, self._stops, lambda: trainer.received_sigterm,
            options.cores, offload, None if self.host is None else self._steering_of_host,
            self._aim,
        )  # fmt: skip
        tell_processes_to_come(self)

    @property
    def best_model(self) -> str:
        """Path of the best model; empty while there is none."""
        return "" if self._best is None else self._best.path

    @_never_fails
    def begin(self, trainer: pl.Trainer) -> None:
        """Start reporting, and wait until this process may train; the first batch may be one of the sanity check."""
        if not self._begun:
            self._begun = True
            self._batches = batches_done(trainer)
            self._alone(lambda: self._begin_reports(trainer), None)
            self.steering.wait_for_start()
        self._leave_if_told()  # nothing was trained since the checkpoint that was loaded

    def _begin_reports(self, trainer: pl.Trainer) -> None:
        self._resume_curve()
        if self.mailbox is not None:
            told = self._guarded("its hyper-parameters", lambda: hyper_parameters_of(trainer), None)
            self.mailbox.outbox.hyper_parameters = told
            self.mailbox.begin(self._batches)

    def begin_training(self, trainer: pl.Trainer) -> None:
        """Report where the training will end, which is known once the loaders are set up."""
        self._alone(lambda: self._report_horizon(trainer), None)
        self._watch_epochs(trainer.fit_loop.epoch_progress)

    def _watch_epochs(self, progress: Any) -> None:
        """Read what an epoch has logged where Lightning counts it: no hook comes after that one and before the next."""
        count = progress.increment_completed

        def count_and_read() -> None:
            count()
            self._after_epoch(self.trainer)

        progress.increment_completed = count_and_read

    def _report_horizon(self, trainer: pl.Trainer) -> None:
        if self.mailbox is not None:
            self._resolve_target(epoch_batches(trainer), self.mailbox)
            if not self._target.observes and self._target.work is None:
                log.warning("%s: its loader has no length: the work of %s is known after the first", self.name,
                            self._target)  # fmt: skip
            self.mailbox.outbox.ends_by = time.monotonic() + seconds_left(trainer, self._guarded)
            self.mailbox.outbox.horizon = self._horizon(trainer, 0)
            self._rates.begin(trainer, self._batches)
            self.mailbox.hurry_and_ask()  # a target that cannot be met is reported at once

    def _horizon(self, trainer: pl.Trainer, in_epoch: int) -> Horizon:
        """Return where the training ends; one that does not stop when its target is met goes on to its own end."""
        known = horizon(trainer, self._batches, in_epoch, self._per_epoch)
        return known if self._stops else known._replace(at_least=MAX_COUNT)

    @_never_fails
    def begin_epoch(self, trainer: pl.Trainer) -> None:
        """Save or leave, if told to, before the first hook of an epoch.

        Raises:
            MisconfigurationException: If the metric of a launched job was not logged in the epoch before.
        """
        self._after_epoch(trainer)
        self._new_epoch, self._epoch_began = True, self._batches
        self.steering.between_batches()
        if self.steering.leaving or self.steering.saving:
            self._checkpointer.between_epochs(trainer, self._leave_if_told)
        self.steering.come_back()
        self.hangs.begin(Phase.FIRST_BATCH)

    # What follows is done for every batch, cold between two kernels, where each call costs a user several times what it
    # costs in a loop. So these two hooks and what they call look first, in few and flat functions, whether there is
    # anything to do, such as news; tests/callbacks/test_cost.py counts the calls of an ordinary batch.

    def begin_batch(self, phase: Phase = Phase.TRAINING) -> None:
        """Wait until this process may do a batch of training or validation."""
        try:
            if self._keeps_soon and phase is Phase.TRAINING:
                self._keep()
            self.steering.enter()
            self.hangs.turn(phase)
        except Exception as error:
            self.survive(error)

    def end_batch(self, trainer: pl.Trainer, outputs: Any) -> None:
        """Report a training batch, obey the newest directive, and save what is due."""
        try:
            # Lightning divides the loss by this number, which may change from epoch to epoch.
            accumulated = trainer.accumulate_grad_batches if self._automatic else 1
            if accumulated == 1 and not self._is_elastic:
                self._batches += 1
            else:
                self._batches = trainer.global_step
            side_actions = NOTHING
            try:
                side_actions = self._note_batch(trainer, outputs, accumulated)
            except MEANT:
                raise
            except Exception as error:
                self.note_defect(error)
            if side_actions is not NOTHING and SideAction.KEEP in side_actions and not self.has_ranks:
                self._keep_after_batch()
            try:
                is_wanted = self.steering.after_batch(side_actions, self._batches)
            except JobEnded as left:
                if self._keeps_soon and type(left) is JobEnded:
                    self._keep()
                raise
            if is_wanted:
                self._do_after_batch(trainer)
            self.hangs.turn(_NEXT_BATCH)  # not earlier: reading a loss may wait for the device
        except Exception as error:
            self.survive(error)

    def _do_after_batch(self, trainer: pl.Trainer) -> None:
        """Do what the scheduler, or all ranks together, want after a batch."""
        self.hangs.done()  # it may take any time
        steering = self.steering
        if steering.keeping:
            steering.keeping = False
            self._keep_after_batch()
        if steering.stopping:
            trainer.should_stop = True
        if steering.leaving or steering.saving:
            self._checkpointer.between_batches(trainer, self._leave_if_told)
        if steering.holding:
            self._checkpointer.where_exact(trainer, lambda: self._hold(trainer))

    def _hold(self, trainer: pl.Trainer) -> None:
        """Hold between two batches, where a job that is told to leave can do so without its device."""
        self.hangs.done()
        self.steering.between_batches()
        if self.steering.leaving:
            self._checkpointer.between_batches(trainer, self._leave_if_told)
        self.hangs.begin(Phase.NEXT_BATCH)

    def _note_batch(self, trainer: pl.Trainer, outputs: Any, accumulated: int) -> SideAction:
        """Report a batch; return what is to be done after it."""
        mailbox, batches = self.mailbox, self._batches
        if mailbox is not None:
            outbox, losses = mailbox.outbox, self._losses
            outbox.in_slow_phase = False
            outbox.progress = batches, self._timer.batch(), losses.rejected
            try:  # not guarded as a whole, which would take longer than all else
                complaint = losses.read_batch(outputs, accumulated, batches)
                if complaint is not None:
                    self._complain(complaint)
            except Exception as error:
                self._guarded.tell("the losses of its batches", error)
            if losses.bad is not outbox.bad_losses:
                self._report_bad_losses(mailbox)
            if self._new_epoch:
                self._new_epoch = False
                self._resolve_target(epoch_batches(trainer) or self._per_epoch, mailbox)
                outbox.horizon = self._horizon(trainer, trainer.fit_loop.epoch_loop.batch_idx + 1)
            if batches >= self._rates.look_at:
                self._rates.look(trainer, batches)
            if batches == self._last_batch:
                self._end_work(mailbox)
            if self._slurm_end is not None and self._slurm_end.at is not None:
                outbox.ends_by = min(outbox.ends_by, time.monotonic() + self._slurm_end.at - time.time())
            if mailbox.forecasts.unread:
                for forecast in mailbox.forecasts.read():
                    self._metrics.log(trainer, forecast)
        wanted = SideAction.SAVE if self._launched and self._save_due() else NOTHING
        if self._best is not None and self._best.wanted is not None:
            wanted |= SideAction.KEEP
        return wanted

    def _end_work(self, mailbox: Mailbox) -> None:
        """Stop after the last batch of a target that counts batches."""
        self.steering.meet()
        mailbox.hurry()  # the pool waits for the devices
        if self._best is not None:
            self._best.note_batches(self._batches)

    def _stops_at(self) -> int:
        """Return the batches after which the target may be met next, for the agreement of all ranks."""
        if not self._stops or self.steering.wants_stop:
            return MAX_COUNT
        at = self._losses.next_cell if self._target.observes else self._last_batch
        if at is None or at == UNKNOWN:
            return MAX_COUNT
        # A metric that batches log now and then is late; all batches until it comes would be too many.
        return at if at > self._batches else self._batches + self._every

    def _aim(self, target: Target) -> None:
        """Judge by another target, which the job was given while it trains.

        Of another metric, which is not read here, the scheduler judges.
        """
        known, self._target, self._last_batch = self._target, target, target.work or UNKNOWN
        if (target.observed, target.lower_is_better) == (known.observed, known.lower_is_better) or not target.observes:
            self._judge.aim(target)
            if self._best is not None:
                self._best.aim(target)
        else:
            self._judge.rest()

    def _resolve_target(self, epoch_batches: int | None, mailbox: Mailbox) -> None:
        """Report how many batches an epoch has, if the target counts epochs."""
        if epoch_batches is None or (target := self._target.resolved(epoch_batches)).work == self._target.work:
            return
        self._target, self._last_batch = target, target.work or UNKNOWN
        mailbox.outbox.epoch_batches = epoch_batches
        mailbox.hurry()
        if self._best is not None:
            self._best.aim(target)

    @_never_fails
    def begin_validation(self) -> None:
        """Keep the model of the last batch before its weights are replaced by their averages, to be validated."""
        if self._keeps_soon:
            self._keep()
        self.hangs.begin(Phase.VALIDATION_BATCH)

    def end_validation_batch(self) -> None:
        """Report a batch of validation."""
        self._alone(self.report_busy, None)
        self.hangs.done()
        self.hangs.begin(Phase.VALIDATION_BATCH)

    @_never_fails
    def end_validation(self, trainer: pl.Trainer) -> None:
        """Read the target's number after a validation, which Lightning has computed on all ranks; keep the model."""
        self._alone(lambda: self._read_evaluation("validation"), None)
        # By the clock, each rank validates when it likes: there they keep the model, and stop, at their next agreement.
        if not (self.has_ranks and getattr(trainer, "_val_check_time_interval", None) is not None):
            self._keep_or_stop(trainer)
        self.hangs.begin(Phase.NEXT_BATCH)

    def _read_evaluation(self, stage: Stage) -> None:
        if self.mailbox is not None:
            self._complain(self._losses.read_evaluation(stage, self._batches))
            self._report_bad_losses(self.mailbox)
        self.report_busy()

    def report_busy(self) -> None:
        """Report work that is not a training batch."""
        if self.mailbox is not None:
            self.mailbox.outbox.in_slow_phase = True
            self.mailbox.outbox.progress = (self._batches, self._timer.batch(), self._losses.rejected)

    @_never_fails
    def end_epoch(self) -> None:
        """Note that an epoch has ended; the module's hook, which may complete its metrics, is to come."""
        self.hangs.excuse()
        if self._keeps_soon:
            self._keep()
        self._epoch_ended = True
        self._per_epoch = self._batches - self._epoch_began
        self._alone(self.report_busy, None)

    @_never_fails
    def end_training(self, trainer: pl.Trainer) -> None:
        """Read what the last epoch has logged.

        Raises:
            MisconfigurationException: If the metric of a launched job was never logged.
        """
        self._after_epoch(trainer, last=True)

    @_never_fails
    def _after_epoch(self, trainer: pl.Trainer, *, last: bool = False) -> None:
        """Read the target's number after an epoch, and check that it has been logged."""
        ended, self._epoch_ended = self._epoch_ended, False
        if not ended:
            return
        self._alone(lambda: self._read_epoch(trainer), None)
        # At the end of the training the averages of the weights are in place, which are not those of the number.
        if not (last and (self._is_averaged or callbacks_of(trainer, *STOCHASTIC_AVERAGING))):
            self._keep_or_stop(trainer)
        complaint = None
        if self.mailbox is not None:  # only the first rank reads
            complaint = self._alone(lambda: self._losses.complaint(), None)
        if not self._launched:
            self._complain(complaint)
            return
        complaint = trainer.strategy.broadcast(complaint)  # if only one raised, the others would wait for it
        if complaint is not None:
            raise MisconfigurationException(complaint)

    def _read_epoch(self, trainer: pl.Trainer) -> None:
        self._read_evaluation("epoch")
        if self.mailbox is not None and self._last_batch == UNKNOWN:  # its loader has no length
            self._resolve_target(self._per_epoch, self.mailbox)
            if self._batches == self._last_batch:
                self._end_work(self.mailbox)

    def _keep_or_stop(self, trainer: pl.Trainer) -> None:
        """Save the model if it is the best so far, and stop if it meets the target; on all ranks together."""
        keeps, stops = self._best is not None and self._best.wanted is not None, self.steering.wants_stop
        if self._ranks is not None and self._agrees:
            keeps, stops = self._ranks.told(keeps, stops)
        if keeps:
            self._keep()
        if stops:
            trainer.should_stop = True

    def _keep_after_batch(self) -> None:
        """Save the model at once or, where weights are averaged after our hook, before the next batch or validation."""
        self._keeps_soon = True
        if not self._is_averaged:
            self._keep()

    def _keep(self) -> None:
        self.hangs.done()  # it may take any time
        self._keeps_soon = False
        if self._best is not None:
            self._best.save(self.trainer)

    def close(self, trainer: pl.Trainer, error: BaseException | None = None) -> None:
        """Release the device and leave the pool after the fit, or after the exception that ended it.

        Nothing here waits for another rank: that one may be gone.
        """
        end_in_this_process(self)
        vars(trainer.fit_loop.epoch_progress).pop("increment_completed", None)
        self.hangs.excuse()
        if self._rank_memory is not None:
            self._rank_memory.close()
        mailbox = self.mailbox
        busy = self._alone(self.steering.close, None)
        if mailbox is not None:
            if busy is not None:
                mailbox.outbox.progress = (self._batches, busy, self._losses.rejected)
            self._alone(self._losses.flush, None)
            self._alone(lambda: self._leave_pool(trainer, mailbox, error), None)
        self._alone(self._close_best_model, None)
        if mailbox is not None and (error is None or type(error) is JobEnded):  # last, since a logger may be slow
            end = mailbox.inbox.directive
            outcome = end if isinstance(end, End) else mailbox.final_forecast or mailbox.job_forecast
            if outcome is not None:
                self._alone(lambda: self._metrics.log(trainer, outcome, at_once=True), None)

    def _leave_pool(self, trainer: pl.Trainer, mailbox: Mailbox, error: BaseException | None) -> None:
        if self._launched:
            mailbox.close()
        else:
            mailbox.close(exit_of(trainer, self.name, error), CLOSE_TIMEOUT)
            print_line(summary_line(mailbox.job, mailbox.final_forecast, mailbox.refused))
        self._record.job_forecast = mailbox.final_forecast or mailbox.job_forecast or self._record.job_forecast

    def _report_bad_losses(self, mailbox: Mailbox) -> None:
        bad, before = self._losses.bad, mailbox.outbox.bad_losses
        if bad is before:
            return
        mailbox.outbox.bad_losses = bad
        if bad is not None and (before is None or before.since != bad.since):
            if before is None:  # losses may be NaN again and again: log it once
                log.warning("%s: the losses have been NaN or infinite since batch %s", self.name, f"{bad.since:,}")
            mailbox.hurry()

    def _deliver(self, cell: Cell) -> None:
        if self.mailbox is not None:
            evaluated = self._losses.evaluated
            self.mailbox.outbox.evaluated = evaluated  # before the cell can be reported
            self._record.evaluated_in = self._losses.evaluated_in
            self._record.curve.add(cell.batches, cell.value)
            self._add(cell, self.mailbox, evaluated=evaluated)
            if self._best is not None:
                self._best.see(cell.value, evaluated=evaluated)

    def _add(self, cell: Cell, mailbox: Mailbox, *, evaluated: bool) -> None:
        """Report a cell, and stop if the target is met by it."""
        is_met = self._judge.see(cell.batches, cell.value, evaluated=evaluated)
        if is_met:
            self.steering.meet()
        mailbox.add(cell)
        if is_met:
            mailbox.outbox.met = self._judge.met
            mailbox.hurry()

    def _save_due(self) -> bool:
        """Return whether a launched job is due to be saved; while losses are NaN, the last checkpoint is kept."""
        bad = None if self.mailbox is None else self.mailbox.outbox.bad_losses
        return self._checkpointer.due() and (bad is None or bad.over)

    def _resume_curve(self) -> None:
        """Deliver the points before the checkpoint again, so that any scheduler knows the whole curve."""
        points = [point for point in self._record.curve.points if point.batches <= self._batches]
        self._record.curve.points = points
        self._losses.start_at(self._batches, len(points))
        if self.mailbox is not None:
            self.mailbox.outbox.evaluated = self._losses.evaluated
            for number, point in enumerate(points, start=1):
                self._add(Cell(number, *point), self.mailbox, evaluated=self._losses.evaluated)

    def _close_best_model(self) -> None:
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
            if self._keeps_soon:
                self._keep()
            raise JobReleased(f"{self.name}: saved, to be resumed later")

    def _open_host(self) -> Fit | None:
        """Return the fit within whose grant this one trains; None once that has ended."""
        if self.host is not None and not is_training_here(self.host):
            self.host = None
        return self.host

    def _steering_of_host(self) -> Steering | None:
        host = self._open_host()
        return getattr(host, "steering", None)  # it may have none yet

    def _host_name(self) -> str:
        host = self._open_host()
        return job_of_parent() if host is None else host.name

    def _alone(self, do: Callable[[], T], otherwise: T) -> T:
        """Do what concerns this process only, and return what that returns; log it if it fails."""
        try:
            return do()
        except MEANT:
            raise
        except Exception as error:
            self.note_defect(error)
            return otherwise

    def survive(self, error: Exception) -> None:
        """Log what a hook raises, while it is handled; raise it again if that is meant, or ranks have to part."""
        if self.has_ranks or isinstance(error, MEANT):
            raise error
        self.note_defect(error)

    def note_defect(self, error: Exception) -> None:
        """Log, once for each place, that something of ours has failed; the training goes on."""
        at = traceback.extract_tb(error.__traceback__)[-1:]
        place = f"{Path(at[0].filename).name}:{at[0].lineno}" if at else ""
        if place not in self._defects:
            self._defects.add(place)
            message = " ".join(str(error).split())[:200]
            log.warning("%s: training continues without a part of lightning_core: %s: %s (%s)", self.name,
                        type(error).__name__, message, place, exc_info=error)  # fmt: skip

    def _complain(self, complaint: str | None) -> None:
        if complaint is not None:
            log.warning("%s: %s", self.name, complaint)


# Fits that are under way in this process, in the order in which they began, each with the id of the process: a fork has
# a copy of the list. Without a lock, which a fork might find taken for ever.
_under_way: list[tuple[int, weakref.ref[Fit]]] = []


def _fits_here() -> Iterator[Fit]:
    for pid, reference in list(_under_way):
        if pid == os.getpid() and (fit := reference()) is not None:
            yield fit


def first_of_this_process(fit: Fit) -> Fit | None:
    """Note that a fit begins; return the one that others of this process train within, None if that is this one."""
    _under_way.append((os.getpid(), weakref.ref(fit)))
    first = _host()
    return None if first is fit else first


def tell_processes_to_come(fit: Fit) -> None:
    """Tell processes that this one starts that they train within this fit, if it is the first of its process."""
    if _host() is fit and fit.mailbox is not None:
        os.environ[WITHIN] = f"{os.getpid()}:{fit.name}"


def end_in_this_process(fit: Fit) -> None:
    """Note that a fit has ended."""
    for entry in list(_under_way):
        if entry[1]() in (fit, None):
            with suppress(ValueError):
                _under_way.remove(entry)  # one by one: others may begin meanwhile
    if _host() is None:
        os.environ.pop(WITHIN, None)


def is_training_here(fit: Fit) -> bool:
    """Return whether a fit is under way in this process."""
    return any(one is fit for one in _fits_here())


def _host() -> Fit | None:
    """Return the fit of this process that others train within; None if none is under way."""
    return next((fit for fit in _fits_here() if fit.host is None), None)


def job_of_parent() -> str:
    """Return the job of a training that has started this process, and is under way; empty if there is none."""
    pid, _, job = os.environ.get(WITHIN, "").partition(":")
    return job if pid.isdigit() and int(pid) != os.getpid() and is_ancestor(int(pid)) else ""
