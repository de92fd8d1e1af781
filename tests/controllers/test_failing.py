"""A controller that raises is disabled, users are told, and the pool continues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightning_core.controllers import CONTROLLERS
from lightning_core.controllers.market import MarketController
from lightning_core.core.control import Allowance, Ask, Asker, NodesWanted, PoolAnswer
from lightning_core.core.events import Event, Submit, Tick
from lightning_core.core.pool_view import PoolView
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.controllers.market_pool import MarketPool
from tests.controllers.market_world import elastic


class Raises(MarketController):
    """Raises once a time has come."""

    at = 15.0

    def handle(self, event: Event, now: float, pool: PoolView) -> list[Ask | PoolAnswer]:
        if now > self.at:
            raise ZeroDivisionError("by hand")
        return super().handle(event, now, pool)


class Greedy(MarketController):
    """Wants what it may not."""

    def handle(self, event: Event, now: float, pool: PoolView) -> Any:
        return [Allowance(None, Reason("withdrawn"))]


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
    cloud = pool.scheduler.cloud.to_dict()
    assert cloud["trouble"] == {"market": "ZeroDivisionError: by hand"}
    assert sum(pool.wanted) > 0  # the job trains on the nodes that there are
    pool.live(250.0)
    assert pool.scheduler.names(active=True) == []
    assert pool.wanted == (0, 0)
    pool.host.close()
    with Journal.open(tmp_path / "journal.db") as journal:
        again = replay(journal, whole=True)
        assert again.digest == journal.digest
    assert again.scheduler.cloud.to_dict() == cloud | {
        "wanted_spot": 0, "wanted_on_demand": 0, "reason": "no job needs a node", "spot": 0, "on_demand": 0, "warm": 0,
    }  # fmt: skip


def test_one_that_wants_what_it_may_not_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTROLLERS, "market", Greedy)
    host = Host(Settings("fifo", controllers={"market": {}}), clock=lambda: 0.0)
    answers: Sequence[Any] = host.handle(Submit((elastic("a", 40, 300.0),)))
    assert not [answer for answer in answers if isinstance(answer, PoolAnswer)]
    assert host.scheduler.cloud.failed[Asker.MARKET].startswith(
        "AssertionError: the spot policy may not want Allowance"
    )
    with pytest.raises(AssertionError, match="a controller has failed"):
        host.scheduler.check()
    assert not [one for one in host.handle(Tick()) if isinstance(one, NodesWanted)]
