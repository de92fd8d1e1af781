"""One training of a job in one process, whatever its loop: what it reports, when it may train, and when it stops.

An adapter derives from :class:`Participant` and calls it where its loop permits; ``lightning_core.callbacks`` has that
for Lightning. Rules

1. What this process does alone may fail: it costs that piece, is logged once, and the training goes on.
2. What all ranks do together, they do where all of them come in the same order, whatever became of rule 1 on one of
   them: :class:`~lightning_core.agent.steering.ranks.Ranks` after a batch.
3. A training that has met its target stops in the hook that saw it, by the rule of the scheduler
   (:class:`~lightning_core.core.targets.TargetJudge`), not when the scheduler says so.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from lightning_core.agent.job_record import JobRecord
from lightning_core.agent.options import Options
from lightning_core.agent.outcome import summary_line
from lightning_core.agent.reporting.hang_watch import HangWatch
from lightning_core.agent.reporting.joining import Connect
from lightning_core.agent.reporting.losses import Losses
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.reporting.memory_meter import memory_meter
from lightning_core.agent.reporting.rank_memory import RankMemory
from lightning_core.agent.reporting.rank_watch import RankWatch, store_of_group
from lightning_core.agent.reporting.target_reader import LoggedMetrics, Stage
from lightning_core.agent.reporting.use_meter import use_meter
from lightning_core.agent.slurm import SlurmEnd
from lightning_core.agent.steering.busy_timer import BusyTimer, GpuTimer, HostTimer
from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.steering.ranks import NOTHING, Ranks, SideAction
from lightning_core.agent.steering.steering import Steering
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.agent.user_code.torch_here import TrainingDevice, gpu_of, torch_here
from lightning_core.core.answers import Grant, JobForecast
from lightning_core.core.events import Cell, ExitCause, WorkerExited
from lightning_core.core.jobs import OnHold
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.reported import HyperParameters
from lightning_core.core.targets import Target, TargetJudge
from lightning_core.node.processes import is_ancestor
from lightning_core.node.suspender_client import suspender_of
from lightning_core.scheduler.settings import Settings
from lightning_core.view.console_lines import logger, print_line

if TYPE_CHECKING:
    from lightning_core.agent.steering.offload import Offload
    from lightning_core.agent.steering.suspension import Mover

log = logger(__name__)

# Seconds that a script waits for its scheduler at the end. While it is held, calls are shorter than that, so that none
# is in progress for longer when the script is interrupted.
CLOSE_TIMEOUT = 3.0
# Last batch of a target that does not say how many there are: at 0 a training with accumulation begins.
UNKNOWN = -1
# Variable by which processes that a training starts know of it.
WITHIN = "LIGHTNING_CORE_WITHIN"

S = TypeVar("S", bound="Participant")
P = ParamSpec("P")
T = TypeVar("T")


def never_fails(hook: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Make a hook log what it raises, unless that is meant, or there are ranks, which have to part together."""

    @functools.wraps(hook)
    def survives(participant: S, /, *args: P.args, **options: P.kwargs) -> None:
        try:
            hook(participant, *args, **options)
        except Exception as error:
            participant.survive(error)

    return survives


class KeepsBest(Protocol):
    """Keeps the best model of a training, as far as what is reported has to do with it."""

    wanted: Any
    """What is to be saved; None if nothing is."""

    def see(self, value: float, *, evaluated: bool) -> None:
        """Take the value of a cell."""

    def aim(self, target: Target) -> None:
        """Judge by another target."""

    def note_batches(self, batches: int) -> None:
        """Note that a target that counts batches is met."""


