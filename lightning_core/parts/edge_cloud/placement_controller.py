"""The placement controller: the location of each job in each period, and moves when more arrives than planned.

The integer program that plans a day runs elsewhere, and takes a second. Its result is given to the pool
(:class:`~lightning_core.parts.edge_cloud.day_plan.PlanGiven`). From then on each task of the plan is a job, whose
location and number of devices the plan requests. A GPU of the plan is a device. A task that is not present in a period
is held, and its memory freed. A task that moves saves, leaves and resumes, as with any other change of devices.

If more arrives than planned, and tasks have no room to grow, the period is replanned here, with each move weighed
(:mod:`lightning_core.parts.edge_cloud.placement.replanner`), or changed by the published heuristic if the plan says so.

If the plan says which forecaster to use, the demand of each step is noted as it was told, the next steps are forecast,
and the period is changed for the most that is forecast in them (the published predictor and reconfiguration, as one
loop).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.control import Ask, Asker, Rights, WallClock
from lightning_core.core.events import Event, PartEvent, Submit
from lightning_core.core.limits import MAX_DEVICES, shown
from lightning_core.core.names import listed
from lightning_core.core.pool_view import PoolView
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import StateError
from lightning_core.core.validation import made
from lightning_core.parts.edge_cloud.day_plan import DayPlan, DemandSeen, PlanEvent, PlanGiven
from lightning_core.parts.edge_cloud.placement import RECONFIGURERS
from lightning_core.parts.edge_cloud.placement.demands import Choice
from lightning_core.parts.edge_cloud.placement.plan import Task, TaskPlacement
from lightning_core.parts.edge_cloud.placement.predictor import MAX_SEEN, PREDICTORS, highest_ahead, keep_newest
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits, Reconfigurer
from lightning_core.parts.edge_cloud.plan_data import placement_of

PLAN = Asker("plan")


class PlacementController:
    """Holds the jobs of a pool to a plan, period by period, and moves them where demand exceeds the plan.

    The last demand continues in the next period, where the plan's own locations are tried first. If less arrives than
    planned, the planned devices stay reserved. A plan that is over, or was given and begins later, asks for nothing.
    One that repeats has no beginning: it holds at once.

    Example::

        >>> from lightning_core.testing.controller_conformance import MadeUpPool
        >>> from lightning_core.parts.edge_cloud.plan_data import plan_of
        >>> from lightning_core.parts.edge_cloud.placement import Demands, Gpu, Level, Node, PlacedJob, plan
        >>> from lightning_core.core.events import Tick
        >>> demands = Demands(("night", "day"), {"gpu": Gpu(2.0)}, {"fp32": Level(0.9, {"gpu": 1500.0})},
        ...                   {"harbour": Node({"gpu": 1})}, {"cars": PlacedJob((0, 1), rate=15.0, sample=0.4)})
        >>> controller, pool = PlacementController(), MadeUpPool(["cars"])
        >>> pool.locations = ("harbour", "cloud")
        >>> given = PlanGiven(plan_of(plan(demands).placement, 28800.0, 0.0))
        >>> [ask.words for ask in controller.handle(given, 60.0, pool)], controller.wakeup()
        (['hold, and free its memory: not planned for night'], 28800.0)
        >>> [ask.words for ask in controller.handle(Tick(), 28800.0, pool)], controller.wakeup()
        (['location cloud, devices 1: planned for day'], 57600.0)
    """

    rights = Rights("the placement plan", holds=True, places=True, sizes=True, rank=80, is_pure=True)

    def __init__(self) -> None:
        self._plan: DayPlan | None = None
        self._placement: TaskPlacement | None = None
        self._limits = ReconfigurationLimits()
        self._tasks: dict[Task, str] = {}  # the pool's job of each
        self._ahead: float | None = None  # of scheduler time, the wall clock
        self._now = 0.0
        self._rates: dict[str, float] = {}
        self._turn: int | None = None  # the period that has begun, counted on where the plan repeats
        self._stands: Reconfigurer | None = None
        self._asked: dict[str, Ask] = {}  # also of jobs that are not there yet
        self._short: dict[str, str] = {}  # why a job has fewer devices than arrives for
        self._step: int | None = None  # the step in progress, counted from the plan's beginning, where it forecasts
        self._seen: dict[str, list[float]] = {}  # what arrived in the steps before, by job of the plan
        self._foreseen: dict[str, float] = {}  # the most that is forecast for the next steps

    def handle(self, event: Event | PlanEvent, now: float, pool: PoolView) -> Sequence[Ask]:
        self._now = now
        names: Collection[str] = {job.name: None for job in event.jobs} if isinstance(event, Submit) else ()
        if isinstance(event, WallClock):
            self._ahead = event.seconds + event.utc_offset - now
        has_stepped = self._note_steps(now)
        is_news = isinstance(event, PlanEvent) and self.changes(event, pool)
        if is_news and isinstance(event, PlanGiven):
            self._give(event.plan)
        if is_news and isinstance(event, DemandSeen):
            self._rates |= dict(event.rates)
        turn = self._turn_at(now)
        if is_news or has_stepped or turn != self._turn:
            before = dict(self._asked)
            if turn != self._turn or isinstance(event, PlanGiven):
                if not isinstance(event, PlanGiven):
                    self._scale_seen(turn)
                self._begin(turn)
            if has_stepped:
                self._look_ahead(now)
            self._serve()
            every = dict.fromkeys([*before, *self._asked, *names])
            names = [name for name in every if name in names or before.get(name) != self._asked.get(name)]
        self._step = self._step_at(now)
        asks = (self._asked.get(name, Ask(name, PLAN)) for name in names)
        return [ask for ask in asks if pool.is_active(ask.job)]

    def wakeup(self) -> float | None:
        if self._plan is None or (begins := self._begins()) is None:
            return None
        if self._turn is not None:
            edge = begins + (self._turn + 1) * self._plan.length
            return edge if self._step is None else min(edge, begins + (self._step + 1) * self._plan.terms.step)
        return begins if begins > self._now else None

    def check(self, event: PlanEvent, pool: PoolView) -> None:
        """Check that a plan, or a demand, fits.

        Raises:
            ValueError: If the pool lacks a location of the plan, its demands do not go together, or the plan that
                stands has no such job.
        """
        if isinstance(event, PlanGiven):
            if event.plan is not None:
                for location in event.plan.locations:
                    if location not in pool.locations:
                        there = listed(sorted(set(pool.locations)))
                        raise ValueError(f"nodes of a plan must be locations of the pool, {there}, "
                                         f"got {shown(location)}")  # fmt: skip
                placement_of(event.plan)
            return
        if self._placement is None:
            raise ValueError(f"there is no plan in which {shown(event.rates[0][0])} could be")
        for name, _ in event.rates:
            if name not in self._placement.demands.jobs:
                jobs = listed(self._placement.demands.jobs)
                raise ValueError(f"rates must be of jobs of the plan, {jobs}, got {shown(name)}")

    def changes(self, event: PlanEvent, pool: PoolView) -> bool:
        """Return whether an event says something new, and fits."""
        if isinstance(event, PlanGiven):
            known = event.plan == self._plan
        else:
            known = all(self._rates.get(name) == rate for name, rate in event.rates)
        try:
            self.check(event, pool)
        except ValueError:
            return False
        return not known

    def describe(self) -> dict[str, Any] | None:
        """Return a description of the current plan as JSON values; None if there is none."""
        if self._plan is None:
            return None
        foreseen = {"foreseen": dict(self._foreseen)} if self._plan.terms.forecast else {}
        return {
            "period": None if self._turn is None else self._plan.periods[self._turn % len(self._plan.periods)],
            "next": self.wakeup(),
            "asked": {
                name: [ask.hold, ask.location, ask.devices, str(ask.reason)] for name, ask in self._asked.items()
            },
            "short": dict(self._short),
            **foreseen,
        }

    def state(self) -> dict[str, Any]:
        return {
            "plan": dict(PartEvent.of(PlanGiven(self._plan)).body),
            "ahead": self._ahead,
            "now": self._now,
            "rates": dict(self._rates),
            "turn": self._turn,
            "stands": None if self._stands is None else self._stands.state(),
            "asked": [encode_event(ask) for ask in self._asked.values()],
            "short": dict(self._short),
            **({"steps": [self._step, self._seen, self._foreseen]} if self._seen or self._step is not None else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        try:
            given = made(PlanGiven, dict(state["plan"]))
            self._give(given.plan)
            self._ahead, self._now, self._rates = state["ahead"], state["now"], dict(state["rates"])
            self._begin(state["turn"])
            if self._stands is not None:
                self._stands.restore(state["stands"])
            asked = [ask for text in state["asked"] if isinstance(ask := decode_event(text), Ask)]
            self._asked = {ask.job: ask for ask in asked}
            self._short = dict(state["short"])
            self._step, seen, foreseen = state.get("steps", (None, {}, {}))
            self._seen, self._foreseen = {name: list(series) for name, series in seen.items()}, dict(foreseen)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a plan: {type(error).__name__}: {error}") from None

    def _give(self, plan: DayPlan | None) -> None:
        known = self._plan
        self._plan, self._placement, self._limits, self._tasks = plan, None, ReconfigurationLimits(), {}
        if plan is not None:
            self._placement, self._limits = placement_of(plan)
            self._tasks = {Task(task.job, task.number): task.name for task in plan.tasks}
        jobs = {} if self._placement is None else self._placement.demands.jobs
        self._rates = {name: rate for name, rate in self._rates.items() if name in jobs}
        # Steps of another length are another series.
        same = known is not None and plan is not None and known.terms.step == plan.terms.step
        self._seen = {name: series for name, series in self._seen.items() if same and name in jobs}
        self._step, self._foreseen = None, {}

    def _begins(self) -> float | None:
        """Return when the first period begins, in scheduler time; None while that is not known."""
        assert self._plan is not None
        if not self._plan.on_wall:
            return self._plan.begins
        return None if self._ahead is None else self._plan.begins - self._ahead

    def _turn_at(self, now: float) -> int | None:
        """Return the period that has begun by now; None if there is none."""
        if self._plan is None or (begins := self._begins()) is None:
            return None
        turn = _number_at(now, begins, self._plan.length)
        return turn if self._plan.terms.cycle or 0 <= turn < len(self._plan.periods) else None

    def _step_at(self, now: float) -> int | None:
        """Return the step that has begun by now, if the plan forecasts and a period has begun; else None."""
        if self._plan is None or not self._plan.terms.forecast or self._turn is None:
            return None
        begins = self._begins()
        return None if begins is None else _number_at(now, begins, self._plan.terms.step)

    def _note_steps(self, now: float) -> bool:
        """Note the demand of the steps that have ended, as it was told last in them; return whether one has."""
        step = self._step_at(now)
        if step is None or self._step is None or step <= self._step or self._placement is None:
            return False
        assert self._turn is not None
        assert self._plan is not None
        ended, period = min(step - self._step, MAX_SEEN), self._turn % len(self._plan.periods)
        for name, job in self._placement.demands.jobs.items():
            series = self._seen.setdefault(name, [])
            series += [self._rates.get(name, job.during(period).rate)] * ended
            keep_newest(series)
        return True

    def _scale_seen(self, turn: int | None) -> None:
        """Put what arrived in proportion to the next period: a change that is planned is no trend."""
        if self._placement is None or self._turn is None or turn is None:
            return
        jobs, periods = self._placement.demands.jobs, len(self._placement.demands.periods)
        for name, series in self._seen.items():
            was, comes = (jobs[name].during(one % periods).rate for one in (self._turn, turn))
            self._seen[name] = series if was == comes else [comes / was * rate for rate in series]

    def _look_ahead(self, now: float) -> None:
        """Forecast the next steps, as far as they are in this period."""
        self._foreseen = {}
        if self._plan is None or self._turn is None or (begins := self._begins()) is None:
            return
        if not self._plan.terms.forecast:
            return
        terms, ends = self._plan.terms, begins + (self._turn + 1) * self._plan.length
        steps = math.ceil((ends - now) / terms.step)
        for name, series in self._seen.items():
            self._foreseen[name] = highest_ahead(PREDICTORS[terms.forecast], series, steps)

    def _begin(self, turn: int | None) -> None:
        """Begin a period: send every job where the plan has it; without a period, ask for nothing any more."""
        self._turn, self._stands, self._asked, self._short = turn, None, {}, {}
        if turn is None or self._plan is None or self._placement is None:
            return
        period = turn % len(self._plan.periods)
        name = self._plan.periods[period]
        self._stands = RECONFIGURERS[self._plan.terms.reconfigure](self._placement, period, self._limits)
        for task, job in self._tasks.items():
            if (choice := self._stands.now.get(task)) is not None:
                self._asked[job] = _sent(job, choice, Reason("part", text=f"planned for {name}"))
            else:
                reason = Reason("part", text=f"not planned for {name}")
                self._asked[job] = Ask(job, PLAN, hold=True, release=True, reason=reason)

    def _serve(self) -> None:
        """Change the period for the arrivals."""
        if self._stands is None or not (self._rates or self._foreseen):
            return
        planned, self._short = self._stands.planned_rate, {}
        told = {name: max(self._rates.get(name, 0.0), planned(name)) for name in {**self._rates, **self._foreseen}}
        wanted = {name: max(rate, self._foreseen.get(name, 0.0)) for name, rate in told.items()}
        for change in self._stands.serve(wanted):
            job, name = self._tasks[change.task], change.task.job
            words = change.reason
            if name in wanted and wanted[name] > told[name]:
                words += f"; {wanted[name]:.3g} samples/s are forecast"
            if change.after != change.before:
                self._asked[job] = _sent(job, change.after, Reason("part", text=words))
            if change.kind in ("left", "partly"):
                self._short[job] = words


def _number_at(now: float, begins: float, length: float) -> int:
    """Return which of the stretches of some length, counted from a beginning, has begun by now."""
    number = math.floor((now - begins) / length)
    # The same sum as in wakeup(): the division may round to the other side of an edge.
    while begins + (number + 1) * length <= now:
        number += 1
    while begins + number * length > now:
        number -= 1
    return number


def _sent(job: str, choice: Choice, reason: Reason) -> Ask:
    # Bounded by the limit on requests: an absurd rate must not stop the pool.
    devices = min(max(round(choice.gpu_count), 1), MAX_DEVICES)
    return Ask(job, PLAN, location=choice.location, devices=devices, reason=reason)
