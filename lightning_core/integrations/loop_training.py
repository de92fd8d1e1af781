"""A training whose loop counts its own batches: what the adapters of this room have in common."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from sys import modules
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from lightning_core.agent.job_record import JobRecord
from lightning_core.agent.launched_script import RELEASED_CODE, LaunchedScript
from lightning_core.agent.metric_log import MetricLog
from lightning_core.agent.options import Options
from lightning_core.agent.outcome import exit_of
from lightning_core.agent.participant import UNKNOWN, Loop, Participant, never_fails
from lightning_core.agent.reporting.hang_watch import Phase
from lightning_core.agent.reporting.joining import Connect, Join, SchedulerConnection
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.steering.fit_signals import JobEnded, JobFenced
from lightning_core.agent.steering.ranks import NOTHING
from lightning_core.agent.user_code.torch_here import HOST, TrainingDevice, device_name, torch_here
from lightning_core.core.answers import Directive, JobForecast
from lightning_core.core.events import Horizon
from lightning_core.core.jobs import Capability, OnHold
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.reported import hyper_parameters
from lightning_core.core.targets import STEP_LOSS
from lightning_core.view.console_lines import logger

if TYPE_CHECKING:
    from lightning_core.agent.reporting.lr_watch import LearningRateWatch, Schedules
    from lightning_core.agent.steering.offload import Offload

log = logger(__name__)

# Seconds for which batches are only counted, and their losses kept, before all else that follows a batch is done: each
# call between two batches is cold, and costs several times what it costs in a loop. In turns with others for less time,
# because a quantum ends that much later.
KEPT_FOR, KEPT_IN_TURNS = 0.02, 0.005

# A name of its own, as ``NOTHING`` has one: to look up a member of an enum takes as long as to read a clock.
_NEXT_BATCH = Phase.NEXT_BATCH


class ScriptReleased(SystemExit):
    """Leaves the process of a launched script that was saved and gives its devices back, to be resumed later."""


class ScriptEnded(SystemExit):
    """Leaves the process of a launched script whose job is over with its target unmet, or has another process."""


class Place(NamedTuple):
    """Where a process of a training runs.

    Attributes:
        device: Device on which it trains.
        rank: Its rank.
        ranks: Number of ranks.
        loggers: Returns the loggers in which forecasts are shown.
    """

    device: TrainingDevice
    rank: int = 0
    ranks: int = 1
    loggers: Callable[[], Sequence[Any]] = tuple


class LoopEnd(NamedTuple):
    """Where a loop ends by itself, as far as it says so.

    Attributes:
        batches: Batches that it does in all; None if no number of them ends it.
        epochs: Epochs that it does in all; None if no number of them ends it.
        name: How the loop calls its limit of batches, if not ``max_batches``.
    """

    batches: int | None = None
    epochs: int | None = None
    name: str = ""

    @property
    def limit(self) -> str:
        """The limit of batches, as it is named in a verdict."""
        return self.name or f"max_batches={self.batches}"


class ModelSaid(NamedTuple):
    """What a loop says of what it trains.

    Attributes:
        model: Class path of the model, by which earlier runs are found; empty if it is not said.
        batch_size: Samples in a batch; None if it is not said.
        hyper_parameters: What it is trained with.
        state: Objects that hold the state on the device, such as model and optimizer.
        scheduler: Learning-rate scheduler of torch; None if there is none, or it is not said.
        interval: ``step`` or ``epoch``: after what the scheduler is stepped.
    """

    model: str = ""
    batch_size: int | None = None
    hyper_parameters: Mapping[str, Any] | None = None
    state: Sequence[object] = ()
    scheduler: Any = None
    interval: str = "step"


class LoopMetrics:
    """The metrics of one training, as :class:`~lightning_core.agent.reporting.target_reader.LoggedMetrics`.

    Args:
        without_loss: What the log says if the target is about the loss and none is given.
    """

    def __init__(self, without_loss: str = "the loop has given no loss: call run.log(loss=...)") -> None:
        self.without_loss = without_loss
        self.newest: dict[str, Any] = {}
        """Newest value of each metric."""
        self.has_validation = False
        """Whether the training has been evaluated."""

    def computed(self) -> Mapping[str, Any]:
        """Return the newest value of each metric."""
        return self.newest

    def of_batch(self, name: str) -> Any:
        """Return the newest value of a metric; None if there is none."""
        return self.newest.get(name)


class LoopTraining(Participant):
    """One training in one process, whose loop says when a batch begins and ends.

    Args:
        options: Options of the job.
        record: Record of the job, which is updated.
        place: Where this process runs.
        values: Metrics of the training.
        end: Where the loop ends by itself.
        said: What the loop says of what it trains.
        batches: Batches that are done, of a training that was resumed.
        epochs: Epochs that are done.
        script: What the script was told, if a pool has launched it.

    Attributes:
        save: Saves the training into a file or folder of its own, at the path that it is given; None if it cannot.
        saves_by_itself: Whether the loop saves at a place of its own when :attr:`wants_save` says so.
        wants_save: Whether such a loop is to save now.
    """

    def __init__(
        self, options: Options, record: JobRecord, place: Place, values: LoopMetrics, end: LoopEnd, said: ModelSaid,
        batches: int = 0, epochs: int = 0, script: LaunchedScript | None = None,
    ) -> None:  # fmt: skip
        self.save: Callable[[Path], object] | None = None
        self.saves_by_itself = self.wants_save = False
        self._script = script
        self._warned: set[str] = set()
        self._said, self._end, self._values = said, end, values
        self.epochs = epochs
        """Epochs that are done."""
        self._epoch_began = batches
        self._per_epoch: int | None = None
        self._counted = 0
        super().__init__(
            options,
            record,
            Loop(
                place.device, place.rank, place.ranks, lambda host: _connection_of(options, place, said, host), values,
                bool(place.loggers()) or script is not None, lambda: _offload_of(options, place.device, said),
                lambda: False, lambda error: exit_of(self.name, error, self._ended_by),
            ),
        )  # fmt: skip
        self._batches = batches
        # Of several ranks all agree after the same batch; a GPU is marked, and its losses are not waited for.
        self._may_keep = not self.has_ranks and self._timer.on_host and self.mailbox is not None
        self._kept: list[tuple[Any, int]] = []
        self._trusts = True
        self._keeps_until: float = 0.0
        self._full_at: float = 0
        self._known: Directive | None = None
        self._rates: LearningRateWatch | None = None
        if said.scheduler is not None:
            from lightning_core.agent.reporting.lr_watch import LearningRateWatch

            self._rates = LearningRateWatch(self.name, self.mailbox, wanted=options.job.target.observes)
            self._look_at = self._rates.look_at
        self._metric_log = MetricLog(self.name, place.loggers, lambda: self._batches, everywhere=not self.has_ranks)

    # ------------------------------------------------------------------------------------------------ the loop's end

    @property
    def batches(self) -> int:
        """Batches that are done."""
        return self._batches

    @property
    def counts_epochs(self) -> bool:
        """Whether its target is a number of epochs whose batches are not known."""
        return self._last_batch == UNKNOWN and not self._target.observes

    @property
    def is_over(self) -> bool:
        """Whether the loop is to end: the target is met, or the job was cancelled."""
        return self.steering.stopping

    def begin(self, per_epoch: int | None) -> None:
        """Join, report what is known, and wait until this process may train.

        Args:
            per_epoch: Batches of an epoch; None if they are not known.
        """
        try:
            self._alone(lambda: self._begin_to_report(per_epoch), None)
            self.steering.wait_for_start()
            self._leave_if_told()  # nothing was trained since what it resumes from
        except Exception as error:
            self.survive(error)

    def _begin_to_report(self, per_epoch: int | None) -> None:
        said = self._said.hyper_parameters
        told = None if said is None else self._guarded("its hyper-parameters", lambda: hyper_parameters(said), None)
        self._begin_reports(told or None)
        if self.mailbox is not None:
            self._begin_epoch(per_epoch)
            if not self._target.observes and self._target.work is None:
                self.warn_once(f"its loader has no length: the work of {self._target} is known after the first pass")
            if self._rates is not None:
                self._rates.begin(self._schedules, self._batches)
                self._look_at = self._rates.look_at
            self.mailbox.hurry_and_ask()  # a target that cannot be met is reported at once

    def note_epoch(self, per_epoch: int) -> None:
        """Note how many batches an epoch has, in a loop that begins and ends its epochs by itself."""
        if per_epoch != self._per_epoch:
            self._alone(lambda: self._begin_epoch(per_epoch), None)

    def begin_epoch(self, per_epoch: int | None) -> None:
        """Note that an epoch begins.

        Args:
            per_epoch: Batches that it has; None if they are not known.
        """
        self._new_epoch = True
        if self.epochs and self.mailbox is not None:
            self._complain(self._alone(self._losses.complaint, None))
        self._alone(lambda: self._begin_epoch(per_epoch), None)
        self.hangs.begin(Phase.FIRST_BATCH)

    def _begin_epoch(self, per_epoch: int | None) -> None:
        self._epoch_began = self._batches
        self._per_epoch = self._counted or per_epoch or self._per_epoch
        if self.mailbox is not None:
            self._describe_epoch(self.mailbox)

    @override
    def _describe_epoch(self, mailbox: Mailbox) -> None:
        self._resolve_target(self._per_epoch, mailbox)
        horizon = self._horizon()
        mailbox.outbox.horizon = horizon if self._stops else horizon._replace(at_least=MAX_COUNT)

    def _horizon(self) -> Horizon:
        """Return where the loop ends by itself, as far as it has said so."""
        found: list[tuple[int, str]] = []
        if self._end.batches is not None and self._batches <= self._end.batches:
            found.append((self._end.batches, self._end.limit))
        if self._end.epochs is not None and self._per_epoch is not None and self.epochs <= self._end.epochs:
            left = self._epoch_began + (self._end.epochs - self.epochs) * self._per_epoch
            found.append((max(left, self._batches), f"max_epochs={self._end.epochs}"))
        return Horizon(*min(found, default=(None, "")))

    @override
    def _look(self) -> None:
        if self._rates is not None:
            self._rates.look(self._schedules, self._batches)
            self._look_at = self._rates.look_at

    def _schedules(self) -> Schedules:
        """Return the learning-rate scheduler of the loop, and where the loop is."""
        from lightning_core.agent.reporting.lr_watch import Layout, PlainConfig, Schedules

        said, length, done = self._said, self._per_epoch or math.inf, self._batches - self._epoch_began
        layout = Layout(length, 1, self.epochs + 1, 0) if done >= length else Layout(length, 1, self.epochs, done)
        return Schedules([said.scheduler.optimizer], [PlainConfig(said.scheduler, said.interval)], layout)

    def _ended_by(self) -> str:
        """Return by which limit of its own the loop has ended; empty if by none."""
        if self._batches == self._end.batches:
            return f"at {self._end.limit}"
        if self.epochs == self._end.epochs:
            return f"at max_epochs={self._end.epochs}"
        return ""

    @never_fails
    def end_epoch(self) -> None:
        """Note that an epoch has ended, and that what comes now may take any time."""
        self.hangs.in_loader = False
        self.hangs.excuse()
        self.read_kept()
        self.epochs += 1
        self._counted = self._batches - self._epoch_began  # it may have been left early, as the next ones may be
        self._per_epoch = self._counted or self._per_epoch
        self._alone(self._read_epoch, None)

    def _read_epoch(self) -> None:
        self.report_busy()
        if self.mailbox is None:
            return
        self._resolve_target(self._per_epoch, self.mailbox)
        if self._batches == self._last_batch and not self.steering.wants_stop:
            self._end_work(self.mailbox)

    @override
    def survive(self, error: Exception) -> None:
        """Log what a hook raises; leave the process if the scheduler has ended the job of a launched script."""
        if isinstance(error, JobEnded):
            raise ScriptEnded(int(isinstance(error, JobFenced))) from None
        super().survive(error)

    # ---------------------------------------------------------------------------------------------------- each batch

    def begin_batch(self, phase: Phase) -> None:
        """Wait until this process may do a batch of training or validation."""
        try:
            self.steering.enter()
            self.hangs.turn(phase)
        except Exception as error:
            self.survive(error)

    def keep_batch(self, outputs: dict[str, Any]) -> bool:
        """Count a batch and keep its loss, if that is all that is to be done; return whether it was.

        All that depends on a batch, such as the end of a loss cell, is done after the same batch as without it.

        Args:
            outputs: What the batch has given.
        """
        at = self._batches + 1
        if at >= self._full_at or time.perf_counter() >= self._keeps_until or len(outputs) != 1:
            return False
        mailbox, loss = self.mailbox, outputs.get("loss")
        if mailbox is None or mailbox.inbox.directive is not self._known:
            return False
        version = 0
        if type(loss) is not float:
            # One that is trained on is read later: what is asked of torch here takes ten times as long as in a loop.
            # Any other may be a buffer that is written again.
            tensor: Any = loss
            if type(tensor) is not getattr(modules.get("torch"), "Tensor", None):
                return False
            if not (tensor.requires_grad and tensor.is_cpu and self._trusts):
                return False
            version = tensor._version
        self._batches = at
        self._kept.append((loss, version))
        self.hangs.moves += 1
        return True

    def read_kept(self) -> None:
        """Read the losses of the batches that were only counted."""
        kept = self._kept
        if not kept:
            return
        self._kept = []
        first = self._batches - len(kept) + 1
        for at, (loss, version) in enumerate(kept, start=first):
            if type(loss) is not float and loss._version != version:
                self._trusts = False  # it was changed in place: from now on each is read at once
                continue
            self._complain(self._alone(partial(self._losses.read_batch, {"loss": loss}, 1, at), None))

    def _keep_from_now(self) -> None:
        """Let batches be only counted for a while, until the next one that something depends on."""
        if not self._may_keep or self.mailbox is None:
            return
        target, cell = self._target, self._losses.next_cell
        if cell is None and (target.observed == STEP_LOSS or target.observed in self._values.newest):
            self._full_at = 0  # the number that the target is about has yet to be seen, or is new with each batch
            return
        last = self._last_batch if self._last_batch > 0 else MAX_COUNT
        self._full_at = min(MAX_COUNT if cell is None else cell, last, self._look_at)
        self._known = self.mailbox.inbox.directive
        self._keeps_until = time.perf_counter() + (KEPT_IN_TURNS if self.steering.takes_turns else KEPT_FOR)

    def end_batch(self, outputs: Any, batches: int = 1, accumulated: int = 1) -> None:
        """Report batches of training, and obey the newest directive.

        Args:
            outputs: A mapping with the loss, if there is one.
            batches: Batches that were done since the last call.
            accumulated: Factor by which the loss has been divided.
        """
        try:
            if self._kept:
                self.read_kept()
            self._batches += batches
            side_actions = NOTHING
            try:
                side_actions = self._note_batch(outputs, accumulated)
            except self.meant:
                raise
            except Exception as error:
                self.note_defect(error)
            if self.steering.after_batch(side_actions, self._batches):
                self._do_after_batch()
            self._keep_from_now()
            self.hangs.turn(_NEXT_BATCH)
        except Exception as error:
            self.survive(error)

    def _do_after_batch(self) -> None:
        """Do what the scheduler, or all ranks together, want after a batch."""
        if self.steering.leaving or self.steering.saving:
            self.steering.saving = False
            if self.saves_by_itself:
                self.wants_save = True
            else:
                self._save()
                self._leave_if_told()
        if self.steering.holding:
            self.hangs.done()
            self.steering.between_batches()

    @override
    def _save_due(self) -> bool:
        can = self.save is not None or self.saves_by_itself
        return can and self._script is not None and self._script.due() and not self.losses_are_bad

    def _save(self) -> None:
        """Save a launched training, if it can be and the disk permits."""
        if self.save is None or self._script is None or not self._script.may_save():
            return
        self.hangs.excuse(saves=True)
        with self._script.saving(self._batches) as path:
            self.save(path)
        self._report_checkpoint()

    def note_saved(self, path: Path) -> None:
        """Take what a launched training has saved by itself, and leave if it is to.

        Raises:
            ScriptReleased: If it leaves.
        """
        if self._script is not None:
            self.hangs.excuse(saves=True)
            self.wants_save = False
            self._script.saved(path, self._batches)
            self._report_checkpoint()
            self._leave_if_told()

    def _report_checkpoint(self) -> None:
        if self._script is not None and self.mailbox is not None and self._script.last_checkpoint is not None:
            self.mailbox.report_checkpoint(self._script.last_checkpoint)

    def _leave_if_told(self) -> None:
        """Leave a device that is to be left, unless what was trained could not be saved.

        Raises:
            ScriptReleased: If it leaves.
        """
        if self.steering.leaving and self._script is not None and not self._script.fails:
            self._script.note_release()
            raise ScriptReleased(RELEASED_CODE)

    @override
    def close(self, error: BaseException | None = None) -> None:
        """Say what the target has missed if nothing has ended the loop early, and leave the pool."""
        self._alone(self.read_kept, None)
        if error is None and not self.is_over and self._batches and self.mailbox is not None:
            self._complain(self._alone(self._losses.complaint, None))
        super().close(error)

    def warn_once(self, what: str) -> None:
        """Log a warning, the first time."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s: %s", self.name, what)

    def end_micro_batch(self) -> None:
        """Note that gradients were accumulated; the batch continues with the next one."""
        self.hangs.turn(_NEXT_BATCH)

    def end_validation_batch(self) -> None:
        """Report a batch of validation."""
        self._alone(self.report_busy, None)
        self.hangs.done()
        self.hangs.begin(Phase.VALIDATION_BATCH)

    @never_fails
    def evaluate(self) -> None:
        """Read the target's number after an evaluation; only the first after each batch counts."""
        self._alone(lambda: self._read_evaluation("validation"), None)

    @override
    def _show(self, forecasts: Sequence[JobForecast]) -> None:
        for forecast in forecasts:
            self._metric_log.log(forecast)

    @property
    def losses_are_bad(self) -> bool:
        """Whether the losses are NaN or infinite now: then the last checkpoint is to be kept."""
        bad = None if self.mailbox is None else self.mailbox.outbox.bad_losses
        return bad is not None and not bad.over


