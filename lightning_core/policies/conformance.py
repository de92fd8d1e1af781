"""Conformance suite for policies: what must hold for every policy, whatever jobs it is shown.

Run it on a policy of your own with any sequence of views::

    check_policy(MyPolicy, [(jobs, 0.0), (jobs, 1.0)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields

import numpy as np

from lightning_core.core.conformance import require
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.reasons import CODES, Reason


def check_policy(make: Callable[[], Policy], rounds: Iterable[tuple[JobView, float]]) -> None:
    """Check the plans of a policy, that it leaves its input alone, and that its state comes from ``plan`` alone.

    Args:
        make: Creates the policy; called twice, and both must plan alike.
        rounds: Views with at least one job each and their scheduler times, increasing.

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.policies import Fifo
        >>> check_policy(Fifo, [])
    """
    policy, twin = make(), make()
    require(isinstance(policy, Policy), "a policy must have a method plan(jobs, now)")
    for jobs, now in rounds:
        before = _columns(jobs)
        with np.errstate(all="raise", under="ignore"):  # a warning in a log is an error here
            plan = policy.plan(jobs, now)
        check_plan(plan, jobs, now)
        unchanged = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(_columns(jobs), before, strict=True))
        require(unchanged, "plan() must not change the view")
        require(_same(plan, twin.plan(jobs, now)), "the state of a policy must come from earlier calls of plan alone")


def check_plan(plan: Plan, jobs: JobView, now: float) -> None:
    """Check one plan against the view that it was made for.

    Args:
        plan: Plan of the policy.
        jobs: View that it was shown.
        now: Scheduler time of the plan.

    Raises:
        AssertionError: If a rule is broken; the message names it.
    """
    n = len(jobs)
    require(sorted(plan.order.tolist()) == list(range(n)), f"order must be a permutation of {n} rows")
    for name in ("share", "finish", "codes", "waiting"):
        require(getattr(plan, name).shape == (n,), f"{name} must have shape ({n},), got {getattr(plan, name).shape}")
    require(bool(np.all((plan.share >= 0) & (plan.share <= 1))), f"share must be in [0, 1], got {plan.share}")
    size = jobs.size if plan.size is None else plan.size
    require(size.shape == (n,) and bool(np.all(size >= 1)), f"size must be at least 1 for {n} rows, got {size}")
    split = (plan.share > 0) & (plan.share < 1) & (size > 1)
    require(not np.any(split), f"a job of several devices must have them whole, got shares {plan.share}")
    require(plan.numbers.shape == (n, 2), f"numbers must have shape ({n}, 2), got {plan.numbers.shape}")
    require(bool(np.isfinite(plan.numbers).all()), f"numbers must be finite, got {plan.numbers}")
    require(not np.any(plan.finish < now), f"finish must not be before {now}, got {plan.finish}")
    for codes in (plan.codes, plan.waiting):
        for code, numbers in zip(codes.tolist(), plan.numbers.tolist(), strict=True):
            require(bool(str(Reason(CODES[code], tuple(numbers)))), f"reason {CODES[code]} must have words")
    if plan.work_conserving:
        wanted = float((plan.share * jobs.size).sum())
        require(wanted > 0, "a work-conserving plan must serve at least one job")


def _columns(jobs: JobView) -> list[np.ndarray]:
    """Return copies of all numeric columns; speed-ups are objects."""
    return [np.copy(getattr(jobs, f.name)) for f in fields(jobs) if f.name != "speedup"]


def _same(one: Plan, other: Plan) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(a is b if a is None else np.array_equal(a, b, equal_nan=True) for a, b in pairs)
