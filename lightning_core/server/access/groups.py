"""The socket of a group: how other accounts of the machine reach a pool, with rights that its owner gives them.

It lies in a folder that belongs to the pool's account, and that the group can only enter: mode 0710. So no member can
put another socket in its place, or list the folder. The kernel identifies the account of a process that connects; the
pool's own files stay closed to it.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.names import did_you_mean
from lightning_core.node.unix_sockets import MAX_PATH_BYTES
from lightning_core.server.access.people import Right
from lightning_core.storage.private_files import check_owners, private_folder

SOCKET = "socket"


class GroupSocket(NamedTuple):
    """A socket for a group."""

    path: Path
    gid: int
    rights: frozenset[Right]
    """Rights of members beyond seeing their own jobs."""


def group_socket(name: str, folder: Path, rights: frozenset[Right]) -> GroupSocket:
    """Return the socket of a group, after its folder is made and opened to the group.

    Args:
        name: Name of the group.
        folder: Its folder: a new one, or one that holds nothing but such a socket.
        rights: Rights of the members.

    Raises:
        ValueError: If there is no such group, this account is not in it, or the folder holds other files, can be
            changed by another account, or has too long a path.
        OSError: If the folder cannot be made.
    """
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        known = [group.gr_name for group in grp.getgrall()]
        raise ValueError(f"no group {name!r} on this machine{did_you_mean(name, known)}") from None
    folder = folder.expanduser().absolute()
    if (length := len(os.fsencode(folder / SOCKET))) > MAX_PATH_BYTES:
        raise ValueError(f"the path of a socket must have at most {MAX_PATH_BYTES} bytes, and {folder / SOCKET} has "
                         f"{length}")  # fmt: skip
    folder = private_folder(folder)
    if others := sorted(path.name for path in folder.iterdir() if path.name != SOCKET):
        raise ValueError(f"the folder of a group must be new or hold only a socket, and {folder} has {others[0]!r}")
    try:
        os.chown(folder, -1, gid)
    except PermissionError:
        raise ValueError(f"this account is not in the group {name}, and so cannot open a folder to it") from None
    folder.chmod(0o710)
    return GroupSocket(folder / SOCKET, gid, rights)


def socket_in(folder: Path) -> Path | None:
    """Return the socket that the owner of a folder has put there for a group; None if there is none.

    Raises:
        NotOursError: If an account that is neither the owner's, nor this one, nor root's could have put it there.
    """
    path = folder / SOCKET
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return None
    except OSError:
        return None
    check_owners(folder)
    return path
