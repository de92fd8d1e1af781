"""Checks of the GPUs of this machine, asked of the driver's `nvidia-smi`; CUDA is not started."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.limits import format_bytes, shown
from lightning_core.node.checks.findings import Finding, error, note, ok, warning
from lightning_core.node.checks.package_checks import TorchBuild

# Seconds that nvidia-smi may take. Without persistence mode it loads the driver first.
SMI_TIMEOUT = 1.5
FIELDS = "index,name,driver_version,compute_mode,mig.mode.current,persistence_mode,memory.total,memory.used"
# First driver of each release of CUDA: minor versions of it need no newer one
# (https://docs.nvidia.com/deploy/cuda-compatibility).
FIRST_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
# Where CUDA's images have its forward compatibility package.
COMPAT = Path("/usr/local/cuda/compat")
# First driver with CUDA's process checkpoints, which `on_hold: suspend` uses.
FIRST_SUSPENDING_DRIVER = 570
# Fraction of a GPU's memory that others may have without a note.
HARDLY_ANY = 0.02
MIB = 2**20

Smi = Callable[..., str]
"""Function of the words of a command of `nvidia-smi` that returns its output; it raises OSError if it fails."""


class GpuState(NamedTuple):
    """A GPU as the driver describes it."""

    number: int
    name: str
    driver: str
    compute_mode: str
    mig: bool
    """Whether it is divided into instances (MIG)."""
    persistent: bool
    """Whether the driver stays loaded while no process uses it."""
    total: int
    """Memory in bytes; 0 if the driver does not say."""
    used: int
    """Memory in use, in bytes."""


class GpuReading(NamedTuple):
    """The GPUs of this machine."""

    gpus: tuple[GpuState, ...]
    problem: str = ""
    """Why the driver could not be asked; empty if it was."""
    is_broken: bool = False
    """Whether it was asked, and failed."""


def nvidia_smi(*words: str) -> str:
    """Return the output of a command of `nvidia-smi`.

    Raises:
        OSError: If it is not there, fails, or takes longer than :data:`SMI_TIMEOUT`; the message says why.
    """
    if (command := shutil.which("nvidia-smi")) is None:
        raise FileNotFoundError("there is no nvidia-smi")
    try:
        done = subprocess.run(
            [command, *words],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"nvidia-smi has not answered within {SMI_TIMEOUT} s") from None
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split()) or f"exit code {done.returncode}"
        raise ChildProcessError(f"nvidia-smi fails: {said[:200]}")
    return done.stdout


def read_gpus(smi: Smi = nvidia_smi) -> GpuReading:
    """Ask the driver for all GPUs of this machine."""
    try:
        lines = smi(f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits").splitlines()
        return GpuReading(tuple(_read(line) for line in lines if line.strip()))
    except (OSError, ValueError) as problem:
        return GpuReading((), str(problem), isinstance(problem, ChildProcessError))


def _read(line: str) -> GpuState:
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(FIELDS.split(",")):
        raise ValueError(f"nvidia-smi says {shown(line)}, which is not {FIELDS}")
    number, name, driver, mode, mig, persistence, total, used = words
    return GpuState(
        int(number), name, driver, mode, mig == "Enabled", persistence == "Enabled", _mib(total), _mib(used)
    )


def _mib(text: str) -> int:
    """Return a number of MiB as bytes; 0 for what a GPU does not have, such as one that shares the host's memory."""
    return int(text) * MIB if text.isdecimal() else 0


def check_presence(count: int, visible: str | None, reading: GpuReading, device_files: Sequence[Path]) -> Finding:
    """Check that processes of this user can use the GPUs.

    Args:
        count: GPUs that a pool would take.
        visible: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        reading: What the driver says.
        device_files: Files of the GPUs and of the driver in ``/dev``.
    """
    if not count and reading.is_broken:
        remedy = "nothing if there is no NVIDIA GPU; else load the driver, or restart the machine after its update"
        return note("gpus", f"none, so a pool shares cores: {reading.problem}", remedy)
    if not count and not reading.gpus:
        return ok("gpus", "none: a pool shares cores")
    if not count:
        remedy = "unset CUDA_VISIBLE_DEVICES to use them"
        return note("gpus", f"{_listed(reading.gpus)}, hidden by CUDA_VISIBLE_DEVICES={visible}", remedy)
    closed = [str(path) for path in device_files if not os.access(path, os.R_OK | os.W_OK)]
    if not device_files or closed:
        what = f"{', '.join(closed)} cannot be opened" if closed else "there is no /dev/nvidia0"
        return error(
            "gpus",
            f"the driver has GPUs, and {what} here",
            "start the container with its GPUs (docker run --gpus all), or have this user put into the group of these "
            "files; for a pool of cores: pool: {kind: cpu} in the file of `up --config`",
        )
    if reading.problem:
        remedy = "run nvidia-smi; after an update of the driver restart the machine; if it is slow, nvidia-smi -pm 1"
        severe = error if reading.is_broken else warning  # a container may have the GPU without the program
        return severe("gpus", f"there are GPUs ({count}), and {reading.problem}", remedy)
    some = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible}"
    return ok("gpus", f"{_listed(reading.gpus)}{some}")


