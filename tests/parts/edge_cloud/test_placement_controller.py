"""A plan moves the jobs of a pool: in the scheduler, its journal, the simulator, and on a Ray cluster."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from lightning_core.bundle.pool_section import PoolSection, pool_to_dict, read_pool, with_pool
from lightning_core.bundle.problems import Position, Problems
from lightning_core.core.answers import Answer, Verdict
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import Resume, SetDevices, SetLocation
from lightning_core.core.control import Ask, WallClock
from lightning_core.core.control.wall_clock import MAX_WALL
from lightning_core.core.events import Event, PartEvent, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.limits import MAX_SECONDS
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import StateError
from lightning_core.core.targets import BatchTarget
from lightning_core.core.validation import made
from lightning_core.history.history import History
from lightning_core.parts.edge_cloud.day_plan import (
    MAX_TASKS,
    MIN_PERIOD_SECONDS,
    DayPlan,
    DemandSeen,
    PlanEvent,
    PlanGiven,
    PlannedTask,
    Way,
)
from lightning_core.parts.edge_cloud.placement import (
    CLOUD,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    PlacedJob,
    SampleNeeds,
    Weights,
    plan,
)
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits
from lightning_core.parts.edge_cloud.placement_controller import PLAN, PlacementController
from lightning_core.parts.edge_cloud.plan_data import job_name, placement_of, plan_of
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clocks import WallClockWatch
from lightning_core.server.host import Host
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.controller_conformance import MadeUpPool, check_controller, random_events
from lightning_core.view.why import why
from tests.conftest import ROOT

CAN = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE, Capability.RESIZE})
DEMANDS = Demands(
    ("night", "day"), {"device": Gpu(4.0)}, {"fp32": Level(0.9, {"device": 1600.0})},
    {name: Node({"device": 1.0}) for name in ("a", "b", "c")},
    {"cars": PlacedJob((1, 2), 15.0, 0.4), "bus": PlacedJob((1, 1), 15.0, 0.4, moves=False)},
    Cloud(40.0), EdgePrices(0.8),
)  # fmt: skip
LIMITS = ReconfigurationLimits(cost=5.0, moves=1, move_price=0.2)
PLACEMENT = plan(DEMANDS, Weights(0.9, 0.1, 0.01)).placement
NAMES = ["cars-0", "cars-1", "bus"]
HOUR, DAY = 3600.0, 86400.0
SETTINGS = Settings(policy="fifo", devices=5, stay=0.0, locations=("a", "b", "c", CLOUD, CLOUD),
                    controllers={"plan": {}})  # fmt: skip
# Monday, 2026-11-23, 00:00 UTC.
MONDAY = 1_795_392_000.0


def job(name: str, batches: int = 1000) -> Job:
    return Job(name, 1e6, BatchTarget(batches), can=CAN, max_devices=2, sizes=(1, 2))


def given(begins: float = 0.0, *, cycle: bool = False, on_wall: bool = False) -> DayPlan:
    made = plan_of(PLACEMENT, HOUR, begins, on_wall=on_wall, limits=LIMITS)
    return made._replace(terms=made.terms._replace(cycle=cycle))


def choices(period: int) -> dict[str, tuple[str, int]]:
    """Where each job is planned in a period."""
    return {
        job_name(DEMANDS, task): (choice.location, round(choice.gpu_count))
        for task, served in PLACEMENT.served.items()
        if (choice := served[period]) is not None
    }


NIGHT_PLACES, DAY_PLACES = choices(0), choices(1)


def made_up(names: Sequence[str] = ()) -> MadeUpPool:
    pool = MadeUpPool(names)
    pool.locations = SETTINGS.locations
    return pool


def sent(event: Event | PlanEvent) -> Event:
    """Return an event as the scheduler is told of it."""
    return PartEvent.of(event) if isinstance(event, PlanEvent) else event


def check(scheduler: Scheduler, event: PlanEvent, now: float = 1.0) -> None:
    scheduler.check_part_event(PartEvent.of(event), now)


def no_op(scheduler: Scheduler, event: Event | PlanEvent, now: float) -> list[Answer] | None:
    return scheduler.answers_to_no_op(sent(event), now)


def describe(scheduler: Scheduler) -> Any:
    return scheduler.describe_controllers().get("plan")


class Pool:
    """A scheduler whose devices are at the plan's locations, and a clock."""

    def __init__(self, names: list[str]) -> None:
        self.scheduler = Scheduler(SETTINGS)
        self.now = 0.0
        self.asks: list[Ask] = []
        if names:
            self.tell(Submit(tuple(map(job, names))))

    def tell(self, event: Event | PlanEvent, at: float | None = None) -> list[Ask]:
        """Tell of an event, later than the one before; return what the plan asks."""
        self.now = self.now + 1.0 if at is None else at
        answers = self.scheduler.handle(sent(event), self.now)
        self.scheduler.check()
        asks = [answer for answer in answers if isinstance(answer, Ask)]
        self.asks += asks
        return asks

    def where(self) -> dict[str, tuple[str, int]]:
        return places(self.scheduler)


def places(scheduler: Scheduler) -> dict[str, tuple[str, int]]:
    locations = scheduler.settings.locations
    return {
        status.name: (locations[status.devices[0]], len(status.devices))
        for status in scheduler.status()
        if status.share
    }


def rates(**found: float) -> DemandSeen:
    return DemandSeen(tuple(found.items()))


def test_each_period_sends_each_job_to_its_planned_location() -> None:
    assert [job_name(DEMANDS, task) for task in PLACEMENT.served] == NAMES
    pool = Pool(NAMES)
    with pytest.raises(ValueError, match="there is no plan in which 'cars' could be"):
        check(pool.scheduler, rates(cars=18.0))
    pool.tell(PlanGiven(given()))
    assert pool.where() == NIGHT_PLACES
    assert set(pool.where()) == {"cars-0", "bus"}
    assert pool.scheduler.last("cars-1").paused
    assert (pool.scheduler.controllers[PLAN].wakeup(), HOUR) == (HOUR, HOUR)
    pool.tell(Tick(), HOUR)
    assert pool.where() == DAY_PLACES
    assert not pool.scheduler.last("cars-1").paused


