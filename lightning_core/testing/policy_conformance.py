"""Conformance suite for policies, whatever their jobs.

Run it on a policy of your own, on random jobs or on any sequence of views::

    check_policy(MyPolicy)
    check_policy(MyPolicy, [(jobs, 0.0), (jobs, 1.0)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace

import numpy as np

from lightning_core.core.arrays import LEVELS, NORMAL, FloatArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import KeepsRows, Policy
from lightning_core.core.reasons import CODES, Reason
from lightning_core.core.speedup import SpeedUp
from lightning_core.testing.checks import require, saved_and_restored

# Random sequences of views that a policy is shown by default.
SEQUENCES = 40


def check_policy(make: Callable[[], Policy], rounds: Iterable[tuple[JobView, float]] | None = None) -> None:
    """Check the plans of a policy, that it leaves its input alone, and that its state is saved, restored and let go of.

    Args:
        make: Creates the policy; all instances must plan the same.
        rounds: Views with at least one job each and their scheduler times, increasing; None for 40 random sequences
            (:func:`random_rounds`).

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.policies import Fifo
        >>> check_policy(Fifo)
    """
    for sequence in [rounds] if rounds is not None else map(random_rounds, range(SEQUENCES)):
        _check_sequence(make, sequence)


def _check_sequence(make: Callable[[], Policy], rounds: Iterable[tuple[JobView, float]]) -> None:
    policy, twin = make(), make()
    require(isinstance(policy, Policy), "a policy must have a method plan(jobs, now)")
    sequence, lean = list(rounds), make() if isinstance(policy, KeepsRows) else None
    there = np.arange(1 + max((int(jobs.row[-1]) for jobs, _ in sequence), default=0))  # rows that have not left
    for number, (jobs, now) in enumerate(sequence):
        before = _columns(jobs)
        with np.errstate(all="raise", under="ignore"):  # a warning in a log is an error here
            plan = policy.plan(jobs, now)
        check_plan(plan, jobs, now)
        unchanged = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(_columns(jobs), before, strict=True))
        require(unchanged, "plan() must not change the view")
        rule = "the state of a policy must come from earlier calls of plan alone, and restore() must bring it back"
        require(_same(plan, twin.plan(jobs, now)), rule)
        policy = saved_and_restored(policy, make())
        if isinstance(lean, KeepsRows) and isinstance(lean, Policy):
            again = lean.plan(replace(jobs, row=np.searchsorted(there, jobs.row)), now)
            require(_same(plan, again), "keep() must change no plan of the rows that stay")
            stays = np.isin(there, [row for later, _ in sequence[number + 1 :] for row in later.row.tolist()])
            lean.keep(stays)
            lean, there = saved_and_restored(lean, make()), there[stays]


def check_plan(plan: Plan, jobs: JobView, now: float) -> None:
    """Check one plan against the view that it was made for.

    Args:
        plan: Plan of the policy.
        jobs: View that it was shown.
        now: Scheduler time of the plan.

    Raises:
        AssertionError: If a rule is broken; the message names it.
    """
    try:
        plan.check(jobs, now)
    except ValueError as error:
        raise AssertionError(str(error)) from None
    for codes in (plan.codes, plan.waiting):
        for code, numbers in zip(codes.tolist(), plan.numbers.tolist(), strict=True):
            require(bool(str(Reason(CODES[code], tuple(numbers)))), f"reason {CODES[code]} must have words")


def random_rounds(seed: int = 0, rounds: int = 3) -> Iterator[tuple[JobView, float]]:
    """Yield views of random jobs, with their scheduler times: unseen, stuck, tied, of several devices, of any weight.

    Args:
        seed: Seed of the draws.
        rounds: Number of views.
    """
    draw = np.random.default_rng(seed)
    devices, now = int(draw.choice([1, 2, 4])), 0.0
    for _ in range(rounds):
        yield _random_view(draw, int(draw.integers(1, 11)), devices), now
        now += draw.uniform(0.0, 8.0)


def _random_view(draw: np.random.Generator, n: int, devices: int) -> JobView:
    def some(common: FloatArray, *rare: float) -> FloatArray:
        """Return one of the common values in most rows, a rare one in the others."""
        return np.where(draw.random(n) < 0.6, common, draw.choice(rare, n))

    cells = draw.choice([0, 3, 10, 20, 200], n)
    exact = draw.random(n) < 0.5
    throughput = draw.choice([np.nan, 0.5, 100.0], n)
    work = np.where(np.isnan(throughput), np.nan, some(10.0 ** draw.uniform(-3, 6, n), np.nan, np.inf, 5.0))
    spread = some(draw.uniform(0, 3, n), 0.0)
    quantiles = work[:, None] * np.exp(spread[:, None] * NORMAL)
    out_of_reach = (draw.choice([1.0, 0.8], n)[:, None] < LEVELS) & ~np.isnan(quantiles)
    speedup = np.empty(n, np.object_)
    speedup[:] = [_random_speedup(draw, devices) for _ in range(n)]
    return JobView(
        row=np.sort(draw.permutation(41)[:n]),
        deadline=some(10.0 ** draw.uniform(-3, 6, n), 10.0, 20.0),
        batches=draw.integers(0, 5001, n),
        cells=cells,
        exact=exact,
        remaining=work * throughput,
        throughput=throughput,
        work=work,
        quantiles=np.where(out_of_reach, np.inf, quantiles),
        loss=np.where(cells > 0, draw.choice([0.4, 2.0, 5e-324, 1e300], n), np.nan),
        goal=np.where(exact, np.nan, 0.5),
        position=cells * draw.choice([1.0, 10.0, 1e12], n),
        acknowledged=draw.random(n) < 0.8,
        weight=draw.choice([1.0, 1.0, 2.5, 40.0], n),
        size=draw.integers(1, devices + 1, n),
        devices=devices,
        speedup=speedup,
        submitted=np.zeros(n),
        reported_at=draw.choice([0.0, 3.0, 9.0], n),
        held_devices=draw.choice([0.0, 0.35, 1.0, float(devices)], n),
        trained_since=draw.choice([np.inf, 0.0, 5.0], n),
        resize_seconds=draw.choice([0.0, 0.3, 60.0], n),
        fixed_size=draw.choice([0, 0, 0, 1, devices], n),
        continues_late=draw.random(n) < 0.5,
        quantum=float(draw.choice([1.0, 0.05])),
        name=np.array([f"job-{k}" for k in range(n)], np.object_),
    )


def _random_speedup(draw: np.random.Generator, devices: int) -> SpeedUp:
    """Return a speed-up with given throughputs, or with a few that were observed, or with none."""
    sizes = sorted(set(draw.integers(1, 2 * devices + 1, 3).tolist()))
    if draw.random() < 0.5:
        return SpeedUp(sizes, (10.0 ** draw.uniform(-6, 6, len(sizes))).tolist())
    observed = SpeedUp(sizes)
    for _ in range(int(draw.integers(0, 4))):
        share = float(draw.choice([0.05, 0.5, *sizes]))
        observed.observe(share, int(draw.integers(1, 10_001)), float(draw.uniform(1e-3, 60.0)))
    return observed


def _columns(jobs: JobView) -> list[np.ndarray]:
    """Return copies of all numeric columns; names and speed-ups are objects."""
    return [np.copy(getattr(jobs, f.name)) for f in fields(jobs) if not f.name.startswith(("name", "speedup"))]


def _same(one: Plan, other: Plan) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(a is b if a is None or b is None else np.array_equal(a, b, equal_nan=True) for a, b in pairs)
