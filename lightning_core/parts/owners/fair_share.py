"""Fair shares of owners: the devices of a pool divided by weight, with quotas and caps, and none left unused.

Weighted max-min fairness: no share can grow but at the cost of one that is smaller for its weight. What an owner
cannot use, or may not have, goes to the others. A share need not be a whole number of devices, and a job has whole
ones: each owner has the whole part of its share at once, and what remains of all shares is given in turns. The owner
that lags most behind its share has the next turn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray

EPSILON = 1e-9


class Claims(NamedTuple):
    """What owners can use and what they are entitled to: arrays of shape ``(k,)``, one entry per owner."""

    demand: FloatArray
    """Devices that its jobs can use now, at most its cap."""
    quota: FloatArray
    """Devices that are its own as far as it can use them."""
    weight: FloatArray
    spent: BoolArray
    """Whether its budget is spent: then it has only what the others cannot use."""


def fair_shares(claims: Claims, devices: float) -> FloatArray:
    """Return the share of each owner in devices, shape ``(k,)``.

    Example: the first owner has a quota of 3 devices, the third can use only one::

        >>> claims = Claims(np.array([9.0, 9.0, 1.0]), np.array([3.0, 0, 0]), np.ones(3), np.zeros(3, np.bool_))
        >>> fair_shares(claims, 6.0)
        array([3., 2., 1.])
    """
    first = np.where(claims.spent, 0.0, claims.demand)
    share = max_min(first, np.minimum(claims.quota, first), claims.weight, devices)
    left = devices - float(share.sum())
    if left > EPSILON and claims.spent.any():
        share += max_min(np.where(claims.spent, claims.demand, 0.0), np.zeros(len(share)), claims.weight, left)
    return share


def max_min(demand: FloatArray, least: FloatArray, weight: FloatArray, devices: float) -> FloatArray:
    """Return shares in proportion to the weights, at least ``least`` and at most ``demand``, which leave nothing over.

    Each is ``level * weight`` within its bounds, and the level is the same for all.

    Args:
        demand: Upper bounds, shape ``(k,)``.
        least: Lower bounds, at most ``demand``. If they are more than there is, they are divided like demands.
        weight: Positive weights.
        devices: What there is.
    """
    if float(demand.sum()) <= devices:
        return demand.copy()
    if float(least.sum()) >= devices:
        demand, least = least, np.zeros(len(least))
    # The sum of all shares grows with the level, linearly between the levels at which one of them meets a bound.
    level = np.concatenate([least, demand]) / np.tile(weight, 2)
    order = np.argsort(level, kind="stable")
    level, slope = level[order], np.cumsum(np.concatenate([weight, -weight])[order])
    total = least.sum() + np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(level))])
    share: FloatArray = np.clip(np.interp(devices, total, level) * weight, least, demand)
    return share


def allotments(claims: Claims, share: FloatArray, smallest: FloatArray, owed: FloatArray, devices: float) -> FloatArray:
    """Return the devices that each owner's jobs may hold now, shape ``(k,)``: whole ones, but for what one asks less.

    Args:
        claims: What owners can use and are entitled to.
        share: Their fair shares.
        smallest: Devices of the smallest job of each.
        owed: How far each lags behind its share, in device-seconds: the most owed has its turn.
        devices: Devices of the pool.

    Example: three owners of two devices have one each in two of three turns::

        >>> claims = Claims(np.full(3, 9.0), np.zeros(3), np.ones(3), np.zeros(3, np.bool_))
        >>> allotments(claims, np.full(3, 2 / 3), np.ones(3), np.array([0.0, 5.0, 1.0]), 2.0)
        array([0., 1., 1.])
    """
    content = share >= claims.demand - EPSILON
    allotted = np.where(content, share, np.floor(share + EPSILON))
    left = devices - float(allotted.sum())
    for k in np.lexsort((allotted - share, -owed, claims.spent)).tolist():
        if left <= EPSILON:
            break
        more = min(max(float(smallest[k] - allotted[k]), 1.0), float(claims.demand[k] - allotted[k]))
        if not content[k] and (more <= left + EPSILON or more <= 1.0):
            allotted[k] += min(more, left)
            left -= min(more, left)
    return allotted