def test_higher_demand_moves_a_job_and_lower_demand_leaves_it_there() -> None:
    """No node at the edge has two devices: one of the jobs moves, and the cloud has no device left for the other."""
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    pool.tell(Tick(), HOUR)
    before = pool.where()
    [ask] = pool.tell(rates(cars=18.0))
    moved = ask.job
    assert (ask.location, ask.devices, ask.reason.code) == (CLOUD, 2, "part")
    assert str(ask.reason) == f"{before[moved][0]} has 1 device and would need 2; {CLOUD} has room"
    assert pool.where() == before | {moved: (CLOUD, 2)}
    described = pool.scheduler.controllers[PLAN]
    assert isinstance(described, PlacementController)
    told = described.describe()
    assert told is not None
    assert told["period"] == "day"
    [(left, words)] = told["short"].items()
    assert left in {"cars-0", "cars-1"} - {moved}
    assert "1 tasks have moved already, the limit" in words
    [back] = pool.tell(rates(cars=15.0))
    assert str(back.reason) == "demand is lower: the additional GPUs are given back"
    assert pool.where() == before | {moved: (CLOUD, 1)}
    pool.tell(PlanGiven(given(pool.now)))  # the planned locations apply again
    assert all(location != CLOUD for location, _ in pool.where().values())


def test_jobs_without_a_place_in_a_period_are_held_and_say_so() -> None:
    pool = Pool(NAMES)
    asks = pool.tell(PlanGiven(given()))
    held = Ask("cars-1", PLAN, hold=True, release=True, reason=Reason("part", text="not planned for night"))
    assert [ask for ask in asks if ask.hold] == [held]
    asks = pool.tell(Tick(), HOUR)
    assert {ask.reason for ask in asks} == {Reason("part", text="planned for day")}
    said: list[Event | PlanEvent] = [*asks, PlanGiven(given())]
    for event in said:  # what is asked already is asked no second time
        assert no_op(pool.scheduler, event, 1e4) == []


def test_less_than_planned_leaves_the_planned_devices_and_demand_lasts_beyond_its_period() -> None:
    pool = Pool(["cars-0"])
    pool.tell(PlanGiven(given()))
    assert pool.tell(rates(cars=5.0)) == []
    [ask] = pool.tell(rates(cars=18.0))
    assert (ask.location, ask.devices) == (CLOUD, 2)
    for asked in pool.tell(Tick(), HOUR):  # the plan's own places are tried first, and are too small again
        assert (asked.location, asked.devices) == (CLOUD, 2)
    assert pool.where() == {"cars-0": (CLOUD, 2)}
    assert no_op(pool.scheduler, rates(cars=18.0), HOUR) == []
    pool.tell(rates(cars=15.0))
    assert pool.where() == {"cars-0": (CLOUD, 1)}


def test_a_job_that_comes_later_is_placed_then() -> None:
    pool = Pool([])
    assert pool.tell(PlanGiven(given())) == []
    [ask] = pool.tell(Submit((job("bus"), job("other"))))
    assert (ask.job, ask.location) == ("bus", NIGHT_PLACES["bus"][0])
    assert pool.where()["bus"] == NIGHT_PLACES["bus"]
    asks = pool.tell(Submit((job("cars-1"),)), HOUR)  # that event begins the day, and the job is asked once
    assert sorted(ask.job for ask in asks) == ["bus", "cars-1"]
    assert pool.scheduler.job("cars-1").location == DAY_PLACES["cars-1"][0]
    assert pool.scheduler.job("other").location == ""


def test_a_new_plan_lets_go_of_the_jobs_that_it_omits_and_the_end_of_a_plan_of_all() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    shorter = given()
    shorter = shorter._replace(tasks=tuple(task for task in shorter.tasks if task.name != "cars-1"))
    assert pool.tell(PlanGiven(shorter)) == [Ask("cars-1", PLAN)]
    assert not pool.scheduler.last("cars-1").paused
    pool.tell(Tick(), HOUR)
    assert {(ask.job, ask.location) for ask in pool.tell(Tick(), 2 * HOUR)} == {("cars-0", None), ("bus", None)}
    assert pool.scheduler.controllers[PLAN].wakeup() is None
    assert pool.tell(PlanGiven(given(pool.now))) != []
    assert {ask.asked == Ask("bus", PLAN).asked for ask in pool.tell(PlanGiven(None))} == {True}
    assert no_op(pool.scheduler, PlanGiven(None), 3 * HOUR) == []


def test_a_plan_that_begins_later_replaces_the_present_one_at_once() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    assert {ask.location for ask in pool.tell(PlanGiven(given(1800.0)))} == {None}
    assert pool.scheduler.controllers[PLAN].wakeup() == 1800.0
    pool.tell(Tick(), 1800.0)
    assert pool.where() == NIGHT_PLACES


def test_a_plan_that_repeats_has_neither_beginning_nor_end() -> None:
    controller, pool = PlacementController(), made_up(["cars-1"])
    for begins in (-10 * HOUR, 0.0, 10 * HOUR):
        controller.handle(PlanGiven(given(begins, cycle=True)), 1.0, pool)
        assert controller.wakeup() == HOUR
        assert controller.describe() == {
            "period": "night", "next": HOUR, "short": {},
            "asked": controller.describe()["asked"],  # type: ignore[index]
        }  # fmt: skip
    [ask] = controller.handle(Tick(), 99 * HOUR, pool)
    assert (ask.hold, ask.location) == (None, DAY_PLACES["cars-1"][0])
    assert controller.wakeup() == 100 * HOUR


