"""What is written for the user alone, and stays where it belongs.

Rules

1. What we make is the user's alone: folders 0700, files 0600. A folder that was there keeps the mode it was given.
2. What we write goes into the folder that it was meant for: none of the places that are ours is a link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of a run or a pool. Below a job's folder, links are its own business: Lightning makes some.
OURS = ("*", "jobs/*", "jobs/*/spec.json", "jobs/*/log*.txt", "jobs/*/checkpoints", "jobs/*/checkpoints/*")


@contextmanager
def owner_only() -> Iterator[None]:
    """Files and folders that this process makes meanwhile are the user's alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def private_folder(folder: Path) -> Path:
    """Makes a folder for a run or a pool, or takes the one that is there; itself, and none of our places in it, a link.

    Raises:
        ValueError: if one is.
        OSError: if it cannot be made.
    """
    for path in (folder, *(path for form in OURS for path in folder.glob(form))):
        if path.is_symlink():
            raise ValueError(f"{path}: is a link to {os.readlink(path)}; what is written here must stay here")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
