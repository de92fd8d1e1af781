"""The paper's figures 4 to 10, its claims beside what was measured.

Its figures are pictures without numbers; four percentages are in its text. It does not say what a job is worth, nor for
how long, how it forecasts in figures 5 to 8, or what MSU does near the deadline: see
:mod:`benchmarks.market.spot_traces` for the first two, the forecast is the last value, and the bare MSU takes on-demand
instances in the last two intervals. Of AHAP and AHANP the best of the pool counts, chosen in hindsight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from benchmarks.common import Figures, Size, table
from benchmarks.market.spot_traces import DEADLINE, VALUE, WORK, Trace, scaled
from lightning_core.core.arrays import FloatArray
from lightning_core.market import JobBatch, LastValue, Ledger, MarketForecaster, Noisy, Perfect, SpotJob, backtest
from lightning_core.market.forecasters import Tails
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.optimum import optimum
from lightning_core.market.policies import Ahanp, Ahap, Chain, MaxSpot, OnDemand, UniformProgress
from lightning_core.market.policies.paper_pool import MAX_OMEGA, SIGMAS, distinct, paper_pool
from lightning_core.market.selector import Selector, normalised
from lightning_core.market.window_planner import WindowPlanner

# AHAP over the others at a deadline of 10 intervals, per cent (its section VI-B).
CLAIMED = {"OD": 49.0, "MSU": 54.8, "UP": 33.4, "AHANP": 23.2}
BASELINES = ("OD", "MSU", "UP")
# Minutes to launch an instance at 800 Mbps, and what is left of an interval of 30 minutes at each bandwidth.
LAUNCH, BANDWIDTHS = 3.0, (100, 200, 400, 800)
STARTS: Mapping[Size, int] = {"quick": 20, "default": 100, "full": 200}
SELECTED: Mapping[Size, int] = {"quick": 60, "default": 500, "full": 1000}
# Of figure 10: jobs, and how wrong forecasts are: of the price of an instance, and of 8 instances.
PHASES: tuple[tuple[int, Tails, float], ...] = (
    (800, "uniform", 0.1), (800, "heavy", 0.3), (800, "uniform", 0.5), (1200, "uniform", 2.0)
)  # fmt: skip
FIXED = (1.0, 8.0)


class Setting(NamedTuple):
    """One point of a figure: where the jobs of it train, and what they are like."""

    name: str
    trace: Trace
    deadline: int = DEADLINE
    growth_fraction: float = 0.9


def paper_s_figures(trace: Trace, size: Size, plots: Path | None) -> Figures:
    """All of them, on one market."""
    figure_4(trace, STARTS[size])
    ladder = slice(1, None, 2) if size == "quick" else slice(None)

    def settings(values: Sequence[float], words: str, make: Callable[[float], Setting]) -> list[Setting]:
        return [make(value)._replace(name=words.format(value)) for value in values[ladder]]

    def market(counts: float | None = None, prices: float | None = None) -> Setting:
        return Setting("", replace(trace, market=scaled(trace.market, counts, prices)))

    shown = {
        "5: deadline, intervals": settings((8, 10, 12, 14), "{:.0f}", lambda d: Setting("", trace, int(d))),
        "6: bandwidth, Mbps": settings(
            BANDWIDTHS, "{:.0f}", lambda b: Setting("", trace, growth_fraction=1 - LAUNCH * 800 / b / 30)
        ),
        "7: mean count": settings((2, 4, 6, 8, 10), "{:g}", lambda n: market(counts=n)),
        "8: mean spot price": settings((0.3, 0.45, 0.6, 0.75, 0.9), "{:g}", lambda p: market(prices=p)),
    }
    observation = {
        (number, guarded): figure(number, points, STARTS[size], guarded=guarded)
        for number, points in shown.items()
        for guarded in (False, True)
    }
    claims(observation)
    ratio = figure_9(trace, SELECTED[size], (2.0,) if size == "quick" else (0.3, 2.0))
    figure_10(trace, 0.05 if size == "quick" else 0.3 if size == "default" else 1.0, plots)
    return {"selector_shortfall_ratio": ratio}


def paper_jobs(trace: Trace, count: int, seed: int) -> JobBatch:
    """So many of the jobs that figures 9 and 10 are of, at random intervals. A few cannot be ended in time."""
    draw = np.random.default_rng(seed)
    jobs = [
        SpotJob(
            float(draw.uniform(70, 120)), DEADLINE, int(draw.integers(1, 5)), int(draw.integers(12, 17)), value=VALUE
        )
        for _ in range(count)
    ]
    starts = draw.integers(0, len(trace.market) - DEADLINE + 1, count)
    return JobBatch(jobs, trace.market, [int(start) for start in starts])


# ----------------------------------------------------------------------------------------------------- figures 4 to 8


class Constant:
    """Always as many, at the present price."""

    def __init__(self, value: float) -> None:
        self.value = value

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        return np.full((len(values), horizon), self.value)


def figure_4(trace: Trace, starts: int) -> None:
    """20 units within 5 intervals, without overhead: what a forecast is good for, if it is right, and if it is not."""
    part = 20 / WORK
    job = SpotJob(20.0, 5, growth_fraction=1.0, shrink_fraction=1.0, value=part * VALUE)
    begin = np.random.default_rng(4).integers(0, len(trace.market) - 4, starts)
    batch = JobBatch([job] * starts, trace.market, begin.tolist())
    last, perfect, six = (
        MarketForecaster(LastValue()),
        MarketForecaster(Perfect()),
        MarketForecaster(LastValue(), Constant(6.0)),
    )
    rows: dict[str, Ledger] = {
        "on-demand only": backtest([OnDemand()], batch, last)[0],
        "spot first": backtest([MaxSpot()], batch, last, guarded=False)[0],
        "progress tracking": backtest([UniformProgress()], batch, last)[0],
        "perfect forecast": backtest([Ahap(4, 1)], batch, perfect)[0],
        "6 are forecast": backtest([Ahap(4, 1)], batch, six)[0],
    }
    print(f"\nfigure 4: 20 units in 5 intervals, {starts} starts")
    table(
        ["strategy", "cost", "on time, %"],
        [[name, float(one.cost.mean()), 100 * float(one.on_time.mean())] for name, one in rows.items()],
    )
    worse = float((rows["6 are forecast"].cost > rows["progress tracking"].cost + 1e-9).mean())
    costs = {name: float(one.cost.mean()) for name, one in rows.items()}
    _claim("a perfect forecast costs least of all that are on time", costs["perfect forecast"] <= min(
        cost for name, cost in costs.items() if rows[name].on_time.all()) + 1e-9)  # fmt: skip
    _claim("a wrong forecast can cost more than none", worse > 0, f"in {worse:.0%} of the starts")


def contenders(*, guarded: bool) -> dict[str, list[SpotPolicy]]:
    """What figures 5 to 8 compare; of several the best in hindsight counts."""
    shared = WindowPlanner()
    return {
        "OD": [OnDemand()],
        "MSU": [MaxSpot(0 if guarded else 2)],
        "UP": [UniformProgress()],
        "AHANP": [Ahanp(sigma) for sigma in SIGMAS],
        "AHAP": [Ahap(w, v, planner=shared) for w in range(1, MAX_OMEGA + 1) for v in range(1, w + 1)],
        "ours": [Chain()],
    }


def figure(number: str, points: Sequence[Setting], starts: int, *, guarded: bool) -> list[dict[str, float]]:
    """Mean utility of each contender at each point."""
    found = []
    for point in points:
        batch = point.trace.jobs(starts, seed=5, deadline=point.deadline, growth_fraction=point.growth_fraction)
        best, groups = optimum(batch), contenders(guarded=guarded)
        each = [policy for group in groups.values() for policy in group]
        ledgers = iter(backtest(each, batch, MarketForecaster(LastValue()), guarded=guarded))
        several = {name: [next(ledgers) for _ in group] for name, group in groups.items()}
        assert all((one.utility <= best + 1e-6).all() for group in several.values() for one in group)
        means = {name: max(float(one.utility.mean()) for one in group) for name, group in several.items()}
        found.append({**means, "optimum": float(best.mean())})
    print(f"\nfigure {number}; mean utility, {'with' if guarded else 'without'} the safety net, {starts} starts")
    table(["", *found[0]], [[point.name, *row.values()] for point, row in zip(points, found, strict=True)])
    if number.startswith("5"):
        at = next(row for point, row in zip(points, found, strict=True) if point.deadline == DEADLINE)
        over = {name: 100 * (at["AHAP"] / at[name] - 1) for name in CLAIMED}
        print("AHAP over OD, MSU, UP, AHANP at a deadline of 10, %:", ", ".join(f"{one:+.1f}" for one in over.values()),
              "- the paper:", ", ".join(f"{one:+.1f}" for one in CLAIMED.values()))  # fmt: skip
    return found


def claims(observation: Mapping[tuple[str, bool], Sequence[Mapping[str, float]]]) -> None:
    """What of the paper's words on figures 5 to 8 holds."""
    print("\nthe paper's claims on figures 5 to 8")
    for guarded in (False, True):
        net = "with the safety net" if guarded else "without"
        for (number, kept), rows in observation.items():
            if kept != guarded:
                continue
            for name in ("AHAP", "AHANP"):
                above = sum(row[name] > max(row[one] for one in BASELINES) for row in rows)
                words = f"figure {number[0]}, {net}: {name} above OD, MSU and UP at every point"
                _claim(words, above == len(rows), f"{above} of {len(rows)}")
        slow, fast = observation["6: bandwidth, Mbps", guarded][0], observation["6: bandwidth, Mbps", guarded][-1]
        lost = {name: fast[name] - slow[name] for name in ("AHANP", "AHAP")}
        _claim(
            f"figure 6, {net}: AHANP loses least by overhead", lost["AHANP"] < lost["AHAP"],
            f"AHANP {lost['AHANP']:.1f}, AHAP {lost['AHAP']:.1f}",
        )  # fmt: skip


