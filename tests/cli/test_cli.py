"""The command line: options, output, and that every error is one line and an exit code."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.problems import BundleError
from lightning_core.cli import pool_file
from lightning_core.cli.job_commands import launch
from lightning_core.cli.main import main, make_parser
from lightning_core.cli.pool_file import PoolFile, read_pool_file
from lightning_core.cluster import head as heads
from lightning_core.cluster.ray_head import MARK
from lightning_core.core.codec import job_to_dict
from lightning_core.core.commands import Cancel, Pause
from lightning_core.core.control import Asker
from lightning_core.core.events import Cell, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.node.processes import started
from lightning_core.policies import summaries
from lightning_core.pool import pool as pool_client
from lightning_core.scheduler.settings import Settings
from lightning_core.server import calls
from lightning_core.server.access.accounts import account_of
from lightning_core.server.clients.socket_client import PROTOCOL, SocketClient
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from tests.conftest import ROOT
from tests.socket_servers import Pool, socket_pool

SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a home without a pool, and restore the token afterwards."""
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LIGHTNING_CORE_POOL", raising=False)
    monkeypatch.setattr(pool_client, "RESTART_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def note(folder: Path, **changed: Any) -> None:
    """Write the head file of a pool whose head is this process."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {"pid": os.getpid(), "started": started(os.getpid()), "temp": "/nowhere", "socket": "/nowhere/door",
            "token": "/nowhere/token"} | changed  # fmt: skip
    (folder / "head.json").write_text(json.dumps(body))


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Provide a pool that the command line finds, with a script that trains."""
    with socket_pool(tmp_path / "home" / "pool") as made:
        note(made.folder, socket=str(made.path))
        client = SocketClient(made.path)
        client.join(Job("train", 600.0, BatchTarget(1000), can=SCRIPT), "cpu")
        client.report(Report("train", 1, 1, 0, 50, 5.0, (Cell(1, 5, 0.5),)))
        yield made
        client.close()


class Said:
    """Exit code and output of a command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        try:
            self.code: int | str | None = main(words)
        except SystemExit as stop:
            self.code = stop.code
        self.out, self.err = capsys.readouterr()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a folder for temporary folders, short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two jobs, one of which met its target."""
    now = [0.0]
    folder = tmp_path / "a run"
    host = Host(Settings(policy="uniform"), folder / "journal.db", clock=lambda: now[0])
    jobs = tuple(Job(name, 60.0, BatchTarget(20)) for name in ("a", "b"))
    host.handle(Submit(jobs))
    for number in range(1, 5):
        now[0] += 1.0
        host.handle(Report("a", 1, number, 1, 5 * number, 0.5 * number, (Cell(number, 5 * number, 1 / number),)))
    host.handle(WorkerExited("b", 1, ExitCause.RAISED, detail="Traceback\nValueError: \x1b[2J no"))
    host.close()
    return folder


# ---------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("words", [[], ["sing"], ["status", "--colour"], ["cancel"], ["deadline", "a"], ["up", "-n"]])
def test_an_unknown_command_prints_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: lightning-core" in capsys.readouterr().err


COMMANDS = ("init", "doctor",
            "run", "plan", "policies", "up", "down", "submit", "status", "why", "logs", "deadline", "devices", "pause",
            "resume", "cancel", "tell", "simulate", "market", "place", "history", "replay", "report", "token", "serve",
            "search", "mcp")  # fmt: skip


def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    listed = re.findall(r"^    ([a-z]+) +\S", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0


def test_options_of_a_command_have_different_help() -> None:
    parsers = [("lightning-core", make_parser(with_parts=True))]
    for name, parser in parsers:
        shown = [action.help for action in parser._actions if action.option_strings]
        assert len(shown) == len(set(shown)), name
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.items()
    assert len(parsers) > len(COMMANDS)


def test_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "policies")
    assert said.code == 0
    assert {line.split()[0] for line in said.out.splitlines()} == set(summaries())
    assert f"{Settings().policy} (default)" in said.out


# ---------------------------------------------------------------------------------------------------- no pool


AT_A_POOL = [["submit", "b.yaml"], ["status"], ["why", "a"], ["logs", "a"], ["deadline", "a", "9s"], ["pause", "a"],
             ["resume", "a"], ["cancel", "a"]]  # fmt: skip


@pytest.mark.parametrize("words", AT_A_POOL, ids=lambda words: str(words[0]))
def test_without_a_pool(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, *words)
    assert (said.code, said.err) == (2, "error: no pool is up; `lightning-core up` brings one up\n")
    said = Said(capsys, *words, "--pool", "there")
    assert (said.code, said.err) == (
        2, "error: there: there is no pool; `lightning-core up --folder there` starts one\n")  # fmt: skip
    note(tmp_path / "there", started=1)
    said = Said(capsys, *words, "--pool", "there")
    assert (said.code, said.err) == (2, "error: there: its pool is down\n")


def test_a_pool_whose_scheduler_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note(tmp_path / "home" / "pool")
    said = Said(capsys, "status")
    assert said.code == 2
    assert re.fullmatch(r"error: the pool at /nowhere/door does not answer: .*No such file.*\n", said.err)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read: Expecting value"),
        ("\x00\x01", "cannot be read"),
        ("[1]", "was not written by a pool"),
        ('{"pid": "1"}', "was not written by a pool"),
        ('{"pid": 1, "started": null, "temp": "", "socket": "", "token": ""}', "was not written by a pool"),
    ],
)
def test_an_unreadable_head_file_is_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "home" / "pool"
    folder.mkdir(parents=True)
    (folder / "head.json").write_text(text)
    for command in ("status", "down", "up"):
        said = Said(capsys, command)
        assert said.code == 2
        assert words in said.err
        assert "head.json" in said.err


