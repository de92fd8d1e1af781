"""Future learning rates under torch's learning-rate schedulers, computed without stepping any of them.

Most of torch's schedulers change a rate by a factor that depends on the number of their step alone, or set it to a
value that does: the rate after any number of steps is known at once. Nothing of the training is touched: a shallow copy
of each scheduler is asked, with numbers of parameter groups in place of an optimizer, and no parameter is read.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim import lr_scheduler as torch_schedulers

from lightning_core.agent.user_code.pure_functions import is_pure
from lightning_core.errors import LightningCoreError

# Steps that are worked out one after another at most, where the rate after many of them is not known at once.
MAX_STEPS = 10_000


class UnknownCourseError(LightningCoreError, ValueError):
    """The learning rates to come are not known; the message says why, as the end of a sentence."""


class Course:
    """The learning rate of one parameter group under one learning-rate scheduler; steps count from its present state.

    Args:
        scheduler: Copy of the scheduler (:func:`detached`).
        group: Number of the parameter group.
        epoch: Steps that the scheduler has done before.
        length: Steps that it does in all until the rate stays as it is; None if it goes on for ever.
    """

    separable_for: float = 0
    """Steps for which each step multiplies the rate by a factor that does not depend on the rate."""

    def __init__(self, scheduler: Any, group: int, epoch: int, length: int | None) -> None:
        self._scheduler, self._group, self._epoch = scheduler, group, epoch
        self.base = float(scheduler.base_lrs[group])
        """Rate that the scheduler was made for."""
        self.length = None if length is None else max(length - epoch, 0)
        """Steps until the rate stays as it is; None if it goes on for ever."""

    def begin(self, rate: float) -> float:
        """Return what a scheduler that has done no step makes of the rate of a new training."""
        raise NotImplementedError

    def advance(self, rate: float, since: int, until: int) -> float:
        """Return the rate after ``until`` steps, given the one after ``since`` steps."""
        raise NotImplementedError


class _Factors(Course):
    """A scheduler whose steps multiply the rate, with a closed form of their product."""

    separable_for = math.inf

    def _closed(self, steps: int) -> float:
        self._scheduler.last_epoch = self._epoch + steps
        return float(self._scheduler._get_closed_form_lr()[self._group])

    def begin(self, rate: float) -> float:
        return rate * self._closed(0) / self.base if self.base else 0.0

    def advance(self, rate: float, since: int, until: int) -> float:
        before = self._closed(since)
        return rate * self._closed(until) / before if before else rate


class _Cosine(_Factors):
    """``CosineAnnealingLR``: its steps scale the distance from the minimum, and set it after each half period."""

    def __init__(self, scheduler: Any, group: int, epoch: int, length: int | None) -> None:
        super().__init__(scheduler, group, epoch, length)
        self._period = int(scheduler.T_max)
        self._minimum = float(scheduler.eta_min)
        self.separable_for = 0 if self._minimum else self._period - epoch
        self.length = self.length or None  # behind its end the rate rises again

    def advance(self, rate: float, since: int, until: int) -> float:
        if until == since:
            return rate
        first, last = self._epoch + since, self._epoch + until
        period = self._period
        lowest = period + 2 * period * math.ceil((first - period) / (2 * period))
        if lowest < last:
            return self._closed(until)
        before, after = (1 + math.cos(math.pi * step / period) for step in (first, last))
        return self._minimum + (rate - self._minimum) * after / before


class _Values(Course):
    """A scheduler that sets the rate at each step, whatever it was: ``OneCycleLR``, ``CyclicLR``."""

    def __init__(self, scheduler: Any, group: int, epoch: int, length: int | None) -> None:
        super().__init__(scheduler, group, epoch, length)
        if (scale := getattr(scheduler, "_scale_fn_custom", None)) is not None:
            _check_pure(scale, scheduler)

    def _at(self, steps: int) -> float:
        last = getattr(self._scheduler, "total_steps", math.inf)  # OneCycleLR refuses to go on behind it
        self._scheduler.last_epoch = min(self._epoch + steps, last)
        return float(self._scheduler.get_lr()[self._group])

    def begin(self, rate: float) -> float:
        return self._at(0)

    def advance(self, rate: float, since: int, until: int) -> float:
        return self._at(until) if until > since else rate


class _WarmRestarts(_Values):
    def __init__(self, scheduler: Any, group: int, epoch: int, length: int | None) -> None:
        super().__init__(scheduler, group, epoch, length)
        self._since = (scheduler.T_cur, scheduler.T_i) if epoch else (0, scheduler.T_0)

    def _at(self, steps: int) -> float:
        scheduler = self._scheduler
        since, period = self._since
        since += steps
        while since >= period and scheduler.T_mult > 1:
            since, period = since - period, period * scheduler.T_mult
        scheduler.T_cur, scheduler.T_i = since % period, period
        return float(scheduler.get_lr()[self._group])


class _Lambda(_Values):
    def __init__(self, scheduler: Any, group: int, epoch: int, length: int | None) -> None:
        super().__init__(scheduler, group, epoch, length)
        self._function = _function(scheduler, group)

    def _at(self, steps: int) -> float:
        return self.base * float(self._function(self._epoch + steps))


class _Product(Course):
    """``MultiplicativeLR``: the user's function has to be asked for each step."""

    separable_for = math.inf

    def __init__(self, scheduler: Any, group: int, epoch: int, length: int | None) -> None:
        super().__init__(scheduler, group, epoch, length)
        self._function = _function(scheduler, group)
        self._products = [1.0]

    def begin(self, rate: float) -> float:
        return rate

    def advance(self, rate: float, since: int, until: int) -> float:
        if until > MAX_STEPS:
            raise UnknownCourseError(f"MultiplicativeLR has more than {MAX_STEPS:,} steps")
        products = self._products
        while len(products) <= until:
            products.append(products[-1] * float(self._function(self._epoch + len(products))))
        return rate * products[until] / products[since] if products[since] else rate


