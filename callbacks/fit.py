"""The state of one call of ``Trainer.fit``, which the callback drops afterwards: a participant in Lightning's hooks.

Beside the rules of :mod:`lightning_core.agent.participant`:

1. What all ranks do together, they do in hooks that all of them reach: after a batch, and after a validation or an
   epoch if a model is kept.
2. A value is read where Lightning has computed it for all: after a validation in ``on_validation_end``, after an epoch
   once the module's own hook has run, where Lightning counts the epoch: no hook is there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_core.agent.job_record import JobRecord
from lightning_core.agent.launched_script import RELEASED_CODE, LaunchedScript
from lightning_core.agent.metric_log import MetricLog
from lightning_core.agent.options import Options
from lightning_core.agent.outcome import exit_of
from lightning_core.agent.participant import UNKNOWN, Loop, Participant, never_fails
from lightning_core.agent.reporting.hang_watch import Phase
from lightning_core.agent.reporting.lr_watch import LearningRateWatch
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.steering.ranks import NOTHING, SideAction
from lightning_core.core.answers import End, JobForecast
from lightning_core.core.events import Horizon
from lightning_core.core.jobs import OnHold
from lightning_core.core.limits import MAX_COUNT
from lightning_core.view.console_lines import logger, print_line, watch_bar_of

from .checkpointing.best_model import BestModelSaver, best_model_saver
from .checkpointing.job_checkpointer import JobCheckpointer
from .checkpointing.job_writer import batches_done
from .elastic.steps import micro_batches_per_step
from .fit_end import limit_of
from .held_state import offload_of
from .reading.description import connection_of, hyper_parameters_of
from .reading.horizon import epoch_batches, horizon, seconds_left
from .reading.lightning_kinds import AVERAGING, STOCHASTIC_AVERAGING, callbacks_of
from .reading.logged_metrics import TrainerMetrics
from .reading.schedules import schedules_of
from .reading.unlogged_metric import UnloggedMetric
from .requeue import RequeueTogether

log = logger(__name__)

# A name of its own, for the reason that ``NOTHING`` has one.
_NEXT_BATCH = Phase.NEXT_BATCH


class Fit(Participant):
    """One fit in one process.

    Args:
        trainer: Trainer that fits.
        pl_module: Module that is fitted.
        options: Options of the callback.
        checkpointer: Checkpointer of the callback.
        record: Record of the job, which is updated.
        script: What this process was told, if it is the script of a launched job: it leaves that, too.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        options: Options,
        checkpointer: JobCheckpointer,
        record: JobRecord,
        *,
        script: LaunchedScript | None = None,
    ) -> None:
        self._script = script
        watch_bar_of(trainer)
        self.trainer = trainer
        """Trainer that fits."""
        metrics = TrainerMetrics(trainer)
        super().__init__(
            options,
            record,
            Loop(
                trainer.strategy.root_device,
                trainer.global_rank,
                trainer.world_size,
                lambda host: connection_of(options, trainer, pl_module, self._guarded, host),
                metrics,
                bool(trainer.loggers),
                lambda: offload_of(trainer, pl_module, options.job),
                lambda: trainer.received_sigterm,
                lambda error: exit_of(self.name, error, lambda: limit_of(trainer, self.name)),
                pl_module.automatic_optimization,  # then Lightning's ClosureResult clones it
            ),
        )
        target = options.job.target
        self._checkpointer = checkpointer
        # At the step that Lightning uses for metrics logged now.
        step = lambda: int(trainer.fit_loop.epoch_loop._batches_that_stepped)  # noqa: E731
        self._metrics = MetricLog(self.name, lambda: trainer.loggers, step, everywhere=not self.has_ranks)
        # By the clock each rank validates when it likes: there no rank can compute a metric of all.
        self._by_the_clock = self.has_ranks and getattr(trainer, "_val_check_time_interval", None) is not None
        self._unlogged: UnloggedMetric | None = None
        if options.metric and not self._by_the_clock:
            self._unlogged = UnloggedMetric(options.metric, pl_module, metrics, self._guarded, self._ranks)
        self._automatic = pl_module.automatic_optimization
        self._is_elastic = options.launched and micro_batches_per_step() > 0
        self._begun = False
        self._epoch_began, self._epoch_ended = 0, False
        self._per_epoch: int | None = None
        self._rates = LearningRateWatch(self.name, self.mailbox, wanted=target.observes)
        self._look_at = self._rates.look_at
        resumed = options.incarnation > 1 if options.launched else record.resumed
        # On all ranks alike, whatever the first one learns of its target.
        self._agrees = options.keep_best is not False or target.work is None
        self._best: BestModelSaver | None = best_model_saver(
            trainer, options.job, options.keep_best, launched=options.launched, resumed=resumed
        )
        self._is_averaged = bool(callbacks_of(trainer, *AVERAGING))
        self._keeps_soon = False
        self._requeue: RequeueTogether | None = None
        self._saves_before_hold = self._launched and options.job.on_hold is OnHold.SUSPEND

    @property
    @override
    def meant(self) -> tuple[type[BaseException], ...]:
        return (*super().meant, MisconfigurationException)  # the config of a launched job is wrong

    @property
    def best_model(self) -> str:
        """Path of the best model; empty while there is none."""
        return "" if self._best is None else self._best.path

    @never_fails
    def begin(self, trainer: pl.Trainer) -> None:
        """Start reporting, and wait until this process may train; the first batch may be one of the sanity check."""
        if not self._begun:
            self._begun = True
            self._batches = batches_done(trainer)
            self._alone(self._begin_to_report, None)
            self.steering.wait_for_start()
        self._leave_if_told()  # nothing was trained since the checkpoint that was loaded

    def _begin_to_report(self) -> None:
        told = None
        if self.mailbox is not None:
            told = self._guarded("its hyper-parameters", lambda: hyper_parameters_of(self.trainer), None)
        self._begin_reports(told)

    def begin_training(self, trainer: pl.Trainer) -> None:
        """Report where the training will end, which is known once the loaders are set up."""
        self._alone(lambda: self._report_horizon(trainer), None)
        if self.has_ranks:
            self._requeue = self._alone(lambda: RequeueTogether(trainer), None)
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
            self._rates.begin(lambda: schedules_of(trainer, 0), self._batches)
            self._look_at = self._rates.look_at
            self.mailbox.hurry_and_ask()  # a target that cannot be met is reported at once

    def _horizon(self, trainer: pl.Trainer, in_epoch: int) -> Horizon:
        """Return where the training ends; one that does not stop when its target is met goes on to its own end."""
        known = horizon(trainer, self._batches, in_epoch, self._per_epoch)
        return known if self._stops else known._replace(at_least=MAX_COUNT)

    def _describe_epoch(self, mailbox: Mailbox) -> None:
        self._resolve_target(epoch_batches(self.trainer) or self._per_epoch, mailbox)
        mailbox.outbox.horizon = self._horizon(self.trainer, self.trainer.fit_loop.epoch_loop.batch_idx + 1)

    def _look(self) -> None:
        in_epoch = self.trainer.fit_loop.epoch_loop.batch_idx + 1
        self._rates.look(lambda: schedules_of(self.trainer, in_epoch), self._batches)
        self._look_at = self._rates.look_at

    def _show(self, forecasts: Sequence[JobForecast]) -> None:
        for forecast in forecasts:
            self._metrics.log(forecast)

    @never_fails
    def begin_epoch(self, trainer: pl.Trainer) -> None:
        """Save or leave, if told to, before the first hook of an epoch.

        Raises:
            MisconfigurationException: If the metric of a launched job was not logged in the epoch before.
        """
        self._after_epoch(trainer)
        self._new_epoch, self._epoch_began = True, self._batches
        if self._saves_before_hold and self.steering.is_told_to_hold():
            self._saves_before_hold = False
            self._checkpointer.between_epochs(trainer, self._report_checkpoint)
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
                side_actions = self._note_batch(outputs, accumulated)
            except self.meant:
                raise
            except Exception as error:
                self.note_defect(error)
            if side_actions is not NOTHING and SideAction.KEEP in side_actions and not self.has_ranks:
                self._keep_after_batch()
            if self._requeue is not None and self._requeue.came:
                side_actions = side_actions | SideAction.REQUEUE
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
        if steering.requeueing:
            steering.requeueing = False
            self._requeue_together()
        if steering.stopping:
            trainer.should_stop = True
        if steering.leaving or steering.saving:
            self._checkpointer.between_batches(trainer, self._leave_if_told)
        if steering.holding and self._saves_before_hold and not self._checkpointer.fails:
            # If the process does not come back from its first suspension, the job continues from this checkpoint.
            self._checkpointer.between_batches(trainer, lambda: self._hold(trainer))
        elif steering.holding:
            self._checkpointer.where_exact(trainer, lambda: self._hold(trainer))

    def _requeue_together(self) -> None:
        if self._requeue is not None:
            self._requeue.save_and_requeue()

    def _hold(self, trainer: pl.Trainer) -> None:
        """Hold between two batches, where a job that is told to leave can do so without its device."""
        self.hangs.done()
        self._saves_before_hold = False
        self._report_checkpoint()
        try:
            self.steering.between_batches()
        except JobEnded as ended:
            self._leave(ended)
        if self.steering.leaving:
            self._checkpointer.between_batches(trainer, self._leave_if_told)
        self.hangs.begin(Phase.NEXT_BATCH)

    @never_fails
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

    @never_fails
    def complete_validation(self) -> None:
        """Copy the target's metric, if nothing logs it, before the module's own hook, which may reset it."""
        if self._unlogged is not None and self._alone(self._unlogged.copy, False):
            self._losses.expect("validation")

    @never_fails
    def end_validation(self, trainer: pl.Trainer) -> None:
        """Read the target's number after a validation, which all ranks have computed; keep the model."""
        if self._unlogged is not None:
            self.hangs.excuse()  # it may take any time
            self._unlogged.compute()
        self._alone(lambda: self._read_evaluation("validation"), None)
        if not self._by_the_clock:  # else they keep the model, and stop, at their next agreement
            self._keep_or_stop(trainer)
        self.hangs.begin(Phase.NEXT_BATCH)

    @never_fails
    def end_epoch(self) -> None:
        """Note that an epoch has ended; the module's hook, which may complete its metrics, is to come."""
        self.hangs.excuse()
        if self._keeps_soon:
            self._keep()
        self._epoch_ended = True
        self._per_epoch = self._batches - self._epoch_began
        self._alone(self.report_busy, None)

    @never_fails
    def end_training(self, trainer: pl.Trainer) -> None:
        """Read what the last epoch has logged.

        Raises:
            MisconfigurationException: If the metric of a launched job was never logged.
        """
        self._after_epoch(trainer, last=True)

    @never_fails
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
        if self._ranks is not None:
            if not self._agrees:
                return  # no model is kept, and the ranks agree after the batch that meets the target
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

    def close(self, error: BaseException | None = None) -> None:
        """Release the device and leave the pool after the fit, or after the exception that ended it."""
        vars(self.trainer.fit_loop.epoch_progress).pop("increment_completed", None)
        super().close(error)
        if self._requeue is not None:
            self._alone(self._requeue.close, None)
        mailbox = self.mailbox
        self._alone(self._close_best_model, None)
        if mailbox is not None and (error is None or type(error) is JobEnded):  # last, since a logger may be slow
            end = mailbox.inbox.directive
            outcome = end if isinstance(end, End) else mailbox.final_forecast or mailbox.job_forecast
            if outcome is not None:
                self._alone(lambda: self._metrics.log(outcome, at_once=True), None)

    def _save_due(self) -> bool:
        """Return whether a launched job is due to be saved; while losses are NaN, the last checkpoint is kept."""
        bad = None if self.mailbox is None else self.mailbox.outbox.bad_losses
        return self._checkpointer.due() and (bad is None or bad.over)

    def _close_best_model(self) -> None:
        if self._best is not None and self.mailbox is not None:
            manifest = self._best.close()
            if manifest is not None and self._best.saved:
                self._record.best_model = self._best.path
                print_line(f"lightning_core: {self._best.summary_line(manifest)}")

    def _report_checkpoint(self) -> None:
        if self.mailbox is not None and self._checkpointer.last_checkpoint is not None:
            self.mailbox.report_checkpoint(self._checkpointer.last_checkpoint)

    def _leave_if_told(self) -> None:
        self._report_checkpoint()
        self.steering.saving = False
        if self.steering.leaving:
            if self._keeps_soon:
                self._keep()
            self._leave(JobReleased(f"{self.name}: saved, to be resumed later"))

    def _leave(self, told: JobEnded | JobReleased) -> NoReturn:
        """Leave the fit; in a script, the process too: what follows the fit must not run, such as an upload."""
        if self._script is None:
            raise told
        if isinstance(told, JobReleased):
            self._script.note_release()
        raise SystemExit(RELEASED_CODE if isinstance(told, JobReleased) else 0) from told

    @override
    def survive(self, error: Exception) -> None:
        if self._script is not None and isinstance(error, JobEnded | JobReleased):
            self._leave(error)
        super().survive(error)
