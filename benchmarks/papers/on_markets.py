"""What the paper on the spot market says of its figures 4 to 10, beside our figures.

The figures have no numbers; four percentages are in the text, of figure 5 at a deadline of 10 intervals. *As printed*
is without a safety net, and a job holds no more nodes than end it in its last interval; *repaired* is this project's
default, with the net.
"""

from __future__ import annotations

from benchmarks.papers.finding import NO, YES, Finding, listed, verdict
from benchmarks.papers.markdown import head, row, wrapped
from benchmarks.papers.record import Record

# Points of figures 5 to 8, by the number of the figure.
POINTS: dict[str, tuple[float, ...]] = {
    "5": (8, 10, 12, 14),
    "6": (100, 200, 400, 800),
    "7": (2, 4, 6, 8, 10),
    "8": (0.3, 0.45, 0.6, 0.75, 0.9),
}
AXES = {"5": "deadline, intervals", "6": "bandwidth, Mbps", "7": "mean count", "8": "mean spot price"}
# Utility of AHAP above the others at a deadline of 10 intervals, per cent (section VI-B).
CLAIMED = {"OD": 49.0, "MSU": 54.8, "UP": 33.4, "AHANP": 23.2}
BASELINES = ("OD", "MSU", "UP")
MODES = {"printed": "as printed", "repaired": "repaired"}
STRATEGIES = ("on-demand only", "spot first", "progress tracking", "perfect forecast", "forecast of 6")
# Forecasts of figure 9 by the names of our figures, and the arguments of AHAP that it fixes.
FORECASTS = (
    "last value",
    *(f"{level} {kind}, {tails}" for level in ("30%", "200%") for tails in ("uniform", "heavy")
      for kind in ("of it", "fixed")),
)  # fmt: skip
FIXED = {"v = 1": "v", "sigma = 0.9": "sigma", "omega = 1": "omega"}
# Phases of figure 10.
PHASES = {1: "10 % uniform", 2: "30 % heavy-tailed", 3: "50 % uniform", 4: "200 % uniform"}
# A difference of utility that counts, and the weight of each of the 112 policies at first.
COUNTS, EQUAL = 0.05, 1 / 112
SPOT = "Spot, "


def figure_of(number: str, point: float, name: str, mode: str) -> str:
    """Return the name of the figure of a contender at a point of figures 5 to 8."""
    return f"fig{number}_{point:g}_{name}_{mode}"


def is_known(record: Record) -> bool:
    """Return whether the figures were measured."""
    last = [figure_of("8", 0.9, "AHAP", mode) for mode in MODES]
    return record.known("spot", [*last, "fig4_wrong_worse_pct", "fig10_4_best", f"fig9_{FORECASTS[-1]}_best"])


def findings(record: Record) -> list[Finding]:
    """Return all findings.

    Raises:
        MissingFigureError: If a figure was not measured.
    """
    best = "AHAP has a higher utility than OD, MSU and UP"
    return [
        _strategies(record),
        _wrong_forecast(record),
        _percentages(record),
        *(_ahead(record, "5", ("AHAP",), f"{best} under tight and relaxed deadlines", mode) for mode in MODES),
        *(_ahead(record, "6", ("AHAP", "AHANP"), "AHAP and AHANP outperform OD, MSU and UP at every bandwidth", mode)
          for mode in MODES),
        *(_stable(record, mode) for mode in MODES),
        *(_ahead(record, number, ("AHAP", "AHANP"), f"AHAP and AHANP are among the best at every {what}", mode)
          for number, what in (("7", "availability"), ("8", "price")) for mode in MODES),
        _depends_on_noise(record),
        _each_argument_matters(record),
        _converges(record),
        _adapts(record),
    ]  # fmt: skip


def _strategies(record: Record) -> Finding:
    cost = {name: record("spot", f"fig4_cost_{name}") for name in STRATEGIES}
    on_time = {name: record("spot", f"fig4_on_time_{name}") for name in STRATEGIES}
    punctual = [name for name in STRATEGIES if on_time[name] == 100]
    holds = {
        "for on-demand alone": on_time["on-demand only"] == 100 and cost["on-demand only"] == max(cost.values()),
        "for spot first": cost["spot first"] < cost["on-demand only"] and on_time["spot first"] < 100,
        "for progress tracking": on_time["progress tracking"] == 100
        and cost["progress tracking"] > cost["perfect forecast"],
        "for the right forecast": cost["perfect forecast"] <= min(cost[name] for name in punctual),
    }
    told = "; ".join(f"{name} {cost[name]:.2f}, {on_time[name]:.0f} %" for name in STRATEGIES)
    says = (
        "On-demand alone is on time and dear; spot first is cheaper and may be late; progress tracking is on time and "
        "leaves cheap spot unused; a right forecast costs least"
    )
    measured = f"cost and jobs on time: {told}"
    return Finding(says, f"{SPOT}fig. 4", measured, verdict(list(holds.values()), list(holds)))