class Loop(NamedTuple):
    """What a participant must know of the loop that trains.

    Attributes:
        device: Device on which this process trains.
        rank: Rank of this process.
        ranks: Number of processes of the training.
        connection: Returns what connects to the scheduler, from a function that returns the job within whose grant this
            one trains, or an empty text.
        metrics: Metrics that the training logs.
        shows_forecasts: Whether forecasts are shown where the training logs.
        offload: Returns what moves its state off its device; None where that cannot be done.
        is_interrupted: Returns whether a signal has told the process to leave, so that it must not hold.
        exit_of: Returns how the training has ended, from the exception that ended it; None if there was none.
        copies_losses: Whether the loss of each batch is a tensor of its own that only a user's hook can change: a copy
            that the loop has made, outside of any CUDA graph.
    """

    device: TrainingDevice
    rank: int
    ranks: int
    connection: Callable[[Callable[[], str]], Connect]
    metrics: LoggedMetrics
    shows_forecasts: bool
    offload: Callable[[], Offload | None]
    is_interrupted: Callable[[], bool]
    exit_of: Callable[[BaseException | None], WorkerExited]
    copies_losses: bool = False


class Participant:
    """One training in one process.

    Args:
        options: Options of the job.
        record: Record of the job, which is updated.
        loop: Its loop.
    """

    def __init__(self, options: Options, record: JobRecord, loop: Loop) -> None:
        self.name = options.job.name
        """Name of the job, as its user wants it."""
        self.has_ranks = loop.ranks > 1
        """Whether the training has several processes."""
        self._launched = launched = options.launched
        self._every = options.every
        self._guarded = Guarded(self.name)
        self._defects: set[str] = set()
        self._record = record
        self._exit_of = loop.exit_of
        self._stops = options.launched or options.stop_when_met
        self._batches = 0
        self._new_epoch = True
        self._look_at = math.inf  # batches after which `_look` is called
        self._best: KeepsBest | None = None
        self.hangs = HangWatch(options.hang)
        """Watch of this thread."""
        self.give_way: Callable[[], None] | None = None
        """Ends this training if its loop was left, as another of its process begins; None if its loop says when it
        ends."""
        for other in list(_trainings_here()):
            if other.give_way is not None:
                self._alone(other.give_way, None)
        offload = self._alone(lambda: self._mover(options, loop), None)
        self._rank_memory: RankMemory | None = None
        meter = memory_meter(loop.device, lambda: () if self._rank_memory is None else self._rank_memory.other_ranks)
        meter.frees = None if offload is None else offload.frees
        watch = None
        if self.has_ranks:
            watch = RankWatch(self.name, loop.rank, loop.ranks, self.hangs, store_of_group)
            self._rank_memory = RankMemory(loop.rank, meter, beside=watch.look)
        self._ranks = Ranks(loop.rank, loop.device, self._rank_memory) if self.has_ranks else None
        self._target = target = options.job.target
        self._last_batch = target.work or UNKNOWN
        self.host: Participant | None = None
        """Another training of this process, within whose grant this one trains; None if there is none."""
        host = _first_of_this_process(self)
        self.host = None if launched else host
        if self.host is None:
            for records in _collections:
                records.append(record)

        def make_mailbox() -> Mailbox:
            return Mailbox(
                loop.connection(self._host_name), self.name,
                hold_timeout=10.0 if launched else CLOSE_TIMEOUT / 2,
                asks_forecast=not launched or loop.shows_forecasts, listens=launched, hangs=self.hangs,
                give_up=options.give_up, memory=self._rank_memory or meter, ranks=watch,
                use=None if self.has_ranks else use_meter(loop.device, lambda: self.steering.cores_of_device()),
            )  # fmt: skip

        self.mailbox: Mailbox | None = self._alone(make_mailbox, None) if loop.rank == 0 else None
        """Mailbox of the job; None on all ranks but the first."""
        self._losses = Losses(
            target, self._deliver, options.every, loop.metrics, record.evaluated_in, private=loop.copies_losses
        )
        self._judge = TargetJudge(target, Settings().window)
        if self._ranks is not None:
            self._ranks.stops_at = self._stops_at
        # The end of an allocation after which the script is requeued is not that of the training.
        ends = self.mailbox is not None and not options.launched and not options.requeue
        self._slurm_end = SlurmEnd() if ends else None
        self._timer: BusyTimer = GpuTimer(loop.device) if loop.device.type == "cuda" else HostTimer()
        self.steering = Steering(
            self.name, self.mailbox, self.hangs, self._timer, self._ranks, options.device_lock, options.launched,
            options.devices, self._stops, loop.is_interrupted,
            options.cores, offload, None if self.host is None else self._steering_of_host,
            self._aim,
        )  # fmt: skip
        _tell_processes_to_come(self)

    # ------------------------------------------------------------------------------- what an adapter may add

    @property
    def meant(self) -> tuple[type[BaseException], ...]:
        """What is raised on purpose: it leaves; and what no one can go on after."""
        torch = torch_here()
        return (JobEnded, JobReleased, *(() if torch is None else (torch.OutOfMemoryError,)))

    def _describe_epoch(self, mailbox: Mailbox) -> None:
        """Report what is known of an epoch once its first batch is done."""

    def _look(self) -> None:
        """Look at what the training does once it has done ``_look_at`` batches."""

    def _show(self, forecasts: Sequence[JobForecast]) -> None:
        """Show new forecasts where the training logs."""

    def _save_due(self) -> bool:
        """Return whether a launched job is due to be saved."""
        return False

    # ------------------------------------------------------------------------------------------------ reports

    def _begin_reports(self, hyper_parameters: HyperParameters | None) -> None:
        """Begin to report, with what the training is trained with."""
        self._resume_curve()
        if self.mailbox is not None:
            self.mailbox.outbox.hyper_parameters = hyper_parameters
            self.mailbox.begin(self._batches)

    def _note_batch(self, outputs: Any, accumulated: int) -> SideAction:
        """Report a batch; return what is to be done after it.

        Args:
            outputs: What the training step has returned, or the loss itself.
            accumulated: Batches by whose number that loss was divided.
        """
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
                self._describe_epoch(mailbox)
            if batches >= self._look_at:
                self._look()
            if batches == self._last_batch:
                self._end_work(mailbox)
            if self._slurm_end is not None and self._slurm_end.at is not None:
                outbox.ends_by = min(outbox.ends_by, time.monotonic() + self._slurm_end.at - time.time())
            if mailbox.forecasts.unread:
                self._show(mailbox.forecasts.read())
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
        self._losses.aim(target)
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
            if evaluated and cell.number == 1 and not self._record.resumed:
                log.warning("%s: its target %s was met by the first value, %s: is the direction what you want?",
                            self.name, self._target, self._target.show(cell.value))  # fmt: skip
        mailbox.add(cell)
        if is_met:
            mailbox.outbox.met = self._judge.met
            mailbox.hurry()

    def _resume_curve(self) -> None:
        """Deliver the points before the checkpoint again, so that any scheduler knows the whole curve."""
        points = [point for point in self._record.curve.points if point.batches <= self._batches]
        self._record.curve.points = points
        self._losses.start_at(self._batches, len(points))
        if self.mailbox is not None:
            self.mailbox.outbox.evaluated = self._losses.evaluated
            for number, point in enumerate(points, start=1):
                self._add(Cell(number, *point), self.mailbox, evaluated=self._losses.evaluated)

    def close(self, error: BaseException | None = None) -> None:
        """Release the device and leave the pool after the training, or after the exception that ended it.

        Nothing here waits for another rank: that one may be gone.
        """
        _end_in_this_process(self)
        self.hangs.excuse()
        if self._rank_memory is not None:
            self._rank_memory.close()
        mailbox = self.mailbox
        busy = self._alone(self.steering.close, None)
        if mailbox is not None:
            if busy is not None:
                mailbox.outbox.progress = (self._batches, busy, self._losses.rejected)
            self._alone(self._losses.flush, None)
            self._alone(lambda: self._leave_pool(mailbox, error), None)

    def _leave_pool(self, mailbox: Mailbox, error: BaseException | None) -> None:
        if self._launched:
            mailbox.close()
        else:
            mailbox.close(self._exit_of(error), CLOSE_TIMEOUT)
            print_line(summary_line(mailbox.job, mailbox.final_forecast, mailbox.refused))
        self._record.job_forecast = mailbox.final_forecast or mailbox.job_forecast or self._record.job_forecast

    def _mover(self, options: Options, loop: Loop) -> Mover | None:
        """Return what moves the state off the device while the job is held; None if it stays there."""
        offload = loop.offload()
        if offload is None or options.job.on_hold is not OnHold.SUSPEND:
            return offload
        from lightning_core.agent.steering.suspension import Suspension

        lose = options.give_up or self._end_process
        where = lambda: options.suspender or self._suspender_of_script()  # noqa: E731
        return Suspension(self.name, offload, gpu_of(loop.device), where, self.hangs, lose)

    def _suspender_of_script(self) -> Path | None:
        """Return the socket of the suspender of this script's device; None until the pool has said which that is."""
        mailbox = self.mailbox
        directive = None if mailbox is None else mailbox.inbox.directive
        if mailbox is None or not isinstance(directive, Grant) or not directive.devices:
            return None
        path = mailbox.arbiters[directive.devices[0]] if directive.devices[0] < len(mailbox.arbiters) else ""
        return suspender_of(Path(path)) if path else None

    def _end_process(self, story: str, cause: ExitCause) -> None:
        """End the process of a script whose CUDA calls block for ever: it could not even be interrupted."""
        log.error("%s: %s. This process ends here; start it again from a checkpoint of its own", self.name, story)
        if self.mailbox is not None:
            self.mailbox.close(WorkerExited(self.name, 1, cause, story), CLOSE_TIMEOUT)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _open_host(self) -> Participant | None:
        """Return the training within whose grant this one trains; None once that has ended."""
        if self.host is not None and not _is_training_here(self.host):
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
        except self.meant:
            raise
        except Exception as error:
            self.note_defect(error)
            return otherwise

    def survive(self, error: Exception) -> None:
        """Log what a hook raises, while it is handled; raise it again if that is meant, or ranks have to part."""
        if self.has_ranks or isinstance(error, self.meant):
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


