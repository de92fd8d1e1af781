"""Killer, watch and trace: what is broken is found, and replays."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_core.core.events import Checkpoint, Event, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from tests.faults.killer import Fault, Killer, kill, stop
from tests.faults.prefixes import History, Limits, Watch, Witness, first_broken
from tests.faults.trace import Action, Trace, main
from tests.waiting import until

POOL = Settings("fifo", estimator="posterior")
JOB = Submit((Job("a", 900.0, BatchTarget(100)),))
SAVE = Checkpoint(10, "a" * 64)


def test_the_same_seed_repeats_the_same_actions() -> None:
    def faults(said: list[str]) -> dict[str, Fault]:
        return {name: lambda draw, name=name: said.append(f"{name} {draw.random()}") for name in "xyz"}  # type: ignore[misc]

    stories = []
    for _ in range(2):
        said: list[str] = []
        with Killer(3, faults(said), (0.0, 0.001), 20) as killer:
            until(lambda: len(killer.actions) == 20)
        assert [action.what for action in killer.actions] == [what for _, what in killer.schedule]
        stories.append(said)
    assert stories[0] == stories[1]
    assert len(set(stories[0])) == 20


def test_the_killer_kills_and_stops_processes() -> None:
    import random

    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    state = Path(f"/proc/{sleeper.pid}/stat")
    assert stop(lambda: [sleeper.pid], 3.0)(random.Random(0)) == str(sleeper.pid)
    until(lambda: state.read_text().split()[2] == "T")
    until(lambda: state.read_text().split()[2] != "T")
    assert kill(lambda: [sleeper.pid])(random.Random(0)) == str(sleeper.pid)
    assert sleeper.wait(60) == -9
    assert kill(lambda: [sleeper.pid])(random.Random(0)) is None
    assert kill(list)(random.Random(0)) is None


@pytest.mark.parametrize(
    ("events", "limits", "words"),
    [
        ([(0.0, JOB), (30.0, Tick())], Limits(ready=20.0), "neither there nor missed"),
        (
            [(0.0, JOB), (1.0, Report("a", 1, 1, 1, 5, 1.0)),
             (2.0, WorkerExited("a", 1, ExitCause.LOST, "dead")), (3.0, Tick())],
            Limits(away=0.5), "away after a fault",
        ),
    ],
)  # fmt: skip
def test_a_job_stuck_in_a_passing_state_is_found(events: list[tuple[float, Event]], limits: Limits, words: str) -> None:
    broken = first_broken(History(POOL, events), limits)
    assert broken is not None
    assert (broken.number, words in broken.story) == (len(events), True)
    assert first_broken(History(POOL, events), Limits()) is None


def test_time_without_a_scheduler_does_not_count() -> None:
    assert first_broken(History(POOL, [(0.0, JOB), (3000.0, Tick())]), Limits(ready=40.0)) is None


def test_a_checkpoint_of_another_incarnation_is_found() -> None:
    from lightning_core.scheduler.scheduler import Scheduler

    scheduler = Scheduler(POOL)
    watch = Watch(scheduler)
    watch.after(JOB, 0.0, scheduler.handle(JOB, 0.0))
    told = Report("a", 1, 1, 1, 10, 1.0, checkpoint=SAVE)
    with pytest.raises(AssertionError, match="a: Checkpoint"):
        watch.after(replace(told, incarnation=7), 1.0, scheduler.handle(told, 1.0))


def test_a_device_with_two_owners_is_found() -> None:
    from lightning_core.core.answers import Grant
    from lightning_core.core.reasons import Reason

    witness = Witness(2)
    witness.hear([Grant("a", 1, 1.0, (0,), Reason("submitted")), Grant("b", 1, 1.0, (1,), Reason("submitted"))])
    with pytest.raises(AssertionError, match="oversold"):
        witness.hear([Grant("a", 2, 1.0, (1,), Reason("submitted"))])


def test_a_trace_round_trips_and_replays_to_the_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    valid = Trace(7, [Action(1.5, "scheduler", "123")], History(POOL, [(0.0, JOB), (1.0, Tick())]))
    valid.write(tmp_path / "valid.json")
    assert Trace.read(tmp_path / "valid.json") == valid
    assert main(str(tmp_path / "valid.json")) == 0
    late: list[tuple[float, Event]] = [(20.0 * k, Tick() if k else JOB) for k in range(7)]
    Trace(7, [], History(POOL, late)).write(tmp_path / "late.json")
    assert main(str(tmp_path / "late.json")) == 1
    said = capsys.readouterr().out
    assert "1.5s  scheduler 123" in said
    assert "event 6, 100.000s: Tick()\n  a: queued" in said
    assert "neither there nor missed" in said
