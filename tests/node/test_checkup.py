"""Checks of made-up machines: each finding appears where it should, and nowhere else."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_core.node.cgroups import folder_of
from lightning_core.node.checks import gpu_checks, limit_checks, package_checks
from lightning_core.node.checks.disk_checks import (
    check_disk_space,
    check_history_disk,
    check_journal_disk,
    disk_of,
    nearest,
)
from lightning_core.node.checks.findings import Finding, Severity
from lightning_core.node.checks.gpu_checks import (
    GpuReading,
    GpuState,
    check_compute_mode,
    check_driver,
    check_gpu_memory,
    check_mig,
    check_mps,
    check_presence,
    check_torch_build,
    device_files,
    mps_process,
    nvidia_smi,
    read_gpus,
)
from lightning_core.node.checks.limit_checks import (
    PoolSize,
    check_cores,
    check_cpu_shares,
    check_files,
    check_memory,
    check_processes,
    check_shared_memory,
    cpu_limit,
)
from lightning_core.node.checks.package_checks import (
    TorchBuild,
    check_known_bad,
    check_namesake,
    check_packages,
    check_python,
    requirements,
    torch_build,
)
from lightning_core.node.checks.system_checks import ClockReading, LastWrite, check_clock, check_loopback, check_proc
from lightning_core.node.mounts import Mount, mount_of, mounts

OK, NOTE, WARNING, ERROR = Severity
PID = 7
GIB = 2**30
SMALL, LARGE = PoolSize(1, 2), PoolSize(64, 128)


def made(root: Path, files: Mapping[str, str]) -> Path:
    """Write the files of a machine, and return its root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def is_found(finding: Finding | None, severity: Severity, *words: str) -> None:
    """Check a finding: its severity, what it says, and that it says what to do if there is something to do."""
    assert finding is not None
    assert finding.severity is severity, finding
    for word in words:
        assert word in str(finding)
    assert bool(finding.remedy) == (severity is not OK), finding
    assert "\n" not in str(finding)


# ---------------------------------------------------------------------------------------------------- file systems

MOUNTINFO = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:40 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2
23 22 0:41 / /home/ann/local\\040disk rw - xfs /dev/vdb rw
24 21 0:42 / /shared rw - ext4 /dev/vdc rw
25 24 0:43 / /shared rw - lustre 10.0.0.1@tcp:/scratch rw,flock
26 21 0:44 / /home2 rw - btrfs /dev/vdd rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "is_on_network"),
    [
        ("/", "ext4", False),
        ("/var/pool", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/ann/.lightning_core/pool", "nfs4", True),
        ("/home/ann/local disk/pool", "xfs", False),
        ("/home2/pool", "btrfs", False),
        ("/shared/pool", "lustre", True),  # the later mount hides the earlier one
    ],
)
def test_a_path_is_on_the_innermost_mount(path: str, kind: str, is_on_network: bool, tmp_path: Path) -> None:
    mount = mount_of(Path(path), made(tmp_path, {"proc/self/mountinfo": MOUNTINFO}))
    assert mount is not None
    assert (mount.kind, mount.is_on_network) == (kind, is_on_network)


@pytest.mark.parametrize("files", [{}, {"proc/self/mountinfo": "nonsense\n"}])
def test_an_unknown_file_system_is_none(files: dict[str, str], tmp_path: Path) -> None:
    assert mount_of(Path("/x"), made(tmp_path, files)) is None


def test_this_machine_s_file_systems_are_known() -> None:
    assert {"proc"} <= {mount.kind for mount in mounts()}
    assert disk_of(Path("/proc")).kind == "proc"  # type: ignore[union-attr]
    assert disk_of(Path("/proc/none/of/this")).kind == "proc"  # type: ignore[union-attr]


def test_the_way_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self")
    assert disk_of(tmp_path / "link" / "pool").kind == "proc"  # type: ignore[union-attr]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    disk_of(tmp_path / "loop" / "pool")  # which is no error of this check
    assert nearest(tmp_path / "a" / "b") == tmp_path