# Trainings that are under way in this process, in the order in which they began, each with the id of the process: a
# fork has a copy of the list. Without a lock, which a fork might find taken for ever.
_under_way: list[tuple[int, weakref.ref[Participant]]] = []


# Lists of the records of trainings that begin in this process and are no part of another one.
_collections: list[list[JobRecord]] = []


@contextmanager
def collected_records() -> Iterator[list[JobRecord]]:
    """Collect the records of trainings that begin meanwhile in this process and are no part of another one."""
    records: list[JobRecord] = []
    _collections.append(records)
    try:
        yield records
    finally:
        _collections[:] = [kept for kept in _collections if kept is not records]


def _trainings_here() -> Iterator[Participant]:
    for pid, reference in list(_under_way):
        if pid == os.getpid() and (participant := reference()) is not None:
            yield participant


def _first_of_this_process(participant: Participant) -> Participant | None:
    """Note that a training begins; return the one that others of this process train within, None if it is this one."""
    _under_way.append((os.getpid(), weakref.ref(participant)))
    first = _host()
    return None if first is participant else first


def _tell_processes_to_come(participant: Participant) -> None:
    """Tell processes that this one starts that they train within this training, if it is the first of its process."""
    if _host() is participant and participant.mailbox is not None:
        os.environ[WITHIN] = f"{os.getpid()}:{participant.name}"


def _end_in_this_process(participant: Participant) -> None:
    """Note that a participant has ended."""
    for entry in list(_under_way):
        if entry[1]() in (participant, None):
            with suppress(ValueError):
                _under_way.remove(entry)  # one by one: others may begin meanwhile
    if _host() is None:
        os.environ.pop(WITHIN, None)


def _is_training_here(participant: Participant) -> bool:
    """Return whether a participant is under way in this process."""
    return any(one is participant for one in _trainings_here())


def _host() -> Participant | None:
    """Return the participant of this process that others train within; None if none is under way."""
    return next((participant for participant in _trainings_here() if participant.host is None), None)


def job_of_parent() -> str:
    """Return the job of a training that has started this process, and is under way; empty if there is none."""
    pid, _, job = os.environ.get(WITHIN, "").partition(":")
    return job if pid.isdigit() and int(pid) != os.getpid() and is_ancestor(int(pid)) else ""
