"""Promises of SECURITY.md: the package neither unpickles nor evaluates, its files are private and written in place,
and untrusted text is inactive wherever people read it."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightning_core.bundle.lightning_config import check_config
from lightning_core.bundle.preflight import check_folder
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.events import Cell, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.names import check_name, is_name
from lightning_core.core.targets import LossTarget
from lightning_core.history.history import History
from lightning_core.run.differences import differences
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.storage.private_files import owner_only, private_folder
from lightning_core.view.text import clean_lines
from tests.conftest import ROOT
from tests.view.test_report import harmless

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

# ------------------------------------------------------------------------------------------------ our own code

UNPICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
YAML_READERS = {
    "load",
    "load_all",
    "full_load",
    "unsafe_load",
    "safe_load",
    "safe_load_all",
    "compose",
    "parse",
    "scan",
}
RUNS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "tempfile.mktemp", "lightning.pytorch.cli.instantiate_class",
    *(f"yaml.{name}" for name in YAML_READERS),
}  # fmt: skip
# Exceptions by file and danger, with the reason.
CELL = "a cell of the user's own notebook, which IPython would run"
ALLOWED: dict[tuple[str, str], str] = {
    ("lightning_core/pool/magics.py", "eval"): CELL,
    ("lightning_core/pool/magics.py", "exec"): CELL,
    ("lightning_core/pool/cell_script.py", "compile"): "to find mistakes of such a cell; it is not run here",
}


def dotted(function: ast.expr) -> list[str]:
    """Return the names that a call is made by, as of ``os.path.join(...)``; ``?`` stands for what is no name."""
    names = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    return [function.id if isinstance(function, ast.Name) else "?", *reversed(names)]


def dangers(code: str) -> Iterator[str]:
    """Return the forbidden calls in code, once for each occurrence."""
    tree = ast.parse(code)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in UNPICKLES)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if (node.module or "").split(".")[0] in UNPICKLES:
                yield f"import {node.module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, *rest = dotted(node.func)
        called = ".".join([names.get(first, first), *rest])
        given = {word.arg: word.value.value if isinstance(word.value, ast.Constant) else "?" for word in node.keywords}
        if called in RUNS:
            yield called
        if given.get("shell", False) is not False or given.get("allow_pickle", False) is not False:
            yield f"{called}(shell=, allow_pickle=)"
        if (called == "torch.load" or rest[-1:] == ["load_from_checkpoint"]) and given.get("weights_only") is not True:
            yield f"{called} without weights_only=True"


@pytest.mark.promise("S3", "S4", "S5")
def test_the_package_neither_unpickles_nor_evaluates() -> None:
    files = [path for folder in ("lightning_core", "callbacks", "examples", "benchmarks")
             for path in ROOT.glob(f"{folder}/**/*.py")]  # fmt: skip
    assert len(files) > 100
    found = {(str(path.relative_to(ROOT)), danger) for path in files for danger in dangers(path.read_text())}
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import cloudpickle as p",
        "from marshal import loads",
        "import torch\ntorch.load(path)",
        "from torch import load as read\nread(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=safe)",
        "Model.load_from_checkpoint(path)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "import yaml as y\ny.safe_load(text)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "eval(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "import os\nos.system(text)",
        "from os import system\nsystem(text)",
        "import subprocess as s\ns.run(text, shell=True)",
        "import subprocess\nsubprocess.run(text, shell=wanted)",
        "import tempfile\ntempfile.mktemp()",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "from lightning.pytorch.cli import instantiate_class\ninstantiate_class((), config)",
    ],
)
def test_the_search_finds_each_forbidden_call(code: str) -> None:
    assert len(list(dangers(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import yaml\nyaml.dump(content)",
        "import re\nre.compile(text)",
        "import subprocess\nsubprocess.run(words, shell=False)",
        "import json\njson.load(file)",
    ],
)
def test_the_search_ignores_harmless_calls(code: str) -> None:
    assert not list(dangers(code))


# ------------------------------------------------------------------------------------------------ untrusted text

WORDS = (
    "<script>alert(1)</script>",
    '"onload="alert(1)',
    "</script></title></style></svg>",
    "--><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    r"$\foo$",
    "a\x1b[2J\x1b]0;title\x07b",
    "a\x9b31mb",
    "done\r\n[INFO] all is well",
    "=cmd|' /C calc'!A0",
    "[bold red]x[/] {{7*7}} %s %(x)s",
    "x\u202ey\u2066z\u200b",
)
CONTROLS = {*map(chr, range(32)), *map(chr, range(127, 160))} - {"\n"}


def told(words: str) -> tuple[Scheduler, History]:
    """Return a pool in which every untrusted text is the given one."""
    scheduler, history = Scheduler(Settings()), History(Settings())

    def take(event: Submit | Report | WorkerExited, now: float) -> None:
        history.take(event, now, scheduler.handle(event, now), scheduler.accepted)

    take(Submit((Job(words, 50.0, LossTarget(words, 0.5)), Job("b", 50.0, LossTarget("loss", 0.5)))), 0.0)
    take(Report(words, 1, 1, 1, 20, 1.0, (Cell(1, 10, 1.0), Cell(2, 20, 0.9))), 5.0)
    take(WorkerExited(words, 1, ExitCause.RAISED, detail=f"Traceback\n  {words}\nValueError: {words}"), 6.0)
    return scheduler, history


@pytest.mark.promise("S8")
@pytest.mark.parametrize("words", WORDS)
def test_terminals_get_plain_text_only(words: str, tmp_path: Path) -> None:
    from rich.console import Console

    from lightning_core.view.board import Board
    from lightning_core.view.progress import PlainView, print_summary
    from lightning_core.view.why import why

    scheduler, history = told(words)
    jobs, out = scheduler.status(), io.StringIO()
    PlainView(out).update(7.0, jobs)
    print_summary(Summary.of(Settings(), 7.0, jobs, tmp_path), out)
    for width in (60, 200):
        Console(file=out, width=width, force_terminal=False).print(Board(7.0, jobs, words))
    print("\n".join(why(history, words)), file=out)
    text = out.getvalue()
    assert "crashed" in text
    assert not CONTROLS & set(text)
    assert not [line for line in text.splitlines() if line.startswith("[INFO]")]
    assert not {"\u202e", "\u2066", "\u200b"} & set(text)
    if "[bold" in words:
        assert "[bold red]" in text  # shown, not interpreted


@pytest.mark.promise("S8")
@pytest.mark.parametrize("words", WORDS)
def test_reports_contain_plain_text_only(words: str) -> None:
    from lightning_core.report.page import page

    _, history = told(words)
    text = page(history, words)
    harmless(text)
    assert not CONTROLS & set(text)


@pytest.mark.promise("S8")
@pytest.mark.parametrize("words", WORDS)
def test_lines_of_a_log_cannot_control_the_terminal(words: str) -> None:
    shown = clean_lines(f"before\n{words}\n\tafter\n")
    assert shown.startswith("before\n")
    assert shown.endswith("\n\tafter\n")
    assert not CONTROLS - {"\t"} & set(shown)


@pytest.mark.promise("S8")
@pytest.mark.parametrize("words", WORDS)
def test_an_error_is_one_line_of_plain_text(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lightning_core.cli.main import main

    with pytest.raises(BundleError) as caught:
        Bundle.from_dict({"jobs": {words: {}}, words: words}, source=words)
    for problem in caught.value.problems:
        assert "\n" not in problem
        assert not CONTROLS & set(problem)
    assert main(["run", str(tmp_path / words.replace("/", ""))]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1 or "\r\n" in words
    assert all(line.startswith("error: ") for line in said.splitlines())
    assert not CONTROLS & set(said)


@pytest.mark.promise("S8")
def test_no_output_is_a_spreadsheet() -> None:
    for path in ROOT.glob("lightning_core/**/*.py"):
        assert not re.search(r"csv\.(writer|DictWriter)", path.read_text()), "cells must not begin with = + - @"


# ------------------------------------------------------------------------------------------------ names and places


@pytest.mark.promise("S7", "F16")
@pytest.mark.parametrize("name", ["a", "vit-2.b_c", "7", "x" * 63, "contest", "null", "com"])
def test_valid_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    "name",
    ["", "x" * 64, "x" * 10**6, "../x", "..", ".", "a/b", "a\\b", "-rf", "--help", ".hidden", "a\0b", "a\nb", "a b",
     "a.", "CON", "con", "nul.txt", "Lpt1", "aux.tar.gz", "<script>", "j\u043eb", "\uff41", "a\u0301", "\u2170", "~",
     "$HOME", "a:b", "*", 7, None, True, ["a"]],
)  # fmt: skip
def test_invalid_names_are_refused(name: object) -> None:
    assert not is_name(name)
    with pytest.raises(ValueError, match="invalid job name") as caught:
        check_name(name)
    assert str(caught.value).isascii()  # look-alike letters are refused
    assert len(str(caught.value)) < 300


@pytest.mark.promise("S7")
@pytest.mark.parametrize(
    "place", ["", "jobs", "jobs/a", "jobs/a/spec.json", "jobs/a/checkpoints", "jobs/a/checkpoints/1", "journal.db"]
)
def test_links_are_never_written_through(tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "run" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(BundleError, match=f"{link}: is a link to {elsewhere}; replace it by a folder or file"):
        check_folder(tmp_path / "run")
    assert not list(elsewhere.iterdir())


def test_links_that_a_job_makes_are_kept(tmp_path: Path) -> None:
    own = tmp_path / "jobs" / "a" / "lightning_logs"
    own.mkdir(parents=True)
    (own / "last.ckpt").symlink_to("epoch=1.ckpt")
    (tmp_path / "jobs" / "a" / "latest").symlink_to("lightning_logs")
    check_folder(tmp_path)


# ------------------------------------------------------------------------------------------------ file modes


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """Set a permissive umask."""
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


@pytest.mark.promise("S2")
@pytest.mark.usefixtures("open_to_all")
def test_new_files_are_readable_by_the_user_only(tmp_path: Path) -> None:
    check_folder(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o700
    with owner_only():
        (tmp_path / "file").write_text("")
    assert mode(tmp_path / "file") == 0o600
    given = tmp_path / "given"
    given.mkdir(mode=0o755)
    private_folder(given)
    assert mode(given) == 0o755  # its mode was chosen by the user


@pytest.mark.promise("S2")
@pytest.mark.usefixtures("open_to_all")
def test_the_spec_of_a_run_is_readable_by_the_user_only(tmp_path: Path) -> None:
    from lightning_core.run.run_folder import new_run_dir, write_spec

    job = {"model": "tests.tiny.Line", "deadline": "9s", "target": {"batches": 1}}
    folder = new_run_dir(tmp_path / "run")
    write_spec(Bundle.from_dict({"jobs": {"a": job}, "allow_import": ["tests"]}), folder)
    assert (mode(folder), mode(folder / "bundle.yaml")) == (0o700, 0o600)
    again = Bundle.from_file(folder / "bundle.yaml")
    assert again.allow_import == ("tests",)
    assert again.jobs[0].job.name == "a"


# ------------------------------------------------------------------------------------------------ secrets


@pytest.mark.promise("S11")
def test_secrets_are_not_shown() -> None:
    def bundle(value: object, job: str = "token-classification") -> Bundle:
        model = {
            "class_path": "tests.tiny.Line",
            "init_args": {"api_key": value, "lr": 0.1, "deep": {"password": value}},
        }
        return Bundle.from_dict({"jobs": {job: {"model": model, "deadline": "9s", "target": {"batches": 1}}}})

    assert differences(bundle("hunter2"), bundle("hunter3")) == [
        "jobs.token-classification.model.init_args.api_key: changed (not shown here)",
        "jobs.token-classification.model.init_args.deep.password: changed (not shown here)",
    ]
    found = Problems(Position("b"))
    found.at("model", "init_args", "api_key", "inner").add("expected int, got 'hunter2'")
    found.at("model", "init_args", "lr").add("expected int, got 'hunter2'")
    given = {"kind": 7, "token": "hunter2"}  # the parser's message repeats its input
    check_config({"model": {"class_path": "tests.bundle.test_yaml_loader.Choosy", "init_args": given}}, found)
    assert found.messages[:2] == [
        "b: model.init_args.api_key.inner: expected int, got what is not shown here",
        "b: model.init_args.lr: expected int, got 'hunter2'",
    ]
    assert len(found.messages) == 3
    assert "'token': '...'" in found.messages[2]
    assert "hunter2" not in found.messages[2]
    with pytest.raises(BundleError, match="got 'hunter2'"):  # the name of a job is not hidden
        Bundle.from_dict({"jobs": {"token": {"model": "a.B", "deadline": "hunter2", "target": {"batches": 1}}}})


# ------------------------------------------------------------------------------------------------ dependencies


@pytest.mark.promise("S10")
def test_malicious_releases_are_excluded() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for lines in project["optional-dependencies"].values() for line in lines]
    lightning = [requirement for requirement in wanted if requirement.name == "lightning"]
    assert lightning
    for requirement in lightning:
        assert not {"2.6.2", "2.6.3"} & set(requirement.specifier.filter(["2.6.1", "2.6.2", "2.6.3", "2.6.6"]))
        assert "2.6.6" in requirement.specifier


@pytest.mark.promise("S10")
def test_the_lock_file_is_complete_and_agrees_with_the_requirements() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    locked = {}
    for entry in filter(str.strip, entries):
        found = re.match(r"([a-z0-9.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", entry)
        assert found, entry[:80]
        locked[canonicalize_name(found[1])] = Version(found[2])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_tests = ("lightning", "ray", "view", "tensorboard", "serve", "mcp", "dev")
    asked = [*project["dependencies"], *(line for extra in of_tests for line in extras[extra])]
    asked += [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    for requirement in map(Requirement, asked):
        assert locked[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert not {"file:", "git+", "http:"} & set(re.findall(r"file:|git\+|http:", text))
    # Everything that pip would install on Linux with the CPU build is locked.
    assert len(locked) > 80


# ------------------------------------------------------------------------------------------------ Ray

STRANGER = """
from ray._raylet import GcsClient
try:
    print("inside", len(GcsClient(address=ADDRESS).internal_kv_keys(b"", None, 5)) > 0)
