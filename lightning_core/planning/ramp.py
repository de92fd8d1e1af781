"""The devices that end a known amount of work at its deadline (DECOR-NN's controller).

The set point is a ramp: a straight line of progress from where the job is to all of it at the time at which it should
end. A proportional-integral law holds the job to it. ``mode="paper"`` is what is printed, its eq. 3 to 5, with gains
given by hand. The default knows how fast the job is on how many devices (:mod:`lightning_core.core.speedup`), so that

- most of the answer is fed forward: the devices at which progress has the ramp's slope;
- the gains come from the job: with e the error in points, g points a second that one more device brings, b = g K T and
  a step of T seconds, e' = (1 - b) e - b i and i' = i + eta e', whose poles are the roots of
  z^2 - (2 - b (1 + eta)) z + (1 - b). Both are put at ``POLE`` by b = 1 - POLE^2 and eta = (1 - POLE) / (1 + POLE);
- it starts on all devices until the speed is known, and then takes over without a bump: the ramp begins there;
- a deadline that is changed begins a new ramp there too, so the error does not jump.

Both hold the integral while the output is limited and the error would push it further (the printed limit alone lets it
run away), and while the last grant is not confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lightning_core.core.speedup import SpeedUp

# Where both poles of the closed loop are put: an error is down to a tenth after some eight steps.
POLE = 0.6
# Seconds of training that must have been seen before the speed counts as known.
KNOWN_AFTER = 1.0

Mode = Literal["default", "paper"]
RampKind = Literal["rebased", "origin"]


class Ramp(NamedTuple):
    """A straight line of progress, in points of a hundred."""

    began: float
    progress: float
    ends: float

    @property
    def slope(self) -> float:
        """Points a second."""
        return (100.0 - self.progress) / max(self.ends - self.began, 1e-9)

    def at(self, now: float) -> float:
        """Where the job should be."""
        return min(self.progress + self.slope * (now - self.began), 100.0)


class ControllerInput(NamedTuple):
    """What is known of a job at a step.

    Args:
        now: scheduler time.
        done: batches, by now.
        total: batches to do.
        deadline: scheduler time.
        min_devices: devices.
        max_devices: devices.
        quantum: devices are given in steps of it.
        pending: whether the last grant is not confirmed yet.
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
        alpha: part of the time to the deadline in which the job should end, above 0 to 1.
        period: seconds between two steps.
        mode: ``"default"`` or ``"paper"``.
        gain: devices for each point of error (the paper's K), of the paper's mode.
        eta: part of each error that the integral takes in, of the paper's mode.
        ramp: ``"rebased"`` or ``"origin"``: where the ramp begins when a deadline is changed; printed is the latter.

    Raises:
        ValueError: if one is out of its range.
    """

    alpha: float = 0.95
    period: float = 1.0
    mode: Mode = "default"
    gain: float = 1.0
    eta: float = 0.1
    ramp: RampKind = "rebased"

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
        if self.ramp not in ("rebased", "origin"):
            raise ValueError(f"ramp must be rebased or origin, got {self.ramp!r}")


class RampController:
    """Of one job.

    Args:
        rule: how it decides.
        began: when the job was submitted, scheduler time.

    Example::

        >>> speed = SpeedUp((1,), (10.0,))
        >>> controller = RampController(RampSettings(alpha=1.0), began=0.0)
        >>> state = ControllerInput(now=0.0, done=0, total=600, deadline=100.0, min_devices=0.05, max_devices=1.0, quantum=0.05)
        >>> round(controller.step(state, speed), 2)
        0.6
    """

    def __init__(self, rule: RampSettings, began: float) -> None:
        self.rule = rule
        self.began = began
        self.output = math.nan
        """Devices at the last step; NaN before the first."""
        self.error = 0.0
        """Points by which the job was behind its ramp at the last step."""
        self._integral = 0.0
        self._deadline = math.nan
        self._ramp: Ramp | None = None
        self._stepped_at = -math.inf

    def end(self, deadline: float, now: float) -> float:
        """When the job should end: some time before its deadline; at the deadline once that has passed."""
        ends = self.began + self.rule.alpha * (deadline - self.began)
        return ends if ends > now else deadline

    def step(self, state: ControllerInput, speed: SpeedUp) -> float:
        """Devices from now on, a multiple of the quantum. Called more often than each period it answers as before."""
        changed = state.deadline != self._deadline
        limits_hold = state.min_devices <= self.output <= state.max_devices
        if limits_hold and not changed and state.now - self._stepped_at < self.rule.period * (1 - 1e-6):
            return self.output
        self._stepped_at = state.now
        paper = self.rule.mode == "paper"
        if not paper and not (speed.known and speed.seconds >= KNOWN_AFTER):
            self.output = state.max_devices
            return self.output
        progress = min(100.0 * state.done / state.total, 100.0)
        if changed or self._ramp is None or (not paper and self._ramp.ends <= state.now < state.deadline):
            self._begin(state, progress)
        assert self._ramp is not None  # it has just begun, if it was not there
        self.error = self._ramp.at(state.now) - progress
        feed, gain, eta = (0.0, self.rule.gain, self.rule.eta) if paper else self._tuned(state, speed)
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
        """A new ramp, for a new deadline or at the beginning."""
        self._deadline = state.deadline
        ends = self.end(state.deadline, state.now)
        if self.rule.ramp == "rebased" and (self._ramp is not None or self.rule.mode == "default"):
            self._ramp = Ramp(state.now, progress, ends)
            if self.rule.mode == "default":
                self._integral = 0.0
        else:
            self._ramp = Ramp(self.began, 0.0, ends)

    def _tuned(self, state: ControllerInput, speed: SpeedUp) -> tuple[float, float, float]:
        """Devices fed forward, and the gains K and eta that put the poles where they should be."""
        assert self._ramp is not None  # who calls has begun one
        rate = self._ramp.slope * state.total / 100.0
        feed = min(speed.devices_for(rate), state.max_devices)
        at, by = max(feed, state.min_devices), state.quantum
        more = (speed.rate(at + by) - speed.rate(at)) / by * 100.0 / state.total
        least_more = 0.1 * speed.rate(at) / at * 100.0 / state.total  # where more devices bring nothing
        gain = (1.0 - POLE**2) / (max(more, least_more) * self.rule.period)
        return feed, gain, (1.0 - POLE) / (1.0 + POLE)

    @staticmethod
    def _quantised(wanted: float, state: ControllerInput) -> float:
        """Eq. 5: up to the next quantum, within the limits."""
        steps = math.ceil(round(wanted / state.quantum, 6))
        return max(state.min_devices, min(state.max_devices, steps * state.quantum))