def mount(kind: str) -> Mount:
    return Mount("/", "/home", kind, frozenset())


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "gpfs", "beegfs", "ceph", "9p"]
)
def test_a_journal_is_refused_on_a_network_disk(kind: str) -> None:
    found = check_journal_disk(Path("/home/pool"), mount(kind))
    is_found(found, ERROR, f"/home/pool is on {kind}, a network disk", "--folder", "LIGHTNING_CORE_NETWORK_DISK=yes")
    is_found(check_journal_disk(Path("/home/pool"), mount(kind), "go away"), ERROR, "go away")
    for shared in (True, False):
        found = check_journal_disk(Path("/home/pool"), mount(kind), shared=shared, allowed=not shared)
        is_found(found, WARNING, "on the machine of the scheduler only")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "virtiofs"])
def test_a_journal_is_accepted_on_a_disk_of_this_machine(kind: str) -> None:
    is_found(check_journal_disk(Path("/home/pool"), mount(kind)), OK, kind)
    is_found(check_journal_disk(Path("/home/pool"), None), OK, "unknown")


def test_runs_of_scripts_are_not_kept_on_a_network_disk() -> None:
    assert check_history_disk(None, None) is None
    is_found(check_history_disk(Path("/runs"), mount("ext4")), OK)
    is_found(check_history_disk(Path("/runs"), mount("nfs")), WARNING, "nfs", "history.db")


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_found(check_disk_space(tmp_path, []), OK, "free")
    is_found(check_disk_space(tmp_path, ["in memory"]), WARNING, "in memory")
    is_found(check_disk_space(tmp_path / "none", []), ERROR, "No such file")
    assert check_disk_space(Path("/proc"), []).severity is OK  # it has no size
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=9, free=0))
    is_found(check_disk_space(tmp_path, []), ERROR, "no room on its disk")
    monkeypatch.undo()
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_files=9, f_favail=0))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=9, free=5))
    is_found(check_disk_space(tmp_path, []), ERROR, "no room for another file")


# ---------------------------------------------------------------------------------------------------- limits


