"""Typing mistakes on the command line: each is an error of one line with the rule, the value and the intended word.

None of them starts anything, writes anything, or ends in a traceback.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.cli.main import main
from lightning_core.cluster import cluster, head
from lightning_core.pool import NoPoolError
from lightning_core.server.clients.socket_client import SocketClient
from tests.cli.test_cli import Said, _home, pool, run_dir  # noqa: F401
from tests.socket_servers import Pool

ONE = "jobs: {a: {model: tests.tiny.Line, data: tests.tiny.Points, deadline: 9s, target: {batches: 5}}}"
DURATION = r"must be a duration such as '90s', '1h30m' or '02:30:00', or a time such as '18:00' or '2026-11-23T18:00'"

MISTAKES = {
    # ------------------------------------------------------------------------------ commands and options
    "stauts": "unknown: 'stauts'; did you mean status",
    "Status": "unknown: 'Status'; did you mean status",
    "help": "unknown: 'help'; expected one of run, plan, ",
    "": "a command is missing; --help lists them",
    "--debug": "a command is missing",
    "--verion": "unknown option: --verion; did you mean --version",
    "-x": "unknown option: -x",
    "status --wach": "lightning-core status: error: unknown option: --wach; did you mean --watch",
    "status --jsn --all": "unknown option: --jsn; did you mean --json",
    "status more words": "unknown argument: more words",
    "pause train --releese": "unknown option: --releese; did you mean --release",
    "pause train b": "unknown argument: b",
    "down now": "unknown argument: now",
    "market pln": "unknown: 'pln'; did you mean plan",
    "market": "required: WHAT",
    "market plan --dedline 5": "lightning-core market plan: error: unknown option: --dedline; did",
    "market plan --deadline 5 --work 4 --policy lst": "spot policy must be one of .*, got 'lst'",
    "run --polcy edf b.yaml": "unknown option: --polcy; did you mean --policy",
    "run b.yaml --market x.csv": "unknown option: --market",
    "market ledger --picture": "--picture: expected one argument",
    "run": "run needs either a BUNDLE.yaml or --resume DIR",
    "run b.yaml --resume run": "run needs either a BUNDLE.yaml or --resume DIR",
    # ------------------------------------------------------------------------------ numbers
    "logs train -n -5": "--lines: must be a whole number of at least 0, got '-5'",
    "logs train -n x": "--lines: must be a whole number of at least 0, got 'x'",
    "logs train -n 1.5": "--lines: must be a whole number of at least 0, got '1.5'",
    "logs train -n -5m": "--lines: must be a whole number of at least 0, got '-5m'",
    "up --devices two": "--devices: must be a whole number from 1 to 1024, got 'two'",
    "up --devices 999999999999": "--devices: must be a whole number from 1 to 1024, got '999999999999'",
    "simulate b.yaml --seed -1": "--seed must be at least 0, got -1",
    "simulate b.yaml --devices 0": "--devices must be 1 to 1024, got 0",
    "simulate b.yaml --save-every -5": "--save-every must be at least 0, got -5",
    "simulate b.yaml --delays swich=0.2": "unknown delay 'swich'; did you mean 'switch'",
    "simulate b.yaml --delays switch=-1": "delay switch must be at least 0 seconds and finite, got -1",
    "market plan --deadline 99999999999 --work 4": "--deadline: must be a whole number from 1 to 100000, got",
    "market plan --deadline 5 --work x": "--work: invalid float value: 'x'",
    # ------------------------------------------------------------------------------ durations and times
    "deadline train": "required: WHEN",
    "deadline train soon": f"deadline: {DURATION}, got 'soon'",
    "deadline train -5m": "deadline: duration must be positive, got '-5m'",
    "deadline train 0": "deadline: duration must be positive, got '0'",
    "deadline train 2 hour s": f"deadline: {DURATION}, got '2 hour s'",
    "deadline train 25:00": "a time of day is 00:00 to 23:59, got '25:00'",
    "deadline train 2020-01-01T18:00": "a time must be in the future, got '2020-01-01T18:00'",
    "deadline train 2026-11-23": "a date needs a time of day too, such as 2026-11-23T18:00",
    "deadline train 99999999999999999999d": "duration must be at most 10 years",
    "deadline train \uff12h": "got '\uff12h'",
    # ------------------------------------------------------------------------------ names
    "logs trian": "no job 'trian'; did you mean 'train'",
    "why trian": "no job 'trian'; did you mean 'train'",
    "why run c": "no job 'c'; expected one of a, b",
    "deadline Train 2h": "no job 'Train'; did you mean 'train'",
    "resume run": "no job 'run'; expected one of train",
    "cancel '\x1b[2Jtrain'": r"no job '\\x1b\[2Jtrain'; did you mean 'train'",
    "status '\x1b[2J'": r"unknown argument: \\x1b\[2J",
    "run b.yaml --own --policy traige": "got 'traige'; did you mean 'triage'",
    "run b.yaml --own --policy triage:levle=1": "policy triage: unknown argument 'levle'; did you mean 'level'",
    "run b.yaml --own --policy triage:level": "policy must be NAME or NAME:KEY=VALUE,..., got 'triage:level'",
    "up --config nowhere.yaml": "nowhere.yaml: not found",
    "up --keep all": "unknown option: --keep",
    "up --kind gpu": "unknown option: --kind",
    # ------------------------------------------------------------------------------ empty
    "logs ''": "argument JOB: must not be empty, got ''",
    "submit ''": "argument JOB.yaml: must not be empty, got ''",
    "status --pool ''": "--pool: must not be empty, got ''",
    "run b.yaml --policy ''": "--policy: must not be empty, got ''",
    "run b.yaml --ray ''": "--ray: must not be empty, got ''",
    "up --folder ''": "--folder: must not be empty, got ''",
    "deadline train ''": "argument WHEN: must not be empty, got ''",
    # ------------------------------------------------------------------------------ files and folders
    "submit nowhere.yaml": "nowhere.yaml: not found",
    "submit empty": "empty: cannot be read: Is a directory",
    "submit file": "file:2:1: ",
    "plan b.yaml --history nowhere": "--history.*nowhere",
    "simulate b.yaml --curves file": "file: is not a folder of recordings",
    "simulate b.yaml --curves empty": "empty: no recordings here",
    "run b.yaml --json nowhere/x.json": "--json: must be in a folder that exists, got 'nowhere/x.json'",
    "run b.yaml --json empty": "--json: must be a file, got the folder 'empty'",
    "simulate b.yaml --json nowhere/x.json": "--json: must be in a folder that exists, got 'nowhere/x.json'",
    "report run --out nowhere/x.html": "--out: must be in a folder that exists",
    "report run --out empty": "--out: must be a file, got the folder 'empty'",
    "run --resume nowhere": "nowhere: there is no interrupted run here",
    "run --resume file": "file: there is no interrupted run here",
    "why empty a": "empty/journal.db: no journal here",
    "replay file": "file: damaged journal: file is not a database",
    "report nowhere": "nowhere: no journal here",
    "market plan --deadline 5 --work 4 --trace nowhere": "nowhere: No such file or directory",
    "market plan --deadline 5 --work 4 --trace empty": "empty: Is a directory",
    "status --pool nowhere": "nowhere: there is no pool",
    "status --pool file": "file: there is no pool",
}  # fmt: skip


@pytest.fixture
def place(pool: Pool, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """Provide a folder with a pool, a run, a bundle, and files that are none of these."""
    monkeypatch.setattr(head, "start_ray", lambda *_: pytest.fail("Ray was started"))
    monkeypatch.setattr(cluster, "start_local_ray", lambda *_: pytest.fail("Ray was started"))
    monkeypatch.setattr(SocketClient, "launch", lambda *_: pytest.fail("jobs were submitted"))
    run_dir.rename(tmp_path / "run")
    (tmp_path / "file").write_text("jobs: [\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "b.yaml").write_text(ONE)
    return tmp_path


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_explained_in_one_line(line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.rglob("*"))
    said = Said(capsys, *shlex.split(line))
    assert said.code == 2
    last = said.err.strip().rsplit("\n", 1)[-1]
    assert re.search(MISTAKES[line], last), said.err
    assert "Traceback" not in said.err
    assert said.err.replace("\n", "").isprintable()
    made = [path for path in place.rglob("*") if path not in before and path.suffix not in (".db-shm", ".db-wal")]
    assert made == []


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "--version")
    assert (said.code, re.fullmatch(r"lightning-core \d+\.\d+\.\d+\n", said.out) is not None) == (0, True)


def test_debug_is_accepted_anywhere() -> None:
    for words in (["--debug", "status"], ["status", "--debug"]):
        with pytest.raises(NoPoolError, match="no pool is up"):
            main(words)


def test_python_m_runs_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_core", "policies"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert "triage (default)" in done.stdout


# ---------------------------------------------------------------------------------------------------- completion


def completed(line: str) -> set[str]:
    """Return the completions that a shell gets if Tab is pressed at the end of a line."""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    command = [sys.executable, "-m", "lightning_core"]
    done = subprocess.run(
        ["bash", "-c", '"$@" 8>&1 9>/dev/null >/dev/null 2>/dev/null', "-", *command],
        env=os.environ | asked, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return {word.strip() for word in done.stdout.split("\n") if word and not word.startswith("-")}


def test_completion_is_printed(place: Path) -> None:
    """Each takes a second of its own."""
    assert completed("lightning-core s") == {"status", "submit", "serve", "simulate", "search"}
    assert completed("lightning-core pause ") == {"train"}


@pytest.mark.nightly
def test_completion_is_printed_of_policies_runs_and_their_jobs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("lightning-core run b.yaml --policy tr") == {"triage"}
    (place / "run" / "jobs" / "vit").mkdir(parents=True)
    assert completed("lightning-core report r") == {"run"}
    assert "vit" in completed("lightning-core why run ")
    assert {"run", "train"} <= completed("lightning-core why ")
    monkeypatch.setenv("LIGHTNING_CORE_HOME", "/nowhere")
    assert completed("lightning-core pause ") == set()
