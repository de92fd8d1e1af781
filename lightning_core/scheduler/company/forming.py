"""Forming companies: after the policy's plan, which waiting job trains beside which that has a share.

Rules

1. A job that has a share of a device takes beside it the one that waits there, or shares the device, with which both
   do the most together, and further ones if that pays too. Where several have a share, those that do the most come
   first.
2. It takes none that the device's memory does not hold, and none that makes it, or a job that waits for it, late that
   was in time without it.
3. What is not known is tried for a moment: if it may pay, and as long as what trials have lost is a small part of the
   time of the devices. A job whose throughput alone is not known gets half of the other's share for that.
4. What turns out not to pay ends; what pays stays until something else is better by a margin.
5. Jobs that have shares of their own train beside each other only if none does less than with its share alone.
6. Where a plan leaves devices unused on purpose, as for fixed shares, all train alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import Beside
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.saved_state import Stateful
from lightning_core.scheduler.allocation import Caps, Devices
from lightning_core.scheduler.company.chances import Effect, Member, Prospects
from lightning_core.scheduler.company.paces import Paces
from lightning_core.scheduler.device_memory import Needs
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.tables.table import JobTable

# Work done together, as a multiple of turns, from which on it pays to begin, and below which it ends.
PAYS, STILL_PAYS = 1.06, 1.0
# Further work that another company must promise before it takes the place of one that pays, and seconds before that.
BETTER, STAYS = 0.05, 8.0
# Doubt about the work done together above which it is tried before it is believed.
UNSURE = 0.08
# Doubts by which a company is given the benefit of the doubt when it is tried.
HOPE = 1.0
# Seconds of training after which a company has been tried, and those after which it is given up without.
TRIED, GIVEN_UP = 2.0, 20.0
# Seconds without a batch after which a training does not move beside others, or this many of its batches alone.
STUCK, STUCK_BATCHES = 3.0, 10.0
# Seconds of training alone, and batches, after which the throughput is known; and seconds after which it is old.
ALONE, ALONE_BATCHES, OLD = 0.5, 3, 900.0
# Seconds for which a job may be given half of a device to be seen alone.
LONE_TRIAL = 30.0
# Part of the time of the devices that trials may lose, and seconds that they may lose in any case.
MAY_LOSE, FIRST_LOSS = 0.012, 4.0
# Jobs in time, by weight, that a company may be expected to cost when it begins, and while it lasts.
COSTS, STILL_COSTS = 0.0, 0.05
# Work, as a multiple of turns, that one more job in time is worth.
IN_TIME = 1.0
# Times as long as a trial that an unknown company must be able to last.
WORTH_IT = 4.0
# Score of no company.
NONE = 0.0
# Rounding error of sums of shares and of parts of the memory.
TOLERANCE = 1e-9
# Part of the work with a share of its own that a job must do beside others that have one.
ALL_OF_IT = 0.98
# Jobs of one device that are looked at, and jobs that train at once.
MAX_LOOKED_AT, MAX_AT_ONCE = 16, 4


class Companies(NamedTuple):
    """Which jobs of a round train beside which; arrays of shape ``(n,)``."""

    group: IntArray
    """Number of its group; 0 for none."""
    pace: FloatArray
    """Expected pace: 1 alone."""
    portion: FloatArray
    """Part of the time in which its group trains that counts as its own: 1 alone; of a group they sum to 1."""
    share: FloatArray
    """Share of its devices; that of the allocation but for trials."""
    finish: FloatArray
    """Expected time at which the target is reached, scheduler time."""
    seen_alone: BoolArray
    """Whether it has a share for a moment, so that its throughput alone is known."""


class _Trainee(NamedTuple):
    """One job that may train beside others."""

    at: int
    """Its place in the round."""
    row: int
    family: str
    share: float
    request: Beside
    known: bool
    """Whether its throughput alone is known."""
    left: float
    """Seconds of work left, alone on the device."""
    memory: float
    """Part of the device's memory that it has now: while it trains if it has a share, while it is held if not."""
    more: float
    """Part that it needs beyond that to train."""


