"""Shutting down by a signal: jobs are saved, the exit code tells the cause, and no process is left."""

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
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cluster.bundle_runner import SHUTDOWN_GRACE
from lightning_core.core.codec import decode_event
from lightning_core.core.events import Event, ExitCause, Report, WorkerExited
from lightning_core.node.processes import started
from lightning_core.node.signals import DEBOUNCE
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import launched
from tests.conftest import ROOT
from tests.waiting import PATIENCE, until

# Seconds for all processes to end, beyond the time in which jobs save.
ALL_ENDED = 20.0
NO_EXCEPTION = "no such process"


def bundle(pause: float) -> str:
    """Return a bundle with one job, which is saved at the end of each epoch of sixteen batches."""
    job = launched({"batches": 6000}, "1h", init={"pause": pause})
    return json.dumps({"policy": "uniform", "jobs": {"line": job}})


class Started:
    """A command in its own session; a mark in the environment identifies all of its processes."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.folder = folder
        self.mark = f"LC_TEST_MARK={uuid.uuid4().hex}"
        key, _, value = self.mark.partition("=")
        line = [sys.executable, "-m", "lightning_core.cli.main", *words]
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

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, f"never happened; {self.said()}"
            time.sleep(0.05)

    def send(self, number: int, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.process.pid, number)

    def ends(self, within: float) -> tuple[int, float]:
        """Wait for the end; return the exit code and the seconds that it took."""
        start = time.monotonic()
        code = self.process.wait(within + 30.0)
        return code, time.monotonic() - start

    def left(self) -> dict[int, str]:
        """Return ids and command lines of its running child processes."""
        found = {}
        for environ in Path("/proc").glob("[0-9]*/environ"):
            pid = int(environ.parent.name)
            with suppress(OSError):
                if self.mark.encode() in environ.read_bytes() and pid != self.process.pid:
                    found[pid] = (environ.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_until_ended(self, seconds: float = ALL_ENDED, but: str = NO_EXCEPTION) -> float:
        """Wait until all children have ended, except those that match ``but``; return the seconds that it took."""
        start = time.monotonic()
        while there := {pid: line for pid, line in self.left().items() if but not in line.lower()}:
            assert time.monotonic() - start < seconds, there
            time.sleep(0.1)
        return time.monotonic() - start

    def end(self) -> None:
        for pid in [self.process.pid, *self.left()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    made = []
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # Ray's sockets want short paths

        def begin(*words: str, **environment: str) -> Started:
            made.append(Started(Path(folder), *words, **environment))
            return made[-1]

        (Path(folder) / "b.yaml").write_text(bundle(0.005))
        (Path(folder) / "slow.yaml").write_text(bundle(4.0))
        yield begin
        for each in made:
            each.end()


def events(run_dir: Path) -> list[Event]:
    try:
        with Journal.open(run_dir / "journal.db", read_only=True) as journal:
            return [decode_event(entry.event) for entry in journal.entries()]
    except Exception:  # it is not there yet
        return []


def batches(run_dir: Path) -> int:
    """Return the batches that the newest incarnation of the job has done, from the journal."""
    done = [event.batches for event in events(run_dir) if isinstance(event, Report)]
    return done[-1] if done else 0


def saved(run_dir: Path) -> int:
    """Return the batches that the job had saved when it last left."""
    left = [event for event in events(run_dir) if isinstance(event, WorkerExited) and event.cause is ExitCause.RELEASED]
    return left[-1].checkpoint.batches if left and left[-1].checkpoint is not None else 0


def began(run_dir: Path) -> int:
    """Return the batches from which the newest incarnation of the job began."""
    return [event for event in events(run_dir) if isinstance(event, Report)][-1].batches_at_start


def whole(run_dir: Path) -> bool:
    """Check that the journal is closed and replays identically."""
    log = run_dir / "journal.db-wal"  # a reader may keep the file, but it is empty
    assert not log.exists() or not log.stat().st_size
    with Journal.open(run_dir / "journal.db", read_only=True) as journal:
        return replay(journal).digest == journal.digest


def training(run: Started, at_least: int = 50) -> Path:
    run_dir = run.folder / "run"
    run.until(lambda: batches(run_dir) >= at_least)
    return run_dir


def goes_on(start: Start, at_least: int) -> None:
    """Resume the run; check that it begins no earlier than its checkpoint."""
    again = start("run", "--resume", "run")
    run_dir = again.folder / "run"
    before = max((e.incarnation for e in events(run_dir) if isinstance(e, Report)), default=0)
    again.until(
        lambda: any(isinstance(e, Report) and e.incarnation > before and e.batches > 20 for e in events(run_dir))
    )
    assert began(run_dir) >= at_least
    again.send(signal.SIGINT)
    assert again.ends(SHUTDOWN_GRACE + ALL_ENDED)[0] == 130, again.said()


@pytest.mark.cluster
@pytest.mark.promise("R14", "F24")
def test_sigterm_saves_the_jobs_and_leaves_no_process(
    start: Start, record_property: Callable[[str, object], None]
) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run_dir = training(run)
    run.send(signal.SIGTERM)
    code, seconds = run.ends(SHUTDOWN_GRACE + ALL_ENDED)
    assert code == 143, run.said()
    assert seconds < SHUTDOWN_GRACE + ALL_ENDED
    gone = run.wait_until_ended()
    assert whole(run_dir)
    assert saved(run_dir) == batches(run_dir) >= 50
    assert "run --resume" in run.said()
    record_property("figure", f"SIGTERM: left after {seconds:.1f} s, the last process {gone:.1f} s later")


def test_sigterm_ends_a_simulation_with_a_complete_journal(start: Start) -> None:
    rows = "\n".join(f"{n},{3 * n**-0.1}" for n in range(1, 200_000))
    run = start("--help")
    (run.folder / "curve.csv").write_text("step,loss\n" + rows)
    job = {"deadline": "300h", "target": {"loss": 0.01}, "curve": "curve.csv", "throughput": 1.0}
    (run.folder / "sim.yaml").write_text(json.dumps({"policy": "lara", "jobs": dict.fromkeys("abcdef", job)}))
    run = start("simulate", "sim.yaml", "--run-dir", "sim")
    run.until(lambda: (run.folder / "sim" / "journal.db").exists())
    time.sleep(0.5)
    run.send(signal.SIGTERM)
    assert run.ends(ALL_ENDED)[0] == 143, run.said()
    assert run.said().strip().endswith("interrupted")
    assert whole(run.folder / "sim")


SLEEPER = """
import signal, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
from lightning_core.node import signals
signals.time = SimpleNamespace(monotonic=lambda: float(Path(sys.argv[1]).read_text()))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
with signals.recorded_signals(at_once=True) as received:
    print("noting", flush=True)
    while True:
        time.sleep(0.01)
        if received:
            print("noted", received, flush=True)
            time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.promise("R14", "F24")
