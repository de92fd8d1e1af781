"""Golden journals: events that were once handled under each policy and estimator, with what was decided then.

Those in which controllers decide, or jobs have owners, have the state that was saved in their middle as well.

``python -m tests.storage.golden [NAME...]`` records them anew from the present code, all or those that are named: for a
new policy, and after a change of decisions that is meant.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from lightning_core.core.answers import Answer, End, Grant, VerdictChanged
from lightning_core.core.codec import decode_event
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetTerms
from lightning_core.core.control import Ask, PartAnswer
from lightning_core.core.events import DevicesUnavailable, Event
from lightning_core.core.jobs import Beside, Capability, Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from tests.driven import Curve, drive

FOLDER = Path(__file__).with_name("golden")
SECONDS, STEP, DEVICES = 90.0, 1.0, 3
KINDS = ("fast", "slow", "slow")
ARGUMENTS: dict[str, dict[str, Any]] = {"fixed": {"shares": [0.5, 0.4, 1.0, 0.3, 0.6]}}
# Relative difference below which two numbers are equal: logarithms of other machines may differ in the last bit.
TOLERANCE = 1e-5


class Step(NamedTuple):
    """An event with what was decided."""

    now: float
    event: str
    decisions: list[Any]


class Saved(NamedTuple):
    """A state of a scheduler."""

    after: int
    """Events that it had handled."""
    state: Mapping[str, Any]


class Golden(NamedTuple):
    """A golden journal."""

    settings: dict[str, Any]
    steps: list[Step]
    saved: Saved | None = None

    def write(self, path: Path) -> None:
        """Write it; the same content gives the same file."""
        head = self.settings if self.saved is None else [self.settings, self.saved]
        lines = [json.dumps(one, separators=(",", ":")) for one in (head, *self.steps)]
        path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))

    @classmethod
    def read(cls, path: Path) -> Golden:
        """Read what :meth:`write` has written."""
        head, *steps = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
        settings, saved = (head, None) if isinstance(head, dict) else (head[0], Saved(*head[1]))
        return cls(settings, [Step(*step) for step in steps], saved)

    def first_other(self, *, from_saved: bool = False) -> str:
        """Return the first event for which the present code decides otherwise, in words; empty if there is none.

        Args:
            from_saved: Whether it begins with the saved state, and not with the first event.
        """
        scheduler, after = Scheduler(Settings(**self.settings)), 0
        if from_saved and self.saved is not None:
            after = self.saved.after
            scheduler.restore(self.saved.state)
        for number, (now, event, before) in enumerate(self.steps[after:], after + 1):
            decided = decisions(scheduler.handle(decode_event(event), now))
            if not are_same(before, decided):
                return f"event {number} at {now} s, {event}: was {before}, is {decided}"
        return ""


def decisions(answers: Sequence[Answer]) -> list[list[Any]]:
    """Return what was decided, and why."""
    return [list(_decision(answer)) for answer in answers]


def _decision(answer: Answer) -> Iterator[Any]:
    if isinstance(answer, PartAnswer):
        yield from (answer.name, dict(answer.body))
        return
    yield type(answer).__name__
    yield answer.job
    match answer:
        case Grant():
            yield from (answer.version, answer.share, list(answer.devices), answer.capped, answer.beside)
        case End() | VerdictChanged():
            yield None if answer.verdict is None else str(answer.verdict)
        case Ask():
            yield from (answer.by, answer.hold, answer.release, answer.location, answer.devices)
    yield answer.reason.code
    yield list(answer.reason.numbers)


def are_same(one: Any, other: Any) -> bool:
    """Return whether two decisions are equal, but for the last digits of a number."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


def every() -> dict[str, Settings]:
    """Return the settings of each golden journal, by its name.

    Each policy, each estimator under EDF, two policies with two at once and on two kinds of devices, owners under two,
    and the controllers.
    """
    never = Beside.NEVER
    made = {name: Settings(name, ARGUMENTS.get(name, {}), devices=DEVICES, beside=never) for name in POLICIES}
    made |= {f"edf-{name}": Settings("edf", estimator=name, devices=DEVICES, beside=never) for name in ESTIMATORS}
    made |= {f"{name}-beside": Settings(name, devices=DEVICES) for name in ("triage", "rr")}
    made |= {
        f"{name}-kinds": Settings(name, devices=DEVICES, locations=KINDS, beside=never) for name in ("triage", "edf")
    }
    return made | of_parts()