class _Match(NamedTuple):
    """A job that has a share, with those who might train beside it."""

    members: list[_Trainee]
    """Those who might train at once, the one that has the share first; it alone if no one should."""
    score: float
    """Expected work of all at once, as a multiple of turns, with the benefit of the doubt, and what it does to
    deadlines."""
    together: float = 1.0
    """Expected work."""
    paces: Sequence[float] = ()
    """Expected pace of each."""
    effect: Effect | None = None
    unsure: bool = False
    wanted: bool = False
    """Whether one of them asks for it always."""


class _RoomOfGroups:
    """What groups of jobs hold of the devices, and what they may hold at most.

    Args:
        caps: What they may hold.
        held: Devices that each job has a share of, shape ``(n,)``.
    """

    def __init__(self, caps: Caps, held: FloatArray) -> None:
        self._of, self._most = caps.of, caps.most
        self._held = np.bincount(np.asarray(caps.of), held, len(caps.most)).tolist()

    def change(self, members: Sequence[_Trainee], counts: Sequence[float]) -> dict[int, float]:
        """Return what each group would hold if so much of a device counted as each member's own."""
        would: dict[int, float] = {}
        for one, part in zip(members, counts, strict=True):
            group = self._of[one.at]
            would[group] = would.get(group, self._held[group]) + part - one.share
        return would

    def allows(self, members: Sequence[_Trainee], counts: Sequence[float]) -> bool:
        """Return whether no group would hold more than it may, or than it does now."""
        would = self.change(members, counts)
        return all(devices <= max(self._most[group], self._held[group]) + TOLERANCE for group, devices in would.items())

    def take(self, members: Sequence[_Trainee], counts: Sequence[float]) -> None:
        """Count so much of a device as each member's own."""
        for group, devices in self.change(members, counts).items():
            self._held[group] = devices


class Forming(Stateful):
    """Forms companies, and keeps account of what trials have lost."""

    STATE = ("paces", "_lost", "_time", "_at")

    def __init__(self) -> None:
        self.paces = Paces()
        self._lost = self._time = self._at = 0.0

    def form(
        self, round: Round, plan: Plan, view: JobView, share: FloatArray, homes: Sequence[Devices] | None,
        memory: Needs | None, caps: Caps | None = None,
    ) -> Companies:  # fmt: skip
        """Return the companies of a round.

        Args:
            round: The round.
            plan: The policy's plan.
            view: The jobs as the policy sees them.
            share: Share of its devices that each job is allocated, shape ``(n,)``.
            homes: Devices of each job; None if all are on the only one.
            memory: Memory that each needs; None if that limits none.
            caps: Devices that the groups of its jobs may have; None if they are not limited.
        """
        n = len(round)
        result = Companies(
            np.zeros(n, np.int64), np.ones(n), np.ones(n), share.copy(), round.expected_finish(plan, view),
            np.zeros(n, np.bool_),
        )  # fmt: skip
        if round.settings.beside is Beside.NEVER or not plan.work_conserving:
            return result
        self._count(round)
        crowded = [there for there in _trainees(round, plan, view, share, homes, memory).values() if len(there) > 1]
        if crowded:
            may_try = self._lost <= MAY_LOSE * self._time + FIRST_LOSS
            room = None if caps is None else _RoomOfGroups(caps, share * round.table.size[round.rows])
            matching = _Matching(round, self.paces, Prospects(view, plan, share, round.now), room, may_try, result)
            for there in crowded:
                matching.match(there)
        return result

    def part(self, table: JobTable, row: int) -> None:
        """Note that the trainings beside which a job is do not run together with it."""
        self.paces.part([table.jobs[other].family for other in table.members(int(table.beside[row])).tolist()])

    def _note_stuck(self, table: JobTable, members: IntArray, now: float) -> None:
        """Note that trainings do not run together, if one of them has not moved in far more time than a batch takes."""
        for row in members.tolist():
            throughput = float(table.throughput(np.array([row]))[0])
            waits = now - float(table.company_since[row]) > max(STUCK, STUCK_BATCHES / throughput)
            if waits and table.batches[row] == table.company_batches[row] and not table.in_slow_phase[row]:
                self.part(table, row)
                return

    def _count(self, round: Round) -> None:
        """Count the time of the devices, and that of companies that lose, since the round before."""
        table, rows, passed = round.table, round.rows, max(round.now - self._at, 0.0)
        self._at = round.now
        self._time += passed * float(table.share[rows].sum())
        groups = table.beside[rows]
        for group in np.unique(groups[groups > 0]).tolist():
            of = rows[groups == group]
            self._note_stuck(table, of, round.now)
            families = [table.jobs[row].family for row in of.tolist()]
            if sum(self.paces.expect(one, _without(families, k)).pace for k, one in enumerate(families)) < 1.0:
                self._lost += passed * float(table.share[of].sum())


