"""What lies in a pool's folder for a job that has ended goes after `keep_ended`; everything else stays. No Ray."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.codec import job_to_dict
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.run import ageing
from lightning_core.run.ageing import FOLDERS_PER_STEP, Ageing, age_out_as_time_passes, have_aged_out
from lightning_core.scheduler.settings import Settings
from lightning_core.storage import job_specs
from lightning_core.storage.atomic_files import replace_link
from tests.others import OTHER, as_root
from tests.waiting import until_async

HOUR, DAY = 3600.0, 86400.0
BEGIN = 1.8e9
JOB = Job("a", 9.0, BatchTarget(5), can=frozenset(Capability))
SPEC: Any = {"job": job_to_dict(JOB), "config": {}, "cell": 1, "save_every": 300.0, "keep_best": False, "hang": None,
             "paths": []}  # fmt: skip
# What the pool and the worker write, and what stays of it.
GOES = {"spec.json", "launched", "log.txt", "log-1.txt", "last.ckpt", "checkpoints/1/last.ckpt",
        "checkpoints/1/last.ckpt.json", "checkpoints/2/last.ckpt", "spec.json.part-7-0123abcd"}  # fmt: skip
STAYS = {"best.ckpt", "best.ckpt.json", "best.ckpt.1", "checkpoints/epoch=3.ckpt", "lightning_logs/version_0/m.csv",
         "log.txt.gz", "notes.txt"}  # fmt: skip


class FakePool:
    """The folder of a pool, with a clock that the test holds, and what its scheduler knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.now = BEGIN
        self.ends: dict[str, float | None] = {}
        self.start_again()

    def start_again(self) -> None:
        """Start the pool again: another process sweeps."""
        self.ageing = Ageing(self.folder, lambda: self.now)

    def submit(self, name: str, *more: str) -> Path:
        """Write what a pool and its workers leave of a job; return its folder."""
        job_specs.store([SPEC | {"job": SPEC["job"] | {"name": name}}], self.folder, set())
        home = job_specs.home_of(self.folder, name)
        os.utime(home / "spec.json", (self.now, self.now))
        for path in (home / part for part in (*sorted(GOES - {"spec.json", "last.ckpt"}), *more)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{path.name} of {name}")
        replace_link(home / "last.ckpt", Path("checkpoints/2/last.ckpt"))
        return home

    def sweep(self, **settings: Any) -> list[int]:
        """Sweep once and return the steps."""
        ends: Mapping[str, float | None] = {
            name: None if end is None else self.now - end for name, end in self.ends.items()
        }
        return list(self.ageing.sweep(Settings(**settings), ends))

    def later(self, seconds: float, **settings: Any) -> None:
        """Let time pass, and sweep."""
        self.now += seconds
        self.sweep(**settings)


@pytest.fixture
def pool(tmp_path: Path) -> FakePool:
    return FakePool(tmp_path / "pool")


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_symlink() or path.is_file()}


# ------------------------------------------------------------------------------------------------ what goes, and when


def test_files_of_a_job_go_30_days_after_its_end_and_what_the_user_keeps_stays(pool: FakePool) -> None:
    home = pool.submit("a", *STAYS)
    pool.ends["a"] = pool.now + 2 * HOUR
    pool.later(2 * HOUR + 60.0)
    assert files(home) == GOES | STAYS | {"ended"}
    pool.later(30 * DAY - 61.0)
    assert files(home) == GOES | STAYS | {"ended"}
    assert not have_aged_out(pool.folder, "a")
    pool.later(2.0)
    assert files(home) == STAYS | {"ended"}
    assert have_aged_out(pool.folder, "a")
    pool.later(300 * DAY)
    assert files(home) == STAYS | {"ended"}


def test_a_folder_with_nothing_else_goes_as_a_whole(pool: FakePool) -> None:
    home = pool.submit("a")
    pool.later(2 * HOUR)
    pool.later(30 * DAY)
    assert not home.exists()
    assert home.parent.exists()


def test_keep_ended_says_how_long(pool: FakePool) -> None:
    home = pool.submit("a")
    pool.ends["a"] = pool.now
    pool.later(2 * DAY, keep_ended=3 * DAY)
    assert files(home) == GOES | {"ended"}
    pool.later(300 * DAY, keep_ended=None)
    assert files(home) == GOES | {"ended"}
    pool.later(0.0, keep_ended=3 * DAY)
    assert not home.exists()


def test_the_end_is_known_after_restarts_and_when_the_scheduler_has_forgotten_it(pool: FakePool) -> None:
    home = pool.submit("a")
    pool.ends["a"] = pool.now + 5 * HOUR
    pool.later(6 * HOUR)
    pool.ends.clear()
    pool.start_again()
    pool.later(30 * DAY - 2 * HOUR)
    assert files(home) == GOES | {"ended"}
    pool.later(HOUR)
    assert not home.exists()


