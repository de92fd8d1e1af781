"""Reports the learning rates of a training, past and planned, when it begins and whenever they change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from lightning_core.agent.reporting.lr_courses import MAX_STEPS, Course, UnknownCourseError, courses_of, numbers_of
from lightning_core.agent.reporting.lr_points import seen_points
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.reporting.outbox import Outbox
from lightning_core.agent.user_code.random_state import RandomStateKept
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.reported import LearningRates, Points, fewer
from lightning_core.view.console_lines import inform

# Batches between two looks at the rate, and the same as a fraction of those done.
MIN_BATCHES, GROWTH = 20, 0.01
# Relative difference from the planned rate that counts as none.
TOLERANCE = 1e-4
# How often the rate may differ from what was planned.
MAX_CHANGES = 20
# Mean distance of a course from the line through its points, relative to the highest rate, up to which it is reported.
MAX_DISTANCE = 0.05
# A rate that never changes.
_CONSTANT = LearningRates((1,), (1.0,))


class LearningRateWatch:
    """Watches the learning rate of one fit.

    Args:
        job: Name of the job.
        mailbox: Mailbox in whose outbox they are put; None on a rank that reports nothing.
        wanted: Whether they are of use to the forecast of the job.
    """

    def __init__(self, job: str, mailbox: Mailbox | None, *, wanted: bool) -> None:
        self.look_at: float = 0 if wanted and mailbox is not None else math.inf
        """Batches after which the learning rate is to be looked at again."""
        self._job = job
        self._outbox = Outbox() if mailbox is None else mailbox.outbox
        self._plan: _LearningRatePlan | None = None
        self._points: Points = []
        self._changes = 0

    def begin(self, read: Callable[[], Schedules], batches: int) -> None:
        """Plan the learning rates before the first batch of a new training; of a resumed one, behind its first.

        Args:
            read: Returns the schedules; it may raise :class:`UnknownCourseError`.
            batches: Batches done.
        """
        if batches == self.look_at == 0:
            self.look(read, 0)

    def look(self, read: Callable[[], Schedules], batches: int) -> None:
        """Compare the learning rate with the planned one, after the batch :attr:`look_at`."""
        self.look_at = batches + max(MIN_BATCHES, int(GROWTH * batches))
        try:
            rates = self._compare(read(), batches)
        except UnknownCourseError as error:
            self._give_up(str(error))
        except Exception as error:  # training never fails because of a report
            self._give_up(f"{type(error).__name__}: {error}")
        else:
            self._outbox.learning_rates = self._outbox.learning_rates if rates is None else rates

    def _compare(self, schedules: Schedules, batches: int) -> LearningRates | None:
        """Return what is to be reported anew, if the rate is not as planned."""
        horizon = self._outbox.horizon
        end = None if horizon is None else horizon.batches
        plan, layout = self._plan, schedules.layout
        # Random state need not be kept: all that a plan asks computes numbers from numbers.
        if plan is not None and plan.holds(layout, end, batches):
            return None
        if plan is not None and not plan.is_at_rate(batches):
            self._changes += 1
            if self._changes > MAX_CHANGES:
                raise UnknownCourseError("its schedulers are not all that changes its learning rate")
        with RandomStateKept():
            return self._plan_anew(schedules, batches, end)

    def _plan_anew(self, schedules: Schedules, batches: int, end: int | None) -> LearningRates | None:
        plan, made = self._plan, _LearningRatePlan.of(schedules, batches, end)
        if made is None:
            self.look_at = math.inf
            return None
        self._plan = made
        self._points, distance = fewer(self._past(plan, made, schedules, batches) + made.points())
        if distance > MAX_DISTANCE:
            raise UnknownCourseError("its learning rate goes up and down too often")
        rates = LearningRates.through(self._points)
        told = self._outbox.learning_rates
        return rates if rates != told and (min(rates.rates) < 1.0 or told is not None) else None

    def _past(
        self, before: _LearningRatePlan | None, plan: _LearningRatePlan, schedules: Schedules, batches: int
    ) -> Points:
        """Return the points of the batches that are done: as planned before, or as a new training would have them."""
        if not batches:
            return []
        if before is not None:
            points = [point for point in self._points if point[0] < batches]
            return [*points, (batches, before.rate(batches))]
        began = _LearningRatePlan.from_the_start(schedules, plan)
        if not math.isclose(began.rate(batches + 1), plan.rate(batches + 1), rel_tol=TOLERANCE):
            return []
        return seen_points(began.rate, 1, batches)

    def _give_up(self, why: str) -> None:
        self.look_at = math.inf
        if self._outbox.learning_rates is not None:
            self._outbox.learning_rates = _CONSTANT
        inform(f"{self._job}: its forecasts do without the learning rates to come: {why}")


class SchedulerConfig(Protocol):
    """What is read of Lightning's configuration of a learning-rate scheduler."""

    @property
    def scheduler(self) -> Any:
        """The scheduler."""

    @property
    def interval(self) -> str:
        """``step`` or ``epoch``: when it is stepped."""

    @property
    def frequency(self) -> int:
        """After how many of these."""


