"""`run` in a pool that is up: its folder, following it, and resuming it. No Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lightning_core.agent.reporting import joining
from lightning_core.bundle.problems import BundleError
from lightning_core.cli import run_in_pool
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.commands import Cancel
from lightning_core.core.events import Checkpoint, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.pool import pool as pool_client
from lightning_core.run import run_folder
from lightning_core.run.differences import differences
from lightning_core.run.pool_reference import PoolReference
from lightning_core.run.run_folder import read_origin, write_origin
from lightning_core.storage.journals.excerpt import compare, find, with_workers, write
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalPart
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay
from tests.cli.test_cli import SCRIPT, Said, note
from tests.socket_servers import Pool, socket_pool
from tests.waiting import until

JOB = {
    "model": {"class_path": "tests.tiny.Line"},
    "data": {"class_path": "tests.tiny.Points"},
    "deadline": "9m",
    "target": {"batches": 5},
}


def bundle(*names: str, **terms: Any) -> None:
    Path("bundle.yaml").write_text(json.dumps({"jobs": dict.fromkeys(names, JOB | terms)}))


def status(pool: Pool, name: str) -> Any:
    return next((job for job in reversed(pool.do(pool.actor.status())[1]) if job.name == name), None)


def meet(pool: Pool, name: str) -> None:
    """Do what the pool manager and a worker would: the job meets its target, and its worker saves and leaves."""
    until(lambda: status(pool, name) is not None, 120.0)  # torch is imported before
    incarnation = status(pool, name).incarnation
    home = pool.folder / "jobs" / name
    (home / "log.txt").write_text(f"{name} has printed this\n")
    saved = home / "checkpoints" / f"{incarnation}"
    saved.mkdir(parents=True, exist_ok=True)
    pool.do(pool.actor.event(Report(name, incarnation, 1, 0, 5, 1.0)))
    (saved / "last.ckpt").write_text(f"the last state of {name}")
    pool.do(pool.actor.event(WorkerExited(name, incarnation, checkpoint=Checkpoint(5, "0" * 64))))


@contextmanager
def beside(act: Callable[[], None]) -> Iterator[None]:
    """Do something while a command runs."""
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert not wrong, wrong


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Provide a pool that the command line finds, with a script that trains."""
    with socket_pool(tmp_path / "home" / "pool") as made:
        note(made.folder, socket=str(made.path))
        made.do(made.actor.submit((Job("train", 600.0, BatchTarget(1000), can=SCRIPT),)))
        yield made


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a home without a pool, and short time-outs."""
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LIGHTNING_CORE_POOL", raising=False)
    monkeypatch.setattr(pool_client, "RESTART_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_in_pool, "SAVE_GRACE", 5.0)
    monkeypatch.setattr(run_in_pool, "SAVE_POLL", 0.05)


def test_the_folder_of_a_run_in_a_pool(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    """Word by word as the README's section on bundles, one line after the other."""
    bundle("vit", "cnn")

    def work() -> None:
        for name in ("vit", "cnn"):
            meet(pool, name)

    with beside(work):
        said = Said(capsys, "run", "bundle.yaml", "--run-dir", "runs/monday")
    assert said.code == 0, said.err
    run_dir = Path("runs/monday").resolve()
    assert f"2 jobs in the pool at {pool.folder} (1 cpu device, uniform); use --own" in said.out
    assert f"journal, spec, summary and report.html: {run_dir}" in said.out
    assert "2 of 2 met" in said.out
    body = json.loads((run_dir / "summary.json").read_text())
    assert {name: job["verdict"] for name, job in body["jobs"].items()} == {"vit": "met", "cnn": "met"}
    assert 0 < body["figures"]["device_use"] <= 1
    assert (run_dir / "jobs" / "vit" / "log.txt").read_text() == "vit has printed this\n"
    assert (run_dir / "jobs" / "cnn" / "checkpoints" / "1" / "last.ckpt").read_text() == "the last state of cnn"
    assert {path.stat().st_mode & 0o077 for path in run_dir.glob("*")} == {0}

    said = Said(capsys, "run", "--resume", "runs/monday")
    assert (said.code, "all its jobs have ended" in said.out) == (0, True)
    said = Said(capsys, "report", "runs/monday")
    assert (said.code, said.out) == (0, "runs/monday/report.html\n")
    page = Path("runs/monday/report.html").read_text()
    assert f"Other jobs of the pool at {pool.folder} are not shown." in page
    assert ">train<" not in page
    said = Said(capsys, "why", "runs/monday", "vit")
    assert said.code == 0
    assert "equal shares" in said.out
    assert "no job 'train'" in Said(capsys, "why", "runs/monday", "train").err
    said = Said(capsys, "replay", "runs/monday")
    assert (said.code, json.loads(said.out)["identical"]) == (0, True)
    assert f"part of the journal of the pool at {pool.folder}" in said.err
    assert "is not empty" in Said(capsys, "run", "bundle.yaml", "--run-dir", "runs/monday").err


