"""The number of devices that ends a known amount of work at its deadline (DECOR-NN's controller).

The set point is a ramp: a straight line of progress from where the job is to all of its work at its planned end. A
proportional-integral law holds the job to it. ``mode="paper"`` is the printed law, eqs. 3 to 5, with gains given by
hand. The default knows the job's throughput on each number of devices (:mod:`lightning_core.core.speedup`), so that

- most of the answer is fed forward: the devices at which progress has the ramp's slope;
- the gains come from the job: with e the error in points, g points per second that one more device brings, b = g K T
  and a step of T seconds, e' = (1 - b) e - b i and i' = i + eta e', whose poles are the roots of
  z^2 - (2 - b (1 + eta)) z + (1 - b). Both are put at ``POLE`` by b = 1 - POLE^2 and eta = (1 - POLE) / (1 + POLE);
- it starts on all devices until the throughput is known, and then takes over without a jump: the ramp begins there;
- a changed deadline begins a new ramp there too, so the error does not jump. The printed ramp always begins at the
  job's start.

Both hold the integral while the output is limited and the error would push it further (with the printed limit alone it
winds up), and while the last grant is not confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lightning_core.core.saved_state import Stateful
from lightning_core.core.speedup import SpeedUp

# Both poles of the closed loop: an error falls to a tenth within about eight steps.
POLE = 0.6
# Seconds of training after which the throughput counts as known.
KNOWN_AFTER = 1.0

Mode = Literal["default", "paper"]
RampKind = Literal["rebased", "origin"]


class Ramp(NamedTuple):
    """A straight line of progress, in percent."""

    began: float
    progress: float
    ends: float

    @property
    def slope(self) -> float:
        """Percent per second."""
        return (100.0 - self.progress) / max(self.ends - self.began, 1e-9)

    def at(self, now: float) -> float:
        """Return the percentage at which the job should be."""
        return min(self.progress + self.slope * (now - self.began), 100.0)


class ControllerInput(NamedTuple):
    """What is known of a job at a step.

    Attributes:
        now: Scheduler time.
        done: Batches done.
        total: Batches of the whole job.
        deadline: Scheduler time.
        min_devices: Minimum number of devices.
        max_devices: Maximum number of devices.
        quantum: Step in which devices are granted.
        pending: Whether the last grant is not confirmed yet.
    """

    now: float
    done: float
    total: float
    deadline: float
    min_devices: float
    max_devices: float
    quantum: float
    pending: bool = False


@dataclass(frozen=True, slots=True)
class RampSettings:
    """How a controller decides.

    Args:
        alpha: Part of the time to the deadline in which the job should end, above 0 to 1.
        period: Seconds between two steps.
        mode: ``"default"`` or ``"paper"``.
        gain: Devices per percent of error (the paper's K), in the paper's mode.
        eta: Part of each error that the integral takes in, in the paper's mode.
        ramp: ``"rebased"`` or ``"origin"``, the start of the ramp when a deadline changes; None for that of the mode:
            the paper's ramp keeps its origin.

    Raises:
        ValueError: If an argument is out of its range.
    """

    alpha: float = 0.95
    period: float = 1.0
    mode: Mode = "default"
    gain: float = 1.0
    eta: float = 0.1
    ramp: RampKind | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1, got {self.alpha}")
        if not 0 < self.period < math.inf:
            raise ValueError(f"period must be positive and finite, got {self.period}")
        if self.mode not in ("default", "paper"):
            raise ValueError(f"mode must be default or paper, got {self.mode!r}")
        if not 0 < self.gain < math.inf:
            raise ValueError(f"gain must be positive and finite, got {self.gain}")
        if not 0 < self.eta < 1:
            raise ValueError(f"eta must be above 0 and below 1, got {self.eta}")
        if self.ramp not in (None, "rebased", "origin"):
            raise ValueError(f"ramp must be rebased or origin, got {self.ramp!r}")

    @property
    def rebased(self) -> bool:
        """Whether a new deadline begins a new ramp where the job is."""
        return self.ramp == "rebased" or (self.ramp is None and self.mode == "default")


class RampController(Stateful):
    """The controller of one job.

    Args:
        settings: How it decides.
        began: Scheduler time at which the job was submitted.

    Example::

        >>> speed = SpeedUp((1,), (10.0,))
        >>> controller = RampController(RampSettings(alpha=1.0), began=0.0)
        >>> state = ControllerInput(0.0, 0, 600, deadline=100.0, min_devices=0.05, max_devices=1.0, quantum=0.05)
        >>> round(controller.step(state, speed), 2)
        0.6
    """

    STATE = ("began", "output", "error", "_integral", "_deadline", "_ramp", "_stepped_at")

    def __init__(self, settings: RampSettings, began: float) -> None:
        self.settings = settings
        self.began = began
        self.output = math.nan
        """Devices at the last step; NaN before the first."""
        self.error = 0.0
        """Percentage by which the job was behind its ramp at the last step."""
        self._integral = 0.0
        self._deadline = math.nan
        self._ramp: Ramp | None = None
        self._stepped_at = -math.inf

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        super().restore(state)
        self._ramp = None if self._ramp is None else Ramp(*self._ramp)

    def end(self, deadline: float, now: float) -> float:
        """Return when the job should end: before its deadline by ``alpha``, or at it once that time has passed."""
        ends = self.began + self.settings.alpha * (deadline - self.began)
        return ends if ends > now else deadline

    def step(self, state: ControllerInput, speed: SpeedUp) -> float:
        """Return the devices from now on, a multiple of the quantum; the same as before within one period."""
        changed = state.deadline != self._deadline
        limits_hold = state.min_devices <= self.output <= state.max_devices
        if limits_hold and not changed and state.now - self._stepped_at < self.settings.period * (1 - 1e-6):
            return self.output
        self._stepped_at = state.now
        paper = self.settings.mode == "paper"
        if not paper and not (speed.known and speed.seconds >= KNOWN_AFTER):
            self.output = state.max_devices
            return self.output
        progress = min(100.0 * state.done / state.total, 100.0)
        if changed or self._ramp is None or (not paper and self._ramp.ends <= state.now < state.deadline):
            self._begin(state, progress)
        assert self._ramp is not None
        self.error = self._ramp.at(state.now) - progress
        feed, gain, eta = (0.0, self.settings.gain, self.settings.eta) if paper else self._tuned(state, speed)
        integral = self._integral if state.pending else self._integral + eta * self.error
        wanted = feed + gain * (integral + self.error)
        output = self._quantised(wanted, state)
        limited = not state.min_devices <= wanted <= state.max_devices
        if not (limited and (wanted > state.max_devices) == (self.error > 0)):
            self._integral = integral
        if not (state.pending and self.output == self.output and not changed):
            self.output = output
        return self.output

    def _begin(self, state: ControllerInput, progress: float) -> None:
        """Start a new ramp, at the first step or for a new deadline."""
        self._deadline = state.deadline
        ends = self.end(state.deadline, state.now)
        if self.settings.rebased and (self._ramp is not None or self.settings.mode == "default"):
            self._ramp = Ramp(state.now, progress, ends)
            if self.settings.mode == "default":
                self._integral = 0.0
        else:
            self._ramp = Ramp(self.began, 0.0, ends)

    def _tuned(self, state: ControllerInput, speed: SpeedUp) -> tuple[float, float, float]:
        """Return the devices fed forward, and the gains K and eta that place the poles."""
        assert self._ramp is not None
        rate = self._ramp.slope * state.total / 100.0
        feed = min(speed.devices_for(rate), state.max_devices)
        at, by = max(feed, state.min_devices), state.quantum
        more = (speed.throughput(at + by) - speed.throughput(at)) / by * 100.0 / state.total
        min_gain = 0.1 * speed.throughput(at) / at * 100.0 / state.total  # where more devices add no throughput
        gain = (1.0 - POLE**2) / (max(more, min_gain) * self.settings.period)
        return feed, gain, (1.0 - POLE) / (1.0 + POLE)

    @staticmethod
    def _quantised(wanted: float, state: ControllerInput) -> float:
        """Round up to the next quantum within the limits (eq. 5)."""
        steps = math.ceil(round(wanted / state.quantum, 6))
        return max(state.min_devices, min(state.max_devices, steps * state.quantum))