def _wrong_forecast(record: Record) -> Finding:
    worse = record("spot", "fig4_wrong_worse_pct")
    mean = record("spot", "fig4_cost_forecast of 6") > record("spot", "fig4_cost_progress tracking")
    measured = f"a forecast of 6 costs more than progress tracking in {worse:.0f} % of the starts"
    measured += f", and {'more' if mean else 'less'} in the mean"
    return Finding(
        "With a wrong forecast the cost can exceed that of none", f"{SPOT}fig. 4", measured, YES if worse > 0 else NO
    )


def _percentages(record: Record) -> Finding:
    told, holds = [], []
    for other, claimed in CLAIMED.items():
        name = f"ahap_printed_over_{other.lower()}"
        known = record.known("spot", [name])  # not where the other's utility is not positive
        printed = f"{record('spot', name):+.1f}" if known else "-"
        repaired = record("spot", f"ahap_repaired_over_{other.lower()}")
        told.append(f"{other} {printed} % as printed, {repaired:+.1f} % repaired")
        holds.append(known and record("spot", name) > 0 and abs(record("spot", name) - claimed) < 0.2 * claimed)
    says = "At a deadline of 10, AHAP improves utility by " + listed([f"{one} % over {other}"
                                                                     for other, one in CLAIMED.items()])  # fmt: skip
    said = verdict(holds, [f"over {other}" for other in CLAIMED])
    measured = f"{'; '.join(told)}; value 120 and grace 1.5, which the paper does not print, are the closest"
    return Finding(says, f"{SPOT}VI-B, fig. 5", measured, f"as printed, to a fifth of the number: {said}")


def _utilities(record: Record, number: str, point: float, mode: str) -> dict[str, float]:
    return {
        name: record("spot", figure_of(number, point, name, mode)) for name in (*BASELINES, "AHANP", "AHAP", "optimum")
    }


def _ahead(record: Record, number: str, names: tuple[str, ...], says: str, mode: str) -> Finding:
    points = POINTS[number]
    told, holds = [], []
    for name in names:
        ahead = 0
        for point in points:
            row = _utilities(record, number, point, mode)
            ahead += row[name] > max(row[other] for other in BASELINES)
        told.append(f"{name} is ahead of all three at {ahead} of {len(points)} points")
        holds.append(ahead == len(points))
    said = verdict(holds, [f"for {name}" for name in names])
    return Finding(says, f"{SPOT}fig. {number}", f"{MODES[mode]}: {'; '.join(told)}", said)


def _stable(record: Record, mode: str) -> Finding:
    slow, fast = (_utilities(record, "6", point, mode) for point in (POINTS["6"][0], POINTS["6"][-1]))
    lost = {name: fast[name] - slow[name] for name in ("AHAP", "AHANP", *BASELINES)}
    told = ", ".join(f"{name} {by:.1f}" for name, by in lost.items())
    least = min(lost, key=lambda name: lost[name])
    says = "As reconfiguration takes longer all lose utility, except AHANP, which stays stable"
    said = YES if least == "AHANP" else f"{NO}: {least} loses least"
    return Finding(says, f"{SPOT}fig. 6", f"{MODES[mode]}: lost between 800 and 100 Mbps: {told}", said)


def _depends_on_noise(record: Record) -> Finding:
    best = {name: record("spot", f"fig9_{name}_number") for name in FORECASTS[1:]}
    several = len(set(best.values()))
    measured = f"over {len(best)} kinds and sizes of errors, {several} best polic{'y' if several == 1 else 'ies'}"
    says = "Type and magnitude of the noise influence the best policy"
    return Finding(says, f"{SPOT}fig. 9", measured, YES if several > 1 else NO)


def _each_argument_matters(record: Record) -> Finding:
    lost = {
        short: max(record("spot", f"fig9_{name}_best") - record("spot", f"fig9_{name}_{words}") for name in FORECASTS)
        for words, short in FIXED.items()
    }
    told = ", ".join(f"{words} {lost[short]:.2f}" for words, short in FIXED.items())
    said = verdict([by > COUNTS for by in lost.values()], [f"for {short}" for short in lost])
    says = "Each hyperparameter of AHAP contributes: with one fixed, less utility can be reached"
    return Finding(says, f"{SPOT}fig. 9", f"utility lost with one fixed, the most of all forecasts: {told}", said)


