"""Guards around parts from outside the library: their errors and what they return become part of the journal.

A part that raises, or returns what breaks a rule, is not asked again: a policy and an estimator are replaced by the
default, a controller's last requests stay in force, and a divider divides no more. The jobs train on. What a part
returns stands in the journal beside the answers, and a replay uses it in place of asking, so it takes the same path
with a part that draws random numbers, or with another version of it. The library's own parts have no guard: they are
pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields
from functools import cache
from math import inf
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from lightning_core.core.answers import PartCall
from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray, kept_by_row
from lightning_core.core.earlier_runs import BinnedCurve, EarlierRun
from lightning_core.core.events import PartEvent
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_TEXT
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Estimator, Policy
from lightning_core.core.reasons import CODES, index
from lightning_core.core.saved_state import Saves, StateError, Stateful, decode, encode, restored
from lightning_core.scheduler.allocation import Caps
from lightning_core.scheduler.divider import Divider, Membership, PolicyOf
from lightning_core.scheduler.round import Round

T = TypeVar("T")

# Name of the event that says which packages the parts of a pool are from.
PACKAGES = "lightning_core.packages"
# What a call of a part may raise; one that calls sys.exit must not end the scheduler.
ERRORS = (Exception, SystemExit)


class OutsideCalls(Stateful):
    """Calls of outside parts while an event is handled, and the parts that have failed.

    Attributes:
        failed: Error of each part that is not asked any more, by its kind and name.
        packages: Package and version of each part, by its kind and name.
        made: What parts have returned or raised while the present event is handled.
    """

    STATE = ("failed", "packages")

    def __init__(self, packages: Mapping[str, str]) -> None:
        self.failed: dict[str, str] = {}
        self.packages = dict(packages)
        self.made: list[PartCall] = []
        self._recorded: Sequence[PartCall] | None = None
        self._told: Sequence[PartCall] = ()
        self._is_open = False

    def take(self, event: object) -> None:
        """Take the news that packages have changed; any other event changes nothing here."""
        if isinstance(event, PartEvent) and event.name == PACKAGES:
            self.packages = {str(part): str(package) for part, package in event.body.items()}

    @contextmanager
    def during_event(self) -> Iterator[None]:
        """Record calls, or repeat recorded ones, while an event is handled."""
        self._told = self._recorded or ()
        self.made, self._is_open = [*self._told], True
        try:
            yield
        finally:
            for one in self._recorded or ():
                if one.raised:  # also where a newer version of another part has not asked it
                    self.failed[one.part.rpartition(" ")[0]] = one.raised
            self._is_open, self._recorded = False, None

    def recall(self, recorded: Sequence[PartCall]) -> None:
        """Use recorded calls for the event that is handled next."""
        self._recorded = recorded

    def ask(
        self, part: str, method: str, call: Callable[[], Any], read: Callable[[Any], T], instead: Callable[[], T],
        *, usual: Any = None,
    ) -> T:  # fmt: skip
        """Return what a part says, or what was recorded of it.

        Args:
            part: Kind and name of the part.
            method: Name of the method.
            call: Asks the part and returns JSON values; it raises if they break a rule.
            read: Makes the result of these values.
            instead: Returns the result once the part has failed.
            usual: Value that is so common that it is not recorded.
        """
        if part in self.failed:
            return instead()
        if not self._is_open:  # a question about the present state, of which no journal knows
            try:
                return read(call())
            except ERRORS:
                return instead()
        label = f"{part} {method}"
        if self._recorded is not None:
            made = self._repeat(label, call) or PartCall(label, usual)
        else:
            try:
                made = PartCall(label, call())
            except ERRORS as error:
                made = PartCall(label, None, f"{type(error).__name__}: {error}"[:MAX_TEXT])
            if made.raised or made.returned != usual:
                self.made.append(made)
        if made.raised:
            self.failed[part] = made.raised
        return instead() if made.raised else read(made.returned)

    def _repeat(self, label: str, call: Callable[[], Any]) -> PartCall | None:
        """Return what was recorded of the next call of a part's method; None if it was as usual.

        Calls of other parts that were made within it were recorded before it.
        """
        told = self._told
        at = next((number for number, one in enumerate(told) if one.part == label), None)
        self._told = () if at is None else told[:at]
        with suppress(*ERRORS):  # its word is not asked for, and what it remembers stays up to date
            call()
        self._told = told if at is None else told[at + 1 :]
        return None if at is None else told[at]

    def tell(self, part: str, method: str, call: Callable[[], Any]) -> None:
        """Tell a part something; it returns nothing."""

        def told() -> None:
            call()

        self.ask(part, method, told, lambda nothing: None, lambda: None)


class OutsidePart:
    """An outside part behind its guard, with another one in its place once it has failed.

    Args:
        inner: The part.
        part: Kind and name of the part.
        calls: Records its calls.
        instead: Makes what replaces it.
    """

    def __init__(self, inner: Any, part: str, calls: OutsideCalls, instead: Callable[[], Any]) -> None:
        self.inner, self.part, self.calls, self._make = inner, part, calls, instead
        self._other: Any = None

    @property
    def other(self) -> Any:
        """What replaces it."""
        if self._other is None:
            self._other = self._make()
            self._prepare(self._other)
        return self._other

    def _prepare(self, other: Any) -> None:
        """Bring a replacement to the present state."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OutsidePart:
        copy = type(self)(deepcopy(self.inner, memo), self.part, self.calls, self._make)
        copy._other = deepcopy(self._other, memo)
        return copy

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values; that of a part that cannot save its own is lost with a restart."""
        try:
            own = self.inner.state() if isinstance(self.inner, Saves) else None
        except Exception:
            own = None
        return {"own": own, "other": None if self._other is None else self._other.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state; a part that no longer knows it, as a newer version may, begins anew."""
        fresh = deepcopy(self.inner)
        try:
            if state["own"] is not None:
                self.inner.restore(state["own"])
        except KeyError:
            raise StateError(f"not the state of {self.part}") from None
        except Exception:
            self.inner = fresh
        self._other = None if state["other"] is None else restored(self._make(), state["other"])

    def _keep(self, stays: BoolArray) -> None:
        self.calls.tell(self.part, "keep", lambda: self.inner.keep(stays))
        if self._other is not None:
            self._other.keep(stays)


