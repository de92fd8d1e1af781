"""LARA: explore each job a little, then give the devices to the most jobs that can finish in time.

Wang, Yu, Zhao and Zhou, "Learning with Adaptive Resource Allocation", ICML 2024: section 3.2 with eqs. 3.7 to 3.10 and
Algorithm 1, section 3.3 with Algorithm 2. Its forecast (section 3.1) is
:class:`~lightning_core.estimators.LeastSquares`. Where the paper is silent, or cannot be meant literally, it is read as
follows:

- **The exploration threshold** H_k is data in the paper, 8,000 batches in its experiments (section 4.1), which is a
  large part of one job's training and a small part of another's. Here it is loss cells, which grow with a training;
  ``explore_batches`` is the printed rule.
- **Time** is continuous: Delta_1 runs from now to the first deadline, not from the end of the second before.
- **Work that is not finite**, of a curve that does not fall, never enters the set; the printed ratio of Algorithm 1,
  line 5, would accept it.
- **A job that has shown no loss**, because its first validation is far off, holds up the others for a while only. After
  that it keeps an equal share until there is a loss to judge it by; the others share the rest.
- **If no job fits**, all shares of Algorithm 2, line 12, are 0 / 0. All jobs then have equal shares.
- **Several devices** count as one that is as many times as fast (:func:`stick_breaking`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Stateful
from lightning_core.planning.exploration import Exploration, has_shown_nothing
from lightning_core.planning.moore_hodgson import largest_feasible_set
from lightning_core.planning.sequencing import completion_times, side_by_side

Order = Literal["share", "edf"]


class Lara(Stateful):
    """Learning with Adaptive Resource Allocation: explore all, then keep the most jobs that can finish in time.

    Args:
        order: How the kept jobs take the devices. ``"share"``, as printed (eq. 3.8, Algorithm 2, lines 11 and 12): all
            at once by stick-breaking, so that each would end exactly at its deadline, rescaled to fill the pool.
            ``"edf"``: one after another by deadline, so that each ends as early as it can and all slack is kept. A job
            of several devices cannot have a share of them: while one is kept, the order is ``"edf"``.
        explore: Loss cells that a job must show before it is judged, for the exploration threshold H.
        explore_batches: Batches that it must train before, as printed; 0 for none. Or a number for each job by its
            name, the printed H_k: ``{vit: 8000, cnn: 2000}``, none for jobs that are not named.

    Raises:
        ValueError: If an argument is out of its range.
    """

    estimator = "weighted"

    def __init__(self, order: Order = "share", explore: int = 10, explore_batches: int | Mapping[str, int] = 0) -> None:
        if order not in get_args(Order):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")
        self.order = order
        self._exploration = Exploration(explore, explore_batches)
        if not isinstance(explore_batches, int):
            self.knows_names = True

    def plan(self, jobs: JobView, now: float) -> Plan:
        plan = self._exploration.plan(jobs, now)
        if plan is not None:
            return plan
        kept = largest_feasible_set(jobs.work, jobs.deadline, now, jobs.weight, jobs.size, jobs.devices)
        if not kept.any():
            return side_by_side(jobs, np.arange(len(jobs)), now, "nothing_fits")
        return self._exploit(jobs, kept, now)

    def _exploit(self, jobs: JobView, kept: BoolArray, now: float) -> Plan:
        n = len(jobs)
        by_deadline = np.lexsort((np.arange(n), jobs.work, jobs.deadline))
        # The forecast of a job that has shown nothing is NaN. A job of several devices cannot have a share of them.
        unjudged = has_shown_nothing(jobs) & ~kept & (jobs.size == 1)
        dropped = by_deadline[~(kept | unjudged)[by_deadline]]
        rows, waits = by_deadline[kept[by_deadline]], np.flatnonzero(unjudged)
        slack = jobs.deadline - now
        share, finish = np.zeros(n), np.full(n, np.nan)
        share[waits] = min(jobs.devices / n, 1.0)
        if self.order == "share" and np.all(jobs.size[rows] == 1):
            rest = 1.0 - float(share.sum()) / jobs.devices
            share[rows] = stick_breaking(jobs.work[rows], slack[rows], jobs.devices) * rest
            finish[rows] = now + jobs.work[rows] / np.maximum(share[rows], 1e-9)
        else:
            share[rows] = 1.0
            finish = completion_times(jobs.work, jobs.size, rows, jobs.devices, now)
        # By `share` a job ends at its deadline, or sooner where the shares were scaled up to fill the pool.
        finish[rows] = np.minimum(finish[rows], jobs.deadline[rows])
        known = np.isfinite(jobs.work)
        numbers = np.stack([np.where(known, jobs.work, 0.0), slack], axis=1)
        numbers[waits] = 0.0, self._exploration.cells
        waiting: IntArray = np.where(known, index("dropped"), index("not_falling"))
        waiting[rows] = index("chosen_later")
        return Plan(
            order=np.concatenate([waits, rows, dropped]),
            share=share,
            finish=finish,
            codes=np.where(unjudged, index("explore"), index("chosen")),
            waiting=np.where(unjudged, index("explored"), waiting),
            numbers=numbers,
        )


def stick_breaking(work: FloatArray, slack: FloatArray, devices: int = 1) -> FloatArray:
    """Return shares at which each kept job ends at its deadline, scaled to fill the pool (eqs. 3.8, 3.10).

    Several devices count as one that is as many times as fast: each job breaks its share off what the more urgent ones
    leave of the whole. As no job can use more than a device of its own, the excess goes to the others in proportion;
    so the pool is full unless all have a device each, and never oversold.

    Args:
        work: Seconds alone on a device, by deadline, shape ``(m,)``.
        slack: Seconds to the deadline, shape ``(m,)``.
        devices: Devices of the pool.

    Example::

        >>> stick_breaking(np.array([2.0, 3.0]), np.array([4.0, 8.0]))
        array([0.66666667, 0.33333333])
        >>> stick_breaking(np.array([8.0, 2.0, 2.0]), np.array([8.0, 9.0, 9.0]), devices=2)
        array([1. , 0.5, 0.5])
    """
    of_pool = work / devices
    before = np.cumsum(of_pool) - of_pool
    broken = np.minimum(1.0, of_pool / np.maximum(slack - before, 1e-9))
    share: FloatArray = broken * np.concatenate([[1.0], np.cumprod(1.0 - broken[:-1])])
    share *= 1.0 / share.sum()
    return share if devices == 1 else _capped_at_one(share, float(min(devices, len(work))))


def _capped_at_one(shares: FloatArray, total: float) -> FloatArray:
    """Scale shares that sum to 1 to sum to ``total``, at most their number, with none above 1."""
    wide = shares + 1e-12  # the last ones get something even where the first took all
    falling = np.sort(wide)[::-1]
    rest = np.cumsum(falling[::-1])[::-1]
    # With k capped at 1, the others are scaled by (total - k) / rest: the first k for which none of them exceeds 1.
    capped = np.arange(len(wide))
    scale = (total - capped) / rest
    k = int(np.argmax(falling * scale <= 1.0 + 1e-12))
    capped_shares: FloatArray = np.minimum(wide * scale[k], 1.0)
    return capped_shares
