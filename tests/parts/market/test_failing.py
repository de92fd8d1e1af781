"""A controller that raises is disabled, users are told, and the pool continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_core.controllers import CONTROLLERS, Calendar
from lightning_core.core.control import Ask
from lightning_core.core.events import Submit
from lightning_core.core.pool_view import PoolView
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import PLANNER
from tests.parts.market.market_pool import MarketPool
from tests.parts.market.market_world import elastic


class Raises(MarketController):
    """Raises once a time has come."""

    at = 15.0

    def handle(self, event: Any, now: float, pool: PoolView) -> list[Any]:
        if now > self.at:
            raise ZeroDivisionError("by hand")
        return super().handle(event, now, pool)


def test_the_pool_goes_on_and_gives_nodes_back_after_its_last_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTROLLERS, "market", Raises)
    monkeypatch.setattr("lightning_core.scheduler.state.SchedulerState.check", lambda *_: None)
    pool = MarketPool(path=tmp_path / "journal.db")
    pool.quote(0.4, 4)
    pool.submit(elastic("a", 200, 230.0))
    pool.live(14.0)
    assert sum(pool.wanted) > 0
    pool.live(10.0)
    assert pool.scheduler.failed_parts == {"controller market": "ZeroDivisionError: by hand"}
    assert sum(pool.wanted) > 0  # the job trains on the nodes that there are
    pool.live(250.0)
    assert pool.scheduler.names(active=True) == []
    assert pool.wanted == (0, 0)
    pool.host.close()
    with Journal.open(tmp_path / "journal.db") as journal:
        again = replay(journal, whole=True)
        assert again.digest == journal.digest
    assert again.scheduler.failed_parts == {"controller market": "ZeroDivisionError: by hand"}
    level = again.scheduler.published("market")
    assert level is not None
    assert (level.body["spot"], level.body["on_demand"]) == (0, 0)


class Greedy(Calendar):
    """Asks in another's name."""

    def handle(self, event: Any, now: float, pool: PoolView) -> Any:
        return [Ask("a", PLANNER, devices=0)]


def test_one_of_the_core_that_asks_in_another_s_name_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTROLLERS, "calendar", Greedy)
    host = Host(
        Settings("fifo", controllers={"calendar": {"closed": ["not between 22:00 and 06:00"]}}), clock=lambda: 0.0
    )
    answers = host.handle(Submit((elastic("a", 40, 300.0),)))
    assert not [answer for answer in answers if isinstance(answer, Ask)]
    assert host.scheduler.failed_parts["controller calendar"].startswith("AssertionError: the calendar may answer")
    with pytest.raises(AssertionError, match="a controller has failed"):
        host.scheduler.check()
