"""What the papers say beside our figures: verdicts follow from the figures, and every figure is one of the record."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from benchmarks import labels, results
from benchmarks.curves.replay import Cell, Played
from benchmarks.papers import on_estimators, on_placement
from benchmarks.papers.finding import NO, YES, verdict
from benchmarks.papers.papers_page import HEADING, findings, section
from benchmarks.papers.printed import AT_DEFAULTS, PAPERS, PRINTED, PRINTED_ROWS, SLICES_TOO, rows
from benchmarks.papers.record import MissingFigureError, Record
from benchmarks.policies.as_printed import as_printed, name_of, with_constants
from benchmarks.policies.core import contenders
from benchmarks.policies.evening import measure
from benchmarks.policies.variants import ABLATIONS, WHOLE, ablate, variants
from lightning_core.policies.laira import Laira
from lightning_core.simulation.replications import Experiment

# Of estimators, policies, appendices, the spot market, and edge and cloud.
EVERY_FINDING = 8 + 10 + 9 + 17 + 7


def run(
    figures: dict[str, Any], command: str = "python -m benchmarks.x", size: str = "quick", day: str = "2026-01-01"
) -> dict[str, Any]:
    return {"benchmark": "extrapolation", "size": size, "command": command, "day": day, "figures": figures}


def errors(dkf: float, **others: float) -> dict[str, float]:
    found = {"dkf_undamped": dkf, "least_squares": 0.5, "weighted": 0.4, "kalman": 0.6} | others
    return {f"{name}_error_{kind}_{part}": error for name, error in found.items()
            for kind in ("pure", "mixed") for part in on_estimators.PARTS}  # fmt: skip


def test_a_statement_holds_everywhere_somewhere_or_nowhere() -> None:
    cases = ["at 1", "at 2", "at 3"]
    assert verdict([True] * 3, cases) == YES
    assert verdict([False] * 3, cases) == NO
    assert verdict([True, False, True], cases) == "holds only at 1 and at 3"


def test_the_filter_leads_where_it_has_the_lowest_error() -> None:
    figures = errors(0.3)
    find = on_estimators._dkf_leads
    one = find(Record([run(figures)]), "says", "mixed", "where", (1, 2, 5))
    assert one.verdict == YES
    figures |= {"weighted_error_mixed_2": 0.1, "kalman_error_mixed_5": 0.2}
    one = find(Record([run(figures)]), "says", "mixed", "where", (1, 2, 5))
    assert one.verdict == "holds only at 1 % seen"
    assert one.measured.endswith("1 %: 0.30, 2 %: 0.30 (WLS 0.10), 5 %: 0.30 (KF 0.20)")
    assert find(Record([run(errors(0.9))]), "says", "mixed", "where", (1, 2)).verdict == NO


def test_the_run_on_published_curves_is_quoted_then_the_largest_then_the_newest() -> None:
    runs = [
        run({"x": 1.0}, size="full", day="2026-03-01"),
        run({"x": 2.0}, "python -m benchmarks.x --curves DIR", "quick", "2026-01-01"),
        run({"x": 3.0}, "python -m benchmarks.x --curves DIR", "quick", "2026-02-01"),
        run({"x": None, "y": "0.5, 1; 17 to 553"}, "python -m benchmarks.x --curves DIR", "full"),
    ]
    record = Record(runs)
    assert record("extrapolation", "x") == 3.0
    assert record.numbers("extrapolation", "y") == [0.5, 1.0, 17.0, 553.0]
    with pytest.raises(MissingFigureError, match="no figure z of extrapolation"):
        record("extrapolation", "z")
    assert record.known("extrapolation", ["x", "y"])
    assert not record.known("extrapolation", ["x", "z"])


def test_the_section_is_there_once_everything_was_measured() -> None:
    assert section([]) == []
    runs = results.read()
    lines = section(runs)
    assert f"## {HEADING}" in lines
    found = findings(Record(runs))
    assert len(found) == EVERY_FINDING
    assert all(one.verdict and one.where.startswith(("LARA", "LaiRA", "Spot", "Edge and cloud")) for one in found)
    tables = [line for line in lines if line.startswith("|")]
    assert all("nan" not in line and "None" not in line for line in tables)
    for above, line in pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert line.replace("\\|", "").count("|") == above.replace("\\|", "").count("|")
    assert {name for name in PAPERS if not any(line.startswith(f"| {name}") for line in tables)} == set()


def test_what_the_papers_print_is_of_their_policies_and_fits_their_bundles() -> None:
    for one in PRINTED:
        assert set(one.met) <= set(PAPERS)
        assert all(0 <= met <= one.jobs for met in one.met.values())
    assert rows()[0] == ("LARA, 4.1, fig. 4(a): pure, 5 jobs", "LARA 4, LRF 2, ETF 2, UA 0, STF 0")


def test_policies_as_printed_differ_from_ours_in_what_the_papers_print() -> None:
    known = contenders()
    printed = as_printed(known)
    assert printed.keys() == set(PRINTED_ROWS.values())
    lara, laira = printed["LARA as printed"], printed["LaiRA, eq. 8 as printed"]
    assert (lara.policy, lara.arguments["explore"], lara.arguments["explore_batches"]) == ("lara", 0, 8000)
    assert (laira.policy, laira.arguments["dkf"]["damping"]) == ("laira", None)
    for one in (lara, laira):
        assert one.settings(10).policy == one.policy  # their arguments are checked


def test_baselines_are_played_at_their_defaults_too_and_laira_with_printed_slices() -> None:
    found = with_constants(contenders())
    for name, at_defaults in AT_DEFAULTS.items():
        tuned, usual = found[name], found[at_defaults]
        assert tuned.arguments or tuned.estimator_arguments
        assert (usual.policy, usual.arguments, usual.estimator_arguments) == (tuned.policy, {}, {})
    slices = found[SLICES_TOO]
    assert slices.settings(10).policy == "laira"  # its arguments are checked
    law = Laira(**slices.arguments)._law
    assert (law.kp, law.kd, law.max_units) == (-20.0, -5.0, 10**6)
    ours = Laira()._law
    assert (ours.kp, ours.kd) == (20.0, 5.0), "the printed sign, with the default's size"
    assert slices.arguments["dkf"]["damping"] is None


def test_the_worth_of_a_part_is_what_is_met_more_with_it() -> None:
    assert set(ABLATIONS) < set(variants())

    def played(met: int, switches: int) -> list[Played]:
        return [Played(met, 4, switches, 1, 0.0), Played(met, 4, switches, 1, 0.0)]

    cells = {Cell(10, pure): {WHOLE: played(3, 10), **{name: played(k, 20) for k, name in enumerate(ABLATIONS)}}
             for pure in (False, True)}  # fmt: skip
    figures = ablate(cells)
    assert name_of(Cell(10, False)) == "mixed_10"
    assert figures["ablation_whole_fraction"] == figures["ablation_whole_pure_10_fraction"] == 0.75
    assert [figures[f"ablation_{part}_10_worth"] for part in ABLATIONS.values()] == [0.75, 0.5, 0.25]
    assert figures["ablation_ucb_switches"] == 2.0
    assert figures["ablation_ucb_worth_se"] == 0.0


@pytest.mark.nightly
def test_the_evening_is_played_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.policies.evening.SEEDS", {"quick": 1})
    monkeypatch.setattr(Experiment, "replicate", lambda self, seeds: [self.play(seed) for seed in seeds])
    figures = measure("quick", ("fifo", "edf"))
    assert figures["met_file_fifo"] == 4.0
    assert figures["met_file_edf"] == figures["met_random_edf"] == 3.0
    assert figures["ceiling_file"] == figures["ceiling_random"] == 6.0
    assert all(isinstance(figure, float | int) and math.isfinite(figure) for figure in figures.values())


def test_the_savings_of_edge_and_cloud_are_the_paper_s_own_and_those_of_its_costs() -> None:
    shown = {rival: f"{on_placement.by_costs(rival):.1f} %" for rival in on_placement.RIVALS}
    assert shown == {"one_period": "11.9 %", "incremental": "23.1 %"}
    label = next(value for figure, _, value in labels.PLANS if figure == "saved")
    own, by_cost = ("; ".join(f"{part:g} %" for part in parts) for parts in ((9.5, 21.7), (11.9, 23.1)))
    assert f"(the paper's text: {own}; its costs: {by_cost})" in label
    assert list(on_placement.SAVED.values()) == [9.5, 21.7]
