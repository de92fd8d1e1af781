"""Ordinary trainings: what is forecast of them, and what is said, held against what they did.

    python -m benchmarks.forecasts.ordinary --quick --json

61 small trainings as people write them (benchmarks/recording/record_ordinary.py), each with a target that it reached,
and those that have a known floor with a second one below it. Each is replayed to the scheduler that ships, alone on one
device with twice the time that it is planned to take, and stopped when it has come 5, 10, 20, 30 and 60 % of its way:
to the target, or to its end if it never gets there. The forecast was tuned on the trainings of half of the tasks; the
others were looked at only.

What is said at a stop is the reason with which the job ends. ``said_part`` is the part of all stops from 30 % on that
name a time, ``said_within_2`` the part of these within a factor of two of the truth, ``said_never`` the part of stops
with the verdict infeasible, the only way left to say "not enough", ``said_never_false`` the part of these whose target
was met later, and ``feasible_below_floor`` the part of stops short of a target below the floor at
which the verdict was feasible.
"""

from __future__ import annotations

import copy
import json
import lzma
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, main, table
from lightning_core.core.answers import End, Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.core.earlier_runs import BinnedCurve
from lightning_core.core.events import Cell, ExitCause, Horizon, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reported import LearningRates
from lightning_core.core.targets import LossTarget
from lightning_core.estimators.stated_work import work_left
from lightning_core.planning.chance import quantile
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

FILE = Path(__file__).parents[1] / "curves" / "ordinary.json.xz"
PARTS = (0.05, 0.1, 0.2, 0.3, 0.6)
SAID_FROM = 0.3
LEVELS = (0.1, 0.5, 0.9)
# All trainings count as this long, in seconds: what is judged must not depend on how fast the machine was.
SECONDS = 600.0
# Tasks on which the estimator was tuned.
TUNED_ON = frozenset(["digits", "wine", "flipped", "sums", "chain", "lora", "modular", "autoencoder", "pole"])


class Training(NamedTuple):
    """A recorded training with a target.

    Attributes:
        name: Name of the training; its first word is its task.
        target: Its target.
        batches: Batches done at each cell.
        values: Value of each cell, as logged.
        evaluated: Whether each is a whole evaluation.
        rates: Learning rates, if they change.
        length: Batches that it was planned to take.
        reached: Batches after which its target was met; inf if never.
    """

    name: str
    target: LossTarget
    batches: tuple[int, ...]
    values: tuple[float, ...]
    evaluated: bool
    rates: LearningRates | None
    length: int
    reached: float

    @property
    def way(self) -> float:
        """Batches to the target, or to the end."""
        return min(self.reached, float(self.length))

    @property
    def learning_rates(self) -> tuple[FloatArray, FloatArray] | None:
        """Return the learning rates as an estimator takes them."""
        if self.rates is None:
            return None
        return np.array(self.rates.batches, np.float64), np.array(self.rates.rates, np.float64)

    @property
    def tuned(self) -> bool:
        """Whether the estimator was tuned on its task."""
        return self.name.split()[0] in TUNED_ON


class Stop(NamedTuple):
    """What was forecast, believed and said of a training when it was stopped.

    Attributes:
        training: The training.
        part: Part of its way that it had come.
        batches: Batches that it had done.
        left: Quantiles of the batches left, shape ``(20,)``; NaN without a forecast.
        verdict: Verdict before the stop.
        said: Batches that were said to be enough; NaN if no number was said.
    """

    training: Training
    part: float
    batches: int
    left: FloatArray
    verdict: Verdict | None
    said: float

    @property
    def truth(self) -> float:
        """Batches that were really left."""
        return self.training.reached - self.batches


@lru_cache
def trainings(file: Path = FILE) -> tuple[Training, ...]:
    """Return all trainings with their targets."""
    with lzma.open(file) as opened:
        found = json.load(opened)
    return tuple(one for name, recorded in found.items() for one in _with_targets(name, recorded))


def _with_targets(name: str, recorded: dict[str, Any]) -> Iterator[Training]:
    """Yield the training with a target that it reached, and one below its floor, where it has one.

    The first is what it had after a drawn part of its length, written with two figures, or with as many as are needed
    for one that it had not reached at once.
    """
    draw = np.random.default_rng(int.from_bytes(name.encode(), "little") % 2**32)
    batches, values = tuple(recorded["batches"]), tuple(recorded["values"])
    evaluated = recorded["metric"] != "loss"
    rates = None if recorded["rates"] is None else LearningRates(*map(tuple, recorded["rates"]))
    metric, length, best = recorded["metric"], recorded["length"], recorded["best"]

    def with_goal(goal: float) -> Training:
        more = {"at_most": goal} if best is None else {"at_least": goal, "best": best}
        target = LossTarget(metric, **more)
        window = 1 if evaluated else Settings().window
        met = (
            at
            for k, at in enumerate(batches)
            if target.is_met(at, values[max(k - window + 1, 0) : k + 1], evaluated, window)
        )
        return Training(name, target, batches, values, evaluated, rates, length, next(met, np.inf))

    part = float(np.exp(draw.uniform(np.log(0.25), np.log(0.95))))
    upto = np.array(values[: max(int(np.searchsorted(batches, part * length)), 8)])
    smooth = upto if evaluated else np.convolve(upto, np.full(5, 0.2), "valid")
    goal = float(smooth.min() if best is None else min(smooth.max(), 0.94 * best))
    for figures in (2, 3, 6):
        one = with_goal(float(f"{goal:.{figures}g}"))
        if 0.1 * length < one.reached < np.inf:
            yield one
            break
    if (floor := recorded["floor"]) is not None:
        below = with_goal(float(f"{0.88 * floor:.2g}" if best is None else f"{floor + 0.3 * (best - floor):.2g}"))
        assert below.reached == np.inf, f"{name} came below its floor"
        yield below


