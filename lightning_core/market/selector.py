"""Which policy to trust: exponentiated gradient over a pool of them (Kong et al., algorithm 2).

A job that has ended tells what every policy of the pool would have made of it, for it did not move the market. Those
utilities, brought to 0 to 1 by bounds that are known beforehand, raise or lower the policies' weights; the next job's
policy is drawn by them. The regret against the best policy in hindsight grows with the root of the number of jobs at
most, whatever the market does.

The printed step is for the worst of all markets, and must know the number of jobs. Ours is AdaHedge's (de Rooij et al.,
"Follow the Leader If You Can, Hedge If You Must", 2014): as bold as what hedging has cost so far allows, which on real
markets, where a good policy is good on most days, is a hundred times bolder, and no worse on the worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.market.spot_job import SpotJob


def normalised(utility: FloatArray, job: SpotJob, on_demand: float = 1.0) -> FloatArray:
    """A utility of a job as a part of what is possible: 0 is to do nothing before the deadline, 1 is free of cost."""
    lowest = min(job.worth_of_rest(job.work, 0, on_demand), job.value - 1e-9)
    return np.clip((utility - lowest) / (job.value - lowest), 0.0, 1.0)


class Selector:
    """Weights of policies, and what was learned of them.

    Args:
        names: of the policies, each once.
        jobs: that there will be: the paper's step for them; None: a step that needs not know.
        share: part of all weight that is shared out anew after each job, so that a policy that was bad can come back.
        seed: of the draws.

    Raises:
        ValueError: if an argument is out of its range.

    Example::

        >>> selector = Selector(["calm", "wild"])
        >>> for _ in range(20):
        ...     selector.update(np.array([0.9, 0.3]))
        >>> selector.best, [round(weight, 2) for weight in selector.weights.tolist()]
        ('calm', [1.0, 0.0])
    """

    def __init__(self, names: Sequence[str], jobs: int | None = None, share: float = 0.0, seed: int = 0) -> None:
        if not names or len(set(names)) < len(names):
            raise ValueError(f"policies must have names, each another one, got {list(names)}")
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        if not 0 <= share < 1:
            raise ValueError(f"share must be at least 0 and below 1, got {share}")
        self.names = tuple(names)
        self.jobs, self.share, self.seed = jobs, share, seed
        self.feedback_count = 0
        """Jobs that have taught it."""
        self.earned = 0.0
        """What its weights had of the utilities, in the mean of the draws, all jobs together."""
        self.totals = np.zeros(len(names))
        """What each policy alone would have had."""
        self._spread = math.log(max(len(names), 2))
        self._lead = np.zeros(len(names))  # what each has had, up to a constant
        self._hedged = 0.0  # what its weights had less than if they had been moved by a job beforehand

    @property
    def step(self) -> float:
        """How much a utility moves a weight; without bound as long as no weight was ever wrong."""
        if self.jobs:
            return math.sqrt(2 * self._spread / self.jobs)
        return self._spread / self._hedged if self._hedged > 0 else math.inf

    @property
    def weights(self) -> FloatArray:
        """They add up to 1."""
        behind = self._lead - self._lead.max()
        raised = np.where(behind < 0, 0.0, 1.0) if math.isinf(self.step) else np.exp(self.step * behind)
        weights: FloatArray = raised / raised.sum()
        return weights

    @property
    def best(self) -> str:
        """The policy of the most weight."""
        return self.names[int(self._lead.argmax())]

    @property
    def regret(self) -> float:
        """How much the best policy alone would have had more."""
        return float(self.totals.max()) - self.earned

    @property
    def bound(self) -> float:
        """What the regret cannot exceed, whatever comes, if nothing is shared out anew (Hoeffding's; AdaHedge's).

        At the paper's step and number of jobs it is 0.63 times theorem 2's.
        """
        if self.jobs:
            return self._spread / self.step + self.step * self.feedback_count / 8
        return math.sqrt(self.feedback_count * self._spread) + 4 / 3 * self._spread + 2

    def choose(self, number: int = 0) -> str:
        """The policy of a job, drawn by the weights.

        Args:
            number: of the job: until something is learned, the same number is the same draw.
        """
        draw = np.random.default_rng((self.seed, self.feedback_count, number)).random()
        chosen = int(np.searchsorted(np.cumsum(self.weights), draw, side="right"))
        return self.names[min(chosen, len(self.names) - 1)]

    def update(self, utilities: FloatArray) -> None:
        """Takes in what each policy makes of a job.

        Args:
            utilities: shape ``(M,)``, 0 to 1 (:func:`normalised`).

        Raises:
            ValueError: if they are of another shape, or not within 0 to 1.
        """
        utilities = np.asarray(utilities, float)
        if utilities.shape != self.totals.shape or not ((utilities >= 0) & (utilities <= 1)).all():
            raise ValueError(f"utilities must be {len(self.names)} numbers of 0 to 1, got {utilities}")
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
    """The largest, or a little more the more others come near it; a small step finds more of them near."""
    largest = float(values.max())
    return largest if math.isinf(step) else largest + math.log(np.exp(step * (values - largest)).sum()) / step