def test_a_run_without_run_dir_gets_a_folder(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    bundle("x")
    with beside(lambda: meet(pool, "x")):
        said = Said(capsys, "run", "bundle.yaml")
    assert said.code == 0, said.err
    [run_dir] = Path("runs").iterdir()
    assert f"{run_dir.resolve()}" in said.out
    assert json.loads((run_dir / "summary.json").read_text())["met"] == 1


def interrupt() -> None:
    until(lambda: (note := PoolReference.read(Path("runs/one"))) is not None and note.submitted_at is not None)
    until(lambda: pool_run_follows.is_set(), 120.0)
    os.kill(os.getpid(), signal.SIGINT)


pool_run_follows = threading.Event()


@pytest.fixture
def left(pool: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """A run of two jobs, left by Ctrl-C when one of them had ended."""
    from lightning_core.run import follow

    whole = follow.follow
    pool_run_follows.clear()

    def followed(look: Any, stops: Any, watcher: Any) -> Any:
        pool_run_follows.set()
        return whole(look, stops, watcher)

    monkeypatch.setattr(follow, "follow", followed)
    bundle("short", "long")

    def act() -> None:
        until(lambda: pool_run_follows.is_set(), 120.0)
        meet(pool, "short")
        interrupt()

    with beside(act):
        said = Said(capsys, "run", "bundle.yaml", "--run-dir", "runs/one")
    assert said.code == 130, said.err
    return said


def test_after_ctrl_c_the_jobs_continue_and_resume_follows_them(
    pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = Path("runs/one").resolve()
    assert "still running in the pool: long;" in left.out
    assert f"follow them again with: lightning-core run --resume {run_dir}" in left.out
    assert "1 of 2 met" in left.out
    assert json.loads((run_dir / "summary.json").read_text())["jobs"]["long"]["verdict"] is None
    assert pool.is_current("long")
    pool.do(pool.actor.event(Report("long", 1, 1, 0, 3, 0.5)))
    assert "3 / 5 batches" not in left.out
    said = Said(capsys, "report", "runs/one")  # as of now, although no command follows the run
    assert said.code == 0
    with Journal.open(run_dir / "journal.db", read_only=True) as journal:
        assert History.read(journal).of("long").progress[-1].batches == 3

    with beside(lambda: meet_again(pool)):
        said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 0, said.err
    assert "2 of 2 met" in said.out
    assert Path("runs/one/jobs/long/checkpoints/1/last.ckpt").exists()
    assert json.loads(Said(capsys, "replay", "runs/one").out)["identical"] is True


def meet_again(pool: Pool) -> None:
    """Meet the target of a job that has reported once."""
    home = pool.folder / "jobs" / "long"
    (home / "checkpoints" / "1").mkdir(parents=True)
    pool.do(pool.actor.event(Report("long", 1, 2, 0, 5, 1.0)))
    (home / "checkpoints" / "1" / "last.ckpt").write_text("late")
    pool.do(pool.actor.event(WorkerExited("long", 1)))


def test_an_edited_bundle_is_refused(pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]) -> None:
    bundle("short", "long", target={"batches": 7})
    for more in ([], ["--accept-changes"]):
        said = Said(capsys, "run", "--resume", "runs/one", *more)
        assert said.code == 2
        assert "bundle changed since the run started: jobs.long.target.batches: 5 -> 7" in said.err
        assert "a run in a pool continues as it was submitted" in said.err


def test_options_of_the_command_line_are_no_edit_of_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(json.dumps({"jobs": {"x": JOB}}))
    said: dict[str, Any] = {"policy": "lara:order=edf", "allow_import": ["tests", "lightning"]}
    before = Bundle.from_file(tmp_path / "b.yaml").importing_only(said["allow_import"]).with_policy(said["policy"])
    write_origin(tmp_path, tmp_path / "b.yaml", **said)
    assert differences(before, read_origin(tmp_path, before)) == []
    (tmp_path / "b.yaml").write_text(json.dumps({"jobs": {"x": JOB | {"deadline": "8m"}}}))
    assert differences(before, read_origin(tmp_path, before)) == ["jobs.x.deadline: 540s -> 480s"]
    (tmp_path / "b.yaml").unlink()
    assert read_origin(tmp_path, before) is before


def test_resuming_in_a_pool_that_is_down_names_the_command_to_start_it(
    pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    head = pool.folder / "head.json"
    note(pool.folder, pid=2**22 + 1, socket=str(pool.path))
    pool.do(pool.actor.close())
    said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 2
    assert f"its jobs are in the pool at {pool.folder}, which is down: `lightning-core up` brings it up" in said.err
    assert Said(capsys, "report", "runs/one").code == 0
    assert head.exists()


def test_jobs_that_ended_unwatched_are_recorded_from_a_pool_that_is_down(
    pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    meet(pool, "long")
    pool.do(pool.actor.close())
    note(pool.folder, pid=2**22 + 1)
    (pool.folder / "old").mkdir()
    (pool.folder / "journal.db").rename(pool.folder / "old" / "journal-20300101-000000-000000.db")  # as `up` does
    said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 0, said.err
    assert "2 of 2 met" in said.out
    assert Path("runs/one/report.html").exists()
    (pool.folder / "old" / "journal-20300101-000000-000000.db").unlink()
    said = Said(capsys, "replay", "runs/one")
    assert said.code == 2
    assert "found no journal in which short, long were submitted" in said.err
    assert Said(capsys, "why", "runs/one", "long").code == 0


def test_what_has_aged_out_is_not_copied_and_what_was_copied_before_stays(
    pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    meet(pool, "long")
    home, copied = pool.folder / "jobs" / "long", Path("runs/one/jobs/long")
    assert (copied / "spec.json").exists()
    shutil.rmtree(home)
    said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 0, said.err
    assert "warning: long: its logs, spec and resume checkpoints have aged out after 30d; keep_ended" in said.err
    assert (copied / "spec.json").exists()


def test_what_is_left_of_a_job_that_has_aged_out_is_copied(
    pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    meet(pool, "long")
    home, copied = pool.folder / "jobs" / "long", Path("runs/one/jobs/long")
    shutil.rmtree(copied)
    shutil.rmtree(home)
    home.mkdir()
    (home / "best.ckpt").write_text("the best model of long")
    said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 0, said.err
    assert "long: its logs, spec and resume checkpoints have aged out after 30d" in said.err
    assert [path.name for path in copied.iterdir()] == ["best.ckpt"]


def test_a_name_that_was_used_again_is_another_job(pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]) -> None:
    meet(pool, "long")
    assert Said(capsys, "submit", "bundle.yaml").code == 0
    pool.do(pool.actor.event(Cancel("long")))
    said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 0, said.err
    assert "long: its name was used again; its results are in" not in said.err  # its log was taken when it was left
    assert json.loads(Path("runs/one/summary.json").read_text())["jobs"]["long"]["verdict"] == "met"


def test_resuming_submits_what_was_never_submitted(
    pool: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle("x")
    launch = pool.actor.launch

    async def full(specs: list[Any]) -> None:
        raise ValueError("the disk is full")

    monkeypatch.setattr(pool.actor, "launch", full)
    assert "the disk is full" in Said(capsys, "run", "bundle.yaml", "--run-dir", "runs/one").err
    monkeypatch.setattr(pool.actor, "launch", launch)
    assert "nothing has been submitted yet" in Said(capsys, "report", "runs/one").err
    with beside(lambda: meet(pool, "x")):
        said = Said(capsys, "run", "--resume", "runs/one")
    assert said.code == 0, said.err
    assert "1 of 1 met" in said.out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pool": 1, "folder": "/", "jobs": ["a"]}'])
def test_an_unreadable_pool_reference_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bundle.yaml").write_text("")
    (tmp_path / "pool.json").write_text(text)
    for command in (["run", "--resume"], ["report"], ["replay"]):
        said = Said(capsys, *command, str(tmp_path))
        assert said.code == 2
        assert "pool.json is no reference to a pool" in said.err


def test_a_script_prints_which_pool_it_found(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(joining, "inform", said.append)
    job = Job("found", 600.0, BatchTarget(1000), can=SCRIPT)
    join = joining.Join(job, "auto", "cpu")
    join().client.close()
    words = f"found: joined the pool at {pool.folder} (1 cpu device, uniform); pool='local' or "
    assert said == [f"{words}LIGHTNING_CORE_POOL=local trains alone"]
    join().client.close()  # it comes back
    assert len(said) == 1
    joining.Join(replace(job, name="named"), str(pool.folder), "cpu")().client.close()
    monkeypatch.setenv("LIGHTNING_CORE_POOL", str(pool.folder))
    joining.Join(replace(job, name="environment"), "auto", "cpu")().client.close()
    assert len(said) == 1


# ---------------------------------------------------------------------------------------------------- one verb each


def test_a_run_is_resumed_by_run_and_a_job_by_resume(
    pool: Pool, left: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("runs/one", "runs/one/"):
        said = Said(capsys, "resume", folder)
        assert said.code == 2
        assert said.err == f"error: {folder} is a run: `lightning-core run --resume {folder}` resumes it\n"
    said = Said(capsys, "run", "--resume", "long")
    assert said.code == 2
    assert said.err == "error: long is a job in the pool: `lightning-core resume long` resumes it if it is paused\n"
    assert "missing: there is no interrupted run here" in Said(capsys, "run", "--resume", "missing").err


# ---------------------------------------------------------------------------------------------------- the part


def journalled(folder: Path) -> JournalPart:
    """Write the journal of a pool of two devices with other jobs in it; jobs a and b are submitted at 10 s."""
    from lightning_core.scheduler.settings import Settings
    from lightning_core.server.host import Host

    now = [0.0]
    host = Host(Settings(policy="uniform", devices=2), folder / "journal.db", clock=lambda: now[0])
    other = Job("other", 900.0, BatchTarget(10**6))
    host.handle(Submit((other, Job("a", 50.0, BatchTarget(9)))))
    host.handle(Cancel("a"))
    now[0] = 10.0
    host.handle(
        Submit((Job("a", 100.0, BatchTarget(60)), Job("b", 100.0, BatchTarget(90)), Job("c", 9.0, BatchTarget(9))))
    )
    for number in range(1, 10):
        now[0] += 1.0
        for name in ("other", "a", "b"):
            host.handle(Report(name, 2 if name == "a" else 1, number, 99, 10 * number, 0.4 * number))
    host.handle(Cancel("other"))
    host.handle(Submit((Job("a", 100.0, BatchTarget(5)),)))
    now[0] += 30.0
    host.handle(Tick())
    host.close()
    return JournalPart(str(folder), ("a", "b"), 10.0)


def test_an_excerpt_of_a_journal_holds_everything_about_its_jobs(tmp_path: Path) -> None:
    part = journalled(tmp_path / "pool")
    assert write(part, tmp_path / "journal.db") is True
    with Journal.open(tmp_path / "pool" / "journal.db", read_only=True) as whole:
        all_of_it = History.read(whole)
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert journal.part_of == part
        told = History.read(journal)
        with pytest.raises(JournalError, match=r"a part of the journal of the pool at .*; replay that one"):
            replay(journal)
        again = compare(journal, part)
    assert [job.name for job in told.jobs] == ["a", "b"]
    for mine in told.jobs:
        [theirs] = [job for job in all_of_it.jobs if job.name == mine.name and job.submitted == 10.0]
        assert mine.submitted == 0.0
        assert [(p.time + 10.0, p.batches) for p in mine.progress] == [(p.time, p.batches) for p in theirs.progress]
        assert [held._replace(time=held.time + 10.0) for held in mine.grants] == list(theirs.grants)
        assert [(b.time + 10.0, b.verdict, b.reason) for b in mine.beliefs] == list(theirs.beliefs)
        assert mine.ended is not None
        assert theirs.ended == mine.ended + 10.0
    assert told.gaps == []
    with Journal.open(tmp_path / "pool" / "journal.db", read_only=True) as whole:
        assert again.digest == whole.digest
    assert with_workers(part) == {"b"}  # the worker of the first a is another job's business now
    assert not list(tmp_path.glob("*.new"))


def test_a_changed_excerpt_is_detected(tmp_path: Path) -> None:
    part = journalled(tmp_path / "pool")
    write(part, tmp_path / "journal.db")
    connection = sqlite3.connect(tmp_path / "journal.db")
    with connection:
        last = "SELECT max(number) FROM events WHERE answers != '[]'"
        connection.execute(f"UPDATE events SET answers = '[]' WHERE number = ({last})")
    connection.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal, \
            pytest.raises(JournalError, match="differs from the one in"):  # fmt: skip
        compare(journal, part)


def test_jobs_of_a_pool_on_another_machine_are_not_looked_for_here(tmp_path: Path) -> None:
    part = journalled(tmp_path / "pool")
    assert find(part) == tmp_path / "pool" / "journal.db"
    assert find(part._replace(submitted_at=9.5)) is None  # a pool of the same folder, elsewhere
    assert find(part._replace(folder=str(tmp_path / "nowhere"))) is None
    with pytest.raises(JournalError, match="found no journal"):
        write(part._replace(submitted_at=9.5), tmp_path / "journal.db")
    assert not list(tmp_path.glob("journal*"))


def test_runs_are_for_the_user_alone_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of a team (setgid) ``runs`` has the group of the team, which could otherwise write to it."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o002)
    try:
        run_folder._dated(datetime(2026, 11, 22, 19, 30))
    finally:
        os.umask(before)
    assert not (tmp_path / "runs").stat().st_mode & 0o022


def test_runs_that_begin_in_the_same_second_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 11, 22, 19, 30)
    names = [run_folder._dated(now).name for _ in range(3)]
    assert names == ["20261122-193000", "20261122-193000-2", "20261122-193000-3"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "runs").write_text("no folder")
    with pytest.raises(BundleError, match="runs: cannot be written to"):
        run_folder._dated(now)