class _Sequence(Course):
    """``SequentialLR``: each of its schedulers begins anew at its milestone.

    Args:
        scheduler: Copy of the scheduler.
        epoch: Steps that it has done before.
        parts: The schedulers in use now and later; the first goes on, the others begin anew.
    """

    def __init__(self, scheduler: Any, epoch: int, parts: Sequence[Course]) -> None:
        self.base = parts[0].base
        self._parts = parts
        later = [milestone - epoch for milestone in scheduler._milestones if milestone > epoch]
        self._starts = [0, *later]
        own = parts[-1].length
        self.length = None if own is None else self._starts[-1] + own

    def begin(self, rate: float) -> float:
        return self._parts[0].begin(rate)

    def advance(self, rate: float, since: int, until: int) -> float:
        ends = [start - 1 for start in self._starts[1:]] + [until]
        for part, start, end in zip(self._parts, self._starts, ends, strict=True):
            if since < start <= until:
                rate = part.begin(part.base)
            first, last = max(since, start), min(until, end)
            if first < last:
                rate = part.advance(rate, first - start, last - start)
        return rate


_Make = Callable[[Any, int, int, int | None], Course]
# How each kind of scheduler goes on, and the attribute that tells after how many steps it has ended.
_KINDS: Mapping[type, tuple[_Make, str]] = {
    torch_schedulers.StepLR: (_Factors, ""),
    torch_schedulers.MultiStepLR: (_Factors, "milestones"),
    torch_schedulers.ConstantLR: (_Factors, "total_iters"),
    torch_schedulers.LinearLR: (_Factors, "total_iters"),
    torch_schedulers.ExponentialLR: (_Factors, ""),
    torch_schedulers.PolynomialLR: (_Factors, "total_iters"),
    torch_schedulers.CosineAnnealingLR: (_Cosine, "T_max"),
    torch_schedulers.CosineAnnealingWarmRestarts: (_WarmRestarts, ""),
    torch_schedulers.OneCycleLR: (_Values, "total_steps"),
    torch_schedulers.CyclicLR: (_Values, ""),
    torch_schedulers.LambdaLR: (_Lambda, ""),
    torch_schedulers.MultiplicativeLR: (_Product, ""),
}


def courses_of(scheduler: Any, groups: Sequence[Mapping[str, Any]], group: int, *, anew: bool) -> list[Course]:
    """Return how a scheduler goes on: one course after the other, at each step.

    Args:
        scheduler: Scheduler of a training, which stays as it is.
        groups: Its parameter groups without parameters (:func:`numbers_of`).
        group: Number of the parameter group.
        anew: Whether to begin where the training began, instead of where it is.

    Raises:
        UnknownCourseError: If the scheduler is of no known kind.
    """
    kind = type(scheduler)
    if kind is torch_schedulers.ChainedScheduler:
        return [one for part in scheduler._schedulers for one in courses_of(part, groups, group, anew=anew)]
    if kind is torch_schedulers.SequentialLR:
        epoch = 0 if anew else int(scheduler.last_epoch)
        now = bisect_right(scheduler._milestones, epoch)
        first, *later = scheduler._schedulers[now:]
        parts = [_one(first, groups, group, anew=anew), *(_one(part, groups, group, anew=True) for part in later)]
        return [_Sequence(scheduler, epoch, parts)]
    if kind not in _KINDS:
        raise UnknownCourseError(f"the course of {kind.__name__} is not known")
    make, ends = _KINDS[kind]
    epoch = 0 if anew else int(scheduler.last_epoch)
    length = getattr(scheduler, ends) if ends else None
    if kind is torch_schedulers.MultiStepLR:
        length = max(scheduler.milestones, default=0)
    return [make(_detached(scheduler, groups), group, epoch, length)]


def _one(scheduler: Any, groups: Sequence[Mapping[str, Any]], group: int, *, anew: bool) -> Course:
    """Return the course of a part of a sequence."""
    courses = courses_of(scheduler, groups, group, anew=anew)
    if len(courses) > 1 or isinstance(courses[0], _Product):
        raise UnknownCourseError(f"the course of {type(scheduler).__name__} within SequentialLR is not known")
    return courses[0]


def numbers_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer without their parameters, and with numbers in place of tensors."""
    return [
        {
            name: float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def _detached(scheduler: Any, groups: Sequence[Mapping[str, Any]]) -> Any:
    """Return a copy of a scheduler that may be asked and changed at will."""
    copied = copy.copy(scheduler)
    copied.optimizer = SimpleNamespace(param_groups=[dict(one) for one in groups])
    copied.base_lrs = [float(rate) for rate in scheduler.base_lrs]
    copied._get_lr_called_within_step = True  # else it warns
    return copied


def _function(scheduler: Any, group: int) -> Any:
    """Return the user's function of a parameter group, which can be called more often than the training does."""
    function = scheduler.lr_lambdas[group]
    _check_pure(function, scheduler)
    return function


def _check_pure(function: Any, scheduler: Any) -> None:
    if not is_pure(function):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise UnknownCourseError(f"{type(scheduler).__name__} is given {name}, which may remember its calls")
