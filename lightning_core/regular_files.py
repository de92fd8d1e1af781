"""Safe reading of untrusted files: regular files alone, of bounded size.

A pipe in the place of a file would keep its reader waiting for ever, opening a device may do something, and a file of
100 GB that is all hole would fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

# Maximum size of a table that is read as a whole (recorded curves, markets, arrivals): about a million rows.
MAX_TABLE_BYTES = 16 * 2**20
# Errors of files that are not regular, or too large: no later attempt will succeed.
NEVER_READABLE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.EFBIG})
_KINDS = {
    stat.S_IFLNK: "a link, which is not followed here",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Check that a status is that of a regular file.

    Raises:
        OSError: If it is not; the message names its type.
    """
    if not stat.S_ISREG(status.st_mode):
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}; expected a regular file", os.fspath(path))


def open_regular(
    path: str | os.PathLike[str],
    *,
    dir_fd: int | None = None,
    follow_links: bool = True,
    check: Callable[[os.stat_result], None] | None = None,
) -> IO[bytes]:
    """Open a regular file to read it, without ever waiting.

    Args:
        path: Path of the file.
        dir_fd: Open folder in which a relative path is looked up.
        follow_links: Whether the path itself may be a link.
        check: Function that is called with the status of the open file, and may raise.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """
    # Looked at before it is opened, because opening some devices has an effect, and after, because it may be replaced.
    check_regular(path, os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_links))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        status = os.fstat(descriptor)
        check_regular(path, status)
        if check is not None:
            check(status)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(
    path: str | os.PathLike[str],
    max_bytes: int,
    *,
    dir_fd: int | None = None,
    follow_links: bool = True,
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes:
    """Return the content of a regular file.

    Args:
        path: Path of the file.
        max_bytes: Maximum size; a larger file is refused after this many bytes at most, even if it grows.
        dir_fd: See :func:`open_regular`, also for the others.
        follow_links: Whether the path itself may be a link.
        check: Function that is called with the status of the open file, and may raise.

    Raises:
        OSError: If it cannot be read, is not a regular file, or is too large.
    """
    with open_regular(path, dir_fd=dir_fd, follow_links=follow_links, check=check) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", os.fspath(path))
    return content


def read_text(path: Path, max_bytes: int, encoding: str = "utf-8") -> str:
    """Return the text of a regular file.

    Raises:
        OSError: As of :func:`read_regular`.
        UnicodeDecodeError: If it is not text in this encoding.
    """
    return read_regular(path, max_bytes).decode(encoding)