def of_parts() -> dict[str, Settings]:
    """Return the settings of each golden journal with a part of the library; none where there are no parts."""
    return {} if find_spec("tests.parts") is None else stories().settings()


def path_of(name: str) -> Path:
    """Return the file of a golden journal."""
    folder = FOLDER.parents[1] / "parts" / "golden" if name in of_parts() else FOLDER
    return folder / f"{name}.gz"


def stories() -> ModuleType:
    """Return the stories of the library's parts."""
    return import_module("tests.parts.golden_stories")


def record(settings: Settings) -> Golden:
    """Record a journal."""
    scheduler, steps, states = Scheduler(settings), list[Step](), list[Saved]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        play = stories().play if settings.controllers else _drive_on_kinds if settings.kinds else _drive
        play(path, settings)
        with Journal.open(path, read_only=True) as journal:
            middle = journal.last // 3
            for entry in journal.recent_entries():
                answers = scheduler.handle(decode_event(entry.event), entry.now)
                steps.append(Step(entry.now, entry.event, decisions(answers)))
                kept = settings.controllers or settings.divider or settings.kinds or settings.beside != Beside.NEVER
                if kept and len(steps) == middle:
                    states.append(Saved(middle, json.loads(json.dumps(scheduler.state()))))
    return Golden(settings.to_dict(), steps, *states)


def _drive(path: Path, settings: Settings) -> None:
    """Write the journal of jobs of both kinds of targets, of which one raises, one is steered, one can be resized."""
    elastic = frozenset(Capability)
    jobs = {
        0.0: [
            (Job("cnn", 60.0, LossTarget("loss", 0.4)), Curve(3.0, 0.4, 30.0)),
            (Job("acc", 90.0, LossTarget("val_acc", at_least=0.7), weight=3.0), Curve(1.0, 0.25, 20.0)),
            (Job("wide", 50.0, BatchTarget(900), can=elastic, max_devices=2, sizes=(1, 2)), Curve(throughput=30.0)),
            (Job("bad", 80.0, LossTarget("loss", 0.01)), Curve(throughput=60.0, crash_after=200)),
        ],
        10.0: [(Job(f"late{n}", 25.0 + n, BatchTarget(200)), Curve(throughput=12.0)) for n in range(3)],
        20.0: [(Job("steered", 40.0, LossTarget("loss", 0.05)), Curve(3.0, 0.3, 30.0))],
        50.0: [(Job("cnn", 30.0, LossTarget("loss", 0.5)), Curve(3.0, 0.4, 30.0))],
    }
    events: dict[float, Event] = {
        15.0: DevicesUnavailable((2,), "draining"),
        18.0: DevicesUnavailable(()),
        25.0: Pause("steered"),
        30.0: Resume("steered"),
        35.0: SetDeadline("steered", 60.0),
        35.5: SetTerms("steered", weight=2.0),
        70.0: Cancel("steered"),
    }
    if settings.divider:
        names = cycle(("ann", "bob", "carl"))
        jobs = {at: [(replace(job, owner=next(names)), curve) for job, curve in many] for at, many in jobs.items()}
    drive(path, settings, jobs, SECONDS, step=STEP, events=events)


def _drive_on_kinds(path: Path, settings: Settings) -> None:
    """Write the journal of trainings that are fast on one kind of devices: one with time moves for an urgent one."""

    def net(name: str, deadline: float, batches: int, **terms: Any) -> tuple[Job, Curve]:
        return Job(name, deadline, BatchTarget(batches), **terms), Curve(throughput=40.0, paces={"slow": 0.25})

    jobs = {
        0.0: [net("net-1", 60.0, 300, kinds=("fast",)), net("net-2", 90.0, 150, kinds=("slow",))],
        18.0: [net("net-3", 600.0, 1500)],
        35.0: [net("net-4", 20.0, 600), net("net-5", 25.0, 150)],
        60.0: [net("net-6", 9.0, 800), net("net-7", 200.0, 300, min_devices=2, max_devices=2)],
    }
    events: dict[float, Event] = {
        40.0: DevicesUnavailable((1,), "draining"),
        45.0: DevicesUnavailable(()),
    }
    drive(path, settings, jobs, SECONDS, step=STEP, events=events)


if __name__ == "__main__":
    for name in sys.argv[1:] or every():
        record(every()[name]).write(path_of(name))
