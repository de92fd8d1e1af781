"""Files that are replaced as a whole: after a crash or a power cut they hold the old content or all of the new.

A writer holds a lock on its unfinished file, and the kernel releases the lock when the writer dies. Unfinished files
without a lock are litter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNFINISHED = re.compile(r".+\.part-\d+-[0-9a-f]{8}")
# Errors of file systems that have no hard links, or no more of them.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES})


def write_whole(path: Path, text: str) -> None:
    """Replace a small file by new content.

    Args:
        path: Path of the file; its folder must exist.
        text: The new content.

    Raises:
        OSError: If it cannot be written; the message has the path, and the old content stays.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not name the file
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def unfinished_file(place: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Create a new locked file beside a path; it is removed if the block raises before moving it."""
    while True:
        path = place.with_name(f"{place.name}.part-{os.getpid()}-{os.urandom(4).hex()}")
        file = path.open("xb")
        with suppress(OSError):  # on a file system without locks, nothing removes litter either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()  # another process removed it as litter before it was locked
    try:
        with file:
            yield path, file
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of dead writers; those that cannot be removed stay."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if _UNFINISHED.fullmatch(name):
                _remove_if_unlocked(folder / name)


def link_file(source: Path, place: Path) -> None:
    """Replace a file by a hard link to another, or by a copy where the file system has no hard links.

    Raises:
        OSError: If it cannot be done, such as FileNotFoundError.
    """
    beside = place.with_name(f"{place.name}.new")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with source.open("rb") as old, beside.open("xb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
                sync_file(new)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    os.replace(beside, place)
    beside.unlink(missing_ok=True)  # a link is not renamed onto another link to the same file


def sync_file(file: IO[bytes]) -> None:
    """Flush a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _remove_if_unlocked(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            if os.fstat(descriptor).st_nlink == 1:
                path.unlink()
        finally:
            os.close(descriptor)
