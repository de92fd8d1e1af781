"""Conformance suite for controllers, whatever their events.

Run it on a controller of your own, on random events or on any sequence of events with their times::

    check_controller(MyController)
    check_controller(MyController, [(Submit((job,)), 0.0), (Tick(), 60.0)])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_core.controllers.controller import Controller
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.control import RIGHTS, Ask, Note, PartAnswer, Rights, WallClock
from lightning_core.core.events import Close, Event, PartEvent, Submit, Tick, WorkersLost
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.testing.checks import require, saved_and_restored

# Default number of random sequences of events, and their length.
SEQUENCES, EVENTS = 20, 60


class MadeUpPool:
    """A :class:`~lightning_core.core.pool_view.PoolView` without a scheduler.

    Each job trains a batch a second on all devices from its submission on.

    Args:
        names: Names of jobs that are there from the beginning.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.jobs = {name: Job(name, 1e6, BatchTarget(1000)) for name in names}
        self.since = dict.fromkeys(names, 0.0)
        self.now, self.closing = 0.0, False
        self.locations: Sequence[str] = ()

    def take(self, event: Event, now: float) -> None:
        """Handle an event."""
        self.now = now
        match event:
            case Submit(jobs):
                self.jobs |= {job.name: job for job in jobs}
                self.since |= dict.fromkeys((job.name for job in jobs), now)
            case Close():
                self.closing = True
            case WorkersLost():
                self.closing = False

    def names(self) -> list[str]:
        return [name for name in self.jobs if self.is_active(name)]

    def is_active(self, name: str) -> bool:
        return name in self.jobs and self._batches(name) < (self.jobs[name].target.work or 0)

    def status(self, name: str) -> JobStatus | None:
        if name not in self.jobs:
            return None
        nothing: dict[str, Any] = dict.fromkeys(JobStatus.__dataclass_fields__)
        job, since = self.jobs[name], self.since[name]
        counts = dict.fromkeys(("restarts", "lost_batches", "checkpoint_batches"), 0)
        return JobStatus(**nothing | counts | {
            "name": name, "state": State.RUNNING if self.is_active(name) else State.ENDED, "target": job.target,
            "reason": Reason("its_turn"), "batches": self._batches(name), "share": 1.0, "submitted_at": since,
            "deadline": since + job.deadline, "devices": (0,), "incarnation": 1, "paused": False,
        })  # fmt: skip

    def job(self, name: str) -> Job:
        return self.jobs[name]

    def throughputs(self, name: str) -> Mapping[int, float]:
        return {1: 1.0} if self._batches(name) else {}

    def resize_seconds(self, name: str) -> float | None:
        return 0.5 if self._batches(name) > 2 else None

    def forecast_work(self, name: str) -> FloatArray:
        return np.full(len(LEVELS), np.nan)  # its jobs have targets in batches

    def _batches(self, name: str) -> int:
        return min(int(self.now - self.since[name]), int(self.jobs[name].target.work or 0))


def check_controller(
    make: Callable[[], Controller],
    events: Iterable[tuple[Event, float]] | None = None,
    caches: Collection[str] = (),
    own: Sequence[Any] = (),
) -> None:
    """Check the requests and the wakeups of a controller, and that its state can be saved and restored.

    Args:
        make: Creates the controller; all instances must make the same requests.
        events: Events with their scheduler times, which do not fall; None for 20 random sequences
            (:func:`random_events`).
        caches: Names of attributes that need not come back, because they follow from others.
        own: Events of the controller's own part, objects of its classes, some of which come between those of a random
            sequence.

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.controllers import Calendar
        >>> check_controller(lambda: Calendar(["not between 22:00 and 06:00"]))
    """
    for sequence in [events] if events is not None else (random_events(seed, own) for seed in range(SEQUENCES)):
        _check_sequence(make, sequence, caches)


def _check_sequence(
    make: Callable[[], Controller], events: Iterable[tuple[Any, float]], caches: Collection[str]
) -> None:
    controller, twin, pool = make(), make(), MadeUpPool()
    require(isinstance(controller, Controller), "a controller must have the methods of Controller")
    rights = getattr(controller, "rights", None)
    for event, now in events:
        pool.take(event, now)
        told = event.decoded() if isinstance(event, PartEvent) else event
        answers = list(controller.handle(told, now, pool))
        asked = [answer for answer in answers if isinstance(answer, Ask)]
        require(len({ask.job for ask in asked}) == len(asked), "handle() must ask once at most for each job")
        require({ask.job for ask in asked} <= set(pool.names()), "handle() must ask of jobs that have not ended")
        require(len({ask.by for ask in asked}) <= 1, "a controller must ask in its own name alone")
        for ask in asked:
            _check_rights(ask, rights)
            require(decode_event(encode_event(ask)) == ask, "an ask must go through the journal")
        told_of = [one if isinstance(one, Ask | Note | PartAnswer) else PartAnswer.of(one) for one in answers]
        require(decode_answers(encode_answers(told_of)) == told_of, "an answer must go through the journal")
        rule = "requests must depend on earlier calls of handle() alone, and restore() must bring them back"
        require(answers == list(twin.handle(told, now, pool)), rule)
        wakeup = controller.wakeup()
        require(wakeup is None or wakeup > now, "wakeup() must be later than the last event: the past has been handled")
        controller = saved_and_restored(controller, make(), caches)


def _check_rights(ask: Ask, rights: Rights | None) -> None:
    """Check that a controller asks for what its attribute ``rights`` allows."""
    if ask.by in RIGHTS:  # one of the library, which has none of its own
        return
    for asked, name in ((ask.hold, "holds"), (ask.location, "places"), (ask.devices, "sizes")):
        rule = f"a controller that asks for {ask.words!r} must have rights with {name}=True"
        require(asked is None or (rights is not None and getattr(rights, name)), rule)


def random_events(seed: int, own: Sequence[Any] = ()) -> Iterator[tuple[Any, float]]:
    """Yield events of some days: jobs, ticks, and a wall clock that is set now and then.

    Args:
        seed: Seed of the draws.
        own: Further events, which are mixed in at random.
    """
    draw, now = np.random.default_rng(seed), 0.0
    for number in range(EVENTS):
        kind = draw.random()
        if own and draw.random() < 0.3:
            yield own[int(draw.integers(len(own)))], now
        elif kind < 0.25:
            batches = int(draw.choice((100, 10_000, 1_000_000)))
            yield Submit((Job(f"job-{number}", 1e6, BatchTarget(batches), can=frozenset(Capability)),)), now
        elif kind < 0.35:
            yield WallClock(float(draw.uniform(1.7e9, 1.8e9)), 3600.0 * int(draw.integers(-12, 13))), now
        elif kind < 0.4:
            yield Close() if draw.random() < 0.5 else WorkersLost(), now
        else:
            yield Tick(), now
        now += float(draw.choice((0.0, 1.0, 600.0, 3600.0, 40_000.0)))