class _Keeping:
    def keep(self: Any, stays: BoolArray) -> None:
        self._keep(stays)


class _Sizing:
    chooses_sizes: ClassVar[Literal[True]] = True


class _Naming:
    knows_names: ClassVar[Literal[True]] = True


class _Looking:
    @property
    def banks(self: Any) -> Sequence[Any]:
        return [] if self.part in self.calls.failed else self.guarded_banks()


class _Scheduled:
    def schedule(self: Any, row: int, position: FloatArray, rate: FloatArray) -> None:
        self.calls.tell(self.part, "schedule", lambda: self.inner.schedule(row, position, rate))


class _WithHistory:
    def history(self: Any, row: int, curves: Sequence[EarlierRun]) -> None:
        self.calls.tell(self.part, "history", lambda: self.inner.history(row, curves))

    def ready(self: Any, rows: IntArray) -> BoolArray:
        def instead() -> BoolArray:
            return np.zeros(len(rows), np.bool_)

        return self.array("ready", lambda: self.inner.ready(rows), np.bool_, (len(rows),), instead)  # type: ignore[no-any-return]

    def history_share(self: Any, rows: IntArray) -> FloatArray:
        def instead() -> FloatArray:
            return np.zeros(len(rows))

        return self.array("history_share", lambda: self.inner.history_share(rows), np.float64, (len(rows),), instead)  # type: ignore[no-any-return]