except Exception as error:
    print("outside", error)
"""


@pytest.mark.promise("S1")
@pytest.mark.parametrize("mode", ["disabled", "DISABLED", "none"])
def test_every_ray_that_is_started_has_a_token(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_core.cluster import ray_cluster

    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr("ray.init", lambda **given: pytest.fail("it was started"))
    with pytest.raises(BundleError, match=f"RAY_AUTH_MODE is '{mode}', but a Ray started here needs a token: unset it"):
        ray_cluster.start_local_ray(tmp_path)


@pytest.mark.promise("S1")
def test_a_ray_without_token_authentication_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads its mode once, when it is imported."""
    from lightning_core.cluster import ray_cluster

    done: list[str] = []
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr("ray.init", lambda **given: done.append("init"))
    monkeypatch.setattr("ray.shutdown", lambda: done.append("shutdown"))
    monkeypatch.setattr(ray_cluster, "has_token", lambda: False)
    with pytest.raises(BundleError, match="this Ray started without a token"):
        ray_cluster.start_local_ray(tmp_path)
    assert done == ["init", "shutdown"]


@pytest.mark.promise("S1")
def test_a_cluster_without_a_token_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lightning_core.cluster import cluster

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    for token, warned in ((False, True), (True, False)):
        caplog.clear()
        monkeypatch.setattr(cluster, "has_token", lambda token=token: token)
        monkeypatch.setattr(cluster, "start_pool_manager", lambda *given: pytest.fail("far enough"))
        with pytest.raises(pytest.fail.Exception):
            cluster.Cluster(workers=1).__enter__()
        assert ("this Ray requires no token" in caplog.text) == warned