def _listed(gpus: Sequence[GpuState]) -> str:
    return ", ".join(f"{gpu.number}: {gpu.name} ({format_bytes(gpu.total)})" for gpu in gpus)


def check_compute_mode(gpus: Sequence[GpuState], *, is_shared: bool, has_mps: bool) -> Finding:
    """Check that several processes may use a GPU.

    Args:
        gpus: The GPUs.
        is_shared: Whether a pool keeps more than one process on each.
        has_mps: Whether MPS runs, which is the one process that an exclusive GPU accepts.
    """
    prohibited = [gpu for gpu in gpus if gpu.compute_mode == "Prohibited"]
    exclusive = [gpu for gpu in gpus if gpu.compute_mode.startswith("Exclusive")]
    if prohibited:
        return error(
            "gpu-mode",
            f"{_numbers(prohibited)}: compute mode Prohibited: no process may use it",
            f"as root: nvidia-smi -i {_indices(prohibited)} -c DEFAULT",
        )
    if exclusive and not has_mps:
        severe = error if is_shared else warning
        return severe(
            "gpu-mode",
            f"{_numbers(exclusive)}: compute mode {exclusive[0].compute_mode}: one process at a time, and a pool keeps "
            "several on a device",
            f"as root: nvidia-smi -i {_indices(exclusive)} -c DEFAULT, or start MPS (nvidia-cuda-mps-control -d), or "
            "keep one job on each device: `resident` as large as `devices`",
        )
    return ok("gpu-mode", "several processes may use a GPU")