def test_periods_go_by_the_clock_on_the_wall_and_by_summer_time() -> None:
    controller, pool = PlacementController(), made_up(["cars-1"])
    assert controller.handle(PlanGiven(given(MONDAY + 8 * HOUR, on_wall=True)), 5.0, pool) == []
    assert controller.wakeup() is None  # what time it is has not been told
    assert controller.handle(WallClock(MONDAY + 5.5 * HOUR, 2 * HOUR), 100.0, pool) == []
    assert controller.wakeup() == 100.0 + 0.5 * HOUR
    [ask] = controller.handle(Tick(), 100.0 + 0.5 * HOUR, pool)
    assert ask.hold
    [ask] = controller.handle(WallClock(MONDAY + 6 * HOUR + 1, 3 * HOUR), 101.0 + 0.5 * HOUR, pool)
    assert not ask.hold
    [ask] = controller.handle(WallClock(MONDAY + 9 * HOUR, 3 * HOUR), 102.0 + 0.5 * HOUR, pool)
    assert ask == Ask("cars-1", PLAN)


def test_an_edge_that_floats_cannot_tell_from_now_begins_the_next_period() -> None:
    draw = np.random.default_rng(3)
    for _ in range(2000):
        length, begins = float(draw.uniform(1.0, 1e5)), float(draw.uniform(-1e9, 1e9))
        controller = PlacementController()
        made = given(begins, cycle=True)._replace(length=length)
        now = float(draw.uniform(0.0, 1e9))
        controller.handle(PlanGiven(made), now, made_up())
        for _ in range(3):
            edge = controller.wakeup()
            assert edge is not None
            assert edge > now
            before, now = controller._turn, edge
            controller.handle(Tick(), now, made_up())
            assert before is not None
            assert controller._turn == before + 1


def test_a_time_just_before_an_edge_belongs_to_the_period_before_although_the_division_says_otherwise() -> None:
    begins, length, before = 0.1, 4.4, 61.7
    edge = begins + 14 * length
    assert math.floor((before - begins) / length) == 14
    assert edge > before
    controller = PlacementController()
    controller.handle(PlanGiven(given(begins, cycle=True)._replace(length=length)), before, made_up())
    assert (controller._turn, controller.wakeup()) == (13, edge)
    controller.handle(Tick(), edge, made_up())
    assert controller._turn == 14


def test_a_job_that_gets_a_part_of_what_it_lacks_is_told_as_short() -> None:
    stays = {"bus": PlacedJob((1, 1), 15.0, 0.4, moves=False)}
    demands = replace(DEMANDS, nodes={"a": Node({"device": 3.0})}, jobs=stays)
    placement = plan(demands, Weights(0.9, 0.1, 0.01)).placement
    controller = PlacementController()
    controller.handle(PlanGiven(plan_of(placement, HOUR, 0.0, on_wall=False, limits=LIMITS)), 0.0, made_up())
    controller.handle(rates(bus=100.0), 1.0, made_up())
    told = controller.describe()
    assert told is not None
    [(_, location, devices, _)] = told["asked"].values()
    assert (location, devices) == ("a", 3)
    assert told["short"] == {"bus": "3 of 7 device are free in a, and it must not move"}


@pytest.mark.parametrize("how", ["replan", "heuristic"])
def test_a_plan_says_how_a_period_is_changed(how: Literal["replan", "heuristic"]) -> None:
    """The bus may not move: planned anew, a car makes room for it; the published heuristic leaves it short."""
    jobs = {"cars": PlacedJob((1,), 15.0, 0.4), "bus": PlacedJob((1,), 15.0, 0.4, moves=False)}
    demands = replace(DEMANDS, periods=("day",), nodes={"a": Node({"device": 2.0})}, jobs=jobs)
    placement = plan(demands, Weights(0.9, 0.1, 0.01)).placement
    settings = replace(SETTINGS, locations=("a", "a", CLOUD, CLOUD, CLOUD))
    first, restored = Scheduler(settings), Scheduler(settings)
    first.handle(Submit((job("cars"), job("bus"))), 1.0)
    first.handle(sent(PlanGiven(plan_of(placement, DAY, 0.0, limits=LIMITS, reconfigure=how))), 2.0)
    assert places(first) == {"cars": ("a", 1), "bus": ("a", 1)}
    restored.restore(first.state())
    for scheduler in (first, restored):
        scheduler.handle(sent(rates(bus=18.0)), 3.0)
        short = describe(scheduler)["short"]
        assert set(short) == ({"bus"} if how == "heuristic" else set())
        asked = {name: one[1:3] for name, one in describe(scheduler)["asked"].items()}
        assert (
            asked
            == {
                "heuristic": {"cars": ["a", 1], "bus": ["a", 1]},
                "replan": {"cars": [CLOUD, 1], "bus": ["a", 2]},
            }[how]
        )


# ------------------------------------------------------------------------------------------------- forecasts

QUARTER = 900.0


def foreseeing(forecast: Literal["", "persistence", "autoregression", "trend"], begins: float = 0.0) -> DayPlan:
    return plan_of(PLACEMENT, DAY, begins, limits=LIMITS, forecast=forecast, step=QUARTER)


def moved_at(forecast: Literal["", "persistence", "autoregression", "trend"], levels: Sequence[float]) -> int | None:
    """Tell a pool of a level in each step; return the step in which a car has moved to two devices, None for none."""
    pool = Pool(NAMES)
    pool.tell(PlanGiven(foreseeing(forecast)))
    for step, level in enumerate(levels):
        pool.tell(rates(cars=level), step * QUARTER + 10.0)
        wakeup = pool.scheduler.controllers[PLAN].wakeup()
        assert wakeup == ((step + 1) * QUARTER if forecast else DAY)
        pool.tell(Tick(), (step + 1) * QUARTER)
        if any(devices == 2 for _, devices in pool.where().values()):
            return step
    return None