def _claim(words: str, holds: bool, figures: str = "") -> None:
    print(f"  {'holds' if holds else 'does not hold'}: {words}{f' ({figures})' if figures else ''}")


# ---------------------------------------------------------------------------------------------------- figures 9 and 10


def utilities_of(batch: JobBatch, forecasts: MarketForecaster, *, guarded: bool) -> tuple[FloatArray, int]:
    """Of each policy of the pool with each job, shape ``(M, K)``; and how many of them differ."""
    ledgers = backtest(list(paper_pool().values()), batch, forecasts, guarded=guarded)
    return np.array([one.utility for one in ledgers]), distinct(ledgers)


def selected(utilities: FloatArray, batch: JobBatch, jobs: int | None) -> tuple[FloatArray, FloatArray, Selector]:
    """What a selector has of them in the mean of its draws, shape ``(K,)``; its weights, shape ``(K, M)``; itself."""
    selector = Selector(list(paper_pool()), jobs)
    had, weights = [], []
    for column, job in zip(utilities.T, batch.jobs, strict=True):
        weights.append(selector.weights)
        had.append(float(selector.weights @ column))
        selector.update(normalised(column, job))
    return np.array(had), np.array(weights), selector


def noises(level: float) -> dict[str, MarketForecaster]:
    """The paper's four kinds."""
    kinds: dict[str, MarketForecaster] = {}
    for tails in get_args(Tails):
        relative = Noisy(level, tails=tails), Noisy(level, tails=tails, seed=1)
        kinds[f"{level:.0%} of it, {tails}"] = MarketForecaster(*relative)
        fixed = [Noisy(level, of, tails, seed) for seed, of in enumerate(FIXED)]
        kinds[f"{level:.0%} fixed, {tails}"] = MarketForecaster(*fixed)
    return kinds