def test_a_pool_of_another_protocol_is_refused(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "PROTOCOL", PROTOCOL + 1)
    said = Said(capsys, "status")
    assert (said.code, said.err) == (
        2,
        f"error: scheduler protocol {PROTOCOL + 1}, client {PROTOCOL}: upgrade the older one\n",
    )


# ---------------------------------------------------------------------------------------------------- up and down


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--config", "bundle.yaml"], "jobs: leave them out, and `submit` them once the pool is up"),
        (["--config", "list.yaml"], "expected a mapping of pool, policy"),
        (["--folder", "/proc/pool"], "/proc/pool: cannot be written"),
        (["--folder", "file"], "file: cannot be written"),
    ],
)
def test_up_with_wrong_options_starts_nothing(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "bundle.yaml").write_text("jobs: {a: {}}")
    (tmp_path / "list.yaml").write_text("[pool]")
    monkeypatch.setattr(heads, "start_ray", lambda *_: pytest.fail("Ray was started"))
    said = Said(capsys, "up", *words)
    assert said.code == 2
    assert told in said.err
    assert not (tmp_path / "home").exists()


def configured(content: str, *words: str) -> PoolFile:
    """Return the pool of a file, with options of `up`."""
    Path("pool.yaml").write_text(content)
    arguments = make_parser().parse_args(["up", "--config", "pool.yaml", *words])
    return read_pool_file(arguments.config, arguments.devices, arguments.ray)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("pool: {devices: 0}", "pool.devices: must be a whole number from 1 to 1024, got 0"),
        ("pool: {devices: {edge: 2}}", "pool.devices: locations are labels of nodes of a Ray cluster: it needs --ray"),
        ("pool: {devices: {edge: 0}}", "pool.devices.edge: must be a whole number from 1 to 1024, got 0"),
        ("pool: {resident: 0}", "pool.resident"),
        ("pool: {keep: most}", "pool.keep: must be all"),
        ("pool: {budget: 3}", "pool.budget: unknown key 'budget'"),
        ("policy: magic", "magic"),
        ("colour: red", "unknown key 'colour'"),
        ("on_verdict: {webhook: 'ftp://x'}", "must be an http or https address, got 'ftp://x'"),
        ("on_verdict: {webhook: 'http://x', secret_file: /nowhere}", "secret_file: cannot be read: No such file"),
        ('on_verdict: {command: "say \'hi"}', "cannot be split into words"),
        ("market: nowhere.csv", "nowhere.csv: No such file"),
        ("market: {interval: soon}", "duration must be such as"),
        ("market: {quotes: ./now.sh, price: 3}", "market: price is of a recorded market"),
        ("market: {quotes: ./now.sh, forecaster: perfect}", "market: forecaster must be one of last, autoregressive"),
        ("market: {quotes: ./now.sh, provision: mine}", "provision brings up nodes of a Ray cluster"),
        ("{market: m.csv, pool: {kind: gpu}}", "pool.kind: simulated nodes have no GPUs: name a Ray cluster"),
        ("{market: m.csv, pool: {devices: 600}}", "pool.devices: must be at most 512 where nodes come and go, got 600"),
        ("{market: m.csv, pool: {devices: {edge: 1}}}", "pool.devices: nodes that come and go have no locations"),
    ],
)
def test_a_wrong_file_of_a_pool_is_refused(content: str, told: str) -> None:
    Path("m.csv").write_text("available,price\n4,0.3\n")
    with pytest.raises(BundleError) as error:
        configured(content)
    assert told in str(error.value)


