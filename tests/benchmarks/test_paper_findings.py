"""What the papers say of figures, held against made-up figures: the verdict turns where they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.papers import on_markets, on_placement, on_policies
from benchmarks.papers.finding import NO, YES
from benchmarks.papers.inventory import INVENTORY
from benchmarks.papers.printed import JOBS_SWEPT, SWEEPS, figure_of
from benchmarks.papers.record import Record
from benchmarks.policies.as_printed import as_printed
from benchmarks.policies.core import contenders as known_contenders
from benchmarks.policies.swept import contenders
from benchmarks.policies.watched_laira import Decision, seen


def record(benchmark: str, figures: dict[str, Any]) -> Record:
    return Record([{"benchmark": benchmark, "size": "quick", "command": "python -m x", "day": "2026-01-01",
                    "figures": figures}])  # fmt: skip


# ------------------------------------------------------------------------------------------------- LARA and LaiRA


def swept(**others: float) -> dict[str, float]:
    """Return figures of all sweeps: 0.6 met between the ends, 0.4 at them; ``others`` by the name of the figure."""
    found = {}
    for name, sweep in SWEEPS.items():
        for value in sweep.values:
            for pure in sweep.kinds:
                at_end = value in (sweep.values[0], sweep.values[-1])
                found[f"{figure_of(name, value)}_{'pure' if pure else 'mixed'}_{JOBS_SWEPT}"] = 0.4 if at_end else 0.6
    return found | {"swept_bundles": 12.0} | others


def test_a_constant_matters_where_its_ends_lose_jobs() -> None:
    found = {one.where: one for one in on_policies._constants(record("core", swept()))}
    assert list(found) == ["LARA, fig. 11(a)", "LARA, fig. 11(b)", "LaiRA, fig. 7(a)", "LaiRA, fig. 7(b)"]
    assert [one.verdict for one in found.values()][:3] == [YES] * 3
    assert found["LaiRA, fig. 7(b)"].verdict == "holds only at 0.99, pure and at 0.99, mixed"
    flat = {name: 0.6 for name in swept() if "lara_explore_16000" in name}
    one = on_policies._constants(record("core", swept(**flat)))[0]
    assert one.verdict == "holds only at 250, mixed"
    assert "mixed: 250: 0.40, 1000: 0.60" in one.measured


def test_rows_of_the_sweeps_are_the_printed_policies_with_one_other_constant() -> None:
    rows = contenders(as_printed(known_contenders()))
    assert len(rows) == sum(len(sweep.values) for sweep in SWEEPS.values())
    for row in rows.values():
        assert row.settings(JOBS_SWEPT).policy == row.policy  # their arguments are checked
    threshold, factor = rows["swept_lara_explore_2000"], rows["swept_lara_gamma_0.5"]
    assert (threshold.arguments["explore_batches"], threshold.estimator_arguments) == (2000, {})
    assert (factor.arguments["explore_batches"], factor.estimator_arguments) == (6000, {"gamma": 0.5})
    step = rows["swept_laira_delta_0.1"]
    assert step.arguments["dkf"] == {"damping": None, "delta": 0.1}
    assert rows["swept_laira_gamma_0.7"].arguments["gamma"] == 0.7


def test_decisions_show_what_was_found_infeasible_and_who_had_the_device() -> None:
    """`x` and `y` are impossible, `y` is found later; they train 6 of the 10 seconds that are left; `z` is wronged."""
    hopeless = {"x": True, "y": True, "z": False, "w": False}
    spent = {"x": 3.0, "y": 6.0, "z": 2.0, "w": 3.0}
    began = {"x": 1.0, "y": 2.0, "z": 1.0, "w": 0.0}
    decisions = [
        Decision("x", 0.5, frozenset("xz"), began),
        Decision("w", 0.0, frozenset("y"), {}),
        Decision("w", 0.25, frozenset(), {}),
    ]
    found = seen(hopeless, spent, decisions)
    assert found == (0.5, 1.0, 0.5, 0.6, 0.25, 0.25)
    no_bad = seen(dict.fromkeys(hopeless, False), spent, decisions)
    assert np.isnan(no_bad.found_at_once)
    assert no_bad.hopeless == 0.0


def test_laira_is_steadier_with_ucb_where_its_first_job_changes_less_often() -> None:
    parts = ("whole", "ucb", "dkf", "printed")
    figures = {f"watched_{cell}_{part}_{what}": 0.1 for cell in on_policies.WATCHED for part in parts
               for what in ("changes", "negative", "hopeless", "found_at_once", "wrong")}  # fmt: skip
    figures |= {"watched_pure_10_ucb_changes": 0.2, "watched_mixed_10_ucb_negative": 0.3}
    one = record("core", figures)
    assert on_policies._first_is_steady(one).verdict == "holds only for pure, 10 jobs"
    assert on_policies._scores_without_ucb(one).verdict == "holds only for mixed, 10 jobs"
    assert on_policies._finds_infeasible(one, "whole", "as read here").verdict == NO
    figures |= {f"watched_{cell}_whole_{what}": part for cell in on_policies.WATCHED
                for what, part in (("found_at_once", 0.95), ("hopeless", 0.05), ("wrong", 0.3))}  # fmt: skip
    one = record("core", figures)
    said = on_policies._finds_infeasible(one, "whole", "as read here").verdict
    assert said == f"{YES}; many possible jobs are found infeasible too"
    assert on_policies._finds_infeasible(one, "printed", "as printed").verdict == NO, "each row by its own figures"


# ------------------------------------------------------------------------------------------------- the spot market


def spot(**others: float) -> dict[str, float]:
    utilities = {"OD": 39.0, "MSU": 38.0, "UP": 40.0, "AHANP": 45.0, "AHAP": 58.0, "optimum": 60.0}
    found = {
        on_markets.figure_of(number, point, name, mode): utility
        for number, points in on_markets.POINTS.items() for point in points
        for name, utility in utilities.items() for mode in on_markets.MODES
    }  # fmt: skip
    found |= {f"fig4_cost_{name}": cost for name, cost in zip(on_markets.STRATEGIES, (20, 14, 13.5, 13.3, 13.8),
                                                              strict=True)}  # fmt: skip
    found |= {f"fig4_on_time_{name}": 90.0 if name == "spot first" else 100.0 for name in on_markets.STRATEGIES}
    found |= {f"fig9_{name}_{what}": number for name in on_markets.FORECASTS for what, number in
              {"best": 40.0, "mean": 20.0, "printed": 35.0, "ours": 39.0, "number": 1.0, "v = 1": 40.0,
               "sigma = 0.9": 39.0, "omega = 1": 38.0}.items()}  # fmt: skip
    for number in on_markets.PHASES:
        found |= {f"fig10_{number}_{what}": 50.0 for what in ("best", "printed", "ours", "chosen_printed",
                                                              "chosen_ours")}  # fmt: skip
    found |= {f"ahap_{mode}_over_{other.lower()}": claimed for mode in on_markets.MODES
              for other, claimed in on_markets.CLAIMED.items()}  # fmt: skip
    found |= {f"fig10_{number}_weight_printed": 0.3 for number in on_markets.PHASES}
    found |= {"selector_shortfall_ratio": 0.02, "selector_printed_shortfall_ratio": 0.3}
    return found | {"fig4_wrong_worse_pct": 28.0, "fig10_jobs": 360.0} | others


def verdicts(figures: dict[str, float]) -> dict[str, str]:
    return {f"{one.where}, {one.says[:20]}, {one.measured[:8]}": one.verdict
            for one in on_markets.findings(record("spot", figures))}  # fmt: skip


def test_statements_on_the_market_hold_where_the_figures_do() -> None:
    whole = record("spot", spot())
    assert on_markets.is_known(whole)
    assert not on_markets.is_known(record("spot", {"fig10_4_best": 1.0}))
    found = on_markets.findings(whole)
    assert len(found) == len(verdicts(spot()))
    by_where: dict[str, list[str]] = {}
    for one in found:
        by_where.setdefault(one.where.removeprefix(on_markets.SPOT), []).append(one.verdict)
    assert by_where["fig. 4"] == [YES, YES]
    assert by_where["fig. 5"] == by_where["fig. 7"] == by_where["fig. 8"] == [YES, YES]
    assert by_where["VI-B, fig. 5"] == [f"as printed, to a fifth of the number: {YES}"]
    assert by_where["fig. 6"] == [YES, YES, f"{NO}: AHAP loses least", f"{NO}: AHAP loses least"]
    assert by_where["fig. 9"] == [NO, "holds only for sigma and for omega", YES]
    assert by_where["fig. 10"] == [f"to a twentieth of the utility: {YES}"]


@pytest.mark.parametrize(
    ("name", "number", "where", "said"),
    [
        ("fig5_8_AHAP_printed", 30.0, "fig. 5, AHAP has", NO),
        ("fig6_100_AHANP_printed", 30.0, "fig. 6, AHAP and", "holds only for AHAP"),
        ("fig4_on_time_spot first", 100.0, "fig. 4, On-demand", "holds only for on-demand alone, for progress tracking "
         "and for the right forecast"),
        ("fig9_200% fixed, heavy_number", 3.0, "fig. 9, Type and", YES),
        ("selector_printed_shortfall_ratio", 0.9, "fig. 9, The selection", f"{NO} in so few jobs"),
        ("fig10_2_printed", 40.0, "fig. 10,", "to a twentieth of the utility: holds only in phase 1, in phase 3 and in "
         "phase 4"),
        ("ahap_printed_over_up", 70.0, "VI-B, fig. 5,", "as printed, to a fifth of the number: holds only over OD, "
         "over MSU and over AHANP"),
    ],
)  # fmt: skip
def test_a_statement_on_the_market_falls_with_its_figure(name: str, number: float, where: str, said: str) -> None:
    before, after = verdicts(spot()), verdicts(spot(**{name: number}))
    changed = [key for key in before if after.get(key) != before[key]]
    assert said in [after[key] for key in after if key.startswith(f"{on_markets.SPOT}{where}")]
    assert len(changed) <= 1


def test_weights_that_have_not_moved_show_nothing() -> None:
    found = verdicts(spot(**{f"fig10_{number}_weight_printed": 0.01 for number in on_markets.PHASES}))
    [said] = [one for where, one in found.items() if "fig. 10" in where]
    assert said == "not shown in so few jobs: the weights have hardly moved"


def test_the_markets_utilities_are_shown_as_printed_and_repaired() -> None:
    lines = on_markets.tables(record("spot", spot(fig5_8_OD_printed=12.0)), "`python -m x`, quick, 2026-01-01")
    assert (
        "| 5: deadline, intervals | 8 | 12.0; 39.0 | 38.0; 38.0 | 40.0; 40.0 | 45.0; 45.0 | 58.0; 58.0 |"
        in " ".join(line.removesuffix(" 60.0; 60.0 |") for line in lines)
    )
    assert sum(line.startswith("| 10 % uniform") for line in lines) == 1


# ------------------------------------------------------------------------------------------------- edge and cloud


def edge(**others: float) -> dict[str, float]:
    found = {}
    for case in on_placement.CASES:
        for rival in on_placement.RIVALS:
            more = case.endswith("_B")
            for what, printed in (("saved", on_placement.SAVED), ("best_saved", on_placement.BEST),
                                  ("gpus_saved", on_placement.UNITS)):  # fmt: skip
                found[f"{what}_{rival}_{case}"] = printed[rival] + more
            for how in ("heuristic", "replan"):
                found[f"surged_saved_{rival}_{how}_{case}"] = 5.0
                found[f"surged_gpus_saved_{rival}_{how}_{case}"] = 5.0
        found |= {f"equal_cost_{rival}_{case}": reached for rival, reached in on_placement.ACCURACIES.items()}
        found |= {f"surged_served_{way}_{case}": 100.0 for way in (
            "plan_heuristic", "plan_replan", "one_period_heuristic", "incremental_heuristic")}  # fmt: skip
    return found | others


def test_savings_at_the_edge_are_held_against_the_printed_ones() -> None:
    saved, best, accuracy, gpus, more, more_gpus, surge = on_placement.findings(record("placement", edge()))
    assert saved.says == (
        "9.5 and 21.7 % lower cost than planning the busiest period and one task at a time at an accuracy of 80 %"
    )
    for one in (saved, best, gpus):
        assert one.verdict == f"never behind; half of the printed savings or more: {YES}"
    assert accuracy.verdict == f"the order: {YES}"
    assert (more.verdict, more_gpus.verdict) == (YES, YES)
    assert surge.verdict == f"ahead: {YES}; the savings are smaller"


def test_a_smaller_saving_and_a_smaller_gap_are_said() -> None:
    less = edge(
        saved_one_period_edge_pays=2.0, saved_one_period_edge_pays_B=1.0, best_saved_incremental_as_published=-1.0
    )
    less |= {f"equal_cost_{rival}_{case}": 0.87 for rival in on_placement.RIVALS for case in on_placement.CASES}
    del less["equal_cost_incremental_edge_pays_B"]  # tasks are left unserved
    saved, best, accuracy, _, more, *_ = on_placement.findings(record("placement", less))
    assert saved.verdict.endswith("holds only in A, edge at 1.5 and in B, edge at 1.5")
    assert best.verdict.startswith("behind somewhere")
    assert accuracy.verdict == f"the order: {YES}; the gaps are smaller"
    assert "0.875; 0.870; not all served" in accuracy.measured
    assert "edge at 0.8 against planning the busiest period" not in more.verdict
    lines = on_placement.tables(record("placement", less), "`python -m x`")
    assert any("9.5 (by its costs 11.9); 21.7 (by its costs 23.1)" in line for line in lines)
    assert any(line.endswith("0.875; 0.870; - |") for line in lines)


# ------------------------------------------------------------------------------------------------- the list


def test_every_figure_of_the_papers_is_listed_once() -> None:
    assert len({(one.paper, one.number) for one in INVENTORY}) == len(INVENTORY)
    assert {one.paper for one in INVENTORY} == {"LARA", "LaiRA", "DECOR-NN", "Spot", "Edge and cloud"}
    assert all(one.here for one in INVENTORY)
