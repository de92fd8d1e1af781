"""The input and the output of a policy: arrays with one row per job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, ObjectArray
from lightning_core.core.reasons import CODES, is_of_plans


def _no_floats() -> FloatArray:
    return np.zeros(0)


def _no_objects() -> ObjectArray:
    return np.zeros(0, np.object_)


@dataclass(frozen=True, slots=True)
class JobView:
    """The jobs to plan as a policy sees them: arrays of shape ``(n,)``, one row per job in the order of submission.

    Attributes:
        row: Row of the job among all jobs ever submitted: 0, 1, ... It identifies the job from call to call.
        deadline: Deadline in scheduler time, or the end of its training if its ``max_time`` comes first.
        batches: Batches done.
        cells: Number of loss observations; a whole evaluation counts as the cells of a window.
        shown: Number of losses that it has shown, usable or not; an evaluation counts once. Defaults to ``cells``.
        submitted: Scheduler time of its submission. Defaults to 0.
        exact: Whether the work left is known rather than forecast (a target in batches).
        remaining: Batches left to the target; inf if the curve does not fall towards it, NaN while unknown.
        throughput: Batches per busy second alone on its devices; NaN while unknown.
        work: Seconds left alone on its devices, ``remaining / throughput``; at least one batch's worth.
        quantiles: Quantiles of that work at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(n, 20)``; inf where
            the target is not reached, NaN while unknown.
        loss: Current loss, the mean over the last cells; NaN before the first.
        goal: Threshold of the loss; NaN for a target in batches.
        position: Batches that were done when the last cell closed; 0 before the first.
        acknowledged: Whether its worker has reported under its newest grant, or has none.
        weight: Relative importance when not all deadlines can be met.
        size: Number of devices that it trains on: whole ones if more than one.
        devices: Number of devices of the pool (one number).
        ends_at: Batches at which its training ends by itself; inf if it does not. ``remaining``, ``work`` and
            ``quantiles`` are inf where the forecast lies beyond.
        ready: Whether the estimator considers its forecast good enough to plan and judge the job
            (:class:`~lightning_core.core.protocols.UsesHistory`); False for other estimators.

    The following are filled only for a policy that chooses sizes
    (:class:`~lightning_core.core.protocols.ChoosesSizes`), and empty otherwise:

    Attributes:
        speedup: Throughput by number of devices, :class:`~lightning_core.core.speedup.SpeedUp` objects.
        reported_at: Scheduler time of its last report.
        held_devices: Devices that it holds now: several, or a fraction of one; 0 if none.
        trained_since: Scheduler time since which it has trained on its present devices; inf if it does not train.
        resize_seconds: Seconds that a resize costs.
        fixed_size: The only number of devices that it may train on for now; 0 if it may choose.
        continues_late: Whether it continues after its deadline.
        quantum: Minimum fraction of a device that can be granted (one number); 1 where devices are granted whole.

    The following is filled only for a policy that knows jobs by name
    (:class:`~lightning_core.core.protocols.KnowsNames`), and empty otherwise:

    Attributes:
        name: Names of the jobs.

    The following are empty where all devices are alike. A policy does not see them: it plans the jobs of each kind as
    on a pool of its own (:mod:`lightning_core.scheduler.kinds.by_kind`), unless it has ``knows_kinds``
    (:class:`~lightning_core.core.protocols.KnowsKinds`). ``throughput``, ``work`` and ``quantiles`` are then those on
    the fastest kind that a job may be on.

    Attributes:
        kinds: Number of devices of each kind, ``k`` of them.
        kind: Kind on which its process is; -1 for none.
        pace: Throughput on each kind as a part of that on the fastest, shape ``(n, k)``; 0 where it cannot be.
        doubt: Spread of the logarithm of its throughput on each kind, shape ``(n, k)``.
        training: Number of what it trains, the same for jobs that are alike.
        speedups: Its ``speedup`` on each kind, shape ``(n, k)``, for a policy that chooses sizes.
    """

    row: IntArray
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
    acknowledged: BoolArray
    weight: FloatArray
    size: IntArray
    devices: int = 1
    ends_at: FloatArray = field(default_factory=_no_floats)
    ready: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    shown: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    submitted: FloatArray = field(default_factory=_no_floats)
    speedup: ObjectArray = field(default_factory=_no_objects)
    reported_at: FloatArray = field(default_factory=_no_floats)
    held_devices: FloatArray = field(default_factory=_no_floats)
    trained_since: FloatArray = field(default_factory=_no_floats)
    resize_seconds: FloatArray = field(default_factory=_no_floats)
    fixed_size: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    continues_late: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    quantum: float = 1.0
    name: ObjectArray = field(default_factory=_no_objects)
    kinds: tuple[int, ...] = ()
    kind: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    pace: FloatArray = field(default_factory=_no_floats)
    doubt: FloatArray = field(default_factory=_no_floats)
    training: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    speedups: ObjectArray = field(default_factory=_no_objects)

    def __post_init__(self) -> None:
        if not len(self.ready):
            object.__setattr__(self, "ready", np.zeros(len(self), np.bool_))
        if not len(self.shown):
            object.__setattr__(self, "shown", self.cells)
        if not len(self.submitted):
            object.__setattr__(self, "submitted", np.zeros(len(self)))

    def __len__(self) -> int:
        return len(self.deadline)

    def only(self, rows: IntArray) -> JobView:
        """Return a view of some rows."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        some = {name: x[rows] for name, x in columns.items() if isinstance(x, np.ndarray) and len(x)}
        return JobView(**columns | some)


