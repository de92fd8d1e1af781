"""The percentages of the paper beside those of its algorithms as printed, and as repaired."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.labels import LABELS
from benchmarks.market import spot_paper
from benchmarks.market.spot_traces import GRACE, VALUE, Trace
from benchmarks.papers.on_markets import STRATEGIES
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.spot_policies import Ahanp, Ahap
from lightning_core.parts.market.traces import shipped_trace


def test_percentages_are_those_of_the_best_of_each_pool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Policies 0 to 104 are AHAP, 105 to 111 AHANP; MSU without the net has a utility below 0."""

    def backtest(policies: Any, batch: JobBatch, *_: Any, guarded: bool) -> list[Any]:
        return [SimpleNamespace(utility=np.array([one])) for one in (40.0, 48.0 if guarded else -1.0, 50.0)]

    def utilities_of(batch: JobBatch, *_: Any, guarded: bool, mode: str) -> tuple[FloatArray, int]:
        utilities = np.full((112, len(batch)), 30.0)
        utilities[[7, 104, 105, 111]] = np.array([[60.0], [45.0], [36.0], [48.0]]) + 12.0 * (mode == "default")
        return utilities, 112

    monkeypatch.setattr(spot_paper, "backtest", backtest)
    monkeypatch.setattr(spot_paper, "utilities_of", utilities_of)
    figures = spot_paper.paper_percentages(Trace(shipped_trace(), priced=True), "quick")
    over = {name.removeprefix("ahap_"): one for name, one in figures.items()}
    assert over == pytest.approx({
        "printed_over_od": 50.0, "printed_over_msu": None, "printed_over_up": 20.0, "printed_over_ahanp": 25.0,
        "repaired_over_od": 80.0, "repaired_over_msu": 50.0, "repaired_over_up": 44.0, "repaired_over_ahanp": 20.0,
    })  # fmt: skip
    printed = capsys.readouterr().out
    assert f"value {VALUE:g} and grace {GRACE:g}, which the paper does not give" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["the", "paper", "+49.0", "+54.8", "+33.4", "+23.2"] in rows
    assert ["AHAP", "as", "printed,", "trimmed", "no", "safety", "net", "60", "+50.0", "-", "+20.0", "+25.0"] in rows
    assert sum(row[:1] == ["selector"] for row in rows) == 4


def test_the_value_and_grace_that_the_percentages_depend_on_stand_beside_them() -> None:
    shown = {name: words for name, (words, _) in LABELS["spot"].items() if name.startswith("ahap_")}
    assert len(shown) == 8
    assert all(f"with value {VALUE:g} and grace {GRACE:g}" in words for words in shown.values())


def test_figure_4_returns_cost_and_punctuality_of_each_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    figures = spot_paper.figure_4(Trace(shipped_trace(), priced=True), 5)
    names = {f"fig4_{what}_{name}" for name in STRATEGIES for what in ("cost", "on_time")}
    assert figures.keys() == {*names, "fig4_wrong_worse_pct"}
    assert figures["fig4_cost_on-demand only"] == 20.0
    assert figures["fig4_on_time_on-demand only"] == 100.0
    assert "figure 4: 20 units in 5 intervals, 5 starts" in capsys.readouterr().out


def test_without_the_net_the_papers_own_policies_are_as_printed() -> None:
    """With it they are repaired."""
    for guarded in (False, True):
        found = spot_paper.contenders(guarded=guarded)
        several = [*found["AHAP"], *found["AHANP"]]
        assert len(several) == 15 + 7
        assert all(isinstance(one, Ahap | Ahanp) and one.paper is not guarded for one in several)
