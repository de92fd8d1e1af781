"""From a plan to grants: devices are dealt out, and what has changed is written down with its reason."""

from __future__ import annotations

import numpy as np

from lightning_core.core.answers import Grant
from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import Plan
from lightning_core.core.reasons import CODES, Reason, index
from lightning_core.scheduler.allocation import Dealer, Devices, deal_one, is_simple
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.table import NONE, JobTable

ONE_DEVICE = (0,)
PAUSED, TOLD_NONE = index("paused"), index("told_none")


def deal(
    table: JobTable,
    settings: Settings,
    rows: IntArray,
    plan: Plan,
    apart: BoolArray,
    out: BoolArray,
    gone: frozenset[int],
    now: float,
) -> tuple[FloatArray, list[Devices] | None]:
    """Who holds what, and where each may live.

    Args:
        table: of all jobs; only read.
        settings: of the scheduler.
        rows: of the jobs that have not ended.
        plan: of the policy, over these rows.
        apart: which of them hold nothing now.
        out: which may not live anywhere.
        gone: devices that no launched job may live on.
        now: scheduler time.

    Returns:
        Duties, shape ``(n,)``, and homes; None for all on the one device there is.
    """
    launched = table.launched[rows]
    roomy = settings.resident is None or int(launched.sum()) <= settings.resident
    if settings.devices == 1 and roomy and not gone and not apart.any() and is_simple(plan):
        return deal_one(plan), None
    homes = [() if leaves else table.home[row] for row, leaves in zip(rows.tolist(), out.tolist(), strict=True)]
    if gone:
        homes = [() if here and not gone.isdisjoint(home) else home for home, here in zip(homes, launched, strict=True)]
    within: list[Devices] = []
    if settings.locations:
        within = [settings.devices_at(table.jobs[row].location) for row in rows.tolist()]
        homes = [() if here and not set(home) <= set(some) else home
                 for home, some, here in zip(homes, within, launched, strict=True)]  # fmt: skip
    for at in np.flatnonzero(table.pinned[rows]).tolist():
        device = table.jobs[int(rows[at])].device
        homes[at] = homes[at] or (() if device is None else (device,))
    since = table.trained_at[rows]
    begun = np.isfinite(since) & (now - since < settings.stay) & ~apart
    size, resizes, smaller = _wanted(table, rows, plan, now), list[bool](), list[tuple[int, ...]]()
    if size is not None:  # whether it is worth it the policy has thought of, or a person
        begun &= size == [len(home) for home in homes]
        several = [table.speedups[row].sizes for row in rows.tolist()]
        resizes = [len(home) in some for home, some in zip(homes, several, strict=True)]
        if plan.size is None:  # a policy that chooses has chosen for all
            told = (table.told_size[rows] > 0).tolist()
            smaller = [tuple(n for n in some if n < wants) if one else ()
                       for some, wants, one in zip(several, size.tolist(), told, strict=True)]  # fmt: skip
    stays = (table.pinned[rows] | begun).tolist()
    sizes = (table.size[rows] if size is None else size).tolist()
    dealer = Dealer(
        settings.devices, settings.slots, homes, stays, sizes, launched.tolist(), gone, resizes, within, smaller
    )
    return dealer.deal(plan, frozenset(np.flatnonzero(apart).tolist()))


def _wanted(table: JobTable, rows: IntArray, plan: Plan, now: float) -> IntArray | None:
    """Devices that each should train on; None if nobody chooses: as many as it has always had."""
    told = table.told_size[rows]
    if plan.size is not None or not told.any():
        return plan.size
    return np.where(told > 0, np.where(table.fixed_until[rows] > now, table.good_size[rows], told), table.size[rows])