def check_mig(gpus: Sequence[GpuState], listed: Callable[[], str], visible: str | None) -> Finding:
    """Check for GPUs that are divided into instances, of which a process uses one.

    Args:
        gpus: The GPUs.
        listed: Function that returns the output of ``nvidia-smi -L``; it may raise OSError.
        visible: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    if not (divided := [gpu for gpu in gpus if gpu.mig]):
        return ok("mig", "off")
    instances = 0
    with suppress(OSError):
        instances = sum(line.strip().startswith("MIG ") for line in listed().splitlines())
    whole = f"as root: nvidia-smi -i {_indices(divided)} -mig 0"
    if not instances:
        found = f"{_numbers(divided)}: MIG is on without an instance, so no process can use it"
        return error("mig", found, f"{whole}, or make instances: nvidia-smi mig -cgi PROFILE -C")
    if visible is not None and "MIG-" in visible:
        return ok("mig", f"on, and CUDA_VISIBLE_DEVICES={visible}")
    return warning(
        "mig",
        f"{_numbers(divided)}: MIG is on (instances: {instances}), and a process uses one: the first",
        f"share whole GPUs ({whole}), or name the instances: CUDA_VISIBLE_DEVICES=MIG-... of nvidia-smi -L",
    )


def check_gpu_memory(gpus: Sequence[GpuState], *, is_up: bool) -> Finding:
    """Check that the memory of the GPUs is free.

    Args:
        gpus: The GPUs.
        is_up: Whether a pool is up, which may have it.
    """
    busy = [gpu for gpu in gpus if gpu.total and gpu.used > HARDLY_ANY * gpu.total]
    if not busy or is_up:
        return ok("gpu-memory", "free" if not busy else "in use while a pool is up")
    used = ", ".join(f"{gpu.number}: {format_bytes(gpu.used)} of {format_bytes(gpu.total)}" for gpu in busy)
    return note(
        "gpu-memory",
        f"in use, by processes of others: {used}",
        "nvidia-smi shows by which; tell the pool what is left: `device_memory` in its file",
    )


def check_driver(gpus: Sequence[GpuState], build: TorchBuild | None, compat: Path = COMPAT) -> Finding:
    """Check that the driver is new enough for the CUDA that torch was built with.

    Args:
        gpus: The GPUs.
        build: For what torch was built; None if it is not installed.
        compat: Folder of CUDA's forward compatibility package, with which an older driver may do.
    """
    driver = gpus[0].driver
    has = _numbers_of(driver)
    cuda = _numbers_of(build.cuda if build is not None else "")
    first = FIRST_DRIVERS.get(cuda[0]) if cuda else None
    if build is not None and first is not None and has[:2] < first:
        severe = warning if compat.is_dir() else error
        return severe(
            "driver",
            f"driver {driver} is too old for the CUDA {build.cuda} of torch {build.version}, which needs "
            f"{'.'.join(map(str, first))}",
            f"update the driver, or install a torch that was built for it: {_builds_for(has)}",
        )
    if not all(gpu.persistent for gpu in gpus):
        found = f"driver {driver}, unloaded whenever no process uses it: the first one then waits for seconds"
        return note("driver", found, "as root: nvidia-smi -pm 1; `on_hold: suspend` needs it with some drivers")
    if has and has[0] < FIRST_SUSPENDING_DRIVER:
        found = f"driver {driver}, which cannot suspend processes"
        remedy = f"nothing, unless jobs have `on_hold: suspend`: update to {FIRST_SUSPENDING_DRIVER} or newer"
        return note("driver", found, remedy)
    return ok("driver", driver)


def check_torch_build(build: TorchBuild | None, gpus: int) -> Finding | None:
    """Check that torch was built for the GPUs; None if it is not installed, which another check says.

    Args:
        build: For what torch was built.
        gpus: GPUs that a pool would take.
    """
    if build is None:
        return None
    if build.cuda:
        return ok("torch-build", f"torch {build.version}, for CUDA {build.cuda}")
    if not gpus:
        return ok("torch-build", f"torch {build.version}, {f'for ROCm {build.hip}' if build.hip else 'for CPUs'}")
    return error(
        "torch-build",
        f"torch {build.version} was built {f'for ROCm {build.hip}' if build.hip else 'for CPUs'}, and this machine has "
        "NVIDIA GPUs: no training can use them",
        "install the torch for the driver (https://pytorch.org/get-started/locally), or share the cores: "
        "pool: {kind: cpu} in the file of `up --config`",
    )


def check_mps(process: int | None) -> Finding:
    """Say whether MPS runs, with which kernels of several processes run on a GPU at once.

    Args:
        process: Process of the daemon; None if there is none.
    """
    if process is not None:
        return ok("mps", f"runs, process {process}")
    return note(
        "mps",
        "does not run: kernels of jobs that train beside each other take turns on a GPU",
        "nothing, or start it before `up`, as the pool's account: nvidia-cuda-mps-control -d",
    )


def mps_process(proc: Path = Path("/proc")) -> int | None:
    """Return the process of an MPS daemon or server that runs; None if none is seen.

    Args:
        proc: Folder in which the kernel shows processes.
    """
    for name in proc.glob("[0-9]*/comm"):
        with suppress(OSError):  # it has just ended
            if name.read_text().startswith("nvidia-cuda-mps"):
                return int(name.parent.name)
    return None


def device_files(dev: Path = Path("/dev")) -> list[Path]:
    """Return the files of the GPUs and of the driver; ``dxg`` is that of Windows' subsystem for Linux."""
    return [*sorted(dev.glob("nvidia[0-9]*")), *(path for path in (dev / "nvidiactl", dev / "dxg") if path.exists())]


def _builds_for(driver: tuple[int, ...]) -> str:
    fits = [cuda for cuda, first in FIRST_DRIVERS.items() if first <= driver[:2]]
    return f"CUDA {max(fits)}" if fits else "an older CUDA"


def _numbers_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _numbers(gpus: Sequence[GpuState]) -> str:
    return f"GPU{'s' * (len(gpus) > 1)} {', '.join(str(gpu.number) for gpu in gpus)}"


def _indices(gpus: Sequence[GpuState]) -> str:
    return ",".join(str(gpu.number) for gpu in gpus)