class _Matching:
    """Decides for the devices of one round who trains beside whom.

    Args:
        round: The round.
        paces: What is known of paces.
        prospects: What becomes of the jobs of the round.
        room: What groups of jobs may hold; None if they are not limited.
        may_try: Whether what is not known may be tried.
        result: The companies, to which those that are formed are written.
    """

    def __init__(
        self, round: Round, paces: Paces, prospects: Prospects, room: _RoomOfGroups | None, may_try: bool,
        result: Companies,
    ) -> None:  # fmt: skip
        self._table, self._now = round.table, round.now
        self._paces, self._prospects, self._room, self._may_try = paces, prospects, room, may_try
        self._result = result

    def match(self, there: list[_Trainee]) -> None:
        """Form the companies of one device.

        Args:
            there: Jobs of the device that may train beside others, in the order of the plan.
        """
        able = [one for one in there if one.share > 0 and one.known]
        free = 1.0 - sum(one.memory for one in there)
        while able and len(there) > 1:
            chosen = max((self._choose(host, there, free) for host in able), key=lambda choice: choice.score)
            used = chosen.members
            if len(used) < 2:
                return
            if unseen := next((one for one in used if not one.known), None):
                used = [used[0], unseen] if self._see_alone(used[0], unseen) else [unseen]
            else:
                free -= sum(one.more for one in used)
                self._join(chosen)
            there = [one for one in there if one not in used]
            able = [one for one in able if one not in used]

    def _choose(self, host: _Trainee, there: Sequence[_Trainee], free: float) -> _Match:
        """Return the best company of a job that has a share."""
        table = self._table
        alone = best = _Match([host], NONE)
        others = [one for one in there if one is not host]
        present = [one for one in others if table.beside[one.row] == table.beside[host.row] > 0]
        if present and (now := self._weigh([host, *present], free, STILL_COSTS)) is not None:
            since = self._now - float(table.company_since[host.row])
            untried = since < GIVEN_UP and not self._is_tried(now.members)
            if now.wanted or untried or (now.together >= PAYS and since < STAYS):
                return now
            if now.together >= STILL_PAYS:
                best = now._replace(score=max(now.score + BETTER, PAYS))
        options = [[host, one] for one in others]
        if best is not alone and len(best.members) < MAX_AT_ONCE:
            options += [[*best.members, one] for one in others if one not in best.members]
        for members in options:
            choice = self._weigh(members, free, COSTS)
            if choice is None or choice.score <= (best.score if choice.wanted else max(best.score, PAYS)):
                continue
            may_be_tried = self._may_try and min(one.left for one in members) >= WORTH_IT * TRIED
            if choice.wanted or not choice.unsure or may_be_tried:
                best = choice
        return best

    def _weigh(self, members: list[_Trainee], free: float, costs: float) -> _Match | None:
        """Return what some jobs promise; None if they do not fit, or cost others their share or their deadlines.

        Args:
            members: The job that has the share, and those beside it.
            free: Part of the device's memory that is free.
            costs: Jobs in time, by weight, that it may be expected to cost.
        """
        families = [one.family for one in members]
        if sum(one.more for one in members) > free + TOLERANCE or not self._paces.run_together(families):
            return None
        expected = [self._paces.expect(family, _without(families, k)) for k, family in enumerate(families)]
        paces = [one.pace for one in expected]
        together, share = sum(paces), sum(one.share for one in members)
        if self._room is not None and not self._room.allows(members, _divided(share, paces)):
            return None
        own = [one.share / share for one in members]
        if sum(part > 0 for part in own) > 1 and any(
            pace < ALL_OF_IT * part for pace, part in zip(paces, own, strict=True)
        ):
            return None
        beside = [Member(one.at, pace) for one, pace in zip(members[1:], paces[1:], strict=True)]
        effect = self._prospects.effect(members[0].at, share, paces[0], beside)
        if effect.value < -costs:
            return None
        doubt = math.hypot(*(one.pace * one.doubt for one in expected))
        wanted, unsure = any(one.request is Beside.ALWAYS for one in members), doubt > UNSURE
        promise = together + HOPE * doubt if unsure else together
        if wanted:
            promise = max(promise, PAYS)
        if promise < STILL_PAYS:
            return None
        return _Match(members, promise + IN_TIME * effect.value, together, paces, effect, unsure, wanted)

    def _is_tried(self, members: Sequence[_Trainee]) -> bool:
        families = [one.family for one in members]
        return all(self._paces.seconds(one, _without(families, k)) >= TRIED for k, one in enumerate(families))

    def _join(self, chosen: _Match) -> None:
        (host, *others), paces, effect, result = chosen.members, chosen.paces, chosen.effect, self._result
        assert effect is not None  # there are others
        portions = _divided(1.0, paces)
        if self._room is not None:
            self._room.take(chosen.members, _divided(sum(one.share for one in chosen.members), paces))
        for one, pace, portion in zip(chosen.members, paces, portions, strict=True):
            result.group[one.at] = int(self._table.ordinal[host.row]) + 1
            result.pace[one.at], result.portion[one.at] = pace, portion
        result.finish[host.at] += effect.host
        for one, end in zip(others, effect.others, strict=True):
            if end < math.inf:
                result.finish[one.at] = self._now + end

    def _see_alone(self, host: _Trainee, one: _Trainee) -> bool:
        """Let a job train alone in half of another's time, unless that has been tried for long; return whether."""
        table, half = self._table, host.share / 2
        if np.isnan(table.trial_since[one.row]):
            table.trial_since[one.row] = self._now
        if self._now - table.trial_since[one.row] > LONE_TRIAL or one.share:
            return False
        if self._room is not None:
            if not self._room.allows([host, one], [half, half]):
                return False
            self._room.take([host, one], [half, half])
        self._result.share[one.at] = self._result.share[host.at] = half
        self._result.seen_alone[one.at] = True
        return True


