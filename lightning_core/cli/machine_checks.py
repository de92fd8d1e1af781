"""All checks of this machine, in the order in which `doctor` says what they found; and those that `up` makes first."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit

from lightning_core.bundle.preflight import gpus_here, room_warnings
from lightning_core.cluster.ray_head import HeadError, new_temp_folder
from lightning_core.cluster.remains import remains
from lightning_core.node.checks import disk_checks, gpu_checks, limit_checks, package_checks, system_checks
from lightning_core.node.checks.disk_checks import disk_of, is_read_only, nearest
from lightning_core.node.checks.findings import Finding, Severity, error, note, ok, warning
from lightning_core.node.checks.gpu_checks import GpuReading
from lightning_core.node.checks.limit_checks import PoolSize
from lightning_core.node.checks.package_checks import TorchBuild
from lightning_core.node.checks.system_checks import ClockReading, LastWrite
from lightning_core.node.device_cores import CORES
from lightning_core.node.processes import is_alive
from lightning_core.node.unix_sockets import listen
from lightning_core.server.clocks import wall_clock
from lightning_core.server.discovery import is_address, is_url, read_head
from lightning_core.server.probe import TOKEN_FILE, PoolUnavailableError, token_source
from lightning_core.server.ray_settings import OBJECT_STORE_BYTES
from lightning_core.storage.journals.anchor import boot_id, read_anchor, since_boot
from lightning_core.storage.private_files import check_private
from lightning_core.variables import PREFIX, allows_network_disk, is_disabled, run_history, unknown

ROOT = Path("/")


class ThisMachine:
    """This machine and the pool that it is checked for; what takes long to read is read once.

    Args:
        folder: Folder of the pool.
        size: Devices and workers of the pool.
        kind: Kind of its devices.
        is_joined: Whether it is a pool in a Ray cluster, whose devices may be elsewhere.
        environment: Environment variables.
    """

    def __init__(
        self,
        folder: Path,
        size: PoolSize,
        kind: str,
        *,
        is_joined: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.folder = Path(os.path.abspath(folder.expanduser()))
        self.size, self.kind, self.is_joined, self.environment = size, kind, is_joined, environment
        self.began = clocks()

    @cached_property
    def visible_gpus(self) -> int:
        """GPUs that a pool would take."""
        return gpus_here()

    @cached_property
    def has_gpus(self) -> bool:
        """Whether there are GPUs, even if they are hidden from pools."""
        return bool(self.visible_gpus or self.reading.gpus)

    @cached_property
    def reading(self) -> GpuReading:
        """What the driver says of the GPUs; nothing where there is neither a GPU nor the driver's program."""
        return gpu_checks.read_gpus() if self.visible_gpus or shutil.which("nvidia-smi") else GpuReading(())

    @cached_property
    def torch(self) -> TorchBuild | None:
        """For what torch was built."""
        return package_checks.torch_build()

    @cached_property
    def mps(self) -> int | None:
        """Process of the MPS daemon."""
        return gpu_checks.mps_process()

    @property
    def is_up(self) -> bool:
        """Whether a pool is up in the folder."""
        try:
            head = read_head(self.folder)
        except ConnectionError:
            return False
        return head is not None and is_alive(head)


def clocks() -> ClockReading:
    """Return both clocks now."""
    return ClockReading(wall_clock().seconds, since_boot())


# ------------------------------------------------------------------------------------------------ of this installation


def _variables(machine: ThisMachine) -> Finding:
    environment = machine.environment
    words = unknown(environment)
    try:
        allows_network_disk(environment)
    except ValueError as problem:
        return error("variables", "; ".join([str(problem), *words]), "correct these variables, or unset them")
    if words:
        return warning("variables", "; ".join(words), "correct the name, or unset it")
    if is_disabled(environment):
        found = "LIGHTNING_CORE_DISABLE is set: no Trainer reports to a pool, and none has a deadline"
        return warning("variables", found, "unset LIGHTNING_CORE_DISABLE")
    pool = environment.get("LIGHTNING_CORE_POOL", "")
    if is_address(pool) or is_url(pool):
        found = f"LIGHTNING_CORE_POOL={pool}: commands and scripts use that pool, and none on this machine"
        return note("variables", found, "unset LIGHTNING_CORE_POOL to use a pool of this machine")
    named = sorted(name for name in environment if name.startswith(PREFIX) and name != f"{PREFIX}TOKEN")  # a secret
    return ok("variables", ", ".join(f"{name}={environment[name]}" for name in named) or "none is set")


def _processes(machine: ThisMachine) -> Finding:
    limit, _ = getrlimit(RLIMIT_NPROC)
    is_limited = limit != RLIM_INFINITY and os.geteuid() != 0  # the kernel does not count root's
    return limit_checks.check_processes(machine.size, limit if is_limited else None, ROOT, os.getpid())


# ------------------------------------------------------------------------------------------------------ of the folder


