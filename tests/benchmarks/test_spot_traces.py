"""The markets that the benchmark of spot policies plays in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.market.spot import gap_closed, paired
from benchmarks.market.spot_traces import PRICE, load, scaled


def test_markets_are_read_with_and_without_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("hour,avail,price_p10\n" + "".join(f"{k / 2},{k % 17},0.5\n" for k in range(60)))
    (tmp_path / "b.csv").write_text("hour,avail\n" + "".join(f"{k / 2},{k % 2 * 4}\n" for k in range(60)))
    (tmp_path / "jobs.csv").write_text("job_id,ddl\n1,2\n")
    (tmp_path / "short.csv").write_text("avail\n1\n2\n")
    (tmp_path / "deep").mkdir()
    trace = {"metadata": {"gap_seconds": 600}, "data": ([0] * 6 + [1] * 12) * 10}
    (tmp_path / "deep" / "c.json").write_text(json.dumps(trace))
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "gap.csv").write_text("avail,price\n1,\n")
    priced, several, one = load(tmp_path)
    printed = capsys.readouterr().out
    assert all(f"left out: {tmp_path / name}" in printed for name in ("jobs.csv", "short.csv", "other.json", "gap.csv"))
    assert [trace.name for trace in (priced, several, one)] == ["a", "b", "c"]
    assert [trace.priced for trace in (priced, several, one)] == [True, False, False]
    assert [trace.max_nodes for trace in (priced, several, one)] == [12, 4, 1]
    assert several.extreme == 1.0
    assert set(several.market.price.tolist()) == {PRICE}
    batch = several.jobs(5, seed=3)
    assert batch.feasible.all()
    assert batch.work[0] / batch.max_nodes[0] == pytest.approx(80 / 12)


def test_without_a_folder_a_recorded_and_a_synthetic_market_are_used(tmp_path: Path) -> None:
    priced, binary = load(tmp_path / "nowhere")
    assert (priced.name, priced.priced, binary.priced, binary.extreme) == ("a100", True, False, 1.0)


def test_a_market_can_be_scaled_to_a_mean(tmp_path: Path) -> None:
    market = scaled(load(tmp_path)[0].market, counts=5.0, prices=0.4)
    assert market.available.mean() == pytest.approx(5.0, abs=0.1)
    assert market.price.mean() == pytest.approx(0.4)


def test_the_comparison_of_two_policies() -> None:
    base, ours, best = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 4.0]), np.array([3.0, 4.0, 5.0])
    assert gap_closed(ours, base, best) == pytest.approx(100 * 4 / 6)
    assert paired(ours, base) == pytest.approx((4 / 3, np.std([1, 2, 1], ddof=1) / 3**0.5))
