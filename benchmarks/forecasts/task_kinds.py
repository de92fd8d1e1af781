"""What users are told of the end of their trainings, by kind of training, held against when they ended.

    python -m benchmarks.forecasts.task_kinds

The 61 small trainings of :mod:`benchmarks.forecasts.ordinary`, and the published curves of families on which nothing
was tuned, each with targets at 20 and 90 % of it. Each is replayed to the scheduler that ships, alone on one device
with twice the time that it is planned to take, and looked at when it has come 10, 20 and 50 % of the way to its target.
What counts is what ``status`` shows then: a likely end between an early and a late one, or none where it would be
beyond reach, or is not known yet.

``KIND_told_PART`` is the part of the looks at which an end was shown, ``KIND_factor_PART`` the median of how many times
too long or too short the time to it was, and ``KIND_within`` the part of the looks with an end at which the truth came
between the early and the late one, the 15 % and the 85 % quantile, as it should at 70 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures, main, table
from benchmarks.curves.bundles import WINDOW, Recording
from benchmarks.curves.published import unpack
from benchmarks.curves.replay import reporting
from benchmarks.forecasts.ordinary import Training, replayed, trainings
from lightning_core.core.targets import LossTarget

PARTS = (0.1, 0.2, 0.5)
# Parts of a published curve at which its targets lie.
GOALS = (0.2, 0.9)
# Kinds of the small trainings, by the first word of their names; and of the published curves, by domain.
SMALL = {
    "images": "digits autoencoder vae",
    "text": "letters lora chain",
    "tables": "wine cancer diabetes friedman ratings flipped sums",
    "control": "pole",
    "equations": "diffusion heat modular parity",
}
LARGE = {
    "cv": "images",
    "nlp": "text",
    "audio": "speech",
    "graph": "graphs",
    "medical-imaging": "scans",
    "rl": "control",
}


class Look(NamedTuple):
    """What was told of a training at a part of its way.

    Attributes:
        part: Part of its way to the target.
        truth: Seconds that it still needed.
        early: Seconds to the early end; None if none was told.
        likely: Seconds to the likely end.
        late: Seconds to the late end.
    """

    part: float
    truth: float
    early: float | None
    likely: float | None
    late: float | None

    @property
    def factor(self) -> float:
        """Return how many times too long or too short the time to the likely end was; inf if there was none."""
        return np.inf if self.likely is None else float(np.exp(abs(np.log(max(self.likely, 1e-9) / self.truth))))

    @property
    def within(self) -> bool:
        """Return whether the truth is between the early and the late end; an end that is not told is far away."""
        far = np.inf
        return (far if self.early is None else self.early) <= self.truth <= (far if self.late is None else self.late)


def published(recording: Recording) -> Iterator[Training]:
    """Yield a published curve as a training with a target at each of :data:`GOALS`, where it has come down by then."""
    batches = tuple(map(int, recording.position))
    for goal in GOALS:
        loss = float(recording.smooth[max(int(goal * len(recording.smooth)), WINDOW) - 1])
        if loss > 0.95 * recording.smooth[WINDOW - 1]:
            continue
        reached = batches[int(np.argmax(recording.smooth <= loss))]
        target, values = LossTarget("loss", loss), tuple(map(float, recording.loss))
        rates = recording.curve.learning_rates()
        yield Training(recording.curve.name, target, batches, values, False, rates, batches[-1], reached)


def looks(training: Training) -> list[Look]:
    """Return what was told of a training at each of :data:`PARTS`; nothing of one that never reaches its target."""
    found = []
    for now in replayed(training, PARTS) if np.isfinite(training.reached) else ():
        told = now.scheduler.job_forecast("job")
        truth = max((training.reached - now.batches) * now.scale, 1e-9)
        if told is not None:
            found.append(Look(now.part, truth, told.early, told.left, told.late))
    return found


def figures(kind: str, found: list[list[Look]]) -> Figures:
    """Return the figures of the looks at some trainings of a kind."""
    shown: Figures = {f"{kind}_trainings": float(len(found))}
    every = [look for some in found for look in some]
    for part in PARTS:
        some = [look for look in every if look.part == part]
        told = [look.factor for look in some if look.likely is not None]
        shown[f"{kind}_told_{100 * part:.0f}"] = len(told) / max(len(some), 1)
        shown[f"{kind}_factor_{100 * part:.0f}"] = float(np.median(told)) if told else None
    known = [look.within for look in every if look.likely is not None]
    shown[f"{kind}_within"] = float(np.mean(known)) if known else None
    return shown


def measure(_: str) -> Figures:
    """Return the figures of all kinds, and print them."""
    shown: Figures = {}
    for kind, tasks in SMALL.items():
        some = [one for one in trainings() if one.name.split()[0] in tasks.split() and np.isfinite(one.reached)]
        shown |= figures(f"small_{kind}", [looks(one) for one in some])
    with tempfile.TemporaryDirectory() as folder:
        pool = reporting(unpack(Path(folder) / "curves"))
    for domain, kind in LARGE.items():
        some = [one for recording in pool if recording.curve.domain == domain for one in published(recording)]
        shown |= figures(f"large_{kind}", [looks(one) for one in some])
    names = [*(f"small_{kind}" for kind in SMALL), *(f"large_{kind}" for kind in LARGE.values())]
    columns = ["trainings", *(f"{what}_{100 * part:.0f}" for part in PARTS for what in ("told", "factor")), "within"]
    table(["kind", *columns], [[name, *(shown.get(f"{name}_{column}") for column in columns)] for name in names])
    return shown


if __name__ == "__main__":
    main("forecasts.task_kinds", "What is told of the end of trainings, by kind of training", measure)