def _pool_folder(machine: ThisMachine) -> Finding:
    folder, there = machine.folder, nearest(machine.folder)
    elsewhere = "use another folder: lightning-core up --folder DIR, or LIGHTNING_CORE_HOME=DIR for all commands"
    try:
        check_private(folder)
    except ValueError as problem:
        return _said("pool-folder", problem, elsewhere)
    except OSError as problem:
        return error("pool-folder", f"{problem.filename or folder}: {problem.strerror or problem}", elsewhere)
    if not there.is_dir():
        return error("pool-folder", f"{folder}: cannot be written to: {there} is not a folder", elsewhere)
    if not os.access(there, os.W_OK | os.X_OK):
        why = "is on a read-only file system" if is_read_only(there) else "cannot be written to by this user"
        remedy = f"let its owner make {folder} for this user, or {elsewhere}"
        return error("pool-folder", f"{folder}: {there} {why}", elsewhere if is_read_only(there) else remedy)
    return ok("pool-folder", f"{folder}{'' if there == folder else ', which `up` will make'}")


def _journal_disk(machine: ThisMachine) -> Finding:
    try:
        allowed = allows_network_disk(machine.environment)
    except ValueError:
        allowed = False
    mount = disk_of(machine.folder)
    return disk_checks.check_journal_disk(machine.folder, mount, shared=machine.is_joined, allowed=allowed)


def _disk_space(machine: ThisMachine) -> Finding:
    there = nearest(machine.folder)
    return disk_checks.check_disk_space(there, room_warnings(there))


def _history_disk(machine: ThisMachine) -> Finding | None:
    folder = run_history(machine.environment)
    return disk_checks.check_history_disk(folder, None if folder is None else disk_of(folder.absolute()))


def _temporary_folder(machine: ThisMachine) -> Finding:
    shorter = "set TMPDIR to a folder with a short path on a local disk"
    try:
        temp = new_temp_folder()
    except HeadError as problem:
        return _said("temporary-folder", problem, shorter)
    except OSError as problem:
        return error("temporary-folder", f"no temporary folder can be made: {problem.strerror or problem}", shorter)
    try:
        listen(temp / "socket").close()
    except OSError as problem:
        found = f"no socket can be made in {temp.parent}: {problem.strerror or problem}"
        return error("temporary-folder", found, shorter)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    mount = disk_of(temp.parent)
    if mount is not None and mount.is_on_network:
        found = f"{temp.parent} is on {mount.kind}, a network disk: Ray is slow there"
        return warning("temporary-folder", found, shorter)
    return ok("temporary-folder", f"{temp.parent}")


def _pool(machine: ThisMachine) -> Finding:
    folder = machine.folder
    try:
        head = read_head(folder)
    except ConnectionError as problem:
        return _said("pool", problem, f"remove {folder / 'head.json'} if no pool is up there")
    if head is None:
        return ok("pool", f"none is up in {folder}")
    if is_alive(head):
        return ok("pool", f"up in {folder}, process {head['pid']}")
    found = f"the pool in {folder} ended without `down`: process {head['pid']} is gone"
    return note("pool", found, "lightning-core up: it removes what is left, and jobs that have not ended resume")


def _clock(machine: ThisMachine) -> Finding:
    anchor = read_anchor(machine.folder / "journal.db")
    last = None
    if anchor is not None and anchor.wall:
        is_same_boot = anchor.boot != "" and anchor.boot == boot_id()
        last = LastWrite(anchor.wall, since_boot() - anchor.booted if is_same_boot else None)
    return system_checks.check_clock(machine.began, clocks(), last)


def _said(name: str, problem: Exception, remedy: str) -> Finding:
    """Return an error whose message says what was found and, behind a semicolon, what to do."""
    found, _, told = str(problem).partition("; ")
    return error(name, found, told or remedy)


# ------------------------------------------------------------------------------------------------------------- of Ray


def _ray_token(machine: ThisMachine) -> Finding:
    environment = machine.environment
    mode = environment.get("RAY_AUTH_MODE") or "token"
    if mode.lower() != "token":
        found = f"RAY_AUTH_MODE is {mode!r}: `run` refuses a Ray without a token, and `up` makes one all the same"
        return error("ray-token", found, "unset RAY_AUTH_MODE")
    given = environment.get("RAY_AUTH_TOKEN_PATH")
    if given and not environment.get("RAY_AUTH_TOKEN"):
        try:
            token_source("", environment)
        except PoolUnavailableError:
            found = f"RAY_AUTH_TOKEN_PATH={given}: no token can be read there to join a pool of another machine"
            return warning("ray-token", found, "unset RAY_AUTH_TOKEN_PATH, or set it to a copy of that pool's token")
    left = Path(environment.get("HOME") or "/") / TOKEN_FILE
    try:
        status = left.stat()
    except OSError:
        return ok("ray-token", "each pool makes its own" if not given else f"RAY_AUTH_TOKEN_PATH={given}")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found = f"{left} can be read by others: who has it can run code as this user"
        return warning("ray-token", found, f"chmod 600 {left}")
    return note(
        "ray-token",
        f"{left} is left from a Ray: `run` without a pool, and any other Ray of this user, take the same token",
        f"nothing, or remove it once no Ray of this user runs: rm {left}",
    )


