"""A plain script joins a pool, loses it, finds it again, and leaves; the test plays the pool."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_core.agent.reporting import joining, mailbox
from lightning_core.agent.reporting.joining import SchedulerConnection
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.steering import steering
from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import Directive, End, Grant, JobForecast, JoinReply, Verdict
from lightning_core.core.events import Cell, ExitCause, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.protocols import DeviceNotSharedError, JoinRefusedError, NameTakenError
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.node.arbiter_client import ArbiterClient
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.server import discovery as connecting
from tests.callbacks.test_callback import Script, fit, grant
from tests.tiny import Line, Points, ValidatedPoints
from tests.waiting import join, until


class Pool(Script):
    """A pool with one device."""

    def __init__(self, directive: Directive | None = None, arbiters: tuple[str, ...] = ()) -> None:
        super().__init__(directive)
        self.arbiters = arbiters
        self.jobs: list[Job] = []
        self.devices: list[str] = []
        self.gone: list[WorkerExited] = []
        self.forecast: JobForecast | None = None
        self.asked: list[str] = []
        self.taken: set[str] = set()
        self.refusal: JoinRefusedError | None = None
        self.closed = 0
        self.remembers = False

    def join(self, job: Job, device: str) -> JoinReply:
        if self.away:
            raise ConnectionError("no server")
        self.asked.append(job.name)
        if job.name in self.taken:
            raise NameTakenError(f"the name {job.name!r} is taken")
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(job)
        self.devices.append(device)
        return JoinReply(1, self.arbiters, again=True) if self.remembers else JoinReply(len(self.jobs), self.arbiters)

    def job_forecast(self, job: str) -> JobForecast | None:
        if self.away:
            raise ConnectionError("no server")
        return self.forecast

    def left(self, event: WorkerExited) -> None:
        self.gone.append(event)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool(grant(1, 1.0))
    # A mailbox of the test before that still says farewell would join this one's pool.
    until(lambda: not any(thread.name.startswith("mailbox") for thread in threading.enumerate()))
    monkeypatch.setattr(connecting, "connect", lambda pool: made)
    return made


def script(**more: Any) -> CoreCallback:
    return CoreCallback("job", **{"deadline": "60s", "target": BatchTarget(10**9), **more})


def training(callback: CoreCallback, model: Line, **more: Any) -> threading.Thread:
    """Train in a thread, as a notebook may."""
    thread = threading.Thread(target=lambda: fit(callback, model, **more))
    thread.start()
    return thread


def test_a_script_joins_with_its_terms_and_capabilities_and_leaves(pool: Pool) -> None:
    fit(script(weight=2.0, on_miss="hold"), Line(pause=0.002), max_epochs=2)
    [job] = pool.jobs
    assert job == Job(
        "job",
        60.0,
        BatchTarget(10**9),
        weight=2.0,
        on_miss=OnMiss.HOLD,
        can=frozenset({Capability.TIME_SLICE, Capability.HOLD}),
        model="tests.tiny.Line",
        batch_size=8,
    )
    assert pool.devices == ["cpu"]
    assert pool.reports[-1].batches == 32
    assert pool.gone == [WorkerExited("job", 1, detail="at max_epochs=2")]
    assert pool.closed == 1


def test_an_error_is_reported_with_its_traceback(pool: Pool) -> None:
    with pytest.raises(ValueError, match="made to fail"):
        fit(script(), Line(pause=0.01, raise_at=30))
    [left] = pool.gone
    assert left.cause is ExitCause.RAISED
    assert left.detail.splitlines()[-1] == "ValueError: this job was made to fail"
    assert pool.reports[-1].batches == 29


def test_a_held_script_ends_when_told_to(pool: Pool) -> None:
    pool.say(grant(1, 0.0))

    def terminate() -> None:
        until(lambda: pool.waits)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a script: Ray, if it is up, has one of its own
    try:
        with pytest.raises(SIGTERMException):
            fit(script(), Line(pause=0.01), max_epochs=-1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [left.cause for left in pool.gone] == [ExitCause.INTERRUPTED]


class Interrupting(pl.Callback):
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == 30:
            raise KeyboardInterrupt


def test_ctrl_c_is_not_reported_as_a_crash(pool: Pool) -> None:
    with pytest.raises(SystemExit):
        fit(callback := script(), Line(pause=0.01), callbacks=[callback, Interrupting()])
    assert [left.cause for left in pool.gone] == [ExitCause.INTERRUPTED]


def test_each_fit_joins_anew(pool: Pool) -> None:
    callback = script()
    fit(callback, Line(pause=0.002), max_epochs=1)
    fit(callback, Line(pause=0.002), max_epochs=2)
    assert len(pool.jobs) == 2
    assert pool.reports[-1].batches == 32
    assert [left.incarnation for left in pool.gone] == [1, 2]


@pytest.mark.parametrize(
    ("on_refused", "refusal"),
    [
        ("alone", NameTakenError("not now")), ("hold", DeviceNotSharedError("not now")),
        ("hold", JoinRefusedError("not now")), ("rename", JoinRefusedError("not now")),
    ],
)  # fmt: skip
def test_a_script_trains_alone_if_asked_to_or_if_waiting_would_change_nothing(
    pool: Pool, caplog: pytest.LogCaptureFixture, on_refused: str, refusal: JoinRefusedError
) -> None:
    pool.refusal = refusal
    trainer = fit(script(target=LossTarget("loss", 0.05), on_refused=on_refused), Line(pause=0.002), max_epochs=-1)
    assert trainer.global_step < 5000
    assert caplog.text.count("the pool refuses the job, training without it: not now") == 1


class FirstBatch(pl.Callback):
    """Sees whether anything was trained or validated."""

    begun = False

    def on_train_batch_start(self, *_: Any) -> None:
        self.begun = True

    def on_validation_batch_start(self, *_: Any) -> None:
        self.begun = True


def test_a_refused_script_holds_before_its_first_batch_and_joins_later(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mailbox, "REJOIN_PERIOD", 0.1)
    pool.taken = {"job"}
    callback, first = script(), FirstBatch()
    thread = training(callback, Line(pause=0.002), data=ValidatedPoints(), callbacks=[callback, first], max_epochs=2)
    until(lambda: len(pool.asked) > 5)
    assert not first.begun
    assert thread.is_alive()
    pool.taken = set()
    join(thread)
    assert first.begun
    [job] = pool.jobs
    assert 0 < job.deadline < 60 - 0.3  # counted from when it first asked
    assert caplog.text.count("the name 'job' is taken") == 1
    assert pool.reports[-1].batches == 32


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_refused_script_ends_when_told_to(pool: Pool, how: signal.Signals) -> None:
    pool.taken = {"job"}

    def end() -> None:
        until(lambda: pool.asked)
        time.sleep(0.3)
        os.kill(os.getpid(), how)

    threading.Thread(target=end).start()
    default = signal.SIG_DFL if how == signal.SIGTERM else signal.default_int_handler
    before = signal.signal(how, default)
    try:
        with pytest.raises(SystemExit):
            fit(script(), Line(pause=0.01), max_epochs=-1)
    finally:
        signal.signal(how, before)
    assert pool.jobs == []
    assert pool.gone == []


def test_a_refused_script_trains_by_itself_if_the_pool_disappears(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "REJOIN_PERIOD", 0.1)
    monkeypatch.setattr(joining, "POOL_TIMEOUT", 0.3)
    monkeypatch.setattr(steering, "POOL_TIMEOUT", 0.3)
    pool.taken = {"job"}
    thread = training(script(target=BatchTarget(60)), Line(pause=0.005), max_epochs=-1)
    until(lambda: len(pool.asked) > 3)
    assert thread.is_alive()
    pool.away = True
    join(thread)  # its own scheduler says that the target is met


def test_a_script_holds_if_a_pool_that_came_back_refuses_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mailbox, "REJOIN_PERIOD", 0.1)
    thread = training(script(), Line(pause=0.005), max_epochs=20)
    until(lambda: pool.reports and pool.reports[-1].batches > 5)
    pool.taken, pool.away = {"job"}, True
    until(lambda: "does not answer" in caplog.text)
    pool.away = False
    until(lambda: len(pool.asked) > 5)
    reported = len(pool.reports)
    time.sleep(0.5)
    assert len(pool.reports) == reported
    assert thread.is_alive()
    pool.taken = set()
    until(lambda: len(pool.reports) > reported)
    pool.say(End("job", 9, Verdict.MET, Reason("target_met", (1.0,))))
    join(thread)


def test_a_script_can_take_a_free_name(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.taken = {"job", "job-2"}
    fit(script(on_refused="rename"), Line(pause=0.002), max_epochs=2)
    assert pool.asked == ["job", "job-2", "job-3"]
    assert [job.name for job in pool.jobs] == ["job-3"]
    assert {report.job for report in pool.reports} == {"job-3"}
    assert pool.gone == [WorkerExited("job-3", 1, detail="at max_epochs=2")]
    assert "joining as job-3" in caplog.text


def test_a_number_fits_behind_the_longest_name(pool: Pool) -> None:
    pool.taken = {"j" * 63}
    fit(CoreCallback("j" * 63, "60s", BatchTarget(10**9), on_refused="rename"), max_epochs=1)
    assert [job.name for job in pool.jobs] == ["j" * 61 + "-2"]


def test_a_hung_pool_delays_the_first_batch_by_little(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "FIRST_ANSWER_TIMEOUT", 0.2)
    answered = threading.Event()

    def hang(self: Pool, job: Job, device: str) -> JoinReply:
        answered.wait(60)
        return JoinReply(1, ())

    monkeypatch.setattr(Pool, "join", hang)
    first = FirstBatch()
    callback = script()
    thread = training(callback, Line(pause=0.002), callbacks=[callback, first], max_epochs=2)
    until(lambda: first.begun)
    assert not answered.is_set()
    answered.set()
    join(thread)


def test_without_a_pool_a_script_has_its_own_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "connect", lambda pool: None)
    trainer = fit(script(target=BatchTarget(40)), Line(pause=0.005), max_epochs=-1)
    assert 40 <= trainer.global_step < 400


def test_a_held_script_continues_when_the_pool_is_lost(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "POOL_TIMEOUT", 0.5)
    pool.say(grant(1, 0.0))
    thread = training(script(), Line(pause=0.002), max_epochs=4)
    until(lambda: pool.waits)
    assert thread.is_alive()
    pool.away = True
    pool.say(grant(1, 0.0))
    join(thread)


def test_a_script_joins_again_when_the_pool_comes_back(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    thread = training(script(), Line(pause=0.01))
    until(lambda: pool.reports and pool.reports[-1].cells)
    pool.away = True
    until(lambda: "does not answer" in caplog.text)
    first, pool.reports = pool.reports, []
    pool.directive = grant(1, 0.5)  # a pool that begins anew counts its versions anew
    pool.away = False
    join(thread)
    assert len(pool.jobs) == 2
    assert 0 < pool.jobs[1].deadline < pool.jobs[0].deadline == 60
    again = pool.reports[0]
    assert (again.incarnation, again.number, again.version) == (2, 1, -1)
    assert again.batches_at_start == again.batches > first[-1].batches
    assert again.busy < first[-1].busy
    cells = {cell.number: cell for report in pool.reports for cell in report.cells}
    assert sorted(cells) == list(range(1, len(cells) + 1))
    arrived = {cell.batches for report in first for cell in report.cells} | {cell.batches for cell in cells.values()}
    assert arrived == set(range(10, 170, 10))
    assert caplog.text.count("does not answer") == 1
    assert caplog.text.count("is back") == 1


def test_a_pool_that_still_knows_the_script_gets_the_following_reports(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Pool, "join", lambda self, job, device: JoinReply(1, (), again=True))
    callback = script()
    thread = training(callback, Line(pause=0.01))
    until(lambda: pool.reports and pool.reports[-1].cells)
    pool.away = True
    until(lambda: "does not answer" in caplog.text)
    pool.away = False
    join(thread)
    assert {report.batches_at_start for report in pool.reports} == {0}
    assert [report.number for report in pool.reports] == sorted({report.number for report in pool.reports})
    assert {cell.number for report in pool.reports for cell in report.cells} == set(range(1, 17))


def test_a_script_trains_on_without_a_pool_that_stays_away(pool: Pool) -> None:
    thread = training(script(), Line(pause=0.005))
    until(lambda: pool.reports)
    pool.away = True
    join(thread)


def test_a_script_uses_the_arbiter_of_its_granted_device(pool: Pool, tmp_path: Path) -> None:
    arbiter = DeviceArbiter(tmp_path / "turn")
    other = ArbiterClient(arbiter.path)
    pool.arbiters = (str(arbiter.path),)
    model = Line(pause=0.005)
    thread = training(script(), model, max_epochs=-1)
    until(lambda: pool.reports and pool.reports[-1].batches > 20)
    assert other.acquire(0.5, 60.0)
    at = model.steps
    time.sleep(0.5)
    assert model.steps <= at + 1
    other.release(again=False)
    until(lambda: pool.reports[-1].batches > at + 5)
    pool.say(End("job", 2, Verdict.MET, Reason("target_met", (1.0,))))
    join(thread)
    other.close()
    arbiter.close()


def test_stopping_at_the_target_can_be_turned_off(pool: Pool) -> None:
    pool.say(End("job", 2, Verdict.MET, Reason("target_met", (1.0,))))
    trainer = fit(script(stop_when_met=False), Line(pause=0.002), max_epochs=3)
    assert trainer.global_step == 48


def test_forecast_and_verdict_go_to_the_user_s_logger(pool: Pool, tmp_path: Path) -> None:
    pool.forecast = JobForecast(Verdict.AT_RISK, "late by 3s", 0.25, 63.0, -3.0)
    logger = CSVLogger(tmp_path)
    fit(script(), Line(pause=0.005, log="train_loss"), logger=logger, log_every_n_steps=10, max_epochs=3)
    table = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    columns = table[0].split(",")
    rows = [dict(zip(columns, row.split(","), strict=True)) for row in table[1:]]
    told, *_ = [row for row in rows if row["lightning_core/verdict"]]
    values = {name: float(told[f"lightning_core/{name}"]) for name in ("share", "verdict", "seconds_left")}
    assert values == {"share": 0.25, "verdict": 1.0, "seconds_left": 63.0}
    assert float(told["lightning_core/seconds_to_spare"]) == -3.0


@pytest.mark.parametrize(("target", "outcome"), [(BatchTarget(10**6), -1.0), (BatchTarget(40), 3.0)])
def test_a_fit_of_a_second_leaves_its_beginning_and_its_end_in_the_logger(
    target: BatchTarget, outcome: float, tmp_path: Path
) -> None:
    logger = CSVLogger(tmp_path)
    callback = CoreCallback("job", deadline="1h", target=target, pool="local")
    fit(callback, Line(pause=0.02), logger=logger, max_steps=60, max_epochs=-1)
    table = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    columns = table[0].split(",")
    rows = [dict(zip(columns, row.split(","), strict=True)) for row in table[1:]]
    told = [row for row in rows if row["lightning_core/share"] or row["lightning_core/verdict"]]
    assert len(told) >= 3
    assert int(told[0]["step"]) < 40
    verdicts = [float(row["lightning_core/verdict"]) for row in told if row["lightning_core/verdict"]]
    assert verdicts[-1] == outcome
    assert verdicts[0] != outcome


def test_verdict_changes_are_logged(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.forecast = JobForecast(Verdict.INFEASIBLE, "late by 3h", 0.25, 63.0, -3.0)
    fit(script(), Line(pause=0.005), max_epochs=3)
    told = [record for record in caplog.records if record.getMessage() == "job: infeasible: late by 3h"]
    assert [record.levelname for record in told] == ["WARNING"]


def test_the_callback_can_be_pickled_and_copied_after_a_fit(pool: Pool) -> None:
    callback = script()
    fit(callback, max_epochs=1)
    for twin in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        fit(twin, Line(pause=0.002), max_epochs=1)
    assert len(pool.jobs) == 3


def test_the_second_of_two_callbacks_is_ignored(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    first, second = script(), CoreCallback("other", deadline="60s", target=BatchTarget(1))
    trainer = fit(first, Line(pause=0.002), callbacks=[first, second], max_epochs=2)
    assert trainer.global_step == 32
    assert [job.name for job in pool.jobs] == ["job"]
    assert caplog.text.count("ignored, because the Trainer has another CoreCallback") == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda trainer, model, data: trainer.validate(model, data, verbose=False),
        lambda trainer, model, data: trainer.predict(model, data.val_dataloader()),
    ],
)
def test_the_callback_ignores_everything_but_fit(pool: Pool, use: Callable[..., Any]) -> None:
    class Predicting(Line):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0])

    trainer = fit(script(), Line(pause=0.002), max_epochs=1)
    joined = len(pool.jobs)
    use(trainer, Predicting(), ValidatedPoints())
    assert len(pool.jobs) == joined == 1


def test_a_fast_dev_run_does_not_join(pool: Pool) -> None:
    trainer = fit(script(), fast_dev_run=True)
    assert trainer.global_step == 1
    assert not pool.jobs


def test_the_cpu_affinity_is_restored_after_a_fit(pool: Pool, tmp_path: Path) -> None:
    arbiter = DeviceArbiter(tmp_path / "turn")
    pool.arbiters = (str(arbiter.path),)
    cores = os.sched_getaffinity(0)
    fit(script(), Line(pause=0.005), Points(), max_epochs=2)
    assert os.sched_getaffinity(0) == cores
    arbiter.close()


def test_cells_that_arrive_during_a_send_are_sent_too(caplog: pytest.LogCaptureFixture) -> None:
    client = Pool()
    box = Mailbox(lambda: SchedulerConnection(client, 1), "job", period=0.0)
    box.begin(0)
    for number in range(1, 30_001):
        box.add(Cell(number, number, 1.0))
    box.close()
    arrived = [cell.number for report in client.reports for cell in report.cells]
    assert arrived == list(range(1, 30_001))
    assert "does not answer" not in caplog.text


def test_a_local_scheduler_stands_in_for_a_lost_pool(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A script that was held when the pool was lost continues, and ends when its target is met."""
    monkeypatch.setattr(joining, "POOL_TIMEOUT", 0.3)
    callback = script(target=BatchTarget(200))
    thread = training(callback, Line(pause=0.005), max_epochs=-1)
    until(lambda: pool.reports and pool.reports[-1].batches > 10)
    pool.say(grant(2, 0.0))
    until(lambda: pool.waits)
    pool.away = True
    pool.say(grant(2, 0.0))
    join(thread)
    assert "training without the pool until it is back" in caplog.text