def test_a_rising_demand_is_forecast_and_the_plan_follows_before_it_is_there() -> None:
    """A device serves 16 samples a second: the line through four steps is above that two steps before the demand."""
    rising = [15.0, 15.2, 15.4, 15.6, 15.8, 16.2]
    assert moved_at("", rising) == 5
    assert moved_at("persistence", rising) == 5
    assert moved_at("trend", rising) == 3
    assert moved_at("trend", [15.0] * 6) is None


@pytest.mark.parametrize(
    ("cars", "rates"),
    [
        (PlacedJob((1, 1), (16.0, 32.0), (0.4, 0.8), (1.0, 2.0)), (16.0, 32.0)),
        (PlacedJob((1, 1), 16.0, 0.4, 1.0, (1.0, 2.0)), (16.0, 16.0)),
        (PlacedJob((1, 1), 16.0, 0.4, levels={"fp32": SampleNeeds(0.2, None, (1.0, 2.0))}), (16.0, 16.0)),
    ],
)
def test_a_period_has_its_own_needs_and_a_change_that_is_planned_is_no_trend(
    cars: PlacedJob, rates: tuple[float, float]
) -> None:
    """A device serves what a car brings by night, two what it brings by day: twice as much, or twice the processing."""
    placement = plan(replace(DEMANDS, jobs={"cars": cars}, nodes={"a": Node({"device": 2.0})})).placement
    whole = plan_of(placement, HOUR, 0.0, limits=LIMITS, forecast="trend", step=QUARTER)
    written = json.loads(json.dumps(dict(PartEvent.of(PlanGiven(whole)).body)))
    assert made(PlanGiven, written) == PlanGiven(whole)
    assert placement_of(whole)[0] == placement
    pool = Pool(["cars"])
    pool.tell(PlanGiven(whole))
    controller = pool.scheduler.controllers[PLAN]
    assert isinstance(controller, PlacementController)
    devices, foreseen = [], []
    for step in range(8):
        told = controller.describe()
        assert told is not None
        devices.append(told["asked"]["cars"][2])
        foreseen.append(told["foreseen"].get("cars"))
        pool.tell(Tick(), (step + 1) * QUARTER)
    assert devices == [1] * 4 + [2] * 4
    assert foreseen == [None, *rates[:1] * 3, *rates[1:] * 4]


def test_what_is_forecast_is_shown_and_given_back_once_it_is_forecast_no_more() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(foreseeing("trend")))
    for step, level in enumerate((15.0, 15.2, 15.4, 15.6)):
        pool.tell(rates(cars=level), step * QUARTER + 10.0)
    [ask] = pool.tell(Tick(), 4 * QUARTER)
    assert (ask.location, ask.devices) == (CLOUD, 2)
    assert str(ask.reason).endswith("; 16.2 samples/s are forecast")
    assert describe(pool.scheduler)["foreseen"]["cars"] == pytest.approx(16.2)
    pool.tell(rates(cars=15.0), 4 * QUARTER + 10.0)
    assert pool.where()["cars-0"] == (CLOUD, 2), "the forecast holds until the next step"
    pool.tell(Tick(), 5 * QUARTER)
    assert pool.where()["cars-0"] == (CLOUD, 1)


def test_steps_beyond_the_period_are_not_looked_at() -> None:
    """The next period has a plan of its own: an hour of four steps, and the demand passes a device's in the fifth."""
    pool = Pool(NAMES)
    pool.tell(PlanGiven(plan_of(PLACEMENT, HOUR, 0.0, limits=LIMITS, forecast="trend", step=QUARTER / 2)))
    for step, level in enumerate((15.0, 15.1, 15.2, 15.3, 15.4, 15.5, 15.6)):
        pool.tell(rates(cars=level), step * QUARTER / 2 + 10.0)
    pool.tell(Tick(), 7 * QUARTER / 2)
    assert describe(pool.scheduler)["foreseen"]["cars"] == pytest.approx(15.7)  # one step is left
    assert pool.where() == NIGHT_PLACES


def test_a_pool_that_is_opened_again_forecasts_the_same(tmp_path: Path) -> None:
    """A host that is closed and opened in the middle of a step, and a replay of its journal."""
    seen = []
    for again in (False, True):
        clock, path = [0.0], tmp_path / f"{again}.db"

        def opened(clock: list[float] = clock, path: Path = path) -> Host:
            return Host(SETTINGS, path, lambda: clock[0])

        host = opened()
        host.handle(Submit(tuple(map(job, NAMES))))
        host.handle(sent(PlanGiven(foreseeing("autoregression"))))
        told = []
        for step in range(24):
            clock[0] = step * QUARTER + 10.0
            host.handle(sent(rates(cars=15.0 + 0.2 * (step % 7))))
            if again and step == 20:
                now = host.now()
                host.close()
                host = opened()
                host._origin = clock[0] - now  # it was away for no time
            clock[0] = (step + 1) * QUARTER
            host.catch_up()
            told.append([describe(host.scheduler), places(host.scheduler)])
        assert len(host.scheduler.controllers[PLAN].state()["steps"][1]["cars"]) == 24
        host.close()
        seen.append(told)
        with Journal.open(path, read_only=True) as journal:
            assert replay(journal, whole=True).after == 0
    assert seen[0] == seen[1]
    assert any(one["foreseen"]["cars"] > 16.0 for one, _ in seen[0])


def test_the_controller_passes_its_suite_with_forecasts() -> None:
    def plans(seed: int) -> Iterator[tuple[Event, float]]:
        draw = np.random.default_rng(seed)
        for event, now in random_plans(seed):
            if draw.random() < 0.1:
                event = PartEvent.of(PlanGiven(foreseeing(draw.choice(["trend", "autoregression"]), now - HOUR)))
            yield event, now

    for seed in range(10):
        check_controller(PlacementController, plans(seed))


