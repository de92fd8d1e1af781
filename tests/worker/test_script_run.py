"""Scripts as a worker runs them: real processes and a real scheduler, without Ray."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.agent.launched_script import RELEASED_CODE
from lightning_core.core.answers import JobStatus, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume
from lightning_core.core.events import ExitCause, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.node.memory import MemoryKills
from lightning_core.node.processes import started
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.storage.job_checkpoints import adopt, checkpoint_folder, find
from lightning_core.testing.client_conformance import check_client, check_unreachable
from lightning_core.worker import script_run
from lightning_core.worker.assignment import Assignment, Incarnation
from lightning_core.worker.relay import Relay, serving
from lightning_core.worker.script_process import MARK, ScriptProcess, nothing_left
from lightning_core.worker.script_run import WorkerDevice, run_script
from tests.conftest import ROOT
from tests.socket_servers import Pool, socket_pool
from tests.waiting import until

JOB = Job("job", 600.0, BatchTarget(10**6), can=frozenset(Capability))


class Stage:
    """A scheduler with one launched job, and the worker that runs its script."""

    def __init__(self, pool: Pool, folder: Path, job: Job = JOB) -> None:
        self.pool, self.home, self.job = pool, folder / "jobs" / job.name, job
        self.away = False
        pool.do(pool.actor.event(Submit((job,))))

    async def forward(self, method: str, *args: Any) -> Any:
        if self.away:
            raise ConnectionError("away")
        work = getattr(self.pool.actor, method)(*args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.pool.loop))

    def assignment(self, options: str = "", incarnation: int = 1, **changed: Any) -> Assignment:
        return replace(
            Assignment(
                self.job.name, incarnation, self.job.target, {"script": f"tests/looping.py {options}"}, 1, "scheduler",
                str(self.home), (str(ROOT),), "cpu", hang=60.0,
            ),
            **changed,
        )  # fmt: skip

    def run(self, options: str = "", incarnation: int = 1, **changed: Any) -> WorkerExited:
        device = WorkerDevice(None)
        return run_script(self.assignment(options, incarnation, **changed), device, self.forward)

    @contextmanager
    def running(self, options: str = "", incarnation: int = 1, **changed: Any) -> Iterator[list[WorkerExited]]:
        """Run a script in a thread; the list has its exit at the end of the block."""
        left: list[WorkerExited] = []
        thread = threading.Thread(target=lambda: left.append(self.run(options, incarnation, **changed)))
        thread.start()
        try:
            yield left
        finally:
            thread.join(150.0)
        assert left

    def tell(self, event: Any) -> None:
        self.pool.do(self.pool.actor.event(event))

    @property
    def status(self) -> JobStatus:
        _, jobs = self.pool.do(self.pool.actor.status())
        return [job for job in jobs if job.name == self.job.name][-1]  # type: ignore[no-any-return]

    @property
    def log(self) -> str:
        path = self.home / "log.txt"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with socket_pool(tmp_path, {"policy": "uniform", "devices": 1, "period": 0.1}) as made:
        yield made


@pytest.fixture
def stage(pool: Pool, tmp_path: Path) -> Stage:
    return Stage(pool, tmp_path)


def batches_of(stage: Stage) -> int:
    return int(stage.status.batches)


@pytest.mark.promise("R9")
@pytest.mark.parametrize("options", ["", "--folder --wrapped"])
def test_a_script_is_released_and_resumes_where_it_was(stage: Stage, options: str) -> None:
    with stage.running(options) as first:
        until(lambda: batches_of(stage) > 5)
        stage.tell(Pause("job", release=True))
    [left] = first
    assert left.cause is ExitCause.RELEASED, left
    saved = left.checkpoint
    assert saved is not None
    assert saved.batches > 5
    stage.tell(left)
    assert stage.status.incarnation == 2
    assert "after the training" not in stage.log
    adopt(stage.home, 2, {saved.sha256})
    stage.tell(Resume("job"))
    until(lambda: stage.status.devices)
    with stage.running(options, 2) as second:
        until(lambda: batches_of(stage) > saved.batches + 5)
        stage.tell(Cancel("job"))
    assert f"incarnation 2 begins at {saved.batches} on (0,)" in stage.log
    assert second[0].cause is ExitCause.DONE
    assert (stage.home / "last.ckpt").resolve() == _found(stage, 2)


def _found(stage: Stage, incarnation: int) -> Path:
    found = find(checkpoint_folder(stage.home, incarnation))
    assert found is not None
    return found.path


def test_a_script_whose_target_is_met_may_go_on_for_a_while(pool: Pool, tmp_path: Path) -> None:
    stage = Stage(pool, tmp_path, replace(JOB, target=BatchTarget(20)))
    left = stage.run()
    assert (left.cause, left.detail) == (ExitCause.DONE, "with its script")
    assert stage.status.verdict is Verdict.MET
    assert "after the training" in stage.log


def test_a_script_that_ends_before_its_target(stage: Stage) -> None:
    left = stage.run("--alone")
    assert left.cause is ExitCause.DONE
    assert left.detail.startswith("with its script, which never joined the job")
    assert "lightning_core.track" in left.detail
    stage.tell(left)
    assert stage.status.verdict is Verdict.MISSED
    assert str(stage.status.reason).startswith("its training ended with its script, which never joined")


def test_a_script_that_raises_tells_its_traceback(stage: Stage) -> None:
    left = stage.run("--raise-at 3")
    assert left.cause is ExitCause.RAISED
    assert left.detail.splitlines()[-1] == "ValueError: this script was made to fail"
    assert "in batch" in left.detail
    assert "made to fail" in stage.log


@pytest.mark.parametrize(
    ("options", "cause", "words"),
    [
        ("--alone --code 3", ExitCause.RAISED, "the script ended with exit code 3"),
        (f"--alone --code {RELEASED_CODE}", ExitCause.RAISED, "and it was not"),
        ("--die-at 3", ExitCause.LOST, "the script was killed by SIGKILL"),
        ("--give-up-at 3", ExitCause.HUNG, "hung for 9 minutes"),
        ("--no-such-option", ExitCause.RAISED, "the script ended with exit code 2"),
    ],
)
def test_other_ends_of_a_script(stage: Stage, options: str, cause: ExitCause, words: str) -> None:
    left = stage.run(options)
    assert (left.cause, words in left.detail.splitlines()[-1]) == (cause, True), left


def test_a_kill_by_the_kernel_for_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryKills, "why_died", lambda kills: (True, "the kernel killed its process"))
    left = stage.run("--die-at 3")
    assert (left.cause, left.detail) == (ExitCause.OUT_OF_MEMORY, "OOM: the kernel killed its process")


def test_a_program_that_is_missing_on_this_machine(stage: Stage) -> None:
    for script, words in (("missing.py", "missing.py not found"), ("no-such-program", "no program 'no-such-program'")):
        left = stage.run(config={"script": script})
        assert left.cause is ExitCause.BROKEN
        assert words in left.detail


@pytest.mark.promise("R10")
@pytest.mark.parametrize("end", ["released", "cancelled"])
def test_a_script_that_does_not_leave_is_ended(stage: Stage, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_run, "END_WITHIN", 0.3)
    with stage.running("--deaf", hang=0.15) as exits:
        until(lambda: batches_of(stage) > 5)
        stage.tell(Pause("job", release=True) if end == "released" else Cancel("job"))
    [left] = exits
    assert left.cause is (ExitCause.HUNG if end == "released" else ExitCause.DONE)
    if end == "released":
        assert left.detail.endswith("was told to save and leave and did not leave within 0.3s")


@pytest.mark.promise("R9")
def test_a_script_is_ended_when_another_incarnation_begins(stage: Stage) -> None:
    with stage.running("--deaf") as exits:
        until(lambda: batches_of(stage) > 5)
        stage.tell(WorkerExited("job", 1, ExitCause.LOST, "given up"))
    [left] = exits
    assert (left.cause, left.detail) == (ExitCause.LOST, "another incarnation of the job has begun")


@pytest.mark.promise("R3")
def test_a_script_goes_on_while_its_scheduler_is_away(stage: Stage) -> None:
    with stage.running() as exits:
        until(lambda: batches_of(stage) > 5)
        stage.away = True
        time.sleep(0.3)
        stage.away = False
        before = batches_of(stage)
        until(lambda: batches_of(stage) > before + 5)
        stage.pool.restart()
        until(lambda: batches_of(stage) > before + 10)
        stage.tell(Cancel("job"))
    assert exits[0].cause is ExitCause.DONE


def pid_in(stage: Stage) -> int:
    found = until(lambda: re.search(r"child (\d+)", stage.log))
    return int(found[1])


def test_nothing_that_a_script_starts_is_left(stage: Stage) -> None:
    left = stage.run("--alone --child")
    assert left.cause is ExitCause.DONE
    assert started(pid_in(stage)) is None


def test_a_full_disk_fails_no_script(stage: Stage) -> None:
    stage.home.mkdir(parents=True)
    (stage.home / "log.txt").symlink_to("/dev/full")  # a link is not followed, so that nothing can be written
    left = stage.run("--alone --code 3")
    assert (left.cause, left.detail) == (ExitCause.RAISED, "the script ended with exit code 3")


def test_output_arrives_while_the_script_runs_and_none_is_lost(tmp_path: Path) -> None:
    code = "import sys; print('first', flush=True); sys.stdin.read(); print('x' * 3_000_000); print('last')"
    with nothing_left(tmp_path / "mark") as mark:
        process = ScriptProcess([sys.executable, "-c", code], tmp_path, os.environ, tmp_path / "log.txt", mark)
        until(lambda: process.has_ended(0.1))
        assert process.end() == 0
    assert len((tmp_path / "log.txt").read_bytes()) > 3_000_000
    assert process.tail().endswith("xx\nlast\n")


KILLED = """
import sys, time
from pathlib import Path
from lightning_core.worker.script_process import ScriptProcess, nothing_left
folder = Path(sys.argv[1])
with nothing_left(folder / "private") as mark:
    command = [sys.executable, "-c", "import subprocess, time; p = subprocess.Popen(['sleep', '600'], "
               "start_new_session=True); print('child', p.pid, flush=True); time.sleep(600)"]
    process = ScriptProcess(command, folder, {"PATH": "/usr/bin:/bin"}, folder / "log.txt", mark)
    print(process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.promise("R10")
def test_a_killed_worker_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert worker.stdout is not None
    script = int(worker.stdout.readline())
    log = tmp_path / "log.txt"
    child = int(until(lambda: log.exists() and re.search(r"child (\d+)", log.read_text()))[1])
    worker.kill()
    worker.wait()
    until(lambda: started(script) is None and started(child) is None)
    until(lambda: not (tmp_path / "private").exists())


def test_the_variables_of_a_script(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setenv("MINE", "kept")
    code = "import os, sys; print(sorted(k for k in os.environ if k[:3] in ('RAY', 'LIG', 'OMP', 'MIN'))); "
    code += "print(os.getcwd(), os.environ['OMP_NUM_THREADS'], os.getpgrp() == os.getpid() == os.getsid(0))"
    stage.run(config={"script": f'python -c "{code}"'})
    names = ["LIGHTNING_CORE_JOB", "LIGHTNING_CORE_LAUNCHED", "LIGHTNING_CORE_SCRIPT", "LIGHTNING_CORE_TARGET"]
    assert stage.log.splitlines()[:2] == [str([*names, "MINE", "OMP_NUM_THREADS"]), f"{ROOT} 1 True"]


# ---------------------------------------------------------------------------------------------------- the relay


def test_the_relay_conforms_as_a_client_does(stage: Stage, tmp_path: Path) -> None:
    path = stage.pool.path.with_name("relay")
    with serving(Relay(Incarnation("job", 1, "scheduler"), (0,), stage.forward), path):
        check_client(SocketClient(path), JOB, lambda: stage.tell(Cancel("job")), joins=False)
        stage.away = True
        check_unreachable_but_for_its_exit(SocketClient(path))
    check_unreachable(SocketClient(path), JOB)


def check_unreachable_but_for_its_exit(client: SocketClient) -> None:
    for call in (lambda: client.job_forecast("job"), lambda: client.wait("job", 0, 0.1)):
        with pytest.raises(ConnectionError, match="away"):
            call()
    client.left(WorkerExited("job", 1))  # the worker reports it


def test_a_script_speaks_for_its_own_incarnation_alone(stage: Stage) -> None:
    path = stage.pool.path.with_name("relay")
    relay = Relay(Incarnation("job", 2, "scheduler"), (0,), stage.forward)
    with serving(relay, path):
        client = SocketClient(path)
        for call, words in (
            (lambda: client.left(WorkerExited("job", 1)), "incarnation 2 of job, got 1 of job"),
            (lambda: client.left(WorkerExited("other", 2)), "got 2 of other"),
            (lambda: client.wait("other", 0, 0.1), "got 2 of other"),
            (lambda: client.event(Cancel("job")), "alone"),
            (client.status, "alone"),
            (client.about, "alone"),
            (client.counters, "alone"),
            (lambda: client.job("job"), "alone"),
            (lambda: client.launch([]), "alone"),
        ):
            with pytest.raises(ValueError, match=words):
                call()
        assert client.job_forecast("other") is None
    assert relay.last_word is None
    assert os.environ.get(MARK) is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
