"""Stories of golden journals with parts: a market with its budget and calendar, a placement plan, and owners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_core.core.control import WallClock
from lightning_core.core.events import PartEvent
from lightning_core.core.jobs import Beside, Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.edge_cloud.day_plan import DemandSeen, PlanGiven
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.parts.edge_cloud.test_placement_controller import HOUR, NAMES, given

INTERVAL = 60.0
# Spot nodes on offer: some are preempted, and there are none for a while.
COUNTS = [2, 2, 4, 4, 1, 1, 0, 2, 3, 4, 4, 4, 2, 2, 1, 0, 0, 1, 4, 4]
PRICES = [0.4, 0.4, 0.5, 0.3, 0.9, 0.9, 1.2, 0.4, 0.4, 0.3]
SIZES = (1, 2, 4)
# Monday, 2026-11-23, 11:50 UTC: ten minutes before the calendar closes the pool for two.
CLOCK = 1_795_434_600.0
CLOSED = "not between 12:00 and 12:02"

# Of whom ann has a quota, bob a cap and carl a budget that is spent before the end.
OWNERS: dict[str, dict[str, Any]] = {
    "ann": {"devices": 1},
    "bob": {"weight": 2.0, "max_devices": 1},
    "*": {"device_hours": 0.01},
}


def settings() -> dict[str, Settings]:
    """Return the settings of each: a market under each spot policy, a plan, and owners under two policies."""
    made = {f"market-{policy}": on_market(policy) for policy in SPOT_POLICIES}
    made |= {
        f"{name}-owners": Settings(name, devices=3, divider={"owners": OWNERS}, beside=Beside.NEVER)
        for name in ("edf", "laira")
    }
    return made | {"plan": Settings("fifo", devices=5, beside=Beside.NEVER, period=60.0, stay=60.0,
                                    locations=("a", "b", "c", "cloud", "cloud"), controllers={"plan": {}})}  # fmt: skip


def on_market(policy: str) -> Settings:
    """Return the settings of a pool on a market."""
    controllers: dict[str, dict[str, Any]] = {
        "calendar": {"closed": [CLOSED]},
        "market": {"interval": INTERVAL, "policy": policy, "save_every": 10.0, "budget": 22.0},
    }  # fmt: skip
    return Settings("edf", period=20.0, devices=12, controllers=controllers, beside=Beside.NEVER)


def play(path: Path, settings: Settings) -> None:
    """Write the journal of a story."""
    if "plan" in settings.controllers:
        _play_plan(path, settings)
    else:
        _play_market(path, settings)


def _play_market(path: Path, settings: Settings) -> None:
    """One job whose throughput is unknown, and a more urgent one that comes later."""
    jobs = []
    for name, work, deadline, submitted in (("long", 1500, 1150.0, 0.0), ("urgent", 450, 420.0, 200.0)):
        job = Job(name, deadline, BatchTarget(work), can=frozenset(Capability), max_devices=SIZES[-1], sizes=SIZES)
        cells = [*range(20, work, 20), work]
        jobs.append(SimulatedJob(job, cells, [1.0 / cell for cell in cells], 3.0, submitted, (1.0, 1.8, 3.0)))
    prices = np.array(PRICES * (len(COUNTS) // len(PRICES)))
    cloud = VirtualCloud(Market(prices, np.array(COUNTS), seconds=INTERVAL), 4.0, 0.0, 5.0, 3.0, 1.0)
    delays = Delays(start=2.0, release=1.0, report_every=10.0)
    Simulation(settings, jobs, delays, path, nodes=cloud, wall_clock=WallClock(CLOCK)).run()


def _play_plan(path: Path, settings: Settings) -> None:
    """Three jobs of a plan, of which one gets more than was planned for, and one trains in the second period alone."""
    cells = list(range(2000, 20_001, 2000))
    base = Job("job", 1e6, BatchTarget(20_000), can=frozenset(Capability))
    jobs = [SimulatedJob(replace(base, name=name), cells, [1.0 / cell for cell in cells], 5.0) for name in NAMES]
    told = [(0.0, PlanGiven(given())), (HOUR / 2, DemandSeen((("cars", 18.0),)))]
    events = [(at, PartEvent.of(event)) for at, event in told]
    Simulation(settings, jobs, Delays(report_every=60.0), path, events=events).run()