def test_options_count_before_the_file() -> None:
    found = configured("{pool: {devices: 2, cores: 3}, policy: 'lara:explore=5'}", "--devices", "4")
    assert (found.devices, found.resident, found.settings.cores) == (4, 8, 3)
    assert (found.settings.policy, found.settings.policy_args) == ("lara", {"explore": 5})


@pytest.mark.parametrize(
    ("content", "gpus", "has"),
    [
        ("{}", 0, ("cpu", 6, True)), ("{}", 3, ("gpu", 3, True)), ("pool: {kind: cpu}", 3, ("cpu", 6, True)),
        ("pool: {cores: 4}", 3, ("cpu", 1, True)), ("pool: {cores: 8}", 0, ("cpu", 1, True)),
        ("pool: {devices: 2}", 3, ("gpu", 2, False)), ("pool: {devices: 2}", 0, ("cpu", 2, False)),
        ("pool: {resident: 4}", 0, ("cpu", 4, True)), ("market: {interval: 30m}", 3, ("cpu", 1, False)),
    ],
)  # fmt: skip
def test_up_takes_what_the_machine_has(
    content: str, gpus: int, has: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_file, "gpus_here", lambda: gpus)
    monkeypatch.setattr(pool_file, "free_cores", lambda _: 6)
    found = configured(content)
    assert (found.kind, found.devices, found.is_all) == has