@pytest.mark.cluster
@pytest.mark.promise("S1")
def test_other_users_have_no_access(local_ray: None, record_property: Callable[[str, object], None]) -> None:
    import psutil
    import ray

    from lightning_core.cluster.ray_cluster import has_token

    assert has_token()
    address = ray.get_runtime_context().gcs_address
    hidden = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"}
    plain = {key: value for key, value in os.environ.items() if key not in hidden} | {"HOME": "/nonexistent"}
    answers = []
    for known in (
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]},
    ):
        code = STRANGER.replace("ADDRESS", repr(address))
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, env=plain | known, capture_output=True, text=True, timeout=300, check=True)
        answers.append(done.stdout)
    assert all(answer.startswith("outside RPC error: InvalidAuthToken") for answer in answers[:2]), answers
    assert answers[2] == "inside True\n"

    listening = [(process.name(), place.laddr) for process in psutil.Process().children(recursive=True)
                 for place in process.net_connections("tcp") if place.status == "LISTEN"]  # fmt: skip
    assert listening
    agents = [place for name, place in listening if "Agent" in name]
    for place in agents:  # what speaks HTTP
        for header, expected in (({}, 401), ({"Authorization": f"Bearer {'0' * 64}"}, 403)):
            for path in ("/", "/get_or_create_runtime_env", "/api/jobs/"):
                connection = HTTPConnection(place.ip, place.port, timeout=10)
                connection.request("POST" if "env" in path else "GET", path, headers=header)
                assert connection.getresponse().status == expected, (place, path)
                connection.close()
    record_property("figure", f"{len(listening)} ports listen, {len(agents)} of them HTTP; all ask for the token")


