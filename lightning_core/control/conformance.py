"""Conformance suite for controllers: what must hold for every controller, whatever it is told.

Run it on a controller of your own, on random events or on any sequence of events with their times::

    check_controller(MyController)
    check_controller(MyController, [(Submit((job,)), 0.0), (Tick(), 60.0)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lightning_core.control.controller import Controller
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.conformance import require, saved_and_restored
from lightning_core.core.control import WallClock
from lightning_core.core.events import Event, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget

# Random sequences of events that a controller is told by default, and their length.
SEQUENCES, EVENTS = 20, 60


def check_controller(make: Callable[[], Controller], events: Iterable[tuple[Event, float]] | None = None) -> None:
    """Check what a controller asks, when it wants to be woken, and that its state is saved and restored.

    Args:
        make: Creates the controller; all that it creates must ask alike.
        events: Events with their scheduler times, which do not fall; None for 20 random sequences
            (:func:`random_events`).

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.control import Calendar
        >>> check_controller(lambda: Calendar(["not between 22:00 and 06:00"]))
    """
    for sequence in [events] if events is not None else map(random_events, range(SEQUENCES)):
        _check_sequence(make, sequence)


def _check_sequence(make: Callable[[], Controller], events: Iterable[tuple[Event, float]]) -> None:
    controller, twin, jobs = make(), make(), dict[str, None]()
    require(isinstance(controller, Controller), "a controller must have the methods of Controller")

    def names() -> list[str]:
        return list(jobs)

    for event, now in events:
        if isinstance(event, Submit):
            jobs.update(dict.fromkeys(job.name for job in event.jobs))
        asked = list(controller.handle(event, now, names))
        require(len({ask.job for ask in asked}) == len(asked), "handle() must ask once at most for each job")
        require({ask.job for ask in asked} <= jobs.keys(), "handle() must ask of jobs that have not ended")
        require(len({ask.by for ask in asked}) <= 1, "a controller must ask in its own name alone")
        for ask in asked:
            require(decode_event(encode_event(ask)) == ask, "an ask must go through the journal")
        rule = "what is asked must come from earlier calls of handle() alone, and restore() must bring it back"
        require(asked == list(twin.handle(event, now, names)), rule)
        wakeup = controller.wakeup()
        require(wakeup is None or wakeup > now, "wakeup() must be later than the last event: the past has been told")
        controller = saved_and_restored(controller, make())


def random_events(seed: int) -> Iterator[tuple[Event, float]]:
    """Yield events of some days: jobs, ticks, and a clock on the wall that is set now and then."""
    draw, now = np.random.default_rng(seed), 0.0
    for number in range(EVENTS):
        kind = draw.random()
        if kind < 0.25:
            job = Job(f"job-{number}", 1e6, BatchTarget(1000), can=frozenset(Capability))
            yield Submit((job,)), now
        elif kind < 0.4:
            yield WallClock(float(draw.uniform(1.7e9, 1.8e9)), 3600.0 * int(draw.integers(-12, 13))), now
        else:
            yield Tick(), now
        now += float(draw.choice((0.0, 1.0, 600.0, 3600.0, 40_000.0)))