# ------------------------------------------------------------------------------------------------- in the pool


def test_a_person_s_word_stands_above_the_plan_s() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    pool.tell(Resume("cars-1"))
    assert not pool.scheduler.last("cars-1").paused
    pool.tell(SetLocation("cars-1", "a", 1))  # else it takes both devices of the cloud
    pool.tell(SetLocation("bus", CLOUD, 1))
    assert pool.where()["bus"] == (CLOUD, 1)
    pool.tell(Tick(), HOUR)
    assert pool.where()["bus"] == (CLOUD, 1)
    pool.tell(SetDevices("bus", None))
    assert pool.where()["bus"] == DAY_PLACES["bus"]


def story(host: Callable[[], Host], clock: list[float]) -> Iterator[None]:
    """A plan, demand, jobs and reports; the host may be another one after each step."""
    host().handle(Submit(tuple(map(job, NAMES[:2]))))
    yield
    host().handle(sent(PlanGiven(given(MONDAY + 8 * HOUR, on_wall=True))))
    yield
    clock[0] = 0.6 * HOUR
    host().catch_up()
    yield
    host().handle(sent(rates(cars=18.0, bus=16.0)))
    yield
    incarnation = host().scheduler.incarnation("cars-0")
    host().handle(Report("cars-0", incarnation, 1, 99, 10, 5.0))
    host().handle(Submit((job("bus"),)))
    yield
    clock[0] = 1.6 * HOUR
    host().catch_up()
    yield
    host().handle(sent(rates(cars=15.0)))
    yield
    clock[0] = 2.6 * HOUR
    host().catch_up()


def test_a_plan_is_journalled_and_a_host_that_is_opened_again_decides_the_same(tmp_path: Path) -> None:
    def play(name: str, *, again: bool) -> Iterator[tuple[dict[str, Any], dict[str, tuple[str, int]]]]:
        clock, off = [0.0], [0.0]

        def opened() -> Host:
            wall = WallClockWatch(lambda: WallClock(MONDAY + 7.5 * HOUR + clock[0]))
            return Host(SETTINGS, tmp_path / name, lambda: clock[0] - off[0], wall_time=wall)

        hosts = [opened()]
        for _ in story(lambda: hosts[0], clock):
            if again:
                now = hosts[0].now()
                hosts[0].close()
                hosts[0] = opened()
                hosts[0]._origin = hosts[0]._clock() - now  # it was away for no time
            controller = hosts[0].scheduler.controllers[PLAN]
            state = controller.state()
            yield state, places(hosts[0].scheduler)
        hosts[0].close()

    once, twice = list(play("once.db", again=False)), list(play("twice.db", again=True))
    keys = ("plan", "rates", "turn", "stands", "asked", "short")
    assert [{key: state[key] for key in keys} for state, _ in once] == [
        {key: state[key] for key in keys} for state, _ in twice
    ]
    assert [where for _, where in once] == [where for _, where in twice]
    assert once[3][1]["cars-0"] == (CLOUD, 2)
    with Journal.open(tmp_path / "once.db", read_only=True) as journal:
        recovered = replay(journal, whole=True)
        assert recovered.after == 0
        controller = recovered.scheduler.controllers[PLAN]
        assert isinstance(controller, PlacementController)
        assert (controller.describe() or {})["period"] is None  # it is over
        history = History.read(journal, "cars-0")
    remarks = [(remark.kind, remark.words) for remark in history.of("cars-0").remarks]
    assert {kind for kind, _ in remarks} == {"plan"}
    assert f"location {NIGHT_PLACES['cars-0'][0]}, devices 1: planned for night" in [words for _, words in remarks]
    assert any(words.endswith(f"has 1 device and would need 2; {CLOUD} has room") for _, words in remarks)
    text = "\n".join(why(history, "cars-0"))
    assert "plan" in text
    assert "planned for night" in text


def test_why_a_held_job_waits_names_the_plan() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    reason = pool.scheduler.last("cars-1").grant_reason
    assert str(reason) == "paused by the placement plan: not planned for night"


def test_the_simulator_plays_a_plan(tmp_path: Path) -> None:
    """The second of two jobs trains by day alone: it begins an hour late. The first one doubles its devices then."""
    cells = list(range(1000, 20_001, 1000))
    settings = replace(SETTINGS, period=60.0, stay=60.0)
    jobs = [
        SimulatedJob(replace(job(name, 20_000), max_devices=1, sizes=()), cells, [1.0 / k for k in cells], 5.0)
        for name in NAMES
    ]
    events = [(0.0, PartEvent.of(PlanGiven(given()))), (1800.0, PartEvent.of(rates(cars=18.0)))]
    path = tmp_path / "journal.db"
    outcome = Simulation(settings, jobs, journal=path, check=True, events=events).run()
    ends = {one.name: one.finished_at for one in outcome.jobs}
    assert {one.verdict for one in outcome.jobs} == {Verdict.MET}
    assert ends["cars-0"] == pytest.approx(4000.0, abs=30.0)
    assert ends["cars-1"] == pytest.approx(HOUR + 4000.0, abs=30.0)
    with Journal.open(path, read_only=True) as journal:
        history = History.read(journal)
        assert replay(journal, whole=True).after == 0
    assert {remark.kind for remark in history.of("cars-1").remarks} == {"plan"}
    again = Simulation(settings, jobs, check=True, events=events).run()
    assert [one.finished_at for one in again.jobs] == [one.finished_at for one in outcome.jobs]
    elsewhere = given()._replace(nodes=tuple(node._replace(name=f"{node.name}x") for node in given().nodes))
    with pytest.raises(ValueError, match="nodes of a plan must be locations of the pool, a, b, c, cloud, got 'ax'"):
        Simulation(settings, jobs, events=[(0.0, PartEvent.of(PlanGiven(elsewhere)))]).run()


