"""Manifests of checkpoint files, and reading a file only if it matches its manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from lightning_core.errors import LightningCoreError

FORMAT = 1
_MAX_MANIFEST_BYTES = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CorruptCheckpointError(LightningCoreError, ValueError):
    """A checkpoint file does not match its manifest; the message says how."""


class TransientReadError(CorruptCheckpointError):
    """A checkpoint file exists but cannot be read now; a later attempt may succeed."""


class Manifest(NamedTuple):
    """Description of a file from when it was written."""

    sha256: str
    size: int
    """Size in bytes."""
    step: int | None = None
    """Optimizer steps done."""
    batches: int | None = None
    """Batches done."""
    value: float | None = None
    """Value of the metric for which the file was kept."""


def manifest_of(path: Path) -> Path:
    """Return the path of a file's manifest."""
    return path.with_name(f"{path.name}.json")


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a file, None if it has none.

    Raises:
        CorruptCheckpointError: If the manifest is damaged, of another format, or cannot be read.
    """
    try:
        with manifest_of(path).open("rb") as file:
            found = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TransientReadError(f"its manifest cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CorruptCheckpointError("its manifest is damaged") from None
    if not isinstance(found, dict):
        raise CorruptCheckpointError("its manifest is damaged")
    if (format_found := found.get("format")) != FORMAT:
        raise CorruptCheckpointError(f"its manifest is of format {format_found!r}, this version reads {FORMAT}")
    sha256, size, step, batches, value = (found.get(key) for key in Manifest._fields)
    whole = isinstance(sha256, str) and _SHA256.fullmatch(sha256) and _is_count(size)
    if not whole or not all(count is None or _is_count(count) for count in (step, batches)):
        raise CorruptCheckpointError("its manifest is damaged")
    if value is not None and not (type(value) in (int, float) and math.isfinite(value)):
        raise CorruptCheckpointError("its manifest is damaged")
    return Manifest(cast(str, sha256), cast(int, size), step, batches, value)


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as the content of its file."""
    known = {key: found for key, found in manifest._asdict().items() if key != "value" or found is not None}
    return json.dumps({"format": FORMAT, **known}).encode()


@contextmanager
def open_verified(path: Path) -> Iterator[tuple[IO[bytes], Manifest | None]]:
    """Open a file at its beginning, after verifying it against its manifest if it has one.

    The file is opened once, so that what is read is what was verified.

    Raises:
        CorruptCheckpointError: If it is missing, not a regular file, or does not match its manifest.
    """
    try:
        # Not blocking: the path might be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptCheckpointError("missing") from None
    except OSError as error:
        raise TransientReadError(f"cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise CorruptCheckpointError(f"cannot be read: it is {kind}")
    with os.fdopen(descriptor, "rb") as file:
        manifest = read_manifest(path)
        if manifest is not None:
            if status.st_size < manifest.size:
                found, expected = megabytes(status.st_size), megabytes(manifest.size)
                raise CorruptCheckpointError(f"truncated ({found} of {expected} MB)")
            try:
                same = hashlib.file_digest(file, "sha256").hexdigest() == manifest.sha256
            except OSError as error:
                raise TransientReadError(f"cannot be read: {error.strerror}") from None
            if not same or status.st_size != manifest.size:
                raise CorruptCheckpointError("does not match its manifest")
            file.seek(0)
        yield file, manifest


def verify(path: Path) -> Manifest:
    """Return the manifest of a file that matches it.

    Raises:
        CorruptCheckpointError: If the file has no manifest or does not match it.
    """
    with open_verified(path) as (_, manifest):
        if manifest is None:
            raise CorruptCheckpointError("has no manifest")
        return manifest


def is_valid(path: Path) -> bool:
    """Return whether a file matches its manifest."""
    try:
        verify(path)
    except CorruptCheckpointError:
        return False
    return True


def megabytes(size: float) -> str:
    """Return a size in bytes as a number of megabytes with three digits.

    Example::

        >>> megabytes(381e6), megabytes(12_345)
        ('381', '0.0123')
    """
    return f"{size / 1e6:.0f}" if size >= 1e8 else f"{size / 1e6:.3g}"


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
