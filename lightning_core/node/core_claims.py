"""Claims on the cores of this node, so that pools of one user that run side by side use different cores.

Training threads are pinned to the cores of their device, and without claims every pool would begin with the same core.
A pool holds a lock on one file per core; the kernel releases it when the process ends. A pool that is taken down
removes its files; those of one that was killed are empty, and the next one uses them. Where there are too few cores,
pools share them, and ``lightning-core up`` says so.
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
    """The cores that one pool claims while its process lives.

    Args:
        cores: Cores of this node that may be used, in the order in which a pool takes them.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._held: list[tuple[Path, int]] = []

    def claim(self, count: int) -> int:
        """Claim consecutive cores that no other pool has claimed.

        Args:
            count: Number of cores.

        Returns:
            Index of the first of them; 0 if there are too few free cores, and then none is claimed.
        """
        if count > len(self._cores):
            return 0
        for first in range(len(self._cores)):
            if self._take([self._cores[(first + k) % len(self._cores)] for k in range(count)]):
                return first
        return 0

    def release(self) -> None:
        """Release all claims, and remove their files; the folder too, if no other pool has claims."""
        while self._held:
            path, file = self._held.pop()
            with suppress(OSError):
                path.unlink()
            os.close(file)
            with suppress(OSError):  # it has other files
                path.parent.rmdir()

    def _take(self, cores: Sequence[int]) -> bool:
        with suppress(OSError, ValueError):  # another pool has claimed one, or the folder is not ours
            for core in cores:
                self._held.append(_lock(core))
            return True
        self.release()
        return False


def _lock(core: int) -> tuple[Path, int]:
    """Return the file of a core, and a descriptor that holds its lock.

    Raises:
        OSError: If another process holds it.
        ValueError: If the folder is not this user's.
    """
    while True:
        path = _folder() / str(core)
        with suppress(FileNotFoundError):  # the folder has been removed meanwhile, with the last claim in it
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                raise
            if os.fstat(file).st_nlink:
                return path, file
            os.close(file)  # its last holder has removed it meanwhile: a lock on it would keep no other pool away


def free_cores(cores: Sequence[int]) -> int:
    """Return how many of these cores no pool of this user has claimed."""
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
    """Create the private folder of the locks and return it.

    Raises:
        ValueError: If another user created it or can read it.
    """
    path = _path()
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(f"{path} must be a folder that only this user can access; remove it")
    return path