def test_an_end_that_is_not_known_counts_from_when_it_is_seen(pool: FakePool) -> None:
    """A pool that was started again after all its jobs had ended has a new journal, which does not know them."""
    home = pool.submit("a")
    pool.later(100 * DAY)
    pool.later(29 * DAY)
    assert files(home) == GOES | {"ended"}
    pool.later(DAY)
    assert not home.exists()


def test_jobs_that_are_not_over_are_not_touched(pool: FakePool) -> None:
    home = pool.submit("a", *STAYS)
    pool.ends["a"] = None
    pool.later(400 * DAY)
    pool.later(400 * DAY)
    assert files(home) == GOES | STAYS


def test_a_job_that_a_recovery_of_the_journal_brings_back_begins_anew(pool: FakePool) -> None:
    home = pool.submit("a")
    pool.ends["a"] = pool.now
    pool.later(29 * DAY)
    pool.ends["a"] = None
    pool.later(2 * DAY)
    assert files(home) == GOES
    pool.ends["a"] = pool.now
    pool.later(29 * DAY)
    assert files(home) == GOES | {"ended"}


# ------------------------------------------------------------------------------------------------ names used again


def test_of_a_name_that_was_used_again_only_the_earlier_job_goes(pool: FakePool) -> None:
    pool.submit("a", "best.ckpt")
    pool.ends["a"] = pool.now
    pool.later(2 * HOUR)
    home = pool.submit("a")
    pool.ends["a"] = None
    pool.later(30 * DAY)
    assert files(home) == GOES
    assert files(pool.folder / "old" / "a~1") == {"best.ckpt", "ended"}


def test_a_job_that_is_being_submitted_under_the_name_of_an_old_one_is_not_touched(pool: FakePool) -> None:
    """Its folder is there before the scheduler knows of it; of its name it still knows the one before."""
    pool.submit("a")
    pool.ends["a"] = pool.now
    pool.later(40 * DAY)
    home = pool.submit("a")
    pool.sweep()
    assert files(home) == GOES
    pool.later(2 * HOUR)  # whatever the clock of the file server says
    assert files(home) == GOES | {"ended"}


def test_a_name_can_be_used_again_when_an_earlier_folder_has_aged_out(pool: FakePool) -> None:
    for more in ((), ("best.ckpt",)):
        pool.submit("a", *more)
        pool.later(2 * HOUR)
    pool.submit("a")
    pool.ends["a"] = None
    pool.later(40 * DAY)
    old = pool.folder / "old"
    assert sorted(path.name for path in old.iterdir()) == ["a~2"]
    pool.submit("a")
    assert sorted(path.name for path in old.iterdir()) == ["a~2", "a~3"]
    assert files(old / "a~2") == {"best.ckpt", "ended"}


