"""Draws two evenings from a seed: eight trainings with time to spare, then eight like them with too little.

The second evening's trainings have the same models as the first's, other learning rates and another seed
(:data:`examples.digits.trainings.AGAIN`). Targets and deadlines are drawn as for the demo
(:mod:`examples.digits.drawing`); which trainings each evening has is drawn by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from examples.digits.drawing import DrawnJob, draw
from examples.digits.trainings import AGAIN, CURVES, CURVES_AGAIN, SUFFIX, TRAININGS
from lightning_core.simulation.recorded_curves import Curve, load_curves

JOBS = 8
# Seconds of each evening, and the work of its reachable targets as a multiple of them: on the second, half must go.
FIRST, SECOND = (25.0, 0.8), (20.0, 2.0)


class Evenings(NamedTuple):
    """The jobs of two evenings, each in the order of submission."""

    first: list[DrawnJob]
    second: list[DrawnJob]


def recorded() -> dict[str, Curve]:
    """Return the recording of each training of either evening.

    Those of the second have no seconds per batch of their own: their models are those of the first.
    """
    found = {curve.name: curve for curve in load_curves(CURVES)}
    for curve in load_curves(CURVES_AGAIN):
        like = found[curve.name.removesuffix(SUFFIX)]
        found[curve.name] = replace(curve, seconds_per_batch=like.seconds_per_batch)
    return found


def model_of(name: str) -> str:
    """Return the class path of the model of a training, as a pool knows it."""
    return f"examples.digits.{(TRAININGS | AGAIN)[name].model}"


def draw_evenings(curves: Mapping[str, Curve], throughputs: Mapping[str, float], seed: int) -> Evenings:
    """Return the evenings of a seed.

    Args:
        curves: Recorded loss curve of each training of either evening.
        throughputs: Batches per second of each training alone on this machine.
        seed: Seed of all draws.
    """
    rng = np.random.default_rng([seed, JOBS])
    evenings = []
    for number, (trainings, (seconds, load)) in enumerate(((TRAININGS, FIRST), (AGAIN, SECOND))):
        chosen = {str(name): curves[str(name)] for name in rng.choice(sorted(trainings), JOBS, replace=False)}
        evenings.append(draw(chosen, throughputs, 2 * seed + number, seconds, load))
    return Evenings(*evenings)