def _remains(machine: ThisMachine) -> Finding:
    if not (left := remains()):
        return ok("remains", f"none of ended pools in {tempfile.gettempdir()}")
    folders = " ".join(map(str, left))
    found = f"folders of pools that ended without `down`, with their tokens: {folders}"
    return note("remains", found, f"rm -r {folders}")


# ----------------------------------------------------------------------------------------------------------- of GPUs


def _gpus(machine: ThisMachine) -> Finding:
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    return gpu_checks.check_presence(machine.visible_gpus, visible, machine.reading, gpu_checks.device_files())


def _gpu_mode(machine: ThisMachine) -> Finding | None:
    shared = machine.size.workers > machine.size.devices
    return _of_gpus(
        machine, lambda gpus: gpu_checks.check_compute_mode(gpus, is_shared=shared, has_mps=machine.mps is not None)
    )


def _mig(machine: ThisMachine) -> Finding | None:
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    return _of_gpus(machine, lambda gpus: gpu_checks.check_mig(gpus, lambda: gpu_checks.nvidia_smi("-L"), visible))


def _gpu_memory(machine: ThisMachine) -> Finding | None:
    return _of_gpus(machine, lambda gpus: gpu_checks.check_gpu_memory(gpus, is_up=machine.is_up))


def _driver(machine: ThisMachine) -> Finding | None:
    return _of_gpus(machine, lambda gpus: gpu_checks.check_driver(gpus, machine.torch))


def _mps(machine: ThisMachine) -> Finding | None:
    return _of_gpus(machine, lambda gpus: gpu_checks.check_mps(machine.mps))


def _of_gpus(machine: ThisMachine, check: Callable[[Sequence[gpu_checks.GpuState]], Finding]) -> Finding | None:
    """Return what a check finds of the GPUs; None where there are none, or where the driver does not answer."""
    return check(machine.reading.gpus) if machine.has_gpus and machine.reading.gpus else None


# ---------------------------------------------------------------------------------------------------------------- all

Check = Callable[[ThisMachine], Finding | None]
"""What a check finds; None where it has nothing to say."""
# In the order in which they are shown.
CHECKS: Mapping[str, Check] = {
    "python": lambda _: package_checks.check_python(sys.version_info[:3], package_checks.python_wanted()),
    "packages": lambda _: package_checks.check_packages(package_checks.requirements()),
    "known-bad": lambda _: package_checks.check_known_bad(),
    "namesake": lambda _: package_checks.check_namesake(),
    "torch-build": lambda machine: gpu_checks.check_torch_build(machine.torch, machine.visible_gpus),
    "variables": _variables,
    "gpus": _gpus,
    "driver": _driver,
    "gpu-mode": _gpu_mode,
    "mig": _mig,
    "mps": _mps,
    "gpu-memory": _gpu_memory,
    "proc": lambda _: system_checks.check_proc(ROOT),
    "cores": lambda _: limit_checks.check_cores(len(CORES), ROOT, os.getpid()),
    "cpu-shares": lambda _: limit_checks.check_cpu_shares(ROOT, os.getpid()),
    "memory": lambda machine: limit_checks.check_memory(machine.size, ROOT, os.getpid()),
    "shared-memory": lambda _: limit_checks.check_shared_memory(Path("/dev/shm"), OBJECT_STORE_BYTES),
    "processes": _processes,
    "descriptors": lambda machine: limit_checks.check_files(machine.size, *getrlimit(RLIMIT_NOFILE)),
    "loopback": lambda _: system_checks.check_loopback(),
    "clock": _clock,
    "temporary-folder": _temporary_folder,
    "pool-folder": _pool_folder,
    "journal-disk": _journal_disk,
    "disk-space": _disk_space,
    "history-disk": _history_disk,
    "ray-token": _ray_token,
    "remains": _remains,
    "pool": _pool,
}
# Those whose errors break `up`: of any pool, of one with a Ray of its own, and of one that shares GPUs.
ANY_POOL = ("packages", "known-bad", "temporary-folder", "pool-folder", "journal-disk", "disk-space")
OWN_RAY = ("proc", "shared-memory", "processes", "descriptors", "loopback")
WITH_GPUS = ("torch-build", "gpus", "driver", "gpu-mode", "mig")


def examine(machine: ThisMachine, names: Iterable[str] = CHECKS) -> list[Finding]:
    """Return what checks find. One that fails is a note: it keeps no pool from being brought up.

    Args:
        machine: This machine.
        names: Names of the checks.
    """
    found = []
    for name in names:
        try:
            one = CHECKS[name](machine)
        except Exception as problem:  # systems differ in more ways than are known
            words = " ".join(f"{type(problem).__name__}: {problem}".split())
            one = note(name, f"cannot be checked: {words}", "nothing; please report it")
        found += [] if one is None else [one]
    return found


def refusals(machine: ThisMachine) -> list[str]:
    """Return a line for each thing because of which a pool could not be brought up, with what to do."""
    names = ANY_POOL + (() if machine.is_joined else OWN_RAY + (WITH_GPUS if machine.kind == "gpu" else ()))
    return [str(finding) for finding in examine(machine, names) if finding.severity is Severity.ERROR]
