"""Paces: how fast trainings are beside each other, as a fraction of how fast they are alone.

Rules

1. A pace belongs to kinds of trainings (:attr:`~lightning_core.core.jobs.Job.family`), not to jobs: what one pair has
   shown counts for the next pair of the same kinds.
2. What is not measured follows from what is: some kinds suffer more than others beside anything, and some disturb
   anything more than others, for the most part whatever the size of their batch. The logarithm of a pace is a mean,
   plus an effect of the kind, plus an effect of the kind beside it, plus a rest that only a measurement tells; all
   normal, so that what to expect is a linear regression.
3. Where trainings say which part of their device they keep busy, two that fill less than the device are expected to
   lose nothing, and others to share it. Where they do not, nothing speaks for or against a pair.
4. Kinds that do not run together at all, for want of memory or else, are told apart: nothing follows for others.
5. Of three or more at once, a pace is the product of the paces beside each, until it is measured; where all say how
   much of the device they keep busy, as far as the paces of pairs differ from what follows from that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_core.core.arrays import FloatArray
from lightning_core.core.earlier_runs import FASTEST_PACE, EarlierPace
from lightning_core.core.jobs import BATCH_MARK
from lightning_core.core.row_cache import Memo
from lightning_core.core.saved_state import decode, encode

# Logarithm of a pace of which nothing is known, and how far it may be off; spread of the effects and of the rest.
# Chosen on half of the measured trainings of `benchmarks.beside`, which judges by the others.
MEAN, MEAN_SPREAD, SUFFERS, DISTURBS, REST = math.log(0.62), 0.2, 0.25, 0.25, 0.3
# How alike two kinds are that differ in the size of the batch alone.
RELATED = 0.7
# The rest where they say how much of the device they keep busy.
REST_OF_KNOWN = 0.1
# Spread of one second's measurement, and of the longest: trainings have phases.
SECOND, LONGEST = 0.15, 0.03
# Slowest pace that is told apart.
SLOWEST = 0.1
# Seconds for which what an earlier pool has measured counts at most: what is measured now soon counts more.
EARLIER = 20.0
# Kinds of company that are remembered, the newest ones: the regression takes the cube of their number.
MAX_SEEN = 200

Company = tuple[str, ...]
Pair = tuple[str, str]


class Expected(NamedTuple):
    """Expected pace of one kind in some company."""

    pace: float
    """Median, at most 1."""
    doubt: float
    """Spread of its logarithm."""


class Paces:
    """Paces of kinds of trainings beside others.

    Example::

        >>> paces = Paces()
        >>> for _ in range(10):
        ...     paces.observe("bert", ("resnet",), pace=0.9, seconds=2.0)
        >>> known, unknown = paces.expect("bert", ("resnet",)), paces.expect("bert", ("vgg",))
        >>> round(known.pace, 2), known.doubt < 0.1, unknown.pace < known.pace, unknown.doubt > 0.2
        (0.9, True, True, True)
    """

    def __init__(self) -> None:
        # Of a kind in a company: mean logarithm of its pace, and the seconds that it rests on.
        self._seen: dict[tuple[str, Company], tuple[float, float]] = {}
        self._here: dict[tuple[str, Company], None] = {}  # those that were measured in this pool
        self._use: dict[str, float] = {}  # part of a device that a kind keeps busy alone
        self._apart: set[Company] = set()  # kinds that do not run together
        self._expected, self._solved = Memo(), Memo()

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        seen = [[*key, *what, key in self._here] for key, what in self._seen.items()]
        return {"seen": encode(seen), "use": dict(self._use), "apart": sorted(map(list, self._apart))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        seen = decode(state["seen"])
        self._seen = {(family, others): (mean, seconds) for family, others, mean, seconds, _ in seen}
        self._here = {(family, others): None for family, others, _, _, here in seen if here}
        self._use = dict(state["use"])
        self._apart = {tuple(families) for families in state["apart"]}
        self._forget()

    def observe(self, family: str, others: Sequence[str], pace: float, seconds: float) -> None:
        """Record a measurement.

        Args:
            family: Kind of the training that was measured.
            others: Kinds of those beside it, in any order.
            pace: Its throughput as a fraction of its throughput alone, at least 0.
            seconds: Seconds of training that it was measured for, positive.
        """
        key = family, tuple(sorted(others))
        before, weight = self._seen.pop(key, (0.0, 0.0))
        self._seen[key] = (before * weight + _logarithm(pace) * seconds) / (weight + seconds), weight + seconds
        self._here[key] = None
        while len(self._seen) > MAX_SEEN:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._here.pop(oldest, None)
        self._forget()

    def recall(self, earlier: Sequence[EarlierPace]) -> bool:
        """Take what an earlier pool has measured of companies that are unknown; return whether any is."""
        found = [pace for pace in earlier if self.lacks(pace)][: MAX_SEEN - len(self._seen)]
        for pace in found:
            self._seen[pace.family, pace.others] = _logarithm(pace.pace), min(pace.seconds, EARLIER)
        if found:
            self._forget()
        return bool(found)

    def lacks(self, earlier: EarlierPace) -> bool:
        """Return whether nothing is known of a company."""
        return (earlier.family, earlier.others) not in self._seen and len(self._seen) < MAX_SEEN

    def measured(self, families: Collection[str] | None = None) -> list[EarlierPace]:
        """Return what was measured in this pool, with what earlier ones have added, for those that come after it.

        Args:
            families: Kinds that take part in what is wanted; None for all.
        """
        return [
            EarlierPace(family, others, math.exp(self._seen[family, others][0]), self._seen[family, others][1])
            for family, others in self._here
            if families is None or family in families or not set(others).isdisjoint(families)
        ]

    def part(self, families: Sequence[str]) -> None:
        """Record that trainings of some kinds do not run together."""
        self._apart.add(tuple(sorted(families)))

    def run_together(self, families: Sequence[str]) -> bool:
        """Return whether trainings of some kinds may run together, as far as is known."""
        if not self._apart:
            return True
        kinds = sorted(families)
        return not any(some in self._apart for n in range(2, len(kinds) + 1) for some in combinations(kinds, n))

    def use(self, family: str, part: float) -> None:
        """Record which part of its device a kind keeps busy alone, from 0 to 1."""
        if abs(self._use.get(family, -1.0) - part) > 0.02:
            self._use[family] = part
            self._forget()

    def seconds(self, family: str, others: Sequence[str]) -> float:
        """Return the seconds for which a kind was measured in some company."""
        return self._seen.get((family, tuple(sorted(others))), (0.0, 0.0))[1]

    def expect(self, family: str, others: Sequence[str]) -> Expected:
        """Return the expected pace of a kind in some company; 1 in none."""
        if len(others) == 1:
            return self._pair(family, others[0])
        pairs = [self._pair(family, other) for other in others]
        product = math.prod(pair.pace for pair in pairs)
        if (use := self._together((family, *others))) is not None:
            alone = math.prod(1.0 / max(self._together((family, other)) or 1.0, 1.0) for other in others)
            product = min(product / alone, 1.0) / max(use, 1.0)
        doubt = math.sqrt(sum(pair.doubt**2 for pair in pairs))
        seen = self._seen.get((family, tuple(sorted(others))))
        if seen is None or not pairs:
            return Expected(product, doubt)
        prior, noise = max(doubt, REST_OF_KNOWN) ** 2, _noise(seen[1])
        mean = (math.log(product) * noise + seen[0] * prior) / (noise + prior)
        return Expected(min(math.exp(mean), 1.0), math.sqrt(noise * prior / (noise + prior)))

    def _pair(self, family: str, other: str) -> Expected:
        if (known := self._expected.get((family, other))) is None:
            known = self._expected[family, other] = self._regress(family, other)
        return known

    def _regress(self, family: str, other: str) -> Expected:
        pairs, weights, inverse = self._solution()
        asked = [(family, other)]
        mean, left = self._prior(family, other), float(self._covariance(asked, asked)[0, 0])
        if pairs:
            across = self._covariance(asked, pairs)[0]
            mean += float(across @ weights)
            left -= float(across @ inverse @ across)
        return Expected(min(math.exp(mean), 1.0), math.sqrt(max(left, 1e-6)))

    def _solution(self) -> tuple[list[Pair], FloatArray, FloatArray]:
        """Return the measured pairs, the weights of their residuals, and the inverse of their covariance."""
        if not self._solved:
            seen = [(family, others[0], *what) for (family, others), what in self._seen.items() if len(others) == 1]
            pairs = [(family, other) for family, other, _, _ in seen]
            noise = np.array([_noise(seconds) for *_, seconds in seen])
            rest = np.array([mean - self._prior(family, other) for family, other, mean, _ in seen])
            inverse: Any = np.zeros((0, 0))
            if pairs:
                inverse = np.linalg.inv(self._covariance(pairs, pairs) + np.diag(noise))
            self._solved[()] = pairs, np.asarray(inverse @ rest), inverse
        return self._solved[()]  # type: ignore[no-any-return]

    def _prior(self, family: str, other: str) -> float:
        if (use := self._together((family, other))) is None:
            return MEAN
        return -math.log(max(use, 1.0))

    def _together(self, families: Company) -> float | None:
        """Return the part of a device that some kinds would keep busy together; None if none has said it.

        One that has not said it yet counts as the others of the pool do.
        """
        said = [self._use.get(family) for family in families]
        if all(part is None for part in said):
            return None
        usual = sum(self._use.values()) / len(self._use)
        return sum(usual if part is None else part for part in said)

    def _covariance(self, some: Sequence[Pair], others: Sequence[Pair]) -> FloatArray:
        """Return the covariance of the logarithms of paces, shape ``(len(some), len(others))``."""
        one, two = np.array(some), np.array(others)
        first, second = (_alike(one[:, side], two[:, side]) for side in (0, 1))
        unknown = MEAN_SPREAD**2 + SUFFERS**2 * first + DISTURBS**2 * second + REST**2 * first * second
        if not self._use:
            return np.asarray(unknown)
        # What they say counts more than what others have shown.
        says = [np.array([self._together(pair) is not None for pair in pairs]) for pairs in (some, others)]
        return np.asarray(np.where(says[0][:, None] | says[1][None], REST_OF_KNOWN**2 * first * second, unknown))

    def _forget(self) -> None:
        self._expected.clear()
        self._solved.clear()


def _alike(some: NDArray[np.str_], others: NDArray[np.str_]) -> FloatArray:
    """Return how alike kinds are: 1 for the same, less for the same model with another batch, else 0."""
    models, other_models = (np.array([_model(one) for one in kinds.tolist()]) for kinds in (some, others))
    same = some[:, None] == others[None]
    return np.where(same, 1.0, np.where(models[:, None] == other_models[None], RELATED, 0.0))


def _model(family: str) -> str:
    """Return the model of a kind of training, whatever its batch."""
    return family.rpartition(BATCH_MARK)[0] or family


def _logarithm(pace: float) -> float:
    return math.log(min(max(pace, SLOWEST), FASTEST_PACE))


def _noise(seconds: float) -> float:
    """Return the variance of the logarithm of a pace that was measured for some seconds."""
    return SECOND**2 / max(seconds, 1e-3) + LONGEST**2
