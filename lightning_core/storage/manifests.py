"""Manifests of checkpoint files, and the checks of a file before torch reads it.

torch writes a zip archive of stored entries, without compression: reading it takes about as much memory as the file has
bytes. A compressed entry, or a pickle that asks for a ``bytearray`` of any size, takes as much as its author likes.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickletools
import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import NEVER_READABLE, read_regular

FORMAT = 1
_MAX_MANIFEST_BYTES = 4096
ARCHIVE_SIGNATURE = b"PK\x03\x04"
# The list of entries at the end of an archive is kept in memory, six times as large: about 100,000 tensors.
MAX_LIST_BYTES = 16 * 2**20
_END_BYTES = 22
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CorruptCheckpointError(LightningCoreError, ValueError):
    """A checkpoint file does not match its manifest; the message names the difference."""


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
        found = json.loads(read_regular(manifest_of(path), _MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in NEVER_READABLE:
            raise CorruptCheckpointError(f"its manifest is damaged: {error.strerror}") from None
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

    The file is opened once, so that the bytes read are the bytes verified.

    Raises:
        CorruptCheckpointError: If it is missing, not a regular file, or does not match its manifest.
    """
    try:
        # Non-blocking: the path might be a pipe.
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


def is_archive(file: IO[bytes]) -> bool:
    """Return whether an open file begins as torch's archives do; it is at its beginning afterwards."""
    file.seek(0)
    begins = file.read(len(ARCHIVE_SIGNATURE)) == ARCHIVE_SIGNATURE
    file.seek(0)
    return begins


def check_archive(file: IO[bytes], *, content: bool = False) -> None:
    """Check that an archive takes no more memory than its size, without reading its content.

    Args:
        file: Open archive; it is at its beginning afterwards.
        content: Whether to read everything, and compare it with the checksums in the archive.

    Raises:
        CorruptCheckpointError: If it is truncated or damaged, or would take more memory than its size.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        file.seek(max(size - _END_BYTES, 0))
        if not file.read().startswith(b"PK\x05\x06"):
            raise CorruptCheckpointError(f"truncated ({size:,} bytes): its end is missing")
        with zipfile.ZipFile(limited := _Limited(file)) as archive:
            limited.opened = True
            _check_entries(archive, size)
            if content and (damaged := archive.testzip()):
                raise CorruptCheckpointError(f"damaged: {damaged} differs from the saved file")
    except (OSError, ValueError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(f"cannot be read: {error}") from None
    finally:
        file.seek(0)


def _check_entries(archive: zipfile.ZipFile, size: int) -> None:
    entries = archive.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            name = entry.filename[:100]
            raise CorruptCheckpointError(f"{name} is compressed, which torch never does; write it with torch.save")
    if (total := sum(entry.file_size for entry in entries)) > size:
        raise CorruptCheckpointError(f"damaged: its entries have {total:,} bytes, and the file {size:,}")
    for entry in entries:
        if entry.filename.endswith("data.pkl") and _names_bytearray(archive.read(entry)):
            raise CorruptCheckpointError("has a bytearray, which may take any amount of memory; save it as a tensor")


def _names_bytearray(pickled: bytes) -> bool:
    """Return whether torch would make a ``bytearray``, the one allowed type whose size is not that of its content."""
    if b"bytearray" not in pickled:
        return False
    try:
        return any(
            operation.name == "GLOBAL" and str(argument).endswith(" bytearray")
            for operation, argument, _ in pickletools.genops(pickled)
        )
    except ValueError:
        return True


class _Limited(io.RawIOBase):
    """An open file whose list of entries, which is read at once, must not be too long."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.opened = False

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        if size > MAX_LIST_BYTES and not self.opened:
            raise CorruptCheckpointError(f"its list of entries has {size:,} bytes, more than {MAX_LIST_BYTES:,}")
        return self._file.read(size)


def megabytes(size: float) -> str:
    """Return a size in bytes as a number of megabytes with three digits.

    Example::

        >>> megabytes(381e6), megabytes(12_345)
        ('381', '0.0123')
    """
    return f"{size / 1e6:.0f}" if size >= 1e8 else f"{size / 1e6:.3g}"


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
