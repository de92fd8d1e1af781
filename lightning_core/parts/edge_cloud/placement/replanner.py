"""Replanner of a period with more arrivals than planned, which weighs each move against the present placement.

Where all tasks have room to grow where they are, they grow. Else an integer program places every task of the period:
first as many tasks as possible get the capacity that they lack, then the cost is minimal, with a price for each task
that moves. No task becomes less accurate, and one that lacks nothing only stays unchanged or moves. Tasks that remain
short are then handled one at a time, as in :mod:`.reconfigurer`.

Tasks with equal needs and placements are counted, not listed, as in :mod:`.planner`. The scheduler waits for the
answer, so a large program is cut to its core: the options with the smallest extra cost over the relaxation, in which
tasks are divisible. A small one keeps all options, and is solved to the gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lightning_core.parts.edge_cloud.placement.demands import EXACT, Choice, TaskNeeds
from lightning_core.parts.edge_cloud.placement.milp_model import ConstraintRows
from lightning_core.parts.edge_cloud.placement.plan import Task, capacity_of, usage
from lightning_core.parts.edge_cloud.placement.reconfigurer import Reconfigurer, TaskChange

# Relative gap at which a solution counts as optimal, and most nodes of the search.
GAP, MAX_SEARCH_NODES = 1e-3, 100
# Most options of a program. Where there are more, tasks are served one at a time: it would take longer than a second or
# so.
MAX_OPTIONS = 20_000
# Price of leaving a task short, as a multiple of the dearest option.
SHORT = 10.0


class Option(NamedTuple):
    """A possible placement of a task after the change.

    Attributes:
        choice: Its location and way of being served.
        job: Its job, with the demand that is served then.
        moves: Whether it leaves where it stands.
        price: Cost for a window, with the price of the move.
        lacks: Part of its demand that is not served.
    """

    choice: Choice
    job: TaskNeeds
    moves: bool
    price: float
    lacks: float


class Replanner(Reconfigurer):
    """The current state of a period of a plan, replanned whenever a task has no room to grow at its location.

    The arguments are those of :class:`~lightning_core.parts.edge_cloud.placement.reconfigurer.Reconfigurer`.
    """

    core = 250
    """Options in the core of a program, beyond one for each group of tasks."""

    def _grow(self, more: Mapping[Task, float], moves: int = 0) -> list[TaskChange]:
        wanted = {task: self._job(task, more.get(task)) for task in self.now}
        crowded = self._crowded({task: wanted[task] for task in more})
        if not crowded:
            return super()._grow(more, moves)
        groups = self._alike(wanted)
        options = [self._options(tasks[0], wanted[tasks[0]]) for tasks in groups]
        too_many = sum(map(len, options)) > MAX_OPTIONS
        numbers = None if too_many else self._solved(groups, options)
        if numbers is None:
            return super()._grow(more, moves)
        found: dict[Task, Option] = {}
        for tasks, some, counts in zip(groups, options, numbers, strict=True):
            taken = [option for option, count in zip(some, counts, strict=True) for _ in range(count)]
            found |= zip(tasks, taken, strict=True)
        return self._take_over(more, found, crowded)

    def _crowded(self, wanted: Mapping[Task, TaskNeeds]) -> dict[str, str]:
        """Return the locations that cannot hold the grown demands of their tasks, each with the reason."""
        needed = dict(self._used)
        for task, job in wanted.items():
            for had, sign in ((self._job(task), -1.0), (job, 1.0)):
                choice = self.now[task] if sign < 0 else self._as_it_is(task, job)
                for resource, amount in usage(had, choice).items():
                    key = choice.location, resource
                    needed[key] = needed.get(key, 0.0) + sign * amount
        return {
            location: f"{location} has {has:g} {resource} and would need {amount:g}"
            for (location, resource), amount in needed.items()
            if amount > (has := capacity_of(self.demands, location, resource)) + EXACT
        }

    def _alike(self, wanted: Mapping[Task, TaskNeeds]) -> list[list[Task]]:
        """Return the tasks in groups with the same options."""
        groups: dict[tuple[object, ...], list[Task]] = {}
        for task, job in wanted.items():
            far = self.demands.cloud.delay > job.delay
            needs = replace(job, delay=0.0), far
            groups.setdefault((self.now[task], self._planned[task], self._rates[task], *needs), []).append(task)
        return list(groups.values())

    def _options(self, task: Task, job: TaskNeeds) -> list[Option]:
        """Return the cheapest options at each location on each type of GPU, and last the option of no change."""
        has, rate = self.now[task], self._rates[task]
        grows = job.rate > rate + EXACT
        best = {(has.location, has.gpu): self._as_it_is(task, job)} if grows else {}
        for one in self._choices(job):
            may = grows if one.location == has.location else job.moves
            if may and one.accuracy >= has.accuracy - EXACT and self._affordable(task, one):
                best.setdefault((one.location, one.gpu), one)
        price = self.limits.move_price * self._planned[task]
        options = []
        for one in best.values():
            moves = one.location != has.location
            options.append(Option(one, job, moves, one.cost + price * moves, 0.0))
        lacks = 1 - rate / job.rate if grows else 0.0
        return [*options, Option(has, replace(job, rate=rate), False, has.cost, lacks)]

    def _solved(self, groups: Sequence[Sequence[Task]], options: Sequence[Sequence[Option]]) -> list[list[int]] | None:
        """Return how many tasks of each group take each option; None if none was found."""
        from scipy.optimize import LinearConstraint, linprog, milp

        flat = [option for some in options for option in some]
        ends = np.cumsum([len(some) for some in options])
        once, room = ConstraintRows(), ConstraintRows()
        for tasks, some, end in zip(groups, options, ends.tolist(), strict=True):
            once.add([(column, 1.0) for column in range(end - len(some), end)], len(tasks), len(tasks))
        used: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for column, option in enumerate(flat):
            for resource, amount in usage(option.job, option.choice).items():
                used.setdefault((option.choice.location, resource), []).append((column, amount))
        for (location, resource), entries in used.items():
            if (has := capacity_of(self.demands, location, resource)) < math.inf:
                # The present placement fits, whatever the rounding of its sum.
                room.add(entries, -math.inf, max(has, self._used.get((location, resource), 0.0)))
        max_moves = min(self.limits.moves, len(self.now))
        room.add([(column, 1.0) for column, option in enumerate(flat) if option.moves], -math.inf, max_moves)
        short = SHORT * max(option.price for option in flat)
        price = np.array([option.price + short * (1 + option.lacks) * (option.lacks > 0) for option in flat])
        one, two = once.constraint(len(flat)), room.constraint(len(flat))
        relaxed = linprog(price, A_ub=two.A, b_ub=two.ub, A_eq=one.A, b_eq=one.ub)
        if relaxed.x is None:
            return None
        core = np.argsort(relaxed.lower.marginals, kind="stable")[: len(groups) + self.core]
        kept = np.union1d(core, ends - 1)
        found = milp(
            price[kept], integrality=np.ones(len(kept)),
            constraints=[LinearConstraint(rows.A[:, kept], rows.lb, rows.ub) for rows in (one, two)],
            options={"mip_rel_gap": GAP, "node_limit": MAX_SEARCH_NODES},
        )  # fmt: skip
        if found.x is None:
            return None
        counts = np.zeros(len(flat), int)
        counts[kept] = np.round(found.x)
        return [some.tolist() for some in np.split(counts, ends[:-1])]

    def _take_over(
        self, more: Mapping[Task, float], found: Mapping[Task, Option], crowded: Mapping[str, str]
    ) -> list[TaskChange]:
        """Apply the options of the tasks that change, then give the others the remaining room."""
        changed = {
            task: had for task, had in self.now.items() if found[task].moves or (task in more and not found[task].lacks)
        }
        for task, had in changed.items():
            self._count(self._job(task), had, -1.0)
        for task in changed:
            self._take(task, found[task].job, found[task].choice)
        changes = [_change(task, had, found[task].choice, crowded.get(had.location)) for task, had in changed.items()]
        changes.sort(key=lambda change: change.kind != "moved")
        short = {task: rate for task, rate in more.items() if found[task].lacks}
        return changes + super()._grow(short, sum(change.kind == "moved" for change in changes))


def _change(task: Task, before: Choice, after: Choice, crowded: str | None) -> TaskChange:
    """Return the change of a task; ``crowded`` names the shortage of its location, if any."""
    here = before.location
    if after.location != here:
        why = f"{crowded}; {after.location} has room" if crowded else f"{after.location} costs less than {here}"
        return TaskChange(task, "moved", before, after, why)
    if after.gpu == before.gpu:
        return TaskChange(task, "grown", before, after, f"there is room in {here}")
    why = f"{crowded}; {after.gpu_count:g} {after.gpu} are free" if crowded else f"{after.gpu} costs less in {here}"
    return TaskChange(task, "grown", before, after, why)
