"""Checkpoint files whose newest generations are kept, each with a manifest, so that a valid one is always there.

Beside a file ``last.ckpt`` lies its manifest ``last.ckpt.json``. The generation before it is ``last.ckpt.1``, with a
manifest of its own, and so on.

Rules

1. A generation is *valid* if its size and SHA-256 match its manifest. If one was valid before a save, one is valid at
   every moment during and after it, whichever process is killed and whichever call fails.
2. The new file is written under another name in the same folder, never on another file system, and synced. Then older
   generations move up by links, only if the newest of them is valid; the folder is synced; the new file is renamed to
   its place, and its manifest after it.
3. What is read is what was verified: a file is opened once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from lightning_core.storage.atomic_files import (
    link_file,
    make_folder,
    remove_unfinished,
    sync_file,
    sync_folder,
    unfinished_file,
)
from lightning_core.storage.manifests import (
    CorruptCheckpointError,
    Manifest,
    encode,
    is_valid,
    manifest_of,
    megabytes,
    read_manifest,
    verify,
)


def generation_path(path: Path, age: int) -> Path:
    """Return the path of a file's generation that was written ``age`` saves ago."""
    return path.with_name(f"{path.name}.{age}") if age else path


def generation_paths(path: Path) -> list[Path]:
    """Return a file's path and those of its older generations that exist, the newest first."""
    form = re.compile(re.escape(path.name) + r"\.([1-9]\d{0,3})")
    with suppress(OSError):
        ages = sorted(int(match[1]) for match in map(form.fullmatch, os.listdir(path.parent)) if match)
        return [path, *(generation_path(path, age) for age in ages)]
    return [path]


def newest_valid(path: Path) -> tuple[Path, Manifest] | None:
    """Return the newest valid generation of a file, None if there is none."""
    for candidate in generation_paths(path):
        with suppress(CorruptCheckpointError):
            return candidate, verify(candidate)
    return None


class Generations:
    """Saves files so that the newest generations of each are kept.

    Args:
        keep: Number of generations of a file, the newest included.

    Raises:
        ValueError: If ``keep`` is less than 2: with one generation there are moments in which none is valid.

    Example::

        >>> folder = getfixture("tmp_path")
        >>> saver, place = Generations(), folder / "state"
        >>> for text in b"old", b"new":
        ...     manifest = saver.save(place, lambda file: file.write(text), step=7)
        >>> sorted(path.name for path in folder.iterdir())
        ['state', 'state.1', 'state.1.json', 'state.json']
        >>> manifest.size, verify(place) == manifest
        (3, True)
    """

    def __init__(self, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(f"keep must be at least 2, got {keep}")
        self._keep = keep
        self._written: dict[Path, tuple[int, ...]] = {}  # identities of file and manifest as they were written here

    def save(
        self,
        path: Path,
        write: Callable[[IO[bytes]], object],
        *,
        step: int | None = None,
        batches: int | None = None,
        value: float | None = None,
        size: Callable[[], int] | None = None,
        inspect: Callable[[Path], object] | None = None,
    ) -> Manifest:
        """Write a file; the existing one becomes the generation before it.

        Args:
            path: Path of the file.
            write: Function that writes the content, front to back.
            step: Optimizer steps done, for the manifest.
            batches: Batches done, for the manifest.
            value: Value of a metric, for the manifest; finite.
            size: Function that estimates the size in bytes, called if the file cannot be written.
            inspect: Function that is called with the complete file before it is moved to its place; if it raises, the
                file is not moved.

        Raises:
            OSError: If the file cannot be written; the message has the path and the free space. Every generation that
                was valid still is.
        """
        try:
            make_folder(path.parent)
            remove_unfinished(path.parent)
            return self._save(path, write, (step, batches, value), inspect)
        except OSError as error:
            self._written.pop(path, None)
            raise OSError(error.errno, f"{path} cannot be saved: {_explain(error, path.parent, size)}") from error

    def remove(self, path: Path) -> None:
        """Remove all generations of a file, the oldest first."""
        self._written.pop(path, None)
        for candidate in reversed(generation_paths(path)):
            candidate.unlink(missing_ok=True)
            manifest_of(candidate).unlink(missing_ok=True)

    def _save(
        self,
        path: Path,
        write: Callable[[IO[bytes]], object],
        known: tuple[int | None, int | None, float | None],
        inspect: Callable[[Path], object] | None,
    ) -> Manifest:
        with unfinished_file(path) as (part, file):
            hashing = _HashingFile(file)
            try:
                write(cast(IO[bytes], hashing))
            except Exception:
                if hashing.error is not None:  # torch reports a full disk in terms of its own
                    raise hashing.error from None
                raise
            manifest = Manifest(hashing.hash.hexdigest(), hashing.size, *known)
            sync_file(file)
            if inspect is not None:
                inspect(part)
            with unfinished_file(manifest_of(path)) as (note, text):
                text.write(encode(manifest))
                sync_file(text)
                self._move_up(path)
                identity = _identity(part) + _identity(note)
                os.replace(part, path)
                os.replace(note, manifest_of(path))
        sync_folder(path.parent)
        self._written[path] = identity
        return manifest

    def _move_up(self, path: Path) -> None:
        """Make every generation one older; the newest stays at its place too."""
        if path.is_symlink() or not path.exists() or not (self._untouched(path) or is_valid(path)):
            return  # it would replace a generation that may be valid
        with suppress(CorruptCheckpointError):
            if read_manifest(generation_path(path, 1)) == read_manifest(path) and is_valid(generation_path(path, 1)):
                return  # a writer was killed after this step
        for age in range(self._keep - 1, 0, -1):
            if generation_path(path, age - 1).exists():
                link_generation(generation_path(path, age - 1), generation_path(path, age))
        sync_folder(path.parent)

    def _untouched(self, path: Path) -> bool:
        """Return whether file and manifest are as this object wrote them, so that they need not be verified again."""
        try:
            return self._written[path] == _identity(path) + _identity(manifest_of(path))
        except (KeyError, OSError):
            return False


def link_generation(source: Path, place: Path) -> None:
    """Link a file and its manifest to another path of the same file system, without a gap at either path."""
    for there, here in ((source, place), (manifest_of(source), manifest_of(place))):
        with suppress(FileNotFoundError):  # the manifest may be missing
            link_file(there, here)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of a file that is already in its place."""
    with unfinished_file(manifest_of(path)) as (note, text):
        text.write(encode(manifest))
        sync_file(text)
        os.replace(note, manifest_of(path))
    sync_folder(path.parent)


class _HashingFile:
    """Writes through to a file and hashes the content on the way; the content must be written front to back."""

    def __init__(self, file: IO[bytes]) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        if self.error is not None:
            raise self.error
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        self.size += written
        return written

    def flush(self) -> None:
        """Do nothing: the file is read only after it is complete."""


def _explain(error: OSError, folder: Path, size: Callable[[], int] | None) -> str:
    room = [] if size is None else [f"about {megabytes(size())} MB needed"]
    with suppress(OSError):
        room.append(f"{megabytes(shutil.disk_usage(folder).free)} MB free")
    return f"{error.strerror or error} ({', '.join(room)})" if room else str(error.strerror or error)


def _identity(path: Path) -> tuple[int, ...]:
    known = path.lstat()
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns
