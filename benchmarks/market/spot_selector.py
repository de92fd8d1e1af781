"""The paper's figures 9 and 10: how close its selector, and ours, come to the best policy of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.common import Figures, Size, table
from benchmarks.market.spot_traces import Trace, paper_jobs
from lightning_core.core.arrays import FloatArray
from lightning_core.core.specs import parse_spec
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster, Noise, Tails
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.selector import Selector, normalised
from lightning_core.parts.market.spot_policies.ahap import Mode
from lightning_core.parts.market.spot_policies.paper_pool import PAPER_POOL, REPAIRED_POOL, distinct, make_pool

SELECTED: Mapping[Size, int] = {"quick": 60, "default": 500, "full": 1000}
# Phases of figure 10: jobs, and the kind and size of forecast errors.
PHASES: tuple[tuple[int, Tails, float], ...] = (
    (800, "uniform", 0.1), (800, "heavy", 0.3), (800, "uniform", 0.5), (1200, "uniform", 2.0)
)  # fmt: skip
# Fixed errors are parts of a price of 1 and of 8 instances.
FIXED = partial(Noise, price=1.0, count=8.0)


def print_claim(words: str, holds: bool, figures: str = "") -> None:
    """Print whether a claim of the paper holds, and the figures that show it."""
    print(f"  {'holds' if holds else 'does not hold'}: {words}{f' ({figures})' if figures else ''}")


def utilities_of(
    batch: JobBatch, forecasts: MarketForecaster, *, guarded: bool, mode: Mode = "default"
) -> tuple[FloatArray, int]:
    """Return the utility of each policy of the pool with each job, shape ``(M, K)``, and how many policies differ."""
    pool = make_pool(PAPER_POOL if mode == "paper" else REPAIRED_POOL)
    ledgers = backtest(list(pool.values()), batch, forecasts, guarded=guarded)
    return np.array([one.utility for one in ledgers]), distinct(ledgers)


def selected(utilities: FloatArray, batch: JobBatch, jobs: int | None) -> tuple[FloatArray, FloatArray, Selector]:
    """Return a selector's expected utilities, shape ``(K,)``, its weights, shape ``(K, M)``, and the selector."""
    selector = Selector(list(REPAIRED_POOL), jobs)
    had, weights = [], []
    for column, job in zip(utilities.T, batch.jobs, strict=True):
        weights.append(selector.weights)
        had.append(float(selector.weights @ column))
        selector.update(normalised(column, job))
    return np.array(had), np.array(weights), selector


def noises(level: float) -> dict[str, MarketForecaster]:
    """Return forecasters with the paper's four kinds of errors."""
    kinds: dict[str, MarketForecaster] = {}
    for tails in get_args(Tails):
        kinds[f"{level:.0%} of it, {tails}"] = MarketForecaster(Noise(level, tails=tails))
        kinds[f"{level:.0%} fixed, {tails}"] = MarketForecaster(FIXED(level, tails=tails))
    return kinds


