"""Saves a script once before the Slurm job that it runs in ends.

The end is read from ``SLURM_JOB_END_TIME``, else from ``squeue``, which is called in a thread because it may take
seconds.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import lightning.pytorch as pl

from lightning_core.core.durations import format_duration
from lightning_core.view.console_lines import logger

from .checkpointing.job_writer import write

log = logger(__name__)

# Seconds that squeue may take, number of attempts, and seconds between two of them.
SQUEUE_TIMEOUT, SQUEUE_ATTEMPTS, SQUEUE_RETRY_DELAY = 20.0, 3, 30.0
# Seconds until a save that failed is tried again.
SAVE_RETRY_DELAY = 5.0
_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
# Later times, in seconds since the epoch, are not taken for an end: they may be milliseconds.
MAX_END_TIME = 2.0**33


class SlurmEnd:
    """The end of this process's Slurm job, as far as it is known.

    Args:
        environment: Environment variables of the process.

    Example::

        >>> SlurmEnd({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}).at
        1700000000.0
        >>> SlurmEnd({}).at is None
        True
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.at: float | None = _seconds(environment.get("SLURM_JOB_END_TIME", ""))
        """Seconds since the epoch; None if there is no end, or while it is unknown."""
        job = environment.get("SLURM_JOB_ID", "")
        if self.at is None and _JOB_ID.fullmatch(job):
            threading.Thread(target=self._ask, args=(job,), name="squeue", daemon=True).start()

    def _ask(self, job: str) -> None:
        message = ""
        for attempt in range(SQUEUE_ATTEMPTS):
            if attempt:
                time.sleep(SQUEUE_RETRY_DELAY)
            try:
                self.at = end_of(job)
                return
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                message = " ".join(str(error).split())[:200]
        log.warning("the end of Slurm job %s is unknown, so nothing is saved before it: %s", job, ascii(message))


class SaveBeforeEnd:
    """Decides when to save: early enough that the longest pause between two batches so far still fits.

    Args:
        end: End of the Slurm job.
        before: Seconds before the end.
    """

    def __init__(self, end: SlurmEnd, before: float) -> None:
        self.saved = False
        """Whether the script was saved; set by the caller."""
        self._end = end
        self._before = before
        self._max_pause = 0.0
        self._last: float | None = None
        self._not_before = 0.0

    def note_batch(self) -> None:
        """Note that a batch has ended."""
        now = time.monotonic()
        if self._last is not None:
            self._max_pause = max(self._max_pause, now - self._last)
        self._last = now

    def due(self) -> bool:
        """Return whether to save after the batch that has ended."""
        at = self._end.at
        if self.saved or at is None or time.monotonic() < self._not_before:
            return False
        return time.time() + self._max_pause >= at - self._before

    def postpone(self, delay: float) -> None:
        """Try again after so many seconds."""
        self._not_before = time.monotonic() + delay


class SlurmSaver:
    """Saves a script before its Slurm job ends; used on all ranks, of which the first decides.

    Args:
        job: Name of the job.
        folder: Folder of the checkpoint; None to save nothing.
        before: Seconds before the end.
        end: End of the Slurm job; None on all ranks but the first.
    """

    def __init__(self, job: str, folder: Path | None, before: float, end: SlurmEnd | None) -> None:
        self._job = job
        self._path = None if folder is None else folder / f"{job}-last.ckpt"
        with suppress(OSError):  # the folder that the process is in may have gone
            self._path = None if self._path is None else self._path.absolute()
        self._end = end
        self._decision = None if folder is None or end is None else SaveBeforeEnd(end, before)
        self._trained = False

    def note_batch(self) -> None:
        """Note that a batch has ended."""
        self._trained = True
        if self._decision is not None:
            self._decision.note_batch()

    def due(self) -> bool:
        """Return whether to save after the batch that has ended; False before the first one."""
        return self._trained and self._decision is not None and self._decision.due()

    def save(self, trainer: pl.Trainer, batches: int) -> None:
        """Save on all ranks together; after an error, try again as long as there is time.

        Args:
            trainer: Trainer of the script.
            batches: Batches done.
        """
        assert self._path is not None  # only a decision asks for it
        try:
            write(trainer, self._path)
        except Exception as error:
            if self._decision is not None:
                self._decision.postpone(SAVE_RETRY_DELAY)
                log.warning("%s: not saved before the Slurm job ends: %s", self._job, error)
            return
        if self._decision is not None and self._end is not None and self._end.at is not None:
            self._decision.saved = True
            left = format_duration(max(self._end.at - time.time(), 0.0))
            log.warning(
                "%s: the Slurm job ends in %s. Saved after %d batches to %s; resume with ckpt_path=%r",
                self._job, left, batches, self._path, str(self._path),
            )  # fmt: skip


def end_of(job: str) -> float | None:
    """Return the end of a Slurm job in seconds since the epoch, according to squeue; None if it has none.

    Raises:
        OSError, subprocess.SubprocessError: If squeue cannot be run, fails or takes too long.
        ValueError: If its answer is not a time.
    """
    command = ["squeue", "-h", "-j", job, "-o", "%e"]
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SQUEUE_TIMEOUT, check=True)
    text = done.stdout.strip().partition("\n")[0].strip()
    if text.upper() in ("", "N/A", "NONE", "UNKNOWN", "INVALID"):
        return None
    return datetime.fromisoformat(text).timestamp()  # squeue uses this machine's time zone


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < MAX_END_TIME else None
