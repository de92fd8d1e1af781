"""What can be known to go wrong before anything starts: what cannot be sent, checkpoints, GPUs, the run's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.bundle.problems import BundleError, Problems
from lightning_core.storage.generations import CorruptCheckpointError, newest, opened
from lightning_core.storage.private_files import private_folder

# A run keeps the newest two of each job's checkpoints while it writes a third.
CHECKPOINTS_KEPT = 3
LEAST_FREE = 2**30


def check_plain(value: Any, found: Problems) -> None:
    """A config travels as text: whatever is not plain data is found by its path, before a page of errors is."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str | int | float | bool | None):
                check_plain(inner, found.at(str(key)))
            else:
                found.add(f"key {key!r} must be text")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_plain(inner, found.at(index))
    elif type(value) not in (str, int, float, bool, type(None)):
        found.add(f"{type(value)} cannot be sent to the worker; describe it by class_path and init_args")


def check_checkpoint_file(path: Path, found: Problems) -> None:
    """Whether a checkpoint, or an older generation of it, is there and whole, without importing torch."""
    if newest(path) is not None:
        return
    try:
        with opened(path):
            pass
    except CorruptCheckpointError as finding:
        found.add(f"checkpoint {path} not found" if not path.exists() else f"checkpoint {path}: {finding}")
        return
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            begins = file.read(4) == b"PK\x03\x04"
        if not begins:
            found.add(f"{path} is not a checkpoint: not in torch's zip format ({size:,} bytes)")
        elif not zipfile.is_zipfile(path):
            found.add(f"checkpoint {path} is truncated ({size:,} bytes): its end is missing")
        else:
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    found.add(f"checkpoint {path} is damaged: {damaged} is not what was saved")
    except (OSError, zipfile.BadZipFile) as error:
        found.add(f"checkpoint {path} cannot be read: {error}")


def check_checkpoint_content(path: Path, found: Problems) -> None:
    """Whether a checkpoint holds tensors and plain data alone, and is Lightning's. Nothing in it is run."""
    import torch

    if (sound := newest(path)) is not None:
        path = sound[0]  # it is loaded instead of one that is damaged
    try:
        # A checkpoint of code is code: it could do anything when it is loaded.
        if code := torch.serialization.get_unsafe_globals_in_checkpoint(path):
            found.add(f"refused: checkpoint {path} contains code or unknown types: {', '.join(sorted(code))}")
            return
        content = torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:  # what a damaged file makes torch raise is of many kinds
        found.add(f"refused: checkpoint {path} cannot be read: {str(error).splitlines()[0]}")
        return
    if not isinstance(content, dict) or "state_dict" not in content:
        found.add(f"{path} is not a checkpoint of Lightning: it has no 'state_dict'")


def gpus_here() -> int:
    """GPUs of this machine that this process may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = None if visible is None else [part for part in visible.split(",") if part.strip() not in ("", "-1")]
    try:
        there = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        there = 0
    if not there and (command := shutil.which("nvidia-smi")):
        try:
            listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            listed = ""
        there = sum(line.startswith("GPU ") for line in listed.splitlines())
    return there if chosen is None else min(there, len(chosen))


def check_gpus(devices: int, found: Problems) -> None:
    """Whether a pool of so many GPUs can be had on this machine."""
    if (there := gpus_here()) < devices:
        found.add(f"{devices} wanted, but this machine has {there} GPUs; expected kind: cpu, or fewer devices")


def check_folder(folder: Path) -> None:
    """Makes a run's folder, the user's alone, and writes to it once.

    Raises:
        BundleError: if that cannot be done, or if it would lead elsewhere.
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


def folder_warnings(folder: Path, checkpoints: Sequence[Path] = ()) -> list[str]:
    """What may go wrong later with a folder that can be written to.

    Args:
        folder: of a run.
        checkpoints: that its jobs begin with: what they save will be as large.
    """
    known = sum(path.stat().st_size for path in checkpoints if path.is_file())
    wanted, free = max(LEAST_FREE, CHECKPOINTS_KEPT * known), shutil.disk_usage(folder).free
    warnings = []
    if free < wanted:
        warnings.append(f"{folder}: {free / 2**30:.1f} GiB free; the jobs' checkpoints may need {wanted / 2**30:.1f}")
    if _in_memory(folder):
        warnings.append(f"{folder}: lies in memory; a power cut takes the run with it")
    return warnings


def _in_memory(folder: Path) -> bool:
    """Whether the file system that holds a folder is kept in memory."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    kinds = {Path(fields[1]): fields[2] for fields in map(str.split, mounts) if len(fields) > 2}
    folder = folder.resolve()
    kind = next((kinds[at] for at in (folder, *folder.parents) if at in kinds), "")
    return kind in ("tmpfs", "ramfs")
