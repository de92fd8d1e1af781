"""Where a launched job's checkpoints lie, and which of them its next incarnation begins with.

Rules

1. Each incarnation has a folder of its own, ``checkpoints/INCARNATION`` in the job's folder, and reads and writes no
   other. A worker that was given up may go on writing into its own.
2. An incarnation begins with the newest sound checkpoint of an earlier one that the scheduler has accepted: it is
   linked into the new folder before anybody is launched there. What is written elsewhere later is never looked at.
3. No link is followed out of the job's folder.

Nothing here imports torch: the Keeper uses it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.events import Checkpoint
from lightning_core.errors import LightningCoreError
from lightning_core.storage.generations import (
    CorruptCheckpointError,
    Manifest,
    TransientReadError,
    check,
    generation,
    generations,
    link_file,
    manifest_of,
    sync_folder,
    write_manifest,
)

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
FILE = "last.ckpt"
# How many generations an incarnation takes over: if the newest is damaged later, the other one is there.
TAKEN = 2
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
# Files that the disk does not give, and what it says.
Unread = list[tuple[Path, TransientReadError]]


class CheckpointUnreadableError(LightningCoreError, OSError):
    """A checkpoint exists but cannot be read now; starting without it would overwrite it."""


class Saved(NamedTuple):
    """A checkpoint that was sound when it was looked at."""

    path: Path
    save: Checkpoint


def checkpoint_folder(job_folder: Path, incarnation: int) -> Path:
    """Where an incarnation saves; the folder may not be there yet.

    Raises:
        ValueError: if the incarnation is not positive, or the folder is a link.
    """
    if incarnation < 1:
        raise ValueError(f"incarnation must be positive, got {incarnation}")
    folder = job_folder / FOLDER / str(incarnation)
    for part in (folder.parent, folder):
        if part.is_symlink():
            raise ValueError(f"{part} must not be a link")
    return folder


def find(folder: Path) -> Saved | None:
    """The newest sound checkpoint of an incarnation.

    Args:
        folder: of the incarnation's checkpoints.

    Raises:
        CheckpointUnreadableError: if there is none, but one that cannot be read now.
    """
    unread: Unread = []
    for path, manifest in _sound(folder, unread):
        return Saved(path, Checkpoint(manifest.batches or 0, manifest.sha256))
    _all_were_read(unread)
    return None


def adopt(job_folder: Path, incarnation: int, accepted: Collection[str]) -> Path | None:
    """Gives an incarnation what it begins with. Calling it again changes nothing; a call that was cut off is repaired.

    Once the incarnation has it, folders before that of the incarnation before it are removed: a job that comes back
    often would fill the disk.

    Args:
        job_folder: of the job.
        incarnation: that is about to be launched.
        accepted: SHA-256 of the checkpoints that the scheduler has accepted.

    Returns:
        The checkpoint in the incarnation's own folder; None if there is none to begin with.

    Raises:
        OSError: if it cannot be put there, or what is accepted can not be read now.
        ValueError: if the incarnation is not positive, or the folder is a link.
    """
    own = checkpoint_folder(job_folder, incarnation)
    own.mkdir(parents=True, exist_ok=True)
    found, unread = find(own), Unread()
    if found is None:
        chosen = _accepted(job_folder, incarnation, accepted, unread)
        for age, (path, manifest) in enumerate(islice(chosen, TAKEN)):
            _take(path, manifest, generation(own / FILE, age))
        sync_folder(own.parent)
        found = find(own)
    if found is None:
        _all_were_read(unread)
        return None
    for number, folder in _incarnations(job_folder):
        if number < incarnation - 1:
            shutil.rmtree(folder, ignore_errors=True)
    return found.path


def _accepted(
    job_folder: Path, incarnation: int, accepted: Collection[str], unread: Unread
) -> Iterator[tuple[Path, Manifest]]:
    """Sound and accepted checkpoints of earlier incarnations, the newest first, each content once."""
    seen: set[str] = set()
    for number, folder in _incarnations(job_folder):
        if number >= incarnation:
            continue
        for path, manifest in _sound(folder, unread):
            if manifest.sha256 not in accepted:
                log.warning("%s is passed over: the scheduler has not accepted it", path)
            elif manifest.sha256 not in seen:
                seen.add(manifest.sha256)
                yield path, manifest


def _take(path: Path, manifest: Manifest, place: Path) -> None:
    """Puts a checkpoint into another incarnation's folder; what is there then is what was accepted, or nothing."""
    link_file(path, place)
    write_manifest(place, manifest)
    try:
        check(place)
    except CorruptCheckpointError as finding:  # its owner has put another one there since it was looked at
        place.unlink()
        manifest_of(place).unlink()
        raise OSError(f"{path} changed while it was taken over: {finding}") from None


def _sound(folder: Path, unread: Unread) -> Iterator[tuple[Path, Manifest]]:
    """Sound checkpoints of one incarnation, the newest first; those that the disk does not give are noted."""
    if folder.is_symlink() or folder.parent.is_symlink():
        log.warning("%s is passed over: it is a link", folder)
        return
    for path in generations(folder / FILE):
        try:
            if path.is_symlink() or manifest_of(path).is_symlink():
                raise CorruptCheckpointError("it is a link")
            yield path, check(path)
        except CorruptCheckpointError as finding:
            if isinstance(finding, TransientReadError):
                unread.append((path, finding))
            if path.exists():
                log.warning("%s is passed over: %s", path, finding)


def _all_were_read(unread: Unread) -> None:
    for path, finding in unread:
        raise CheckpointUnreadableError(f"{path} {finding}")


def _incarnations(job_folder: Path) -> list[tuple[int, Path]]:
    """Folders of incarnations, the newest first."""
    with suppress(FileNotFoundError):
        found = [entry for entry in os.scandir(job_folder / FOLDER) if entry.is_dir(follow_symlinks=False)]
        numbered = [(int(entry.name), Path(entry.path)) for entry in found if _NUMBER.fullmatch(entry.name)]
        return sorted(numbered, reverse=True)
    return []
