"""Whose the time of a device is while jobs of several owners train on it at once."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.core.events import Event
from lightning_core.scheduler.tables.table import OTHER_OWNERS
from lightning_core.simulation.scenario import SimulatedJob
from tests.pairs import SETTLED, Pairs, simulated


class Accounts(Pairs):
    """Pairs of a pool that is divided among owners.

    Attributes:
        during: Shares of the owners once the companies are settled.
        last: The same while the last job was there.
    """

    def __init__(self, jobs: list[SimulatedJob], owners: dict[str, Any], **settings: Any) -> None:
        super().__init__(jobs, divider={"owners": owners}, **settings)
        self.during: dict[str, dict[str, Any]] = {}
        self.last: dict[str, dict[str, Any]] = {}

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        self.last = {one["owner"]: one for one in self._scheduler.shares()}
        if not self.during and self._queue.now >= SETTLED:
            self.during = self.last


def two() -> list[SimulatedJob]:
    return [simulated("a", 500.0, 1500, owner="ann"), simulated("b", 700.0, 1000, owner="bob")]


def test_no_company_takes_an_owner_above_its_cap() -> None:
    jobs = [
        simulated("a1", 500.0, 1500, owner="ann", device=0),
        simulated("b1", 500.0, 1500, owner="bob", device=1),
        simulated("a2", 700.0, 1500, owner="ann", device=1),
    ]
    pool = Accounts(jobs, {"ann": {"max_devices": 1}, "*": {}}, devices=2)
    pool.run()  # checks after each event that no owner holds more
    assert pool.during["ann"]["held"] <= 1.0 + 1e-6


def test_what_a_pair_holds_is_one_device() -> None:
    pool = Accounts(two(), {"*": {}})
    pool.run()
    assert {job.name: job.beside for job in pool.settled} == {"a": (OTHER_OWNERS,), "b": (OTHER_OWNERS,)}
    held = {owner: one["held"] for owner, one in pool.during.items()}
    assert sum(held.values()) == pytest.approx(1.0)
    assert held == pytest.approx({job.owner: job.held_share for job in pool.settled})


def test_device_hours_of_owners_add_up_to_the_time_of_the_device() -> None:
    pool = Accounts(two(), {"*": {}})
    outcome = pool.run()
    took = outcome.summary.wall
    used = {owner: 3600 * one["device_hours"] for owner, one in pool.last.items()}
    assert sum(used.values()) == pytest.approx(took, rel=1e-6)
    told = {job.owner: job.device_seconds for job in outcome.summary.jobs}
    assert used == pytest.approx(told, rel=0.02)  # reports come some time after what they tell of