def test_a_cancelled_script_stops_and_says_so_once(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    thread = training(script(), Line(pause=0.005), max_epochs=-1)
    until(lambda: pool.reports and pool.reports[-1].batches > 10)
    words = "cancelled by ann: best 0.5, target 0.1"
    pool.forecast = JobForecast(Verdict.CANCELLED, words, 0.0, None, None)
    pool.say(End("job", 9, Verdict.CANCELLED, Reason("cancelled_unsure", (0.5, 0.1), " by ann")))
    join(thread)
    assert "\n".join([caplog.text, *capsys.readouterr()]).count(words) == 1


def test_numbers_go_on_with_a_scheduler_that_is_back_after_a_fallback(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the fallback has had meanwhile is missing in its curve; all that follows counts."""
    monkeypatch.setattr(joining, "POOL_TIMEOUT", 0.3)
    monkeypatch.setattr(joining, "POOL_CHECK_PERIOD", 0.3)
    callback = script()
    thread = training(callback, Line(pause=0.01), max_epochs=100)
    until(lambda: pool.reports and pool.reports[-1].batches > 10)
    pool.away = True
    until(lambda: isinstance(callback.directive, Grant) and callback.directive.reason.code != "fixed_share")
    time.sleep(1.0)  # reports and cells to the fallback
    before, pool.remembers, pool.away = len(pool.reports), True, False
    until(lambda: len(pool.reports) > before + 3)
    reports = list(pool.reports)
    assert reports[before].number - reports[before - 1].number in (1, 2)  # one may have been lost
    numbers = [cell.number for report in reports for cell in report.cells]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, max(numbers) + 1))
    busy = [report.busy for report in reports]
    assert busy == sorted(busy)
    assert len({report.batches_at_start for report in reports}) == 1
    pool.say(End("job", 9, Verdict.MET, Reason("target_met", (1.0,))))
    join(thread)


def test_a_pool_that_comes_back_replaces_the_local_scheduler(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "POOL_TIMEOUT", 0.3)
    monkeypatch.setattr(joining, "POOL_CHECK_PERIOD", 0.3)
    callback = script()
    thread = training(callback, Line(pause=0.01), max_epochs=40)
    until(lambda: pool.reports and pool.reports[-1].batches > 10)
    pool.away = True
    until(lambda: isinstance(callback.directive, Grant) and callback.directive.reason.code != "fixed_share")
    before = len(pool.reports)
    pool.away = False
    until(lambda: len(pool.reports) > before)
    assert len(pool.jobs) == 2
    assert pool.reports[-1].incarnation == 2
    pool.say(End("job", 9, Verdict.MET, Reason("target_met", (1.0,))))
    join(thread)
