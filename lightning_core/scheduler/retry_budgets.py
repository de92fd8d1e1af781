"""What becomes of a job that has lost its worker: whether it comes back, when, and why not.

Infrastructure fails by itself and is worth another try, always; code that raised raises again, unless a person says
otherwise; what cannot be built never can; a node that was taken away is nobody's fault and is not counted.
"""

from __future__ import annotations

import re
from zlib import crc32

from lightning_core.core.events import Checkpoint, ExitCause
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason

# After a fault a job comes back so many seconds later, twice as many each time that it has no calm between, to the
# most, and up to so large a part more, not the same for all who were lost together.
FIRST_PAUSE, MOST_PAUSE, JITTER = 1.0, 60.0, 0.25
# So often the workers of a job may fail to be there in time, one time after the other.
MOST_UNREADY = 5
# No count and no time of a run is larger.
MOST = 2**53
SHA256 = re.compile("[0-9a-f]{64}")
WORDS = {ExitCause.LOST: "worker_lost", ExitCause.RAISED: "raised", ExitCause.PREEMPTED: "preempted"}


def final(cause: ExitCause, job: Job, times: int, text: str) -> Reason | None:
    """Why the job is over; None if it comes back.

    Args:
        cause: of the fault.
        job: that was launched.
        times: that it has had this fault, this one among them.
        text: the fault in one line.

    Example::

        >>> from lightning_core.core.targets import BatchTarget
        >>> job = Job("a", 60.0, BatchTarget(9), retries=1)
        >>> final(ExitCause.RAISED, job, 1, "ValueError: no"), str(final(ExitCause.RAISED, job, 2, "ValueError: no"))
        (None, 'ValueError: no; retry limit reached (1)')
    """
    budget = {ExitCause.RAISED: job.retries, ExitCause.LOST: job.restarts, ExitCause.PREEMPTED: None}.get(cause, 0)
    if budget is None or times <= budget:
        return None
    if not budget:
        return Reason("crashed", text=text)
    return Reason("retry_limit", (float(budget),), text)


def pause(name: str, times: int) -> float:
    """Seconds before a job comes back after so many faults in a row.

    Example::

        >>> [round(pause("a", times), 1) for times in (1, 2, 3, 9)]
        [1.1, 2.5, 4.6, 67.3]
    """
    jitter = 1 + JITTER * crc32(f"{name} {times}".encode()) / 2**32
    return min(FIRST_PAUSE * 2.0 ** (min(times, 64) - 1), MOST_PAUSE) * jitter


def sound(save: Checkpoint | None) -> bool:
    """Whether the numbers of a save can be counted with, and its sum is one."""
    return save is None or (0 <= save.batches <= MOST and SHA256.fullmatch(save.sha256) is not None)
