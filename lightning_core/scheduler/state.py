"""The state of a scheduler: how a job ends in it, what must always hold, and its form as JSON values.

The names of the table's columns and of the attributes of each part are part of that form: a saved state of other names
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import merge
from math import inf
from operator import itemgetter
from typing import Any

import numpy as np

from lightning_core.controllers import is_pure
from lightning_core.core.answers import Accepted, Answer, End, JobStatus, Verdict, VerdictChanged
from lightning_core.core.control import Asker
from lightning_core.core.jobs import OnMiss
from lightning_core.core.parts import AbsentPartError
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import (
    ChoosesSizes,
    Estimator,
    KeepsRows,
    KnowsKinds,
    KnowsNames,
    KnowsSchedule,
    LooksAtCurves,
    Policy,
)
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import LearningRates
from lightning_core.core.saved_state import Saves, StateError, decode, encode
from lightning_core.core.validation import checked
from lightning_core.estimators import ESTIMATORS
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.policies import POLICIES
from lightning_core.scheduler.allocation import Caps
from lightning_core.scheduler.company.forming import Forming
from lightning_core.scheduler.divider import DIVIDERS, Divider, Division
from lightning_core.scheduler.kinds.by_kind import ByKind
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.outside_calls import OutsideCalls, guarded_divider, guarded_estimator, guarded_policy
from lightning_core.scheduler.past_jobs import PastJobs
from lightning_core.scheduler.pool_devices import PoolDevices
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import DEFAULT_ESTIMATOR, Settings
from lightning_core.scheduler.status import job_status, unmet_reason, verdict_reason
from lightning_core.scheduler.tables.saved_table import restore_table, table_to_dict
from lightning_core.scheduler.tables.table import INFEASIBLE, MISSED, JobTable

# It rises when a column, or an attribute that is saved, comes, goes or changes.
STATE_VERSION = 30
_PARTS = ("curves", "policy", "forming", "rates")


class SchedulerState:
    """Everything that a scheduler remembers between two events.

    Args:
        settings: Policy, estimator and constants.

    Attributes:
        table: Jobs that have not ended, and those that have a while ago.
        past: Jobs that have left the table.
        calls: Calls of parts from outside the library.
        curves: Estimator of the loss curves, one row per job.
        division: The pool as it is divided among groups of jobs; None if nothing divides it.
        forming: Forms the companies of jobs that train beside each other.
        devices: Kinds and machines of the devices.
        rates: How fast kinds of trainings are on kinds of devices.
        controllers: What decides beside the policy, in order of whose word counts.
        failed: Disabled controllers, which have raised, each with its error.
        unavailable: Devices that cannot have a worker now.
        closing: Whether the pool is being taken down.
        answers: Answers to the event that is being handled.
        accepted: What was taken in of it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.calls = OutsideCalls(settings.packages)
        self.policy: Policy = self._policy()
        is_own = settings.estimator_used in ESTIMATORS
        self.curves = AboveFloor(settings.make_estimator if is_own else self._guarded_estimator)
        self._looks_at_curves = isinstance(self.policy, LooksAtCurves)
        self.chooses_sizes = isinstance(self.policy, ChoosesSizes)
        self.knows_names = isinstance(self.policy, KnowsNames)
        self.table = JobTable(settings.window)
        divider = self._divider()
        self.division = None if divider is None else Division(divider, self.policy, self.table)
        self.past = PastJobs(settings.window, settings.remember)
        self._lets_rows_go = _lets_rows_go(self.policy) and _lets_rows_go(self.curves.bank)
        self.forming = Forming()
        self.devices = PoolDevices(settings)
        self.rates = KindRates()
        self.plan_by_kind()
        self.controllers = settings.make_controllers()
        self.failed: dict[Asker, str] = {}
        self.unavailable: frozenset[int] = frozenset()
        self.closing = False
        self.answers: list[Answer] = []
        self.accepted: list[Accepted] = []

    def _policy(self) -> Policy:
        policy, name = self.settings.make_policy(), self.settings.policy
        if name in POLICIES:
            return policy
        return guarded_policy(policy, name, self.calls, lambda: POLICIES.build(Settings().policy, {}))

    def find_devices(self, kinds: Sequence[str], machines: Sequence[str]) -> None:
        """Take what the pool has found of its devices."""
        self.devices.find(kinds, machines)
        self.plan_by_kind()
        table = self.table
        for row in table.active_rows().tolist():  # a job that has the size of the whole pool now has that of a machine
            job = table.jobs[row]
            if table.launched[row] and table.size[row] > (most := self.devices.most(job)):
                sizes = job.sizes or range(job.min_devices, job.max_devices + 1)
                table.size[row] = max((size for size in sizes if size <= most), default=int(table.size[row]))

    def plan_by_kind(self) -> None:
        """Let the policy plan each kind of devices by itself, where there are several."""
        kinds = len(self.devices.names)
        if kinds < 2 or isinstance(self.policy, KnowsKinds):
            return
        self.policy = _for_kinds(self.policy, kinds)
        if self.division is not None:
            self.division.replace_policies(lambda policy: _for_kinds(policy, kinds))

    def _guarded_estimator(self) -> Estimator:
        bank, name = self.settings.make_estimator(), self.settings.estimator_used
        return guarded_estimator(bank, name, self.calls, lambda: ESTIMATORS.build(DEFAULT_ESTIMATOR, {}))

    def _divider(self) -> Divider | None:
        divider = self.settings.make_divider()
        if divider is None or not DIVIDERS.package(name := next(iter(self.settings.divider))):
            return divider
        return guarded_divider(divider, name, self.calls)

    def plan(self, round: Round, view: JobView) -> tuple[Plan, Caps | None]:
        """Plan a round; return what the groups of its jobs may have with the plan."""
        return (round.plan(self.policy, view), None) if self.division is None else self.division.plan(round, view)

    @property
    def policies(self) -> list[Policy]:
        """The policy, and the copies of it that plan the jobs of one group."""
        return [self.policy, *(() if self.division is None else self.division.policies.values())]

    @property
    def banks(self) -> list[Estimator]:
        """Further estimators that the policy and its copies ask for."""
        return [bank for policy in self.policies for bank in _banks(policy)]

    def banks_of(self, row: int) -> Sequence[Estimator]:
        """Return those of them that see the loss curve of a job."""
        if not self._looks_at_curves:  # asked once: it takes longer than all else here, for each cell
            return ()
        return _banks(self.policy if self.division is None else self.division.policy_of(self.table.names[row]))

    @property
    def kept(self) -> set[str]:
        """Names of jobs that controllers still need once they have ended."""
        return {name for controller in self.controllers.values() for name in getattr(controller, "kept_jobs", ())}

    def find(self, name: str) -> tuple[JobTable, int] | None:
        """Return where the newest job of a name is; None if it was never submitted, or is forgotten."""
        for table in (self.table, self.past.table):
            if (row := table.row_of.get(name)) is not None:
                return table, row
        return None

    def names(self, *, active: bool) -> list[str]:
        """Return the names of all jobs in the order of submission, or only of those that have not ended."""
        table, past = self.table, self.past.table
        if active:
            return [name for name, row in table.row_of.items() if table.active[row]]
        newest = {name: one.ordinal[row] for one in (past, table) for name, row in one.row_of.items()}
        return sorted(newest, key=newest.__getitem__) if past.names else list(newest)

    def status(self, now: float) -> list[JobStatus]:
        """Return the status of every job in the order of submission."""
        table = self.table
        new = [(int(table.ordinal[row]), self.job_status(table, row, now)) for row in range(len(table))]
        return [status for _, status in merge(self.past.status(self.devices.names), new, key=itemgetter(0))]

    def job_status(self, table: JobTable, row: int, now: float) -> JobStatus:
        """Return the status of a job of a table."""
        return job_status(table, row, now, self.devices.names, self.rates)

    def let_go(self, now: float) -> None:
        """Let jobs that are over leave the table after a round, if policy and estimator can do without their rows."""
        if self.division is not None:
            self.division.divider.count(self.table, now)
        if self._lets_rows_go and (stays := self.past.take_from(self.table, now)) is not None:
            self.curves.keep(stays)
            for policy in self.policies:
                if isinstance(policy, KeepsRows):
                    policy.keep(stays)
            if self.division is not None:
                self.division.forget()

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
        if (target := self.table.jobs[row].target).observes:
            self.curves.aim(row, target.threshold)

    def set_schedule(self, row: int, learning_rates: LearningRates) -> None:
        """Tell all estimators that can take them the learning rates of a job."""
        position, rate = (np.array(column, np.float64) for column in learning_rates)
        for bank in (self.curves, *self.banks_of(row)):
            if isinstance(bank, KnowsSchedule):
                bank.schedule(row, position, rate)

    def end(self, row: int, now: float, verdict: Verdict, reason: Reason) -> None:
        """End a job."""
        table = self.table
        end = End(table.jobs[row].name, table.directives[row].version + 1, verdict, reason)
        table.end(row, now, end)
        self.answers.append(end)

    def end_met(self, row: int, now: float) -> None:
        """End a job whose target is reached, now or while its training had to go on."""
        spare = float(self.table.deadline[row] - self.table.met_at.get(row, now))
        if spare == inf:
            self.end(row, now, Verdict.MET, Reason("target_met_best_effort"))
        elif spare >= 0:
            self.end(row, now, Verdict.MET, Reason("target_met", (spare,)))
        else:
            self.end(row, now, Verdict.MISSED, Reason("target_met_late", (-spare,)))

    def note_met(self, row: int, now: float) -> bool:
        """Note that the target of a job is reached, whose training goes on; return whether that was not known.

        Its share stays counted: it trains on what jobs with a deadline leave, until it ends.
        """
        table = self.table
        if row in table.met_at:
            return False
        table.met_at[row] = now
        table.late[row] = True
        return True

    def end_unmet(self, row: int, now: float, verdict: Verdict, ended_by: str, text: str = "") -> None:
        """End a job whose target is not reached; :func:`~lightning_core.scheduler.status.unmet_reason` says why."""
        self.end(row, now, verdict, unmet_reason(self.table, self.curves, self.settings, row, ended_by, text))

    def miss(self, row: int, now: float) -> None:
        """End a job whose deadline has passed, or mark it as late if it goes on."""
        table = self.table
        if table.jobs[row].on_miss is OnMiss.STOP:
            ended_by = "never_feasible" if table.belief[row] == INFEASIBLE else "deadline_passed"
            self.end_unmet(row, now, Verdict.MISSED, ended_by)
        else:
            table.late[row] = True
            table.belief[row] = MISSED
            self.answers.append(VerdictChanged(table.names[row], Verdict.MISSED, verdict_reason(table, row)))

    def check(self, next_round: float | None, now: float) -> None:
        """Check what must hold after every event.

        Args:
            next_round: When the next round is due, scheduler time.
            now: Scheduler time in seconds.

        Raises:
            AssertionError: If an invariant does not hold.
        """
        table, settings = self.table, self.settings
        _holds(not self.failed, f"a controller has failed: {self.failed}")
        _holds(not self.calls.failed, f"a part has failed: {self.calls.failed}")
        load, whole, resident = [0.0] * settings.devices, [0] * settings.devices, [0] * settings.devices
        n = len(table)
        # Lists: reading one element of an array costs ten times as much.
        launched, backing_off = table.launched[:n].tolist(), (table.back_at[:n] > now).tolist()
        goes_on = np.isin(np.arange(n), list(table.met_at))
        stands_still = (table.paused[:n] | (table.late[:n] & table.holds[:n] & ~goes_on)).tolist()
        active, share = table.active[:n].tolist(), table.share[:n].tolist()
        beside, groups = table.beside[:n].tolist(), dict[int, list[int]]()
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
            if beside[row]:
                groups.setdefault(beside[row], []).append(row)
                _holds(size[row] == len(home) == 1, f"{name}: beside others on {home}")
                _holds(not stands_still[row], f"{name}: beside others, and is paused or held")
            _holds(placed[row] == bool(home), f"{name}: placed without devices, or the reverse")
            for device in home:
                load[device] += share[row]
                whole[device] += share[row] >= 1 - 1e-6
                resident[device] += launched[row]
        for rows_of in groups.values():
            names = [table.names[row] for row in rows_of]
            _holds(len(rows_of) > 1 and any(share[row] for row in rows_of), f"beside no job with a share: {names}")
            _holds(len({table.home[row] for row in rows_of}) == 1, f"beside each other on several devices: {names}")
        _holds(max(load) <= 1 + 1e-6, f"a device is oversold: {load}")
        _holds(max(whole) <= 1, f"a device has two whole owners: {whole}")
        if self.division is not None:
            self.division.divider.check(table)
        slots = settings.slots_per_device
        _holds(slots is None or max(resident) <= slots, f"too many jobs are resident: {resident}")
        rows = table.active_rows()
        if len(waits := rows[~table.late[rows] & np.isfinite(table.deadline[rows])]):
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
        same = directive.share == share and directive.devices == home and directive.beside == table.beside[row]
        _holds(same, f"{name}: grant and table differ")
        goes_on = row in table.met_at
        _holds(goes_on or not table.is_met(row), f"{name}: met but not ended: {table.jobs[row].target}")
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
        "table": table_to_dict(state.table),
        "past": state.past.state(),
        "devices": state.devices.state(),
        "unavailable": encode(state.unavailable),
        "closing": state.closing,
        "controllers": {str(by): controller_state(state, by) for by in state.controllers},
        "calls": state.calls.state(),
        "failed": {str(by): words for by, words in state.failed.items()},
        "division": None if state.division is None else state.division.state(),
    }


