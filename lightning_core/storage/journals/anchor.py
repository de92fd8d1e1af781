"""The anchor of a journal: number, digest and time of its newest event, in a file beside it.

A database that lost its last rows is still a valid database, and SQLite drops the end of a damaged write-ahead log
without a word. The anchor tells that events are missing, and since when.

The file has two slots that are written in turn, so that one of them is whole wherever a write is interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

SLOT_BYTES = 256


class Anchor(NamedTuple):
    """The newest event of a journal."""

    number: int
    """Number of the event; 0 before the first."""
    digest: str
    """Digest over all events and answers up to this one."""
    now: float
    """Scheduler time, in seconds."""
    wall: float
    """Wall-clock time of its commit, in seconds since the epoch."""
    boot: str = ""
    """Id of the machine's boot in which it was committed; empty if unknown."""
    booted: float = 0.0
    """Seconds from that boot to its commit."""

    @classmethod
    def made_now(cls, number: int, digest: str, now: float) -> Self:
        """Return the anchor of an event that is being committed."""
        return cls(number, digest, now, time.time(), boot_id(), since_boot())

    def age(self) -> float:
        """Return the seconds since the commit; 0 if they are unknown.

        Within one boot of the machine, no change of the clock counts. Otherwise there is only the clock to ask.
        """
        if self.boot and self.boot == boot_id():
            return max(0.0, since_boot() - self.booted)
        return max(0.0, time.time() - self.wall)


def since_boot() -> float:
    """Return the seconds since this machine was started, also those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Return an identifier of this boot of this machine; empty if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:40]
    except (OSError, ValueError):
        return ""


class AnchorFile:
    """The open file of an anchor, of one writer.

    Args:
        path: Path of the file; it is created if it does not exist.

    Raises:
        OSError: If it cannot be opened, or is a link.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)

    def write(self, anchor: Anchor) -> None:
        """Write an anchor to the disk, over the one before the last.

        Raises:
            OSError: If it cannot be written.
        """
        body = json.dumps(anchor)
        slot = f"{_checksum(body)} {body}\n".encode().ljust(SLOT_BYTES)
        os.pwrite(self._descriptor, slot, anchor.number % 2 * SLOT_BYTES)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def anchor_path(journal: Path) -> Path:
    """Return the path of a journal's anchor."""
    return journal.with_name(f"{journal.name}-anchor")


def read_anchor(journal: Path) -> Anchor | None:
    """Return the newest anchor of a journal; None if it has none, or none that is whole."""
    try:
        descriptor = os.open(anchor_path(journal), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        slots = [os.pread(descriptor, SLOT_BYTES, number * SLOT_BYTES) for number in range(2)]
    finally:
        os.close(descriptor)
    anchors = [anchor for slot in slots if (anchor := _read_slot(slot)) is not None]
    return max(anchors, default=None)


def _read_slot(slot: bytes) -> Anchor | None:
    checksum, _, body = slot.decode(errors="replace").strip(" \n\0").partition(" ")
    if not body or checksum != _checksum(body):
        return None
    try:
        number, digest, now, wall, boot, booted = json.loads(body)
        return Anchor(int(number), str(digest), float(now), float(wall), str(boot), float(booted))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