def figure_9(trace: Trace, jobs: int, levels: Sequence[float]) -> float:
    """How near the selector comes to the best policy.

    Args:
        trace: the market.
        jobs: with each forecast; with the last value and the safety net 500 at least.
        levels: how wrong.

    Returns:
        What it lacks of the best, all jobs together, as a part of what the mean of the pool lacks: the worst of all
        forecasts.
    """
    batch, names = paper_jobs(trace, max(jobs, 500), seed=9), list(paper_pool())
    few = paper_jobs(trace, jobs, seed=9)
    rows: list[list[str | int | float]] = []
    ratios = []
    asked: list[tuple[str, MarketForecaster, bool, JobBatch]] = [
        ("last value, with the net", MarketForecaster(LastValue()), True, batch),
        ("last value", MarketForecaster(LastValue()), False, few),
        *((name, one, False, few) for level in levels for name, one in noises(level).items()),
    ]
    for name, forecasts, guarded, some in asked:
        utilities, differ = utilities_of(some, forecasts, guarded=guarded)
        count, means = len(some), utilities.mean(1)
        best, mixture = int(means.argmax()), utilities.mean(0)
        had, _, selector = selected(utilities, some, None)
        printed, _, theirs = selected(utilities, some, count)
        assert max(selector.regret / selector.bound, theirs.regret / theirs.bound) <= 1, "the regret is bounded"
        lacks = [float((utilities[best] - one).sum() / (utilities[best] - mixture).sum()) for one in (had, printed)]
        if count >= 500:
            ratios.append(lacks[0])
        fixed = {
            words: max((mean for one, mean in zip(names, means, strict=True) if keeps(one)), default=0.0)
            for words, keeps in (("v = 1", _of(2, "1")), ("sigma = 0.9", _of(3, "0.9")), ("omega = 1", _of(1, "1")))
        }
        rows.append([
            name, count, names[best], float(means[best]), float(means.min()), float(mixture.mean()),
            float(printed.mean()), float(had.mean()), lacks[1], lacks[0], differ, *map(float, fixed.values()),
        ])  # fmt: skip
    print(
        f"\nfigure 9: selectors over the pool of 112; {int((~batch.feasible).sum())} of {len(batch)} jobs cannot be "
        "ended in time; what is lacking is of what the mean of the pool lacks of its best policy, all jobs together"
    )
    table(
        ["forecast", "jobs", "best policy", "utility", "worst", "mean", "paper's step", "ours", "lacks: paper's",
         "ours", "differ", "best of v = 1", "sigma = 0.9", "omega = 1"], rows,
    )  # fmt: skip
    chosen = {str(row[2]) for row in rows}
    _claim("the noise decides which policy is best", len(chosen) > 1, ", ".join(sorted(chosen)))
    for words, column in (("v", 11), ("sigma", 12), ("omega", 13)):
        lost = max(float(row[3]) - float(row[column]) for row in rows)
        _claim(f"{words} held fixed costs utility", lost > 0.05, f"{lost:.2f} at most")
    return max(ratios)


