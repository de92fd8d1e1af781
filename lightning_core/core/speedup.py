"""How fast a job is on how many devices: learned while it trains, or known before.

The time of a batch is taken to be ``a / n + b``: a part that more devices share, and one that they do not (the
exchange of gradients, loading, what only one thread does). So the rate ``1 / (a / n + b)`` grows ever slower. Both
are fitted by least squares to what was seen, the newest weighing most; where nothing tells them apart, ``b`` is held to
be a small part. What was seen on so many whole devices speaks for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# What was seen so many seconds of training ago weighs less by e.
MEMORY = 60.0
# Of one device's time of a batch, the part that more devices do not shorten, until it is known better: rather too much,
# so that fewer devices are tried early, while an error can be mended. Parts of one device are nearly in proportion.
FIXED, FIXED_IN_PARTS = 0.4, 0.02
# No batch is taken to be shorter, seconds.
TINY = 1e-9
# For how many seconds of observation that belief counts.
BELIEF = 0.5
# Seconds of observation on so many whole devices after which they speak for themselves as much as the fit does.
TRUST = 2.0


class SpeedUp:
    """One job's speed by devices.

    Args:
        sizes: numbers of whole devices that it can train on, growing, at least one.
        rates: batches a second on each of them, if they are known; they are then believed.

    Example::

        >>> speed = SpeedUp((1, 2))
        >>> for _ in range(50):
        ...     speed.observe(devices=1.0, batches=10, seconds=1.0)
        ...     speed.observe(devices=2.0, batches=16, seconds=1.0)
        >>> [round(speed.rate(n), 1) for n in (0.5, 1, 2)]
        [5.8, 10.0, 16.0]
        >>> round(speed.devices_for(16.0), 1)
        2.0
    """

    __slots__ = ("_a", "_b", "_known", "_seen", "_stale", "_sums", "_useful", "sizes")

    def __init__(self, sizes: Sequence[int], rates: Sequence[float] = ()) -> None:
        self.sizes = tuple(sizes)
        self._known = dict(zip(self.sizes, rates, strict=True)) if rates else {}
        # Discounted sums of seconds, and, weighted by 1 / t^2, of 1, x, x^2, t and x t: x is 1 / devices, t the
        # seconds of a batch. So it is relative errors that count.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._seen: dict[int, tuple[float, float]] = {}  # batches and seconds on whole devices
        self._a = self._b = math.nan
        self._stale = False
        self._useful = self._faster() if rates else None

    @property
    def known(self) -> bool:
        """Whether anything has been seen, or was known before."""
        return bool(self._known) or self._sums[0] > 0

    @property
    def seconds(self) -> float:
        """Of training that have been seen, the newest counting most; inf if the rates were given."""
        return math.inf if self._known else self._sums[0]

    def observe(self, devices: float, batches: int, seconds: float) -> None:
        """On so many devices, or such a part of one, so many batches took so long.

        Args:
            devices: positive.
            batches: positive.
            seconds: positive.
        """
        x, t, keep = 1.0 / devices, max(seconds / batches, TINY), math.exp(-seconds / MEMORY)
        weight = seconds / t**2
        fresh = (seconds, weight, weight * x, weight * x * x, weight * t, weight * x * t)
        self._sums = tuple(keep * old + new for old, new in zip(self._sums, fresh, strict=True))  # type: ignore[assignment]
        whole = round(devices)
        if whole == devices:
            before = self._seen.get(whole, (0.0, 0.0))
            self._seen[whole] = keep * before[0] + batches, keep * before[1] + seconds
        self._stale = True

    def rate(self, devices: float) -> float:
        """Batches a second on so many devices, or such a part of one; NaN while nothing is known.

        Beyond the sizes whose rates were given, the nearest smaller one counts: what is more is not used.
        """
        if devices <= 0:
            return 0.0
        if self._known:
            if devices in self._known:
                return self._known[devices]  # type: ignore[index]
            if devices < self.sizes[0]:
                return devices * self._known[self.sizes[0]] / self.sizes[0]
            return self._known[max(size for size in self.sizes if size <= devices)]
        if not self._sums[0]:
            return math.nan
        self._fit()
        fitted = 1.0 / max(self._a / devices + self._b, TINY)
        if (seen := self._seen.get(round(devices))) is None or round(devices) != devices:
            return fitted
        batches, seconds = seen
        return (batches + fitted * TRUST) / (seconds + TRUST)

    def seen(self, devices: int) -> float:
        """Seconds of training that have been seen on so many whole devices; inf if the rates were given."""
        return math.inf if self._known else self._seen.get(devices, (0.0, 0.0))[1]

    def devices_for(self, rate: float) -> float:
        """Devices, or the part of one, at which it does so many batches a second; inf if no number does.

        Where rates were given, the fewest of its sizes that do.
        """
        if rate <= 0:
            return 0.0
        if self._known:
            if rate <= self._known[self.sizes[0]]:
                return self.sizes[0] * rate / self._known[self.sizes[0]]
            return min((float(size) for size in self.sizes if self._known[size] >= rate), default=math.inf)
        if not self._sums[0]:
            return math.nan
        self._fit()
        left = 1.0 / rate - self._b
        return self._a / left if left > 0 else math.inf

    def useful(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Its sizes without those that are no faster than a smaller one, and the rates on them; both grow."""
        return self._faster() if self._useful is None else self._useful

    def _faster(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        sizes: list[int] = []
        rates: list[float] = []
        for size in self.sizes:
            rate = self.rate(size)
            if not sizes or rate > rates[-1] * (1 + 1e-9):
                sizes.append(size)
                rates.append(rate)
        return tuple(sizes), tuple(rates)

    def best(self, devices: int) -> int:
        """The size at which it is fastest on so many devices at most, the smallest of equals; 0 if none fits."""
        fitting = [size for size in self.sizes if size <= devices]
        if not self.known:
            return max(fitting, default=0)
        return max(fitting, key=lambda size: (self.rate(size), -size), default=0)

    def _fit(self) -> None:
        if not self._stale:
            return
        self._stale = False
        seconds, w, x, xx, t, xt = self._sums
        belief, fixed = BELIEF * w / seconds, FIXED if len(self.sizes) > 1 else FIXED_IN_PARTS
        most, least = xt / xx, t / w  # all of it is shared, or none
        xx, x, w = xx + belief * fixed**2, x - belief * fixed, w + belief
        determinant = xx * w - x * x
        a = (xt * w - x * t) / determinant
        b = (xx * t - x * xt) / determinant
        if b < 0:
            a, b = most, 0.0
        elif a <= 0:
            a, b = 0.0, least
        self._a, self._b = a, b
