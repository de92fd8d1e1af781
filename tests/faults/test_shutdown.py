"""Leaving: whoever asks for it by a signal gets the jobs saved, an exit code that tells, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lightning_core.codec import decode_event
from lightning_core.journal import Journal, replay
from lightning_core.launch.cluster import GRACE
from lightning_core.types import Close, Event, Report
from tests.conftest import ROOT

# Beyond the time that jobs have to save, for all that is left to end.
ALL_ENDED = 5.0
BUNDLE = {
    "policy": "uniform",
    "jobs": {
        "line": {
            "seed_everything": 1,
            "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.005}},
            "data": {"class_path": "tests.tiny.Points"},
            "trainer": {"logger": False},
            "deadline": "10m",
            "target": {"batches": 3000},
        }
    },
}


class Started:
    """A command in a session of its own, whose every process can be told by what stands in its environment."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.folder = folder
        self.mark = f"LC_TEST_MARK={uuid.uuid4().hex}"
        key, _, value = self.mark.partition("=")
        line = [sys.executable, "-m", "lightning_core.cli", *words]
        env = {
            **os.environ, key: value, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
            "LIGHTNING_CORE_HOME": str(folder / "home"), "HOME": str(folder), **environment,
        }  # fmt: skip
        self.out = folder / f"out-{value[:6]}.txt"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                line, cwd=folder, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def said(self) -> str:
        return self.out.read_text(errors="replace")

    def until(self, condition: Callable[[], Any], seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, f"never happened; {self.said()}"
            time.sleep(0.05)

    def send(self, number: int, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.process.pid, number)

    def ends(self, within: float) -> tuple[int, float]:
        """Exit code, and after how many seconds."""
        start = time.monotonic()
        code = self.process.wait(within + 30.0)
        return code, time.monotonic() - start

    def left(self) -> dict[int, str]:
        """Processes of it that run, itself apart: ids and command lines."""
        found = {}
        for environ in Path("/proc").glob("[0-9]*/environ"):
            pid = int(environ.parent.name)
            with suppress(OSError):
                if self.mark.encode() in environ.read_bytes() and pid != self.process.pid:
                    found[pid] = (environ.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def nobody_left(self, seconds: float = ALL_ENDED, but: str = "no such process") -> float:
        """After how many seconds nobody but those was left."""
        start = time.monotonic()
        while there := {pid: line for pid, line in self.left().items() if but not in line}:
            assert time.monotonic() - start < seconds, there
            time.sleep(0.1)
        return time.monotonic() - start

    def end(self) -> None:
        for pid in [self.process.pid, *self.left()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    made = []
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # Ray's sockets want short paths

        def begin(*words: str, **environment: str) -> Started:
            made.append(Started(Path(folder), *words, **environment))
            return made[-1]

        (Path(folder) / "b.yaml").write_text(json.dumps(BUNDLE))
        yield begin
        for started in made:
            started.end()


def events(run_dir: Path) -> list[Event]:
    try:
        with Journal.open(run_dir / "journal.db", read_only=True) as journal:
            return [decode_event(entry.event) for entry in journal.entries()]
    except Exception:  # it is not there yet
        return []


def batches(run_dir: Path) -> int:
    """Done by the newest life of the job, as the journal has it."""
    done = [event.batches for event in events(run_dir) if isinstance(event, Report)]
    return done[-1] if done else 0


def began(run_dir: Path) -> int:
    """With what the newest life of the job began."""
    return [event for event in events(run_dir) if isinstance(event, Report)][-1].began


def whole(run_dir: Path) -> bool:
    """Whether the journal is closed and answers again as it did."""
    assert not (run_dir / "journal.db-wal").exists()
    with Journal.open(run_dir / "journal.db", read_only=True) as journal:
        return replay(journal).digest == journal.digest


def training(started: Started, at_least: int = 50) -> Path:
    run_dir = started.folder / "run"
    started.until(lambda: batches(run_dir) >= at_least)
    return run_dir


def goes_on(start: Callable[..., Started], at_least: int) -> None:
    """The run is resumed, and begins no earlier than it had saved."""
    again = start("run", "--resume", "run")
    run_dir = again.folder / "run"
    life = max((e.incarnation for e in events(run_dir) if isinstance(e, Report)), default=0)
    again.until(lambda: any(isinstance(e, Report) and e.incarnation > life and e.batches > 20 for e in events(run_dir)))
    assert began(run_dir) >= at_least
    again.send(signal.SIGINT)
    assert again.ends(GRACE + ALL_ENDED)[0] == 130, again.said()


@pytest.mark.cluster
@pytest.mark.promise("R14", "F24")
def test_sigterm_saves_the_jobs_closes_the_journal_and_leaves_nobody(
    start: Callable[..., Started], record_property: Callable[[str, object], None]
) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run_dir = training(run)
    run.send(signal.SIGTERM)
    code, seconds = run.ends(GRACE + ALL_ENDED)
    assert code == 143, run.said()
    assert seconds < GRACE + ALL_ENDED
    gone = run.nobody_left()
    assert whole(run_dir)
    assert any(isinstance(event, Close) for event in events(run_dir))
    assert "run --resume" in run.said()
    record_property("figure", f"left after {seconds:.1f} s, the last process {gone:.1f} s later")


def test_probe(start: Callable[..., Started]) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run.until(lambda: "bringing up" in run.said())
    moment = float(os.environ.get("MOMENT", "3"))
    time.sleep(moment)
    for name in os.environ.get("SIGNALS", "SIGINT").split(","):
        run.send(getattr(signal, name), group="GROUP" in os.environ)
        time.sleep(float(os.environ.get("BETWEEN", "1")))
    code, seconds = run.ends(60)
    print(code, seconds, run.nobody_left(20))
    print(run.said(), sorted(os.listdir(run.folder / "run")))
