"""Checks before anything starts: plain data, checkpoints, GPUs, the folder of the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.bundle.problems import BundleError, Problems
from lightning_core.node.checks.disk_checks import check_journal_disk, disk_of
from lightning_core.node.checks.findings import Severity
from lightning_core.storage.generations import newest_valid
from lightning_core.storage.manifests import CorruptCheckpointError, check_archive, is_archive, open_verified
from lightning_core.storage.private_files import private_folder
from lightning_core.variables import MIG, allows_network_disk, visible_gpus

# A run keeps the newest two checkpoints of each job while it writes a third.
CHECKPOINTS_KEPT = 3
MIN_FREE_BYTES = 2**30


def check_plain(value: Any, problems: Problems) -> None:
    """Add a problem for each value that is not plain data, because a config is sent to the worker as JSON."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str | int | float | bool | None):
                check_plain(inner, problems.at(str(key)))
            else:
                problems.add(f"key {key!r} must be text")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_plain(inner, problems.at(index))
    elif type(value) not in (str, int, float, bool, type(None)):
        problems.add(f"{type(value)} cannot be sent to the worker; describe it by class_path and init_args")


def check_checkpoint_file(path: Path, problems: Problems) -> None:
    """Check that a checkpoint, or an older generation of it, exists and is complete, without importing torch.

    Neither this nor loading it afterwards takes more memory than the file has bytes.
    """
    if path.is_dir():
        problems.add(
            f"{path} is a folder of shards, which torch unpickles; make one file of it: "
            f"python -m lightning.pytorch.utilities.consolidate_checkpoint {path}"
        )
        return
    valid = newest_valid(path)
    try:
        with open_verified(path if valid is None else valid[0]) as (file, _):
            if is_archive(file):
                check_archive(file, content=valid is None)
            elif valid is None:
                size = file.seek(0, os.SEEK_END)
                problems.add(f"{path} is not a checkpoint: not in torch's zip format ({size:,} bytes)")
    except CorruptCheckpointError as error:
        problems.add(f"checkpoint {path} not found" if not path.exists() else f"checkpoint {path}: {error}")


def check_checkpoint_content(path: Path, problems: Problems) -> None:
    """Check that a checkpoint is Lightning's and holds only tensors and plain data. Nothing in it is executed."""
    import torch

    if (valid := newest_valid(path)) is not None:
        path = valid[0]  # loaded instead of a damaged one
    try:
        # Code in a checkpoint could do anything when it is loaded.
        if code := torch.serialization.get_unsafe_globals_in_checkpoint(path):
            problems.add(f"refused: checkpoint {path} contains code or unknown types: {', '.join(sorted(code))}")
            return
        content = torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors for a damaged file
        problems.add(f"refused: checkpoint {path} cannot be read: {str(error).splitlines()[0]}")
        return
    if not isinstance(content, dict) or "state_dict" not in content:
        problems.add(f"{path} is not a checkpoint of Lightning: it has no 'state_dict'")


def gpus_here() -> int:
    """Return the number of GPUs of this machine that this process may use, without importing torch.

    An instance of a card under MIG that ``CUDA_VISIBLE_DEVICES`` names (``MIG-...``) is a GPU of its own.
    """
    chosen = visible_gpus()
    try:
        gpus = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        gpus = 0
    if not gpus and (command := shutil.which("nvidia-smi")):
        try:
            listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            listed = ""
        gpus = sum(line.startswith("GPU ") for line in listed.splitlines())
    if chosen is None or not gpus:
        return gpus
    instances = {one for one in chosen if one.startswith(MIG)}
    return len(instances) + min(gpus, sum(not one.startswith(MIG) for one in chosen))


def check_gpus(devices: int, problems: Problems) -> None:
    """Check that this machine has enough GPUs for a pool."""
    if (gpus := gpus_here()) < devices:
        problems.add(f"{devices} wanted, but this machine has {gpus} GPUs; expected kind: cpu, or fewer devices")


def check_folder(folder: Path) -> None:
    """Make the folder of a run, readable by its user only, and check that it can be written to.

    Raises:
        BundleError: If it cannot be made or written to, or is a symbolic link.
    """
    try:
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BundleError([f"{folder}: cannot be written to: {error.strerror or error}"]) from None
    except ValueError as error:
        raise BundleError([str(error)]) from None


def check_disk(folder: Path, remedy: str, *, shared: bool) -> None:
    """Check that the journal of a run can be kept in a folder, which need not exist: not on a network disk.

    Args:
        folder: Folder of the run.
        remedy: What to do if it cannot.
        shared: Whether the run is on a Ray cluster, all of whose nodes must see the folder.

    Raises:
        BundleError: If it cannot.
    """
    found = check_journal_disk(folder, disk_of(folder), remedy, shared=shared, allowed=allows_network_disk())
    if found.severity is Severity.ERROR:
        raise BundleError([str(found)])


def folder_warnings(folder: Path, checkpoints: Sequence[Path] = ()) -> list[str]:
    """Return a line for each thing that may go wrong later in the folder of a run that can be written to.

    Args:
        folder: Folder of a run.
        checkpoints: Checkpoints that its jobs start from; those that they write will be as large.
    """
    journal = check_journal_disk(folder, disk_of(folder), shared=True)
    return [*room_warnings(folder, checkpoints), *([] if journal.severity is Severity.OK else [str(journal)])]


def room_warnings(folder: Path, checkpoints: Sequence[Path] = ()) -> list[str]:
    """Return a line if a folder has little room for checkpoints, and if it is in memory.

    Args:
        folder: Folder of a run or a pool.
        checkpoints: Checkpoints that jobs start from; those that they write will be as large.
    """
    known = sum(path.stat().st_size for path in checkpoints if path.is_file())
    wanted, free = max(MIN_FREE_BYTES, CHECKPOINTS_KEPT * known), shutil.disk_usage(folder).free
    warnings = []
    if free < wanted:
        warnings.append(f"{folder}: {free / 2**30:.1f} GiB free; the jobs' checkpoints may need {wanted / 2**30:.1f}")
    if _in_memory(folder):
        warnings.append(f"{folder}: is on a file system in memory; a power cut destroys the run")
    return warnings


def _in_memory(folder: Path) -> bool:
    """Return whether the file system of a folder is in memory."""
    mount = disk_of(folder)
    return mount is not None and mount.kind in ("tmpfs", "ramfs")