def _of(part: int, value: str) -> Callable[[str], bool]:
    """Whether a name, such as ``ahap-2-1-0.6``, has a value in its place."""
    return lambda name: name.startswith("ahap") and name.split("-")[part] == value


def figure_10(trace: Trace, scale: float, plots: Path | None) -> None:
    """How the weights move while forecasts get worse."""
    several, columns = [], []
    for number, (count, tails, level) in enumerate(PHASES):
        batch = paper_jobs(trace, int(scale * count), seed=100 + number)
        fixed = [Noisy(level, of, tails, 10 * number + k) for k, of in enumerate(FIXED)]
        several.append(batch)
        columns.append(utilities_of(batch, MarketForecaster(*fixed), guarded=False)[0])
    utilities, ends = np.concatenate(columns, axis=1), np.cumsum([len(one) for one in several])
    whole = JobBatch(
        [job for one in several for job in one.jobs], trace.market, [int(s) for one in several for s in one.starts]
    )
    names = list(paper_pool())
    runs = {"paper's step": selected(utilities, whole, len(whole)), "ours": selected(utilities, whole, None)}
    rows = []
    for (_, tails, level), column, end in zip(PHASES, columns, ends.tolist(), strict=True):
        best = column.mean(1).argmax()
        late = slice(end - column.shape[1] // 4, end)
        row: list[object] = [f"{level:.0%} {tails}", column.shape[1], names[best], float(utilities[best, late].mean())]
        for had, weights, _ in runs.values():
            row += [float(had[late].mean()), names[int(weights[end - 1].argmax())], float(weights[end - 1].max())]
        rows.append(row)
    print(f"\nfigure 10: {len(whole)} jobs, forecasts of four kinds; utilities of the last quarter of each")
    table(
        ["forecast", "jobs", "best policy", "utility", "paper's step", "its best", "weight", "ours", "its best",
         "weight"], rows,
    )  # fmt: skip
    if plots is not None:
        from benchmarks.market.spot_plots import weights as picture  # with matplotlib

        plots.mkdir(parents=True, exist_ok=True)
        picture({name: found for name, (_, found, _) in runs.items()}, ends.tolist(), plots / "figure-10.png")