def place_here(device: str | TrainingDevice | None = None) -> Place:
    """Return where this process runs, by torch and its process group where they are imported.

    Args:
        device: Device on which it trains, such as ``"cuda:1"``; None for torch's current GPU if there is one.

    Raises:
        ValueError: If a GPU is named and torch is not imported, or there are to be several processes without a group.
    """
    torch = torch_here()
    distributed: Any = None if torch is None else torch.distributed
    has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    expected = os.environ.get("WORLD_SIZE", "")
    if expected.isdigit() and int(expected) > 1 and not has_group:
        raise ValueError(
            f"there must be a process group before the first batch, because WORLD_SIZE={expected}: "
            "call torch.distributed.init_process_group()"
        )
    if torch is None:
        if device not in (None, "cpu", HOST):
            raise ValueError(f"device must be 'cpu' where torch is not imported, got {str(device)!r}")
        return Place(HOST)
    if device is None:
        found = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    else:
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device must name a device of torch, such as 'cuda:0', got {device!r}: {error}") from None
    return Place(found, distributed.get_rank(), distributed.get_world_size()) if has_group else Place(found)


def place_of_fabric(fabric: Any) -> Place:
    """Return where this process of a Fabric trains."""
    return Place(fabric.device, fabric.global_rank, fabric.world_size, lambda: fabric.loggers)


def _connection_of(options: Options, place: Place, said: ModelSaid, host: Callable[[], str]) -> Connect:
    if options.client is not None:
        given = SchedulerConnection(options.client, options.incarnation)
        return lambda: given
    can = {Capability.HOLD} if place.ranks > 1 else {Capability.HOLD, Capability.TIME_SLICE}
    job = replace(
        options.job, can=frozenset(can), min_devices=place.ranks, max_devices=place.ranks, model=said.model,
        batch_size=said.batch_size,
    )  # fmt: skip
    return Join(job, options.pool, device_name(place.device), options.on_refused, options.history, host)


def _offload_of(options: Options, device: TrainingDevice, said: ModelSaid) -> Offload | None:
    if options.job.on_hold is OnHold.KEEP or device.type != "cuda":
        return None
    from lightning_core.agent.steering import offload  # it imports torch

    known: Any = device
    return offload.Offload(options.job.name, lambda: said.state, known)
