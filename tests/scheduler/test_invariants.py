"""Invariants under any events in any order: thousands of short stories, checked after every event."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_core.core.codec import decode_event, encode_answers, encode_event
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices, SetLocation, SetTerms
from lightning_core.core.control import Asker
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import (
    Cell,
    Checkpoint,
    Close,
    DevicesUnavailable,
    EarlierRuns,
    Event,
    ExitCause,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.parts import Part, register, unregister
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import CODES, is_of_plans
from lightning_core.core.saved_state import Stateful
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.policies import POLICIES
from lightning_core.scheduler import past_jobs
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.checks import saved_and_restored
from tests.builders import OPERATOR, RESIZER
from tests.examples import examples
from tests.faults.prefixes import Watch
from tests.scheduler.owners_watch import OwnersWatch, owners_of

STORIES = examples(1_200)
NAMES = "abcdefgh"
SECONDS = (0.0, 0.1, 0.4, 1.0, 1.0, 3.0, 11.0, 40.0)
HOSTILE_COUNTS = (-1, -(2**70), 2**53, 2**63, 2**70)
HOSTILE_NUMBERS = (-1.0, 0.0, math.nan, math.inf, -math.inf, 1e308, 1e-308)
ARGUMENTS: dict[str, dict[str, object]] = {"fixed": {"shares": [0.5, 0.4, 1.0, 0.3, 0.6]}}
# What a scheduler need not remember from one event to the next: calls of outside parts are of the last one.
TRANSIENT = ("answers", "accepted", "_status", "rounds", "made", "_told", "_make")
# Who may change jobs by commands.
ASKERS = (Asker.PERSON, OPERATOR, RESIZER)


class StoryEnds(Exception):
    """All bytes are used up."""


class Teller:
    """Makes events of bytes: fast to draw, and a shorter or smaller story is a simpler one."""

    def __init__(self, story: bytes) -> None:
        self._story, self._bytes = story, iter(story)
        self._reports: dict[str, int] = {}
        self._batches: dict[str, int] = {}

    def dice(self, faces: int) -> int:
        """The next choice, 0 to ``faces - 1``.

        Raises:
            StoryEnds: if there is none.
        """
        if (byte := next(self._bytes, None)) is None:
            raise StoryEnds
        return byte % faces

    def settings(self, policy: str) -> Settings:
        devices, other = 1 + self.dice(8), self.dice(12)
        resident = (None, devices, devices + 1, 2 * devices)[other % 4]
        arguments = ARGUMENTS.get(policy, {})
        stay, quantum = 5.0 * (other % 3), 0.05 if other % 5 == 0 else 1.0
        return Settings(
            policy,
            arguments,
            devices=devices,
            resident=resident,
            stay=stay,
            judge_after=4,
            quantum=quantum,
            divider=owners_of(self._story, devices),
        )

    def bundle(self, devices: int) -> Submit:
        return Submit(tuple(self.job(NAMES[k], devices) for k in range(1 + self.dice(len(NAMES)))))

    def job(self, name: str, devices: int) -> Job:
        kind, terms = self.dice(16), self.dice(256)
        deadline = (0.5, 3.0, 12.0, 30.0, 60.0, math.inf, 400.0)[terms % 7]
        target: Target = BatchTarget(20 * (1 + terms)) if terms % 2 else LossTarget("loss", 0.01 * (1 + terms % 90))
        script = kind in (0, 1, 12, 13)
        most = 1 if kind < 12 else kind - 10
        sizes = tuple(range(1, most + 1)) if kind == 14 and terms % 4 else ()
        return Job(
            name,
            deadline,
            target,
            begin=min(deadline, 60.0) / 4 if kind == 9 else 0.0,
            weight=4.0 if kind % 5 == 4 else 1.0,
            min_devices=most if kind % 2 else 1,
            max_devices=most,
            on_miss=tuple(OnMiss)[terms % 3],
            can=frozenset({Capability.TIME_SLICE, Capability.HOLD}) if script else frozenset(Capability),
            device=terms % (devices + 1) if script and kind else None,
            work=5.0 if kind == 8 else None,
            restarts=None if terms % 3 else terms % 5,
            retries=terms % 4 if kind % 3 else 0,
            sizes=sizes,
            owner=("ann", "bob", "")[terms // 7 % 3],
            throughputs=tuple(5.0 * size**0.7 for size in sizes) if terms % 8 > 4 else (),
        )

    def event(self, scheduler: Scheduler) -> Event:
        kind, devices = self.dice(32), scheduler.settings.devices
        name = (*scheduler.names(), "stranger")[self.dice(255) % (len(scheduler.names()) + 1)]
        incarnation = scheduler.incarnation(name) if name != "stranger" else 1
        if kind == 31:
            incarnation += self.dice(3) - 1
        if kind < 14 or kind == 31:
            return self._report(name, incarnation)
        match kind:
            case 14 | 15 | 16:
                return WorkerExited(name, incarnation, ExitCause.RELEASED)
            case 17:
                cause = tuple(ExitCause)[self.dice(len(ExitCause))]
                return WorkerExited(
                    name, incarnation, cause, "E: x", Checkpoint(8 * incarnation, f"{incarnation % 16:x}" * 64)
                )
            case 30:
                return (
                    LaunchTimedOut(name, incarnation, "one is missing")
                    if self.dice(3)
                    else WorkerExited(name, incarnation, ExitCause.LOST)
                )
            case 18:
                return Cancel(name)
            case 19 | 20 | 21:
                return Pause(name, release=kind == 21)
            case 22 | 23:
                return Resume(name)
            case 24 | 25:
                return self.change(name, devices)
            case 26:
                gone = tuple(device for device in range(devices) if self.dice(3) == 0)
                return (Close(), WorkersLost(), DevicesUnavailable(gone, "its node"), DevicesUnavailable(()))[
                    self.dice(4)
                ]
            case 27 | 28:
                return Submit((self.job(name, devices),))
            case 29:
                return self.earlier_runs(name)
        return Tick()

    def earlier_runs(self, name: str) -> EarlierRuns:
        """Runs of other lengths and levels, for one job or two."""
        runs = tuple(
            EarlierRun(
                f"before{k}",
                tuple(range(5, 5 + 10 * points, 10)),
                tuple((1 + k) / math.sqrt(n) - 0.2 * (points % 3 == 0) for n in range(1, 1 + points)),
                met_at=10 * points or None,
                throughputs=((1, 5.0 + k), (2, 8.0 + k))[: self.dice(3)],
            )
            for k, points in enumerate((self.dice(20), self.dice(3), self.dice(128)))
        )
        return EarlierRuns(runs, ((name, (2, 0)[: self.dice(3)]), (NAMES[self.dice(len(NAMES))], (0, 1, 2))))

    def change(self, name: str, devices: int) -> Event:
        by, new = ASKERS[self.dice(3)], self.job(name, devices)
        match self.dice(4):
            case 0:
                return SetDeadline(name, (0.5, 20.0, math.inf)[self.dice(3)], by, from_submission=bool(self.dice(2)))
            case 1:
                return SetDevices(name, self.dice(devices + 2), by)
            case 2:
                return SetLocation(name, ("", "nowhere")[self.dice(2)], (None, 0, 1)[self.dice(3)], by)
            case _:
                return SetTerms.between(Job(name, 1e9, BatchTarget(1)), new, by) or Tick()

    def _report(self, name: str, incarnation: int) -> Report:
        how, steps = self.dice(64), self.dice(32)
        number = self._reports[name] = self._reports.get(name, 0) + (how != 1)
        batches = self._batches[name] = self._batches.get(name, 0) + 8 * steps
        busy, began, rejected = 0.1 * batches / (1 + how % 3), (0, 0, 0, batches // 2)[how % 4], 0
        first = 1 + (batches - 8 * steps) // 10
        cells = tuple(Cell(n, 10 * n, (1 + how / 64) / math.sqrt(n)) for n in range(first, 1 + batches // 10))
        if how >= 56:
            count = HOSTILE_COUNTS[self.dice(len(HOSTILE_COUNTS))]
            value = HOSTILE_NUMBERS[self.dice(len(HOSTILE_NUMBERS))]
            batches = count if how == 56 else batches
            busy = value if how == 57 else busy
            began = count if how == 58 else began
            rejected = count if how == 59 else rejected
            number = count if how == 60 else number
            if how > 60:
                cells = (
                    Cell(count, count, value),
                    *cells[1:],
                    Cell(first, 10 * first, value),
                    Cell(first + 1, count, 1.0),
                )
        saved = Checkpoint(batches, f"{how % 16:x}" * (64 if how < 56 else how)) if how % 4 == 2 else None
        return Report(name, incarnation, number, how % 8, batches, busy, cells, rejected, began, how % 16 == 5, saved)


def live(story: bytes, policy: str) -> None:
    """Run a story; one in four is also handled by a second scheduler as from a journal.

    That one is saved and restored midway, and lets go of jobs as soon as they are over; the first one never does.
    """
    teller = Teller(story)
    try:
        chosen, replayed = teller.settings(policy), teller.dice(4) == 0
        scheduler, twin, now = Scheduler(chosen), Scheduler(chosen), 0.0
        scheduler._state._lets_rows_go = False
        watch, owners = Watch(scheduler), OwnersWatch(scheduler)
        for number in count():
            event = teller.event(scheduler) if scheduler.names() else teller.bundle(chosen.devices)
            now += SECONDS[teller.dice(len(SECONDS))]
            wakeup = scheduler.wakeup()
            for happens in (Tick(), event) if wakeup is not None and wakeup <= now else (event,):
                answers = scheduler.handle(happens, now)
                watch.after(happens, now, answers)
                owners.after(answers)
                if replayed:
                    again = twin.handle(_by_codec(happens), now)
                    assert encode_answers(again) == encode_answers(answers)
                if replayed and number % 16 == story[0] % 16:
                    twin = saved_and_restored(twin, Scheduler(chosen), TRANSIENT)
                    assert twin.wakeup() == scheduler.wakeup()
                    assert twin.names() == scheduler.names()
                    assert repr(twin.status()) == repr(scheduler.status())
    except StoryEnds:
        return


def _by_codec(event: Event) -> Event:
    try:
        return decode_event(encode_event(event))
    except ValueError:
        assert isinstance(event, Report), "only a worker sends what is not finite"
        return event


@pytest.fixture(autouse=True)
def jobs_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_jobs, "SETTLE", 0.0)
    monkeypatch.setattr(past_jobs, "_are_enough", lambda leaving, active: leaving > 0)


TOLD = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.stories
@pytest.mark.promise("F14", "R4", "R15")
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_invariants_hold_after_any_events(policy: str, record_property: Callable[[str, object], None]) -> None:
    @settings(TOLD, max_examples=math.ceil(STORIES / len(POLICIES)))
    @given(st.binary(min_size=36, max_size=72))
    def told(story: bytes) -> None:
        live(story, policy)

    told()
    record_property("figure", f"{STORIES} stories, every event of each checked")


@pytest.mark.nightly
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_invariants_hold_in_long_stories(policy: str) -> None:
    @settings(TOLD, max_examples=500)
    @given(st.binary(min_size=400, max_size=1200))
    def told(story: bytes) -> None:
        live(story, policy)

    told()


REASONS = [place for place, code in CODES.items() if is_of_plans(code)]


class AnyPlan(Stateful):
    """A policy of another package whose plans are drawn: whatever the rules of a plan permit."""

    STATE = ()

    def plan(self, jobs: JobView, now: float) -> Plan:
        n = len(jobs)
        draw = np.random.default_rng(int(1000 * now) + n)
        size = None
        if len(jobs.speedup):
            size = np.array([draw.choice(one.sizes) for one in jobs.speedup], np.int64)
            size = None if draw.random() < 0.2 else size
        whole = draw.random(n) < 0.5
        share = np.where(whole | ((jobs.size if size is None else size) > 1), 1.0, draw.random(n))
        share[draw.random(n) < 0.3] = 0.0
        plan = Plan(
            order=draw.permutation(n),
            share=share.astype(np.float32) if draw.random() < 0.2 else share,
            finish=now + draw.choice((0.0, 5.0, np.inf, np.nan), n),
            codes=draw.choice(REASONS, n),
            waiting=draw.choice(REASONS, n).astype(np.int32),
            numbers=draw.normal(0.0, 1e6, (n, 2)),
            work_conserving=bool(draw.random() < 0.5 and (share * jobs.size).sum() > 0),
            size=size,
            capped=draw.random(n) < 0.5 if draw.random() < 0.3 else None,
            yields=draw.random(n) < 0.5 if draw.random() < 0.3 else None,
            replan_at=float(draw.choice((-5.0, now, now + 0.1, np.inf))),
        )
        plan.check(jobs, now)
        return plan


class AnySize(AnyPlan):
    """The same, with numbers of devices."""

    chooses_sizes = True


@pytest.mark.stories
@pytest.mark.promise("F14")
@pytest.mark.parametrize("policy", ["any_plan", "any_size"])
def test_invariants_hold_under_whatever_a_plan_may_be(policy: str) -> None:
    register("any", Part(policies={"any_plan": AnyPlan, "any_size": AnySize}))

    @settings(TOLD, max_examples=math.ceil(STORIES / len(POLICIES) / 2))
    @given(st.binary(min_size=36, max_size=72))
    def told(story: bytes) -> None:
        live(story, policy)

    try:
        told()
    finally:
        unregister("any")