def restore_state(state: SchedulerState, saved: Mapping[str, Any]) -> tuple[float, float | None]:
    """Restore a state that :func:`state_to_dict` returned, in a new scheduler with the same settings.

    Returns:
        Scheduler time of the last event, and when the next round is due.

    Raises:
        StateError: If it is not the state of such a scheduler.
        AbsentPartError: If a part has asked for something and is not installed.
    """
    try:
        state.devices.restore(saved["devices"])
        state.plan_by_kind()
        for name in _PARTS:
            part = getattr(state, name)
            if (part is None) != (saved[name] is None):
                raise StateError(f"a saved state must have a {name} as the settings do")
            if part is not None:
                part.restore(saved[name])
        restore_table(state.table, saved["table"])
        state.past.restore(saved["past"])
        state.unavailable = decode(saved["unavailable"])
        state.closing = checked(saved["closing"], bool)
        state.calls.restore(saved["calls"])
        if saved["controllers"].keys() != state.controllers.keys():
            raise StateError(f"a saved state must have the controllers {', '.join(state.controllers)}")
        for by in state.controllers:
            restore_controller(state, by, saved["controllers"][by])
        state.failed = {Asker(by): str(words) for by, words in saved["failed"].items()}
        if (state.division is None) != (saved["division"] is None):
            raise StateError("a saved state must have a divider as the settings do")
        if state.division is not None:
            state.division.restore(saved["division"])
        return checked(saved["now"], float), checked(saved["next_round"], float | None)
    except (AbsentPartError, StateError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"not the state of a scheduler: {type(error).__name__}: {error}") from None


