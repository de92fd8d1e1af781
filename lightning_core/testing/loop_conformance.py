"""Conformance suite for the adapters of training loops.

Run each of :data:`LOOP_CHECKS` on a loop of your own, but for those that it says it cannot pass::

    for name, check in LOOP_CHECKS.items():
        if name not in loop.cannot:
            check(loop)

The loop trains for real, with the losses that it is told. Its scheduler is scripted; the device arbiter is a real one.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from lightning_core.agent import participant
from lightning_core.agent.reporting.joining import Join
from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.core.answers import Directive, Grant, JobForecast, JoinReply
from lightning_core.core.events import Cell, ExitCause, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import TargetJudge, parse_target
from lightning_core.node.arbiter_client import ArbiterClient
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.checks import require
from lightning_core.variables import PREFIX

# Seconds within which what is waited for must happen, and for which nothing must.
PATIENCE, QUIET_SECONDS = 60.0, 0.3
NAME = "exercise"
# Batches of an epoch, and of an exercise.
PER_EPOCH, BATCHES = 10, 60


def falling(batches: int = BATCHES) -> list[float]:
    """Return losses that fall, each of which a float of 32 bits holds exactly."""
    return [2.0 ** -(batch // 8) + batch % 3 / 1024 for batch in range(batches)]


@dataclass(frozen=True)
class Exercise:
    """What a loop is to train.

    Attributes:
        losses: Loss of each batch. The loop must train on these numbers, whatever its model.
        per_epoch: Batches of an epoch.
        evaluations: Value of the metric after each epoch, if the loop is to evaluate; one for each epoch.
        in_batch: Called within each batch with its number, from 1; what it raises must leave the loop.
    """

    losses: Sequence[float] = field(default_factory=falling)
    per_epoch: int = PER_EPOCH
    evaluations: Sequence[float] = ()
    in_batch: Callable[[int], None] = lambda number: None


class LoopUnderTest(Protocol):
    """A kind of loop, with its adapter."""

    cannot: Mapping[str, str]
    """Checks of :data:`LOOP_CHECKS` that the loop cannot pass, each with the reason."""
    metric: str
    """Name of the metric of its evaluations."""

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        """Train an exercise to its end, or until the adapter ends it.

        Args:
            exercise: What to train. A resumed training does the batches that are left of it.
            target: Target of the job, whose name is ``exercise`` and whose deadline is an hour.
            state: What an earlier call has returned, to go on from there.
            terms: Other arguments of the adapter.

        Returns:
            The state that a checkpoint at its end holds of the job; None if the loop has no checkpoints.
        """


class ScriptedScheduler:
    """A client whose directives the check says, and which records what it is told.

    Args:
        share: Share of its first grant.
        arbiter: Path of the socket of the device's arbiter; empty for none.

    Attributes:
        patience: Seconds that a training may wait at its end until its last report has arrived.
    """

    report_period = 0.0

    def __init__(self, share: float = 1.0, arbiter: str = "") -> None:
        self.reports: list[Report] = []
        self.jobs: list[Job] = []
        self.exits: list[WorkerExited] = []
        self.fails: Exception | None = None
        self.delivered = 0
        self.patience = PATIENCE
        self._arbiter = arbiter
        self._news = threading.Condition()
        self._directive: Directive = grant(1, share)

    def say(self, directive: Directive) -> None:
        """Give another directive."""
        with self._news:
            self._directive = directive
            self._news.notify_all()

    def cells(self) -> list[Cell]:
        """Return the cells of all reports, each once."""
        found = {cell.number: cell for report in self.reports for cell in report.cells}
        return [found[number] for number in sorted(found)]

    def join(self, job: Job, device: str) -> JoinReply:
        """Add the job."""
        if self.fails is not None:
            raise self.fails
        self.jobs.append(job)
        return JoinReply(1, (self._arbiter,) if self._arbiter else ())

    def report(self, report: Report) -> Directive | None:
        """Record a report, and return what is newer than the worker's directive."""
        if self.fails is not None:
            raise self.fails
        self.reports.append(report)
        return self._newer(report.version)

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Wait for a newer directive."""
        with self._news:
            if self._newer(version) is None:
                self._news.wait(min(timeout, 1.0))
        return self._newer(version)

    def job_forecast(self, job: str) -> JobForecast | None:
        """Return none."""

    def left(self, event: WorkerExited) -> None:
        """Record an exit."""
        self.exits.append(event)

    def close(self) -> None:
        """Nothing to put away."""

    def _newer(self, version: int) -> Directive | None:
        if self._directive.version <= version:
            return None
        self.delivered = self._directive.version
        return self._directive


def grant(version: int, share: float) -> Grant:
    """Return a grant of a share of the only device."""
    return Grant(NAME, version, share, (0,), Reason("fixed_share"))


@contextmanager
def scheduled(client: ScriptedScheduler) -> Iterator[ScriptedScheduler]:
    """Let the trainings that begin meanwhile in this process join a scripted scheduler."""
    made: weakref.WeakSet[Join] = weakref.WeakSet()
    begin = Join.__init__

    def note(join: Join, *args: Any, **options: Any) -> None:
        made.add(join)
        begin(join, *args, **options)

    def connect(join: Join) -> ScriptedScheduler:
        if join not in made:  # of a training before
            raise ConnectionError("no server")
        return client

    with (
        mock.patch.object(Join, "__init__", note),
        mock.patch.object(Join, "_connect", connect),
        mock.patch.object(participant, "CLOSE_TIMEOUT", client.patience),
    ):
        yield client


def cells_of(losses: Sequence[float], every: int = 10) -> list[Cell]:
    """Return the cells of losses, to the bit."""
    cells: list[Cell] = []
    meter = LossMeter(cells.append, every)
    for number, loss in enumerate(losses, start=1):
        meter.add(loss, number)
    return cells


def stop_of(losses: Sequence[float], target: str) -> int:
    """Return the batches after which losses meet a target."""
    judge = TargetJudge(parse_target(target), Settings().window)
    return next(cell.batches for cell in cells_of(losses) if judge.see(cell.batches, cell.value, evaluated=False))


def _train(
    loop: LoopUnderTest, target: str, client: ScriptedScheduler, exercise: Exercise | None = None, **terms: Any
) -> int:
    """Train; return the batches that were trained."""
    given, done = exercise or Exercise(), [0]

    def in_batch(number: int) -> None:
        done[0] = number
        given.in_batch(number)

    with scheduled(client):
        loop.train(Exercise(given.losses, given.per_epoch, given.evaluations, in_batch), target, **terms)
    return done[0]


def _until(holds: Callable[[], object], rule: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        require(time.monotonic() < end, rule)
        time.sleep(0.005)


# ------------------------------------------------------------------------------------------------------ the checks


def check_losses(loop: LoopUnderTest) -> None:
    """Check that progress and losses arrive whole: the cells are those of the losses, to the bit."""
    client, exercise = ScriptedScheduler(), Exercise()
    trained = _train(loop, "loss<=0", client, exercise)
    require(trained == BATCHES, f"all {BATCHES} batches must be trained, got {trained}")
    last = max(report.batches for report in client.reports)
    require(last == BATCHES, f"the last report must have {BATCHES} batches, got {last}")
    require(client.cells() == cells_of(exercise.losses), f"the cells must be those of the losses, got {client.cells()}")
    busy = [report.busy for report in client.reports]
    require(busy == sorted(busy) and busy[-1] > 0, f"busy seconds must grow, got {busy}")


def check_stop_by_loss(loop: LoopUnderTest) -> None:
    """Check that the loop ends with the batch that met its target, by the rule of the scheduler."""
    client, exercise = ScriptedScheduler(), Exercise()
    expected, trained = stop_of(exercise.losses, "loss<=0.2"), _train(loop, "loss<=0.2", client, exercise)
    require(trained == expected, f"the loop must end after batch {expected}, got {trained}")
    require(client.reports[-1].met is not None, "the last report must say what met the target")


def check_stop_by_batches(loop: LoopUnderTest) -> None:
    """Check that a number of batches is met after as many."""
    trained = _train(loop, "7 batches", ScriptedScheduler())
    require(trained == 7, f"the loop must end after batch 7, got {trained}")


def check_stop_by_epochs(loop: LoopUnderTest) -> None:
    """Check that a number of epochs is met after as many."""
    trained = _train(loop, "2 epochs", ScriptedScheduler())
    require(trained == 2 * PER_EPOCH, f"the loop must end after batch {2 * PER_EPOCH}, got {trained}")


def check_evaluations(loop: LoopUnderTest) -> None:
    """Check that a value of an evaluation arrives once, and that the loop ends with the one that met its target."""
    client = ScriptedScheduler()
    exercise = Exercise(evaluations=[0.5, 0.625, 0.875, 0.9375, 1.0, 1.0])
    trained = _train(loop, f"{loop.metric}>=0.8", client, exercise)
    require(trained == 3 * PER_EPOCH, f"the loop must end after batch {3 * PER_EPOCH}, got {trained}")
    found = [(cell.batches, cell.value) for cell in client.cells()]
    rule = "each evaluation must be a cell of its own"
    expected = [(PER_EPOCH, 0.5), (2 * PER_EPOCH, 0.625), (3 * PER_EPOCH, 0.875)]
    require(found == expected, f"{rule}: expected {expected}, got {found}")


def check_end(loop: LoopUnderTest) -> None:
    """Check that the scheduler is told where the loop will end by itself, and by which limit it has."""
    client = ScriptedScheduler()
    _train(loop, "loss<=0", client)
    horizons = {report.horizon.batches for report in client.reports if report.horizon is not None}
    require(horizons <= {None, BATCHES} and BATCHES in horizons, f"a horizon must be {BATCHES} batches, got {horizons}")
    [left] = client.exits
    require(left.cause is ExitCause.DONE, f"a loop that ends by itself is done, got {left.cause}")
    require(
        left.detail.startswith("at "), f"its exit must name the limit, such as 'at max_epochs=6', got {left.detail!r}"
    )


def check_hold(loop: LoopUnderTest) -> None:
    """Check that a loop that is granted nothing stands still after a batch, and goes on when it is granted again."""
    client, last, still = ScriptedScheduler(), [0], [0]

    def in_batch(number: int) -> None:
        last[0] = number
        if number == 20:
            client.say(grant(2, 0.0))
            _until(lambda: client.delivered == 2, "a directive must arrive while the loop trains")
        if number >= 20:
            time.sleep(0.02)  # it may have to be passed on by another thread

    def go_on() -> None:
        _until(lambda: last[0] >= 20, "the loop must train")
        _until(lambda: client.delivered == 2, "a directive must arrive")
        time.sleep(QUIET_SECONDS)
        still.append(last[0])
        client.say(grant(3, 1.0))

    thread = threading.Thread(target=go_on)
    thread.start()
    trained = _train(loop, "loss<=0", client, Exercise(in_batch=in_batch))
    thread.join(PATIENCE)
    require(still[-1] <= 40, f"it must stand still soon after batch 20, got to batch {still[-1]}")
    require(trained == BATCHES, f"it must go on and do all {BATCHES} batches, got {trained}")


def check_start(loop: LoopUnderTest) -> None:
    """Check that a loop that is granted nothing trains nothing before it is."""
    client, last = ScriptedScheduler(share=0.0), [0]
    seen: list[int] = []

    def go_on() -> None:
        _until(lambda: client.jobs, "the loop must join")
        time.sleep(QUIET_SECONDS)
        seen.append(last[0])
        client.say(grant(2, 1.0))

    thread = threading.Thread(target=go_on)
    thread.start()
    trained = _train(loop, "loss<=0", client, Exercise(in_batch=lambda number: last.__setitem__(0, number)))
    thread.join(PATIENCE)
    require(seen == [0], f"it must train nothing before it is granted the device, got to batch {seen}")
    require(trained == BATCHES, f"it must do all {BATCHES} batches then, got {trained}")


def check_turns(loop: LoopUnderTest) -> None:
    """Check that a loop trains in turns with another process: not while that one holds the device."""
    with tempfile.TemporaryDirectory() as folder:
        arbiter = DeviceArbiter(Path(folder) / "arbiter")
        rival = ArbiterClient(arbiter.path)
        held, overlaps, turns = threading.Event(), list[int](), [0]
        over = threading.Event()

        def compete() -> None:
            while not over.is_set():
                if rival.acquire(1.0, 0.1):
                    held.set()
                    turns[0] += 1
                    time.sleep(0.01)
                    held.clear()
                    rival.release(again=True, share=1.0)

        def in_batch(number: int) -> None:
            if number == 1:
                thread.start()
            time.sleep(0.005)
            if number > 1 and held.is_set():
                overlaps.append(number)

        thread = threading.Thread(target=compete)
        try:
            client = ScriptedScheduler(share=0.5, arbiter=str(arbiter.path))
            trained = _train(loop, "loss<=0", client, Exercise(in_batch=in_batch))
        finally:
            over.set()
            thread.join(PATIENCE)
            rival.close()
            arbiter.close()
        require(trained == BATCHES, f"all {BATCHES} batches must be trained, got {trained}")
        require(not overlaps, f"no batch may be trained while another process holds the device, got {overlaps}")
        require(turns[0] >= 2, f"the other process must have its turns, got {turns[0]}")


def check_nan(loop: LoopUnderTest) -> None:
    """Check that losses that are NaN are reported, and spoil no cell."""
    losses = [loss if number < 40 else math.nan for number, loss in enumerate(falling())]
    client = ScriptedScheduler()
    _train(loop, "loss<=0", client, Exercise(losses))
    bad = client.reports[-1].bad_losses
    require(bad is not None and bad.since == 41, f"the losses are bad since batch 41, got {bad}")
    require(client.cells() == cells_of(losses), f"the cells must be those of the good losses, got {client.cells()}")


def check_exception(loop: LoopUnderTest) -> None:
    """Check that what the training raises leaves the loop, and is reported."""

    def fail(number: int) -> None:
        if number == 25:
            raise ValueError("this exercise fails")

    client = ScriptedScheduler()
    try:
        _train(loop, "loss<=0", client, Exercise(in_batch=fail))
    except ValueError as error:
        require(str(error) == "this exercise fails", f"the error must be that of the training, got {error}")
    else:
        raise AssertionError("an error of the training must leave the loop")
    [left] = client.exits
    require(left.cause is ExitCause.RAISED, f"its cause must be {ExitCause.RAISED}, got {left.cause}")
    require("this exercise fails" in left.detail, f"its exit must have the error, got {left.detail[-200:]!r}")


def check_interrupt(loop: LoopUnderTest) -> None:
    """Check that Ctrl-C ends the loop, and is reported as that."""

    def interrupt(number: int) -> None:
        if number == 25:
            raise KeyboardInterrupt

    client = ScriptedScheduler()
    with suppress(KeyboardInterrupt, SystemExit):
        _train(loop, "loss<=0", client, Exercise(in_batch=interrupt))
    [left] = client.exits
    require(left.cause is ExitCause.INTERRUPTED, f"its cause must be {ExitCause.INTERRUPTED}, got {left.cause}")


def check_lost_scheduler(loop: LoopUnderTest) -> None:
    """Check that the training goes on to its end while its scheduler fails, however it does."""
    for error in (ConnectionError("no server"), RuntimeError("a defect")):
        client = ScriptedScheduler()

        def lose(number: int, client: ScriptedScheduler = client, error: Exception = error) -> None:
            if number == 20:
                client.fails = error

        client.patience = QUIET_SECONDS
        trained = _train(loop, "loss<=0", client, Exercise(in_batch=lose))
        require(trained == BATCHES, f"all {BATCHES} batches must be trained after {error!r}, got {trained}")


def check_resume(loop: LoopUnderTest) -> None:
    """Check that a resumed training has the progress, the curve and the deadline of the one before."""
    losses = falling()
    half = BATCHES // 2
    first, second = ScriptedScheduler(), ScriptedScheduler()
    with scheduled(first):
        state = loop.train(Exercise(losses[:half]), "loss<=0")
    require(state is not None, "a loop with checkpoints must return what they hold of the job")
    with scheduled(second):
        loop.train(Exercise(losses), "loss<=0", state)
    before, after = first.cells(), second.cells()
    require(after[: len(before)] == before, f"the curve before must be reported again, got {after}, before {before}")
    require(after[-1].batches == BATCHES, f"progress must go on from batch {half}, got {after[-1].batches} at the end")
    [one], [other] = first.jobs, second.jobs
    require(other.deadline < one.deadline, "the deadline must count from when the job first began")


def check_switch(loop: LoopUnderTest) -> None:
    """Check that a loop that is switched off trains, and tells nothing."""
    client = ScriptedScheduler()
    with mock.patch.dict(os.environ, {f"{PREFIX}DISABLE": "1"}):
        trained = _train(loop, "loss<=0.2", client)
    require(trained == BATCHES, f"all {BATCHES} batches must be trained, got {trained}")
    require(not client.jobs and not client.reports, "nothing may be reported")


LOOP_CHECKS: dict[str, Callable[[LoopUnderTest], None]] = {
    "losses": check_losses,
    "stop_by_loss": check_stop_by_loss,
    "stop_by_batches": check_stop_by_batches,
    "stop_by_epochs": check_stop_by_epochs,
    "evaluations": check_evaluations,
    "end": check_end,
    "start": check_start,
    "hold": check_hold,
    "turns": check_turns,
    "nan": check_nan,
    "exception": check_exception,
    "interrupt": check_interrupt,
    "lost_scheduler": check_lost_scheduler,
    "resume": check_resume,
    "switch": check_switch,
}
"""Checks by their names. What each of them checks is the first line of its docstring."""
