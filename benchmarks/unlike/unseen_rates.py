"""How well a rate on a kind of devices is foreseen, by what trainings of other sorts gained there."""

from __future__ import annotations

import numpy as np

from benchmarks.common import Figures
from benchmarks.unlike.measured_kinds import KINDS, measured
from lightning_core.scheduler.kinds.kind_rates import KindRates

SECONDS = 100.0


def foreseen() -> Figures:
    """Leave out each sort of trainings, such as ResNet-18; show each on one kind, and compare the others.

    Returns:
        Median error of the logarithm, and the part of the rates within one and two of the spreads that were told.
    """
    rates = {key: np.log(np.array(one)) for key, one in measured().items()}
    sorts = sorted({model.split(" (")[0] for model, _ in rates})
    errors, spreads = list[float](), list[float]()
    for sort in sorts:
        others = KindRates()
        for (model, devices), logs in rates.items():
            if model.split(" (")[0] != sort:
                for kind, log in zip(KINDS, logs, strict=True):
                    others.observe(model, devices, kind, SECONDS * np.exp(log), SECONDS)
        for (model, devices), logs in rates.items():
            for seen in range(len(KINDS)) if model.split(" (")[0] == sort else ():
                known = KindRates()
                known.restore(others.state())
                known.observe(model, devices, KINDS[seen], SECONDS * np.exp(logs[seen]), SECONDS)
                expected, spread = known.expect(model, devices, KINDS)
                rest = np.arange(len(KINDS)) != seen
                errors += np.abs(logs - expected)[rest].tolist()
                spreads += spread[rest].tolist()
    error, spread = np.array(errors), np.array(spreads)
    return {
        "unseen_error": float(np.median(error)),
        "unseen_within_1": float(np.mean(error < spread)),
        "unseen_within_2": float(np.mean(error < 2 * spread)),
    }