def grant(
    table: JobTable,
    settings: Settings,
    rows: IntArray,
    plan: Plan,
    share: FloatArray,
    homes: list[Devices] | None,
    apart: BoolArray,
    gone: frozenset[int],
    closing: bool,
    now: float,
) -> list[Grant]:
    """Writes down what was dealt, each with its reason.

    Args:
        table: of all jobs.
        settings: of the scheduler.
        rows: of the jobs that have not ended.
        plan: of the policy, over these rows.
        share: as dealt, shape ``(n,)``.
        homes: as dealt; None for all on the one device there is.
        apart: which of them hold nothing now.
        gone: devices that no launched job may live on.
        closing: whether the pool is being taken down.
        now: scheduler time.

    Returns:
        The grants that differ from those before.
    """
    served = share > 0
    codes = np.where(served, plan.codes, plan.waiting)
    leftover = served & (plan.share == 0) & ~table.late[rows]
    codes[leftover] = index("left_over")
    numbers = plan.numbers
    if settings.locations:
        there = np.array([len(settings.devices_at(table.jobs[row].location)) for row in rows.tolist()])
        bound = ~served & (plan.share > 0) & (there < settings.devices)
        numbers = numbers.copy()
        codes[bound], numbers[bound, 0] = index("location_full"), there[bound]
    if gone:
        lived = np.array([not gone.isdisjoint(table.home[row]) for row in rows.tolist()])
        short = ~served & table.launched[rows] & ((plan.share > 0) | lived)
        numbers = numbers.copy()
        codes[short], numbers[short] = index("device_gone"), (len(gone), 0.0)
    if apart.any():
        numbers = numbers.copy()
        waits = np.where(table.begin[rows[apart]] > now, index("not_begun"), index("recovering"))
        codes[apart] = np.where(table.paused[rows[apart]], PAUSED, waits)
        codes[apart & (table.told_size[rows] == NONE) & ~table.paused[rows]] = TOLD_NONE
        codes[apart & table.late[rows] & table.holds[rows] & ~table.paused[rows]] = index("late_held")
        if closing:
            codes[apart & table.launched[rows]] = index("closing")
        numbers[apart, 0] = table.wakes(rows[apart]) - now
    capped = np.zeros(len(rows), np.bool_) if plan.capped is None else plan.capped & served
    changed = (np.abs(share - table.share[rows]) > 1e-9) | (capped != table.capped[rows])
    if homes is None:
        moved = ~table.housed[rows]
    else:
        moved = np.array([home != table.home[row] for row, home in zip(rows.tolist(), homes, strict=True)])
    changed |= moved
    new = ~changed & (codes != table.code[rows])
    table.share[rows] = np.where(changed, share, table.share[rows])  # what was granted, to the bit
    table.code[rows] = codes
    table.capped[rows] = capped
    unserved = index("device_gone"), index("location_full")
    for at in np.flatnonzero(moved).tolist():
        row = int(rows[at])
        home = ONE_DEVICE if homes is None else homes[at]
        if table.home[row] and not home and not apart[at] and codes[at] not in unserved:
            codes[at] = index("makes_room")
        leaves = table.launched[row] and table.last_report[row] and table.home[row]
        table.home[row] = home
        table.housed[row] = bool(home)
        table.trained_at[row] = np.inf
        table.resizing_since[row] = now if leaves and served[at] else np.nan
        table.resizing_from[row] = table.incarnation[row]
    table.resizing_since[rows[~served]] = np.nan
    if plan.size is not None or table.told_size[rows].any():
        trains = rows[served].tolist()
        table.size[trains] = [len(table.home[row]) for row in trains]
    directives, names, lives = table.directives, table.names, table.home
    grants = []
    spot = np.flatnonzero(changed)
    table.obeys[rows[spot]] = False
    for row, part, code, pair, most in zip(
        *(x[spot].tolist() for x in (rows, share, codes, numbers, capped)), strict=True
    ):
        granted = Grant(
            names[row],
            directives[row][1] + 1,
            part,
            lives[row],
            Reason(CODES[code], tuple(pair), _asker(table, row, code)),
            most,
        )
        directives[row] = granted
        grants.append(granted)
    begins = rows[served & np.isinf(table.trained_at[rows])]
    table.trained_at[begins] = now
    # The share stays, its reason does not: no new version, nobody need be told, but whoever asks hears it.
    for at in np.flatnonzero(new).tolist():
        row = int(rows[at])
        text = _asker(table, row, int(codes[at]))
        directives[row] = directives[row]._replace(reason=Reason(CODES[codes[at]], tuple(numbers[at].tolist()), text))
    return grants


def _asker(table: JobTable, row: int, code: int) -> str:
    """Return who asked for what a reason speaks of, in words; empty if nobody did."""
    if code == PAUSED:
        return table.paused_by[row].words
    return table.told_by[row].words if code == TOLD_NONE else ""
