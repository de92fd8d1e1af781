"""Selects a policy by exponentiated gradient over a pool of them (Kong et al., algorithm 2).

A job that has ended gives feedback: the utility that every policy of the pool would have had with it, because the job
did not move the market. These counterfactual utilities, normalised to 0 to 1 by bounds known beforehand, raise or lower
the policies' weights, and the next job's policy is drawn by them. The regret against the best policy in hindsight grows
at most with the square root of the number of jobs, whatever the market does.

The published step is for the worst market and must know the number of jobs. The default is AdaHedge's (de Rooij et al.,
"Follow the Leader If You Can, Hedge If You Must", 2014), which is as large as the cost of hedging so far allows. On
recorded markets, where a good policy is good on most days, it is a hundred times larger, and no worse on the worst.

Until the first feedback a draw would be blind: jobs get the first policy, which should be the one that recordings show
to be good, unless ``draws_first``, as published. All policies get feedback from each job, so that nothing is learned
less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.saved_state import Stateful
from lightning_core.parts.market.spot_job import SpotJob

# Utilities of jobs that are kept for later runs.
MAX_NUMBERS = 20_000


def normalised(utility: FloatArray, job: SpotJob, on_demand: float = 1.0) -> FloatArray:
    """Return a utility as a fraction of its range: 0 is to do nothing by the deadline, 1 is to complete free."""
    lowest = min(job.worth_of_rest(job.work, 0, on_demand), job.value - 1e-9)
    return np.clip((utility - lowest) / (job.value - lowest), 0.0, 1.0)


class Selector(Stateful):
    """Weights of policies, updated by feedback.

    Args:
        names: Names of the policies, each once.
        jobs: Number of jobs to come, for the published step; None for a step that need not know it.
        share: Fraction of all weight that is redistributed evenly after each job (fixed share), so that a policy that
            was bad can come back.
        seed: Seed of the draws.
        draws_first: Whether the policy of a job is drawn before any feedback too, as published: each is as likely.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> selector = Selector(["calm", "wild"])
        >>> for _ in range(20):
        ...     selector.update(np.array([0.9, 0.3]))
        >>> selector.best, [round(weight, 2) for weight in selector.weights.tolist()]
        ('calm', [1.0, 0.0])
    """

    STATE = ("feedback_count", "earlier_count", "earned", "totals", "jobs_seen", "_lead", "_hedged")

    def __init__(
        self,
        names: Sequence[str],
        jobs: int | None = None,
        share: float = 0.0,
        seed: int = 0,
        draws_first: bool = False,
    ) -> None:
        if not names or len(set(names)) < len(names):
            raise ValueError(f"policies must have distinct names, at least one, got {list(names)}")
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        if not 0 <= share < 1:
            raise ValueError(f"share must be at least 0 and below 1, got {share}")
        self.names = tuple(names)
        self.jobs, self.share, self.seed, self.draws_first = jobs, share, seed, draws_first
        self.feedback_count = 0
        """Jobs that have given feedback, the earlier ones among them."""
        self.earlier_count = 0
        """Jobs of earlier runs, and such as were played in the past of the market."""
        self.jobs_seen = np.zeros((0, len(names)))
        """Feedback of the newest jobs, for later runs, without that of simulated jobs."""
        self.earned = 0.0
        """Expected utility of the draws, summed over jobs."""
        self.totals = np.zeros(len(names))
        """Utility of each policy alone, summed over jobs."""
        self._spread = math.log(max(len(names), 2))
        self._lead = np.zeros(len(names))  # total utility of each, up to a constant
        self._hedged = 0.0  # total mixability gap

    @property
    def step(self) -> float:
        """Factor from a utility to a log weight; infinite as long as no weight was ever wrong."""
        if self.jobs:
            return math.sqrt(2 * self._spread / self.jobs)
        return self._spread / self._hedged if self._hedged > 0 else math.inf

    @property
    def weights(self) -> FloatArray:
        """Weights of the policies, which add up to 1."""
        behind = self._lead - self._lead.max()
        raised = np.where(behind < 0, 0.0, 1.0) if math.isinf(self.step) else np.exp(self.step * behind)
        weights: FloatArray = raised / raised.sum()
        return weights

    @property
    def best(self) -> str:
        """The policy with the largest weight."""
        return self.names[int(self._lead.argmax())]

    @property
    def regret(self) -> float:
        """Utility that the best policy alone would have had more."""
        return float(self.totals.max()) - self.earned

    @property
    def bound(self) -> float:
        """Upper bound of the regret for any market, without redistribution (Hoeffding's; AdaHedge's).

        At the published step and number of jobs it is 0.63 times theorem 2's.
        """
        if self.jobs:
            return self._spread / self.step + self.step * self.feedback_count / 8
        return math.sqrt(self.feedback_count * self._spread) + 4 / 3 * self._spread + 2

    def choose(self, number: int = 0) -> str:
        """Draw the policy of a job by the weights; before any feedback it is the first one, unless that is drawn too.

        Args:
            number: Number of the job: between two updates the same number gives the same draw.
        """
        if not (self.feedback_count or self.draws_first):
            return self.names[0]
        draw = np.random.default_rng((self.seed, self.feedback_count, number)).random()
        chosen = int(np.searchsorted(np.cumsum(self.weights), draw, side="right"))
        return self.names[min(chosen, len(self.names) - 1)]

    def fits(self, utilities: Sequence[float]) -> bool:
        """Return whether these are utilities of its policies."""
        return len(utilities) == len(self.names) and all(0 <= one <= 1 for one in utilities)

    def begin(self, played: Sequence[Sequence[float]], jobs: Sequence[Sequence[float]]) -> None:
        """Learn from feedback from before the first job.

        Args:
            played: Utilities of each policy for each job that was played in the past of the market.
            jobs: The same for each job of earlier runs.
        """
        for utilities in (*played, *jobs):
            self.update(np.array(utilities))
        self.earlier_count = self.feedback_count
        self.jobs_seen = np.array(jobs).reshape(-1, len(self.names))

    def update(self, utilities: FloatArray) -> None:
        """Learn from a job's feedback.

        Args:
            utilities: Utility of each policy, shape ``(M,)``, 0 to 1 (:func:`normalised`).

        Raises:
            ValueError: If they have another shape, or are not within 0 to 1.
        """
        utilities = np.asarray(utilities, float)
        if utilities.shape != self.totals.shape or not self.fits(utilities.tolist()):
            raise ValueError(f"utilities must be {len(self.names)} numbers from 0 to 1, got {utilities}")
        self.jobs_seen = np.vstack([self.jobs_seen, utilities])[-(MAX_NUMBERS // len(self.names)) :]
        weights, step = self.weights, self.step
        before, self._lead = self._lead, self._lead + utilities
        had = float(weights @ utilities)
        self.earned += had
        self.totals += utilities
        self.feedback_count += 1
        if not self.jobs:
            self._hedged += max(_soft_max(self._lead, step) - _soft_max(before, step) - had, 0.0)
        if self.share and not math.isinf(self.step):
            self._lead = np.log((1 - self.share) * self.weights + self.share / len(self.names)) / self.step


def _soft_max(values: FloatArray, step: float) -> float:
    """Return the soft maximum of values, which exceeds the largest the more, the more others come near it."""
    largest = float(values.max())
    return largest if math.isinf(step) else largest + math.log(np.exp(step * (values - largest)).sum()) / step