@dataclass(frozen=True, slots=True)
class Plan:
    """The output of a policy: arrays of shape ``(n,)``, rows as in the :class:`JobView`.

    The scheduler allocates devices in the order of ``order``: each job gets as much of its ``share`` as is left, on
    devices that it can use (:mod:`lightning_core.scheduler.allocation`). A policy that runs one job after the other
    therefore gives each a share of 1.

    Attributes:
        order: All rows, the first to be served first: a permutation.
        share: Share of its devices that each job should hold, in [0, 1]. A job with 0 gets only leftovers.
        finish: Expected time at which the target is reached, scheduler time; inf if never, NaN if unknown.
        codes: Reasons of the jobs that are served, by their :func:`~lightning_core.core.reasons.index`.
        waiting: Reasons of the jobs that are not served, likewise.
        numbers: Numbers of the reasons, shape ``(n, 2)``.
        work_conserving: Whether leftovers go to any job that can use them.
        size: Number of devices that each job should train on, at least 1; None keeps the
            present sizes. It must be None unless the policy has ``chooses_sizes``
            (:class:`~lightning_core.core.protocols.ChoosesSizes`).
        capped: Whether each job must not use more than its share; None if no job is capped.
        yields: Whether each job uses only the part of a device that others leave free; None if no job does. Others that
            do not fit share a device in proportion to their requests.
        replan_at: Scheduler time of the next round, if the policy wants one before the usual period is over.
        kind: Kind of devices on which each job is to train; -1 for any that it may be on. None where all are alike.
    """

    order: IntArray
    share: FloatArray
    finish: FloatArray
    codes: IntArray
    waiting: IntArray
    numbers: FloatArray
    work_conserving: bool = True
    size: IntArray | None = None
    capped: BoolArray | None = None
    yields: BoolArray | None = None
    replan_at: float = math.inf
    kind: IntArray | None = None

    def check(self, jobs: JobView, now: float) -> None:
        """Check the plan against the view that it was made for.

        Args:
            jobs: View that the policy was shown.
            now: Scheduler time of the plan.

        Raises:
            ValueError: If a rule is broken; the message names it and the value.
        """
        n = len(jobs)
        if self.size is not None and n and not len(jobs.speedup):
            raise ValueError("size must be None in a plan of a policy without chooses_sizes = True")
        size = jobs.size if self.size is None else self.size
        self._check_columns(n, size)
        if sorted(self.order.tolist()) != list(range(n)):
            raise ValueError(f"order must be a permutation of {n} rows, got {self.order.tolist()}")
        if not np.all((self.share >= 0) & (self.share <= 1)):
            raise ValueError(f"share must be in [0, 1], got {self.share}")
        self._check_sizes(jobs, size)
        if np.any((self.share > 0) & (self.share < 1) & (size > 1)):
            raise ValueError(f"a job of several devices must have them whole, got shares {self.share}")
        if np.any(self.finish < now):
            raise ValueError(f"finish must not be before {now}, got {self.finish}")
        self._check_reasons(n)
        if not isinstance(self.replan_at, int | float | np.number) or math.isnan(self.replan_at):
            raise ValueError(f"replan_at must be a time, got {self.replan_at}")
        if self.work_conserving and not float((self.share * jobs.size).sum()) > 0:
            raise ValueError("a work-conserving plan must serve at least one job")

    def _check_reasons(self, n: int) -> None:
        if not np.isfinite(self.numbers).all():
            raise ValueError(f"numbers must be finite, got {self.numbers}")
        for codes in (self.codes, self.waiting):
            if n and not 0 <= int(np.min(codes)) <= int(np.max(codes)) < len(CODES):
                raise ValueError(f"codes must be indices into CODES, got {codes}")
            if wrong := [CODES[code] for code in np.unique(codes).tolist() if not is_of_plans(CODES[code])]:
                raise ValueError(f"reasons of plans have two numbers and no text, got {wrong[0]}")

    def _check_sizes(self, jobs: JobView, size: IntArray) -> None:
        if not np.all(size >= 1):
            raise ValueError(f"size must be at least 1, got {size}")
        if self.size is None:
            return
        for one, present, chosen in zip(jobs.speedup, jobs.size.tolist(), size.tolist(), strict=True):
            if chosen != present and chosen not in one.sizes:
                raise ValueError(f"size must be one that the job supports, of {one.sizes}, got {chosen}")

    def _check_columns(self, n: int, size: IntArray) -> None:
        """Check types and shapes."""
        columns = {"order": self.order, "share": self.share, "finish": self.finish, "codes": self.codes,
                   "waiting": self.waiting, "size": size, "capped": self.capped, "yields": self.yields,
                   "numbers": self.numbers, "kind": self.kind}  # fmt: skip
        for name, column in columns.items():
            if column is None:
                continue
            kinds, what = _NUMBERS_OF.get(name, ("iu", "whole numbers"))
            got = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
            if not isinstance(column, np.ndarray) or (n and column.dtype.kind not in kinds):
                raise ValueError(f"{name} must be an array of {what}, got {got}")
            if column.shape != (shape := (n, 2) if name == "numbers" else (n,)):
                raise ValueError(f"{name} must have shape {shape}, got {column.shape}")


# Kinds of NumPy's dtypes that a column may have, and their name; other columns have whole numbers.
_NUMBERS_OF = {
    **dict.fromkeys(("share", "finish", "numbers"), ("iuf", "numbers")),
    **dict.fromkeys(("capped", "yields"), ("b", "booleans")),
}