def random_plans(seed: int) -> Iterator[tuple[Event, float]]:
    """Events of some days, plans and demands among them."""
    draw, now = np.random.default_rng(seed), 0.0
    named = [job(name) for name in NAMES]
    for event, now in random_events(seed):
        kind = draw.random()
        if kind < 0.2:
            begins = now + float(draw.uniform(-2, 1)) * HOUR
            on_wall = draw.random() < 0.3
            made = given(begins + (1.75e9 if on_wall else 0.0), cycle=draw.random() < 0.5, on_wall=on_wall)
            few = tuple(task for task in made.tasks if draw.random() < 0.8)
            yield PartEvent.of(PlanGiven(None if draw.random() < 0.1 else made._replace(tasks=few))), now
        elif kind < 0.5:
            yield PartEvent.of(rates(cars=float(draw.choice((14.0, 16.0, 18.0, 33.0))))), now
        elif kind < 0.6:
            yield Submit((named[int(draw.integers(3))],)), now
        else:
            yield event, now


def test_the_controller_passes_its_suite() -> None:
    for seed in range(20):
        check_controller(PlacementController, random_plans(seed))


def test_a_state_that_is_none_is_refused() -> None:
    controller = PlacementController()
    controller.handle(PlanGiven(given()), 1.0, made_up(NAMES))
    state = controller.state()
    for wrong in (
        {},
        state | {"plan": {"kind": "tick"}},
        state | {"stands": {"tasks": [["cars", 0, "x", "y", "z", 1]]}},
    ):
        with pytest.raises(StateError, match="not the state of a plan"):
            PlacementController().restore(wrong)


# --------------------------------------------------------------------------------------------------- plans as data


def test_a_plan_goes_through_the_journal_and_is_the_placement_that_was_made() -> None:
    made = given(12.5, cycle=True)
    for event in (PlanGiven(made), PlanGiven(None), rates(cars=18.0, bus=2.5)):
        read = decode_event(encode_event(sent(event)))
        assert isinstance(read, PartEvent)
        assert read.decoded() == event
    placement, limits = placement_of(given())
    assert (placement.demands, placement.served, limits) == (DEMANDS, PLACEMENT.served, LIMITS)
    assert made.locations == ("a", "b", "c", CLOUD)
    far = made._replace(jobs=tuple(one._replace(delay=1.0) for one in made.jobs))
    assert far.locations == ("a", "b", "c")


def longer(count: int, periods: int = 2) -> DayPlan:
    """A plan of many tasks."""
    tasks = tuple(PlannedTask(f"cars-{k}", "cars", k, (None,) * periods) for k in range(count))
    return given()._replace(tasks=tasks, periods=tuple(f"p{k}" for k in range(periods)))


