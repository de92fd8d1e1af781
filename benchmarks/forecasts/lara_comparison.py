"""LARA's comparison of its estimator with least squares, M4 and engression (section 4.4): the data that a job needs.

A fit of engression takes a second and more, so every fourth recording is used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import Recording
from benchmarks.forecasts.engression_curve import fit_engression, package
from benchmarks.forecasts.offline import Offline
from benchmarks.forecasts.scores import AHEAD, CAP, KINDS, PARTS, Make, Study, over, study
from lightning_core.estimators import ESTIMATORS, Posterior

ESTIMATORS_COMPARED: Mapping[str, Make] = {
    "least_squares": ESTIMATORS["least_squares"],
    "weighted": ESTIMATORS["weighted"],
    "m4": Offline,
    "engression": partial(Offline, fit_engression, remember=True),
    "engression_of_logs": partial(Offline, partial(fit_engression, logarithms=True), remember=True),
    "posterior": Posterior,
}
EVERY = 4
# Cells of a recording at whose end a forecast is timed, and number of forecasts that are.
CELLS, TIMED = 100, 3


def check() -> None:
    """Check that all estimators can be made, before anything that takes long.

    Raises:
        ModuleNotFoundError: If a package is not installed.
    """
    package()


def compare(
    recordings: Sequence[Recording], makes: Mapping[str, Make] = ESTIMATORS_COMPARED, every: int = EVERY
) -> Figures:
    """Print and return errors of the data needed and of the loss ahead, and the time of a forecast.

    Args:
        recordings: Recordings, of which some are used.
        makes: Estimators by name.
        every: Each how manieth is used.
    """
    pool = recordings[::every]
    studies = {name: study(make, pool) for name, make in makes.items()}
    seconds = {name: forecast_seconds(make, pool[0]) for name, make in makes.items()}
    print(f"\nLARA's comparison, {len(pool)} of {len(recordings)} recordings: data needed, |forecast - truth| / truth,")
    print(f"median (mean, each at most {CAP:g}), with 2 to 50 % seen; loss at cell {AHEAD}, median error by part seen")
    parts = [f"{part:.0%} seen" for part in PARTS]
    table(
        ["", *KINDS, *parts, "seconds a forecast"],
        [[name, *_needed(one), *_ahead(one), seconds[name]] for name, one in studies.items()],
    )
    return {
        "lara_recordings": float(len(pool)),
        **{f"lara_{name}_s": taken for name, taken in seconds.items()},
        **{name: number for found in map(_figures, studies, studies.values()) for name, number in found.items()},
    }


def forecast_seconds(make: Make, recording: Recording) -> float:
    """Return the median seconds to observe a cell and forecast the loss, after the first cells of a recording."""
    bank, row = make(), np.array([0])
    bank.grow(1)
    far, taken = np.array([2.0 * recording.position[-1]]), []
    cells = list(zip(recording.position.tolist(), recording.loss.tolist(), strict=True))[:CELLS]
    for k, cell in enumerate(cells):
        began = time.perf_counter()
        bank.observe(row, *(np.array([value]) for value in cell))
        if k >= len(cells) - TIMED:
            bank.predict(row, far)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _needed(one: Study) -> list[str]:
    scores = [one.scores[kind, 0] for kind in KINDS]
    return [f"{score.data:.2f} ({score.data_mean:.2f})" for score in scores]


def _ahead(one: Study) -> list[float]:
    return [over(np.median, errors) for errors in one.errors["mixed"]]


def _figures(name: str, one: Study) -> Figures:
    numbers = {f"lara_{name}_data_{kind}": one.scores[kind, 0].data for kind in KINDS}
    numbers |= {f"lara_{name}_data_mean_{kind}": one.scores[kind, 0].data_mean for kind in KINDS}
    numbers |= {f"lara_{name}_error_mixed_{100 * p:g}": error for p, error in zip(PARTS, _ahead(one), strict=True)}
    return {name: number if np.isfinite(number) else None for name, number in numbers.items()}