def _converges(record: Record) -> Finding:
    lacks = {which: [_shortfall(record, f"fig9_{name}", which) for name in FORECASTS] for which in ("printed", "ours")}
    long = {which: 100 * record("spot", f"selector_{end}shortfall_ratio")
            for which, end in (("printed", "printed_"), ("ours", ""))}  # fmt: skip
    told = "; ".join(
        f"{words} {min(lacks[which]):.0f} to {max(lacks[which]):.0f} %, with 500 jobs, repaired and with the net, "
        f"{long[which]:.0f} %"
        for which, words in (("printed", "the printed step"), ("ours", "ours"))
    )
    says = "The selection converges to the best policy (in 1,000 jobs)"
    measured = (
        f"utility missing to the best policy, mean over the run, as a part of what the mean policy misses: {told}"
    )
    return Finding(says, f"{SPOT}fig. 9", measured, YES if long["printed"] < 50 else f"{NO} in so few jobs")


def _shortfall(record: Record, name: str, which: str) -> float:
    best, mean, had = (record("spot", f"{name}_{what}") for what in ("best", "mean", which))
    return 100 * (best - had) / (best - mean)


def _adapts(record: Record) -> Finding:
    missing = {number: {which: record("spot", f"fig10_{number}_best") - record("spot", f"fig10_{number}_{which}")
                        for which in ("printed", "ours")} for number in PHASES}  # fmt: skip
    told = "; ".join(
        f"{PHASES[number]}: {by['printed']:.1f} with the printed step, {by['ours']:.1f} with ours"
        for number, by in missing.items()
    )
    weights = [record("spot", f"fig10_{number}_weight_printed") for number in PHASES]
    says = '"Consistently adapts to different settings and promptly converges to new optimal policies" (3,600 jobs)'
    measured = (
        f"{record('spot', 'fig10_jobs'):.0f} jobs; utility that misses to the best policy in the last quarter of each "
        f"phase: {told}; the largest weight with the printed step is {max(weights):.3f}, an equal one {EQUAL:.3f}"
    )
    holds = [by["printed"] < 0.05 * abs(record("spot", f"fig10_{number}_best")) for number, by in missing.items()]
    said = f"to a twentieth of the utility: {verdict(holds, [f'in phase {number}' for number in PHASES])}"
    if max(weights) < 2 * EQUAL:
        said = "not shown in so few jobs: the weights have hardly moved"
    return Finding(says, f"{SPOT}fig. 10", measured, said)


def tables(record: Record, of: str) -> list[str]:
    """Return the utilities of figures 5 to 8 and 10.

    Args:
        record: The figures.
        of: The command, its size and day, in words.
    """
    names = (*BASELINES, "AHANP", "AHAP", "optimum")
    rows = []
    for number, points in POINTS.items():
        for point in points:
            both = [_utilities(record, number, point, mode) for mode in MODES]
            rows.append([f"{number}: {AXES[number]}", f"{point:g}", *("; ".join(f"{one[name]:.1f}" for one in both)
                                                                       for name in names)])  # fmt: skip
    phases = [
        [words, *(f"{record('spot', f'fig10_{number}_{what}'):.1f}"
                  for what in ("best", "printed", "chosen_printed", "ours", "chosen_ours"))]
        for number, words in PHASES.items()
    ]  # fmt: skip
    noises = [
        [name.replace("%", " %"), *(f"{record('spot', f'fig9_{name}_{what}'):.1f}"
                                    for what in ("best", "mean", "printed", "ours", *FIXED))]
        for name in FORECASTS
    ]  # fmt: skip
    return [
        "", "### The spot market's figures 5 to 10", "",
        *wrapped(f"Mean utility, as printed and repaired, {of}. Of AHAP and AHANP the best of the pool in hindsight "
                 "counts. The paper prints no utility: at a deadline of 10 it has AHAP "
                 f"{listed([f'{one} % above {other}' for other, one in CLAIMED.items()])}."), "",
        *head(["figure", "at", *names]), *map(row, rows), "",
        *wrapped("Figure 9, with the printed pool: mean utility of the best policy, of all, of the selector and of the "
                 "best policy with one argument fixed, by the errors of the forecasts; *of it* are in proportion, "
                 "*fixed* in size. The paper prints no number."), "",
        *head(["forecast", "best", "mean", "printed step", "our step", *FIXED]), *map(row, noises), "",
        *wrapped("Figure 10, with the printed pool: mean utility in the last quarter of each phase, of its best "
                 "policy, of the selector, and of the policy that has the most weight at its end. The paper prints no "
                 f"number. It has 3,600 jobs; here they are {record('spot', 'fig10_jobs'):.0f}, the phases in "
                 "proportion."), "",
        *head(["errors of the forecasts", "best", "printed step", "its choice", "our step", "its choice"]),
        *map(row, phases),
    ]  # fmt: skip
