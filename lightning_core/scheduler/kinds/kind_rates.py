"""Rates: how fast kinds of trainings are on kinds of devices.

Rules

1. A rate belongs to a kind of trainings (:attr:`~lightning_core.core.jobs.Job.family`) on a number of devices of one
   kind: what one job has shown counts for the next one of its family.
2. What is not measured follows from what is. The logarithm of a rate is one number of the family, plus an effect of the
   kind of device that all families share, plus a rest that only a measurement tells: normal, so that what to expect is
   a linear regression.
3. Nothing is taken from a device's name: which kind is how fast is seen, here or in earlier runs.
4. Several devices are slower together if they are on several machines. By how much belongs to a family and a kind;
   where it was never measured, other numbers of devices tell it, and other families less so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray
from lightning_core.core.row_cache import Memo
from lightning_core.core.saved_state import decode, encode

# Spread of the effect of a kind, and of the rest: those of 80 measured trainings on three kinds are .79 and .38.
# `benchmarks.kinds` shows how far they tell the rates of trainings of a sort that was never seen.
EFFECT, REST = 0.8, 0.4
# Ends the name of a kind whose devices are on several machines.
APART = ", apart"
# Logarithm of a rate on several machines over that on one: its mean over kinds, and the spreads among kinds, among the
# families on one of them, and among the numbers of devices of a family. Those of 165 measured trainings on 2, 4 and 8
# devices, together and apart, on three kinds are -.41, .40, .38 and .22.
SLOWER, AMONG_KINDS, AMONG_FAMILIES, AMONG_SIZES = -0.4, 0.4, 0.4, 0.2
# Spread of one second's measurement, and of the longest.
SECOND, LONGEST = 0.15, 0.03
# Seconds over which a rate is averaged, and those for which what earlier runs have measured counts.
MEMORY, EARLIER = 300.0, 5.0
# Families that are remembered, the newest ones.
MAX_FAMILIES = 200

Training = tuple[str, int]
"""A family, and the number of devices."""


class KindRates:
    """Rates of kinds of trainings by kind of device.

    Example::

        >>> rates = KindRates()
        >>> for kind, rate in (("a100", 40.0), ("t4", 10.0)):
        ...     rates.observe("bert", 1, kind, batches=100.0 * rate, seconds=100.0)
        >>> rates.observe("vgg", 1, "t4", batches=500.0, seconds=100.0)
        >>> known, doubt = rates.expect("vgg", 1, ("a100", "t4"))
        >>> np.exp(known).round(1), doubt.round(1)
        (array([15.2,  5. ]), array([0.8, 0. ]))
    """

    def __init__(self) -> None:
        # Batches and seconds of a family on so many devices, by kind of device.
        self._seen: dict[Training, dict[str, tuple[float, float]]] = {}
        self._recalled: set[tuple[str, int, str]] = set()  # what no job of this pool has shown
        self._known_apart = Memo()
        # How kinds compare, by the names of all; gone once more is seen.
        self._effects = Memo()

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        seen = [[*key, by_kind] for key, by_kind in self._seen.items()]
        return {"seen": encode(seen), "recalled": sorted(map(list, self._recalled))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._seen = {(family, devices): by_kind for family, devices, by_kind in decode(state["seen"])}
        self._recalled = {(family, devices, kind) for family, devices, kind in state["recalled"]}
        self._effects.clear()
        self._known_apart.clear()

    def observe(self, family: str, devices: int, kind: str, batches: float, seconds: float) -> None:
        """Record a measurement.

        Args:
            family: Kind of the training.
            devices: Number of devices.
            kind: Kind of these devices.
            batches: Batches done on them.
            seconds: Seconds that they took.
        """
        by_kind = self._seen.pop((family, devices), {})
        self._recalled.discard((family, devices, kind))
        before, keep = by_kind.get(kind, (0.0, 0.0)), math.exp(-seconds / MEMORY)
        by_kind[kind] = keep * before[0] + batches, keep * before[1] + seconds
        self._seen[family, devices] = by_kind
        while len(self._seen) > MAX_FAMILIES:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._recalled = {one for one in self._recalled if one[:2] != oldest}
        self._effects.clear()
        self._known_apart.clear()

    def recall(self, family: str, devices: int, kind: str, rate: float) -> None:
        """Take what an earlier run has measured where nothing is known yet; ``rate`` is in batches per second."""
        if self.seconds(family, devices, kind) == 0:
            self.observe(family, devices, kind, rate * EARLIER, EARLIER)
            self._recalled.add((family, devices, kind))

    def measured(self, family: str) -> tuple[tuple[str, int, float], ...]:
        """Return the rates of a family that were measured here: kind and number of devices, and batches per second."""
        return tuple(
            (kind, devices, batches / seconds)
            for (one, devices), by_kind in self._seen.items()
            for kind, (batches, seconds) in by_kind.items()
            if one == family and batches > 0 and (one, devices, kind) not in self._recalled
        )

    def seconds(self, family: str, devices: int, kind: str) -> float:
        """Return the seconds for which a family was measured on some devices."""
        return self._seen.get((family, devices), {}).get(kind, (0.0, 0.0))[1]

    def expect(self, family: str, devices: int, kinds: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
        """Return the expected logarithm of a rate on each kind, and its spread; shapes ``(k,)``.

        Of a family that was never seen the logarithms are those of a family that does one batch per second on average:
        they say how the kinds compare.
        """
        expected, spread = self.expect_all([(family, devices)], kinds)
        return expected[0], spread[0]

    def expect_all(self, trainings: Sequence[Training], kinds: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
        """Return the same for ``n`` families, each on its number of devices; shapes ``(n, k)``."""
        effect, covariance = self._kind_effects(kinds)
        seen, rate, seconds = self._measured(trainings, kinds)
        noise = LONGEST**2 + SECOND**2 / np.maximum(seconds, 0.1)
        # The level stands for the family; its error is that of the rates it was taken from.
        weight = seen / (noise + REST**2)
        weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-9)
        level = (weight * (rate - effect)).sum(axis=1)
        contrast = np.eye(len(kinds)) - weight[:, None, :]
        of_effects = np.einsum("nij,jk,nik->ni", contrast, covariance, contrast)
        of_rests = REST**2 + (weight**2 * (noise + REST**2)).sum(axis=1)
        spread = np.sqrt(np.maximum(of_effects, 0.0) + of_rests[:, None])
        return np.where(seen, rate, effect + level[:, None]), np.where(seen, np.sqrt(noise), spread)

    def apart(self, family: str, devices: int, kind: str) -> tuple[float, float]:
        """Return the expected logarithm of a rate on several machines over that on one, and its spread.

        Args:
            family: Kind of the training.
            devices: Number of devices.
            kind: Kind of the devices; an empty name where all are alike.

        Example::

            >>> rates = KindRates()
            >>> round(rates.apart("bert", 4, "a100")[0], 2)
            -0.4
            >>> rates.observe("bert", 4, "a100", batches=4000.0, seconds=100.0)
            >>> rates.observe("bert", 4, "a100" + APART, batches=2000.0, seconds=100.0)
            >>> [round(float(np.exp(rates.apart(*of)[0])), 2)
            ...  for of in (("bert", 4, "a100"), ("bert", 8, "a100"), ("vgg", 4, "a100"))]
            [0.5, 0.52, 0.58]
        """
        if (found := self._known_apart.get((family, devices, kind))) is None:
            found = self._known_apart[family, devices, kind] = self._expect_apart(family, devices, kind)
        return found

    def _expect_apart(self, family: str, devices: int, kind: str) -> tuple[float, float]:
        by_family: dict[str, dict[int, float]] = {}
        for (one, size), by_kind in self._seen.items():
            together, apart = by_kind.get(kind, (0.0, 0.0)), by_kind.get(kind + APART, (0.0, 0.0))
            if together[0] > 0 and apart[0] > 0:
                ratio = math.log(apart[0] / apart[1] * together[1] / together[0])
                by_family.setdefault(one, {})[size] = ratio
        own = by_family.pop(family, {})
        if devices in own:
            return own[devices], LONGEST
        mean, spread = _updated(
            SLOWER, AMONG_KINDS, [fmean(one.values()) for one in by_family.values()], AMONG_FAMILIES
        )
        mean, spread = _updated(mean, math.hypot(spread, AMONG_FAMILIES), [*own.values()], AMONG_SIZES)
        return mean, math.hypot(spread, AMONG_SIZES)

    def has(self, family: str, devices: int, kinds: Collection[str]) -> bool:
        """Return whether a family was measured on so many devices of any of some kinds."""
        return any(
            batches > 0 and kind in kinds for kind, (batches, _) in self._seen.get((family, devices), {}).items()
        )

    def _measured(
        self, trainings: Iterable[Training], kinds: tuple[str, ...]
    ) -> tuple[BoolArray, FloatArray, FloatArray]:
        """Return whether each was seen on each kind, the logarithm of its rate, or 0, and the seconds: ``(n, k)``."""
        nothing = dict[str, tuple[float, float]]()
        found = [[by_kind.get(kind, (0.0, 0.0)) for kind in kinds]
                 for by_kind in (self._seen.get(training, nothing) for training in trainings)]  # fmt: skip
        batches, seconds = np.moveaxis(np.array(found, np.float64).reshape(-1, len(kinds), 2), 2, 0)
        seen = batches > 0
        return seen, np.log(np.where(seen, batches, 1.0) / np.where(seen, seconds, 1.0)), seconds

    def _kind_effects(self, kinds: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
        """Return how the kinds compare over all families, a mean of logarithms, shape ``(k,)``, and its covariance."""
        if (known := self._effects.get(kinds)) is None:
            seen, rate, _ = self._measured(self._seen, kinds)
            # What the rates of one family say of the effects, whatever its own level.
            part = seen / np.maximum(np.sqrt(seen.sum(axis=1, keepdims=True)), 1.0)
            centred = np.diag(seen.sum(axis=0)) - part.T @ part
            pull = (rate - part * (part * rate).sum(axis=1, keepdims=True)).sum(axis=0) / REST**2
            covariance = np.linalg.inv(np.eye(len(kinds)) / EFFECT**2 + centred / REST**2).astype(np.float64)
            known = self._effects[kinds] = covariance @ pull, covariance
        return known


def _updated(mean: float, spread: float, seen: Sequence[float], noise: float) -> tuple[float, float]:
    """Return the mean and the spread of a normal quantity after some observations of it."""
    precision = 1.0 / spread**2 + len(seen) / noise**2
    return (mean / spread**2 + sum(seen) / noise**2) / precision, precision**-0.5
