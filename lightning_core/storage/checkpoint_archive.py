"""What is checked of a checkpoint file before torch reads it, so that a small file cannot take much memory.

torch writes a zip archive of stored entries, without compression: reading it takes about as much memory as the file has
bytes. A compressed entry, or a pickle that asks for a ``bytearray`` of any size, takes as much as its author likes.
"""

from __future__ import annotations

import io
import os
import pickletools
import zipfile
from typing import IO

from lightning_core.storage.manifests import CorruptCheckpointError

SIGNATURE = b"PK\x03\x04"
# The list of entries at the end of the archive is kept in memory, six times as large: about 100,000 tensors.
MAX_LIST_BYTES = 16 * 2**20
_END_BYTES = 22


def is_archive(file: IO[bytes]) -> bool:
    """Return whether an open file begins as torch's archives do; it is at its beginning afterwards."""
    file.seek(0)
    begins = file.read(len(SIGNATURE)) == SIGNATURE
    file.seek(0)
    return begins


def check_archive(file: IO[bytes], *, content: bool = False) -> None:
    """Check that an archive takes no more memory than its size, without reading what is stored in it.

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
                raise CorruptCheckpointError(f"damaged: {damaged} is not what was saved")
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
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