@pytest.mark.cluster
@pytest.mark.promise("S2")
def test_the_token_does_not_leak_and_a_run_is_private(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import psutil
    import ray

    token = os.environ["RAY_AUTH_TOKEN"]
    job = {"model": "tests.tiny.Line", "data": "tests.tiny.Points", "trainer": {"logger": False}, "deadline": "10m",
           "target": {"batches": 5}, "cell": 1}  # fmt: skip
    before = os.umask(0)
    try:
        made = Bundle.from_dict({"jobs": {"a": job}}, ROOT).run(run_dir=tmp_path / "run", cluster=cluster)
    finally:
        os.umask(before)
    assert made.met == 1
    session = Path(ray._private.worker._global_node.get_session_dir_path())  # type: ignore[attr-defined]
    [top] = [folder for folder in session.parents if folder.name.startswith("lc-")]
    assert mode(top) == 0o700  # Ray makes its contents readable by all
    written = list((tmp_path / "run").glob("**/*"))
    assert {path.name for path in written} >= {"bundle.yaml", "journal.db", "summary.json", "jobs", "spec.json"}
    for path in (tmp_path / "run", *written):
        assert not mode(path) & 0o077, path
    for path in (*written, *session.glob("**/*")):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie, which is one: it has ended meanwhile
            assert token not in " ".join(process.cmdline())
    assert token not in "".join(capfd.readouterr())