def test_a_second_signal_ends_all_processes_at_once(number: int, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0.0")
    command = [sys.executable, "-u", "-c", SLEEPER, str(clock)]
    # The tests themselves may be run by nohup.
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stdout.readline() == "noting\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"noted [{int(number)}]\n"
    process.send_signal(number)  # SIGHUP of a closed terminal has the same effect
    time.sleep(0.5)
    assert process.poll() is None
    clock.write_text(str(DEBOUNCE))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30.0) == 143
    until(lambda: started(child) is None)


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0.0")
    line = [sys.executable, "-u", "-c", SLEEPER, str(clock)]
    ignored = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", ignored, *line], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "noted [2]\n"
    clock.write_text(str(DEBOUNCE))
    process.send_signal(signal.SIGINT)
    assert process.wait(30.0) == 130


# ------------------------------------------------------------------------------------------------ the long part


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.promise("R14", "F24")
def test_a_signal_to_the_whole_group_saves_the_jobs(start: Start, number: int) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run_dir = training(run)
    run.send(number, group=True)
    assert run.ends(SHUTDOWN_GRACE + ALL_ENDED)[0] == 128 + number, run.said()
    run.wait_until_ended()
    assert whole(run_dir)
    done = batches(run_dir)
    assert saved(run_dir) == done
    goes_on(start, done)


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (number, moment)
        for number, moments in (
            (signal.SIGINT, (0.2, 3.0)),
            (signal.SIGTERM, (0.2, 1.5, 2.5, 4.0, 7.0)),
            (signal.SIGKILL, (2.5, 7.0)),
        )
        for moment in moments
    ],
)
@pytest.mark.promise("R14", "F24")
def test_a_signal_during_the_start_is_obeyed_and_the_run_can_be_resumed(
    start: Start, number: int, moment: float
) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run.until(lambda: "starting Ray" in run.said())
    time.sleep(moment)
    run.send(number)
    code, seconds = run.ends(SHUTDOWN_GRACE + ALL_ENDED)
    assert code == (-9 if number == signal.SIGKILL else 128 + number), run.said()
    assert seconds < SHUTDOWN_GRACE
    # Ray's own agents end with their raylet, or a minute after it was killed.
    run.wait_until_ended(but="agent" if number == signal.SIGKILL else NO_EXCEPTION)
    if number == signal.SIGKILL:
        goes_on(start, 0)


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R14", "F24")
def test_after_sigkill_no_worker_trains_on_and_the_run_can_be_resumed(
    start: Start, record_property: Callable[[str, object], None]
) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run_dir = training(run, 200)
    run.send(signal.SIGKILL)
    gone = run.wait_until_ended(but="agent")
    done = batches(run_dir)
    time.sleep(1.0)
    assert batches(run_dir) == done
    goes_on(start, 0)
    record_property("figure", f"SIGKILL: no worker left after {gone:.1f} s")


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.promise("R14", "F24")
def test_a_second_signal_ends_the_run_at_once_while_jobs_save(start: Start, slow: bool) -> None:
    """The first signal waits for a job that cannot leave before its epoch has ended."""
    run = start("run", "slow.yaml" if slow else "b.yaml", "--run-dir", "run", "--own")
    run_dir = training(run, 1 if slow else 50)
    run.send(signal.SIGINT)
    run.until(lambda: "jobs write a checkpoint and leave" in run.said())
    time.sleep(DEBOUNCE if slow else 0.0)
    run.send(signal.SIGTERM)
    code, seconds = run.ends(SHUTDOWN_GRACE)
    assert (code, seconds < 2.0) == (143, True) if slow else code in (130, 143), run.said()
    run.wait_until_ended()
    assert events(run_dir)


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R14")
def test_a_job_that_does_not_leave_is_killed_after_the_grace_period(
    start: Start, record_property: Callable[[str, object], None]
) -> None:
    run = start("run", "slow.yaml", "--run-dir", "run", "--own")
    run_dir = training(run, 1)
    run.send(signal.SIGTERM)
    code, seconds = run.ends(SHUTDOWN_GRACE + ALL_ENDED)
    assert code == 143, run.said()
    assert SHUTDOWN_GRACE - 1 < seconds < SHUTDOWN_GRACE + ALL_ENDED
    assert "because they had not left: line" in run.said()
    run.wait_until_ended()
    assert whole(run_dir)
    record_property("figure", f"a job that would not leave: {seconds:.1f} s")


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R20", "F25")
def test_a_dead_control_process_of_ray_is_reported_and_nothing_is_lost(
    start: Start, record_property: Callable[[str, object], None]
) -> None:
    run = start("run", "b.yaml", "--run-dir", "run", "--own")
    run_dir = training(run)
    [gcs] = [pid for pid, line in run.left().items() if "gcs_server" in line.split(" ")[0]]
    os.kill(gcs, signal.SIGKILL)
    code, seconds = run.ends(SHUTDOWN_GRACE + 2 * ALL_ENDED)
    assert code == 70, run.said()
    assert "error: Ray's control process has died" in run.said()
    run.wait_until_ended()
    assert whole(run_dir)
    done = batches(run_dir)
    assert saved(run_dir) == done
    goes_on(start, done)
    record_property("figure", f"exit code 70 after {seconds:.1f} s, all {done} batches saved")


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.parametrize(("number", "moment"), [(signal.SIGINT, 0.5), (signal.SIGTERM, 2.0), (signal.SIGHUP, 3.0)])
@pytest.mark.promise("R14", "F24")
def test_an_interrupted_start_leaves_no_partial_pool(start: Start, number: int, moment: float) -> None:
    up = start("up", "--devices", "1")
    up.until(lambda: "bringing up" in up.said())
    time.sleep(moment)
    up.send(number)
    assert up.ends(SHUTDOWN_GRACE)[0] == 128 + number, up.said()
    up.wait_until_ended()
    assert start("status").ends(SHUTDOWN_GRACE)[0] == 2
