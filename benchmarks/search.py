"""The best value of a search at its deadline, and the work it took: ours beside the rules of Ray Tune and Optuna.

The trials are recorded: 320 networks on the digits, all trained to their 81 epochs. Every rule draws the same trials in
the same order, on devices in virtual time; Tune's schedulers and Optuna's pruners are the packages' own. A deadline
is given in whole trials of the median pace. The value is the loss on the half of the digits that is held out.

At the end, the device seconds that a search saves which ends when no training is worth its time, and the loss it gives
up; beside it CFBO's rule for the same worth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
)

from benchmarks.common import Figures, Size, main, table
from benchmarks.searches.deadline_contender import HyperSched, Ours
from benchmarks.searches.digits_trials import EPOCHS
from benchmarks.searches.freeze_thaw_contenders import CFBO, IfBO
from benchmarks.searches.optuna_contender import OptunaContender
from benchmarks.searches.play import Contender, Played, RecordedTrial, Terms, play, table_of
from benchmarks.searches.record_trials import read
from benchmarks.searches.tune_contender import TuneContender
from lightning_core.parts.search.optuna import ForecastPruner

RECORDED = Path(__file__).parent / "searches" / "digits.json.xz"
# Seconds from one trial to the next on a device: the median of what training took beside its epochs.
START = 0.03
# Devices, deadlines in whole trials, and numbers of orders of draws, by size.
SIZES: Mapping[Size, tuple[tuple[int, ...], tuple[float, ...], int]] = {
    "quick": ((4,), (0.5, 1, 2), 5),
    "default": ((1, 4), (0.5, 1, 2, 4), 30),
    "full": ((1, 4, 16), (0.5, 1, 2, 4), 20),
}
OURS, PRUNER, HYPERSCHED = "DeadlineSearch", "ForecastPruner", "HyperSched's idea"
IFBO_IDEA, CFBO_IDEA = "ifBO's acquisition on our forecasts", "CFBO's acquisition on our forecasts"
IDEAS = (HYPERSCHED, IFBO_IDEA, CFBO_IDEA)
# Whole trials of device time that a loss 1 % lower is worth.
WORTHS = (0.1, 0.03)
# Parts of the time to the deadline at which the best value is shown.
PARTS = (0.25, 0.5, 0.75, 1.0)


def contenders() -> dict[str, Callable[[Terms, int], Contender]]:
    """Return all rules by name, each with the settings that its package advises for 81 epochs."""
    tune: dict[str, Any] = {"metric": "value", "mode": "min"}
    pruners = optuna.pruners
    return {
        OURS: Ours,
        PRUNER: lambda terms, n: OptunaContender(lambda clock: ForecastPruner(terms.deadline, EPOCHS, clock=clock), n),
        HYPERSCHED: HyperSched,
        IFBO_IDEA: IfBO,
        CFBO_IDEA: CFBO,
        "random": lambda _, n: TuneContender(ASHAScheduler(max_t=EPOCHS, grace_period=EPOCHS, **tune), n),
        "Tune ASHA 3": lambda _, n: TuneContender(ASHAScheduler(max_t=EPOCHS, reduction_factor=3, **tune), n),
        "Tune ASHA 4": lambda _, n: TuneContender(ASHAScheduler(max_t=EPOCHS, reduction_factor=4, **tune), n),
        "Tune median": lambda _, n: TuneContender(
            MedianStoppingRule(time_attr="training_iteration", grace_period=1, **tune), n
        ),
        "Tune Hyperband": lambda _, n: TuneContender(HyperBandScheduler(max_t=EPOCHS, **tune), n),
        "Tune BOHB's Hyperband": lambda _, n: TuneContender(HyperBandForBOHB(max_t=EPOCHS, **tune), n),
        "Optuna median": lambda _, n: OptunaContender(lambda _: pruners.MedianPruner(), n),
        "Optuna halving": lambda _, n: OptunaContender(
            lambda _: pruners.SuccessiveHalvingPruner(reduction_factor=3), n
        ),
        "Optuna Hyperband": lambda _, n: OptunaContender(
            lambda _: pruners.HyperbandPruner(max_resource=EPOCHS, reduction_factor=3), n
        ),
    }


def measure(size: Size) -> Figures:
    """Play all rules for all deadlines and numbers of devices."""
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    all_devices, deadlines, orders = SIZES[size]
    recorded = read(RECORDED)
    whole = EPOCHS * float(np.median([trial["seconds_per_epoch"] for trial in recorded]))
    tables = [table_of(recorded, "val_loss", seed) for seed in range(orders)]
    figures: Figures = {}
    for devices in all_devices:
        for deadline in deadlines:
            terms = Terms(deadline * whole, devices, EPOCHS, START)
            found = dict[str, list[Played]]()
            seconds = dict[str, float]()
            for name, contender in contenders().items():
                began = time.perf_counter()
                found[name] = [play(contender(terms, len(trials)), trials, terms) for trials in tables]
                seconds[name] = time.perf_counter() - began
            print(f"\n{devices} devices, {deadline:g} whole trials: best value at parts of the time, mean of {orders}")
            _show(found, seconds, terms)
            end = f"_{deadline:g}" if devices == 4 else f"_{deadline:g}_on_{devices}"
            figures |= {name + end: value for name, value in _figures(found, devices * terms.deadline).items()}
        # For the longest deadline.
        for name, value in _what_time_is_worth(found[OURS], tables, terms, whole).items():
            figures[name if devices == 4 else f"{name}_on_{devices}"] = value
    return figures


def _what_time_is_worth(
    until_deadline: list[Played], tables: list[list[RecordedTrial]], terms: Terms, whole: float
) -> dict[str, float | None]:
    """Return loss and part of the device seconds saved of searches that end when training is not worth its time."""
    figures: dict[str, float | None] = {}
    rows: list[list[object]] = []
    names = {"": "until the deadline", "ours": "DeadlineSearch with worth", "cfbo": "CFBO's rule on our forecasts"}
    whole_work = sum(one.work[-1] for one in until_deadline)
    for worth in WORTHS:
        found = {"": until_deadline}
        for key, rule in (("ours", Ours), ("cfbo", CFBO)):
            found[key] = [play(rule(terms, len(trials), worth * whole), trials, terms) for trials in tables]
        for key, played in found.items():
            loss, saved = _mean(played), 1.0 - sum(one.work[-1] for one in played) / whole_work
            # On the scale on which 1 % is the same everywhere, in whole trials.
            utility = [-100.0 * worth * np.log(one.best[-1]) - one.work[-1] / whole for one in played]
            rows.append([worth, names[key], loss, saved, float(np.mean(utility))])
            if key:
                figures |= {f"{key}_loss_worth_{worth:g}": loss, f"{key}_saved_worth_{worth:g}": saved}
    print(f"\n{terms.devices} devices, {terms.deadline / whole:g} whole trials: when training is worth its time")
    table(["1 % is worth", "rule", "loss", "saved", "utility"], rows)
    return figures


def _show(found: Mapping[str, list[Played]], seconds: Mapping[str, float], terms: Terms) -> None:
    rows: list[list[object]] = []
    for name, played in sorted(found.items(), key=lambda item: _mean(item[1])):
        by_time = [float(np.mean([one.best_at(part * terms.deadline) for one in played])) for part in PARTS]
        trials = float(np.mean([one.trials for one in played]))
        decisions = sum(len(one.ends) for one in played)
        rows.append([name, *by_time, _error(played), trials, 1000.0 * seconds[name] / decisions])
    table(["rule", *(f"{part:.0%}" for part in PARTS), "s.e.", "trials", "ms a report"], rows)


def _figures(found: Mapping[str, list[Played]], budget: float) -> dict[str, float | None]:
    """Return the mean best values of ours and of the best other rule, and the work of ours for that value over its own.

    Once among all other rules, and once among those that the packages have: ideas of papers are in neither.
    """
    figures: dict[str, float | None] = {"ours_best": _mean(found[OURS]), "pruner_best": _mean(found[PRUNER])}
    names = [name for name in found if name not in (OURS, PRUNER)]
    for end, others in (("other", names), ("package", [name for name in names if name not in IDEAS])):
        best = min(others, key=lambda name: _mean(found[name]))
        value = _mean(found[best])
        ours, its = _work_until(found[OURS], value, budget), _work_until(found[best], value, budget)
        apart = [a.best[-1] - b.best[-1] for a, b in zip(found[OURS], found[best], strict=True)]
        figures |= {
            f"best_{end}": value,
            f"standard_error_{end}": float(np.std(apart, ddof=1) / np.sqrt(len(apart))),
            f"work_ratio_{end}": None if ours is None or its is None else ours / its,
        }
    return {"work_ratio" if name == "work_ratio_other" else name: value for name, value in figures.items()}


def _mean(played: list[Played]) -> float:
    return float(np.mean([one.best[-1] for one in played]))


def _error(played: list[Played]) -> float:
    return float(np.std([one.best[-1] for one in played], ddof=1) / np.sqrt(len(played)))


def _work_until(played: list[Played], value: float, budget: float) -> float | None:
    """Return the device seconds after which the mean of the best values is at most ``value``; None if it never is."""
    for work in np.linspace(0.0, budget, 401)[1:]:
        if np.mean([one.best_with(work) for one in played]) <= value * (1 + 1e-9):
            return float(work)
    return None


if __name__ == "__main__":
    main("search", __doc__.splitlines()[0], measure)
