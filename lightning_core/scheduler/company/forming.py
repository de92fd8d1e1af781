"""Forming companies: after the policy's plan, which waiting job trains beside which that has a share.

Rules

1. A job that has a share of a device is asked first for whom it takes beside it, in the order of the plan. It takes the
   job there that waits, or shares the device, with which both do the most together, and further ones if that pays too.
2. It takes none that the device's memory does not hold, and none that makes it, or a job that waits for it, late that
   was in time without it.
3. What is not known is tried for a moment: if it may pay, and as long as what trials have lost is a small part of the
   time of the devices. A job whose throughput alone is not known has half of a device for itself for that.
4. What turns out not to pay ends; what pays stays until something else is better by a margin.
5. Jobs that have shares of their own train beside each other only if none does less than with its share alone.
6. Where a plan leaves devices unused on purpose, as for fixed shares, all train alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
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


class _Trainee:
    """One job that may train beside others."""

    __slots__ = (
        "at",
        "deadline",
        "family",
        "finish",
        "known",
        "left",
        "memory",
        "more",
        "rank",
        "request",
        "row",
        "share",
    )

    def __init__(self, at: int, row: int, share: float) -> None:
        self.at, self.row, self.share = at, row, share
        self.family = ""
        self.known = False
        self.request = Beside.AUTO
        self.left = math.inf  # seconds alone on the device
        self.memory = self.more = 0.0  # parts of the device's memory: while it trains, and beyond what it has held


class _CompanyChoice(NamedTuple):
    """Those who might train beside a job."""

    others: list[_Trainee]
    together: float
    """Expected work of all at once, as a multiple of turns."""
    score: float
    """The same with the benefit of the doubt, and what it does to deadlines."""
    effect: Effect | None = None
    unsure: bool = False
    wanted: bool = False


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
        return all(devices <= max(self._most[group], self._held[group]) + 1e-9 for group, devices in would.items())

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
        self._room: _RoomOfGroups | None = None  # of the round

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
            np.zeros(n, np.int64), np.ones(n), np.ones(n), share.copy(), round.expected_finish(plan, view)
        )
        if round.settings.beside is Beside.NEVER or not plan.work_conserving:
            return result
        self._count(round)
        trainees = self._trainees(round, plan, view, share, homes, memory)
        if any(len(there) > 1 for there in trainees.values()):
            prospects = Prospects(view, plan, share, round.now)
            self._room = None if caps is None else _RoomOfGroups(caps, share * round.table.size[round.rows])
            for there in trainees.values():
                self._form(round, prospects, there, result)
        return result

    def part(self, table: JobTable, row: int) -> None:
        """Note that the trainings beside which a job is do not run together with it."""
        self.paces.part([table.jobs[other].family for other in table.members(int(table.beside[row])).tolist()])

    # ------------------------------------------------------------------------------------------------ who may

    def _trainees(
        self, round: Round, plan: Plan, view: JobView, share: FloatArray, homes: Sequence[Devices] | None,
        memory: Needs | None,
    ) -> dict[int, list[_Trainee]]:  # fmt: skip
        """Return the jobs of each device that may train beside others, in the order of the plan."""
        table, rows, settings = round.table, round.rows, round.settings
        able = ~round.excluded & (table.last_report[rows] > 0) & (table.size[rows] == 1) & ~table.recovering[rows]
        if plan.capped is not None:
            able &= ~plan.capped
        throughput, spent = table.throughput(rows), table.recent_busy[rows]
        fresh = (spent >= ALONE) & (table.recent_batches[rows] >= ALONE_BATCHES)
        fresh &= round.now - table.alone_at[rows] <= OLD
        found: dict[int, list[_Trainee]] = {}
        full = 0
        for at in plan.order.tolist():
            if not able[at]:
                continue
            row = int(rows[at])
            home = (0,) if homes is None else homes[at]
            if len(home) != 1 or home != table.home[row]:
                continue  # its process is not there yet
            there = found.setdefault(home[0], [])
            member = table.beside[row] > 0
            if not member and len(there) >= MAX_LOOKED_AT:
                full += 1
                if full >= MAX_LOOKED_AT * settings.devices:
                    break
                continue
            job = table.jobs[row]
            request = settings.beside_of(job)
            if request is Beside.NEVER:
                continue
            one = _Trainee(at, row, float(share[at]))
            one.request, one.family = request, job.family
            one.known = bool(fresh[at] and throughput[at] > 0)
            work = float(view.work[at])
            one.left = work if work == work else math.inf
            if memory is not None:
                one.memory = float(memory.training[at])
                one.more = one.memory - float(memory.held[at])
            there.append(one)
        return found

    # ------------------------------------------------------------------------------------------------ one device

    def _form(self, round: Round, prospects: Prospects, there: list[_Trainee], result: Companies) -> None:
        able = [one for one in there if one.share > 0 and one.known][:MAX_LOOKED_AT]
        free = 1.0 - sum(one.memory if one.share else one.memory - one.more for one in there)
        while able and len(there) > 1:
            choices = [(host, self._choose(round, prospects, host, _but(there, host), free)) for host in able]
            host, chosen = max(choices, key=lambda choice: choice[1].score)
            if not chosen.others:
                return
            if unseen := [one for one in chosen.others if not one.known]:
                used = [host, unseen[0]] if self._see_alone(round, host, unseen[0], result) else [unseen[0]]
            else:
                used = [host, *chosen.others]
                free -= sum(one.more for one in chosen.others if not one.share)
                self._join(round, host, chosen, result)
            there = [one for one in there if one not in used]
            able = [one for one in able if one not in used]

    def _choose(
        self, round: Round, prospects: Prospects, host: _Trainee, others: list[_Trainee], free: float
    ) -> _CompanyChoice:
        """Return those who train beside a job; with none if none should."""
        table = round.table
        present = [one for one in others if table.beside[one.row] == table.beside[host.row] > 0]
        best = _CompanyChoice([], 0.0, NONE)
        may_try = self._lost <= MAY_LOSE * self._time + FIRST_LOSS
        if present and (now := self._weigh(prospects, host, present, free, STILL_COSTS)) is not None:
            since = round.now - float(table.company_since[host.row])
            if now.wanted or not (since >= GIVEN_UP or self._is_tried(host, present)):
                return now
            if now.together >= PAYS and since < STAYS:
                return now
            if now.together >= STILL_PAYS:
                best = now._replace(score=max(now.score + BETTER, PAYS))
        options = [[one] for one in others]
        if best.others and len(best.others) + 2 <= MAX_AT_ONCE:
            options += [[*best.others, one] for one in others if one not in best.others]
        for option in options:
            choice = self._weigh(prospects, host, option, free, COSTS)
            if choice is None or choice.score <= (best.score if choice.wanted else max(best.score, PAYS)):
                continue
            lasts = min(host.left, *(one.left for one in option))
            if choice.wanted or not choice.unsure or (may_try and lasts >= WORTH_IT * TRIED):
                best = choice
        return best if best.score > PAYS or best.together >= STILL_PAYS else _CompanyChoice([], 0.0, NONE)

    def _weigh(
        self, prospects: Prospects, host: _Trainee, others: list[_Trainee], free: float, costs: float
    ) -> _CompanyChoice | None:
        """Return what some jobs promise beside another; None if they do not fit, or cost others their deadlines.

        Args:
            prospects: What becomes of the jobs of the round.
            host: The job that has the share.
            others: Those beside it.
            free: Part of the device's memory that is free.
            costs: Jobs in time, by weight, that it may be expected to cost.
        """
        if sum(one.more for one in others if not one.share) > free + 1e-9:
            return None
        if not self.paces.run_together([one.family for one in (host, *others)]):
            return None
        members = [host, *others]
        if self._room is not None and not self._room.allows(members, self._counts(members)):
            return None
        if self._takes_from_one(members):
            return None
        effect = self._effect(prospects, host, others)
        if effect.value < -costs:
            return None
        together, doubt = self._together(host, others)
        wanted = any(one.request is Beside.ALWAYS for one in (host, *others))
        unsure = doubt > UNSURE
        promise = together + HOPE * doubt if unsure else together
        if wanted:
            promise = max(promise, PAYS + 1e-3)
        if promise < STILL_PAYS:
            return None
        return _CompanyChoice(others, together, promise + IN_TIME * effect.value, effect, unsure, wanted)

    def _takes_from_one(self, members: Sequence[_Trainee]) -> bool:
        """Return whether several have a share, and one of them would do less than with its own alone."""
        share = sum(one.share for one in members)
        if sum(one.share > 0 for one in members) < 2:
            return False
        paces = self._pace_list(members)
        return any(pace * share < ALL_OF_IT * one.share for one, pace in zip(members, paces, strict=True))

    def _pace_list(self, members: Sequence[_Trainee]) -> list[float]:
        """Return the expected pace of each member of a company."""
        return [self.paces.expect(one.family, [x.family for x in members if x is not one]).pace for one in members]

    def _counts(self, members: Sequence[_Trainee]) -> list[float]:
        """Return how much of the device would count as each member's own."""
        paces, share = self._pace_list(members), sum(one.share for one in members)
        return [pace / sum(paces) * share for pace in paces]

    def _together(self, host: _Trainee, others: Sequence[_Trainee]) -> tuple[float, float]:
        """Return the work that some jobs do at once, as a multiple of turns, and the doubt about it."""
        members = [host, *others]
        total = variance = 0.0
        for one in members:
            pace, doubt = self.paces.expect(one.family, [other.family for other in members if other is not one])
            total += pace
            variance += (pace * doubt) ** 2
        return total, math.sqrt(variance)

    def _is_tried(self, host: _Trainee, others: Sequence[_Trainee]) -> bool:
        members = [host, *others]
        return all(
            self.paces.seconds(one.family, [other.family for other in members if other is not one]) >= TRIED
            for one in members
        )

    def _effect(self, prospects: Prospects, host: _Trainee, others: Sequence[_Trainee]) -> Effect:
        """Return what a company does to the chances of all."""
        members = [host, *others]
        paces, share = self._pace_list(members), sum(one.share for one in members)
        beside = [Member(one.at, pace) for one, pace in zip(others, paces[1:], strict=True)]
        return prospects.effect(host.at, share, paces[0], beside)

    def _join(self, round: Round, host: _Trainee, chosen: _CompanyChoice, result: Companies) -> None:
        others, effect = chosen.others, chosen.effect
        assert effect is not None  # there are others
        members = [host, *others]
        paces = self._pace_list(members)
        if self._room is not None:
            self._room.take(members, self._counts(members))
        for one, pace in zip(members, paces, strict=True):
            result.group[one.at] = int(round.table.ordinal[host.row]) + 1
            result.pace[one.at], result.portion[one.at] = pace, pace / sum(paces)
        result.finish[host.at] += effect.host
        for one, end in zip(others, effect.others, strict=True):
            if end < math.inf:
                result.finish[one.at] = round.now + end

    def _see_alone(self, round: Round, host: _Trainee, one: _Trainee, result: Companies) -> bool:
        """Let a job train alone in half of another's time, unless that has been tried for long; return whether."""
        table = round.table
        if np.isnan(table.trial_since[one.row]):
            table.trial_since[one.row] = round.now
        if round.now - table.trial_since[one.row] > LONE_TRIAL or one.share:
            return False
        halves = [host.share / 2] * 2
        if self._room is not None:
            if not self._room.allows([host, one], halves):
                return False
            self._room.take([host, one], halves)
        result.share[one.at] = result.share[host.at] = host.share / 2
        return True

    # ------------------------------------------------------------------------------------------------ accounts

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


def _but(there: Sequence[_Trainee], host: _Trainee) -> list[_Trainee]:
    return [one for one in there if one is not host]


def _without(families: Sequence[str], place: int) -> list[str]:
    return [family for k, family in enumerate(families) if k != place]