def cgroups(version: int, inner: Mapping[str, str], outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the files of a machine with a process in the group ``/pod/box``, whose files these are."""
    name = "" if version == 2 else "cpu,cpuacct,memory,pids"
    kind, controllers = ("cgroup2", "rw") if version == 2 else ("cgroup", f"rw,{name}")
    found = {
        f"proc/{PID}/cgroup": f"0:{name}:/pod/box\n",
        f"proc/{PID}/stat": f"{PID} (a) S 1 {'0 ' * 17}5005 0\n",
        "proc/self/mountinfo": f"1 0 0:1 / /cg rw - {kind} none {controllers}\n",
        "cg/pod/box/cgroup.procs": f"{PID}\n",
    }
    found |= {f"cg/pod/box/{name}": text for name, text in inner.items()}
    return found | {f"cg/pod/{name}": text for name, text in (outer or {}).items()}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (cgroups(2, {"cpu.max": "max 100000\n"}), None),
        (cgroups(2, {"cpu.max": "250000 100000\n"}), 2.5),
        (cgroups(2, {"cpu.max": "800000 100000\n"}, {"cpu.max": "400000 100000\n"}), 4.0),
        (cgroups(2, {"cpu.max": "max 100000\n"}, {"cpu.max": "400000 100000\n"}), 4.0),
        (cgroups(1, {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}), None),
        (cgroups(1, {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}), 0.5),
        (cgroups(2, {"cpu.max": "garbage\n"}), None),
        ({}, None),
    ],
)
def test_cores_are_those_that_the_cgroup_allows(files: dict[str, str], limit: float | None, tmp_path: Path) -> None:
    root = made(tmp_path, files)
    assert cpu_limit(root, PID) == limit
    if limit is None:
        is_found(check_cores(16, root, PID), OK, "16")
    else:
        few = max(1, int(limit))
        is_found(check_cores(16, root, PID), WARNING, "16 are seen", f"of {limit:g}", f"up --devices {few}")
        is_found(check_cores(int(limit) or 0, root, PID), OK)


def meminfo(gib: float) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal: {2**30} kB\nMemAvailable: {gib * 2**20:.0f} kB\n"}


@pytest.mark.parametrize(
    ("files", "size", "severity", "words"),
    [
        (meminfo(8) | cgroups(2, {}), SMALL, OK, "8GiB free"),
        (meminfo(1) | cgroups(2, {}), SMALL, WARNING, "1 device with 2 warm workers takes about 1.63GiB"),
        (meminfo(1) | cgroups(2, {}), SMALL, WARNING, "; keep fewer workers"),
        (meminfo(20) | cgroups(2, {}), LARGE, WARNING, "up --devices 23"),
        (
            meminfo(64) | cgroups(2, {"memory.max": f"{8 * GIB}\n", "memory.current": "0\n", "memory.stat": ""}),
            LARGE, WARNING, "8GiB free, by the machine and its cgroups",
        ),
        (
            meminfo(64) | cgroups(1, {"memory.limit_in_bytes": f"{8 * GIB}\n", "memory.usage_in_bytes": "0\n",
                                      "memory.stat": ""}),
            LARGE, WARNING, "8GiB free",
        ),
        (meminfo(64) | cgroups(2, {"memory.max": "max\n"}), LARGE, OK, "64GiB free"),
        ({}, SMALL, NOTE, "cannot be found out"),
    ],
)  # fmt: skip
def test_a_pool_has_to_fit_the_memory(
    files: dict[str, str], size: PoolSize, severity: Severity, words: str, tmp_path: Path
) -> None:
    is_found(check_memory(size, made(tmp_path, files), PID), severity, words)


@pytest.mark.parametrize(
    ("inner", "limit", "size", "severity", "words"),
    [
        ({}, None, LARGE, OK, "no limit"),
        ({"pids.max": "max\n", "pids.current": "9\n"}, None, LARGE, OK, "no limit"),
        ({"pids.max": "9999\n", "pids.current": "9\n"}, None, LARGE, OK, "9,990 more"),
        ({"pids.max": "220\n", "pids.current": "10\n"}, None, SMALL, ERROR, "210 more"),
        ({"pids.max": "1000\n", "pids.current": "0\n"}, None, LARGE, WARNING, "up --devices 11"),
        ({"pids.max": "9999\n", "pids.current": "9\n"}, 100, SMALL, ERROR, "100 more"),
        ({}, 100_000, LARGE, OK, "100,000 more"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_pool_has_to_fit_the_processes_that_are_allowed(
    version: int,
    inner: dict[str, str],
    limit: int | None,
    size: PoolSize,
    severity: Severity,
    words: str,
    tmp_path: Path,
) -> None:
    is_found(check_processes(size, limit, made(tmp_path, cgroups(version, inner)), PID), severity, words)


@pytest.mark.parametrize(
    ("soft", "hard", "size", "severity", "words"),
    [
        (64, 4096, PoolSize(2, 4), ERROR, "ulimit -n 4096"),
        (64, 64, PoolSize(2, 4), ERROR, "--ulimit nofile=65536"),
        (128, -1, SMALL, WARNING, "ulimit -n 65536"),
        (1024, 4096, SMALL, OK, "1,024"),
        (1024, 4096, PoolSize(500, 500), ERROR, "4,553"),
        (-1, -1, LARGE, OK, "any number"),
    ],
)
def test_files_are_counted(soft: int, hard: int, size: PoolSize, severity: Severity, words: str) -> None:
    is_found(check_files(size, soft, hard), severity, words)


def test_a_smaller_pool_is_named() -> None:
    assert LARGE.fitting(lambda size: size.devices <= 5) == 5
    assert LARGE.fitting(lambda size: False) == 1
    assert str(SMALL) == "a pool of 1 device with 2 warm workers"
    assert SMALL.threads < LARGE.threads


@pytest.mark.parametrize(
    ("free", "flags", "may_write", "severity", "words"),
    [
        (GIB, 0, True, OK, "1GiB free"),
        (64 * 2**20, 0, True, WARNING, "--shm-size"),
        (GIB, os.ST_RDONLY, True, ERROR, "cannot be written to"),
        (GIB, 0, False, ERROR, "cannot be written to"),
    ],
)
def test_shared_memory_is_large_enough(
    free: int, flags: int, may_write: bool, severity: Severity, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    monkeypatch.setattr(os, "access", lambda path, mode: may_write)
    is_found(check_shared_memory(Path("/dev/shm"), 100 * 2**20), severity, words)


def test_shared_memory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    is_found(check_shared_memory(tmp_path / "shm", 1), ERROR, "No such file or directory", "mount a tmpfs")
    is_found(check_shared_memory(tmp_path, 1), OK)


UNIFIED = {"cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": "", "cgroup.type": "domain\n"}


@pytest.mark.parametrize(
    ("files", "severity", "words"),
    [
        (cgroups(1, {}), OK, "can limit"),
        (cgroups(2, UNIFIED), NOTE, "holds processes"),
        (cgroups(2, UNIFIED | {"cgroup.subtree_control": "cpu\n"}), OK, "can limit"),
        (cgroups(2, {"cgroup.controllers": "cpu\n", "cgroup.subtree_control": ""}), OK, "can limit"),  # the root group
        (cgroups(2, UNIFIED | {"cgroup.controllers": "memory\n"}), NOTE, "no cpu controller"),
        ({}, NOTE, "cannot limit"),
    ],
)
def test_shares_of_cpus_need_a_cgroup(files: dict[str, str], severity: Severity, words: str, tmp_path: Path) -> None:
    is_found(check_cpu_shares(made(tmp_path, files), PID), severity, words)


def test_a_cgroup_that_cannot_be_written_limits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = made(tmp_path, cgroups(1, {}))
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder_of(root, "cpu", Path("/pod/box")))
    is_found(check_cpu_shares(root, PID), NOTE, "cannot be written to")


# ---------------------------------------------------------------------------------------------------- packages

GOOD = {"msgspec": "0.22.0", "lightning": "2.6.6", "torch": "2.13.0+cpu", "ray": "2.60.0"}
REQUIRED = [
    "msgspec>=0.19",
    'lightning!=2.6.2,!=2.6.3,<2.7,>=2.5; extra == "lightning"',
    'torch>=2.6; extra == "lightning"',
    'ray[default]<2.61,>=2.54; extra == "ray"',
    'lightning-core-learning[kalman,lightning,ray]; extra == "launch"',
    'optuna<6,>=4.5; extra == "optuna"',
    "filterpy>=1.4.5 ; python_version > \"3\" and extra == 'kalman'",
]


@pytest.mark.parametrize(
    ("changed", "severity", "words"),
    [
        ({}, OK, "torch 2.13.0+cpu, lightning 2.6.6, ray 2.60.0"),
        ({"ray": None}, ERROR, "not installed, and needed for pools and `run`: ray"),
        ({"ray": None, "torch": None}, ERROR, "torch, ray"),
        ({"ray": "2.30.0"}, ERROR, "ray 2.30.0 is installed, and the project needs <2.61,>=2.54"),
        ({"ray": "2.70.0"}, WARNING, "newer than what is tested: ray 2.70.0"),
        ({"lightning": "2.4.0"}, ERROR, "lightning 2.4.0"),
        ({"optuna": "3.0"}, OK, "torch"),  # of an extra that a pool does not need
        ({"lightning": "2.6.2"}, OK, "lightning 2.6.2"),  # which is another check's
        ({"ray": "unknown"}, OK, "ray unknown"),
    ],
)
def test_versions_are_those_that_the_project_needs(
    changed: dict[str, str | None], severity: Severity, words: str
) -> None:
    is_found(check_packages(REQUIRED, (GOOD | changed).get), severity, words)


def test_this_installation_s_requirements_are_read() -> None:
    names = {match["name"] for one in requirements() if (match := package_checks._REQUIREMENT.fullmatch(one))}
    assert len(names) > 20
    assert {"torch", "lightning", "ray", "jsonargparse", "numpy", "pyyaml"} <= names
    found = check_packages(requirements(), {"lightning": "2.6.6", "ray": "2.30"}.get)
    is_found(found, ERROR, "not installed", "torch, torchmetrics, jsonargparse", "ray 2.30")
    assert "lightning 2.6.6" not in found.found
    assert "filterpy" not in found.found


@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_a_malicious_release_is_an_error(version: str) -> None:
    is_found(check_known_bad({"lightning": version}.get), ERROR, f"lightning {version}", "change every password")
    assert check_known_bad({"lightning": "2.6.6"}.get) is None
    assert check_known_bad(lambda name: None) is None


@pytest.mark.parametrize(
    ("found", "wanted", "severity"),
    [((3, 12, 1), ">=3.11", OK), ((3, 10, 9), ">=3.11", ERROR), ((3, 19, 0), ">=3.11", NOTE), ((3, 12, 1), "", OK)],
)
def test_the_version_of_python_is_checked(found: tuple[int, int, int], wanted: str, severity: Severity) -> None:
    is_found(check_python(found, wanted), severity, "Python 3.1")


def test_the_python_of_this_project_is_known() -> None:
    assert package_checks.python_wanted() == ">=3.11"
    assert check_python(sys.version_info[:3], package_checks.python_wanted()).severity is not ERROR


def test_the_other_project_of_this_name_is_a_warning() -> None:
    assert check_namesake() is None
    is_found(check_namesake("the package lightning-core 1 is installed; run: pip uninstall"), WARNING, "pip uninstall")


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '2.9.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
         TorchBuild("2.9.0+cu128", "12.8")),
        ("from typing import Optional\n__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n",
         TorchBuild("2.13.0+cpu", "")),
        ("__version__ = '2.9'\ncuda = None\nhip = '6.4'\n", TorchBuild("2.9", "", "6.4")),
        ("def (", None),
        (None, None),
    ],
)  # fmt: skip
def test_the_build_of_torch_is_read_from_its_file(text: str | None, build: TorchBuild | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    assert torch_build(tmp_path) == build


def test_the_build_of_this_torch_is_known() -> None:
    found = torch_build()
    assert found is not None
    assert found.version == package_checks.version_of("torch")


# ---------------------------------------------------------------------------------------------------- GPUs

GPU = GpuState(0, "NVIDIA H200", "580.95.05", "Default", mig=False, persistent=True, total=141 * GIB, used=0)
SAID = "0, NVIDIA H200, 580.95.05, Default, Disabled, Enabled, 144384, 0\n"


def says(text: str | Exception) -> Callable[..., str]:
    def smi(*words: str) -> str:
        assert words[0].startswith("--query-gpu=index,name,")
        if isinstance(text, Exception):
            raise text
        return text

    return smi


def test_the_driver_is_asked_for_the_gpus() -> None:
    assert read_gpus(says(SAID)) == GpuReading((GPU,))
    two = read_gpus(says(f"{SAID}1, NVIDIA GB10, 580.95.05, Exclusive_Process, [N/A], Disabled, [N/A], [N/A]\n")).gpus
    assert two[1] == GpuState(1, "NVIDIA GB10", "580.95.05", "Exclusive_Process", False, False, 0, 0)
    assert read_gpus(says("")) == GpuReading(())
    assert "which is not index,name" in read_gpus(says("0, H200\n")).problem
    assert read_gpus(says(FileNotFoundError("none"))) == GpuReading((), "none")
    assert read_gpus(says(ChildProcessError("bad"))) == GpuReading((), "bad", is_broken=True)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo hello $1", None),
        ("echo Failed to initialize NVML: Driver/library version mismatch; exit 18",
         "nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch"),
        ("exit 9", "nvidia-smi fails: exit code 9"),
        ("sleep 60", "nvidia-smi has not answered within 0.3 s"),
    ],
)  # fmt: skip
def test_a_driver_that_fails_or_hangs_is_an_error_of_one_line(
    script: str, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script.replace('sleep', 'exec /bin/sleep')}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_checks, "SMI_TIMEOUT", 0.3 if error and "answered" in error else 30.0)
    if error is None:
        assert nvidia_smi("-L") == "hello -L\n"
    else:
        with pytest.raises(OSError, match=f"^{error}$"):
            nvidia_smi("-L")
    command.unlink()
    with pytest.raises(FileNotFoundError, match="there is no nvidia-smi"):
        nvidia_smi("-L")


READ, NONE, BROKEN = GpuReading((GPU,)), GpuReading(()), GpuReading((), "nvidia-smi fails: x", is_broken=True)
INSTANCE = "  MIG 1g.18gb Device 0: (UUID: MIG-a)\n"


@pytest.mark.parametrize(
    ("count", "visible", "reading", "files", "severity", "words"),
    [
        (1, None, READ, "open", OK, "0: NVIDIA H200 (141GiB)"),
        (1, "0", READ, "open", OK, "CUDA_VISIBLE_DEVICES=0"),
        (0, None, NONE, "", OK, "none: a pool shares cores"),
        (0, "", NONE, "", OK, "none"),
        (0, None, BROKEN, "", NOTE, "none, so a pool shares cores: nvidia-smi fails: x"),
        (0, "-1", READ, "open", NOTE, "hidden by CUDA_VISIBLE_DEVICES=-1"),
        (2, None, NONE, "", ERROR, "there is no /dev/nvidia0 here"),
        (2, None, READ, "closed", ERROR, "cannot be opened here"),
        (2, None, GpuReading((), "there is no nvidia-smi"), "open", WARNING, "there are GPUs (2), and there is no"),
        (2, None, BROKEN, "open", ERROR, "nvidia-smi fails: x"),
    ],
)
def test_gpus_can_be_used(
    count: int,
    visible: str | None,
    reading: GpuReading,
    files: str,
    severity: Severity,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if files:
        made(tmp_path, {"nvidia0": "", "nvidiactl": "", "nvidia-uvm": "", "nvidia1x": ""})
    monkeypatch.setattr(os, "access", lambda path, mode: files == "open")
    is_found(check_presence(count, visible, reading, device_files(tmp_path)), severity, words)


@pytest.mark.parametrize(
    ("mode", "is_shared", "has_mps", "severity", "words"),
    [
        ("Default", True, False, OK, ""),
        ("Exclusive_Process", True, False, ERROR, "GPU 0: compute mode Exclusive_Process: one process at a time"),
        ("Exclusive_Process", False, False, WARNING, "nvidia-smi -i 0 -c DEFAULT"),
        ("Exclusive_Process", True, True, OK, ""),
        ("Prohibited", True, True, ERROR, "no process may use it"),
        ("Prohibited", False, False, ERROR, "nvidia-smi -i 0 -c DEFAULT"),
    ],
)
def test_several_processes_may_use_a_gpu(
    mode: str, is_shared: bool, has_mps: bool, severity: Severity, words: str
) -> None:
    gpus = [GPU._replace(compute_mode=mode), GPU._replace(number=1)]
    is_found(check_compute_mode(gpus, is_shared=is_shared, has_mps=has_mps), severity, words)


@pytest.mark.parametrize(
    ("mig", "listed", "visible", "severity", "words"),
    [
        (False, "", None, OK, "off"),
        (True, f"GPU 0: H200\n{INSTANCE}{INSTANCE}", None, WARNING, "MIG is on (instances: 2)"),
        (True, f"GPU 0: H200\n{INSTANCE}", "MIG-a", OK, "MIG-a"),
        (True, "GPU 0: H200\n", None, ERROR, "without an instance"),
        (True, None, None, ERROR, "without an instance"),
    ],
)
def test_a_divided_gpu_is_noticed(
    mig: bool, listed: str | None, visible: str | None, severity: Severity, words: str
) -> None:
    def lists() -> str:
        if listed is None:
            raise TimeoutError("it hangs")
        return listed

    is_found(check_mig([GPU._replace(mig=mig)], lists, visible), severity, words)


CUDA = TorchBuild("2.13.0", "13.0")


@pytest.mark.parametrize(
    ("driver", "build", "severity", "words"),
    [
        ("580.95.05", CUDA, OK, "580.95.05"),
        ("580.65", CUDA, OK, "580.65"),
        ("570.124.06", CUDA, ERROR, "too old for the CUDA 13.0 of torch 2.13.0, which needs 580.65"),
        ("570.124.06", TorchBuild("2.9", "12.8"), OK, "570"),
        ("470.57.02", CUDA, ERROR, "CUDA 11"),
        ("550.54.15", TorchBuild("2.9", "12.8"), NOTE, "cannot suspend"),
        ("390.1", CUDA, ERROR, "an older CUDA"),
        ("580.95.05", None, OK, "580"),
        ("550.54.15", TorchBuild("2.13.0", ""), NOTE, "cannot suspend"),
        ("580.95.05", TorchBuild("9.0", "99.1"), OK, "580"),
    ],
)
def test_the_driver_is_new_enough_for_torch(
    driver: str, build: TorchBuild | None, severity: Severity, words: str, tmp_path: Path
) -> None:
    gpus = [GPU._replace(driver=driver)]
    is_found(check_driver(gpus, build, tmp_path / "none"), severity, words)
    if severity is ERROR:  # CUDA's images have what an older driver lacks
        is_found(check_driver(gpus, build, tmp_path), WARNING, words)


def test_a_driver_that_is_unloaded_is_noted() -> None:
    is_found(check_driver([GPU, GPU._replace(persistent=False)], CUDA), NOTE, "nvidia-smi -pm 1")


@pytest.mark.parametrize(
    ("build", "gpus", "severity", "words"),
    [
        (CUDA, 1, OK, "for CUDA 13.0"),
        (CUDA, 0, OK, "for CUDA 13.0"),
        (TorchBuild("2.13.0+cpu", ""), 0, OK, "for CPUs"),
        (TorchBuild("2.13.0+cpu", ""), 2, ERROR, "built for CPUs"),
        (TorchBuild("2.13.0", "", "6.4"), 2, ERROR, "built for ROCm 6.4"),
    ],
)
def test_torch_is_built_for_the_gpus(build: TorchBuild, gpus: int, severity: Severity, words: str) -> None:
    is_found(check_torch_build(build, gpus), severity, words)
    assert check_torch_build(None, gpus) is None


def test_memory_that_others_use_is_noted() -> None:
    busy = [GPU, GPU._replace(number=1, used=60 * GIB)]
    is_found(check_gpu_memory([GPU._replace(used=GIB)], is_up=False), OK, "free")
    is_found(check_gpu_memory(busy, is_up=False), NOTE, "1: 60GiB of 141GiB", "device_memory")
    is_found(check_gpu_memory(busy, is_up=True), OK, "while a pool is up")
    is_found(check_gpu_memory([GPU._replace(total=0)], is_up=False), OK)


def test_mps_is_found_by_its_processes(tmp_path: Path) -> None:
    made(tmp_path, {"1/comm": "init\n", "12/comm": "nvidia-smi\n", "self/comm": "nvidia-cuda-mps\n"})
    assert mps_process(tmp_path) is None
    is_found(check_mps(None), NOTE, "does not run", "nvidia-cuda-mps-control -d")
    made(tmp_path, {"13/comm": "nvidia-cuda-mps\n"})
    assert mps_process(tmp_path) == 13
    is_found(check_mps(13), OK, "process 13")


# ---------------------------------------------------------------------------------------------------- the system

NOW = 1.79e9  # in 2026


@pytest.mark.parametrize(
    ("wall", "passed", "last", "severity", "words"),
    [
        (NOW, 0.1, None, OK, "2026"),
        (3.6e3, 0.1, None, ERROR, "it shows 1970-01-01 01:00:00 UTC"),
        (NOW, 2.0, None, WARNING, "it jumped by -1.9s"),
        (NOW, -2.0, None, WARNING, "it jumped by +2.1s"),
        (NOW, 0.1, LastWrite(NOW - 500, 500.5), OK, "2026"),
        (NOW, 0.1, LastWrite(NOW - 500, 100.0), WARNING, "was set by +6m40s since the pool last wrote"),
        (NOW, 0.1, LastWrite(NOW + 500, 100.0), WARNING, "was set by -10m since the pool last wrote"),
        (NOW, 0.1, LastWrite(NOW - 9e6), OK, "2026"),
        (NOW, 0.1, LastWrite(NOW + 30), OK, "2026"),
        (NOW, 0.1, LastWrite(NOW + 600), WARNING, "10m before the pool last wrote"),
    ],
)
def test_the_clock_is_compared_with_one_that_cannot_be_set(
    wall: float, passed: float, last: LastWrite | None, severity: Severity, words: str
) -> None:
    before, after = ClockReading(wall - 0.1, 50.0), ClockReading(wall, 50.0 + passed)
    is_found(check_clock(before, after, last), severity, words)


def test_processes_of_this_machine_reach_each_other() -> None:
    def unreachable() -> None:
        raise OSError(101, "Network is unreachable")

    is_found(check_loopback(), OK)
    is_found(check_loopback(unreachable), ERROR, "127.0.0.1: Network is unreachable", "ip link set lo up")


def test_processes_are_shown(tmp_path: Path) -> None:
    is_found(check_proc(Path("/")), OK)
    is_found(check_proc(tmp_path), ERROR, "mount -t proc")


def test_limits_of_this_machine_are_read() -> None:
    """Without an error; what they are is the machine's."""
    root, pid = Path("/"), os.getpid()
    assert check_cores(len(os.sched_getaffinity(0)), root, pid).severity in (OK, WARNING)
    assert check_memory(SMALL, root, pid).severity in (OK, WARNING)
    assert check_processes(SMALL, None, root, pid).severity is not NOTE
    assert check_cpu_shares(root, pid).severity in (OK, NOTE)
    assert limit_checks.check_shared_memory(Path("/dev/shm"), 1).name == "shared-memory"
    assert all(path.stat().st_mode & stat.S_IFCHR for path in device_files())
