"""The benchmark of the first jobs of a pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.market import spot_first_jobs
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.selector import Selector


def test_jobs_earn_by_the_weights_before_their_feedback() -> None:
    """The first draw is even, or the first policy; after that both selectors know the same."""
    jobs = np.array([[0.2, 0.6], [0.3, 0.5], [0.3, 0.5]])
    even, first = (spot_first_jobs.earned(Selector("ab"), jobs, evenly=evenly) for evenly in (True, False))
    assert even - first == pytest.approx((0.4 - 0.2) / 3)
    known = Selector("ab")
    known.begin([[0.0, 1.0]] * 50, [])
    assert spot_first_jobs.earned(known, jobs, evenly=False) == pytest.approx((0.6 + 0.5 + 0.5) / 3, abs=1e-6)


@pytest.mark.nightly
def test_what_is_known_pays_where_the_first_policy_is_bad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spot_first_jobs, "TERMS", MarketTerms(policies=("on-demand", "max-spot")))
    monkeypatch.setattr(spot_first_jobs, "SEEDS", {"quick": 3})
    figures = spot_first_jobs.measure("quick", Path("/nonexistent"), 0)
    assert all(number is not None for number in figures.values())
    assert figures["nothing_gain"] < 0 < figures["past_gain"]  # type: ignore[operator]
    assert figures["past_gain"] > 3 * figures["past_gain_se"]  # type: ignore[operator]
    assert figures["both_gain"] == pytest.approx(figures["past_gain"], abs=0.01)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(row for row in rows if row[:2] == ["nothing", "known"])[-3:] == ["+0.0000", "±", "0.0000"]