def controller_state(state: SchedulerState, by: Asker) -> dict[str, Any] | None:
    """Return the state of a controller; None for one from outside the library that cannot save it."""
    try:
        return state.controllers[by].state()
    except Exception:
        if is_pure(by, state.controllers[by]):
            raise
        return None


def restore_controller(state: SchedulerState, by: Asker, saved: dict[str, Any] | None) -> None:
    """Restore a controller; one from outside the library that does not know its state any more begins anew."""
    try:
        if saved is not None:
            state.controllers[by].restore(saved)
    except Exception:
        if is_pure(by, state.controllers[by]):
            raise
        state.controllers[by] = state.settings.make_controllers()[by]


def _for_kinds(policy: Policy, kinds: int) -> Policy:
    """Return a policy for so many kinds of devices, of which each that is new begins with what the first remembers."""
    by_kind = policy if isinstance(policy, ByKind) else ByKind(policy)
    by_kind.grow(kinds)
    return by_kind


def _banks(policy: Policy) -> Sequence[Estimator]:
    return policy.banks if isinstance(policy, LooksAtCurves) else ()


def _lets_rows_go(part: object) -> bool:
    """Return whether a part can do without the rows of jobs that are over, or remembers no rows at all."""
    return isinstance(part, KeepsRows) or (isinstance(part, Saves) and not part.state())


def _holds(condition: bool, story: str) -> None:
    if not condition:
        raise AssertionError(story)