def figure_9(trace: Trace, jobs: int, levels: Sequence[float]) -> Figures:
    """Print how close the selectors come to the best policy: of the printed pool, and with the net of the repaired one.

    Args:
        trace: The market.
        jobs: Number of jobs with each forecast; at least 500 with the last value and the safety net.
        levels: Relative sizes of the forecast errors.

    Returns:
        By forecast, the utility of the best policy, of both selectors, and of the best policy with a fixed argument;
        and with the net the shortfall of both selectors from the best policy, relative to that of the mean policy.
    """
    batch, names = paper_jobs(trace, max(jobs, 500), seed=9), list(REPAIRED_POOL)
    few = paper_jobs(trace, jobs, seed=9)
    rows: list[list[str | int | float]] = []
    figures: Figures = {}
    fixes = {"v = 1": _of("commitment", 1), "sigma = 0.9": _of("sigma", 0.9), "omega = 1": _of("omega", 1)}
    asked: list[tuple[str, MarketForecaster, bool, JobBatch]] = [
        ("last value, with the net", MarketForecaster(LastValue()), True, batch),
        ("last value", MarketForecaster(LastValue()), False, few),
        *((name, one, False, few) for level in levels for name, one in noises(level).items()),
    ]
    for name, forecasts, guarded, some in asked:
        utilities, differ = utilities_of(some, forecasts, guarded=guarded, mode="default" if guarded else "paper")
        count, means = len(some), utilities.mean(1)
        best, mixture = int(means.argmax()), utilities.mean(0)
        had, _, selector = selected(utilities, some, None)
        printed, _, theirs = selected(utilities, some, count)
        assert max(selector.regret / selector.bound, theirs.regret / theirs.bound) <= 1, "the regret is bounded"
        lacks = [float((utilities[best] - one).sum() / (utilities[best] - mixture).sum()) for one in (had, printed)]
        if guarded:
            figures |= {"selector_shortfall_ratio": lacks[0], "selector_printed_shortfall_ratio": lacks[1]}
        fixed = {
            words: max((mean for one, mean in zip(names, means, strict=True) if keeps(one)), default=0.0)
            for words, keeps in fixes.items()
        }
        figures |= {f"fig9_{name}_{what}": number for what, number in {
            "best": float(means[best]), "mean": float(mixture.mean()), "printed": float(printed.mean()),
            "ours": float(had.mean()), "number": float(best), **fixed,
        }.items()}  # fmt: skip
        rows.append([
            name, count, names[best], float(means[best]), float(means.min()), float(mixture.mean()),
            float(printed.mean()), float(had.mean()), lacks[1], lacks[0], differ, *map(float, fixed.values()),
        ])  # fmt: skip
    print(
        f"\nfigure 9: selectors over the pool of 112; {int((~batch.feasible).sum())} of {len(batch)} jobs cannot be on "
        "time; shortfall from the best policy relative to that of the mean policy, over all jobs"
    )
    table(
        ["forecast", "jobs", "best policy", "utility", "worst", "mean", "paper's step", "ours",
         "shortfall: paper's", "ours", "policies that differ", "best of v = 1", "sigma = 0.9", "omega = 1"], rows,
    )  # fmt: skip
    chosen = {str(row[2]) for row in rows}
    print_claim("the best policy depends on the noise", len(chosen) > 1, ", ".join(sorted(chosen)))
    for words, column in (("v", 11), ("sigma", 12), ("omega", 13)):
        lost = max(float(row[3]) - float(row[column]) for row in rows)
        print_claim(f"a fixed {words} costs utility", lost > 0.05, f"at most {lost:.2f}")
    return figures


def _of(argument: str, value: float) -> Callable[[str], bool]:
    """Return a test whether a policy by its spec is AHAP with this value of an argument."""
    return lambda text: (spec := parse_spec(text)).name == "ahap" and spec.arguments[argument] == value


def figure_10(trace: Trace, scale: float, plots: Path | None) -> Figures:
    """Print, draw and return how the weights move over the printed pool while forecasts get worse."""
    several, columns = [], []
    for number, (count, tails, level) in enumerate(PHASES):
        batch = paper_jobs(trace, int(scale * count), seed=100 + number)
        fixed = FIXED(level, tails=tails, seed=5 * number)
        several.append(batch)
        columns.append(utilities_of(batch, MarketForecaster(fixed), guarded=False, mode="paper")[0])
    utilities, ends = np.concatenate(columns, axis=1), np.cumsum([len(one) for one in several])
    whole = JobBatch(
        [job for one in several for job in one.jobs], trace.market, [int(s) for one in several for s in one.starts]
    )
    names = list(REPAIRED_POOL)
    runs = {"paper's step": selected(utilities, whole, len(whole)), "ours": selected(utilities, whole, None)}
    rows, figures = [], Figures(fig10_jobs=len(whole))
    for number, ((_, tails, level), column, end) in enumerate(zip(PHASES, columns, ends.tolist(), strict=True), 1):
        best = column.mean(1).argmax()
        late = slice(end - column.shape[1] // 4, end)
        row: list[object] = [f"{level:.0%} {tails}", column.shape[1], names[best], float(utilities[best, late].mean())]
        figures[f"fig10_{number}_best"] = float(utilities[best, late].mean())
        for which, (had, weights, _) in zip(("printed", "ours"), runs.values(), strict=True):
            chosen = int(weights[end - 1].argmax())
            figures |= {f"fig10_{number}_{which}": float(had[late].mean()),
                        f"fig10_{number}_chosen_{which}": float(column[chosen, -(column.shape[1] // 4) :].mean()),
                        f"fig10_{number}_weight_{which}": float(weights[end - 1].max())}  # fmt: skip
            row += [float(had[late].mean()), names[int(weights[end - 1].argmax())], float(weights[end - 1].max())]
        rows.append(row)
    print(f"\nfigure 10: {len(whole)} jobs in four phases of forecast errors; utilities of the last quarter of each")
    table(
        ["forecast", "jobs", "best policy", "utility", "paper's step", "its choice", "weight", "ours", "its choice",
         "weight"], rows,
    )  # fmt: skip
    if plots is not None:
        from benchmarks.market.spot_plots import weights as picture  # with matplotlib

        plots.mkdir(parents=True, exist_ok=True)
        picture({name: found for name, (_, found, _) in runs.items()}, ends.tolist(), plots / "figure-10.png")
    return figures
