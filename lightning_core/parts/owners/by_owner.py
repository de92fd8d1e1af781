"""The plan of a round by owner: each owner's jobs are planned as on a pool of its own, of as many devices as are its.

Rules

1. The policy says who first and how much among the jobs of one owner, and never sees those of another.
2. What an owner may hold is its fair share (:mod:`.fair_share`). Its jobs have it in the order of their plan, those
   without a share in it after them if the policy leaves nothing unused.
3. What the jobs of an owner leave, for want of a size that fits or because their policy asks for less, goes to the next
   jobs of the others, those first that hold least for their weight.
4. Jobs that can only be on some of the devices divide these by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.reasons import index
from lightning_core.parts.owners.dealing import Dealing, DeviceSubset, rooms
from lightning_core.parts.owners.fair_share import EPSILON, Claims, allotments, fair_shares
from lightning_core.planning.best_effort import fewest, slowed
from lightning_core.planning.merged_plans import joined
from lightning_core.scheduler.round import Round

# Times that owners are planned in a round at most: where one asks for less than it may hold, others may hold more.
MAX_PASSES = 3


NO_PLAN = Plan(
    order=np.zeros(0, np.int64),
    share=np.zeros(0),
    finish=np.zeros(0),
    codes=np.zeros(0, np.int64),
    waiting=np.zeros(0, np.int64),
    numbers=np.zeros((0, 2)),
)


class Entitled(NamedTuple):
    """The owners of a round's jobs: arrays of shape ``(k,)``, one entry per owner."""

    of: IntArray
    """Owner of each job, shape ``(n,)``."""
    quota: FloatArray
    weight: FloatArray
    cap: FloatArray
    """Maximum number of devices."""
    owed: FloatArray
    """How far it lags behind its share, in device-seconds."""
    spent: BoolArray
    """Whether its budget is spent."""
    budget: FloatArray
    """Device-hours of its budget."""
    renewed: FloatArray
    """Seconds until its budget is renewed; inf for never."""


class Planned(NamedTuple):
    """The plan of a round, and what each owner may have."""

    plan: Plan
    share: FloatArray
    """Fair share of each owner in devices, shape ``(k,)``."""
    content: BoolArray
    """Whether it is all that its jobs can use and may have now, shape ``(k,)``."""
    limits: BoolArray
    """Whether its jobs could use more, shape ``(k,)``."""


def plan_by_owner(round: Round, view: JobView, owners: Entitled, policies: Sequence[Policy]) -> Planned:
    """Plan the jobs of several owners.

    Args:
        round: The round.
        view: Its jobs.
        owners: Their owners.
        policies: The policy of each owner.
    """
    k = len(owners.weight)
    size, least = _sizes(round, view, owners)
    usable = ~round.excluded & (least <= np.minimum(owners.cap[owners.of], round.devices))
    places = _places(round, usable)
    room, out_of_room = rooms(places, owners.of, owners.weight, size)
    demand = np.bincount(owners.of, np.where(usable, size, 0), k) - out_of_room
    smallest = np.full(k, np.inf)
    np.minimum.at(smallest, owners.of[usable], least[usable].astype(np.float64))
    claims = Claims(np.minimum(demand, owners.cap), owners.quota, owners.weight, owners.spent)
    rows = [np.flatnonzero(owners.of == owner) for owner in range(k)]
    plans = [NO_PLAN] * k
    planned_on = np.full(k, -1.0)
    for _ in range(MAX_PASSES):
        share = fair_shares(claims, round.devices)
        allotted = allotments(claims, share, smallest, owners.owed, round.devices)
        content = share >= claims.demand - EPSILON
        on = _devices(share, np.where(len(view.speedup) > 0, allotted, share), content)
        for owner in np.flatnonzero(on > planned_on + EPSILON).tolist():
            plans[owner] = _plan_one(round, view.only(rows[owner]), rows[owner], policies[owner], on[owner])
        planned_on = np.maximum(on, planned_on)
        asked = np.array([_asked(plan, view.size[its]) for plan, its in zip(plans, rows, strict=True)])
        less = (asked < allotted - EPSILON) & (asked < claims.demand - EPSILON)
        if not less.any():
            break
        claims = claims._replace(demand=np.where(less, asked, claims.demand))
    plan = joined(view, plans, rows)
    conserving = np.array([one.work_conserving for one in plans])
    dealing = Dealing(plan, view.size, usable, owners.of, conserving, places, room)
    dealing.deal(allotted)
    dealing.lend(round.devices, owners.weight, owners.cap, owners.spent)
    merged = _merged(round, plan, dealing, owners)
    _explain(round, merged, plan.share, owners, share, content)
    return Planned(merged, share, content, ~content | (share >= owners.cap - EPSILON))