def test_a_pool_on_a_market_has_twice_the_devices() -> None:
    """New nodes are warm before old ones go."""
    Path("m.csv").write_text("available,price\n4,0.3\n")
    recorded = configured("{market: {trace: m.csv, interval: 20s, budget: 20}, pool: {devices: 3}}")
    assert (recorded.devices, recorded.settings.devices, recorded.settings.resident) == (3, 6, 6)
    assert recorded.settings.controllers["market"]["interval"] == 20.0
    assert recorded.settings.controllers["market"]["budget"] == 20.0
    quoted = configured("market: {quotes: ./now.sh, interval: 30m, policies: [max-spot], minimum_charge: 60s}")
    assert quoted.settings.controllers["market"]["minimum_charge"] == 60.0
    assert quoted.supply is not None
    assert quoted.supply.section()["quotes"] == "./now.sh"
    terms = quoted.settings.controllers["market"]["terms"]
    assert (terms["policies"], terms["quoted"]) == (["max-spot"], True)


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("{}", (False, 30 * 86400.0)),
        ("pool: {keep: all}", (True, 30 * 86400.0)),
        ("pool: {keep_ended: 2 weeks}", (False, 14 * 86400.0)),
        ("pool: {keep_ended: forever}", (False, None)),
    ],
)
def test_up_keeps_what_it_is_asked_to_keep(
    content: str,
    kept: tuple[bool, float | None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Settings] = []

    def up(_: Path, settings: Settings, *__: object, **___: object) -> dict[str, str]:
        given.append(settings)
        return {"address": "", "token": ""}

    monkeypatch.setattr(heads, "up", up)
    Path("pool.yaml").write_text(content)
    assert Said(capsys, "up", "--config", "pool.yaml").code == 0
    assert [(settings.keep_all, settings.keep_ended) for settings in given] == [kept]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{policy: edf, pool: {devices: 1, calendar: not between 22:00 and 06:00}}", ""),
        (
            "{policy: 'lara:explore=5', pool: {devices: 2, keep: all, keep_ended: 7d}}",
            "note: its jobs resume under the settings that the pool had: devices 1 instead of 2; "
            "policy edf instead of lara:explore=5; keep the default instead of all; keep_ended 30d instead of 7d; "
            "calendar not between 22:00 and 06:00 instead of none. Once all of them have ended, `down` and `up` begin "
            "a pool with other ones\n",
        ),
    ],
)
def test_up_says_where_a_pool_that_resumes_is_not_as_asked_for(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pool.yaml").write_text(content)
    folder = tmp_path / "pool"
    folder.mkdir(0o700)
    calendar = {"calendar": {"closed": ["not between 22:00 and 06:00"]}}
    Journal.create(folder / "journal.db", Settings(policy="edf", controllers=calendar)).close()
    monkeypatch.setattr(heads, "up", lambda *_, **__: {"address": "", "token": ""})
    said = Said(capsys, "up", "--folder", str(folder), "--config", "pool.yaml")
    assert said.code == 0
    assert "a pool is up under edf" in said.out
    assert said.err.endswith(told)
    assert ("resume under" in said.err) == bool(told)


@pytest.mark.parametrize(
    ("wanted", "there", "warning"),
    [
        ({}, {}, ""),
        ({"keep": "all"}, {"keep_all": True}, ""),
        ({"keep": "all"}, {}, "`keep: all` needs a pool of its own"),
        ({}, {"keep_ended": None}, ""),
        ({"keep_ended": "forever"}, {"keep_ended": None}, ""),
        ({"keep_ended": "forever"}, {}, "`keep_ended` needs a pool of its own"),
    ],
)
def test_a_bundle_is_told_that_the_pool_does_not_keep_what_it_asks_for(
    wanted: dict[str, str], there: dict[str, Any], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pool: Any = SimpleNamespace(settings=Settings(**there), submit=lambda *_, **__: [SimpleNamespace(name="a")])
    job = {"model": "tests.tiny.Line", "deadline": "9m", "target": "5 batches"}
    assert launch(pool, BundleSpec.from_dict({"pool": wanted, "jobs": {"a": job}})) == ["a"]
    told = capsys.readouterr().err
    assert warning in told
    assert bool(told) is bool(warning)


def test_up_over_a_damaged_journal_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "start_ray", lambda *_: pytest.fail("Ray was started"))
    folder = tmp_path / "home" / "pool"
    host = Host(Settings(), folder / "journal.db")
    for number in range(100):
        host.handle(Submit((Job(f"job{number}", 600.0, BatchTarget(5)),)))
    host.close()
    whole = (folder / "journal.db").read_bytes()
    for damaged in (b"no journal" * 1000, whole[:8192] + b"\xff" * 20000 + whole[28192:], whole[:9000]):
        (folder / "journal.db").write_bytes(damaged)
        said = Said(capsys, "up")
        assert said.code == 2
        assert "its jobs cannot resume" in said.err
        assert len((folder / "journal.db").read_bytes()) == len(damaged)


def test_up_in_a_temporary_folder_too_deep_for_sockets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    said = Said(capsys, "up")
    assert said.code == 2
    assert "is too long a path for Ray's sockets; set TMPDIR" in said.err
    assert not any(deep.iterdir())


def test_an_interrupted_up_leaves_no_pool(
    temporary: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while Ray comes up: the head and its folder are gone, and the next `up` is free to begin."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, head: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
        marked = os.environ | {MARK: head["mark"]}
        begun.append(
            subprocess.Popen(
                [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True, env=marked
            )
        )
        return begun[-1], 0

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(heads, "start_ray", start)
    monkeypatch.setattr(heads, "await_address", interrupted)
    said = Said(capsys, "up")
    assert said.code == 130
    assert "interrupted" in said.err
    [process] = begun
    assert process.wait(60) < 0
    assert process.stdin is not None
    process.stdin.close()
    assert not any(temporary.iterdir())
    assert "no pool is up" in Said(capsys, "status").err


def test_up_and_down_of_a_pool_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "start_ray", lambda *_: pytest.fail("Ray was started"))
    with heads._alone(tmp_path / "home" / "pool"):
        for command in ("up", "down"):
            said = Said(capsys, command)
            assert said.code == 2
            assert "another `up` or `down` is running for this folder" in said.err
    assert "no pool is up" in Said(capsys, "down").err


@pytest.mark.parametrize("command", ["up", "down"])
def test_commands_of_a_pool_here_follow_the_variable_as_those_at_a_pool_do(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "start_ray", lambda *_: pytest.fail("Ray was started"))
    monkeypatch.setenv("LIGHTNING_CORE_POOL", str(tmp_path / "other"))
    with heads._alone(tmp_path / "other"):
        assert f"{tmp_path / 'other'}" in Said(capsys, command).err
    monkeypatch.setenv("LIGHTNING_CORE_POOL", "192.0.2.10:6379")
    said = Said(capsys, command)
    assert said.code == 2
    assert "LIGHTNING_CORE_POOL=192.0.2.10:6379 is no folder: name the folder of a pool with --folder" in said.err
    monkeypatch.setenv("LIGHTNING_CORE_POOL", "local")
    with heads._alone(tmp_path / "home" / "pool"):
        assert f"{tmp_path / 'home' / 'pool'}" in Said(capsys, command).err


# ---------------------------------------------------------------------------------------------------- at a pool


def test_status_and_steering(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    assert "train" in Said(capsys, "status").out
    body = json.loads(Said(capsys, "status", "--json").out)
    [job] = body["jobs"]
    assert (job["name"], job["state"], job["batches"]) == ("train", "running", 50)
    assert "paused; it keeps its memory" in Said(capsys, "pause", "train").out
    assert "resumed" in Said(capsys, "resume", "train").out
    assert "its deadline is in 45m" in Said(capsys, "deadline", "train", "45m").out
    assert "its deadline is in 2h" in Said(capsys, "deadline", "train", "2", "hours").out
    assert "its deadline is in 2h30m" in Said(capsys, "deadline", "train", "02:30:00").out
    past = datetime.now() - timedelta(minutes=2)
    said = Said(capsys, "deadline", "train", f"{past:%H:%M}")
    assert re.search(rf"its deadline is {past:%H:%M} \S+ .*in 23h5\dm", said.out)
    assert "today is past" in said.out or past.date() != datetime.now().date()  # just after midnight it is today's
    assert Said(capsys, "deadline", "train", "2020-01-01T18:00").err.startswith(
        "error: deadline: a time must be in the future, got '2020-01-01T18:00'")  # fmt: skip
    assert "its deadline is in 45m" in Said(capsys, "deadline", "train", "45m").out
    assert Said(capsys, "devices", "train", "2").err == "error: devices must be at most the pool's 1, got 2\n"
    assert "trains on 1 device" in Said(capsys, "devices", "train", "1").out
    why = Said(capsys, "why", "train").out
    assert "pause" in why
    assert "45m" in why
    said = Said(capsys, "logs", "train")
    assert (said.code, said.err) == (
        2, "error: train has printed nothing here: a script prints in its own shell\n")  # fmt: skip
    assert "cancelled" in Said(capsys, "cancel", "train").out
    assert Said(capsys, "cancel", "train").err == "error: train has ended\n"
    # A job of the same name: the first one is asked for by its number.
    pool.do(pool.actor.submit((Job("train", 600.0, BatchTarget(7), can=SCRIPT),)))
    assert "train (job 2 of this name)" in Said(capsys, "why", "train").out
    first = Said(capsys, "why", "train@1").out
    assert first.startswith("train (job 1 of this name): cancelled")
    assert "7 batches" not in first
    assert Said(capsys, "why", "train@2").out == Said(capsys, "why", "train").out
    assert Said(capsys, "why", "train@3").err == "error: no job 'train@3'; did you mean 'train@1'?\n"
    words = f"error: name one of its jobs too: lightning-core why {pool.folder} JOB\n"
    assert Said(capsys, "why", str(pool.folder)).err == words


@pytest.mark.parametrize("command", [["why"], ["logs"], ["pause"], ["resume"], ["cancel"], ["deadline"]])
def test_an_unknown_job_is_refused(command: list[str], pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["9s"] if command == ["deadline"] else []
    assert Said(capsys, *command, "trian", *more).err == "error: no job 'trian'; did you mean 'train'?\n"
    said = Said(capsys, *command, "\x1b[2J\r", *more)
    assert said.code == 2
    assert "\x1b" not in said.err
    assert "\r" not in said.err


@pytest.mark.promise("S6")
@pytest.mark.parametrize("command", [["submit"], ["run"], ["run", "--own"]])
def test_imports_that_are_not_allowed_are_refused(
    pool: Pool, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "jobs: {a: {model: {class_path: tests.tiny.Line}, deadline: 9s, target: {batches: 9}}}\n"
    (tmp_path / "b.yaml").write_text(text)
    said = Said(capsys, *command, str(tmp_path / "b.yaml"), "--allow-import", "torch", "--allow-import", "lightning")
    assert said.code == 2
    assert "'tests.tiny.Line' is not in allow_import, torch, lightning" in said.err


REFUSED = {
    "another kind": ("pool: {kind: gpu}", "x", "tests.tiny.Line", "devices of kind gpu, the pool at {pool} has cpu"),
    "more devices": ("pool: {devices: 2}", "x", "tests.tiny.Line", "shares 2 devices, the pool at {pool} has 1"),
    "locations": ("pool: {devices: {here: 1}}", "x", "tests.tiny.Line", "the pool at {pool} has no locations"),
    "no class": ("policy: edf", "x", "tests.tiny.Lime", "module 'tests.tiny' has no 'Lime'; did you mean 'Line'?"),
    "no policy": ("policy: efd", "x", "tests.tiny.Line", "'efd'"),
    "a name that is taken": ("policy: edf", "train", "tests.tiny.Line", "the name 'train' is taken"),
    "an argument": ("policy: edf", "x", "{class_path: tests.tiny.Line, init_args: {rl: 1}}", "rl"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_plan_refuses_what_submit_and_run_refuse(pool: Pool, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    head, name, model, words = REFUSED[case]
    Path("b.yaml").write_text(f"{head}\njobs: {{{name}: {{model: {model}, deadline: 9s, target: {{batches: 9}}}}}}\n")
    said = {command: Said(capsys, command, "b.yaml") for command in ("plan", "submit", "run")}
    assert [one.code for one in said.values()] == [2, 2, 2]
    errors = {line for one in said.values() for line in one.err.splitlines() if line.startswith("error: ")}
    assert len(errors) == 1
    assert words.format(pool=pool.folder) in errors.pop()
    assert not Path("runs").exists()


def test_plan_names_the_pool_and_how_to_give_the_work(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.yaml").write_text("jobs: {x: {model: tests.tiny.Line, deadline: 9s, target: {batches: 9}}}\n")
    said = Said(capsys, "plan", "b.yaml")
    assert said.code == 0
    assert f"the pool at {pool.folder} (1 cpu device, uniform); other jobs in it are not counted" in said.err
    assert "x: of unknown work; fits if it takes at most 9.0s" in said.out
    assert "give a job `work: 40m`" in said.out
    assert "error: --try trains on this machine" in Said(capsys, "plan", "b.yaml", "--try", "20s").err
    assert "--history: nowhere is not a folder" in Said(capsys, "plan", "b.yaml", "--history", "nowhere").err


def test_an_invalid_deadline_is_refused(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("soon", "-5s", "0s", "nan"):
        said = Said(capsys, "deadline", "--", "train", words)
        assert said.code == 2
        assert re.match("error: deadline: (must be a )?duration", said.err)


def test_logs_prints_what_a_job_printed(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pool.folder / "jobs" / "train"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_bytes(b"one\x1b[2J\ntwo\n\xff three\n")
    assert Said(capsys, "logs", "train").out == "one\ntwo\n� three\n"
    assert Said(capsys, "logs", "train", "-n", "1").out == "� three\n"
    assert Said(capsys, "logs", "train", "-n", "0").out == ""
    pool.do(pool.actor.event(Cancel("train")))
    assert Said(capsys, "logs", "train", "-f").out.endswith("three\n")


@pytest.fixture
def over(pool: Pool) -> Path:
    """A launched job of the pool that was cancelled; return its folder."""
    terms = Job("over", 600.0, BatchTarget(5), can=frozenset(Capability))
    spec: Any = {"job": job_to_dict(terms), "config": {}, "cell": 1, "save_every": 300.0, "keep_best": False,
                 "hang": None, "paths": []}  # fmt: skip
    pool.do(pool.actor.launch([spec]))
    pool.do(pool.actor.event(Cancel("over")))
    home = pool.folder / "jobs" / "over"
    (home / "log.txt").write_text("printed\n")
    return home


def test_logs_and_why_say_what_has_aged_out(pool: Pool, over: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "aged out after 30d; keep_ended in the bundle sets how long"
    assert Said(capsys, "logs", "over").out == "printed\n"
    assert words not in Said(capsys, "why", "over").out
    for name in ("spec.json", "log.txt"):
        (over / name).unlink()
    said = Said(capsys, "logs", "over")
    assert (said.code, said.err) == (2, f"error: over: its log has {words}\n")
    assert f"\nits logs, spec and resume checkpoints have {words}\n" in Said(capsys, "why", "over").out
    over.rmdir()
    assert words in Said(capsys, "logs", "over", "-f").err
    assert words not in Said(capsys, "why", "train").out
    for command in (["status"], ["status", "--all", "--json"], ["report", str(pool.folder)]):
        assert Said(capsys, *command).code == 0


def test_logs_and_why_find_jobs_that_the_scheduler_has_forgotten(
    pool: Pool, over: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.actor._host, "status", list)
    assert Said(capsys, "logs", "over", "-f").out == "printed\n"
    assert "over: " in Said(capsys, "why", "over").out
    said = Said(capsys, "logs", "ovr")
    assert (said.code, said.err) == (2, "error: no job 'ovr'; did you mean 'over'?\n")
    assert "invalid job name '../over'" in Said(capsys, "logs", "../over").err


def test_the_pool_manager_is_told_which_jobs_have_ended(pool: Pool, over: Path) -> None:
    ends = pool.do(pool.actor.ends())
    assert ends.keys() == {"train", "over"}
    assert ends["train"] is None
    assert 0.0 <= ends["over"] < 60.0


def test_a_run_does_not_show_earlier_jobs_of_the_same_names(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    """A name may be used again: the earlier run of that name is not shown."""
    bundle = {
        "jobs": {
            "x": {
                "model": {"class_path": "tests.tiny.Line"},
                "data": {"class_path": "tests.tiny.Points"},
                "deadline": "9m",
                "target": {"batches": 5},
            }
        }
    }
    Path("b.yaml").write_text(json.dumps(bundle))
    assert Said(capsys, "submit", "b.yaml").code == 0
    pool.do(pool.actor.event(WorkerExited("x", 1, ExitCause.RAISED, detail="no")))

    launch = pool.actor.launch

    async def launch_and_meet(specs: list[Any]) -> None:
        await launch(specs)
        await pool.actor.event(Report("x", 2, 1, 0, 5, 1.0))
        await pool.actor.event(WorkerExited("x", 2))  # else the run waits for its worker to save

    pool.actor.launch = launch_and_meet  # type: ignore[method-assign, assignment]
    said = Said(capsys, "run", "b.yaml", "--json", "summary.json")
    assert said.code == 0, said.err
    assert json.loads(Path("summary.json").read_text())["figures"]["jobs"] == 1


# ---------------------------------------------------------------------------------------------------- journals


def test_replay_and_report_of_a_run_and_of_other_folders(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "replay", str(run_dir))
    assert said.code == 0
    assert json.loads(said.out)["identical"] is True
    assert Said(capsys, "replay", str(run_dir / "journal.db")).out == said.out
    said = Said(capsys, "report", str(run_dir))
    assert (said.code, said.out) == (0, f"{run_dir / 'report.html'}\n")
    assert "\x1b" not in (run_dir / "report.html").read_text()
    for command in ("replay", "report"):
        said = Said(capsys, command, "nowhere")
        assert said.code == 2
        assert "nowhere: no journal here" in said.err
    Path("empty").mkdir()
    said = Said(capsys, "run", "--resume", "empty")
    assert (said.code, said.err) == (2, "error: empty: there is no interrupted run here: no bundle.yaml\n")
    (run_dir / "journal.db").write_bytes(b"no journal" * 1000)
    for command in ("replay", "report"):
        said = Said(capsys, command, str(run_dir))
        assert said.code == 2
        assert "damaged journal" in said.err


def test_a_report_that_cannot_be_written(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "report", str(run_dir), "--out", "/proc/report.html")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")


def test_run_needs_a_bundle_or_a_run_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["b.yaml", "--resume", "x"]):
        assert Said(capsys, "run", *words).err == "error: run needs either a BUNDLE.yaml or --resume DIR\n"


def test_plan_prints_whether_a_bundle_fits(capsys: pytest.CaptureFixture[str]) -> None:
    job = "{model: tests.tiny.Line, deadline: %s, target: {batches: 100}, work: 60s}"
    Path("b.yaml").write_text(f"jobs: {{a: {job % '2m'}, b: {job % '3m'}}}")
    assert Said(capsys, "plan", "b.yaml").code == 0
    Path("b.yaml").write_text(f"jobs: {{a: {job % '61s'}, b: {job % '62s'}}}")
    said = Said(capsys, "plan", "b.yaml")
    assert said.code == 3
    assert "one more device" in said.out
    assert "--try must be 1.0s to 1h, got 0.1s" in Said(capsys, "plan", "b.yaml", "--try", "0.1s").err
    assert "leave out --ray" in Said(capsys, "plan", "b.yaml", "--try", "9s", "--ray", "auto").err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="run needs either"):
        main(["--debug", "run"])


@pytest.mark.parametrize("command", ["policies", "replay"])
def test_a_closed_pipe_is_no_error(command: str, run_dir: Path) -> None:
    words = [command, str(run_dir)] if command == "replay" else [command]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lightning_core.cli.main", *words],
            stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=300,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert "Broken pipe" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("deadline", ["0s", "-5m", "2020-01-01T00:00:00Z", "1e9d", "nan"])
@pytest.mark.promise("F15")
def test_a_deadline_that_is_past_is_refused_at_once(deadline: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = f"{{model: tests.tiny.Line, deadline: {deadline!r}, target: {{batches: 5}}}}"
    Path("b.yaml").write_text(f"jobs: {{a: {job}}}")
    said = Said(capsys, "run", "b.yaml", "--own", "--run-dir", "run")
    assert said.code == 2
    assert re.search("jobs.a.deadline: .*must be .*, got", said.err)
    assert not Path("run").exists()


def test_status_shows_unfinished_jobs_first_and_ten_of_each_kind(
    pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "train" in Said(capsys, "status").out
    pool.do(pool.actor.event(Submit(tuple(Job(f"old{k}", 600.0, BatchTarget(5)) for k in range(12)))))
    for k in range(12):
        pool.do(pool.actor.event(Cancel(f"old{k}")))
    pool.do(pool.actor.event(Submit(tuple(Job(f"new{k}", 600.0, BatchTarget(5)) for k in range(13)))))
    said = Said(capsys, "status").out
    shown = re.findall(r"^(train|old\d+|new\d+) ", said, re.MULTILINE)
    assert shown[0] == "train"
    assert [name[:3] for name in shown] == ["tra", *["new"] * 9, *["old"] * 10]
    assert (
        said.splitlines()[-1]
        == "and 4 more that have not ended and 2 more that have ended; `lightning-core status --all` shows them"
    )
    assert "12 cancelled" in said  # the first line counts all
    assert len(re.findall(r"^(train|old\d+|new\d+) ", Said(capsys, "status", "--all").out, re.MULTILINE)) == 26
    jobs = json.loads(Said(capsys, "status", "--json").out)["jobs"]
    assert [job["name"] for job in jobs] == ["train", *(f"old{k}" for k in range(12)), *(f"new{k}" for k in range(13))]


def test_status_shows_the_jobs_of_one_owner(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    me = account_of(os.geteuid())
    pool.do(pool.actor.event(Submit((Job("anns", 600.0, BatchTarget(5), owner="ann"),))))
    both = Said(capsys, "status").out
    assert re.search(rf"^train +{me} +running", both, re.MULTILINE)
    assert re.search(r"^anns +ann +", both, re.MULTILINE)
    mine, anns = Said(capsys, "status", "--mine").out, Said(capsys, "status", "--owner", "ann").out
    assert ("train" in mine, "anns" in mine, "train" in anns, "anns" in anns) == (True, False, False, True)
    for words, names in ((("--mine",), ["train"]), (("--owner", "ann"), ["anns"]), ((), ["train", "anns"])):
        jobs = json.loads(Said(capsys, "status", "--json", *words).out)["jobs"]
        assert [job["name"] for job in jobs] == names
        assert {job["owner"] for job in jobs} == {{"train": me, "anns": "ann"}[name] for name in names}
    assert Said(capsys, "status", "--owner", "eve").out == "no jobs of eve\n"
    assert "invalid name of a person '\\x1b[2J'" in Said(capsys, "status", "--owner", "\x1b[2J").err
    assert "not allowed with" in Said(capsys, "status", "--owner", "ann", "--mine").err
    assert f"\nowner: {me}\n" in Said(capsys, "why", "train").out


def test_status_shows_a_search_in_a_line_and_its_trials_if_asked(
    pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = (Job(f"night-{k}", 600.0, BatchTarget(5), parts={"search": {"trial_of": "night"}}) for k in range(3))
    pool.do(pool.actor.event(Submit(tuple(trials))))
    pool.do(pool.actor.event(Pause("night-1", by=Asker("search"))))
    pool.do(pool.actor.event(Cancel("night-2")))

    def shown(*words: str) -> list[str]:
        out = Said(capsys, "status", *words).out
        return re.findall(r"^(train|night-\d) ", out, re.MULTILINE) + re.findall(r"^search (.*)$", out, re.MULTILINE)

    line = "night: 3 trials: 1 waiting, 1 paused, 1 ended"
    assert shown() == ["train", "night-0", line]
    assert shown("--all") == ["train", "night-0", "night-1", "night-2", line]
    assert shown("--search", "night") == ["night-0", "night-1", "night-2", line]
    assert Said(capsys, "status", "--search", "day").out == "no jobs of search day\n"
    jobs = json.loads(Said(capsys, "status", "--json").out)["jobs"]
    assert [job["parts"] for job in jobs] == [{}, *[{"search": {"trial_of": "night"}}] * 3]
    assert "\nsearch: night\n" in Said(capsys, "why", "night-0").out


def test_status_of_one_owner_shows_what_that_owner_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket_pool(tmp_path / "home" / "pool", {"divider": {"owners": {"ann": {}}}}) as made:
        note(made.folder, socket=str(made.path))
        jobs = tuple(Job(owner, 600.0, BatchTarget(1000), can=SCRIPT, owner=owner) for owner in ("ann", "bob"))
        made.actor._host.handle(Submit(jobs))
        assert [line[:4] for line in Said(capsys, "status").out.splitlines()[-2:]] == ["ann:", "bob:"]
        assert "bob:" not in Said(capsys, "status", "--owner", "ann").out
        shares = json.loads(Said(capsys, "status", "--json", "--owner", "ann").out)["shares"]
        assert [one["owner"] for one in shares] == ["ann"]


def test_status_of_an_empty_pool(
    pool: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SocketClient, "status", lambda _: (1.0, []))
    assert Said(capsys, "status").out == "no jobs; submit some with `lightning-core submit`\n"
