"""The state of a scheduler: how a job ends in it, what must always hold, and its form as JSON values.

The names of the table's columns and of the attributes of each part are part of that form: a saved state of other names
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lightning_core.core.answers import Accepted, Answer, End, Grant, Verdict
from lightning_core.core.codec import answer_from_dict, answer_to_dict, job_from_dict, job_to_dict
from lightning_core.core.commands import Asker
from lightning_core.core.events import BadLosses, Checkpoint
from lightning_core.core.protocols import ChoosesSizes, LooksAtCurves
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import Saves, StateError, decode, encode, restored
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.validation import checked
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.market.selector import Selector
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.status import unmet_reason
from lightning_core.scheduler.table import COLUMNS, JobTable

# How the values of the table's lists and dictionaries are read, where they are not what JSON holds.
_LISTS: dict[str, Callable[[Any], Any]] = {
    "home": lambda devices: devices,
    "recent": lambda losses: losses,
    "waiting": lambda cells: cells,
    "checkpoints": lambda kept: tuple(Checkpoint(*one) for one in kept),
}
_BY_ROW: dict[str, Callable[[Any], Any]] = {
    "details": str,
    "faults": lambda parts: Reason(*parts),
    "spot_policies": lambda parts: Reason(*parts),
    "bad_losses": lambda parts: BadLosses(*parts),
    "alerted": int,
    "alerts": lambda alerts: {code: Reason(*parts) for code, parts in alerts.items()},
    "limits": str,
    "paused_by": Asker,
    "told_by": Asker,
}
_PARTS = ("curves", "policy", "selector")


class SchedulerState:
    """Everything that a scheduler remembers between two events.

    Args:
        settings: Policy, estimator and constants.

    Attributes:
        table: All jobs.
        curves: Estimator of the loss curves, one row per job.
        banks: Further estimators that the policy asks for.
        selector: Chooses a spot policy for each job; None without a market.
        awaiting_feedback: Jobs that have ended and whose feedback the selector lacks, with the end of each deadline.
        unavailable: Devices that cannot have a worker now.
        closing: Whether the pool is being taken down.
        answers: Answers to the event that is being handled.
        accepted: What was taken in of it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.policy = settings.make_policy()
        self.curves = AboveFloor(settings.make_estimator)
        self.banks = list(self.policy.banks) if isinstance(self.policy, LooksAtCurves) else []
        self.chooses_sizes = isinstance(self.policy, ChoosesSizes)
        self.table = JobTable(settings.window)
        terms = settings.market_terms()
        self.selector = None if terms is None else Selector(terms.policies, seed=terms.seed)
        self.awaiting_feedback: dict[str, float] = {}
        self.unavailable: frozenset[int] = frozenset()
        self.closing = False
        self.answers: list[Answer] = []
        self.accepted: list[Accepted] = []

    def accept(self, row: int, *, fault: bool = False) -> None:
        """Record that an event about a job was accepted.

        Args:
            row: Row of the job.
            fault: Whether the job lost its worker to its newest fault and restarts.
        """
        table, name = self.table, self.table.names[row]
        self.accepted.append(
            Accepted(name, fault=table.faults[row], restart=int(table.restarts[row])) if fault else Accepted(name)
        )

    def set_threshold(self, row: int) -> None:
        """Tell the estimator what the loss of a job must come down to."""
        if (target := self.table.jobs[row].target).work is None:
            self.curves.aim(row, target.threshold)

    def end(self, row: int, now: float, verdict: Verdict, reason: Reason) -> None:
        """End a job."""
        table = self.table
        end = End(table.jobs[row].name, table.directives[row].version + 1, verdict, reason)
        table.end(row, now, end)
        self.answers.append(end)
        if self.selector is not None:
            self.awaiting_feedback[end.job] = max(float(table.deadline[row]), now)

    def end_met(self, row: int, now: float) -> None:
        """End a job whose target is reached."""
        spare = float(self.table.deadline[row] - now)
        if spare >= 0:
            self.end(row, now, Verdict.MET, Reason("target_met", (spare,)))
        else:
            self.end(row, now, Verdict.MISSED, Reason("target_met_late", (-spare,)))

    def end_unmet(self, row: int, now: float, verdict: Verdict, ended_by: str, text: str = "") -> None:
        """End a job whose target is not reached; :func:`~lightning_core.scheduler.status.unmet_reason` says why."""
        self.end(row, now, verdict, unmet_reason(self.table, self.curves, self.settings, row, ended_by, text))

    def check(self, next_round: float | None, now: float) -> None:
        """Check what must hold after every event.

        Args:
            next_round: When the next round is due, scheduler time.
            now: Scheduler time in seconds.

        Raises:
            AssertionError: If an invariant does not hold.
        """
        table, settings = self.table, self.settings
        load, whole, resident = [0.0] * settings.devices, [0] * settings.devices, [0] * settings.devices
        n = len(table)
        # Lists: reading one element of an array costs ten times as much.
        launched, backing_off = table.launched[:n].tolist(), (table.back_at[:n] > now).tolist()
        stands_still = (table.paused[:n] | (table.late[:n] & table.holds[:n])).tolist()
        active, share = table.active[:n].tolist(), table.share[:n].tolist()
        size, placed, pinned = table.size[:n].tolist(), table.placed[:n].tolist(), table.pinned[:n].tolist()
        for row, (name, home) in enumerate(zip(table.names, table.home, strict=True)):
            self._check_grant(row, share[row], active=active[row])
            if not active[row]:
                continue
            _holds(not share[row] or len(home) == size[row], f"{name}: {home} for {size[row]} devices")
            _holds(not (share[row] and stands_still[row]), f"{name}: trains, and is paused or held")
            _holds(not pinned[row] or table.jobs[row].device in home, f"{name}: on {home}, which it is not pinned to")
            _holds(not (home and backing_off[row]), f"{name}: on {home} during the delay after a fault")
            _holds(not launched[row] or self.unavailable.isdisjoint(home), f"{name}: on unavailable devices: {home}")
            _holds(placed[row] == bool(home), f"{name}: placed without devices, or the reverse")
            for device in home:
                load[device] += share[row]
                whole[device] += share[row] >= 1 - 1e-6
                resident[device] += launched[row]
        _holds(max(load) <= 1 + 1e-6, f"a device is oversold: {load}")
        _holds(max(whole) <= 1, f"a device has two whole owners: {whole}")
        slots = settings.slots_per_device
        _holds(slots is None or max(resident) <= slots, f"too many jobs are resident: {resident}")
        rows = table.active_rows()
        if len(waits := rows[~table.late[rows]]):
            _holds(next_round is not None, "jobs are active and no round is due")
            _holds(next_round is None or next_round <= float(np.min(table.deadline[waits])), "a deadline is slept over")

    def _check_grant(self, row: int, share: float, *, active: bool) -> None:
        table = self.table
        directive, name, home = table.directives[row], table.names[row], table.home[row]
        _holds(0 <= share <= 1 + 1e-9, f"{name}: share outside 0 to 1: {share}")
        if isinstance(directive, End):
            _holds(not active and not home and not share, f"{name}: has ended, and is active or holds a share")
            return
        _holds(active, f"{name}: neither active nor ended")
        _holds(directive.share == share and directive.devices == home, f"{name}: grant and table differ")
        _holds(not table.is_met(row), f"{name}: met but not ended: {table.jobs[row].target}")
        _holds(not share or len(home) == 1 or share == 1, f"{name}: a share below 1 of several devices")
        where = table.jobs[row].location
        _holds(not where or set(home) <= set(self.settings.devices_at(where)), f"{name}: on {home}, not at {where}")


