"""The form of a table as JSON values: its columns, and its lists and dictionaries.

Their names are part of that form: a saved table of other names is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lightning_core.core.answers import End, Grant
from lightning_core.core.codec import answer_from_dict, answer_to_dict, job_from_dict, job_to_dict
from lightning_core.core.control import Asked, Asker, check_known
from lightning_core.core.earlier_runs import BinnedCurve
from lightning_core.core.events import BadLosses, Checkpoint
from lightning_core.core.reasons import CODES, Reason, index
from lightning_core.core.saved_state import StateError, decode, encode, restored
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.validation import checked
from lightning_core.scheduler.tables.table import NUMBERS, SAVED, JobTable


def _speedup(saved: Mapping[str, Any]) -> SpeedUp:
    return restored(SpeedUp((1,)), saved)


# How the values of the table's lists and dictionaries are read, where they are not what JSON holds.
LISTS: dict[str, Callable[[Any], Any]] = {
    "home": lambda devices: devices,
    "recent": lambda losses: losses,
    "waiting": lambda cells: cells,
    "checkpoints": lambda kept: tuple(Checkpoint(*one) for one in kept),
}
BY_ROW: dict[str, Callable[[Any], Any]] = {
    "details": str,
    "faults": lambda parts: Reason(*parts),
    "notes": lambda notes: {by: Reason(*parts) for by, parts in notes.items()},
    "bad_losses": lambda parts: BadLosses(*parts),
    "alerted": int,
    "alerts": lambda alerts: {code: Reason(*parts) for code, parts in alerts.items()},
    "limits": str,
    "at_least": int,
    "met_at": float,
    "asked": lambda levels: {_asker(by): _asked(*parts) for by, parts in levels.items()},
    "own_location": str,
    "earlier": lambda names: names,
    "leaving": lambda devices: devices,
    "elsewhere": lambda by_kind: {kind: _speedup(one) for kind, one in by_kind.items()},
}


def _asker(name: str) -> Asker:
    check_known(by := Asker(name))
    return by


def _asked(*parts: Any) -> Asked:
    asked = Asked(*parts)
    return asked if asked.reason is None else asked._replace(reason=Reason(*asked.reason))


def table_to_dict(table: JobTable) -> dict[str, Any]:
    """Return a table as JSON values."""
    return {
        "columns": {name: encode(getattr(table, name)) for name in SAVED},
        "codes": [CODES.get(code) for code in table.code.tolist()],  # an index means the same in one process only
        "row_of": encode(table.row_of),
        "submissions": table.submissions,
        "past_resizes": encode(table.past_resizes),
        "names": list(table.names),
        "jobs": [job_to_dict(job) for job in table.jobs],
        "directives": [answer_to_dict(directive) for directive in table.directives],
        "numbers": {name: encode(getattr(table, name)) for name in NUMBERS},
        "speedups": [speedup.state() for speedup in table.speedups],
        "curves": [curve.state() for curve in table.curves],
        **{name: encode(getattr(table, name)) for name in (*LISTS, *BY_ROW)},
    }


def restore_table(table: JobTable, saved: Mapping[str, Any]) -> None:
    """Restore what :func:`table_to_dict` returned.

    Raises:
        StateError: If the columns have other names.
    """
    if set(saved["columns"]) != set(SAVED):
        raise StateError(f"the table must have the columns {sorted(SAVED)}, got {sorted(saved['columns'])}")
    for name in SAVED:
        setattr(table, name, decode(saved["columns"][name]))
    table.code = np.array([-1 if code is None else index(code) for code in saved["codes"]], np.int64)
    table.row_of = decode(saved["row_of"])
    table.submissions = checked(saved["submissions"], int)
    table.past_resizes = decode(saved["past_resizes"])
    table.names = list(saved["names"])
    table.jobs = [job_from_dict(job) for job in saved["jobs"]]
    directives = [answer_from_dict(directive) for directive in saved["directives"]]
    table.directives = [one for one in directives if isinstance(one, Grant | End)]
    for name in NUMBERS:
        setattr(table, name, decode(saved["numbers"][name]))
    table.speedups = [_speedup(one) for one in saved["speedups"]]
    table.curves = [restored(BinnedCurve(), one) for one in saved["curves"]]
    for name, read in LISTS.items():
        setattr(table, name, [read(one) for one in decode(saved[name])])
    for name, read in BY_ROW.items():
        setattr(table, name, {row: read(one) for row, one in decode(saved[name]).items()})