class PlainConfig(NamedTuple):
    """A learning-rate scheduler that a loop steps by itself, as :class:`SchedulerConfig`."""

    scheduler: Any
    interval: str = "step"
    frequency: int = 1


class Layout(NamedTuple):
    """What an epoch consists of, and where in one the training is; batches count as Lightning counts them."""

    length: float
    """Batches of an epoch; infinite if unknown."""
    accumulated: int
    """Batches of an optimizer step; the last one of an epoch may have fewer."""
    epoch: int
    """Epochs that are done."""
    steps: int
    """Optimizer steps that are done of the next one."""

    def steps_of(self, config: Any, steps: int) -> int:
        """Return how often a learning-rate scheduler is stepped in the next optimizer steps."""
        per_epoch = math.inf if self.length == math.inf else -(-int(self.length) // self.accumulated)
        epochs = int((self.steps + steps) // per_epoch)
        frequency: int = config.frequency
        if config.interval == "epoch":
            if per_epoch == math.inf:
                raise UnknownCourseError("the length of an epoch is unknown")
            return (self.epoch + epochs) // frequency - self.epoch // frequency
        done = self._in_epoch(self.steps, frequency)
        if not epochs:
            return self._in_epoch(self.steps + steps, frequency) - done
        rest = int((self.steps + steps) % per_epoch)
        return epochs * self._in_epoch(int(per_epoch), frequency) + self._in_epoch(rest, frequency) - done

    def _in_epoch(self, steps: int, frequency: int) -> int:
        """Return how often a scheduler is stepped in the first optimizer steps of an epoch."""
        batches: int = int(min(steps * self.accumulated, self.length))
        count = batches // math.lcm(self.accumulated, frequency)
        is_rest = batches % self.accumulated != 0  # at the end of an epoch
        return count + int(is_rest and batches % frequency == 0)


class Schedules(NamedTuple):
    """The learning-rate schedulers of a training, and where it is.

    Attributes:
        optimizers: Optimizers; only with one of them a rate is reported.
        configs: Their schedulers.
        layout: What an epoch consists of, and where in one the training is.
    """

    optimizers: Sequence[Any]
    configs: Sequence[SchedulerConfig]
    layout: Layout


class _LearningRatePlan:
    """The learning rates from the present batch on.

    Args:
        group: Parameter group of the optimizer.
        configs: Lightning's configuration of each learning-rate scheduler.
        courses: Course of each, and of each scheduler that one consists of, with the number of its configuration.
        layout: Where the training is.
        batches: Batches done.
        end: Batches at which the training ends; None if it has no limit.
        rate: Learning rate of the next batch.
    """

    def __init__(
        self,
        group: dict[str, Any],
        configs: Sequence[Any],
        courses: Sequence[tuple[int, Course]],
        layout: Layout,
        batches: int,
        end: int | None,
        rate: float,
    ) -> None:
        self._group, self._configs, self._courses, self._layout = group, configs, courses, layout
        self._batches, self._end, self._rate = batches, end, rate
        self._last = batches + 1 if not courses else end if end is not None else self._own_end()
        counts = self._counts(max(self._last - batches - 1, 0))
        lasting = all(count <= course.separable_for for count, (_, course) in zip(counts, courses, strict=True))
        self._one_by_one = None if len(courses) == 1 or lasting else self._step_by_step()

    @classmethod
    def of(cls, schedules: Schedules, batches: int, end: int | None) -> _LearningRatePlan | None:
        """Return the plan of a training; None if there is no learning rate, or nothing to come."""
        optimizers, configs, layout = schedules
        if len(optimizers) != 1 or (end is not None and end <= batches):
            return None
        groups = numbers_of(optimizers[0])
        sizes = [sum(parameter.numel() for parameter in group["params"]) for group in optimizers[0].param_groups]
        largest = sizes.index(max(sizes))
        if "lr" not in groups[largest]:
            return None
        courses = [
            (number, course)
            for number, config in enumerate(configs)
            for course in courses_of(config.scheduler, groups, largest, anew=False)
        ]
        group = optimizers[0].param_groups[largest]
        return cls(group, configs, courses, layout, batches, end, float(groups[largest]["lr"]))

    @classmethod
    def from_the_start(cls, schedules: Schedules, plan: _LearningRatePlan) -> _LearningRatePlan:
        """Return the plan of the same training as it would begin."""
        groups, configs = numbers_of(schedules.optimizers[0]), plan._configs
        number = next(k for k, group in enumerate(schedules.optimizers[0].param_groups) if group is plan._group)
        rate = float(groups[number].get("initial_lr", plan._rate))
        courses = []
        for place, config in enumerate(configs):
            for course in courses_of(config.scheduler, groups, number, anew=True):
                rate = course.begin(rate)
                courses.append((place, course))
        layout = plan._layout._replace(epoch=0, steps=0)
        return cls(plan._group, configs, courses, layout, 0, max(plan._last, plan._batches + 1), rate)

    def holds(self, layout: Layout, end: int | None, batches: int) -> bool:
        """Return whether the training is as planned."""
        return layout[:2] == self._layout[:2] and end == self._end and self.is_at_rate(batches)

    def is_at_rate(self, batches: int) -> bool:
        """Return whether the next batch has the learning rate that was planned for it."""
        planned = self.rate(batches + 1)
        return math.isclose(float(self._group["lr"]), planned, rel_tol=TOLERANCE, abs_tol=1e-6 * abs(self._rate))

    def points(self) -> Points:
        """Return points of the learning rates from the next batch to the last one."""
        return seen_points(self.rate, self._batches + 1, max(self._last, self._batches + 1))

    def rate(self, batch: int) -> float:
        """Return the learning rate of a batch that is not yet done."""
        steps = max(batch - self._batches - 1, 0)
        if self._one_by_one is not None:
            return self._one_by_one[min(steps, len(self._one_by_one) - 1)]
        rate = self._rate
        for count, (_, course) in zip(self._counts(steps), self._courses, strict=True):
            rate = course.advance(rate, 0, count)
        if not math.isfinite(rate):
            raise UnknownCourseError(f"the learning rate of batch {batch:,} is {rate}")
        return rate

    def _counts(self, steps: int) -> list[int]:
        counts = [self._layout.steps_of(config, steps) for config in self._configs]
        return [counts[number] for number, _ in self._courses]

    def _own_end(self) -> int:
        """Return the batch from which on no scheduler changes the rate."""
        ends = [self._batches + 1]
        for number, course in self._courses:
            if course.length is None:
                raise UnknownCourseError("the length of the training is unknown; max_epochs or max_steps would tell it")
            low, high = 0, MAX_COUNT
            while low < high:
                middle = (low + high) // 2
                enough = self._layout.steps_of(self._configs[number], middle) >= course.length
                low, high = (low, middle) if enough else (middle + 1, high)
            ends.append(self._batches + 1 + low)
        return max(ends)

    def _step_by_step(self) -> list[float]:
        """Return the rate of each batch, where the schedulers depend on each other."""
        if self._last - self._batches > MAX_STEPS:
            raise UnknownCourseError(f"its schedulers depend on each other for more than {MAX_STEPS:,} batches")
        rates, before = [self._rate], self._counts(0)
        for steps in range(1, self._last - self._batches):
            rate, counts = rates[-1], self._counts(steps)
            for since, until, (_, course) in zip(before, counts, self._courses, strict=True):
                rate = course.advance(rate, since, until)
            rates.append(rate)
            before = counts
        return rates
