"""From a plan to grants: devices are allocated, and what has changed is granted with its reason."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.answers import Grant
from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import Spread
from lightning_core.core.plans import Plan
from lightning_core.core.reasons import CODES, Reason, index
from lightning_core.scheduler.allocation import Allocator, Caps, Devices, allocate_one, is_simple
from lightning_core.scheduler.asked_levels import asker
from lightning_core.scheduler.company.forming import Companies
from lightning_core.scheduler.device_memory import Needs, needs
from lightning_core.scheduler.forecasting import resize_costs
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.kinds.places import come_to
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.tables.table import NONE, JobTable

FIRST_DEVICE = (0,)
# A job moves to as many devices of one machine, or to more devices, if that saves so many times what the move costs.
WORTH_MOVING = 2.0
# Shares that differ by no more are the same.
SHARE_TOLERANCE = 1e-9
PAUSED, TOLD_NONE = ASKED = index("paused"), index("told_none")
BESIDE = index("beside")
WITH_TEXT = frozenset((*ASKED, BESIDE))


class Allocation(NamedTuple):
    """What each job of a round holds."""

    share: FloatArray
    """Share of its devices; shape ``(n,)``."""
    homes: list[Devices] | None
    """Devices of each; None if all are on the only device."""
    memory: Needs | None = None
    """Memory that each needs; None if that limits none."""
    lacking: BoolArray | None = None
    """Whether a job holds nothing for want of memory."""
    companies: Companies | None = None
    """Which jobs train beside which; None if none does."""


def allocate(round: Round, plan: Plan, caps: Caps | None = None, rates: KindRates | None = None) -> Allocation:
    """Allocate the devices as a plan asks for them.

    Args:
        round: The round; its table is only read.
        plan: The plan for all jobs of the round.
        caps: Devices that the groups of its jobs may have; None if they are not limited.
        rates: How fast kinds of trainings are on kinds of devices; None to gather no job on one machine.
    """
    table, settings, rows = round.table, round.settings, round.rows
    excluded = round.excluded
    launched = table.launched[rows]
    uncrowded = settings.resident is None or int(launched.sum()) <= settings.resident
    memory = needs(table, rows, settings.device_memory)
    uncrowded &= memory is None or memory.all_fit
    free = caps is None and not round.unavailable and not excluded.any()
    if settings.devices == 1 and uncrowded and free and is_simple(plan):
        return Allocation(allocate_one(plan), None, memory)
    within: list[Devices] = []
    if settings.locations or round.pool.differ:
        kinds = [-1] * len(rows) if plan.kind is None else plan.kind.tolist()
        within = [round.pool.allowed(table.jobs[row], kind if plan.kind is None or kind >= 0 else _any_one(round, row))
                  for row, kind in zip(rows.tolist(), kinds, strict=True)]  # fmt: skip
    homes = _homes(round, within)
    since = table.trained_at[rows]
    settling = np.isfinite(since) & (round.now - since < settings.stay) & ~excluded
    size, resizes, smaller = round.sizes(plan.size), list[bool](), list[tuple[int, ...]]()
    elastic, grows = _elastic(round, plan, homes)
    if elastic.any() and size is None:
        size = table.size[rows].copy()
    if size is not None:  # the policy, or a person, has weighed the cost of a resize
        settling &= size == [len(home) for home in homes]
        several = [table.speedups[row].sizes for row in rows.tolist()]
        resizes = [len(home) in some for home, some in zip(homes, several, strict=True)]
        # A policy that chooses sizes has chosen for all, but for on which machines devices are free.
        if plan.size is None or round.pool.on_several_machines:
            told = ((table.told_size[rows] > 0) | elastic | round.pool.on_several_machines).tolist()
            smaller = [tuple(n for n in some if n < wants) if one else ()
                       for some, wants, one in zip(several, size.tolist(), told, strict=True)]  # fmt: skip
    allocator = Allocator(
        devices=settings.devices,
        slots=settings.slots_per_device,
        home=homes,
        stays=(table.pinned[rows] | settling).tolist(),
        size=(table.size[rows] if size is None else size).tolist(),
        launched=launched.tolist(),
        unavailable=round.unavailable,
        resizes=resizes,
        within=within,
        smaller=smaller,
        memory=() if memory is None else memory.training.tolist(),
        held=() if memory is None else memory.held.tolist(),
        caps=caps,
        grows=grows,
        **_machines(round, rates),
    )
    share, homes = allocator.allocate(plan, frozenset(np.flatnonzero(excluded).tolist()))
    lacking = None
    if memory is not None:
        lacking = ~excluded & np.array(allocator.lacks_memory, np.bool_)
    return Allocation(share, homes, memory, lacking)


def _elastic(round: Round, plan: Plan, homes: list[Devices]) -> tuple[BoolArray, list[tuple[int, ...]]]:
    """Return which jobs may have fewer devices than is usual, as some are not there, and who may have how many more.

    Args:
        round: The round.
        plan: The plan; if it says how many devices each job should have, none may have others.
        homes: Devices that each job may keep.
    """
    table, rows = round.table, round.rows.tolist()
    none = np.zeros(len(rows), np.bool_)
    if plan.size is not None or not (full := round.full_sizes()).any():
        return none, []
    present = np.array([len(home) for home in homes])
    fewer = (present > 0) & (present < full)
    if not round.unavailable and not fewer.any():
        return none, []
    costs, grows = resize_costs(round), [tuple[int, ...]() for _ in rows]
    for at in np.flatnonzero(fewer).tolist():
        row, speed = rows[at], table.speedups[rows[at]]
        now = speed.throughput(present[at])
        larger = (n for n in speed.sizes if present[at] < n <= full[at])
        grows[at] = tuple(n for n in larger if _is_worth(table, row, now / speed.throughput(n), float(costs[at])))
    return (full > 0) & bool(round.unavailable), grows


def _is_worth(table: JobTable, row: int, slower: float, cost: float) -> bool:
    """Return whether it pays to move a job to other devices.

    Args:
        table: All jobs.
        row: Row of the job.
        slower: Its throughput where it is, as a fraction of that there; NaN if unknown.
        cost: Seconds that the move costs.
    """
    return not table.work_mid[row] * (1.0 - slower) <= WORTH_MOVING * cost


def _machines(round: Round, rates: KindRates | None) -> dict[str, Any]:
    """Return what an allocator needs to know of machines; nothing if all devices are on one."""
    table, pool = round.table, round.pool
    if not pool.on_several_machines:
        return {}
    rows = round.rows.tolist()
    gathers = [False] * len(rows)
    if rates is not None and (apart := np.flatnonzero(table.apart[round.rows] == 1)).size:
        costs = resize_costs(round)
        for at in apart.tolist():
            row, devices = rows[at], len(table.home[rows[at]])
            slower, _ = rates.apart(table.jobs[row].family, devices, pool.rates_name(int(table.kind[row])))
            gathers[at] = _is_worth(table, row, math.exp(slower), float(costs[at]))
    spreads = [table.jobs[row].spread is Spread.POOL for row in rows]
    return {"machines": pool.machine_of, "spreads": spreads, "gathers": gathers}


def _any_one(round: Round, row: int) -> int:
    """Return the one kind of devices on which a job waits that no kind has room for; -1 if it may be on none."""
    job, pool = round.table.jobs[row], round.pool
    allowed, here = pool.allowed_kinds(job), pool.kind_of(round.table.home[row])
    return here if here in allowed else max(allowed, key=lambda kind: len(pool.allowed(job, kind)), default=-1)


def _homes(round: Round, within: list[Devices]) -> list[Devices]:
    """Return the devices that each job may keep: none that are unavailable, at another location or wrongly apart."""
    table, rows, unavailable = round.table, round.rows.tolist(), round.unavailable
    homes = [() if leaves else table.home[row] for row, leaves in zip(rows, round.evicted.tolist(), strict=True)]
    launched = table.launched[round.rows].tolist()
    if unavailable:
        homes = [() if here and not unavailable.isdisjoint(home) else home
                 for home, here in zip(homes, launched, strict=True)]  # fmt: skip
    if within:
        homes = [() if here and not set(home) <= set(some) else home
                 for home, some, here in zip(homes, within, launched, strict=True)]  # fmt: skip
    if round.pool.on_several_machines:
        homes = [() if here and table.jobs[row].spread is Spread.MACHINE and round.pool.are_apart(home) else home
                 for row, home, here in zip(rows, homes, launched, strict=True)]  # fmt: skip
    for at in np.flatnonzero(table.pinned[round.rows]).tolist():
        device = table.jobs[rows[at]].device
        homes[at] = homes[at] or (() if device is None else (device,))
    return homes


def grant(round: Round, plan: Plan, allocation: Allocation, rates: KindRates | None = None) -> list[Grant]:
    """Write an allocation to the table, each change with its reason; return the grants that differ from before.

    Args:
        round: The round.
        plan: The policy's plan for all jobs of the round.
        allocation: What each job holds.
        rates: How fast kinds of trainings are on kinds of devices; None where all devices are alike.
    """
    table, rows = round.table, round.rows
    share, homes, companies = allocation.share, allocation.homes, allocation.companies
    group = np.zeros(len(rows), np.int64) if companies is None else companies.group
    served = (share > 0) | (group > 0)
    codes, numbers = _reasons(round, plan, share > 0, allocation)
    capped = np.zeros(len(rows), np.bool_) if plan.capped is None else plan.capped & served
    moved = _moved(round, homes)
    changed = (np.abs(share - table.share[rows]) > SHARE_TOLERANCE) | (capped != table.capped[rows]) | moved
    changed |= _keep_company(round, companies)
    explained = ~changed & (codes != table.code[rows])
    table.share[rows] = np.where(changed, share, table.share[rows])  # what was granted, to the bit
    table.code[rows], table.number[rows], table.number_2[rows] = codes, numbers[:, 0], numbers[:, 1]
    table.capped[rows] = capped
    _move(round, homes, np.flatnonzero(moved), served, codes)
    if rates is not None and (round.pool.differ or round.pool.on_several_machines):
        for row in rows[moved].tolist():
            if table.home[row]:
                come_to(table, row, round.pool, rates)
    table.resizing_since[rows[~served]] = np.nan
    if homes is not None:
        trains = rows[served].tolist()
        table.size[trains] = [len(table.home[row]) for row in trains]
    directives, names, home = table.directives, table.names, table.home
    grants, at = list[Grant](), np.flatnonzero(changed)
    table.obeys[rows[at]] = False
    told = rows, share, codes, numbers[:, 0], numbers[:, 1], capped, group, table.pace[rows]
    columns = (column[at].tolist() for column in told)
    for row, granted_share, code, first, second, cap, beside, pace in zip(*columns, strict=True):
        before = directives[row]
        target = before.target if isinstance(before, Grant) else None
        reason = Reason(CODES[code], (first, second), _text(table, row, code) if code in WITH_TEXT else "")
        directives[row] = granted = Grant(
            names[row], before.version + 1, granted_share, home[row], reason, cap, target, beside, pace
        )
        grants.append(granted)
    begins = rows[served & np.isinf(table.trained_at[rows])]
    table.trained_at[begins] = round.now
    # Only the reason is new: the grant keeps its version and is not sent, but a query returns the new reason.
    for k in np.flatnonzero(explained).tolist():
        row = int(rows[k])
        text = _text(table, row, int(codes[k]))
        directives[row] = directives[row]._replace(reason=Reason(CODES[codes[k]], tuple(numbers[k].tolist()), text))
    return grants


def _keep_company(round: Round, companies: Companies | None) -> BoolArray:
    """Write which jobs train beside which to the table; return whose company has changed, shape ``(n,)``."""
    table, rows = round.table, round.rows
    before = table.beside[rows]
    if companies is None or not (before.any() or companies.group.any()):
        return np.zeros(len(rows), np.bool_)
    group = companies.group
    changed: BoolArray = group != before
    for number in np.unique(np.concatenate([group[changed], before[changed]])).tolist():
        if number:  # those who stay have other company too
            changed |= group == number
    table.beside[rows], table.pace[rows], table.portion[rows] = group, companies.pace, companies.portion
    table.company_since[rows[changed]], table.counts_from[rows[changed]] = round.now, False
    table.company_batches[rows[changed]] = table.batches[rows[changed]]
    for row in rows[changed].tolist():
        table.company_version[row] = table.directives[row].version + 1
    return changed


def _text(table: JobTable, row: int, code: int) -> str:
    """Return the text of a reason: beside whom, or who asked for what it speaks of; empty if no one did."""
    if code == BESIDE:
        return " and ".join(table.beside_names(row))
    if code not in ASKED:
        return ""
    return asker(table, row, "hold" if code == PAUSED else "devices")


def _reasons(round: Round, plan: Plan, served: BoolArray, allocation: Allocation) -> tuple[IntArray, FloatArray]:
    """Return why each job holds what it holds: codes, shape ``(n,)``, and their numbers, shape ``(n, 2)``."""
    table, settings, rows, excluded = round.table, round.settings, round.rows, round.excluded
    codes = np.where(served, plan.codes, plan.waiting)
    codes[served & (plan.share == 0) & ~round.late & ~round.best_effort] = index("left_over")
    numbers = plan.numbers
    memory, lacking, companies = allocation.memory, allocation.lacking, allocation.companies
    if (
        settings.locations
        or round.unavailable
        or excluded.any()
        or lacking is not None
        or companies is not None
        or (round.pool.on_several_machines)
    ):
        numbers = numbers.copy()
    if memory is not None:
        codes[served & memory.trial] = index("memory_trial")
    if memory is not None and lacking is not None and lacking.any():
        codes[lacking] = index("no_memory")
        of = float(settings.device_memory or 0)
        numbers[lacking] = np.stack([memory.training[lacking] * of, np.full(lacking.sum(), of)], axis=1)
    if settings.locations:
        at = [table.jobs[row].location for row in rows.tolist()]
        many = {location: len(settings.devices_at(location)) for location in set(at)}
        there = np.array([many[location] for location in at])
        bound = ~served & (plan.share > 0) & (there < settings.devices)
        codes[bound], numbers[bound, 0] = index("location_full"), there[bound]
    if round.pool.on_several_machines:
        _explain_machines(round, plan, ~served & (plan.share > 0) & ~excluded, codes, numbers)
    if round.unavailable:
        lost = np.array([not round.unavailable.isdisjoint(table.home[row]) for row in rows.tolist()])
        short = ~served & table.launched[rows] & ((plan.share > 0) | lost)
        codes[short], numbers[short] = index("device_gone"), (len(round.unavailable), 0.0)
    if excluded.any():
        waits = np.where(table.begin[rows[excluded]] > round.now, index("not_begun"), index("recovering"))
        codes[excluded] = np.where(round.paused[excluded], PAUSED, waits)
        codes[excluded & (table.told_size[rows] == NONE) & ~round.paused] = TOLD_NONE
        codes[excluded & round.late & ~round.goes_on & table.holds[rows] & ~round.paused] = index("late_held")
        if round.closing:
            codes[excluded & table.launched[rows]] = index("closing")
        numbers[excluded, 0] = table.wakes(rows[excluded]) - round.now
    if companies is not None:
        beside = ~served & (companies.group > 0)
        codes[beside] = BESIDE
        codes[companies.seen_alone] = index("seen_alone")
        numbers[beside] = np.stack([companies.pace[beside], np.zeros(beside.sum())], axis=1)
    return codes, numbers


def _explain_machines(round: Round, plan: Plan, waiting: BoolArray, codes: IntArray, numbers: FloatArray) -> None:
    """Write the reason of jobs that wait because no machine that is there has as many devices as they need."""
    table, pool = round.table, round.pool
    rows = round.rows[waiting].tolist()
    bound = np.array([table.jobs[row].spread is Spread.MACHINE for row in rows], np.bool_)
    sizes = table.size[rows] if plan.size is None else plan.size[waiting]
    most = pool.together([device for device in range(round.settings.devices) if device not in round.unavailable])
    at = np.flatnonzero(waiting)[bound & (sizes > most)]
    codes[at], numbers[at, 0], numbers[at, 1] = index("no_such_machine"), sizes[bound & (sizes > most)], most


def _moved(round: Round, homes: list[Devices] | None) -> BoolArray:
    """Return which jobs are allocated other devices than they have; shape ``(n,)``."""
    table, rows = round.table, round.rows
    if homes is None:
        return ~table.placed[rows]
    return np.array([home != table.home[row] for row, home in zip(rows.tolist(), homes, strict=True)])


def _move(round: Round, homes: list[Devices] | None, moved: IntArray, served: BoolArray, codes: IntArray) -> None:
    """Move jobs to their new devices; ``codes`` then says of a job that was evicted for others that it makes room."""
    table, rows, excluded = round.table, round.rows, round.excluded
    unserved = index("device_gone"), index("location_full")
    for at in moved.tolist():
        row = int(rows[at])
        home = FIRST_DEVICE if homes is None else homes[at]
        if table.home[row] and not home and not excluded[at] and codes[at] not in unserved:
            codes[at] = index("makes_room")
        leaves = table.launched[row] and table.last_report[row] and table.home[row]
        if home != table.home[row]:
            table.leave(row, home)
        table.home[row] = home
        table.placed[row] = bool(home)
        table.trained_at[row] = np.inf
        table.resizing_since[row] = round.now if leaves and served[at] else np.nan
        table.resizing_from[row] = table.incarnation[row]