MADE = given()
TASK = MADE.tasks[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (MADE._replace(periods=()), "a plan must have at least one period, got none"),
        (MADE._replace(periods=("a", "a")), "periods must be there once each, got 'a' twice"),
        (MADE._replace(periods=("", "a")), "periods must have names, got ''"),
        (MADE._replace(length=0.5), "length must be 1 to 3155760000 seconds, got 0.5"),
        (MADE._replace(length=float("nan")), "length must be 1 to 3155760000 seconds, got nan"),
        (MADE._replace(begins=float("inf")), "begins must be at most 221845392000 seconds from 0, got inf"),
        (longer(1001), "tasks of a plan must be at most 1,000, got 1001"),
        (longer(500, 41), "tasks times periods of a plan must be at most 20,000, got 20500"),
        (longer(1, 401), "periods must be at most 400, got 401"),
        (MADE._replace(gpus=(("device", -1.0),)), "GPU 'device': price must be 1e-09 to 1e+09, got -1.0"),
        (MADE._replace(nodes=(MADE.nodes[0]._replace(gpus=(("device", -1.0),)),)),
         "node 'a': device must be 0 to 1,000,000,000, got -1.0"),
        (MADE._replace(nodes=(MADE.nodes[0]._replace(bandwidth=-1.0),)),
         "node 'a': bandwidth must be 0 to 1,000,000,000, got -1.0"),
        (MADE._replace(jobs=(MADE.jobs[0]._replace(processing=(1.0, 0.0)),)), "processing in period 1 must be"),
        (MADE._replace(jobs=(MADE.jobs[0]._replace(levels=(("fp32", SampleNeeds(aggregation=-1.0)),)),)),
         "job 'cars': aggregation at level 'fp32' must be 0 to 1,000,000,000, got -1.0"),
        (MADE._replace(jobs=(MADE.jobs[0]._replace(levels=(("fp32", SampleNeeds()),) * 2),)),
         "levels of job 'cars' must be there once each, got 'fp32' twice"),
        (MADE._replace(nodes=(MADE.nodes[0]._replace(aggregation=-1.0),)),
         "node 'a': aggregation must be 0 to 1,000,000,000, got -1.0"),
        (MADE._replace(ways=MADE.ways[:1] * 501), "ways of a plan must be at most 500, got 501"),
        (MADE._replace(nodes=(MADE.nodes[0],) * 2), "nodes must be there once each, got 'a' twice"),
        (MADE._replace(nodes=tuple(MADE.nodes[0]._replace(name=f"n{k}") for k in range(500))),
         "ways to serve a task must be at most 500, got 501"),
        (longer(500)._replace(nodes=tuple(MADE.nodes[0]._replace(name=f"n{k}") for k in range(200))),
         "tasks times ways to serve one must be at most 100,000, got 100500"),
        (MADE._replace(jobs=(MADE.jobs[0]._replace(rate=-1.0),)), "job 'cars': rate must be 1e-09 to 1e+09, got -1.0"),
        (MADE._replace(terms=MADE.terms._replace(moves=-1)), "moves must be 0 to 1,000,000,000,000, got -1"),
        (MADE._replace(terms=MADE.terms._replace(extra_cost=float("nan"))),
         "extra_cost must be 0 to 1,000,000,000, got nan"),
        (MADE._replace(tasks=(TASK._replace(ways=(0,)),)), "cars-0: must have a way for each of 2 periods, got 1"),
        (MADE._replace(tasks=(TASK._replace(ways=(0, 99)),)), "cars-0: ways must be those of 3, got 99"),
        (MADE._replace(tasks=(TASK._replace(name="../x"),)), "invalid job name '../x'"),
        (MADE._replace(tasks=(TASK, TASK)), "each job of the pool must do one task of a plan, got 'cars-0' twice"),
        (MADE._replace(tasks=(TASK, TASK._replace(name="x"))),
         "each task must be there once, got task 0 of 'cars' twice"),
    ],
)  # fmt: skip
def test_a_plan_that_is_wrong_is_refused_with_the_rule_and_the_value(wrong: DayPlan, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        PlanGiven(wrong)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "at_the_bound",
    [
        MADE._replace(length=MIN_PERIOD_SECONDS), MADE._replace(length=MAX_SECONDS), MADE._replace(begins=MAX_WALL),
        MADE._replace(begins=-MAX_WALL), longer(MAX_TASKS), MADE._replace(terms=MADE.terms._replace(moves=0)),
    ],
)  # fmt: skip
def test_a_plan_at_a_bound_is_taken(at_the_bound: DayPlan) -> None:
    assert PlanGiven(at_the_bound).plan == at_the_bound


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (MADE._replace(tasks=(TASK._replace(job="trams"),)), "cars-0: must be a task of cars, bus, got 'trams'"),
        (MADE._replace(tasks=(TASK._replace(number=2),)), "cars-0: number must be 0 to 1, got 2"),
        (MADE._replace(tasks=(TASK._replace(number=1, ways=(0, 0)),)),
         "cars-0: must not be served in night, which has 1 tasks of its job"),
        (MADE._replace(ways=(Way("a", "device", "fp16"), *MADE.ways[1:]), tasks=(TASK._replace(ways=(0, 1)),)),
         "cars-0: must be served as its job can be, got a, device, fp16 in night"),
        (MADE._replace(gpus=(("v100", 1.0),)), "level fp32: must have GPUs of v100, got 'device'"),
        (MADE._replace(periods=("day",), tasks=()), "job cars: tasks must be 1 numbers, one a period, got (1, 2)"),
        (MADE._replace(nodes=(MADE.nodes[0]._replace(name="nowhere"),)),
         "nodes of a plan must be locations of the pool, a, b, c, cloud, got 'nowhere'"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_is_refused_and_the_one_before_stands(wrong: DayPlan, words: str) -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    before = pool.scheduler.state()
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check(pool.scheduler, PlanGiven(wrong))
    assert words in str(error.value)
    assert no_op(pool.scheduler, PlanGiven(wrong), pool.now) == []
    assert pool.scheduler.state() == before


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((), "rates must be of at least one job, got none"),
        ((("cars", -1.0),), "job 'cars': rate must be 1e-09 to 1e+09, got -1.0"),
        ((("cars", 0.0),), "job 'cars': rate must be 1e-09 to 1e+09, got 0.0"),
        ((("cars", float("nan")),), "job 'cars': rate must be 1e-09 to 1e+09, got nan"),
        ((("cars", float("inf")),), "job 'cars': rate must be 1e-09 to 1e+09, got inf"),
        ((("cars", 1.0), ("cars", 2.0)), "jobs with a rate must be there once each, got 'cars' twice"),
        (tuple((f"j{k}", 1.0) for k in range(1001)), "jobs with a rate must be at most 1,000, got 1001"),
    ],
)
def test_a_demand_that_is_wrong_is_refused(found: tuple[tuple[str, float], ...], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        DemandSeen(found)
    assert words in str(error.value)


def test_a_demand_of_a_job_that_is_in_no_plan_is_refused() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()))
    with pytest.raises(ValueError, match="rates must be of jobs of the plan, cars, bus, got 'trams'"):
        check(pool.scheduler, rates(cars=18.0, trams=1.0))
    assert no_op(pool.scheduler, rates(cars=18.0, trams=1.0), pool.now) == []
    assert pool.tell(rates(cars=18.0, trams=1.0)) == []  # nothing of it counts


BODY = json.dumps(PartEvent.of(PlanGiven(MADE)).body)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan_given", '{"plan":[]}'),
        ("plan_given", '{"plan":7}'),
        ("demand_seen", '{"rates":[["cars","much"]]}'),
        ("demand_seen", '{"rates":[["cars",true]]}'),
        ("demand_seen", '{"rates":[[3,1.0]]}'),
        ("demand_seen", "{}"),
        ("plan_given", BODY.replace('"fp32"', "true")),
        ("plan_given", BODY.replace('"night"', "[]")),
    ],
)
def test_what_is_no_plan_is_not_read_as_one(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"event edge_cloud.{name}: "):
        PartEvent(f"edge_cloud.{name}", json.loads(text)).decoded()


WEIRD: tuple[Any, ...] = (None, True, -1, 0, 7, 10**15, 0.5, -2.5, 1e9, 1e-9, "", "a", "cloud", "fp32", [], [[]], {})


def mutated(value: Any, draw: np.random.Generator) -> Any:
    """Return JSON values of which one has been replaced, removed or repeated."""
    if not isinstance(value, list) or not value or draw.random() < 0.15:
        return WEIRD[int(draw.integers(len(WEIRD)))]
    place = int(draw.integers(len(value)))
    kind = draw.random()
    if kind < 0.1:
        return value[:place] + value[place + 1 :]
    if kind < 0.2:
        return [*value, value[place]]
    return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]