class GuardedPolicy(OutsidePart):
    """A policy behind its guard."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        def call() -> dict[str, Any]:
            return _plan_as_json(self.inner.plan(jobs, now), jobs, now)

        return self.calls.ask(self.part, "plan", call, _read_plan, lambda: self.other.plan(jobs, now))  # type: ignore[no-any-return]

    def guarded_banks(self) -> list[_TaughtBank]:
        """Return the estimators of the policy, each of which is only told what jobs report."""
        try:
            banks = list(self.inner.banks)
        except Exception:  # it has none then
            return []
        return [_guarded(_TaughtBank, bank, self.part, self.calls, lambda: None) for bank in banks]


class _TaughtBank(OutsidePart):
    """An estimator of an outside policy: the policy asks it, and the scheduler tells it of losses."""

    def grow(self, rows: int) -> None:
        self.calls.tell(self.part, "grow", lambda: self.inner.grow(rows))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        self.calls.tell(self.part, "observe", lambda: self.inner.observe(rows, position, loss))


class GuardedEstimator(OutsidePart):
    """An estimator behind its guard, with the curves that its replacement is shown."""

    def __init__(self, inner: Any, part: str, calls: OutsideCalls, instead: Callable[[], Any]) -> None:
        super().__init__(inner, part, calls, instead)
        self._rows = 0
        self._curves: dict[int, BinnedCurve] = {}

    def grow(self, rows: int) -> None:
        self._rows = rows
        self.calls.tell(self.part, "grow", lambda: self.inner.grow(rows))
        if self._other is not None:
            self._other.grow(rows)

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        self.calls.tell(self.part, "observe", lambda: self.inner.observe(rows, position, loss))
        if self.part in self.calls.failed:
            self.other.observe(rows, position, loss)
            return
        for row, batches, value in zip(rows.tolist(), position.tolist(), loss.tolist(), strict=True):
            self._curves.setdefault(row, BinnedCurve()).add(max(int(batches), 1), value)

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        def instead() -> FloatArray:
            return self.other.predict(rows, position)  # type: ignore[no-any-return]

        found: FloatArray = self.array(
            "predict", lambda: self.inner.predict(rows, position), np.float64, (len(rows),), instead
        )
        return found

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        def call() -> FloatArray:
            found: FloatArray = self.inner.first_passage(rows, threshold)
            if np.any(found[:, 1:] < found[:, :-1]):  # not by differences: two may be inf
                raise ValueError(f"first_passage must increase along each row, got {found}")
            return found

        def instead() -> FloatArray:
            return self.other.first_passage(rows, threshold)  # type: ignore[no-any-return]

        wanted: FloatArray = self.array("first_passage", call, np.float64, (len(rows), len(LEVELS)), instead)
        return wanted

    def array(
        self, method: str, call: Callable[[], Any], dtype: Any, shape: tuple[int, ...], instead: Callable[[], Any]
    ) -> Any:
        """Return an array that the estimator returns, once its type and shape are checked."""

        def as_json() -> Any:
            found = np.asarray(call(), dtype)
            if found.shape != shape:
                raise ValueError(f"{method} must have shape {shape}, got {found.shape}")
            return encode(found)

        return self.calls.ask(self.part, method, as_json, decode, instead)

    def state(self) -> dict[str, Any]:
        return super().state() | {"rows": self._rows, "curves": encode(self._curves)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._rows = int(state["rows"])
        self._curves = {row: restored(BinnedCurve(), one) for row, one in decode(state["curves"]).items()}

    def _prepare(self, other: Any) -> None:
        other.grow(self._rows)
        for row, curve in self._curves.items():
            for batches, loss in zip(*curve.points(), strict=True):
                other.observe(np.array([row]), np.array([float(batches)]), np.array([loss]))
        self._curves = {}

    def _keep(self, stays: BoolArray) -> None:
        super()._keep(stays)
        self._rows, self._curves = int(np.count_nonzero(stays)), kept_by_row(self._curves, stays)

    def __deepcopy__(self, memo: dict[int, Any]) -> OutsidePart:
        copy = super().__deepcopy__(memo)
        copy._rows, copy._curves = self._rows, deepcopy(self._curves, memo)  # type: ignore[attr-defined]
        return copy


class GuardedDivider(OutsidePart):
    """A divider behind its guard; once it has failed, all jobs are planned together."""

    @property
    def has_failed(self) -> bool:
        """Whether it divides no more."""
        return self.part in self.calls.failed

    @property
    def group_word(self) -> str:
        return str(getattr(self.inner, "group_word", "group"))[:MAX_TEXT]

    def join(self, settings: Any) -> None:
        self.inner.join(settings)

    def admit(self, job: Job) -> Membership:
        def call() -> list[Any]:
            group, cap, quota = self.inner.admit(job)
            if not (cap >= 0 and quota >= 0):  # NaN is neither
                raise ValueError(f"cap and quota must not be negative, got {cap} and {quota}")
            return [str(group)[:MAX_TEXT], encode(float(cap)), int(quota)]

        def read(values: Sequence[Any]) -> Membership:
            return Membership(values[0], decode(values[1]), values[2])

        return self.calls.ask(self.part, "admit", call, read, Membership, usual=["", encode(inf), 0])

    def plan(self, round: Round, view: JobView, policy_of: PolicyOf) -> tuple[Plan, Caps]:
        def call() -> dict[str, Any]:
            plan, caps = self.inner.plan(round, view, policy_of)
            caps.check(len(view))
            lists = {name: encode([*map(kind, getattr(caps, name))]) for name, kind in _CAPS.items()}
            return {"plan": _plan_as_json(plan, view, round.now), "caps": lists}

        def read(values: Mapping[str, Any]) -> tuple[Plan, Caps]:
            return _read_plan(values["plan"]), Caps(**{name: decode(one) for name, one in values["caps"].items()})

        def instead() -> tuple[Plan, Caps]:
            return round.plan(policy_of(Membership().group), view), Caps([0] * len(view), [inf], [inf])

        return self.calls.ask(self.part, "plan", call, read, instead)

    def count(self, table: Any, now: float) -> None:
        self.calls.tell(self.part, "count", lambda: self.inner.count(table, now))

    def check(self, table: Any) -> None:
        if not self.has_failed:
            self.inner.check(table)

    def describe(self, jobs: Iterable[Job], now: float) -> list[dict[str, Any]]:
        def call() -> Any:
            return json.loads(json.dumps([dict(one) for one in self.inner.describe(jobs, now)], allow_nan=False))

        return self.calls.ask(self.part, "describe", call, list, list)


# Columns of a plan that are recorded by code: an index means the same in one process only.
_CODED = ("codes", "waiting")
_CAPS = {"of": int, "most": float, "share": float}


def guarded_policy(inner: Policy, name: str, calls: OutsideCalls, instead: Callable[[], Policy]) -> Policy:
    """Return an outside policy behind its guard."""
    return _guarded(GuardedPolicy, inner, f"policy {name}", calls, instead)  # type: ignore[no-any-return]


def guarded_divider(inner: Divider, name: str, calls: OutsideCalls) -> Divider:
    """Return an outside divider behind its guard."""
    return _guarded(GuardedDivider, inner, f"divider {name}", calls, lambda: None)  # type: ignore[no-any-return]


def guarded_estimator(inner: Estimator, name: str, calls: OutsideCalls, instead: Callable[[], Estimator]) -> Estimator:
    """Return an outside estimator behind its guard."""
    return _guarded(GuardedEstimator, inner, f"estimator {name}", calls, instead)  # type: ignore[no-any-return]


# The protocols that a part may also have, by a method of each: its guard has those that it has.
_ALSO = {"keep": _Keeping, "chooses_sizes": _Sizing, "knows_names": _Naming, "banks": _Looking, "schedule": _Scheduled,
         "history_share": _WithHistory}  # fmt: skip


def _guarded(kind: Any, inner: Any, part: str, calls: OutsideCalls, instead: Callable[[], Any]) -> Any:
    also = tuple(mixin for name, mixin in _ALSO.items() if hasattr(type(inner), name))
    return _with_protocols(kind, also)(inner, part, calls, instead)


@cache
def _with_protocols(kind: Any, also: tuple[Any, ...]) -> Any:
    """Return a class of guards with further protocols: who asks whether a part has one looks at the class."""
    return type(kind.__name__, (*also, kind), {})


def _plan_as_json(plan: Any, jobs: JobView, now: float) -> dict[str, Any]:
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() must return a Plan, got {type(plan).__name__}")
    plan.check(jobs, now)
    columns = {one.name: _as_json(getattr(plan, one.name)) for one in fields(Plan)}
    return columns | {name: [CODES[code] for code in getattr(plan, name).tolist()] for name in _CODED}


def _read_plan(values: Mapping[str, Any]) -> Plan:
    columns = {name: decode(value) for name, value in values.items()}
    return Plan(**columns | {name: np.array([*map(index, values[name])], np.int64) for name in _CODED})


def _as_json(value: Any) -> Any:
    """Return an attribute of a plan in the types that a state may have."""
    if isinstance(value, np.ndarray):
        kind = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}.get(value.dtype.kind)
        return encode(value if kind is None else value.astype(kind))
    if isinstance(value, np.generic):
        return encode(value.item())
    return encode(value)