def state_to_dict(state: SchedulerState, now: float, next_round: float | None) -> dict[str, Any]:
    """Return the state of a scheduler as JSON values.

    Args:
        state: What it remembers.
        now: Scheduler time of its last event.
        next_round: When its next round is due, scheduler time.

    Raises:
        StateError: If its policy or estimator cannot save its state.
    """
    parts: dict[str, Any] = {}
    for name in _PARTS:
        part = getattr(state, name)
        if part is not None and not isinstance(part, Saves):
            raise StateError(f"{type(part).__name__} must have the methods state and restore, to be saved")
        parts[name] = None if part is None else part.state()
    return parts | {
        "now": now,
        "next_round": next_round,
        "table": _table_to_dict(state.table),
        "awaiting_feedback": encode(state.awaiting_feedback),
        "unavailable": encode(state.unavailable),
        "closing": state.closing,
    }


def restore_state(state: SchedulerState, saved: Mapping[str, Any]) -> tuple[float, float | None]:
    """Take on a state that :func:`state_to_dict` returned, in a new scheduler with the same settings.

    Returns:
        Scheduler time of the last event, and when the next round is due.

    Raises:
        StateError: If it is not the state of such a scheduler.
    """
    try:
        for name in _PARTS:
            part = getattr(state, name)
            if (part is None) != (saved[name] is None):
                raise StateError(f"a saved state must have a {name} as the settings do")
            if part is not None:
                part.restore(saved[name])
        _restore_table(state.table, saved["table"])
        state.awaiting_feedback = decode(saved["awaiting_feedback"])
        state.unavailable = decode(saved["unavailable"])
        state.closing = checked(saved["closing"], bool)
        return checked(saved["now"], float), checked(saved["next_round"], float | None)
    except StateError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"not the state of a scheduler: {type(error).__name__}: {error}") from None


def _table_to_dict(table: JobTable) -> dict[str, Any]:
    return {
        "columns": {name: encode(getattr(table, name)) for name in COLUMNS},
        "row_of": encode(table.row_of),
        "names": table.names,
        "jobs": [job_to_dict(job) for job in table.jobs],
        "directives": [answer_to_dict(directive) for directive in table.directives],
        "speedups": [speedup.state() for speedup in table.speedups],
        **{name: encode(getattr(table, name)) for name in (*_LISTS, *_BY_ROW)},
    }


def _restore_table(table: JobTable, saved: Mapping[str, Any]) -> None:
    if set(saved["columns"]) != set(COLUMNS):
        raise StateError(f"the table must have the columns {sorted(COLUMNS)}, got {sorted(saved['columns'])}")
    for name in COLUMNS:
        setattr(table, name, decode(saved["columns"][name]))
    table.row_of = decode(saved["row_of"])
    table.names = list(saved["names"])
    table.jobs = [job_from_dict(job) for job in saved["jobs"]]
    directives = [answer_from_dict(directive) for directive in saved["directives"]]
    table.directives = [one for one in directives if isinstance(one, Grant | End)]
    table.speedups = [
        restored(SpeedUp(decode(one["sizes"]), job.throughputs), one)
        for one, job in zip(saved["speedups"], table.jobs, strict=True)
    ]
    for name, read in _LISTS.items():
        setattr(table, name, [read(one) for one in decode(saved[name])])
    for name, read in _BY_ROW.items():
        setattr(table, name, {row: read(one) for row, one in decode(saved[name]).items()})


def _holds(condition: bool, story: str) -> None:
    if not condition:
        raise AssertionError(story)