@pytest.mark.nightly
def test_whatever_a_plan_says_it_is_refused_in_words_or_followed() -> None:
    body = json.loads(BODY)
    followed = 0
    for seed in range(1500):
        draw = np.random.default_rng(seed)
        try:
            event = PartEvent("edge_cloud.plan_given", {"plan": mutated(body["plan"], draw)}).decoded()
        except ValueError:
            continue
        pool = Pool(NAMES) if followed < 50 else None  # a scheduler takes long to make
        assert isinstance(event, PlanGiven)
        controller, view = PlacementController(), made_up(NAMES)
        try:
            controller.check(event, view)
        except ValueError as error:
            assert str(error)  # noqa: PT017
            continue
        followed += 1
        for then, now in ((event, 1.0), (rates(cars=18.0), 2.0), (rates(bus=1e9), 3.0), (Tick(), HOUR), (Tick(), DAY)):
            view.take(sent(then), now)
            controller.handle(then, now, view)
            if pool is not None:
                pool.tell(then, now + 10.0)
    assert followed > 100


def test_a_pool_without_locations_takes_no_plan() -> None:
    scheduler = Scheduler(Settings())
    for event in (PlanGiven(given()), rates(cars=1.0)):
        with pytest.raises(ValueError, match=r"the pool has no controller that hears it \(plan\)"):
            check(scheduler, event)
        assert no_op(scheduler, event, 1.0) == []
        assert scheduler.handle(sent(event), 1.0) == []


def test_a_plan_for_the_locations_of_another_pool_changes_nothing() -> None:
    scheduler, event = Scheduler(replace(SETTINGS, devices=2, locations=("a", CLOUD))), PlanGiven(given())
    with pytest.raises(ValueError, match="must be locations of the pool, a, cloud, got 'b'"):
        check(scheduler, event)
    assert no_op(scheduler, event, 1.0) == []


def test_a_pool_says_what_its_plan_says_now() -> None:
    assert describe(Scheduler(Settings())) is None
    pool = Pool(NAMES)
    assert describe(pool.scheduler) is None
    pool.tell(PlanGiven(given()))
    found = describe(pool.scheduler)
    assert found is not None
    assert (found["period"], found["next"], set(found["asked"])) == ("night", HOUR, set(NAMES))


def test_a_rate_out_of_all_proportion_does_not_stop_the_pool() -> None:
    pool = Pool(NAMES)
    pool.tell(PlanGiven(given()._replace(terms=given().terms._replace(extra_cost=1e9))))
    pool.tell(rates(cars=1e9))
    assert max(ask.devices or 0 for ask in pool.asks) == 1024
    assert set(pool.where()) == {"cars-0", "bus"}


# ------------------------------------------------------------------------------------------------------ locations


def test_a_bundle_names_the_controller_of_plans() -> None:
    problems = Problems(Position("bundle.yaml"))
    section = read_pool({"devices": {"a": 1, "cloud": 2}, "controllers": {"plan": {}}}, problems)
    assert problems.messages == []
    settings = with_pool(Settings(), section)
    assert settings.locations == ("a", "cloud", "cloud")
    assert settings.controllers == {"plan": {}}
    assert Settings(**settings.to_dict()).controllers == {"plan": {}}
    assert settings.packages == {}  # it is the library's own
    assert pool_to_dict(settings, "cpu")["devices"] == {"a": 1, "cloud": 2}
    assert with_pool(Settings(), PoolSection("cpu", 1, 1, None)).controllers == {}
    with pytest.raises(ValueError, match="controller plan: unknown argument 'moves'; it takes none"):
        Settings(controllers={"plan": {"moves": 1}})


# ---------------------------------------------------------------------------------------------------- on a cluster


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_surge_on_four_nodes_moves_one_training_and_its_loss_continues(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    command = [sys.executable, str(ROOT / "examples/edge_cloud.py"), "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240)
    told: list[dict[str, Any]] = json.loads(path.read_text())
    changes = [line for line in told if "reason" in line]
    seen: dict[str, list[dict[str, Any]]] = {}
    for line in told:
        if "job" in line:
            seen.setdefault(line["job"], []).append(line)
    assert [(change["to"], change["devices"]) for change in changes] == [("cloud", 2), ("cloud", 1)]
    assert changes[0]["from"] != "cloud"
    assert changes[0]["reason"].endswith("cloud has room")
    assert changes[1]["reason"] == "demand is lower: the additional GPUs are given back"
    night, day, surge, after = seen["cameras"]
    assert night["node"] == day["node"] != surge["node"] == after["node"]
    assert night["process"] == day["process"] != surge["process"]
    assert [line["ranks"] for line in (night, day, surge, after)] == [1, 1, 2, 1]
    # It resumes from the batch at which it left, and so does its loss.
    assert 0 <= surge["began"] - day["step"] <= 60
    assert surge["began"] <= surge["step"] <= after["began"] <= after["step"]
    assert after["loss"] < surge["loss"] + 0.5 < night["loss"] + 0.5
    # The others stay where they are.
    assert len({(line["node"], line["process"]) for line in seen["meters"]}) == 1
    assert len({(line["node"], line["process"]) for line in seen["buses"]}) == 1


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_rising_demand_on_four_nodes_moves_a_training_before_its_device_is_too_few(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    command = [sys.executable, str(ROOT / "examples/edge_cloud.py"), "--forecast", "--json", str(path)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=240)
    told: list[dict[str, Any]] = json.loads(path.read_text())
    [foreseen] = [line for line in told if "reason" in line]
    assert 15.0 < foreseen["rate"] < 16.0, "a device trains 16 samples a second"
    assert (foreseen["to"], foreseen["devices"]) == ("cloud", 2)
    assert foreseen["reason"].endswith("samples/s are forecast")
    before, at_noon, moved = [line for line in told if line.get("job") == "cameras"]
    assert before["ranks"] == at_noon["ranks"] == 1
    assert (moved["location"], moved["ranks"]) == ("cloud", 2)
    assert moved["began"] - at_noon["step"] >= 0, "it resumes from the batch at which it left"
