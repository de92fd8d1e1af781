"""Checkpoints of any content: a file or a folder of a script, or the shards of a model, with a listing of every file.

The listing takes the place of a checkpoint file among its generations (:mod:`.generations`): the SHA-256 in its
manifest stands for all that is listed.

Rules

1. The files lie in a folder of their own beside the listing. It is made under another name, and renamed once every
   file is synced. The listing comes after it, and its manifest last.
2. A listing is valid if it matches its manifest, and its folder holds exactly the files that it names, with their
   sizes and digests. A link in it is not followed, and makes it invalid.
3. The files are made read-only: a script that writes its next checkpoint where the last one lies must not destroy it.
4. They are hashed and linked here, and never loaded: what they mean is the business of the training.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, NamedTuple, cast

from lightning_core.core.events import Checkpoint
from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import open_regular, read_regular
from lightning_core.storage.atomic_files import link_file, make_folder, sync_folder
from lightning_core.storage.generations import Generations, generation_paths
from lightning_core.storage.manifests import CorruptCheckpointError, TransientReadError, manifest_of

# Beginning of every listing, by which it is told from a checkpoint of Lightning.
SIGNATURE = b'{"files_of_a_checkpoint": 1,'
MAX_LISTING_BYTES = 64 * 2**20
# Name of a checkpoint within its folder, unless the script gave it another one.
NAME = "checkpoint"
# Names of folders that are complete, and of those that are being made.
_COMPLETE, _UNFINISHED = "saved-", "unfinished-"
_FOLDER = re.compile(rf"{_COMPLETE}[0-9a-f]{{16}}")


class NothingSavedError(LightningCoreError, ValueError):
    """A training was given a place for its checkpoint and has written nothing there."""


class ListedFile(NamedTuple):
    """A file of a checkpoint."""

    size: int
    sha256: str


class SavedFiles:
    """Writes the checkpoints of one incarnation of a job.

    Args:
        folder: Folder of the incarnation's checkpoints.
        file: Name of the listing.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self._folder = folder
        self._path = folder / file
        self._generations = Generations()
        self.newest: Checkpoint | None = None
        """The newest checkpoint that was saved here; None before there is one."""

    @contextmanager
    def saving(self, batches: int) -> Iterator[Path]:
        """Give a path for a new checkpoint; when the block ends well, the checkpoint is complete.

        Args:
            batches: Batches done.

        Yields:
            The path, where nothing is yet, for a file or a folder.

        Raises:
            NothingSavedError: If nothing was written there.
            CorruptCheckpointError: If something in it is neither a file nor a folder.
            OSError: If it cannot be saved; the checkpoint before it is still there.
        """
        place = self.begin()
        try:
            yield place
            self.complete(place, batches)
        except BaseException:
            self.abandon(place)
            raise

    def begin(self) -> Path:
        """Return the path of a new checkpoint, where nothing is yet, for a file or a folder.

        :meth:`saving` does the same for one process. Several that write one checkpoint call :meth:`begin` in the first,
        and then :meth:`complete` or :meth:`abandon`.

        Raises:
            OSError: If there can be none.
        """
        make_folder(self._folder)
        self._remove_unlisted()
        unfinished = self._folder / (_UNFINISHED + os.urandom(8).hex())
        unfinished.mkdir()
        return unfinished / NAME

    def complete(self, place: Path, batches: int, files: Mapping[str, ListedFile] | None = None) -> Checkpoint:
        """Make what was written the newest checkpoint.

        Args:
            place: Path that :meth:`begin` has returned.
            batches: Batches done.
            files: What :func:`seal` has returned, for all files that are there; None to seal them here.

        Raises:
            NothingSavedError, CorruptCheckpointError, OSError: As of :meth:`saving`.
        """
        unfinished = place.parent
        names = names_in(unfinished)
        files = seal(unfinished, names) if files is None else files
        if not files:
            raise NothingSavedError(f"nothing was saved at {place}: write a file there, or make it a folder")
        if other := sorted(files.keys() ^ set(names)):
            raise CorruptCheckpointError(f"{other[0]!r} in it has come or gone while it was saved")
        for inner, within in _walk(unfinished):
            if inner not in files:
                sync_folder(within)
        sync_folder(unfinished)
        complete = self._folder / unfinished.name.replace(_UNFINISHED, _COMPLETE, 1)
        os.rename(unfinished, complete)
        sync_folder(self._folder)
        self.newest = self._list(complete, files, batches)
        self._remove_unlisted()
        return self.newest

    def abandon(self, place: Path) -> None:
        """Remove what was written, unless it is complete and listed."""
        shutil.rmtree(place.parent, ignore_errors=True)
        with suppress(OSError):
            self._remove_unlisted()

    def copy(self, path: Path, batches: int) -> None:
        """Copy a file or folder that a script has saved at a place of its own.

        A copy, since a script may write its next one to the same place. Links are followed.

        Raises:
            OSError: As of :meth:`saving`.
        """
        with self.saving(batches) as place:
            if path.is_dir():
                shutil.copytree(path, place, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(path, place)

    def _list(self, folder: Path, files: Mapping[str, ListedFile], batches: int) -> Checkpoint:
        text = SIGNATURE + json.dumps({"folder": folder.name, "files": files}).encode()[1:]
        if len(text) > MAX_LISTING_BYTES:
            raise OSError(errno.EFBIG, f"{len(files):,} files are too many for a checkpoint", str(folder))
        if self.newest is None:  # it was verified when this incarnation began, and may have been damaged since then
            self._drop_damaged()
        manifest = self._generations.save(self._path, lambda file: file.write(text), batches=batches)
        return Checkpoint(batches, manifest.sha256)

    def _drop_damaged(self) -> None:
        """Remove the newest checkpoint if its files are damaged: it must not replace the valid one before it."""
        try:
            if is_listing(self._path):
                check_files(self._path)
        except TransientReadError:
            pass
        except CorruptCheckpointError:
            self._path.unlink(missing_ok=True)
            manifest_of(self._path).unlink(missing_ok=True)

    def _remove_unlisted(self) -> None:
        """Remove the files of which no generation is left, and what a writer that was killed has left."""
        listed = set()
        for path in generation_paths(self._path):
            try:
                if is_listing(path):
                    listed.add(_read(path)[0])
            except TransientReadError:
                return  # unknown which are listed
            except CorruptCheckpointError:
                continue
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name not in listed and name.startswith((_COMPLETE, _UNFINISHED)):
                    shutil.rmtree(self._folder / name, ignore_errors=True)


def is_listing(path: Path) -> bool:
    """Return whether a checkpoint file is a listing of other files.

    Raises:
        TransientReadError: If it cannot be read now.
    """
    try:
        with open_regular(path, follow_links=False) as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TransientReadError(f"cannot be read: {error.strerror}") from None


def check_files(path: Path) -> Path:
    """Check that the files of a listing are as they were when they were saved; return the checkpoint that they make up.

    Raises:
        CorruptCheckpointError: If one is missing, damaged, a link, or not listed.
        TransientReadError: If one cannot be read now.
    """
    name, files = _read(path)
    folder = path.parent / name
    if folder.is_symlink():
        raise CorruptCheckpointError(f"its folder {name} is a link")
    try:
        found = {inner: place for inner, place in _walk(folder) if not place.is_dir()}
    except FileNotFoundError:
        raise CorruptCheckpointError(f"its folder {name} is missing") from None
    except OSError as error:
        raise TransientReadError(f"its files cannot be read: {error.strerror}") from None
    if other := sorted(found.keys() ^ files.keys()):
        what = "is missing" if other[0] in files else "is not listed"
        raise CorruptCheckpointError(f"its file {other[0]!r} {what}")
    for inner, place in found.items():
        try:
            with open_regular(place, follow_links=False) as file:
                if _describe(file) != files[inner]:
                    raise CorruptCheckpointError(f"its file {inner!r} does not match its listing")
        except OSError as error:
            raise TransientReadError(f"its file {inner!r} cannot be read: {error.strerror}") from None
    return checkpoint_in(folder)


def files_of(path: Path) -> Path:
    """Return the checkpoint that the files of a listing make up, without checking them.

    Raises:
        CorruptCheckpointError: If the listing cannot be read.
    """
    return checkpoint_in(path.parent / _read(path)[0])


def link_files(path: Path, folder: Path) -> None:
    """Link the files of a listing into another folder, where the listing will be put.

    Raises:
        CorruptCheckpointError: If the listing cannot be read.
        OSError: If a file cannot be linked.
    """
    name, _ = _read(path)
    place = folder / name
    if place.exists():
        return  # of an interrupted attempt, or of another generation: it is verified afterwards
    unfinished = folder / f"{_UNFINISHED}{os.urandom(8).hex()}"
    try:
        unfinished.mkdir()
        folders = [unfinished]
        for inner, source in _walk(path.parent / name):
            if source.is_dir():
                (unfinished / inner).mkdir()
                folders.append(unfinished / inner)
            else:
                link_file(source, unfinished / inner)
        for made in folders:
            sync_folder(made)
        os.rename(unfinished, place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def remove_files(path: Path) -> None:
    """Remove the files of a listing that turned out to be damaged."""
    with suppress(CorruptCheckpointError):
        shutil.rmtree(path.parent / _read(path)[0], ignore_errors=True)


def checkpoint_in(folder: Path) -> Path:
    """Return the path of the checkpoint in its folder: the only entry, if the script chose another name.

    ``numpy.savez``, for one, adds an ending to the name that it is given.
    """
    entries = os.listdir(folder) if folder.is_dir() else []
    return folder / (entries[0] if len(entries) == 1 else NAME)


def names_in(folder: Path) -> list[str]:
    """Return the paths of all files within a folder, in order.

    Raises:
        OSError: If a folder cannot be read.
        CorruptCheckpointError: If something in it is neither a file nor a folder.
    """
    return sorted(inner for inner, place in _walk(folder) if not place.is_dir())


def seal(folder: Path, names: Iterable[str]) -> dict[str, ListedFile]:
    """Sync files of a checkpoint, make them read-only, and return what is listed of them.

    Args:
        folder: Folder that they are in.
        names: Their paths in it.

    Raises:
        OSError: If one cannot be read or synced.
    """
    files = {}
    for inner in names:
        with open_regular(folder / inner, follow_links=False) as file:
            os.fsync(file.fileno())
            files[inner] = _describe(file)
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & ~0o222)
    return files


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files and folders within a folder, each with its path in it; a folder before what is in it.

    Raises:
        OSError: If a folder cannot be read.
        CorruptCheckpointError: If something in it is neither a file nor a folder.
    """
    ahead = [""]
    while ahead:
        within = ahead.pop()
        with os.scandir(folder / within) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                inner = f"{within}/{entry.name}" if within else entry.name
                if entry.is_dir(follow_symlinks=False):
                    ahead.append(inner)
                elif not entry.is_file(follow_symlinks=False):
                    raise CorruptCheckpointError(f"{inner!r} in it is a link, or no regular file; save a copy instead")
                yield inner, folder / inner


def _describe(file: IO[bytes]) -> ListedFile:
    digest = hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
    return ListedFile(os.fstat(file.fileno()).st_size, digest)


def _read(path: Path) -> tuple[str, dict[str, ListedFile]]:
    """Return the name of the folder of a listing, and its files.

    Raises:
        CorruptCheckpointError: If it is missing or damaged.
        TransientReadError: If it cannot be read now.
    """
    try:
        body = json.loads(read_regular(path, MAX_LISTING_BYTES, follow_links=False))
        name, files = body["folder"], {inner: ListedFile(*told) for inner, told in body["files"].items()}
    except FileNotFoundError:
        raise CorruptCheckpointError("missing") from None
    except OSError as error:
        raise TransientReadError(f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptCheckpointError("its listing is damaged") from None
    if not isinstance(name, str) or not _FOLDER.fullmatch(name):  # it is in the folder of the listing
        raise CorruptCheckpointError("its listing is damaged")
    return name, files
