"""Small files that must be there whole, whatever happens to whoever writes them."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it is the old one or all of the new one, also after a power cut.

    Args:
        path: of the file; its folder must be there.
        text: all of it.

    Raises:
        OSError: if it cannot be written, with the path; the old one stands.
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
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not say where
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
