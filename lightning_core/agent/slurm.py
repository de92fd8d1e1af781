"""The end of the Slurm job that a script runs in, with which its forecast and verdict count.

Lightning saves the script then and requeues it (``SLURMEnvironment``). The end is that of ``SLURM_JOB_END_TIME``, else
what ``squeue`` says, which is called in a thread because it may take seconds.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from datetime import datetime

from lightning_core.view.console_lines import logger

log = logger(__name__)

# Seconds that squeue may take, number of attempts, and seconds between two of them.
SQUEUE_TIMEOUT, SQUEUE_ATTEMPTS, SQUEUE_RETRY_DELAY = 20.0, 3, 30.0
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
        log.warning("the end of Slurm job %s is unknown, so no forecast counts with it: %s", job, ascii(message))


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