class Moment(NamedTuple):
    """A moment of a replay.

    Attributes:
        part: Part of its way that the training had come.
        batches: Batches that it had done.
        scheduler: The scheduler then, which knows it as ``job``.
        curve: Its losses, as the scheduler keeps them.
        scale: Seconds of a batch.
    """

    part: float
    batches: int
    scheduler: Scheduler
    curve: BinnedCurve
    scale: float


def replayed(training: Training, parts: Sequence[float] = PARTS) -> Iterator[Moment]:
    """Replay a training to the scheduler, and yield the moments at which it has come some parts of its way."""
    scale = SECONDS / training.length
    scheduler = Scheduler(Settings())
    job = Job("job", 2 * SECONDS, training.target)
    scheduler.handle(Submit((job,)), 0.0)
    curve, at = BinnedCurve(), 0
    horizon = Horizon(training.length, "max_steps")
    for part in parts:
        until = part * training.way
        while at < len(training.batches) and training.batches[at] <= until:
            done, value = training.batches[at], training.values[at]
            report = Report(
                "job",
                1,
                at + 1,
                _version(scheduler),
                done,
                done * scale,
                (Cell(at + 1, done, value),),
                evaluated=training.evaluated,
                horizon=horizon,
                learning_rates=training.rates if at == 0 else None,
            )
            while (due := scheduler.wakeup()) is not None and due < done * scale:
                scheduler.handle(Tick(), due)
            scheduler.handle(report, done * scale)
            curve.add(done, training.target.falling(value))
            at += 1
        yield Moment(part, training.batches[at - 1] if at else 0, scheduler, curve, scale)


def stops(training: Training) -> list[Stop]:
    """Replay a training to the scheduler and return what it says at each part of the way."""
    found = []
    for now in replayed(training):
        left = np.maximum(work_left(*_points(now.curve), training.target.threshold, training.learning_rates), 1.0)
        verdict = now.scheduler.last("job").verdict
        found.append(Stop(training, now.part, now.batches, left, verdict, _said(now.scheduler, now.scale)))
    return found


def _version(scheduler: Scheduler) -> int:
    directive = scheduler.directive("job")
    assert directive is not None
    return directive.version


def _points(curve: BinnedCurve) -> tuple[FloatArray, FloatArray]:
    position, loss = (np.array(column, np.float64) for column in curve.points())
    return position, loss


def _said(scheduler: Scheduler, scale: float) -> float:
    """Return the batches that are said to be enough if the training ends now, as :attr:`Stop.said`."""
    stopped = copy.deepcopy(scheduler)
    now = stopped.now
    answers = stopped.handle(WorkerExited("job", 1, ExitCause.DONE, "at max_epochs=1"), now)
    (end,) = [answer for answer in answers if isinstance(answer, End)]
    return float(end.reason.numbers[-1]) / scale if end.reason.code.endswith("_more") else np.nan


def figures(found: Sequence[Stop]) -> Figures:
    """Return the figures of some stops."""
    real = [one for one in found if np.isfinite(one.truth)]
    known = [one for one in real if not np.isnan(one.left).any()]
    late = [one for one in found if one.part >= SAID_FROM]
    said = [one for one in late if np.isfinite(one.said)]
    below = [one for one in found if np.isinf(one.truth)]
    shown: Figures = {}
    for part in PARTS:
        errors = [abs(np.log(quantile(one.left[None], 0.5)[0] / one.truth)) for one in known if one.part == part]
        shown[f"median_ln_error_{part:.0%}".rstrip("%")] = _over(np.median, errors)
    for level in LEVELS:
        within = [one.truth <= quantile(one.left[None], level)[0] for one in known]
        shown[f"coverage_q{level:.0%}".rstrip("%")] = _over(np.mean, within)
    shown["said_part"] = len(said) / max(len(late), 1)
    shown["said_within_2"] = _over(np.mean, [0.5 <= one.said / one.truth <= 2.0 for one in said])
    never = [one for one in found if one.verdict is Verdict.INFEASIBLE]
    shown["said_never"] = len(never) / len(found)
    shown["said_never_false"] = _over(np.mean, [np.isfinite(one.truth) for one in never])
    shown["feasible_below_floor"] = _over(np.mean, [one.verdict is Verdict.FEASIBLE for one in below])
    return shown


def _over(how: Any, values: Sequence[Any]) -> float | None:
    return float(how(values)) if len(values) else None


def measure(size: str) -> Figures:
    """Return the figures of all trainings, and print them beside those of each half."""
    found = [stop for one in trainings() for stop in stops(one)]
    halves = [figures([stop for stop in found if stop.training.tuned is tuned]) for tuned in (True, False)]
    whole = figures(found)
    columns = ["figure", "tuned on", "looked at", "all"]
    table(columns, [[name, *(one[name] for one in (*halves, whole))] for name in whole])
    return whole


if __name__ == "__main__":
    main("forecasts.ordinary", "Forecasts of ordinary small trainings, and the statements made of them", measure)
