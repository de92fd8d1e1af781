"""Which cores of this machine are whose: pools of one user that share CPUs side by side take different ones.

Training threads are bound to the cores of their device, and every pool would begin with the same one. A pool holds a
lock on a file for each core that it has; the kernel lets go of it with the process. Where there are too few cores for
all, pools share them, and whoever brings one up is told.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class CoreClaim:
    """The cores that one pool has, for as long as its process lives.

    Args:
        cores: of this machine that may be used, in the order in which a pool takes them.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._held: list[int] = []

    def claim(self, count: int) -> int:
        """Take so many cores one after the other that no other pool has, if there are as many.

        Returns:
            The place of the first of them in the order; 0, and nothing is taken, if there are too few.
        """
        if count > len(self._cores):
            return 0
        for first in range(len(self._cores)):
            if self._take([self._cores[(first + k) % len(self._cores)] for k in range(count)]):
                return first
        return 0

    def release(self) -> None:
        """Let go of all of them."""
        while self._held:
            os.close(self._held.pop())

    def _take(self, cores: Sequence[int]) -> bool:
        with suppress(OSError, ValueError):  # somebody else has one, or the folder is not ours
            folder = _folder()
            for core in cores:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._held.append(os.open(folder / str(core), flags, 0o600))
                fcntl.flock(self._held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        self.release()
        return False


def free_cores(cores: Sequence[int]) -> int:
    """Return how many of these cores no pool of this user has."""
    if not _path().exists():
        return len(cores)
    claims = [CoreClaim([core]) for core in cores]
    found = sum(claim._take([core]) for claim, core in zip(claims, cores, strict=True))
    for claim in claims:
        claim.release()
    return found


def _path() -> Path:
    return Path(tempfile.gettempdir()) / f"lc-cores-{os.getuid()}"


def _folder() -> Path:
    """The folder of the locks, which is its user's alone.

    Raises:
        ValueError: if somebody else has made it.
    """
    path = _path()
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(f"{path} is not this user's alone")
    return path
