"""Jobs of several devices in pools of several machines: on one where there is room, and what it costs if not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_core.core.commands import SetDevices
from lightning_core.core.earlier_runs import EarlierRun, check_run
from lightning_core.core.events import DevicesFound, DevicesUnavailable, EarlierRuns, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job, Spread
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.kinds.kind_rates import APART, KindRates
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.runs.past_run import PastRun
from tests.builders import job

# Two machines of two devices, and one of one.
MACHINES = ("m1", "m1", "m2", "m2", "m3")
POOL = Settings("triage", devices=5, stay=0.0, resize=1.0, resident=5)
CAN = frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE})


def pool(*jobs: Job, settings: Settings = POOL, machines: tuple[str, ...] = MACHINES) -> Scheduler:
    scheduler = Scheduler(settings)
    scheduler.handle(DevicesFound(machines=machines), 0.0)
    if jobs:
        scheduler.handle(Submit(jobs), 0.0)
    scheduler.check()
    return scheduler


def devices(scheduler: Scheduler) -> dict[str, tuple[int, ...]]:
    return {one.name: one.devices if one.share else () for one in scheduler.status()}


def trained(scheduler: Scheduler, name: str, rate: float, begin: float, end: float) -> None:
    """Let a job report once a second."""
    status = scheduler.last(name)
    before, row = status.batches, scheduler._state.table.row_of[name]
    first, busy = int(scheduler._state.table.last_report[row]), 0.0
    for number, now in enumerate(np.arange(begin, end), 1):
        busy += 1.0
        version = scheduler._state.table.directives[row].version
        scheduler.handle(
            Report(name, status.incarnation, first + number, version=version, batches=before + int(rate * busy),
                   busy=busy), float(now),
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------ where devices are


def test_the_devices_of_a_job_are_on_one_machine() -> None:
    found = devices(pool(job("one", 900.0, 1000), job("pair", 900.0, 1000, devices=2)))
    assert found["pair"] in ((0, 1), (2, 3))
    assert found["one"] == (4,), "a small job takes a device of no machine that a large one could have"


def test_a_job_waits_for_a_machine_rather_than_train_on_two() -> None:
    scheduler = pool(*(job(f"pair{k}", 900.0, 1000, devices=2) for k in range(3)))
    found = devices(scheduler)
    assert sorted(found.values()) == [(), (0, 1), (2, 3)]


def test_a_job_that_may_spread_has_one_machine_if_there_is_one_and_several_if_not() -> None:
    wide = [job(f"wide{k}", 900.0, 1000, devices=2, spread="pool") for k in range(2)]
    assert sorted(devices(pool(*wide)).values()) == [(0, 1), (2, 3)]
    three = job("three", 900.0, 1000, devices=3, spread="pool")
    found = devices(pool(three))["three"]
    assert len({MACHINES[device] for device in found}) == 2
    assert len(devices(pool(replace(three, min_devices=5, max_devices=5)))["three"]) == 5


def test_a_job_has_no_more_devices_than_a_machine_has_unless_it_may_spread() -> None:
    assert len(devices(pool(job("up to four", 900.0, 1000, min_devices=1, max_devices=4)))["up to four"]) == 2
    spread = job("up to four", 900.0, 1000, min_devices=1, max_devices=4, spread=Spread.POOL)
    assert len(devices(pool(spread))["up to four"]) == 4


def test_a_job_that_no_machine_can_hold_is_refused_with_what_would_help() -> None:
    status = pool(job("four", 900.0, 1000, devices=4)).last("four")
    assert "needs 4 devices of one machine, and the largest has 2 (`spread: pool`" in str(status.reason)
    assert str(pool(job("six", 900.0, 1000, devices=6)).last("six").reason).startswith("needs 6 devices, but the pool")
    with pytest.raises(ValueError, match="spread must be one of machine, pool, got 'rack'"):
        job("a", spread="rack")


def test_a_lost_machine_makes_a_large_job_wait_and_says_so() -> None:
    scheduler = pool(job("pair", 900.0, 1000, devices=2), machines=("m1", "m1", "m2", "m3", "m4"))
    assert devices(scheduler)["pair"] == (0, 1)
    scheduler.handle(DevicesUnavailable((1,)), 5.0)
    scheduler.check()
    assert devices(scheduler)["pair"] == ()
    assert "no worker is ready on 1 of the pool's devices" in str(scheduler.last("pair").grant_reason)


def test_a_job_that_can_be_resized_trains_on_what_is_left_of_a_lost_machine_and_grows_again() -> None:
    wide = job("wide", 9000.0, 100_000, min_devices=1, max_devices=4, sizes=(1, 2, 4), can=CAN, spread="pool")
    for spread, most in (("pool", 4), ("machine", 2)):
        scheduler = pool(replace(wide, spread=Spread(spread)), settings=replace(POOL, devices=4), machines=MACHINES[:4])
        assert len(devices(scheduler)["wide"]) == most
        for now, gone, left in ((5.0, (0, 1), 2), (10.0, (0, 1, 2), 1), (15.0, (), most)):
            scheduler.handle(DevicesUnavailable(gone), now)
            scheduler.handle(Tick(), now + 1.0)
            scheduler.check()
            assert len(devices(scheduler)["wide"]) == left


def test_a_job_that_can_be_resized_leaves_to_the_others_what_they_have_while_devices_are_not_there() -> None:
    """Two jobs on six devices, of which a machine is lost: each goes on, and neither pushes the other out."""
    machines = ("m1", "m2", "m3", "m3", "m1", "m2")
    settings = replace(POOL, devices=6, resident=6)
    scheduler = pool(job("pair", 36_000.0, 100_000, devices=2, model="net"), settings=settings, machines=machines)
    wide = job("wide", 36_000.0, 100_000, min_devices=2, max_devices=4, sizes=(2, 4), can=CAN, spread="pool")
    scheduler.handle(Submit((wide,)), 1.0)
    assert sorted(map(len, devices(scheduler).values())) == [2, 4]
    lost = devices(scheduler)["pair"]
    found = []
    for second in range(2, 40):
        if second == 5:
            scheduler.handle(DevicesUnavailable((lost[0],)), float(second))
        if second == 10:
            scheduler.handle(DevicesUnavailable(lost), float(second))
        for name in ("pair", "wide"):
            trained(scheduler, name, 10.0, second, second + 1)
        scheduler.handle(Tick(), second + 0.5)
        scheduler.check()
        found.append(devices(scheduler))
    assert all(len(one["pair"]) == len(one["wide"]) == 2 for one in found[5:])
    assert len({(one["pair"], one["wide"]) for one in found[10:]}) == 1, "they stay where they are"
    scheduler.handle(DevicesUnavailable(()), 40.0)
    scheduler.handle(Tick(), 50.0)
    scheduler.check()
    assert (len(devices(scheduler)["pair"]), len(devices(scheduler)["wide"])) == (2, 4)


def test_machines_that_are_found_late_bring_a_job_together() -> None:
    scheduler = Scheduler(POOL)
    scheduler.handle(Submit((job("pair", 900.0, 1000, min_devices=2, max_devices=4),)), 0.0)
    assert len(devices(scheduler)["pair"]) == 4
    scheduler.handle(DevicesFound(machines=MACHINES), 1.0)
    scheduler.handle(Tick(), 2.0)
    scheduler.check()
    assert devices(scheduler)["pair"] in ((0, 1), (2, 3))


def test_a_person_cannot_ask_for_more_devices_than_a_job_may_have() -> None:
    elastic = job("a", 900.0, 1000, max_devices=4, sizes=(1, 2, 4), can=CAN)
    scheduler = pool(elastic)
    with pytest.raises(ValueError, match="at most the 2 of one machine, got 4"):
        scheduler.check_command(SetDevices("a", 4), 1.0)


def test_a_kind_of_devices_may_have_several_machines() -> None:
    settings = replace(POOL, devices=6, resident=6, locations=("a", "a", "a", "b", "b", "b"))
    machines = ("m1", "m1", "m2", "m3", "m4", "m5")
    pair = job("pair", 900.0, 1000, devices=2)
    assert devices(pool(pair, settings=settings, machines=machines))["pair"] == (0, 1)
    refused = pool(replace(pair, kinds=("b",)), settings=settings, machines=machines).last("pair")
    assert "of one machine" in str(refused.reason)
    wide = replace(pair, min_devices=3, max_devices=3, spread=Spread.POOL)
    found = devices(pool(wide, settings=settings, machines=machines))["pair"]
    assert len({settings.locations[device] for device in found}) == 1


@pytest.mark.parametrize("policy", ["triage", "edf", "fifo"])
def test_a_job_is_placed_on_no_kind_of_which_no_machine_has_enough(policy: str) -> None:
    """It would be faster there, and wait for ever."""
    settings = replace(POOL, policy=policy, devices=6, resident=6, locations=("a", "a", "a", "b", "b", "b"))
    machines = ("m1", "m1", "m2", "m3", "m4", "m5")
    scheduler = pool(settings=settings, machines=machines)
    rates = EarlierRun("before", (), (), on_kinds=(("a", 2, 5.0), ("b", 2, 50.0)))
    for spread, kind in (("machine", "a"), ("pool", "b")):
        scheduler.handle(Submit((job(spread, 900.0, 1000, devices=2, model="net", spread=spread),)), 1.0)
        scheduler.handle(EarlierRuns((rates,), ((spread, (0,)),)), 1.0)
        scheduler.handle(Tick(), 2.0)
        scheduler.check()
        assert {settings.locations[device] for device in devices(scheduler)[spread]} == {kind}


# ------------------------------------------------------------------------------------------------ rates


def test_rates_apart_and_together_are_learnt_side_by_side() -> None:
    scheduler = pool(job("wide", 9000.0, 100_000, devices=4, spread="pool", model="net"))
    trained(scheduler, "wide", 20.0, 1.0, 40.0)
    rates = scheduler._state.rates
    assert {one[0] for one in rates.measured("net")} == {APART}
    saved = Scheduler(POOL)
    saved.restore(scheduler.state())
    assert saved._state.rates.measured("net") == rates.measured("net")
    assert saved.last("wide") == scheduler.last("wide")


def test_what_was_learnt_apart_counts_for_the_next_pool_and_is_not_taken_for_together() -> None:
    scheduler = pool(
        job("wide", 9000.0, 700, devices=4, spread="pool", model="net"),
        job("one", 9000.0, 700, model="other"),
    )  # fmt: skip
    trained(scheduler, "wide", 20.0, 1.0, 40.0)
    [run] = scheduler.ended_runs(["wide"])
    assert run.throughputs == ()
    assert [(kind, devices) for kind, devices, _ in run.on_kinds] == [(APART, 4)]
    past = PastRun.of(run, 0, "cpu", 0.0).for_job(None, "cpu")
    check_run(past)
    following = pool(job("next", 9000.0, 700, devices=4, spread="pool", model="net"))
    following.handle(EarlierRuns((past,), (("next", (0,)),)), 1.0)
    assert following._state.rates.seconds("net", 4, APART) > 0


def test_what_a_family_loses_apart_is_told_by_its_other_sizes_and_by_other_families() -> None:
    rates = KindRates()
    guess, doubt = rates.apart("net", 4, "")
    for family, factor in (("net", 0.5), ("other", 0.9)):
        rates.observe(family, 2, "", 1000.0, 100.0)
        rates.observe(family, 2, APART, 1000.0 * factor, 100.0)
    own, less = rates.apart("net", 2, "")
    larger, some = rates.apart("net", 4, "")
    unseen, most = rates.apart("never seen", 4, "")
    assert own == pytest.approx(np.log(0.5))
    assert own < larger < unseen < 0
    assert less < some < most < doubt
    assert guess < 0


def test_a_job_counts_with_the_devices_of_one_machine_together_and_with_more_apart() -> None:
    together, apart = SpeedUp((1, 2, 4), (10.0, 18.0, 30.0)), SpeedUp((1, 2, 4), (10.0, 12.0, 24.0))
    speed = together.on_machines(2, apart)
    assert [speed.throughput(n) for n in (1, 2, 4)] == [10.0, 18.0, 24.0]
    assert (speed.devices_for(18.0), speed.devices_for(20.0)) == (2.0, 4.0)
    assert speed.best(5) == 4
    assert together.on_machines(2, None).best(5) == 2
    assert together.on_machines(4, None) is together


def simulated(policy: str, *, spread: str = "pool", apart: float = 0.6) -> tuple[dict[str, str], float]:
    """Play jobs that can be resized; return verdicts, and when the last one ended."""
    jobs = [
        SimulatedJob(
            Job(name, deadline, BatchTarget(2000), can=CAN, model="net", max_devices=4, sizes=(1, 2, 4),
                spread=Spread(spread)),
            [*range(50, 2001, 50)], [1.0 - 0.01 * k for k in range(40)], 10.0,
            throughputs=(10.0, 18.0, 32.0), apart=apart,
        )
        for name, deadline in (("easy", 700.0), ("urgent", 150.0), ("next", 400.0))
    ]  # fmt: skip
    settings = Settings(policy, devices=4, stay=0.0, resident=4, estimator="posterior")
    machines = ("m1", "m1", "m2", "m2")
    simulation = Simulation(settings, jobs, Delays(report_every=1.0), check=True, machines=machines)
    outcome = simulation.run(3000.0)
    return {one.name: str(one.verdict) for one in outcome.jobs}, max(one.finished_at or np.inf for one in outcome.jobs)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("spread", ["machine", "pool"])
def test_every_policy_works_on_several_machines(policy: str, spread: str) -> None:
    if policy != "fixed":  # its shares are given for each job
        verdicts, _ = simulated(policy, spread=spread)
        assert set(verdicts.values()) <= {"met", "missed"}


@pytest.mark.parametrize("policy", ["triage", "edf", "decor"])
def test_policies_meet_all_deadlines_on_two_machines(policy: str) -> None:
    assert set(simulated(policy)[0].values()) == {"met"}


def test_a_job_that_loses_much_apart_does_not_take_a_second_machine() -> None:
    """With one job left, four devices are worth it only where they are faster than the two of one machine."""
    assert simulated("decor", apart=0.3)[1] >= simulated("decor", apart=1.0)[1]


def test_a_job_that_is_apart_comes_together_where_that_pays() -> None:
    for batches, gathers in ((100_000, True), (260, False)):
        settings = replace(POOL, devices=4, resize=10.0)
        machines = ("m1", "m1", "m2", "m2")
        wide = job("wide", 90_000.0, batches, devices=2, spread="pool", model="net")
        short = [job(f"short{k}", 500.0, 1000, model="other") for k in range(2)]
        scheduler = pool(settings=settings, machines=machines)
        scheduler.handle(DevicesUnavailable((0, 2)), 0.0)
        scheduler.handle(Submit((wide,)), 0.0)
        assert devices(scheduler)["wide"] == (1, 3)
        trained(scheduler, "wide", 10.0, 1.0, 15.0)
        scheduler.handle(DevicesUnavailable(()), 15.0)
        scheduler.handle(Tick(), 16.0)
        scheduler.check()
        assert (devices(scheduler)["wide"] != (1, 3)) is gathers
        assert short
