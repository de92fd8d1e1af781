"""What holds after every event, whatever happened: what no test should have to find out one by one."""

from __future__ import annotations

import numpy as np

from lightning_core.core.answers import End
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.table import JobTable


def check(table: JobTable, settings: Settings, gone: frozenset[int], next_round: float | None, now: float) -> None:
    """Raises AssertionError if an invariant is broken."""
    n = len(table)
    # Lists: a look at one number of an array costs ten times as much.
    shares, active, pinned = table.share[:n].tolist(), table.active[:n].tolist(), table.pinned[:n].tolist()
    launched, housed, sizes = table.launched[:n].tolist(), table.housed[:n].tolist(), table.size[:n].tolist()
    resting = (table.back_at[:n] > now).tolist()
    stands_still = (table.paused[:n] | (table.late[:n] & table.holds[:n])).tolist()
    load, whole, warm = [0.0] * settings.devices, [0] * settings.devices, [0] * settings.devices
    for row, (directive, name, home, share) in enumerate(
        zip(table.directives, table.names, table.home, shares, strict=True)
    ):
        _holds(0 <= share <= 1 + 1e-9, f"{name}: a duty outside 0 to 1: {share}")
        if isinstance(directive, End):
            _holds(not active[row] and not home and not share, f"{name}: has ended, and is active or holds a share")
            continue
        _holds(active[row], f"{name}: neither active nor ended")
        _holds(directive.share == share and directive.devices == home, f"{name}: grant and table differ")
        _holds(not table.is_met(row), f"{name}: met but not ended: {table.jobs[row].target}")
        _holds(not share or len(home) == sizes[row], f"{name}: {home} for {sizes[row]} devices")
        _holds(not share or len(home) == 1 or share == 1, f"{name}: a part of several devices")
        _holds(not (share and stands_still[row]), f"{name}: trains, and is paused or held")
        _holds(not pinned[row] or table.jobs[row].device in home, f"{name}: on {home}, lives elsewhere")
        _holds(not (home and resting[row]), f"{name}: at home while it is to stay away after a fault")
        _holds(not launched[row] or gone.isdisjoint(home), f"{name}: on {home}, of which {set(gone)} are gone")
        where = table.jobs[row].location
        _holds(not where or set(home) <= set(settings.devices_at(where)), f"{name}: on {home}, not at {where}")
        _holds(housed[row] == bool(home), f"{name}: housed and at home nowhere, or the reverse")
        for device in home:
            load[device] += share
            whole[device] += share >= 1 - 1e-6
            warm[device] += launched[row]
    _holds(max(load) <= 1 + 1e-6, f"a device is oversold: {load}")
    _holds(max(whole) <= 1, f"a device has two whole owners: {whole}")
    _holds(settings.slots is None or max(warm) <= settings.slots, f"too many are warm: {warm}")
    rows = table.active_rows()
    if len(waits := rows[~table.late[rows]]):
        _holds(next_round is not None, "jobs are active and nobody will look after them")
        _holds(next_round is None or next_round <= float(np.min(table.deadline[waits])), "a deadline is slept over")


def _holds(condition: bool, story: str) -> None:
    if not condition:
        raise AssertionError(story)
