"""Commands about folders that belong to another user: none of them acts, and a journal can be read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.agent.reporting.joining import Join
from lightning_core.cli.main import main
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.node.processes import started
from lightning_core.pool import Pool
from lightning_core.run.pool_reference import PoolReference
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.local_client import LocalClient
from lightning_core.server.discovery import PoolUnavailableError
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.journal_lock import lock_journal
from lightning_core.storage.private_files import TRUST
from tests.conftest import ROOT
from tests.others import OTHER, as_root, give_away

BUNDLE = "jobs: {a: {model: {class_path: mine.Net}, deadline: 60, target: {batches: 10}}}\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LIGHTNING_CORE_POOL", raising=False)
    monkeypatch.chdir(tmp_path)


def journal(folder: Path) -> None:
    """Write a journal in which a job was submitted."""
    host = Host(Settings(), folder / "journal.db")
    host.handle(Submit((Job("a", 600.0, BatchTarget(10)),)))
    host.close()


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pool and a run of another user, where this account's pool is looked for."""
    folder = tmp_path / "home" / "pool"
    folder.mkdir(parents=True, mode=0o755)
    journal(folder)
    note = {"pid": os.getpid(), "started": started(os.getpid()), "temp": "/nowhere/lc-x", "socket": "/nowhere/socket",
            "token": "/nowhere/token", "address": "127.0.0.1:1"}  # fmt: skip
    (folder / "head.json").write_text(json.dumps(note))
    (folder / "bundle.yaml").write_text(f"{BUNDLE}\nmarket: {{quotes: touch hacked}}\n")
    (tmp_path / "mine.yaml").write_text(BUNDLE)
    give_away(folder, monkeypatch)
    return folder


COMMANDS = [
    "up", "down", "status", "status --json", "submit mine.yaml", "logs a", "why a", "pause a --release", "resume a",
    "cancel a", "deadline a 1h", "devices a 1", "run mine.yaml", "run --resume home/pool",
    "run --resume home/pool --recover", "run mine.yaml --pool home/pool", "status --pool home/pool",
    "up --folder home/pool", "up --folder home/pool --recover", "down --folder home/pool", "init home/pool/new",
]  # fmt: skip


@pytest.mark.promise("S13")
@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_acts_on_a_folder_of_another_user(
    line: str, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in theirs.iterdir())
    try:
        code = main(line.split())
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr().err
    assert code == 2, said
    assert "belongs to" in said
    assert TRUST in said
    assert sorted(path.name for path in theirs.iterdir()) == before


def test_a_pool_of_another_user_is_not_connected_to(theirs: Path) -> None:
    for where in ("auto", str(theirs)):
        with pytest.raises(PoolUnavailableError, match="belongs to"):
            Pool.connect(where)


@pytest.mark.promise("S13")
def test_a_script_trains_without_the_pool_of_another_user(theirs: Path, caplog: pytest.LogCaptureFixture) -> None:
    connection = Join(Job("a", 60.0, BatchTarget(10)), "auto", "cpu")()
    assert isinstance(connection.client, LocalClient)
    assert "training without the pool" in caplog.text
    assert "belongs to" in caplog.text


@pytest.mark.promise("S13")
def test_no_scheduler_continues_a_journal_of_another_user(theirs: Path) -> None:
    with pytest.raises(JournalError, match="belongs to"):
        Journal.open(theirs / "journal.db")
    with pytest.raises(JournalError, match="belongs to"):
        lock_journal(theirs / "journal.lock")
    with pytest.raises(JournalError, match="belongs to"):
        Host(Settings(), theirs / "journal.db")


def test_a_journal_of_another_user_can_be_read(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("replay home/pool", "report home/pool --out report.html", "why home/pool a"):
        assert main(line.split()) == 0, capsys.readouterr().err
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert main(["report", "home/pool"]) == 2
    assert "--out" in capsys.readouterr().err
    assert not (theirs / "report.html").exists()


def test_the_reference_of_another_user_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written into their folder, and what lies there names no other one."""
    (tmp_path / "pool").mkdir(mode=0o700)
    journal(tmp_path / "pool")
    (tmp_path / "run").mkdir(mode=0o755)
    PoolReference("auto", str(tmp_path / "pool"), ("a",), 0.0).write(tmp_path / "run")
    give_away(tmp_path / "run", monkeypatch)
    assert main(["replay", "run"]) == 2
    assert "no journal here" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["pool.json"]


# ------------------------------------------------------------------------------------------ with a real other user


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder to which every user can write, as /tmp."""
    made = Path(tempfile.mkdtemp(dir="/tmp", prefix="open-"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


@pytest.mark.promise("S13")
@as_root
def test_a_pool_that_another_user_has_made_is_refused(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process of theirs makes it, where this account's pool is looked for."""
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(open_folder))
    script = (
        "import json, os, pathlib\n"
        f"os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})\n"
        f"pool = pathlib.Path({str(open_folder / 'pool')!r})\n"
        "pool.mkdir()\n"
        f"note = dict(pid={os.getpid()}, started={started(os.getpid())}, temp='/lc-x', socket='/s', token='/t')\n"
        "(pool / 'head.json').write_text(json.dumps(note))\n"
    )
    subprocess.run([sys.executable, "-S", "-c", script], check=True, cwd="/")
    for line in ("up", "down", "status", "submit mine.yaml"):
        assert main(line.split()) == 2
        assert f"{open_folder / 'pool'}: belongs to user {OTHER}, and this process runs as root" in (
            capsys.readouterr().err
        )


@as_root
def test_another_user_cannot_use_our_pool_either(open_folder: Path) -> None:
    """Theirs is the same code: here they are this user, and we are the other one."""
    pool = open_folder / "pool"
    pool.mkdir(mode=0o755)
    (pool / "head.json").write_text("{}")
    os.chown(pool, OTHER + 1, OTHER + 1)
    script = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from lightning_core.storage.private_files import check_ours, NotOursError\n"
        f"os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})\n"
        "try:\n"
        f"    check_ours(Path({str(pool)!r}))\n"
        "except NotOursError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/").stdout
    assert said.startswith(f"{pool}: belongs to user {OTHER + 1}, and this process runs as user {OTHER}")
