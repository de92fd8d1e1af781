"""Mounted file systems, as ``/proc/self/mountinfo`` lists them, and which of them are on a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

# Types of file systems whose files other machines can change; those of a user's own programs begin with "fuse.".
_KINDS = """
    9p afs beegfs ceph cifs gfs2 glusterfs gpfs lustre nfs nfs4 ocfs2 orangefs panfs pvfs2 smb3 smbfs wekafs
    fuse.beegfs fuse.blobfuse2 fuse.ceph fuse.davfs fuse.gcsfuse fuse.glusterfs fuse.juicefs fuse.mount-s3
    fuse.rclone fuse.s3fs fuse.sshfs
"""
NETWORK = frozenset(_KINDS.split())


class Mount(NamedTuple):
    """A mounted file system."""

    top: str
    """Path within the file system that is mounted."""
    point: str
    """Path at which it is mounted."""
    kind: str
    """Type of the file system, such as ``ext4``."""
    options: frozenset[str]
    """Options of the file system, such as the controllers of a cgroup hierarchy."""

    @property
    def is_on_network(self) -> bool:
        """Whether other machines can change its files."""
        return self.kind in NETWORK


def mounts(root: Path = Path("/")) -> list[Mount]:
    """Return all mounted file systems in the order in which they were mounted: a later one may hide an earlier one.

    Raises:
        OSError: If ``/proc`` cannot be read.
    """
    found = []
    for line in (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        where, _, what = line.partition(" - ")
        top, point = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), word) for word in where.split(" ")[3:5])
        kind, _, options = what.split(" ", 2)
        found.append(Mount(top, point, kind, frozenset(options.split(","))))
    return found


def mount_of(path: Path, root: Path = Path("/")) -> Mount | None:
    """Return the file system of a path, which need not exist; None if it cannot be found out.

    Args:
        path: Absolute path without links.
        root: Folder of the file system.
    """
    try:
        above = [mount for mount in mounts(root) if path.is_relative_to(mount.point)]
    except (OSError, ValueError):
        return None
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)
