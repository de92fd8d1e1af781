"""What `doctor` says of this machine, and what `up` and `run` refuse because of it before anything starts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle import preflight
from lightning_core.bundle.problems import BundleError
from lightning_core.cli import machine_checks, run_bundle
from lightning_core.cli.doctor import show, table
from lightning_core.cli.machine_checks import ANY_POOL, CHECKS, OWN_RAY, WITH_GPUS, ThisMachine, examine, refusals
from lightning_core.cluster.bundle import Bundle
from lightning_core.node.checks import disk_checks, gpu_checks, package_checks, system_checks
from lightning_core.node.checks.findings import Finding, Severity, error, note, ok, warning
from lightning_core.node.checks.gpu_checks import GpuReading, GpuState
from lightning_core.node.checks.limit_checks import PoolSize
from lightning_core.node.checks.package_checks import TorchBuild
from lightning_core.node.mounts import Mount
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.anchor import Anchor, AnchorFile, anchor_path, boot_id, since_boot
from lightning_core.storage.journals.journal import Journal
from tests.cli.test_cli import Said, _home, temporary  # noqa: F401
from tests.cli.test_cli import note as head_note
from tests.conftest import ROOT
from tests.others import as_other, as_root, give_away

OK, NOTE, WARNING, ERROR = Severity


def found(name: str, folder: Path, **environment: str) -> Finding:
    """Return what a check finds of this machine with a folder and an environment."""
    machine = ThisMachine(folder, PoolSize(1, 2), "cpu", environment=environment)
    [finding] = examine(machine, [name])
    assert finding.name == name
    assert bool(finding.remedy) == (finding.severity is not OK), finding
    return finding


@pytest.fixture
def on_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders are on a network disk."""
    monkeypatch.setattr(disk_checks, "mount_of", lambda path: Mount("/", "/", "nfs4", frozenset()))


# ---------------------------------------------------------------------------------------------------- the command


def test_it_prints_a_list_of_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "doctor", "--json")
    findings = json.loads(said.out)
    names = [finding["name"] for finding in findings]
    assert names == [name for name in CHECKS if name in names]  # each once, in this order
    assert {"packages", "cores", "shared-memory", "journal-disk", "clock", "pool"} <= set(names)
    for finding in findings:
        assert list(finding) == ["name", "severity", "found", "remedy"]
        assert finding["severity"] in ("ok", "note", "warning", "error")
        assert bool(finding["remedy"]) == (finding["severity"] != "ok"), finding
        assert "cannot be checked" not in finding["found"]
    assert said.code == any(finding["severity"] == "error" for finding in findings)
    assert list(tmp_path.iterdir()) == []  # it makes nothing
    assert f"{tmp_path / 'home' / 'pool'}, which `up` will make" in said.out


FINDINGS = [
    ok("cores", "2"),
    note("gpu-memory", "in use \x1b[2J", "look at nvidia-smi"),
    warning("shared-memory", "64MiB free " * 8, "make it larger"),
]


@pytest.mark.parametrize(("more", "code"), [([], 0), ([error("loopback", "it is down", "ip link set lo up")], 1)])
def test_an_error_is_its_exit_code(
    more: list[Finding], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_checks, "examine", lambda machine: FINDINGS + more)
    said = Said(capsys, "doctor")
    assert said.code == code
    lines = said.out.splitlines()
    assert lines[0] == "ok       cores          2"
    assert lines[1:3] == ["note     gpu-memory     in use [2J", "                        -> look at nvidia-smi"]
    assert lines[-1] == ("1 error: a pool or a training cannot run; 1 warning, 1 note" if more
                         else "no error; 1 warning, 1 note")  # fmt: skip


def test_on_a_terminal_it_is_wrapped_and_reads_the_same_without_colour() -> None:
    from rich.console import Console

    console = Console(width=60, record=True, file=open(os.devnull, "w"), highlight=False, markup=False)  # noqa: SIM115
    console.print(table(FINDINGS))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].split() == ["ok", "cores", "2"]
    assert [line for line in lines if "->" in line] == [
        line.ljust(60) for line in (f"{'':24}-> look at nvidia-smi", f"{'':24}-> make it larger")
    ]


def test_without_rich_a_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show(FINDINGS)
    with_rich = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    show(FINDINGS)
    without = capsys.readouterr().out
    assert without.splitlines()[0] == "ok       cores          2"
    assert with_rich.splitlines()[0].split() == without.splitlines()[0].split()


