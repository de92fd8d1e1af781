"""What holds after every event, whatever happened: what no test should have to find out one by one."""

from __future__ import annotations

import numpy as np

from lightning_core.settings import Settings
from lightning_core.table import JobTable
from lightning_core.types import End


def check(table: JobTable, settings: Settings, next_round: float | None) -> None:
    """Raises AssertionError if an invariant is broken."""
    duty = table.duty[: len(table)]
    active = table.active[: len(table)]
    _holds(bool(np.all((duty >= 0) & (duty <= 1 + 1e-9))), f"a duty is outside 0 to 1: {duty}")
    _holds(not np.any(duty[~active]), "an ended job holds a share")
    load, whole, warm = (np.zeros(settings.devices) for _ in range(3))
    for row in range(len(table)):
        directive = table.directives[row]
        name, home = table.names[row], table.home[row]
        if isinstance(directive, End):
            _holds(not active[row] and not home, f"{name}: active and ended at once")
            continue
        _holds(bool(active[row]), f"{name}: neither active nor ended")
        _holds(directive.duty == duty[row] and directive.devices == home, f"{name}: grant and table differ")
        _holds(not table.is_met(row), f"{name}: met but not ended: {table.jobs[row].target}")
        _holds(not duty[row] or len(home) == table.size[row], f"{name}: {home} for {table.size[row]} devices")
        _holds(not duty[row] or len(home) == 1 or duty[row] == 1, f"{name}: a part of several devices")
        _holds(not (duty[row] and table.paused[row]), f"{name}: trains while paused")
        _holds(not (duty[row] and table.late[row] and table.holds[row]), f"{name}: trains, its deadline passed")
        _holds(not table.pinned[row] or table.jobs[row].device in home, f"{name}: on {home}, lives elsewhere")
        _holds(bool(table.housed[row]) == bool(home), f"{name}: housed and at home nowhere, or the reverse")
        load[list(home)] += duty[row]
        whole[list(home)] += duty[row] >= 1 - 1e-6
        warm[list(home)] += table.launched[row]
    _holds(bool(np.all(load <= 1 + 1e-6)), f"a device is oversold: {load}")
    _holds(bool(np.all(whole <= 1)), f"a device has two whole owners: {whole}")
    _holds(settings.slots is None or bool(np.all(warm <= settings.slots)), f"too many are warm: {warm}")
    rows = table.active_rows()
    waits = rows[~table.late[rows]]
    if len(waits):
        _holds(next_round is not None, "jobs are active and nobody will look after them")
        _holds(next_round is None or next_round <= float(table.deadline[waits].min()), "a deadline would be slept over")


def _holds(condition: bool, story: str) -> None:
    if not condition:
        raise AssertionError(story)
