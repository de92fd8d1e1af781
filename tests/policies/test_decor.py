"""DECOR on the simulator: jobs end at their deadline on few devices, and as many jobs as possible are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Answer, End, Grant, Verdict
from lightning_core.core.commands import SetDeadline
from lightning_core.core.events import Event, ExitCause, LaunchTimedOut, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.plans import JobView
from lightning_core.core.reasons import CODES
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.planning.free_devices import EPSILON
from lightning_core.planning.job_rows import job_rows
from lightning_core.planning.ramp import ControllerInput, RampController, RampSettings
from lightning_core.planning.reservations import Demand
from lightning_core.policies.decor import Decor
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, JobOutcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.examples import day_and_night, examples
from tests.views import view

CAN = frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE})


class Watched(Simulation):
    """Records when each job was granted how many devices."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.granted: dict[str, list[tuple[float, float]]] = {}
        self.said: dict[str, list[str]] = {}

    def _hear(self, answers: list[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, Grant):
                devices = answer.share * len(answer.devices)
                had = self.granted.setdefault(answer.job, [])
                if not had or had[-1][1] != devices:
                    had.append((self._queue.now, devices))
            elif isinstance(answer, End):
                self.granted.setdefault(answer.job, []).append((self._queue.now, 0.0))
        super()._hear(answers)

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        for name in self._scheduler.names():
            directive = self._scheduler.directive(name)
            assert directive is not None
            self.said.setdefault(name, []).append(str(directive.reason))

    def device_seconds(self, job: str) -> float:
        had = self.granted[job]
        return sum(devices * (until - since) for (since, devices), (until, _) in pairwise(had))

    def resizes(self, job: str) -> int:
        return len(self.granted[job]) - 2  # the first devices and the end are none


@dataclass
class Run:
    """Result of a run under decor."""

    jobs: dict[str, JobOutcome] = field(default_factory=dict)
    simulation: Any = None

    def end(self, job: str) -> float:
        end = self.jobs[job].finished_at
        assert end is not None
        return end


def training(
    name: str,
    batches: int,
    deadline: float,
    rates: Sequence[float],
    restart: float = 0.3,
    *,
    submitted: float = 0.0,
    known: bool = False,
    loss: Sequence[float] | None = None,
    **terms: Any,
) -> SimulatedJob:
    """Return a simulated job with throughputs on 1, 2, ... devices; one with losses needs a loss target."""
    step = max(batches // 200, 1)
    sizes = tuple(range(1, len(rates) + 1))
    usual: dict[str, Any] = {"target": BatchTarget(batches), "sizes": sizes, "max_devices": len(rates), "can": CAN}
    if known:
        usual |= {"throughputs": tuple(rates), "resize_seconds": restart}
    losses = [1.0] * (batches // step) if loss is None else loss
    position = [step * k for k in range(1, len(losses) + 1)]
    job = Job(name, deadline, **usual | terms)
    return SimulatedJob(
        job, position, losses, rates[0], submitted, throughputs=rates if job.sizes else (), restart=restart
    )


def run(
    jobs: Sequence[SimulatedJob],
    devices: int,
    events: Sequence[tuple[float, Event]] = (),
    *,
    quantum: float = 1.0,
    until: float = 10_000.0,
    resident: int | None = None,
    **arguments: Any,
) -> Run:
    pool = Settings("decor", arguments, devices=devices, quantum=quantum, resident=resident)
    simulation = Watched(pool, jobs, Delays(report=0.01), check=True)
    for when, event in events:
        simulation._queue.at(when, simulation._handle, event)
    return Run({job.name: job for job in simulation.run(until).jobs}, simulation)


# -------------------------------------------------------------------------------------- one job, speed not known


SINGLE = list(product([(12.0, 20.0, 27.0), (12.0, 22.0, 30.0), (12.0, 17.0, 20.0)], [40, 50, 60, 70, 80], [0.3, 3.0]))


@pytest.mark.parametrize(("rates", "deadline", "restart"), day_and_night(SINGLE, SINGLE[::3]))
def test_a_single_job_ends_at_its_deadline_with_few_resizes(
    rates: tuple[float, ...], deadline: float, restart: float
) -> None:
    job = training("a", 1000, deadline, rates, restart)
    one = run([job], 3, alpha=1.0)
    least = 1000 / rates[-1]
    if least > deadline:
        assert one.end("a") == pytest.approx(least, abs=0.1)  # at full speed all the time
        assert any("cannot finish in time" in said for said in one.simulation.said["a"])
        return
    assert one.end("a") <= max(deadline, least) + restart + 0.5
    assert one.simulation.resizes("a") <= 5
    if restart < 1 and deadline - least > 2:
        assert one.end("a") == pytest.approx(deadline, rel=0.02)


SHORTENED = [
    (alpha, restart, factor, cut)
    for (factor, cut), restart, alpha in product(
        [(1.2, False), (1.5, False), (1.8, False), (1.5, True), (1.8, True)], [0.3, 1.0], [0.95, 1.0]
    )
]


@pytest.mark.parametrize(("alpha", "restart", "factor", "cut"), day_and_night(SHORTENED, SHORTENED[::3]))
def test_a_shortened_deadline_is_met_on_two_devices(alpha: float, restart: float, factor: float, cut: bool) -> None:
    """Cut to 80 % when 30 % of the time are over: one device alone no longer does it."""
    least, slowest = 1000 / 19, 1000 / 12
    job = training("a", 1000, factor * least, (12.0, 19.0), restart)
    events = [(0.3 * factor * least, SetDeadline("a", 0.8 * factor * least, from_submission=True))] if cut else []
    deadline = factor * least * (0.8 if cut else 1.0)
    one = run([job], 2, events, alpha=alpha)
    aim = min(alpha * deadline, slowest)
    assert one.end("a") <= deadline + 0.05
    assert one.end("a") >= aim * 0.975 - 2 * restart
    assert one.simulation.resizes("a") <= 4


@given(
    st.lists(st.floats(1.1, 1.95), min_size=1, max_size=3),
    st.floats(1.1, 4.0),
    st.sampled_from([0.1, 0.5, 1.0]),
)
@settings(max_examples=examples(8), deadline=None)
def test_every_speedup_meets_the_deadline_with_its_safety_margin(
    grows: list[float], factor: float, restart: float
) -> None:
    rates = [10.0]
    for k, more in enumerate(grows, 2):
        rates.append(rates[-1] * min(more, k / (k - 1)))
    least = 1500 / rates[-1]
    one = run([training("a", 1500, factor * least, rates, restart)], len(rates), alpha=0.95)
    if factor * least * 0.95 > least + 4 * (restart + 1):
        assert one.jobs["a"].verdict is Verdict.MET
    resizes = one.simulation.resizes("a")
    assert resizes <= 8 or resizes * restart <= 0.02 * one.end("a")


def test_a_resize_happens_when_it_is_due_and_not_in_the_next_round() -> None:
    """Two devices do 19 batches a second, one does 12: 1000 of them by 75 s take 14.6 s on two, and 60.4 s on one."""
    one = run([training("a", 1000, 75.0, (12.0, 19.0), restart=0.1, known=True)], 2, alpha=1.0)
    assert one.end("a") == pytest.approx(75.0, abs=0.5)
    rare = Settings("decor", {"alpha": 1.0, "min_dwell": 0.0}, devices=2, period=30.0)
    simulation = Watched(rare, [training("a", 1000, 75.0, (12.0, 19.0), 0.1, known=True)], Delays(report=0.01))
    [job] = simulation.run(1000.0).jobs
    assert job.finished_at == pytest.approx(75.0, abs=0.5)
    assert simulation.resizes("a") == 1


def test_a_deadline_is_met_with_few_device_seconds() -> None:
    """Two devices for the first half of 75 s, one for the rest: 112 device-seconds; two all the time would be 106 s,
    ended at 53 s. On three jobs in a row that is what others can have.
    """
    one = run([training("a", 1000, 75.0, (12.0, 19.0))], 2, alpha=1.0)
    two = 2 * 1000 / 19
    assert one.simulation.device_seconds("a") < two * 1.1
    assert np.mean([devices for _, devices in one.simulation.granted["a"][:-1]]) < 2


# ------------------------------------------------------------------------------------------------- several jobs


def test_concurrent_jobs_use_only_the_devices_that_they_need() -> None:
    jobs = [
        training("tight", 1000, 30.0, (12.0, 20.0, 27.0, 36.0), known=True),
        training("loose", 500, 60.0, (12.0, 20.0, 27.0, 36.0), known=True),
    ]
    one = run(jobs, 8, alpha=1.0)
    assert all(job.verdict is Verdict.MET for job in one.jobs.values())
    assert [devices for _, devices in one.simulation.granted["loose"]] == [1.0, 0.0]
    assert max(devices for _, devices in one.simulation.granted["tight"]) == 4.0
    assert one.end("loose") == pytest.approx(500 / 12, abs=0.2)  # not the six that are not needed
    spent = run(jobs, 8, alpha=1.0, idle="spend")
    assert spent.end("loose") < one.end("loose") - 10


def test_as_many_jobs_as_possible_are_kept_and_the_others_get_a_reason() -> None:
    """Of three jobs of which two fit, the one with the most work waits, with the reason."""
    rates = (10.0, 19.0)
    jobs = [training("short", 400, 45.0, rates, known=True), training("long", 900, 50.0, rates, known=True),
            training("middle", 450, 50.0, rates, known=True)]  # fmt: skip
    one = run(jobs, 2, alpha=1.0)
    assert [one.jobs[name].verdict for name in ("short", "middle", "long")] == ["met", "met", "missed"]
    assert any("not scheduled" in said or "cannot finish in time" in said for said in one.simulation.said["long"])


def test_a_heavy_job_is_kept_instead_of_several_light_ones() -> None:
    rates = (10.0,)
    jobs = [training("heavy", 400, 41.0, rates, known=True, weight=5.0),
            training("one", 150, 41.0, rates, known=True), training("two", 150, 41.0, rates, known=True)]  # fmt: skip
    one = run(jobs, 1, alpha=1.0, resident=1)
    assert one.jobs["heavy"].verdict is Verdict.MET


def test_a_later_job_is_admitted_if_the_others_can_wait() -> None:
    jobs = [training("first", 1000, 200.0, (10.0, 19.0), 1.0),
            training("urgent", 300, 20.0, (10.0, 19.0), 1.0, submitted=30.0, known=True)]  # fmt: skip
    one = run(jobs, 2, resident=2)
    assert [job.verdict for job in one.jobs.values()] == ["met", "met"]


def test_a_job_of_unknown_work_is_tried_beside_the_others() -> None:
    jobs = [training(name, 400, 120.0, (10.0, 19.0, 27.0), submitted=2.0 * k) for k, name in enumerate("abcd")]
    one = run(jobs, 4, alpha=0.95)
    assert all(job.verdict is Verdict.MET for job in one.jobs.values())
    assert all(len(one.simulation.granted[name]) <= 8 for name in "abcd")


def test_loss_targets_and_batch_targets_share_a_pool() -> None:
    losses = [float(2.0 * k**-0.5) for k in range(1, 400)]  # below 0.2 after 100 cells of 5 batches
    by_loss = LossTarget("loss", 0.2)
    jobs = [
        training("loss", 1000, 100.0, (10.0, 18.0), loss=losses, target=by_loss),
        training("batches", 600, 100.0, (10.0, 18.0)),
        training("never", 1000, 60.0, (10.0, 18.0), loss=[0.9] * 200, target=by_loss, on_miss=OnMiss.STOP),
    ]
    one = run(jobs, 4)
    assert [one.jobs[name].verdict for name in ("loss", "batches", "never")] == ["met", "met", "missed"]


def test_a_resize_that_costs_more_than_it_gains_does_not_happen() -> None:
    """A change that costs 20 s is not worth it in a minute."""
    one = run([training("a", 1000, 60.0, (12.0, 19.0), 20.0, known=True)], 2, alpha=1.0)
    assert one.simulation.resizes("a") == 0
    assert one.jobs["a"].verdict is Verdict.MET


def test_the_reason_of_an_infeasible_job_names_its_lateness() -> None:
    one = run([training("a", 1000, 30.0, (12.0, 20.0), known=True)], 4)
    late = [said for said in one.simulation.said["a"] if "cannot finish in time" in said]
    assert late[0] == "cannot finish in time: it would be 20s late on 2 devices"
    assert one.end("a") == pytest.approx(50.0, abs=0.1)
    stopped = run([training("a", 1000, 30.0, (12.0, 20.0), known=True, on_miss=OnMiss.STOP)], 4)
    assert stopped.jobs["a"].batches == 0  # it would not be continued, so it does not begin


def test_a_job_that_is_early_on_its_minimum_of_devices_gets_a_reason() -> None:
    whole = run([training("a", 200, 100.0, (10.0, 19.0), known=True)], 2, alpha=1.0)
    assert whole.simulation.said["a"][0] == "finishes 80s early on the fewest devices that it can have (1)"
    part = run([training("a", 100, 400.0, (50.0,), can=frozenset(Capability))], 1, alpha=1.0, quantum=0.05)
    assert any("early on the fewest devices that it can have (0.05)" in said for said in part.simulation.said["a"])


# ------------------------------------------------------------------------------------------------- parts of a CPU


@pytest.mark.parametrize("alpha", [0.95, 1.0])
@pytest.mark.parametrize("factor", [1.5, 2.5])
def test_the_share_of_a_device_follows_the_ramp(factor: float, alpha: float) -> None:
    jobs = [training("a", 3000, factor * 100, (30.0,), can=frozenset(Capability))]
    one = run(jobs, 1, alpha=alpha, quantum=0.05)
    assert one.end("a") == pytest.approx(alpha * factor * 100, rel=0.015)
    steady = [part for since, part in one.simulation.granted["a"] if since > 20][:-1]
    assert all(part == pytest.approx(round(part / 0.05) * 0.05) for part in steady)
    assert np.mean(steady) == pytest.approx(1 / (alpha * factor), rel=0.15)


def test_shares_of_one_device_side_by_side() -> None:
    jobs = [
        training(name, batches, 200.0, (20.0,), can=frozenset(Capability))
        for name, batches in (("a", 1200), ("b", 1600))
    ]
    one = run(jobs, 1, alpha=0.95, quantum=0.05)
    assert all(job.verdict is Verdict.MET for job in one.jobs.values())


# ----------------------------------------------------------------------------------------------- paper's mode, views


@pytest.mark.parametrize("quantum", [1.0, 0.05])
def test_the_published_controller_ends_near_the_deadline(quantum: float) -> None:
    """Whole devices: 20 batches a second on one, 36 on two, 27 are needed."""
    jobs = [training("a", 3000, 110.0, (20.0, 36.0) if quantum == 1.0 else (40.0,), 0.3)]
    one = run(jobs, 2 if quantum == 1.0 else 1, alpha=1.0, mode="paper", quantum=quantum, gain=0.3, eta=0.1)
    assert one.end("a") == pytest.approx(110, rel=0.1)


def test_after_a_resize_that_failed_a_job_stays_where_it_was() -> None:
    job = Job("a", 100.0, BatchTarget(1000), max_devices=2, sizes=(1, 2), can=CAN)
    scheduler = Scheduler(Settings("decor", {"alpha": 1.0, "min_dwell": 0.0}, devices=2))
    [grant] = scheduler.handle(Submit((job,)), 0.0)
    assert isinstance(grant, Grant)
    now, batches, number = 0.0, 0, 0
    while len(grant.devices) == 2:
        number += 1
        scheduler.handle(Report("a", 1, number, grant.version, batches, now), now)
        now, batches = now + 0.5, batches + 10
        found = [one for one in scheduler.handle(Tick(), now) if isinstance(one, Grant)]
        grant = found[0] if found else grant
    assert grant.devices  # fewer
    scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), now)
    for _ in range(30):
        answers = scheduler.handle(LaunchTimedOut("a", 2, "one is missing"), now)
        if found := [one for one in answers if isinstance(one, Grant) and one.share]:
            break
        now += 1.0
        if found := [one for one in scheduler.handle(Tick(), now) if isinstance(one, Grant) and one.share]:
            break
    assert len(found[-1].devices) == 2
    assert str(found[-1].reason) == "stays on 2 devices: the last change of their number failed"


def test_allocation_order_is_unchanged_jobs_first_and_growing_jobs_last() -> None:
    known = SpeedUp((1, 2, 4), (1.0, 1.9, 3.6))
    jobs = view(
        [100, 300, 100], [80, 95, 200], exact=[True] * 3, batches=[5] * 3, throughput=[1.0] * 3,
        speedup=[known] * 3, held_devices=[0.0, 2.0, 1.0], trained_since=[0.0] * 3, reported_at=[1.0] * 3, devices=8,
    )  # fmt: skip
    plan = Decor(alpha=1.0).plan(jobs, 1.0)
    assert plan.size is not None
    assert plan.size.tolist() == [2, 4, 1]
    assert plan.order.tolist() == [2, 0, 1]


# ------------------------------------------------------------------------------------------------- demand of a job

FOUR = SpeedUp((1, 2, 4), (10.0, 19.0, 36.0))


def demand(policy: Decor, jobs: JobView, now: float, submitted: float = 0.0) -> Demand | None:
    jobs = replace(jobs, submitted=np.array([submitted]))
    policy.plan(jobs, now)
    return policy._demand(job_rows(jobs, 0.7)[0], jobs.devices, jobs.quantum, now)


@pytest.mark.parametrize(
    ("trained_since", "reported_at", "work", "lag", "protected"),
    [(5, 18, 262, 0, 45), (15, 14, 300, 7, 55), (5, 5, 243, 0, 45), (-50, -60, 1, 0, 0)],
)
def test_the_demand_of_a_job_that_has_devices(
    trained_since: float, reported_at: float, work: float, lag: float, protected: float
) -> None:
    """Submitted at 10 with 100 s to its deadline: it should end at 10 + 0.9 * 100, and holds 2 devices of 19 batches/s.

    300 batches were left at 18 s, so 300 - 2 * 19 are at 20 s. It may be late by half of the 10 s behind its end and
    0.2 % of its 100 s, as a resize costs 12 s. Where it has not reported from its devices, they train from 12 s after
    it was given them. For five times as long as that no other job takes them.
    """
    policy = Decor(alpha=0.9, min_dwell=3.0, min_payback=5.0, min_saving=0.1)
    jobs = view(
        [30], [110], exact=[True], batches=[100], throughput=[10], speedup=[FOUR], held_devices=[2], weight=[3],
        trained_since=[trained_since], reported_at=[reported_at], resize_seconds=[12], devices=4,
    )  # fmt: skip
    assert demand(policy, jobs, 20.0, submitted=10.0) == Demand(
        work=work, end=100, sizes=(1, 2, 4), throughputs=(10, 19, 36), latest=110, weight=3, held=2, arrival_delay=lag,
        start_seconds=12, resize_seconds=12, protected_seconds=protected, min_dwell=3, max_lateness=5.2,
        shrink_margin=3.4, may_shrink=True, min_saving=0.1,
    )  # fmt: skip


def test_the_demand_of_a_job_that_has_not_begun() -> None:
    """It loses nothing by starting, and may not be late; only two devices are there."""
    jobs = view([30], [110], exact=[True], throughput=[10], speedup=[FOUR], resize_seconds=[12], devices=2)
    assert demand(Decor(alpha=0.5), jobs, 0.0) == Demand(
        work=300, end=55, sizes=(1, 2), throughputs=(10, 19), latest=110, resize_seconds=12, protected_seconds=60,
        min_dwell=2, shrink_margin=3.275, may_shrink=False,
    )  # fmt: skip


def test_a_job_of_unknown_throughput_is_tried_within_a_fifth_of_its_time() -> None:
    policy, jobs = Decor(alpha=0.5), view([np.nan], [110], exact=[True], speedup=[SpeedUp((1, 2, 4))], devices=2)
    need = demand(policy, jobs, 0.0)
    assert need == Demand(
        2, 11, (1, 2), (1 + EPSILON, 1 + 2 * EPSILON), weight=1, held=0, may_shrink=False, protected_seconds=2
    )
    assert policy.plan(jobs, 0.0).share.tolist() == [1]


@pytest.mark.parametrize(("now", "may"), [(50, True), (60, False)])
def test_a_job_that_uses_its_reserve_keeps_its_devices(now: float, may: bool) -> None:
    """It should end at half of 110 s."""
    jobs = view(
        [3], [110], exact=[True], batches=[100], throughput=[10], speedup=[FOUR], held_devices=[2],
        trained_since=[5], reported_at=[now], resize_seconds=[0.5], devices=4,
    )  # fmt: skip
    need = demand(Decor(alpha=0.5), jobs, now)
    assert need is not None
    assert need.may_shrink is may
    assert need.may_postpone is may
    assert need.max_lateness == (0.25 if may else 0.0)  # before it, half of a resize
    aimed_at_deadline = demand(Decor(alpha=1.0), jobs, now)
    assert aimed_at_deadline is not None
    assert aimed_at_deadline.may_postpone
    assert aimed_at_deadline.max_lateness == pytest.approx(0.22)  # 0.2 % of 110 s


def test_a_forecast_demands_the_share_at_which_it_ends_in_time() -> None:
    """300 batches in 100 s are 3 a second, of 10."""
    jobs = view([30], [120], throughput=[10], speedup=[SpeedUp((1,), (10.0,))], quantum=0.05)
    need = demand(Decor(alpha=1.0), jobs, 20.0)
    assert need is not None
    assert need.share == pytest.approx(0.3)


def test_the_published_controller_may_ask_for_the_most_devices() -> None:
    """Half of the time is over and nothing is done: 50 % behind, at one device for a percent."""
    jobs = view([50], [100], exact=[True], throughput=[10], speedup=[FOUR], devices=4)
    plan = Decor(alpha=1.0, mode="paper").plan(jobs, 50.0)
    assert plan.size is not None
    assert plan.size.tolist() == [4]


def test_the_published_controllers_share_what_the_arbiter_has() -> None:
    """Each is far behind and asks for all four devices; or ahead, and asks for one."""
    for now, sizes in ((50.0, [2, 2]), (1.0, [1, 1])):
        jobs = view(
            [20, 20], [100, 101], exact=[True] * 2, throughput=[10] * 2, speedup=[FOUR] * 2, devices=4,
            batches=[200] * 2 if now < 50 else [0] * 2,
        )  # fmt: skip
        plan = Decor(alpha=1.0, mode="paper").plan(jobs, now)
        assert plan.size is not None
        assert plan.size.tolist() == sizes


def test_the_published_controller_decides_how_many_whole_devices() -> None:
    """Eqs. 4 and 5 by hand: e = 50 - 100 / 3, i = e / 10, d = 0.1 (i + e) = 1.83; one device would be in time."""
    jobs = view([20], [100], exact=[True], batches=[100], throughput=[10], speedup=[FOUR], devices=4)
    plan = Decor(alpha=1.0, mode="paper", gain=0.1, eta=0.1).plan(jobs, 50.0)
    assert plan.size is not None
    assert plan.size.tolist() == [2]
    assert CODES[plan.codes[0]] == "on_ramp"


@pytest.mark.parametrize(("work", "code"), [(49.5, "on_ramp"), (48.5, "early")])
def test_a_job_on_one_device_is_early_by_more_than_a_period(work: float, code: str) -> None:
    jobs = view([work], [50], exact=[True], throughput=[10], speedup=[FOUR], devices=4)
    assert CODES[Decor(alpha=1.0, period=1.0).plan(jobs, 0.0).codes[0]] == code


def test_the_share_of_a_device_is_its_controller_s() -> None:
    """It stands still for 10 s and then trains as it may: behind its ramp it is asked for more than the device."""
    speed, policy = SpeedUp((1,), (10.0,)), Decor(alpha=1.0)
    alone, done, shares = RampController(RampSettings(alpha=1.0), 0.0), 0, []
    for now in range(30):
        pending = now % 7 == 3
        jobs = view(
            [(1000 - done) / 10], [200], exact=[True], batches=[done], throughput=[10], speedup=[speed],
            held_devices=[1], trained_since=[0], reported_at=[now], acknowledged=[not pending], quantum=0.05,
        )  # fmt: skip
        need = demand(policy, jobs, float(now))
        assert need is not None
        asked = alone.step(ControllerInput(float(now), float(done), 1000.0, 200.0, 0.05, 1.0, 0.05, pending), speed)
        assert need.share == pytest.approx(asked if asked < 1 else 0)
        shares.append(need.share)
        done += round(10 * asked) if now >= 10 else 0
    assert shares[0] == pytest.approx(0.5)
    assert 0 in shares[1:12]
    assert shares[-1] < 1


def test_a_job_that_was_not_admitted_does_not_take_the_place_of_another() -> None:
    """30 s of work by 20 s cannot be done; by 45 s it could, at the cost of a job that has begun and takes longer."""
    jobs: dict[str, Any] = {"exact": [True] * 2, "speedup": [SpeedUp((1,), (10.0,))] * 2}
    policy = Decor(alpha=1.0)
    began = view([50, 30], [60, 20], held_devices=[1, 0], batches=[5, 0], trained_since=[0, np.inf], **jobs)
    assert policy.plan(began, 1.0).share.tolist() == [1, 0]
    moved = replace(began, deadline=np.array([60.0, 45.0]))
    assert policy.plan(moved, 2.0).share.tolist() == [1, 0]
    assert Decor(alpha=1.0).plan(moved, 2.0).share.tolist() == [0, 1]


def test_jobs_that_are_not_admitted_tell_their_device_time_and_those_with_spare_devices_go_first() -> None:
    """160 batches at 20 a second on two devices are 16 s of device time; on the spare third device they take 16 s."""
    either, both = SpeedUp((1, 2), (10.0, 20.0)), SpeedUp((2,), (20.0,))
    jobs = view(
        [8, 8, 8], [10, 10, 10], exact=[True] * 3, throughput=[20] * 3, devices=3, speedup=[either, both, either]
    )
    plan = Decor(alpha=1.0).plan(jobs, 0.0)
    assert plan.order.tolist() == [0, 2, 1]
    assert plan.share.tolist() == [1, 0, 1]
    assert plan.finish.tolist() == [8, np.inf, 16]
    assert plan.numbers[1:].tolist() == [[16, 0], [16, 0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0.0},
        {"level": 1.0},
        {"min_dwell": -1.0},
        {"min_payback": float("inf")},
        {"min_saving": 1.0},
        {"idle": "burn"},
    ],
)
def test_decor_refuses_arguments_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Decor(**wrong)
