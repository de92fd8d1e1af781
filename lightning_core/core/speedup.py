"""Throughput of a job by number of devices: measured while it trains, or known before.

The time of a batch is modelled as ``a / n + b``: one part is divided among ``n`` devices, the other is not (gradient
exchange, loading, single-threaded code). The throughput ``1 / (a / n + b)`` therefore grows ever more slowly. ``a`` and
``b`` are fitted by weighted least squares, in which newer observations weigh more; where the observations cannot tell
them apart, ``b`` is kept a small fraction. A number of whole devices that was measured for long enough counts by its
own measurement rather than by the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.core.saved_state import Stateful

# Seconds of training after which the weight of an observation has fallen to 1 / e.
MEMORY = 60.0
# Assumed fraction of a batch's time on one device that more devices do not shorten, until it is measured. It is rather
# too large, so that few devices are tried while an error can still be corrected. Shares of one device scale almost
# proportionally.
FIXED, FIXED_IN_SHARES = 0.4, 0.02
# Minimum seconds of a batch.
MIN_BATCH_SECONDS = 1e-9
# Seconds of observation that the assumption weighs as much as.
PRIOR_SECONDS = 0.5
# Seconds of observation on a number of whole devices after which they weigh as much as the fit.
TRUST = 2.0
# Seconds of observation that the throughput of earlier runs weighs as much as.
EXPECTED_SECONDS = 1e-3


class SpeedUp(Stateful):
    """Throughput of one job by number of devices.

    Args:
        sizes: Numbers of whole devices that it can train on, increasing, at least one.
        throughputs: Batches per second on each of them, if known; nothing is fitted then.

    Example::

        >>> speed = SpeedUp((1, 2))
        >>> for _ in range(50):
        ...     speed.observe(devices=1.0, batches=10, seconds=1.0)
        ...     speed.observe(devices=2.0, batches=16, seconds=1.0)
        >>> [round(speed.throughput(n), 1) for n in (0.5, 1, 2)]
        [5.8, 10.0, 16.0]
        >>> round(speed.devices_for(16.0), 1)
        2.0
    """

    __slots__ = ("_a", "_b", "_known", "_seen", "_stale", "_sums", "_useful", "sizes")
    STATE = ("sizes", "_known", "_sums", "_seen", "_a", "_b", "_stale")

    def __init__(self, sizes: Sequence[int], throughputs: Sequence[float] = ()) -> None:
        self.sizes = tuple(sizes)
        self._known = dict(zip(self.sizes, throughputs, strict=True)) if throughputs else {}
        # Discounted sums of seconds and, weighted by 1 / t^2, of 1, x, x^2, t and x t, with x = 1 / devices and t the
        # seconds of a batch. The weights make the fit minimise relative errors.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._seen: dict[int, tuple[float, float]] = {}  # batches and seconds on whole devices
        self._a = self._b = math.nan
        self._stale = False
        self._useful = self._faster() if throughputs else None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        super().restore(state)
        self._useful = self._faster() if self._known else None

    @property
    def known(self) -> bool:
        """Whether its throughput was measured or given."""
        return bool(self._known) or self._sums[0] > 0

    @property
    def seconds(self) -> float:
        """Seconds of training observed, discounted by age; inf if the throughputs were given."""
        return math.inf if self._known else self._sums[0]

    def observe(self, devices: float, batches: float, seconds: float) -> None:
        """Record a measurement.

        Args:
            devices: Number of devices, or the share of one, positive.
            batches: Batches done on them, positive.
            seconds: Seconds that they took, positive.
        """
        x, t, keep = 1.0 / devices, max(seconds / batches, MIN_BATCH_SECONDS), math.exp(-seconds / MEMORY)
        weight = seconds / t**2
        fresh = (seconds, weight, weight * x, weight * x * x, weight * t, weight * x * t)
        self._sums = tuple(keep * old + new for old, new in zip(self._sums, fresh, strict=True))  # type: ignore[assignment]
        whole = round(devices)
        if whole == devices:
            before = self._seen.get(whole, (0.0, 0.0))
            self._seen[whole] = keep * before[0] + batches, keep * before[1] + seconds
        self._stale = True

    def expect(self, throughputs: Mapping[int, float]) -> None:
        """Take the throughputs of earlier runs, by number of devices, which count until it is measured.

        They count as measurements of an instant.
        """
        for devices, throughput in throughputs.items():
            self.observe(devices, throughput * EXPECTED_SECONDS, EXPECTED_SECONDS)

    def times(self, factor: float) -> SpeedUp:
        """Return what it would be on devices that are so many times as fast; measured for an instant, if at all."""
        other = SpeedUp(self.sizes, [factor * self._known[size] for size in self.sizes] if self._known else ())
        if not self._known and self.known:
            other.expect({size: factor * self.throughput(size) for size in self._seen or self.sizes})
        return other

    def on_machines(self, most: int, apart: SpeedUp | None) -> SpeedUp:
        """Return what it is where one machine has fewer devices than the job may have.

        Args:
            most: Number of devices that one machine has at most.
            apart: What it is on devices of several machines; None if it may not have more than one machine has.
        """
        if self.sizes[-1] <= most:
            return self
        sizes = self.sizes if apart is not None else tuple(size for size in self.sizes if size <= most)
        return OnMachines(self, apart, most, sizes or self.sizes[:1])

    def throughput(self, devices: float) -> float:
        """Return the batches per second on a number of devices or a share of one; NaN while unknown.

        With given throughputs, a number between two sizes has that of the smaller one: the rest stays unused.
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
        fitted = 1.0 / max(self._a / devices + self._b, MIN_BATCH_SECONDS)
        if (seen := self._seen.get(round(devices))) is None or round(devices) != devices:
            return fitted
        batches, seconds = seen
        return (batches + fitted * TRUST) / (seconds + TRUST)

    def seen(self, devices: int) -> float:
        """Return the seconds of training observed on this number of devices; inf if the throughputs were given."""
        return math.inf if self._known else self._seen.get(devices, (0.0, 0.0))[1]

    def devices_for(self, throughput: float) -> float:
        """Return the devices, or the share of one, that a throughput needs; inf if no number suffices.

        With given throughputs, this is a share of the smallest size, or the smallest size that suffices.

        Args:
            throughput: Batches per second.
        """
        if throughput <= 0:
            return 0.0
        if self._known:
            if throughput <= self._known[self.sizes[0]]:
                return self.sizes[0] * throughput / self._known[self.sizes[0]]
            return min((float(size) for size in self.sizes if self._known[size] >= throughput), default=math.inf)
        if not self._sums[0]:
            return math.nan
        self._fit()
        left = 1.0 / throughput - self._b
        return self._a / left if left > 0 else math.inf

    def useful(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the sizes that are faster than every smaller one, and their throughputs; both increase."""
        return self._faster() if self._useful is None else self._useful

    def _faster(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        sizes: list[int] = []
        throughputs: list[float] = []
        for size in self.sizes:
            throughput = self.throughput(size)
            if not sizes or throughput > throughputs[-1] * (1 + 1e-9):
                sizes.append(size)
                throughputs.append(throughput)
        return tuple(sizes), tuple(throughputs)

    def best(self, devices: int) -> int:
        """Return the fastest size of at most ``devices``, the smallest of equal ones; 0 if none fits."""
        fitting = [size for size in self.sizes if size <= devices]
        if not self.known:
            return max(fitting, default=0)
        return max(fitting, key=lambda size: (self.throughput(size), -size), default=0)

    def _fit(self) -> None:
        if not self._stale:
            return
        self._stale = False
        seconds, w, x, xx, t, xt = self._sums
        prior, fixed = PRIOR_SECONDS * w / seconds, FIXED if len(self.sizes) > 1 else FIXED_IN_SHARES
        only_a, only_b = xt / xx, t / w  # the fits if all of the time is divided, or none of it
        xx, x, w = xx + prior * fixed**2, x - prior * fixed, w + prior
        determinant = xx * w - x * x
        a = (xt * w - x * t) / determinant
        b = (xx * t - x * xt) / determinant
        if b < 0:
            a, b = only_a, 0.0
        elif a <= 0:
            a, b = 0.0, only_b
        self._a, self._b = a, b


class OnMachines(SpeedUp):
    """Throughput of a job whose devices are on one machine up to a number of them, and on several beyond it.

    Args:
        together: Throughput on devices of one machine.
        apart: Throughput on devices of several; None if it may not have any number that needs them.
        most: Number of devices that one machine has at most.
        sizes: Numbers of devices that it can train on.

    Example::

        >>> together, apart = SpeedUp((1, 2, 4), (10.0, 18.0, 32.0)), SpeedUp((1, 2, 4), (10.0, 12.0, 16.0))
        >>> speed = together.on_machines(2, apart)
        >>> speed.useful(), speed.devices_for(17.0)
        (((1, 2), (10.0, 18.0)), 2.0)
        >>> together.on_machines(2, None).sizes
        (1, 2)
    """

    __slots__ = ("_apart", "_most", "_together")

    def __init__(self, together: SpeedUp, apart: SpeedUp | None, most: int, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self._together, self._apart, self._most = together, apart, most

    @property
    def known(self) -> bool:
        """Whether its throughput was measured or given, together or apart."""
        return self._together.known or (self._apart is not None and self._apart.known)

    @property
    def seconds(self) -> float:
        """Seconds of training observed, discounted by age; inf if the throughputs were given."""
        return self._together.seconds + (0.0 if self._apart is None else self._apart.seconds)

    def throughput(self, devices: float) -> float:
        """Return the batches per second on a number of devices or a share of one; NaN while unknown."""
        return self._on(devices).throughput(devices)

    def seen(self, devices: int) -> float:
        """Return the seconds of training observed on this number of devices; inf if the throughputs were given."""
        return self._on(devices).seen(devices)

    def devices_for(self, throughput: float) -> float:
        """Return the devices, or the share of one, that a throughput needs; inf if no number suffices."""
        devices = self._together.devices_for(throughput)
        if self._apart is None or devices <= self._most or math.isnan(devices):
            return devices
        return max(self._apart.devices_for(throughput), self._most + 1.0)

    def _on(self, devices: float) -> SpeedUp:
        return self._together if self._apart is None or devices <= self._most else self._apart
