"""Cores that make up the devices of a CPU pool."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# The last core first, since most other processes begin with the first. Read before this process pins any thread.
CORES = sorted(os.sched_getaffinity(0), reverse=True)


def cores_of(device: int, cores: int = 1, arbiter: Path | None = None) -> set[int]:
    """Return the cores that make up a CPU pool's device.

    Args:
        device: Number of the device in the pool.
        cores: Cores of each device.
        arbiter: Path of the device's arbiter; the file beside it says at which core the pool begins.
    """
    first = 0
    if arbiter is not None:
        with suppress(OSError, ValueError):  # a pool on another node, for example
            first = int(_first_core_file(arbiter).read_text())
    return {CORES[(first + device * cores + core) % len(CORES)] for core in range(cores)}


def note_first_core(arbiter: Path, first: int) -> None:
    """Write the index of a pool's first core beside the socket of a device arbiter."""
    _first_core_file(arbiter).write_text(str(first))


def _first_core_file(path: Path) -> Path:
    return path.with_suffix(".cores")
