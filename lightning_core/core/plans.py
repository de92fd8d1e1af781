"""What a policy sees, and what it answers with: arrays, one row a job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, ObjectArray


def _nothing() -> FloatArray:
    return np.zeros(0)


def _nobody() -> ObjectArray:
    return np.zeros(0, np.object_)


@dataclass(frozen=True, slots=True)
class JobView:
    """The jobs to plan as a policy sees them, one row a job in the order of submission: arrays of shape ``(n,)``.

    Attributes:
        place: of the job among all that were ever submitted, 0, 1, ...
        deadline: scheduler time in seconds; the end of its training if its ``max_time`` comes first.
        batches: done so far.
        cells: loss observations so far.
        exact: whether the work left is known, not forecast (a target in batches).
        remaining: batches left to the target; inf if the curve is not falling towards it, NaN while unknown.
        throughput: batches per busy second alone on its devices, NaN while unknown.
        work: seconds left alone on its devices, ``remaining / throughput``; at least one batch's worth.
        quantiles: of that work at :data:`LEVELS`, shape ``(n, 20)``: what is believed with how much doubt. inf where
            the target is not reached, NaN while unknown.
        loss: the current loss, the mean over the last cells; NaN before the first.
        goal: what the loss must come down to; NaN for a target in batches.
        position: batches that were done when the last cell closed, 0 before the first.
        obeys: whether its worker has reported under its newest grant, or there is none.
        weight: how many jobs of weight 1 it counts for.
        size: devices that it trains on, all of them whole if more than one.
        devices: of the pool, one number.
        ends_at: batches at which its training ends by itself, inf if it does not. What is forecast beyond is never
            reached: ``remaining``, ``work`` and ``quantiles`` say so.

    Only for a policy that chooses sizes (:class:`~lightning_core.core.protocols.ChoosesSizes`), else empty:

    Attributes:
        speedup: how fast each is on how many devices, :class:`~lightning_core.core.speedup.SpeedUp` objects.
        submitted: scheduler time.
        heard: when its progress was last heard of, scheduler time.
        holds: devices that it trains on now, as a number: a part of one, or several; 0 if none.
        stint: since when it has trained where it is, scheduler time; inf if it does not.
        resize: seconds that a resize costs it.
        fixed: the only number of devices that it may train on for now, 0 if it may choose.
        goes_on: whether it goes on after its deadline.
        quantum: the least part of a device that can be metered out, one number; 1 where devices are given whole.
    """

    place: IntArray
    deadline: FloatArray
    batches: IntArray
    cells: IntArray
    exact: BoolArray
    remaining: FloatArray
    throughput: FloatArray
    work: FloatArray
    quantiles: FloatArray
    loss: FloatArray
    goal: FloatArray
    position: FloatArray
    obeys: BoolArray
    weight: FloatArray
    size: IntArray
    devices: int = 1
    ends_at: FloatArray = field(default_factory=_nothing)
    speedup: ObjectArray = field(default_factory=_nobody)
    submitted: FloatArray = field(default_factory=_nothing)
    heard: FloatArray = field(default_factory=_nothing)
    holds: FloatArray = field(default_factory=_nothing)
    stint: FloatArray = field(default_factory=_nothing)
    resize: FloatArray = field(default_factory=_nothing)
    fixed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    goes_on: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    quantum: float = 1.0

    def __len__(self) -> int:
        return len(self.deadline)

    def only(self, rows: IntArray) -> JobView:
        """These rows alone."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        some = {name: x[rows] for name, x in columns.items() if isinstance(x, np.ndarray) and len(x)}
        return JobView(**columns | some)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants: arrays of shape ``(n,)``, rows as in the :class:`JobView`.

    The scheduler deals the devices out: it goes through ``order`` and gives each job as much of its ``share`` as is
    left, on devices that the job can use (:mod:`lightning_core.scheduler.allocation`). So a policy that runs
    jobs one after the other wants a duty of 1 for each of them.

    Attributes:
        order: all rows, the first to be served first: a permutation.
        share: part of its devices that each should have, 0 to 1. A job with 0 gets what nobody else needs.
        finish: when the policy expects the target to be reached, scheduler time; inf if not, NaN if it cannot say.
        codes: why a job that is served holds what it holds, indices into :data:`lightning_core.core.reasons.CODES`.
        waiting: why a job that is not served waits.
        numbers: what the reasons' words speak of, shape ``(n, 2)``.
        fill: whether what is left over goes to whoever can use it.
        size: devices that each should train on, at least 1; None for as many as they do.
        capped: who must not take more than its duty; None for nobody.
        again: when the policy wants to be asked again, scheduler time, if that is before the next round.
    """

    order: IntArray
    share: FloatArray
    finish: FloatArray
    codes: IntArray
    waiting: IntArray
    numbers: FloatArray
    fill: bool = True
    size: IntArray | None = None
    capped: BoolArray | None = None
    again: float = math.inf
