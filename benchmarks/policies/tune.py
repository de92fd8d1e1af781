"""Choose the constants of every policy, by the same number of trials, on recordings that no result is reported on.

Each policy is tried with its defaults and with constants drawn at random, all on the same bundles. The best mean
fraction of the ceiling wins if it is better than the defaults by more than two standard errors, paired by bundle: the
best of several draws is a little better by luck alone, which does not carry over to other curves. Only numbers are
tuned: the papers' policies keep the structure that is published. ``split.json`` names the families of tasks that are
used here; results are reported on the others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curves.replay import Cell, Contender, Played, play, tuning

TUNED = Path(__file__).parent / "tuned.json"
CELLS = {
    Cell(size, pure): bundles for size, bundles in ((5, 24), (10, 18), (25, 8)) for pure in (False, True)
}  # fmt: skip
# Bundles for tuning have seeds that no result uses.
FIRST_SEED = 1_000_000

Space = Mapping[str, Sequence[Any]]
_WEIGHTED: Space = {"estimator.gamma": (0.8, 0.85, 0.9, 0.95, 0.98, 0.99)}
_POSTERIOR: Space = {
    "estimator.evidence": (2.0, 3.0, 4.0, 6.0),
    "estimator.floor": (0.1, 0.2, 0.3),
    "estimator.widening": (0.2, 0.4, 0.6),
}
_EXPLORE: Space = {"explore": (3, 5, 10, 20, 40)}
_JUDGE: Space = {"judge_after": (8, 10, 14, 20, 30), "min_chance": (0.05, 0.1, 0.15, 0.2, 0.25)}
_LEVEL: Space = {"level": (0.1, 0.2, 0.3, 0.4, 0.5)}
SPACES: Mapping[str, Space] = {
    "rr": {"quantum": (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)},
    "lrf": {**_EXPLORE, **_WEIGHTED},
    "etf": {**_EXPLORE, **_WEIGHTED},
    "lara": {**_EXPLORE, **_WEIGHTED},
    "laira": {
        "explore": (3, 5, 10, 20),
        "initial_units": (2, 5, 10, 20),
        "kp": (0.0, 5.0, 20.0, 80.0),
        "kd": (0.0, 5.0, 20.0),
        "gamma": (0.8, 0.85, 0.9, 0.95, 0.98, 0.99),
        "ridge": (1e-4, 1e-2, 1.0),
        "noise": (0.01, 0.05, 0.2),
        "dkf.delta": (0.0, 1e-3, 1e-2),
        "dkf.process": (1e-4, 1e-3, 1e-2),
        "dkf.measurement": (1e-3, 1e-2, 1e-1),
        "dkf.damping": (0.1, 0.3, 1.0),
    },
    "guarded_edf": {**_JUDGE, **_POSTERIOR},
    "index_edf": {**_LEVEL, **_JUDGE, **_POSTERIOR},
    "triage": {**_LEVEL, **_JUDGE, **_POSTERIOR, "slice_cells": (4, 8, 20, 40)},
}


def contender(policy: str, constants: Mapping[str, Any]) -> Contender:
    """Return a policy with constants by name: ``estimator.x`` for its estimator, ``dkf.x`` for LaiRA's filter."""
    arguments: dict[str, Any] = {}
    estimator: dict[str, Any] = {}
    for name, value in constants.items():
        group, dot, key = name.partition(".")
        if not dot:
            arguments[name] = value
        elif group == "estimator":
            estimator[key] = value
        else:
            arguments.setdefault(group, {})[key] = value
    return Contender(policy, arguments, estimator_arguments=estimator)


def tuned(policy: str) -> dict[str, Any]:
    """Return the constants that were chosen; none if there is nothing to choose."""
    chosen: dict[str, Any] = json.loads(TUNED.read_text())["constants"] if TUNED.exists() else {}
    return dict(chosen.get(policy, {}))


def mean_fraction(cells: Mapping[Cell, Sequence[Played]]) -> float:
    """Return the jobs met as a fraction of the ceiling, with the cells weighted equally."""
    return float(np.mean([sum(p.met for p in played) / sum(p.ceiling for p in played) for played in cells.values()]))


def surely_better(one: Mapping[Cell, Sequence[Played]], other: Mapping[Cell, Sequence[Played]]) -> bool:
    """Return whether the mean fraction is higher by more than two standard errors."""
    gains, variances = [], []
    for cell, played in one.items():
        ceiling = np.mean([p.ceiling for p in played])
        gain = np.array([p.met - q.met for p, q in zip(played, other[cell], strict=True)]) / ceiling
        gains.append(gain.mean())
        variances.append(gain.var(ddof=1) / len(gain))
    return bool(np.mean(gains) > 2 * np.sqrt(np.sum(variances)) / len(gains))


def trials(policy: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the constants to try: the defaults, then random draws without repetition."""
    draw = np.random.default_rng(seed)
    space = SPACES[policy]
    different = int(np.prod([len(values) for values in space.values()]))
    found: list[dict[str, Any]] = [{}]
    while len(found) < min(count, different + 1):
        one = {name: values[int(draw.integers(len(values)))] for name, values in space.items()}
        if one not in found:
            found.append(one)
    return found


def main() -> None:
    """Tune the policies that are named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.tune", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--curves", type=Path, required=True, metavar="DIR", help="folder of recorded loss curves of all families"
    )
    parser.add_argument("--trials", type=int, default=8, metavar="N", help="trials of each policy (default: 8)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the draws (default: 1)")
    parser.add_argument("--policy", nargs="+", choices=sorted(SPACES), default=list(SPACES), metavar="NAME",
                        help=f"policies to tune, of {', '.join(SPACES)} (default: all)")  # fmt: skip
    arguments = parser.parse_args()
    pool = tuning(arguments.curves)
    body: dict[str, Any] = json.loads(TUNED.read_text()) if TUNED.exists() else {"constants": {}, "shares": {}}
    for policy in arguments.policy:
        results = []
        for constants in trials(policy, arguments.trials, arguments.seed):
            played = play(pool, CELLS, {"it": contender(policy, constants)}, first_seed=FIRST_SEED)
            its = {cell: rows["it"] for cell, rows in played.items()}
            results.append((mean_fraction(its), constants, its))
            print(f"{policy} {results[-1][0]:.4f} {constants}", flush=True)
        best, constants, its = max(results, key=lambda result: result[0])
        defaults, _, usual = results[0]
        body["constants"][policy] = constants if surely_better(its, usual) else {}
        body["shares"][policy] = {"defaults": round(defaults, 4), "best": round(best, 4), "trials": len(results)}
        TUNED.write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
