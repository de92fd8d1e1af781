"""A loss to reach on a market: the plan and its safety net go by a quantile of the work that is forecast."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.events import Cell, Horizon, Report, Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import LossTarget
from lightning_core.history.history import History
from lightning_core.parts.market.job_model import SURE, sure_work
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay as replayed
from lightning_core.view.why import why
from tests.parts.market.market_pool import MarketPool
from tests.parts.market.market_world import World, controller, market

CAN = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE, Capability.RESIZE})


def job(deadline: float, **more: Any) -> Job:
    return Job("a", deadline, LossTarget("loss", 0.1), can=CAN, max_devices=4, sizes=(1, 2, 4), **more)


def world(deadline: float, needs: int, forecast: FloatArray | None, counts: list[int]) -> World:
    forecasts = {} if forecast is None else {"a": forecast}
    return World({"a": job(deadline)}, market(counts), needs={"a": needs}, forecasts=forecasts)


def test_work_is_the_quantile_that_is_hardly_ever_exceeded_and_at_least_one_more_batch() -> None:
    assert sure_work(0, np.exp(LEVELS)) == pytest.approx(math.exp(0.95))
    assert sure_work(2, np.full(20, 2.5)) == 3.0
    assert sure_work(0, np.where(LEVELS < 0.95, 2.5, math.inf)) == math.inf
    assert sure_work(0, np.full(20, math.nan)) is None


def test_nodes_follow_the_forecast_and_go_back_when_the_loss_is_reached() -> None:
    made, run = world(100.0, 150, None, [2] * 12), controller()
    made.live(run, 19.9)
    assert made.held == [(0, 1)]  # it trains on its fewest nodes until something is known of its work
    assert made.asked_for == (0, 1)
    made.forecasts["a"] = np.full(20, 200.0)
    made.live(run, 10.0)
    assert made.asked_for == (2, 0)  # 200 in 7 intervals: spot nodes, if there are some
    made.forecasts["a"] = np.full(20, 330.0)
    made.live(run, 10.0)
    assert made.asked_for == (2, 2)  # the net: 280 in 7 intervals of 40
    made.live(run, 40.0)
    assert made.batches["a"] == 150
    assert made.asked_for == (0, 0)
    assert made.rows[-1].number < 8
    [planned] = run.jobs
    assert planned.work == 150  # what it would have cost otherwise goes by what it needed
    words = [str(ask.reason) for ask in made.told]
    assert words[0] == "0 spot and 1 on-demand nodes are held for it"
    assert words[1].startswith("2 spot and 0 on-demand nodes are held for it, for ")
    assert words[1].endswith(" more batches, which are 95% likely to be enough")


@pytest.mark.parametrize("worst", [500.0, math.inf])
def test_a_forecast_that_leaves_no_time_is_told(worst: float) -> None:
    made, run = world(100.0, 150, np.where(LEVELS < 0.9, 100.0, worst), [2] * 12), controller()
    made.live(run, 15.0)
    assert made.asked_for.all == 4  # as fast as it can
    assert str(made.told[-1].reason).endswith("by its forecast too little time is left to be 95% sure")


def reported(scheduler: Scheduler, losses: list[float], **more: Any) -> None:
    cells = tuple(Cell(k + 1, 10 * (k + 1), loss) for k, loss in enumerate(losses))
    batches = 10 * len(losses) or 1
    scheduler.handle(Report("a", 1, 1, 1, batches, float(batches), cells, **more), 10.0)


def pool(job: Job) -> Scheduler:
    market = {"interval": 10.0, "policy": "max-spot"}
    scheduler = Scheduler(Settings("fifo", devices=8, controllers={"market": market}))
    scheduler.handle(Submit((job,)), 0.0)
    return scheduler


def test_work_is_forecast_by_the_curve_by_the_user_or_by_the_end_of_the_training() -> None:
    scheduler = pool(job(1000.0))
    assert np.isnan(scheduler.forecast_work("a")).all()
    reported(scheduler, [], horizon=Horizon(5000, "max_steps"))
    assert scheduler.forecast_work("a").tolist() == [5000.0] * 20
    scheduler = pool(job(1000.0, work=100.0, throughputs=(1.0, 2.0, 4.0)))
    assert np.median(scheduler.forecast_work("a")) == pytest.approx(400.0, rel=0.01)  # on four devices
    reported(scheduler, [1.0 / (k + 1) ** 0.5 for k in range(20)], horizon=Horizon(1200, "max_steps"))
    by_curve = scheduler.forecast_work("a")
    assert by_curve[0] < 1000 < by_curve[-1] == 1200


def test_a_journal_has_the_plan_of_a_loss_and_replays(tmp_path: Path) -> None:
    """The loss is one over the root of the batches: 400 of them. A forecast from 20 cells on knows that."""
    made = MarketPool(path=(path := tmp_path / "journal.db"))
    made.quote(0.4, 2)
    made.submit(replace(job(400.0), target=LossTarget("loss", 0.05)))
    made.live(55.0)
    made.host.close()
    made.open()  # from its journal
    made.live(345.0)
    assert made.scheduler.last("a").verdict is Verdict.MET
    assert made.scheduler.last("a").batches == pytest.approx(400, abs=20)
    made.live(11.0)
    assert made.wanted == (0, 0)
    made.host.close()
    told = [ask.reason for ask in made.asks if ask.reason.code == "market.nodes_held_by_forecast"]
    assert len(told) > 3
    _, _, left, sure = told[-1].numbers
    assert sure == SURE
    assert 0 < left < 200
    with Journal.open(path, read_only=True) as journal:
        again = replayed(journal, whole=True)
        assert repr(again.scheduler.status()) == repr(made.scheduler.status())
        assert again.scheduler.state()["controllers"] == made.scheduler.state()["controllers"]
        assert "likely to be enough" in "\n".join(why(History.read(journal), "a"))
