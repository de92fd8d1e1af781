"""Forecasts that know the recording that a live market replays: the truth, or the truth with the paper's noise."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lightning_core.core.answers import Verdict
from lightning_core.core.codec import decode_event, encode_answers
from lightning_core.core.saved_state import restored
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud_events import QuotedAhead, QuotedBefore
from lightning_core.parts.market.earlier_feedback import known_before
from lightning_core.parts.market.forecasters import (
    CAUSAL,
    FORECASTERS,
    MarketForecaster,
    Noise,
    Perfect,
    knows_future,
    make_live_forecaster,
    make_market_forecaster,
)
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import numbered
from tests.cli.test_cli import Said
from tests.conftest import ROOT
from tests.parts.market.messages import seen
from tests.parts.market.test_simulated_market import DELAYS, drawn, elastic

NOISY = "noisy:by=1.5,price=1,count=8,tails=heavy,seed=4"


def written(market: Market, path: Path) -> Path:
    rows = zip(market.available.tolist(), market.price.tolist(), strict=True)
    path.write_text("available,price\n" + "".join(f"{count},{price!r}\n" for count, price in rows))
    return path


def settings(trace: Path, forecaster: str, interval: float = 1800.0, **more: Any) -> Settings:
    terms = {"trace": str(trace), "policies": ("ahap:omega=3",), "forecaster": forecaster, **more}
    plans = {"interval": interval, "forecaster": forecaster, "terms": terms}
    return Settings("edf", period=60.0, devices=8, controllers={"market": plans})


# ---------------------------------------------------------------------------------------------------- forecasts


def test_prices_and_counts_have_errors_of_their_own_by_one_seed() -> None:
    values = np.full(300, 2.0)
    noise = Noise(0.5, price=1.0, count=8.0, seed=3)
    wrong = [(one.table(values, 4) - 2.0) / (0.5 * scale) for one, scale in ((noise.prices, 1.0), (noise.counts, 8.0))]
    assert all(0.98 < np.abs(one).max() <= 1 for one in wrong)
    assert abs(float(np.corrcoef(wrong[0].ravel(), wrong[1].ravel())[0, 1])) < 0.1
    series = [one for seed in range(3) for one in (Noise(0.5, seed=seed).prices, Noise(0.5, seed=seed).counts)]
    assert len({one.table(values, 1).tobytes() for one in series}) == len(series)  # no two seeds share one
    assert np.array_equal(replace(noise, by=0.0).prices.table(np.arange(9.0), 3), Perfect().table(np.arange(9.0), 3))


@pytest.mark.parametrize("forecaster", ["perfect", "noisy:by=0.3", NOISY])
def test_a_market_that_is_known_up_to_now_is_forecast_by_its_recording(forecaster: str) -> None:
    """Also behind the past that the pool begins with; after the end of the recording its last forecast stays."""
    whole, job, past = drawn(2), SpotJob(20.0, 8), 5
    known = make_live_forecaster(forecaster, whole.seconds)
    assert isinstance(known, MarketForecaster)
    known.recording, known.first = whole, past
    expected = make_market_forecaster(forecaster, whole.seconds).look(JobBatch([job], whole, [20]), 3, 4)
    price, available = (np.concatenate([column[:past], column[:24]]) for column in (whole.price, whole.available))
    live = Market(np.pad(price, (0, 40), mode="edge"), np.pad(available, (0, 40), mode="edge"), seconds=whole.seconds)
    found = known.look(JobBatch([job], live, [past + 20]), 3, 4)
    assert np.array_equal(found.prices, expected.prices)
    assert np.array_equal(found.counts, expected.counts)
    last, after = (known.look(JobBatch([job], live, [past + at]), 0, 4) for at in (len(whole) - 1, len(whole) + 8))
    assert np.array_equal(last.counts[:, 1:], after.counts[:, 1:])


def test_what_knows_the_future_is_told_from_what_does_not() -> None:
    assert {name for name in FORECASTERS if knows_future(name)} == {"perfect", "noisy"} == {*FORECASTERS} - {*CAUSAL}


# ---------------------------------------------------------------------------------------------------- in a pool


def simulated(market: Market, forecaster: str, folder: Path) -> tuple[Any, Path]:
    folder.mkdir()
    given = settings(written(market, folder / "trace.csv"), forecaster)
    cloud, path = VirtualCloud(market, 60.0, settings=given), folder / "journal.db"
    return Simulation(given, [elastic("a", 24, 11)], DELAYS, path, check=True, nodes=cloud).run(), path


def test_without_noise_all_is_as_with_the_perfect_forecast_and_otherwise_not(tmp_path: Path) -> None:
    market = drawn(1)
    batch = JobBatch([SpotJob(40.0, 20, 1, 4)], market, [3])
    told = ("perfect", "noisy:by=0,seed=3", "noisy:by=0,price=1,count=8,tails=heavy", NOISY)
    ledgers = [
        backtest([SPOT_POLICIES.make("ahap:omega=3")], batch, make_market_forecaster(one, 1800.0))[0] for one in told
    ]
    outcomes = [simulated(market, one, tmp_path / str(number))[0] for number, one in enumerate(told)]
    held = [np.concatenate([ledger.spot, ledger.on_demand]).tolist() for ledger in ledgers]
    assert held[0] == held[1] == held[2] != held[3]
    rows = [outcome.nodes.rows for outcome in outcomes]
    assert rows[0] == rows[1] == rows[2] != rows[3]
    assert all(outcome.jobs[0].verdict is Verdict.MET for outcome in outcomes)  # the net is above all of them


def test_the_journal_holds_the_recording_and_decides_alike_without_its_file(tmp_path: Path) -> None:
    market = drawn(1)
    _, path = simulated(market, NOISY, tmp_path / "run")
    (tmp_path / "run" / "trace.csv").unlink()
    check_decides_alike(path, market)


def check_decides_alike(path: Path, market: Market) -> None:
    """Check that a pool was told a market once, and that what it decided is decided again."""
    with Journal.open(path, read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest
        entries = list(journal.entries())
        anew = Scheduler(journal.settings())
    ahead = [event for entry in entries if isinstance(event := seen(decode_event(entry.event)), QuotedAhead)]
    assert ahead == [QuotedAhead(tuple(market.price.tolist()), tuple(market.available.tolist()))]
    for number, entry in enumerate(entries):  # computed again, not recalled; once after a restart
        if number == len(entries) // 2:
            anew = restored(Scheduler(anew.settings), anew.state())
        event = decode_event(entry.event)
        answers = anew.handle(event, entry.now)
        assert encode_answers(answers, anew.accepted, event, anew.calls) == entry.answers


def test_plans_wait_for_the_recording_of_which_the_first_counts() -> None:
    terms = {"forecaster": "perfect", "policies": ("ahap",)}
    run = MarketController(1800.0, "ahap", forecaster="perfect", terms=terms)
    assert run.awaits_recording
    first, other, past = QuotedAhead((0.3, 0.4), (5, 0)), QuotedAhead((0.9,), (1,)), QuotedBefore((0.5,), (2,))
    pool: Any = None
    for event, news in ((past, True), (first, True), (other, False), (first, False)):
        assert run.changes(event, pool) is news
        run._take(event, 0.0, pool)
    assert not run.awaits_recording
    assert run.state()["plans"]["ahead"] == [[0.3, 0.4], [5, 0]]
    again = MarketController(1800.0, "ahap", forecaster="perfect", terms=terms)
    again.restore(run.state())
    assert again.state() == run.state()
    forecasts = again._plans._forecasts
    assert isinstance(forecasts, MarketForecaster)
    assert forecasts.recording is not None
    assert (forecasts.first, len(forecasts.recording)) == (1, 2)
    causal = MarketController(1800.0, "ahap", terms={"policies": ("ahap",)})
    assert not causal.awaits_recording
    assert not causal.changes(first, pool)  # it is not looked at


def test_a_pool_tells_its_plans_the_recording_once_before_the_first_job(tmp_path: Path) -> None:
    given = settings(written(drawn(1), tmp_path / "trace.csv"), NOISY)

    async def story() -> None:
        actor = SchedulerActor(given.to_dict(), str(tmp_path / "pool"))
        await actor.submit((elastic("a", 24, 11).job,))
        await actor.close()

    for _ in range(2):
        asyncio.run(story())
    with Journal.open(tmp_path / "pool" / "journal.db", read_only=True) as journal:
        names = [type(seen(decode_event(entry.event))).__name__ for entry in journal.entries()]
    assert names.count("QuotedAhead") == 1
    assert names.index("QuotedAhead") < names.index("Submit")


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_real_pool_looks_ahead_by_the_recording_with_noise(tmp_path: Path) -> None:
    """On simulated machines: spot nodes go in the third interval, and are back in the fifth."""
    counts = [2, 2, 0, 0, *[2] * 20]
    market = Market(np.full(len(counts), 0.3), np.array(counts), seconds=15.0)
    trace = written(market, tmp_path / "trace.csv")
    section = {"trace": str(trace), "interval": "15s", "policies": ["ahap:omega=3"], "forecaster": NOISY}
    job = numbered(tmp_path / "a", "240s", 900, 0.03, max_devices=2, save_every="5s")
    bundle, run = tmp_path / "bundle.yaml", tmp_path / "run"
    bundle.write_text(yaml.safe_dump({"policy": "edf", "period": "0.5s", "market": section, "jobs": {"a": job}}))
    command = [sys.executable, "-m", "lightning_core.cli.main", "run", str(bundle), "--run-dir", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    trace.unlink()
    check_decides_alike(run / "journal.db", market)
    rows = json.loads((run / "ledger.json").read_text())["intervals"]
    assert sum(row["batches"] for row in rows) == 900
    assert any(row["spot"] for row in rows)
    assert all(row["spot"] <= counts[row["number"]] for row in rows)


# ---------------------------------------------------------------------------------------------------- refusals


def test_a_future_in_other_intervals_than_the_pools_is_refused(tmp_path: Path) -> None:
    given = settings(written(drawn(1), tmp_path / "trace.csv"), "perfect", interval=600.0)
    with pytest.raises(ValueError, match="interval must be that of the recording, 1800 s, for forecaster 'perfect', "):
        known_before(given)


def test_a_controller_whose_terms_do_not_name_the_forecaster_is_refused() -> None:
    for terms in (None, {}, {"quoted": True}):
        with pytest.raises(ValueError, match="where the future is not recorded, got 'noisy:by=1', which knows it"):
            MarketController(forecaster="noisy:by=1", terms=terms)


def test_a_plan_from_the_end_of_a_recording_on_knows_no_future(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({"market": {"forecaster": NOISY}, "job": {"work": 20, "deadline": 5}, "starts": 3}))
    said = Said(capsys, "market", "plan", "--config", str(study))
    assert said.err.startswith("error: forecaster must be one of last, ")
    assert said.out == ""
    assert Said(capsys, "market", "backtest", "--config", str(study), "--policy", "ahap").code == 0