def _trainees(
    round: Round, plan: Plan, view: JobView, share: FloatArray, homes: Sequence[Devices] | None, memory: Needs | None
) -> dict[int, list[_Trainee]]:
    """Return the jobs of each device that may train beside others, in the order of the plan."""
    table, rows, settings = round.table, round.rows, round.settings
    able = ~round.excluded & (table.last_report[rows] > 0) & (table.size[rows] == 1) & ~table.recovering[rows]
    if plan.capped is not None:
        able &= ~plan.capped
    known = (table.recent_busy[rows] >= ALONE) & (table.recent_batches[rows] >= ALONE_BATCHES)
    known &= round.now - table.alone_at[rows] <= OLD
    found: dict[int, list[_Trainee]] = {}
    left_out = 0
    for at in plan.order.tolist():
        if not able[at]:
            continue
        row = int(rows[at])
        home = (0,) if homes is None else homes[at]
        if len(home) != 1 or home != table.home[row]:
            continue  # its process is not there yet
        there = found.setdefault(home[0], [])
        if len(there) >= MAX_LOOKED_AT and not table.beside[row]:
            left_out += 1
            if left_out >= MAX_LOOKED_AT * settings.devices:
                break
            continue
        job = table.jobs[row]
        if (request := settings.beside_of(job)) is Beside.NEVER:
            continue
        has, trains = (0.0, 0.0) if memory is None else (float(memory.held[at]), float(memory.training[at]))
        if share[at]:
            has = trains
        left = float(view.work[at])
        left = math.inf if math.isnan(left) else left
        one = _Trainee(at, row, job.family, float(share[at]), request, bool(known[at]), left, has, trains - has)
        there.append(one)
    return found


def _divided(share: float, paces: Sequence[float]) -> list[float]:
    """Return how much of a share counts as each one's own: as much as it does of the work."""
    return [share * pace / sum(paces) for pace in paces]


def _without(families: Sequence[str], place: int) -> list[str]:
    return [family for k, family in enumerate(families) if k != place]