def test_a_pool_named_by_its_address_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_POOL", "https://pool.example.org")
    findings = {one["name"]: one for one in json.loads(Said(capsys, "doctor", "--json").out)}
    assert findings["variables"]["severity"] == "note"
    assert "https://pool.example.org" in findings["variables"]["found"]


def test_nothing_heavy_is_imported_to_look(tmp_path: Path) -> None:
    code = (
        "import sys; from lightning_core.cli.main import main; main(['doctor']); "
        "heavy = {'ray', 'torch', 'lightning', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    )
    env = os.environ | {"LIGHTNING_CORE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "packages" in done.stdout


def test_a_check_that_fails_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise IndexError("no such\nfile")

    monkeypatch.setattr(machine_checks, "remains", fails)
    failed = found("remains", tmp_path)
    assert (failed.severity, failed.found) == (NOTE, "cannot be checked: IndexError: no such file")


def test_every_check_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "how-to" / "doctor.md").read_text()
    table = text.split("## What is checked")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)`( \*)? \|", table, re.MULTILINE))
    assert list(rows) == list(CHECKS)
    assert {name for name, star in rows.items() if star} == {*ANY_POOL, *OWN_RAY, *WITH_GPUS}


# ---------------------------------------------------------------------------------------------------- the folder


def test_a_folder_that_can_be_made_or_used_is_fine(tmp_path: Path) -> None:
    assert found("pool-folder", tmp_path / "a" / "pool") == ok(
        "pool-folder", f"{tmp_path}/a/pool, which `up` will make"
    )
    assert found("pool-folder", tmp_path).found == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    for name, words in {
        "file/pool": f"{tmp_path}/file is not a folder; use another folder: lightning-core up --folder DIR",
        "link": "is a link to",
        "all": "everyone can write to it",
    }.items():
        finding = found("pool-folder", tmp_path / name)
        assert finding.severity is ERROR
        assert words in str(finding)


@as_root
def test_a_folder_of_another_user_or_without_permission_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    give_away(tmp_path / "theirs", monkeypatch)
    theirs = found("pool-folder", tmp_path / "theirs")
    assert theirs.severity is ERROR
    assert "use a folder of your own" in theirs.remedy
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        severity, words = as_other(lambda: [(one := found("pool-folder", Path(folder) / "pool")).severity, str(one)])
    assert severity == "error"
    assert (
        f"{folder} cannot be written to by this user; let its owner make {folder}/pool for this user, or use" in words
    )


def test_a_read_only_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(machine_checks, "is_read_only", lambda path: True)
    finding = found("pool-folder", tmp_path / "pool")
    assert finding.severity is ERROR
    assert f"{tmp_path} is on a read-only file system; use another folder" in str(finding)


def test_the_journal_s_disk_is_that_of_the_folder(tmp_path: Path, on_network: None) -> None:
    name = "LIGHTNING_CORE_NETWORK_DISK"
    assert found("journal-disk", tmp_path / "pool").severity is ERROR
    assert found("journal-disk", tmp_path / "pool", **{name: "yes"}).severity is WARNING
    assert found("journal-disk", tmp_path / "pool", **{name: "1"}).severity is ERROR
    assert f"{name} must be yes or no, got '1'" in found("variables", tmp_path, **{name: "1"}).found
    assert found("history-disk", tmp_path, LIGHTNING_CORE_HISTORY=str(tmp_path)).severity is WARNING
    assert examine(ThisMachine(tmp_path, PoolSize(1, 1), "cpu", environment={}), ["history-disk"]) == []


def test_the_journal_s_disk_is_accepted_here(tmp_path: Path) -> None:
    assert found("journal-disk", tmp_path / "pool").severity is OK
    assert found("history-disk", tmp_path, LIGHTNING_CORE_HISTORY=str(tmp_path)).severity is OK
    assert found("disk-space", tmp_path / "pool").severity in (OK, WARNING)  # it may be in memory


def test_a_pool_that_is_up_or_was_killed_is_said(tmp_path: Path) -> None:
    assert found("pool", tmp_path) == ok("pool", f"none is up in {tmp_path}")
    head_note(tmp_path)
    assert found("pool", tmp_path).found == f"up in {tmp_path}, process {os.getpid()}"
    head_note(tmp_path, started=1)
    killed = found("pool", tmp_path)
    assert (killed.severity, killed.remedy[:17]) == (NOTE, "lightning-core up")
    (tmp_path / "head.json").write_text("{")
    assert "head.json cannot be read" in str(found("pool", tmp_path))
    assert found("pool", tmp_path).severity is ERROR


def anchor(folder: Path, **changed: Any) -> None:
    """Make a journal whose newest event was written at another time."""
    if not (folder / "journal.db").exists():
        Journal.create(folder / "journal.db", Settings()).close()
    with AnchorFile(anchor_path(folder / "journal.db")) as file:
        for number in range(2):  # both slots
            file.write(Anchor.made_now(number, "", 0.0)._replace(**changed))


def test_the_clock_is_compared_with_the_journal(tmp_path: Path) -> None:
    assert found("clock", tmp_path).severity is OK
    anchor(tmp_path)
    assert found("clock", tmp_path).severity is OK
    anchor(tmp_path, booted=since_boot() - 900.0, boot=boot_id())  # the wall clock says that it was just now
    assert "was set by -15m" in found("clock", tmp_path).found
    anchor(tmp_path, boot="another", wall=4e9)
    assert "before the pool last wrote" in found("clock", tmp_path).found


# ---------------------------------------------------------------------------------------------------- the environment


@pytest.mark.parametrize(
    ("environment", "severity", "words"),
    [
        ({}, OK, "none is set"),
        ({"LIGHTNING_CORE_JOB": "a", "LIGHTNING_CORE_TOKEN": "secret"}, OK, "LIGHTNING_CORE_JOB=a"),
        ({"LIGHTNING_CORE_JBO": "a"}, WARNING, "did you mean 'LIGHTNING_CORE_JOB'"),
        ({"LIGHTNING_CORE_DISABLE": "1"}, WARNING, "unset LIGHTNING_CORE_DISABLE"),
        ({"LIGHTNING_CORE_DISABLE": "0"}, OK, "LIGHTNING_CORE_DISABLE=0"),
        ({"LIGHTNING_CORE_POOL": "10.0.0.1:6379"}, NOTE, "unset LIGHTNING_CORE_POOL"),
        ({"LIGHTNING_CORE_POOL": "/srv/pool"}, OK, "/srv/pool"),
    ],
)
def test_variables(environment: Mapping[str, str], severity: Severity, words: str, tmp_path: Path) -> None:
    finding = found("variables", tmp_path, **environment)
    assert finding.severity is severity
    assert words in str(finding)
    assert "secret" not in str(finding)


def test_tokens_of_ray(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert found("ray-token", tmp_path, **home) == ok("ray-token", "each pool makes its own")
    assert found("ray-token", tmp_path, RAY_AUTH_MODE="disabled", **home).severity is ERROR
    assert found("ray-token", tmp_path, RAY_AUTH_MODE="token", **home).severity is OK
    missing = found("ray-token", tmp_path, RAY_AUTH_TOKEN_PATH="/none", **home)
    assert (missing.severity, missing.remedy[:25]) == (WARNING, "unset RAY_AUTH_TOKEN_PATH")
    assert found("ray-token", tmp_path, RAY_AUTH_TOKEN_PATH="/none", RAY_AUTH_TOKEN="a", **home).severity is OK
    left = tmp_path / ".ray" / "auth_token"
    left.parent.mkdir()
    left.write_text("abc")
    left.chmod(0o644)
    assert found("ray-token", tmp_path, **home).remedy == f"chmod 600 {left}"
    left.chmod(0o600)
    assert found("ray-token", tmp_path, **home).severity is NOTE
    assert found("ray-token", tmp_path, RAY_AUTH_TOKEN_PATH=str(left), **home).severity is NOTE


def test_temporary_folders(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    assert found("temporary-folder", tmp_path) == ok("temporary-folder", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    assert found("temporary-folder", tmp_path).severity is ERROR
    long = temporary / ("long" * 10)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert found("temporary-folder", tmp_path).remedy == "set TMPDIR to a shorter path"
    assert list(long.iterdir()) == []


def test_a_temporary_folder_without_sockets_or_on_a_network_disk(
    tmp_path: Path,
    temporary: Path,  # noqa: F811
    on_network: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "nfs4" in found("temporary-folder", tmp_path).found
    assert found("temporary-folder", tmp_path).severity is WARNING

    def refuses(path: Path) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(machine_checks, "listen", refuses)
    finding = found("temporary-folder", tmp_path)
    assert finding.severity is ERROR
    assert "no socket can be made" in finding.found
    assert list(temporary.iterdir()) == []


def test_what_killed_pools_left_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "remains", list)
    assert found("remains", tmp_path).severity is OK
    monkeypatch.setattr(machine_checks, "remains", lambda: [Path("/tmp/lc-a"), Path("/tmp/lc-b")])
    assert found("remains", tmp_path).remedy == "rm -r /tmp/lc-a /tmp/lc-b"


# ---------------------------------------------------------------------------------------------------- GPUs

GPU = GpuState(0, "H200", "580.95.05", "Default", False, True, 2**37, 0)


class Gpus:
    """The GPUs of a made-up machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus: tuple[GpuState, ...] = (GPU, GPU._replace(number=1))
        self.build = TorchBuild("2.13.0", "13.0")
        self.mps: int | None = None
        monkeypatch.setattr(machine_checks, "gpus_here", lambda: len(self.gpus))
        monkeypatch.setattr(preflight, "gpus_here", lambda: len(self.gpus))
        monkeypatch.setattr("lightning_core.cli.pool_file.gpus_here", lambda: len(self.gpus))
        monkeypatch.setattr(gpu_checks, "read_gpus", lambda: GpuReading(self.gpus))
        monkeypatch.setattr(gpu_checks, "device_files", lambda: [Path("/dev/null")])
        monkeypatch.setattr(gpu_checks, "mps_process", lambda: self.mps)
        monkeypatch.setattr(package_checks, "torch_build", lambda: self.build)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return Gpus(monkeypatch)


OF_GPUS = ("torch-build", "gpus", "driver", "gpu-mode", "mig", "mps", "gpu-memory")


def test_gpus_are_checked_where_there_are_some(gpus: Gpus, tmp_path: Path) -> None:
    machine = ThisMachine(tmp_path, PoolSize(2, 4), "gpu", environment={})
    severities = {finding.name: finding.severity for finding in examine(machine, OF_GPUS)}
    assert severities == dict.fromkeys(OF_GPUS, OK) | {"mps": NOTE}
    assert refusals(machine) == []
    gpus.gpus = ()
    machine = ThisMachine(tmp_path, PoolSize(2, 4), "cpu", environment={})
    assert [finding.name for finding in examine(machine, OF_GPUS)] == ["torch-build", "gpus"]


def test_each_gpu_finding_reaches_the_list(gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.gpus = (GPU._replace(compute_mode="Exclusive_Process", driver="570.1", mig=True, used=2**36),)
    monkeypatch.setattr(gpu_checks, "nvidia_smi", lambda *words: "GPU 0\n")
    machine = ThisMachine(tmp_path, PoolSize(1, 2), "gpu", environment={})
    severities = {finding.name: finding.severity for finding in examine(machine, OF_GPUS)}
    assert severities == {"torch-build": OK, "gpus": OK, "driver": ERROR, "gpu-mode": ERROR, "mig": ERROR,
                          "mps": NOTE, "gpu-memory": NOTE}  # fmt: skip
    assert [line.partition(":")[0] for line in refusals(machine)][1:] == ["GPU 0", "GPU 0"]
    assert refusals(ThisMachine(tmp_path, PoolSize(1, 2), "cpu", environment={})) == []
    gpus.build = TorchBuild("2.13.0+cpu", "")
    assert "was built for CPUs" in refusals(ThisMachine(tmp_path, PoolSize(1, 2), "gpu", environment={}))[0]


# ---------------------------------------------------------------------------------------------------- up


@pytest.fixture
def ups(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The pools that are brought up, none of which is one."""
    made: list[Path] = []

    def up(folder: Path, *_: Any, **__: Any) -> dict[str, str]:
        made.append(folder)
        return {"token": "", "address": "here"}

    monkeypatch.setattr("lightning_core.cluster.head.up", up)
    return made


def test_up_says_at_once_all_that_would_break_it(
    ups: list[Path],
    tmp_path: Path,
    on_network: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    down = error("loopback", "nothing can be sent to 127.0.0.1", "ip link set lo up")
    monkeypatch.setattr(system_checks, "check_loopback", lambda: down)
    said = Said(capsys, "up", "--devices", "1")
    assert said.code == 2
    assert ups == []
    assert list(tmp_path.iterdir()) == []
    loopback, disk = sorted(said.err.splitlines(), key=len)
    assert loopback == "error: nothing can be sent to 127.0.0.1; ip link set lo up"
    assert disk.startswith(f"error: {tmp_path}/home/pool is on nfs4, a network disk")
    assert "use a folder on a local disk: lightning-core up --folder DIR, or LIGHTNING_CORE_HOME=DIR" in disk


def test_up_accepts_a_network_disk_if_it_is_told_to_or_must(
    ups: list[Path],
    tmp_path: Path,
    on_network: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a Ray cluster all nodes must see the folder."""
    assert Said(capsys, "up", "--ray", "10.0.0.1:6379", "--folder", str(tmp_path / "a")).code == 0
    monkeypatch.setenv("LIGHTNING_CORE_NETWORK_DISK", "yes")
    assert Said(capsys, "up", "--devices", "1", "--folder", str(tmp_path / "b")).code == 0
    assert ups == [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setenv("LIGHTNING_CORE_NETWORK_DISK", "no")
    assert Said(capsys, "up", "--devices", "1", "--folder", str(tmp_path / "c")).code == 2


@pytest.mark.parametrize(("resident", "mps", "code"), [("", None, 2), ("resident: 2", None, 0), ("", 9, 0)])
def test_up_refuses_exclusive_gpus_that_it_would_share(
    resident: str,
    mps: int | None,
    code: int,
    ups: list[Path],
    gpus: Gpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpus.gpus = (GPU, GPU._replace(number=1, compute_mode="Exclusive_Process"))
    gpus.mps = mps
    path = tmp_path / "pool.yaml"
    path.write_text(f"pool: {{kind: gpu, devices: 2, {resident}}}")
    said = Said(capsys, "up", "--config", str(path))
    assert said.code == code, said.err
    assert len(ups) == (code == 0)
    assert ("error: GPU 1: compute mode Exclusive_Process" in said.err) == (code != 0)


def test_what_concerns_no_pool_keeps_none_from_being_brought_up(
    ups: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(system_checks, "check_clock", lambda *_: error("clock", "it is 1970", "set it"))
    assert found("clock", tmp_path).severity is ERROR
    assert Said(capsys, "up", "--devices", "1").code == 0


# ---------------------------------------------------------------------------------------------------- run

ONE = "jobs: {a: {model: tests.tiny.Line, data: tests.tiny.Points, deadline: 9s, target: {batches: 5}}}"


def test_run_refuses_a_network_disk_before_anything_starts(
    tmp_path: Path, on_network: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.yaml").write_text(ONE)
    for more in ([], ["--run-dir", "mine"]):
        said = Said(capsys, "run", "b.yaml", "--own", *more)
        assert said.code == 2
        where = more[1] if more else "runs"
        assert said.err.startswith(f"error: {where} is on nfs4, a network disk")
        assert "name a folder on a local disk with --run-dir" in said.err
        assert said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["b.yaml"]


def test_run_resumes_nothing_on_a_network_disk(
    tmp_path: Path, on_network: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_bundle, "_have_ended", lambda folder: True)
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "bundle.yaml").write_text(ONE)
    before = sorted(folder.iterdir())
    said = Said(capsys, "run", "--resume", str(folder))
    assert (said.code, sorted(folder.iterdir())) == (2, before)
    assert "copy the folder to a local disk, and resume it there" in said.err
    (folder / "said.json").write_text(json.dumps({"policy": None, "allow_import": [], "ray": "nowhere:1"}))
    (folder / "said.json").chmod(0o600)
    assert Said(capsys, "run", "--resume", str(folder)).code == 0  # it was on a Ray cluster


def test_a_bundle_of_python_refuses_it_too(tmp_path: Path, on_network: None) -> None:
    (tmp_path / "b.yaml").write_text(ONE)
    with pytest.raises(BundleError, match=r"network disk.*name a folder on a local disk as run_dir"):
        Bundle.from_file(tmp_path / "b.yaml").run(run_dir=tmp_path / "r")
    assert [path.name for path in tmp_path.iterdir()] == ["b.yaml"]


def test_a_run_that_may_use_a_network_disk_is_warned(tmp_path: Path, on_network: None) -> None:
    preflight.check_disk(tmp_path, "", shared=True)
    [line] = preflight.folder_warnings(tmp_path)
    assert "nfs4, a network disk" in line
    assert "on the machine of the scheduler only" in line
