"""Checkpoint folders of a launched job, and the choice of the checkpoint from which its next incarnation starts.

Rules

1. Each incarnation has a folder of its own, ``checkpoints/INCARNATION`` in the job's folder, and reads and writes no
   other. A worker that was declared lost may keep writing into its own.
2. An incarnation starts from the newest valid checkpoint of an earlier one that the scheduler has accepted. It is
   linked into the new folder before the incarnation is launched; later writes of an earlier one are ignored.
3. No link is followed out of the job's folder.
4. A checkpoint is a file of Lightning, or the files of a script with their listing (:mod:`.saved_files`). Either has
   one digest, which the scheduler accepts.

Nothing here imports torch, since the pool manager uses it.
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
from lightning_core.storage.atomic_files import link_file, sync_folder
from lightning_core.storage.generations import generation_path, generation_paths, write_manifest
from lightning_core.storage.manifests import (
    CorruptCheckpointError,
    Manifest,
    TransientReadError,
    manifest_of,
    read_manifest,
    verify,
)
from lightning_core.storage.saved_files import check_files, files_of, is_listing, link_files, remove_files

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
FILE = "last.ckpt"
# Generations that an incarnation adopts: if the newest is damaged later, the other one remains.
ADOPTED_GENERATIONS = 2
# Names of the folders of incarnations.
NUMBER = re.compile(r"[1-9][0-9]{0,17}")
# Files that cannot be read now, each with the error.
Unread = list[tuple[Path, TransientReadError]]


class CheckpointUnreadableError(LightningCoreError, OSError):
    """A checkpoint exists but cannot be read now; starting without it would overwrite it."""


class FoundCheckpoint(NamedTuple):
    """A checkpoint that was valid when it was found."""

    path: Path
    """What is loaded: the file, or the file or folder that a script has saved."""
    checkpoint: Checkpoint


def checkpoint_folder(job_folder: Path, incarnation: int) -> Path:
    """Return the folder of an incarnation's checkpoints, which may not exist yet.

    Raises:
        ValueError: If the incarnation is not positive, or the folder is a link.
    """
    if incarnation < 1:
        raise ValueError(f"incarnation must be positive, got {incarnation}")
    folder = job_folder / FOLDER / str(incarnation)
    for part in (folder.parent, folder):
        if part.is_symlink():
            raise ValueError(f"{part} must not be a link")
    return folder


def find(folder: Path) -> FoundCheckpoint | None:
    """Return the newest valid checkpoint of an incarnation, None if there is none.

    Args:
        folder: Folder of the incarnation's checkpoints.

    Raises:
        CheckpointUnreadableError: If none is valid, but one cannot be read now.
    """
    unread: Unread = []
    for path, manifest in _valid_checkpoints(folder, unread):
        found = files_of(path) if is_listing(path) else path
        return FoundCheckpoint(found, Checkpoint(manifest.batches or 0, manifest.sha256))
    _check_all_read(unread)
    return None


def newest_written(folder: Path) -> FoundCheckpoint | None:
    """Return the newest checkpoint of an incarnation by its manifest, without reading it; None if there is none.

    The next incarnation verifies it before it starts from it.

    Args:
        folder: Folder of the incarnation's checkpoints.
    """
    with suppress(CorruptCheckpointError):
        path = folder / FILE
        if path.exists() and (manifest := read_manifest(path)) is not None:
            found = files_of(path) if is_listing(path) else path
            return FoundCheckpoint(found, Checkpoint(manifest.batches or 0, manifest.sha256))
    return None


def adopt(job_folder: Path, incarnation: int, accepted: Collection[str]) -> Path | None:
    """Put the checkpoint that an incarnation starts from into its folder.

    The call is idempotent and repairs an interrupted one. Afterwards only this incarnation's folder and the one before
    it are kept: a job that restarts often would fill the disk.

    Args:
        job_folder: Folder of the job.
        incarnation: Incarnation that is about to be launched.
        accepted: SHA-256 digests of the checkpoints that the scheduler has accepted.

    Returns:
        The checkpoint in the incarnation's own folder; None if the job starts from the beginning.

    Raises:
        OSError: If the checkpoint cannot be put there, or an accepted one cannot be read now.
        ValueError: If the incarnation is not positive, or the folder is a link.
    """
    own = checkpoint_folder(job_folder, incarnation)
    own.mkdir(parents=True, exist_ok=True)
    found, unread = find(own), Unread()
    if found is None:
        chosen = _accepted(job_folder, incarnation, accepted, unread)
        for age, (path, manifest) in enumerate(islice(chosen, ADOPTED_GENERATIONS)):
            _copy(path, manifest, generation_path(own / FILE, age))
        sync_folder(own.parent)
        found = find(own)
    if found is None:
        _check_all_read(unread)
        return None
    for number, folder in _incarnations(job_folder):
        if number < incarnation - 1:
            shutil.rmtree(folder, ignore_errors=True)
    return found.path


def _accepted(
    job_folder: Path, incarnation: int, accepted: Collection[str], unread: Unread
) -> Iterator[tuple[Path, Manifest]]:
    """Yield valid, accepted checkpoints of earlier incarnations, the newest first, each content once."""
    seen: set[str] = set()
    for number, folder in _incarnations(job_folder):
        if number >= incarnation:
            continue
        for path, manifest in _valid_checkpoints(folder, unread):
            if manifest.sha256 not in accepted:
                log.warning("skipped checkpoint %s: the scheduler has not accepted it", path)
            elif manifest.sha256 not in seen:
                seen.add(manifest.sha256)
                yield path, manifest


def _copy(path: Path, manifest: Manifest, place: Path) -> None:
    """Link a checkpoint into another incarnation's folder: exactly the accepted one, or none."""
    listed = is_listing(path)
    if listed:
        link_files(path, place.parent)
    link_file(path, place)
    write_manifest(place, manifest)
    try:
        verify(place)
        if listed:
            check_files(place)
    except CorruptCheckpointError as finding:  # its writer has replaced it since it was verified
        if listed:
            remove_files(place)
        place.unlink()
        manifest_of(place).unlink()
        raise OSError(f"{path} changed while it was copied: {finding}") from None


def _valid_checkpoints(folder: Path, unread: Unread) -> Iterator[tuple[Path, Manifest]]:
    """Yield the valid checkpoints of one incarnation, the newest first; add those that cannot be read to ``unread``."""
    if folder.is_symlink() or folder.parent.is_symlink():
        log.warning("skipped checkpoints %s: the folder is a link", folder)
        return
    for path in generation_paths(folder / FILE):
        try:
            if path.is_symlink() or manifest_of(path).is_symlink():
                raise CorruptCheckpointError("it is a link")
            manifest = verify(path)
            if is_listing(path):
                check_files(path)
            yield path, manifest
        except CorruptCheckpointError as finding:
            if isinstance(finding, TransientReadError):
                unread.append((path, finding))
            if path.exists():
                log.warning("skipped checkpoint %s: %s", path, finding)


def _check_all_read(unread: Unread) -> None:
    for path, finding in unread:
        raise CheckpointUnreadableError(f"{path} {finding}")


def _incarnations(job_folder: Path) -> list[tuple[int, Path]]:
    """Return the incarnations and their folders, the newest first."""
    with suppress(FileNotFoundError):
        found = [entry for entry in os.scandir(job_folder / FOLDER) if entry.is_dir(follow_symlinks=False)]
        numbered = [(int(entry.name), Path(entry.path)) for entry in found if NUMBER.fullmatch(entry.name)]
        return sorted(numbered, reverse=True)
    return []
