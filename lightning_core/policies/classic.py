"""The policies that everybody knows, and that need no forecast to decide: LARA's and LaiRA's baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.reasons import index
from lightning_core.types import FloatArray, IntArray, JobView, Plan


def one_by_one(jobs: JobView, order: IntArray, now: float) -> Plan:
    """The whole device for the first job of ``order``, then for the next: shape of ``order`` ``(n,)``."""
    n = len(jobs)
    duty = np.zeros(n)
    duty[order[0]] = 1.0
    finish = np.empty(n)
    finish[order] = now + np.cumsum(jobs.work[order])
    codes = np.full(n, index("behind"))
    codes[order[0]] = index("first_in_line")
    numbers = np.zeros((n, 2))
    numbers[order, 0] = np.arange(n)
    return Plan(duty, finish, codes, numbers)


def equal_shares(jobs: JobView, among: FloatArray, now: float, code: str) -> Plan:
    """``among`` holds 1 for each job that takes part and 0 for the others, shape ``(n,)``; at least one takes part."""
    n = len(jobs)
    parts = float(among.sum())
    duty = among / parts
    finish = np.where(among > 0, now + jobs.work * parts, np.nan)
    numbers = np.zeros((n, 2))
    numbers[:, 0] = parts
    return Plan(duty, finish, np.full(n, index(code)), numbers)


class Fifo:
    """First come, first served: each job keeps the device until it ends."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        return one_by_one(jobs, np.arange(len(jobs)), now)


class Edf:
    """Earliest deadline first (LARA's Shortest Thread First); ties by submission."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        return one_by_one(jobs, np.argsort(jobs.deadline, kind="stable"), now)


class Uniform:
    """Equal shares for all (LARA's Uniform Allocation)."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        return equal_shares(jobs, np.ones(len(jobs)), now, "equal_share")


class Fixed:
    """The shares that a person has set, whatever happens; what a job leaves unused when it ends stays unused.

    Args:
        shares: of the jobs in the order of submission, each positive, at most 1 in all.

    Raises:
        ValueError: if they are not.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        if not all(share > 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise ValueError(f"shares must be positive and at most 1 in all, got {list(shares)}")
        self.shares = list(shares)

    def plan(self, jobs: JobView, now: float) -> Plan:
        n = len(jobs)
        shares = np.array(self.shares)
        has = jobs.place < len(shares)
        duty = np.zeros(n)
        duty[has] = shares[jobs.place[has]]
        finish = now + jobs.work / np.where(has, duty, np.nan)
        return Plan(duty, finish, np.full(n, index("fixed_share")), np.zeros((n, 2)))