def test_a_folder_that_is_moved_away_in_between_is_the_one_that_is_cleared(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = pool.submit("a")
    pool.ends["a"] = pool.now
    pool.later(2 * HOUR)
    clear = Ageing._clear

    def resubmitted(self: Ageing, name: str, descriptor: int) -> bool:
        pool.submit("a")
        return clear(self, name, descriptor)

    monkeypatch.setattr(Ageing, "_clear", resubmitted)
    pool.later(30 * DAY)
    assert files(home) == GOES
    monkeypatch.undo()
    pool.ends["a"] = None
    pool.sweep()
    assert files(home) == GOES
    assert not (pool.folder / "old" / "a~1").exists()


# ------------------------------------------------------------------------------------------------ what is not entered


def test_no_link_is_followed_out_of_the_folder(pool: FakePool, tmp_path: Path) -> None:
    elsewhere = FakePool(tmp_path / "elsewhere")
    there, more = elsewhere.submit("b"), elsewhere.submit("c")
    home = pool.submit("a")
    (pool.folder / "jobs" / "b").symlink_to(there)
    shutil.rmtree(home / "checkpoints" / "1")
    (home / "checkpoints" / "1").symlink_to(more)
    shutil.rmtree(home / "checkpoints" / "2")
    (home / "checkpoints" / "2").mkdir()
    (home / "checkpoints" / "2" / "log.txt").symlink_to(more / "log.txt")
    (pool.folder / "old").symlink_to(elsewhere.folder / "jobs")
    for _ in range(2):
        pool.later(40 * DAY)
    assert files(there) == GOES
    assert files(more) == GOES
    assert files(home) == {"checkpoints/1", "ended"}


def test_a_link_in_place_of_the_record_is_not_followed(pool: FakePool, tmp_path: Path) -> None:
    home = pool.submit("a")
    (tmp_path / "theirs").write_text("theirs")
    os.utime(tmp_path / "theirs", (1.0, 1.0))
    (home / "ended").symlink_to(tmp_path / "theirs")
    for _ in range(2):
        pool.later(40 * DAY)
    assert (tmp_path / "theirs").stat().st_mtime == pytest.approx(1.0)
    assert files(home) == GOES | {"ended"}


@as_root
@pytest.mark.parametrize("inner", ["", "checkpoints", "checkpoints/1"])
def test_a_folder_of_another_user_is_not_touched(pool: FakePool, inner: str) -> None:
    home = pool.submit("a", "best.ckpt")
    os.chown(home / inner, OTHER, OTHER)
    for _ in range(2):
        pool.later(40 * DAY)
    assert {path for path in files(home) if path.startswith(inner)} >= {path for path in GOES if path.startswith(inner)}
    assert ("log.txt" in files(home)) is (inner == "")


def test_nothing_is_touched_in_a_pool_of_another_user(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pool.submit("a")
    monkeypatch.setattr(ageing, "this_user", lambda: os.geteuid() + 1)
    for _ in range(2):
        pool.later(40 * DAY)
    assert files(home) == GOES


def test_what_is_no_folder_of_a_job_stays(pool: FakePool) -> None:
    (pool.folder / "old").mkdir()
    for path in (pool.folder / "jobs" / "mine", pool.folder / "old" / "mine"):
        path.mkdir(parents=True)
        (path / "log.txt").write_text("mine")
    (pool.folder / "jobs" / "log.txt").write_text("mine")
    before = files(pool.folder)
    for _ in range(2):
        pool.later(400 * DAY)
    assert files(pool.folder) == before


# ------------------------------------------------------------------------------------------------ journals


def test_journals_of_a_pool_s_earlier_times_go_unless_all_is_kept(pool: FakePool) -> None:
    old = pool.folder / "old"
    old.mkdir()
    names = [f"journal-20261123-180000-{number:06}.db{end}" for number in (1, 2) for end in ("", "-anchor")]
    for name in (*names, "journal.db", "journal-mine.db"):
        (old / name).write_text("events")
        os.utime(old / name, (BEGIN, BEGIN + DAY * ("-000002" in name)))
    pool.later(30 * DAY + 1.0, keep_all=True)
    assert len(files(old)) == 6
    pool.sweep()
    assert files(old) == {*names[2:], "journal.db", "journal-mine.db"}


@as_root
def test_a_journal_of_another_user_is_not_touched(pool: FakePool) -> None:
    path = pool.folder / "old" / "journal-20261123-180000-000001.db"
    path.parent.mkdir()
    path.touch()
    os.utime(path, (BEGIN, BEGIN))
    os.chown(path, OTHER, OTHER)
    pool.later(40 * DAY)
    assert path.exists()


# ------------------------------------------------------------------------------------------------ errors and steps


def test_what_cannot_be_removed_stays_and_is_told_once(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    homes = [pool.submit(name) for name in ("a", "b")]
    pool.later(2 * HOUR)
    unlink = os.unlink

    def refuse(path: Any, *, dir_fd: int | None = None) -> None:
        if path == "log.txt":
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    pool.later(30 * DAY)
    pool.later(HOUR)
    assert [files(home) for home in homes] == [{"log.txt", "ended"}] * 2
    [told] = caplog.messages
    assert "/log.txt: [Errno 1] Operation not permitted" in told
    monkeypatch.undo()
    pool.sweep()
    assert not any(home.exists() for home in homes)


def test_what_vanishes_meanwhile_is_no_error(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = pool.submit("a")
    pool.later(2 * HOUR)
    listdir = os.listdir

    def listed(folder: Any) -> list[str]:
        return [*listdir(folder), "log-9.txt", "gone"] if isinstance(folder, int) else listdir(folder)

    monkeypatch.setattr(os, "listdir", listed)
    pool.later(30 * DAY)
    monkeypatch.undo()
    pool.sweep()
    assert not home.exists()
    assert caplog.messages == []


def test_a_sweep_is_made_of_small_steps(pool: FakePool) -> None:
    for number in range(2 * FOLDERS_PER_STEP + 50):
        home = pool.folder / "jobs" / f"a{number}"
        home.mkdir(parents=True)
        (home / "spec.json").touch()
        os.utime(home / "spec.json", (BEGIN, BEGIN))
    pool.now += 2 * HOUR
    assert pool.sweep() == [FOLDERS_PER_STEP, 2 * FOLDERS_PER_STEP]
    pool.now += 30 * DAY
    assert pool.sweep() == list(range(1, 2 * FOLDERS_PER_STEP + 51))
    assert pool.sweep() == []


def test_sweeps_go_on_after_an_error(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = pool.submit("a")
    os.utime(home / "spec.json", (0.0, 0.0))
    monkeypatch.setattr(ageing, "FIRST_SWEEP", 0.0)
    monkeypatch.setattr(ageing, "SWEEP_INTERVAL", 0.01)
    asked = 0

    async def ask() -> tuple[Settings, dict[str, float | None]]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("the scheduler is being restarted")
        return Settings(), {"a": 40 * DAY}

    async def story() -> None:
        task = asyncio.create_task(age_out_as_time_passes(pool.folder, ask))
        await until_async(lambda: not home.exists())
        task.cancel()

    asyncio.run(story())
    assert any("were not looked at: the scheduler is being restarted" in message for message in caplog.messages)
