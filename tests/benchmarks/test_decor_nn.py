"""The tables of DECOR-NN: what they contradict, the pace that they imply, and cells played in both modes."""

from __future__ import annotations

import pytest

from benchmarks import results
from benchmarks.papers.decor_nn import MODELS, PRINTED, after_cut, contradictions, of, pace
from benchmarks.papers.decor_page import DECOR_HEADING, decor_section
from benchmarks.policies.decor_tables import fastest, play, play_cell


def test_all_cells_are_there_and_each_is_possible() -> None:
    """A mean of three distances lies between a third of the largest and the largest."""
    counts = [len([cell for cell in PRINTED if cell.table == table]) for table in ("I", "II", "III", "IV")]
    assert counts == [9, 9, 6, 6]
    assert len({cell.key for cell in PRINTED}) == 30
    for cell in PRINTED:
        largest = max(-cell.earliest, cell.latest)
        assert largest / 3 <= cell.error <= largest


def test_the_text_does_not_fit_the_tables() -> None:
    words = [one.printed for one in contradictions()]
    assert words[0] == "the mean of all 30 cells is 1.32 %, of those above d_c 1.0 1.01 %"
    assert words[1].endswith("is 2.47 %")
    assert words[2] == "table II has 0.55 % for the first; 2.59 % is its row of d_c 1.0"
    assert words[3].startswith("in table III 6 of 6 rows end late in every run")


@pytest.mark.parametrize("model", MODELS)
def test_on_the_cpu_the_faster_pace_after_the_cut_takes_fewer_cores(model: str) -> None:
    """70 % are left for 1.2 - 0.45 or 1.44 - 0.54 of the minimum time."""
    (faster, fewer), (slower, more) = (after_cut(of("III", model, tightness)) for tightness in (1.5, 1.8))
    assert (faster, slower) == pytest.approx((0.7 / 0.75, 0.7 / 0.9))
    assert fewer < more
    on_gpus = after_cut(of("IV", model, 1.8))
    assert on_gpus[1] == pytest.approx(4 * on_gpus[0], rel=0.05)  # in proportion


@pytest.mark.parametrize("model", MODELS)
def test_the_pace_goes_through_table_i(model: str) -> None:
    assert [pace("cpu", model, of("I", model, each).devices) for each in (1.5, 1.8)] == pytest.approx(
        [1 / 1.5, 1 / 1.8]
    )
    assert [pace("cpu", model, 8), pace("cpu", model, 0), pace("gpu", model, 1)] == [1.0, 0.0, 0.25]


@pytest.mark.parametrize(("table", "mode"), [("I", "default"), ("II", "paper_k1"), ("IV", "paper_k1")])
@pytest.mark.nightly
def test_a_cell_ends_at_its_relaxed_deadline_and_repeats_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, table: str, mode: str
) -> None:
    monkeypatch.setattr("benchmarks.policies.decor_tables.RUNS", 1)
    cell = of(table, "VGG-19", 1.8)
    [run] = play_cell(cell, mode)
    assert abs(run.error) < 0.5
    assert run.deadline == pytest.approx(1.8 * fastest(cell.kind, cell.model) * (0.8 if cell.changed else 1.0))
    assert play_cell(cell, mode) == [run]


def test_without_drift_a_run_has_the_devices_that_its_deadline_demands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.policies.decor_tables.DRIFT", 0.0)
    assert fastest("gpu", "VGG-19") == pytest.approx(300, abs=0.1)
    run = play("gpu", "VGG-19", {}, 600.0, 1, cut=False)
    assert run.devices == pytest.approx(2.0, abs=0.05)
    assert run.took == pytest.approx(600, rel=0.002)


def test_the_section_is_there_once_the_tables_were_played() -> None:
    assert decor_section([]) == []
    lines = decor_section(results.read())
    assert f"## {DECOR_HEADING}" in lines
    rows = [line for line in lines if line.startswith("| I")]
    assert len(rows) == 30
    assert rows[0].startswith("| I (CPU) | Inception v3 | 1 | 0.79 (-0.72 to 1.20) | 7.83 |")
