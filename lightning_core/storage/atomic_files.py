"""Files that are replaced as a whole: after a crash or a power cut they hold the old content or all of the new.

A writer holds a lock on its unfinished file, and the kernel releases the lock when the writer dies. Unfinished files
without a lock are litter.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lightning_core.regular_files import check_regular, open_regular

# Suffix of the temporary files that replace a file; it is unpredictable.
_UNFINISHED = re.compile(r"\.part-\d+-[0-9a-f]{8}")
# Errors of file systems without hard links, or that have run out of them.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES})


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a small file by new content; a link in its place is replaced, not followed.

    Args:
        path: Path of the file; its folder must exist.
        content: The new content; text is written as UTF-8.

    Raises:
        OSError: If it cannot be written; the message has the path, and the old content stays.
    """
    try:
        if path.exists():
            check_regular(path, path.stat())  # a device is not replaced by a file
        _remove_unfinished(path.parent, re.escape(path.name) + _UNFINISHED.pattern)
        with unfinished_file(path) as (part, file):
            file.write(content.encode() if isinstance(content, str) else content)
            sync_file(file)
            os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not name the file


@contextmanager
def unfinished_file(place: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Create a new locked file beside a path; it is removed if the block raises before moving it."""
    while True:
        path = _new_name(place)
        file = path.open("xb")  # O_EXCL: it follows no link
        with suppress(OSError):  # on a file system without locks, nothing removes litter either
            _lock(file)
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
    _remove_unfinished(folder, ".+" + _UNFINISHED.pattern)


def link_file(source: Path, place: Path) -> None:
    """Replace a file by a hard link to another, or by a copy where the file system has no hard links.

    Raises:
        OSError: If it cannot be done, such as FileNotFoundError.
    """
    with open_regular(source) as old:
        with suppress(OSError):  # else the new link could be removed as litter
            _lock(old, shared=True)
        try:
            beside = _new_name(place)
            os.link(source, beside, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with unfinished_file(place) as (part, new):
                shutil.copyfileobj(old, new, 1 << 20)
                sync_file(new)
                os.replace(part, place)
            return
        try:
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)  # a link is not renamed onto another link to the same file


def replace_link(place: Path, to: Path) -> None:
    """Replace a symbolic link by one to another path.

    Raises:
        OSError: If it cannot be done.
    """
    beside = _new_name(place)
    beside.symlink_to(to)
    try:
        os.replace(beside, place)
    except OSError:
        beside.unlink()
        raise


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


def _lock(file: IO[bytes] | int, *, shared: bool = False) -> None:
    """Lock a file until it is closed.

    Raises:
        OSError: If another process has locked it, or files cannot be locked here.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        raise OSError(errno.ENOSYS, "files cannot be locked here") from None
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _new_name(place: Path) -> Path:
    """Return the path of a new file beside another, which it will replace."""
    return place.with_name(f"{place.name}.part-{os.getpid()}-{os.urandom(4).hex()}")


def _remove_unfinished(folder: Path, form: str) -> None:
    with suppress(OSError):
        for name in os.listdir(folder):
            if re.fullmatch(form, name):
                _remove_if_unlocked(folder / name)


def _remove_if_unlocked(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _lock(descriptor)  # fails while its writer lives
            path.unlink()
        finally:
            os.close(descriptor)
