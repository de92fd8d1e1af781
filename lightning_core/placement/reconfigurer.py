"""What is done when more comes in than was planned, and afterwards.

One task after the other, the one that lacks the most first: it gets more where it is, if there is room; else it
moves, if it may and that does not cost too much; else it stays as it is, and that is told. When all is as planned
again, what was added is given back; who has moved stays where he is (Sartzetakis et al., section IV-C).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from lightning_core.placement.model import EXACT, Choice, Demands, PlacedJob
from lightning_core.placement.plan import Placed, Task, taken
from lightning_core.placement.planner import room_of

What = Literal["grown", "moved", "left", "released"]


class Change(NamedTuple):
    """What became of one task.

    Args:
        task: which.
        what: ``"grown"`` where it is, ``"moved"``, ``"left"`` as it was though it lacks something, ``"released"``.
        before: what it had.
        after: what it has.
        reason: in words.
    """

    task: Task
    what: What
    before: Choice
    after: Choice
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reconfiguration may cost.

    Args:
        cost: more that a task may cost in a window, in what it costs as planned.
        moves: tasks that may move in one reconfiguration.
    """

    cost: float = 1.0
    moves: int = 1000

    def __post_init__(self) -> None:
        if not self.cost >= 0:
            raise ValueError(f"cost must be at least 0, got {self.cost}")
        if self.moves < 0:
            raise ValueError(f"moves must be at least 0, got {self.moves}")


class Reconfigurer:
    """One period of a plan, as it is changed.

    Args:
        placed: the plan.
        period: number of the period.
        limits: what a change may cost.
    """

    def __init__(self, placed: Placed, period: int, limits: Limits | None = None) -> None:
        self.demands: Demands = placed.demands
        self.limits = limits or Limits()
        self.now: dict[Task, Choice] = {
            task: choice for task, choices in placed.served.items() if (choice := choices[period]) is not None
        }
        """What each task has."""
        self._planned = {task: choice.cost for task, choice in self.now.items()}
        # Of each task what it is served for: of one job some may have grown, and others not.
        self._rates = {task: self.demands.jobs[task.job].rate for task in self.now}
        self._used: dict[tuple[str, str], float] = {}
        for task, choice in self.now.items():
            self._count(task, choice, 1.0)

    def meet(self, rates: Mapping[str, float]) -> list[Change]:
        """Serves what is expected now.

        Args:
            rates: samples a second for each task, by job; as it was for those that are not named.

        Raises:
            ValueError: if there is no such job, or a rate is not positive.
        """
        for name, rate in rates.items():
            if name not in self.demands.jobs:
                raise ValueError(f"rates must be of the jobs {', '.join(self.demands.jobs)}, got {name!r}")
            if not rate > 0:
                raise ValueError(f"job {name}: rate must be positive, got {rate}")
        wanted = {task: rates.get(task.job, rate) for task, rate in self._rates.items()}
        less = [task for task, rate in self._rates.items() if wanted[task] < rate - EXACT]
        more = [task for task, rate in self._rates.items() if wanted[task] > rate + EXACT]
        changes = [change for task in less if (change := self._shrunk(task, wanted[task])) is not None]
        more.sort(key=lambda task: (self.now[task].units * (1 - wanted[task] / self._rates[task]), task))
        moves = 0
        for task in more:
            change = self._grown(task, wanted[task], moves)
            moves += change.what == "moved"
            changes.append(change)
        return changes

    def _shrunk(self, task: Task, rate: float) -> Change | None:
        before = self.now[task]
        after = self._as_it_is(task, self._job(task, rate))
        self._count(task, before, -1.0, self._job(task))
        self._take(task, self._job(task, rate), after)
        return (
            None
            if after == before
            else Change(task, "released", before, after, "less comes in: gives back what it had more")
        )

    def _grown(self, task: Task, rate: float, moves: int) -> Change:
        before, job, bigger = self.now[task], self._job(task), self._job(task, rate)
        self._count(task, before, -1.0, job)
        after = self._as_it_is(task, bigger)
        if self._fits(bigger, after):
            self._take(task, bigger, after)
            return Change(task, "grown", before, after, f"there is room in {before.place}")
        planned = self._planned[task]
        short = self._short(bigger, after)
        if not job.moves:
            why = f"{short} are free in {before.place}, and it must not move"
        elif moves >= self.limits.moves:
            why = f"{short} are free in {before.place}, and {moves} have moved already"
        else:
            others = [one for one in self.demands.choices(bigger) if one.accuracy >= before.accuracy - EXACT]
            fitting = [one for one in others if one.place != before.place and self._fits(bigger, one)]
            best = min(fitting, key=lambda one: (one.cost, one.place), default=None)
            if best is not None and best.cost - planned <= self.limits.cost * planned + EXACT:
                self._take(task, bigger, best)
                return Change(task, "moved", before, best, f"{short} are free in {before.place}, {best.place} has room")
            elsewhere = "no other place has room" if best is None else (
                f"{best.place} would cost {best.cost / planned:.2f} times what was planned"
            )  # fmt: skip
            why = f"{short} are free in {before.place}, and {elsewhere}"
        self._take(task, job, before)
        return Change(task, "left", before, before, why)

    def _short(self, job: PlacedJob, choice: Choice) -> str:
        """What is short at a place, in words."""
        for what, amount in taken(job, choice).items():
            free = room_of(self.demands, choice.place, what) - self._used.get((choice.place, what), 0.0)
            if amount > free + EXACT:
                return f"{max(free, 0.0):g} of {amount:g} {what}"
        return "none"

    def _as_it_is(self, task: Task, job: PlacedJob) -> Choice:
        """The same place, type and level with as much as it needs now."""
        kept = self.now[task]
        return next(
            one
            for one in self.demands.every(job)
            if (one.place, one.gpu, one.level) == (kept.place, kept.gpu, kept.level)
        )

    def _job(self, task: Task, rate: float | None = None) -> PlacedJob:
        job = self.demands.jobs[task.job]
        return replace(job, rate=self._rates[task] if rate is None else rate)

    def _fits(self, job: PlacedJob, choice: Choice) -> bool:
        return all(
            self._used.get((choice.place, what), 0.0) + amount <= room_of(self.demands, choice.place, what) + EXACT
            for what, amount in taken(job, choice).items()
        )

    def _take(self, task: Task, job: PlacedJob, choice: Choice) -> None:
        self.now[task], self._rates[task] = choice, job.rate
        self._count(task, choice, 1.0, job)

    def _count(self, task: Task, choice: Choice, sign: float, job: PlacedJob | None = None) -> None:
        for what, amount in taken(job or self.demands.jobs[task.job], choice).items():
            key = choice.place, what
            self._used[key] = self._used.get(key, 0.0) + sign * amount
