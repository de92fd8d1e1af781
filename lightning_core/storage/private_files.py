"""Folders and files that only their user can access.

Rules

1. New folders have mode 0700 and new files 0600. An existing folder keeps its mode.
2. Files are written into the folder that they are meant for: none of the paths that the pool writes is a link.
3. A folder that another user can change is refused (:mod:`.ownership`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_core.storage.ownership import check_ours

# Paths in the folder of a run or a pool that must not be links. Elsewhere in a job's folder Lightning makes some.
PROTECTED = ("*", "jobs/*", "jobs/*/spec.json", "jobs/*/log*.txt", "jobs/*/checkpoints", "jobs/*/checkpoints/*")


@contextmanager
def owner_only() -> Iterator[None]:
    """Make files and folders that this process creates in the block accessible to the user alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def private_folder(folder: Path) -> Path:
    """Return the folder of a run or a pool, created if it does not exist.

    Raises:
        ValueError: If the folder or one of the protected paths in it is a link, or another user can change it.
        OSError: If the folder cannot be created.
    """
    entries = [path for form in PROTECTED for path in folder.glob(form)]
    for path in (folder, *entries):
        if path.is_symlink():
            raise ValueError(
                f"{path}: is a link to {os.readlink(path)}; replace it by a folder or file: links are not followed here"
            )
    check_ours(folder, entries)
    # A umask that lets the group write is for files that are meant for it.
    for parent in reversed([parent for parent in folder.absolute().parents if not parent.exists()]):
        parent.mkdir(exist_ok=True, mode=0o755)
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder
