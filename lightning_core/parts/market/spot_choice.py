"""Draws the spot policy of each job, and learns from the feedback of jobs that have ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Job
from lightning_core.core.pool_view import PoolView
from lightning_core.core.reasons import Reason
from lightning_core.parts.market.cloud_events import EarlierFeedback, SelectorFeedback
from lightning_core.parts.market.market_terms import NEEDS_JOBS, MarketTerms
from lightning_core.parts.market.selector import Selector


class SpotChoice:
    """The selector of a pool, with the jobs that it has drawn a policy for.

    Args:
        terms: Terms of the market.

    Raises:
        ValueError: If the selector's step must know the number of jobs, and the terms do not say it.

    Attributes:
        selector: Weights of the policies.
        drawn: Spec of the policy of each job that has not given feedback, by name.
    """

    def __init__(self, terms: MarketTerms) -> None:
        if terms.step == "paper" and terms.jobs is None:
            raise ValueError(f"market step 'paper' {NEEDS_JOBS}")
        self.selector = Selector(terms.policies, terms.jobs, seed=terms.seed, draws_first=terms.first_job == "drawn")
        self.drawn: dict[str, str] = {}
        self._submitted: dict[str, float] = {}  # scheduler time of the submission of each
        self._jobs, self._terms = 0, terms

    @property
    def without_feedback(self) -> list[str]:
        """Names of the jobs that have not given feedback, whether they have ended or not."""
        return list(self._submitted)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "selector": self.selector.state(),
            "drawn": dict(self.drawn),
            "submitted": dict(self._submitted),
            "jobs": self._jobs,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self.selector.restore(state["selector"])
        self.drawn.clear()  # the plans look there
        self.drawn |= state["drawn"]
        self._submitted = dict(state["submitted"])
        self._jobs = int(state["jobs"])

    def draw(self, event: Submit, now: float, pool: PoolView) -> Iterator[tuple[str, Reason]]:
        """Draw the policy of each job that is new, and yield it by the job's name with its weight."""
        for name in [name for name in self._submitted if not self._counts(name, pool.status(name))]:
            self._forget(name)
        for job in event.jobs:
            status = pool.status(job.name)
            if status is None or status.submitted_at != now or self._submitted.get(job.name) == now:
                continue  # a job of that name trains
            policy = self.selector.choose(self._jobs)
            self._jobs += 1
            self.drawn[job.name], self._submitted[job.name] = policy, now
            yield job.name, self._told(policy)

    def _told(self, policy: str) -> Reason:
        selector = self.selector
        weight, earlier = float(selector.weights[selector.names.index(policy)]), selector.earlier_count
        if not earlier:
            return Reason("market.spot_policy", (weight, selector.feedback_count), policy)
        return Reason("market.spot_policy_known", (weight, selector.feedback_count - earlier, earlier), policy)

    def learn(self, feedback: SelectorFeedback | EarlierFeedback) -> None:
        """Learn from a job that has ended, or from what was known before the pool began."""
        selector = self.selector
        if isinstance(feedback, EarlierFeedback):
            played, jobs = (list(filter(selector.fits, rows)) for rows in (feedback.played, feedback.jobs))
            selector.begin(played, jobs)
            return
        self._forget(feedback.job)
        if selector.fits(feedback.utilities):
            selector.update(np.array(feedback.utilities))

    def is_news(self, feedback: SelectorFeedback | EarlierFeedback, pool: PoolView) -> bool:
        """Return whether feedback changes anything: a job waits for it, or the selector has not begun."""
        if isinstance(feedback, SelectorFeedback):
            status = pool.status(feedback.job)
            return status is not None and self.due_at(pool.job(feedback.job), status) is not None
        selector = self.selector
        return not selector.feedback_count and any(map(selector.fits, feedback.played + feedback.jobs))

    def due_at(self, job: Job, status: JobStatus) -> float | None:
        """Return when a job can give feedback, scheduler time; None if it gives none, or not yet.

        The market must be known up to its deadline, or to the end of its grace if that is soft.
        """
        if status.submitted_at != self._submitted.get(job.name) or status.finished_at is None:
            return None
        last, begins = status.deadline, status.submitted_at + job.begin
        if self._terms.is_soft(job):
            last = max(begins + self._terms.grace * (last - begins), last)
        return max(last, status.finished_at) if last < math.inf else None

    def _counts(self, name: str, status: JobStatus | None) -> bool:
        """Return whether a job trains, or can still give feedback."""
        if status is None or status.submitted_at != self._submitted[name]:
            return False
        return status.state is not State.ENDED or status.deadline < math.inf

    def _forget(self, name: str) -> None:
        self.drawn.pop(name, None)
        self._submitted.pop(name, None)
