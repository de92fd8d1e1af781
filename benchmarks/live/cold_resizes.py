"""Resizes of a training by hand: its processes save and exit, and new ones load the checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from lightning_core.worker.process_group import free_port


class Timed(NamedTuple):
    """One resize."""

    ranks: int
    """Ranks after it."""
    seconds: float
    """Seconds from the decision to the first batch of all ranks."""


class Cold:
    """The same training as processes that a person starts, which save and exit when a file appears.

    Args:
        folder: Folder of the checkpoint and of the record of incarnations.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []

    def resize(self, ranks: int) -> float:
        """Stop the processes and start ``ranks`` new ones; return the seconds until their first batch."""
        began, stop, incarnations = time.monotonic(), self.folder / "stop", self.folder / "incarnations"
        if self._processes:
            stop.touch()
            self.wait()
            stop.unlink()
        before = len(incarnations.read_text().splitlines()) if incarnations.exists() else 0
        port = free_port()
        for rank in range(ranks):
            command = [
                sys.executable,
                "-m",
                "benchmarks.live.restart",
                str(self.folder),
                str(rank),
                str(ranks),
                str(port),
            ]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self._processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        while not incarnations.exists() or len(incarnations.read_text().splitlines()) < before + ranks:
            if any(process.poll() for process in self._processes):
                raise RuntimeError(
                    "a process of the cold training failed: run python -m benchmarks.live.restart by hand"
                )
            time.sleep(0.01)
        times = [json.loads(line)[0] for line in incarnations.read_text().splitlines()[before:]]
        return float(max(times) - began)

    def wait(self) -> None:
        """Wait for all processes to exit."""
        for process in self._processes:
            process.wait()
        self._processes.clear()


def cold_resizes(folder: Path, resizes: int) -> list[Timed]:
    """Resize a training by hand this many times, to two ranks and back to one in turn."""
    cold, found = Cold(folder), []
    cold.resize(1)
    for number in range(resizes):
        time.sleep(1.0)
        ranks = 2 if number % 2 == 0 else 1
        found.append(Timed(ranks, cold.resize(ranks)))
    (folder / "stop").touch()
    cold.wait()
    return found
