"""A plan moves the jobs of a pool: on a scheduler alone, and, as in the example, on a Ray cluster of four nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.control import Ask, Asker
from lightning_core.core.events import Event, Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.placement import CLOUD, Cloud, Demands, EdgePrices, Gpu, Level, Node, PlacedJob, Weights, plan
from lightning_core.placement.executor import PlanExecutor, job_name
from lightning_core.placement.reconfigurer import ReconfigurationLimits
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.conftest import ROOT

CAN = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE, Capability.RESIZE})
DEMANDS = Demands(
    ("night", "day"), {"device": Gpu(4.0)}, {"fp32": Level(0.9, {"device": 1600.0})},
    {name: Node({"device": 1.0}) for name in ("a", "b", "c")},
    {"cars": PlacedJob((1, 2), 15.0, 0.4), "bus": PlacedJob((1, 1), 15.0, 0.4, moves=False)},
    Cloud(40.0), EdgePrices(0.8),
)  # fmt: skip


class Pool:
    """A scheduler whose devices are at the plan's locations, and a clock."""

    def __init__(self, names: list[str]) -> None:
        locations = ("a", "b", "c", CLOUD, CLOUD)
        self.scheduler = Scheduler(Settings(policy="fifo", devices=5, stay=0.0, locations=locations))
        self.now = 0.0
        jobs = [Job(name, 1e4, BatchTarget(1000), can=CAN, max_devices=2, sizes=(1, 2)) for name in names]
        self.tell(Submit(tuple(jobs)))

    def tell(self, event: Event) -> None:
        self.now += 1.0
        self.scheduler.handle(event, self.now)
        self.scheduler.check()

    def where(self) -> dict[str, tuple[str, int]]:
        locations = self.scheduler.settings.locations
        return {
            status.name: (locations[status.devices[0]], len(status.devices))
            for status in self.scheduler.status()
            if status.share
        }


def test_each_period_sends_each_job_to_its_planned_location() -> None:
    placement = plan(DEMANDS, Weights(0.9, 0.1, 0.01)).placement
    names = [job_name(DEMANDS, task) for task in placement.served]
    assert names == ["cars-0", "cars-1", "bus"]
    pool = Pool(names)
    acting = PlanExecutor(placement, pool.tell, ReconfigurationLimits(cost=5.0))
    with pytest.raises(ValueError, match="no period has begun: call begin first"):
        acting.serve({"cars": 18.0})
    acting.begin(0)
    night = {job_name(DEMANDS, task): now[0] for task, now in placement.served.items() if now[0] is not None}
    assert pool.where() == {name: (choice.location, 1) for name, choice in night.items()}
    assert set(pool.where()) == {"cars-0", "bus"}
    assert pool.scheduler.last("cars-1").paused
    acting.begin(1)
    day = {job_name(DEMANDS, task): now[1] for task, now in placement.served.items() if now[1] is not None}
    assert pool.where() == {name: (choice.location, 1) for name, choice in day.items()}
    assert not pool.scheduler.last("cars-1").paused


def test_higher_demand_moves_a_job_and_lower_demand_leaves_it_there() -> None:
    """No node at the edge has two devices: one of the jobs moves, and the cloud has no device left for the other."""
    placement = plan(DEMANDS, Weights(0.9, 0.1, 0.01)).placement
    pool = Pool([job_name(DEMANDS, task) for task in placement.served])
    acting = PlanExecutor(placement, pool.tell, ReconfigurationLimits(cost=5.0, moves=1))
    acting.begin(1)
    before = pool.where()
    changes = acting.serve({"cars": 18.0})
    assert sorted(change.kind for change in changes) == ["left", "moved"]
    moved = next(job_name(DEMANDS, change.task) for change in changes if change.kind == "moved")
    assert pool.where() == before | {moved: (CLOUD, 2)}
    [back] = acting.serve({"cars": 15.0})
    assert back.kind == "released"
    assert pool.where() == before | {moved: (CLOUD, 1)}
    acting.begin(0)  # the planned locations apply again
    assert all(location != CLOUD for location, _ in pool.where().values())


def test_jobs_without_a_place_in_a_period_are_held_and_say_so() -> None:
    placement = plan(DEMANDS, Weights(0.9, 0.1, 0.01)).placement
    night, day = DEMANDS.periods[:2]
    told = list[Event]()
    acting = PlanExecutor(placement, told.append)
    acting.begin(0)
    held = Ask("cars-1", Asker.PLAN, hold=True, release=True, reason=Reason("not_in_plan", text=night))
    assert [event for event in told if isinstance(event, Ask) and event.hold] == [held]
    told.clear()
    acting.begin(1)
    assert {event.reason for event in told if isinstance(event, Ask)} == {Reason("in_plan", text=day)}
    pool = Pool(["cars-0", "cars-1", "bus"])
    for event in told:
        pool.tell(event)
    for event in told:  # what is asked already is asked no second time
        assert pool.scheduler.answers_to_no_op(event, 1e3) == []


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_surge_on_four_nodes_moves_one_training_and_its_loss_continues(tmp_path: Path) -> None:
    path = tmp_path / "seen.json"
    command = [sys.executable, str(ROOT / "examples/edge_cloud.py"), "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240)
    told: list[dict[str, Any]] = json.loads(path.read_text())
    changes = [line for line in told if "kind" in line]
    seen: dict[str, list[dict[str, Any]]] = {}
    for line in told:
        if "job" in line:
            seen.setdefault(line["job"], []).append(line)
    assert [(change["kind"], change["to"], change["gpu_count"]) for change in changes] == [
        ("moved", "cloud", 2),
        ("released", "cloud", 1),
    ]
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
