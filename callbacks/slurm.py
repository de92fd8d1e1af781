"""When the Slurm job that a script runs in ends, and whether it is time to save.

The end comes from ``SLURM_JOB_END_TIME``, else from ``squeue``, which is asked in a thread: it may take seconds, and
training waits for nobody.
"""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from datetime import datetime

log = logging.getLogger(__name__)

# How long squeue may take, how often it is asked in all, and how long lies between two times, seconds.
PATIENCE, TIMES, AGAIN = 20.0, 3, 30.0
_JOB = re.compile(r"[0-9]+(_[0-9]+)?")
# No such time is one of an end: milliseconds, say.
LATEST = 2.0**33


class SlurmEnd:
    """The end of this process's Slurm job, as far as it is known.

    Args:
        environment: Of the process.

    Example::

        >>> SlurmEnd({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}).at
        1700000000.0
        >>> SlurmEnd({}).at is None
        True
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.at: float | None = _seconds(environment.get("SLURM_JOB_END_TIME", ""))
        """Seconds since the epoch; None if there is none, or while it is not known."""
        job = environment.get("SLURM_JOB_ID", "")
        if self.at is None and _JOB.fullmatch(job):
            threading.Thread(target=self._ask, args=(job,), name="squeue", daemon=True).start()

    def _ask(self, job: str) -> None:
        words = ""
        for time_of_asking in range(TIMES):
            if time_of_asking:
                time.sleep(AGAIN)
            try:
                self.at = end_of(job)
                return
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                words = " ".join(str(error).split())[:200]
        log.warning("the end of Slurm job %s is not known, so nothing is saved before it: %s", job, ascii(words))


class SaveBeforeEnd:
    """Says once when it is time to save: so long before the end that the longest pause between batches still fits.

    Args:
        end: Of the Slurm job.
        before: Seconds before it.
    """

    def __init__(self, end: SlurmEnd, before: float) -> None:
        self.saved = False
        """Whether it was saved; set by whoever saves."""
        self._end = end
        self._before = before
        self._longest = 0.0
        self._last: float | None = None
        self._not_before = 0.0

    def batch(self) -> None:
        """A batch has ended."""
        now = time.monotonic()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now

    def rest(self) -> None:
        """Training stands still: the time until the next batch says nothing."""
        self._last = None

    def due(self) -> bool:
        """Whether to save after the batch that has ended."""
        at = self._end.at
        if self.saved or at is None or time.monotonic() < self._not_before:
            return False
        return time.time() + self._longest >= at - self._before

    def failed(self, pause: float) -> None:
        """It could not be saved: it is tried again after so many seconds."""
        self._not_before = time.monotonic() + pause


def end_of(job: str) -> float | None:
    """Ask squeue for the end of a job, seconds since the epoch; None if it has none.

    Raises:
        OSError, subprocess.SubprocessError: If squeue cannot be asked, fails or takes too long.
        ValueError: If it answers with what is no time.
    """
    command = ["squeue", "-h", "-j", job, "-o", "%e"]
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    text = done.stdout.strip().partition("\n")[0].strip()
    if text.upper() in ("", "N/A", "NONE", "UNKNOWN", "INVALID"):
        return None
    return datetime.fromisoformat(text).timestamp()  # in the time zone of this machine, as squeue says it


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < LATEST else None