def _sizes(round: Round, view: JobView, owners: Entitled) -> tuple[IntArray, IntArray]:
    """Return the most and the fewest devices that each job can use, shapes ``(n,)``."""
    if not len(view.speedup):
        size = round.sizes(None)
        return (view.size, view.size) if size is None else (size, size)
    most = np.minimum(owners.cap[owners.of], round.devices).tolist()
    least = fewest(view)
    size = np.array(
        [max((n for n in one.sizes if n <= up), default=one.sizes[0])
         for one, up in zip(view.speedup, most, strict=True)], np.int64
    )  # fmt: skip
    told = view.fixed_size > 0
    return np.where(told, view.fixed_size, size), np.where(told, view.fixed_size, least)


def _places(round: Round, usable: BoolArray) -> list[DeviceSubset]:
    """Return the parts of the pool to which some of its jobs are bound."""
    table, settings, rows = round.table, round.settings, round.rows
    if settings.devices == 1:
        return []
    bound: dict[tuple[int, ...], list[int]] = {}
    for at in np.flatnonzero(usable & (table.pinned[rows] | bool(settings.locations))).tolist():
        job = table.jobs[rows[at]]
        devices = settings.devices_at(job.location) if job.device is None else (job.device,)
        if len(devices) < settings.devices:
            bound.setdefault(devices, []).append(at)
    return [DeviceSubset(len(set(devices) - round.unavailable), np.array(jobs)) for devices, jobs in bound.items()]


def _devices(share: FloatArray, whole: FloatArray, content: BoolArray) -> FloatArray:
    """Return how many devices the jobs of each owner are planned on: whole ones, or a part of one, shape ``(k,)``."""
    on = np.where(whole >= 1.0 - EPSILON, np.floor(whole + EPSILON), np.minimum(share, 1.0))
    return np.where(content, np.ceil(share - EPSILON), on)


def _plan_one(round: Round, jobs: JobView, rows: IntArray, policy: Policy, devices: float) -> Plan:
    """Return the plan of one owner's jobs; on a part of a device their work takes so much longer."""
    jobs = replace(jobs, devices=max(int(devices), 1))
    return round.only(rows).plan(policy, slowed(jobs, 1.0 - devices) if 0 < devices < 1 else jobs)


def _asked(plan: Plan, size: IntArray) -> float:
    """Return the devices that a plan asks for; inf if it has use for any."""
    return np.inf if plan.work_conserving else float((plan.share * (size if plan.size is None else plan.size)).sum())


def _merged(round: Round, plan: Plan, dealing: Dealing, owners: Entitled) -> Plan:
    """Return the plan with what was dealt, in the order of allocation.

    Jobs on several devices need them at once, and come first; shares of a device fill what whole ones leave, those of
    one owner together, as they add up to whole ones. An owner that lags comes first where not all of these fit. Jobs of
    one device, and those that wait, alternate by the weights of their owners.
    """
    n = len(round)
    dealt = np.array(dealing.share)
    size = dealing.size
    served = dealt > 0
    tier = np.select([round.excluded, ~served, dealt < 1.0, size > 1], [4, 3, 2, 0], 1)
    position = np.empty(n)
    for owner in range(len(owners.weight)):
        its = plan.order[owners.of[plan.order] == owner]
        position[its] = (np.arange(len(its)) + 1) / owners.weight[owner]
    lag = np.where((tier == 2) | (tier == 0), -owners.owed[owners.of], 0.0)
    together = np.where(tier == 2, owners.of, 0)
    order = np.lexsort((position, together, lag, owners.spent[owners.of], tier))
    return replace(plan, order=order, share=dealt, codes=plan.codes.copy(), waiting=plan.waiting.copy(),
                   numbers=plan.numbers.copy())  # fmt: skip


def _explain(
    round: Round, plan: Plan, asked: FloatArray, owners: Entitled, share: FloatArray, content: BoolArray
) -> None:
    """Write why jobs wait for their owner's share, and why one whose owner's budget is spent has devices."""
    of, size = owners.of, round.table.size[round.rows] if plan.size is None else plan.size
    spent, never = owners.spent[of], np.isinf(owners.renewed[of])
    at_cap = share[of] >= owners.cap[of] - EPSILON
    limited = (~content[of] | at_cap) & ((asked > 0) | (size > share[of]))
    waits = limited & ~round.excluded & (plan.share == 0)
    capped = waits & at_cap
    plan.waiting[waits], plan.waiting[capped] = index("owners.fair_share"), index("owners.cap")
    plan.waiting[waits & spent] = index("owners.budget")
    plan.waiting[waits & spent & never] = index("owners.budget_ends")
    plan.numbers[waits] = np.stack([share[of[waits]], np.full(np.count_nonzero(waits), round.devices)], axis=1)
    plan.numbers[capped, 0] = owners.cap[of[capped]]
    served = spent & (plan.share > 0)
    plan.codes[served] = index("owners.borrows")
    told = served | (waits & spent)
    plan.numbers[told] = np.stack([owners.budget[of[told]], np.where(never, 0.0, owners.renewed[of])[told]], axis=1)
