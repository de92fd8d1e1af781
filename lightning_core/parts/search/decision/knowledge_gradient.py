"""Knowledge gradient: the promise of a slice of training for the best value at the deadline.

The knowledge gradient (P. Frazier, W. Powell and S. Dayanik, A knowledge-gradient policy for sequential information
collection, SIAM Journal on Control and Optimization 2008) with a horizon. After a slice of trial i its forecast has
moved by
a normal amount of known size, and the better of it and of the best other trial is trained until the deadline:

    E[min(a, M)] = a - tau (z Phi(z) + phi(z)),    z = (a - m) / tau,    M ~ N(m, tau^2).

Here m is the forecast of trial i at the deadline, tau the information in the slice, and a the best forecast of the
others. Those that run beside it lose nothing meanwhile; those that wait reach less by the seconds of the slice.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from lightning_core.core.arrays import BoolArray, FloatArray
from lightning_core.parts.search.decision.beliefs import TrialForecasts
from lightning_core.parts.search.decision.growth_curves import KNOTS


def gains_of_slices(
    forecasts: TrialForecasts, running: BoolArray, new: BoolArray, best: float, leaving: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return by how much each slice is expected to improve the value at the deadline.

    Args:
        forecasts: Forecasts of ``n`` trials.
        running: Whether each has a device, ``(n,)``.
        new: Whether each has not begun, ``(n,)``: nothing is known of it, so it is no alternative to another one.
        best: Best value so far.
        leaving: Row of the trial that is given up for good if another one is trained in its place; None if all can
            wait.

    Returns:
        Improvements, ``(n, slices)``, negative where the others lose more than is learned; and the seconds of the
        slices.
    """
    seconds, told, _ = forecasts.slices()
    n, slices = seconds.shape
    at_once = forecasts.expected(np.zeros(1))[:, 0]
    # Forecast of each other trial while a slice of this one is trained, (others, n, slices).
    others = forecasts.expected(seconds.ravel()).reshape(n, n, slices)
    others = np.where(running[:, None, None], at_once[:, None, None], others)
    others[new] = math.inf
    if leaving is not None:
        others[leaving] = math.inf
    others[np.arange(n), np.arange(n)] = math.inf
    without = np.minimum(others.min(axis=0), best)
    now = min(best, float(np.min(at_once[~new], initial=math.inf)))
    finite = np.where(np.isfinite(at_once), at_once, best)[:, None]
    told = np.maximum(told, 1e-12)
    return now - (without - expected_below(without, finite, told)), seconds


def net_worths(forecasts: TrialForecasts, best: float, worth: float) -> FloatArray:
    """Return what training each trial is expected to be worth, less its device time.

    A trial is trained for a slice, and on to some knot if what was learned makes the rest worth its time. With the
    improvement a of the best value so far that the rest would have to bring, seconds over worth,

        worth E[(best - a - M)+] - seconds of the slice,    M ~ N(m, tau^2),

    for the best slice and knot. A search that stops when no trial is worth its cost stops as in Pandora's box (Q. Xie,
    L. Cai, A. Terenin, P. Frazier and Z. Scully, Cost-aware stopping for Bayesian optimization, arXiv 2507.12453).

    Args:
        forecasts: Forecasts of ``n`` trials.
        best: Best value so far.
        worth: Device seconds that an improvement by 1 is worth.

    Returns:
        Device seconds, ``(n,)``; -inf for a trial without time for a step.
    """
    net = np.full(forecasts.trials, -math.inf)
    for last in range(KNOTS):
        seconds, told, mean = forecasts.slices(last)
        rest = seconds[:, -1:] - seconds
        gains = expected_below(best - rest / worth, mean[:, None], np.maximum(told, 1e-12))
        net = np.maximum(net, np.where(seconds > 0.0, worth * gains - seconds, -math.inf).max(axis=1))
    return net


def expected_below(limit: FloatArray, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return by how much a normal variable is expected to be below a limit, E[(limit - M)+]."""
    z = (limit - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    expected: FloatArray = deviation * (z * ndtr(z) + density)
    return expected
