"""Changes that would help a job that is paused or expected late, from what its pool says of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from math import inf, isfinite

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.durations import format_forecast, is_in_reach
from lightning_core.core.names import listed
from lightning_core.parts.assistants.tool_shapes import Remedy

LATE = (Verdict.AT_RISK, Verdict.INFEASIBLE, Verdict.MISSED)
# Reasons whose first number is the seconds that a job needs alone on its devices.
NEEDS = ("too_long", "too_long_on", "stands_still")
CASES = ("its likely end by forecast", "its end by forecast in a bad case")
FAR_WORDS = (
    "by forecast no deadline up to ten times as long would do: cancel it, and submit it with another target or model"
)
# Jobs that are named as those which hold a device too.
MAX_NAMED = 5


def is_late(job: JobStatus) -> bool:
    """Return whether a job that has not ended is expected to miss its deadline, or has missed it."""
    return job.state is not State.ENDED and job.verdict in LATE


def would_do(job: JobStatus, now: float, jobs: Iterable[JobStatus]) -> list[Remedy]:
    """Return the changes that would help a job; none for one that has ended or is expected in time.

    Args:
        job: The job.
        now: Scheduler time in seconds.
        jobs: Jobs of the pool that its user sees.
    """
    if job.state is State.ENDED:
        return []
    found = list(_deadlines(job, now)) if is_late(job) else []
    if job.paused:
        found.append({"words": f"resume it: it is {job.grant_reason}", "command": _command("resume", job)})
    elif job.verdict is Verdict.AT_RISK and job.share < 1.0 and _ends(job):
        found += _more_room(job, jobs)
    return found


def _ends(job: JobStatus) -> bool:
    """Return whether a job reaches its target by forecast, sooner or later; no matter with what share."""
    return job.finish is not None and is_in_reach(job.finish[1] - job.submitted_at, job.deadline - job.submitted_at)


def _deadlines(job: JobStatus, now: float) -> Iterator[Remedy]:
    """Yield the deadlines that its forecast would meet: in the likely case, and in a bad one."""
    if not isfinite(job.deadline):
        return
    limit, needs = job.deadline - job.submitted_at, job.reason.numbers[0] if job.reason.code in NEEDS else inf
    if job.finish is not None and _ends(job):
        for end, words in zip(job.finish[1:], CASES, strict=True):
            if end > max(job.deadline, now) and is_in_reach(end - job.submitted_at, limit):
                later = format_forecast(end - job.deadline)
                yield _deadline(job, end - now, f"{later} later than the present one: {words}")
    elif is_in_reach(needs, limit):
        yield _deadline(job, needs, "by forecast it needs as long if it trains alone on its devices from now on")
    elif job.finish is not None:
        yield {"words": FAR_WORDS, "command": _command("cancel", job)}


def _deadline(job: JobStatus, seconds: float, words: str) -> Remedy:
    left = _until(seconds)
    return {"words": f"a deadline {left} from now, {words}", "command": _command("deadline", job, left)}


def _more_room(job: JobStatus, jobs: Iterable[JobStatus]) -> Iterator[Remedy]:
    """Yield that other jobs train on its devices too, or on all devices while it has none."""
    here = {*job.devices}
    others = [one for one in jobs if one.name != job.name and one.trains and (not here or here & {*one.devices})]
    if not others:
        return
    held = listed([f"{one.name} ({_share(one):.2f})" for one in others], MAX_NAMED)
    where = "its devices" if here else "the pool's devices"
    yield {
        "words": f"a pause of another job, which may make that one late: it has a share of {_share(job):.2f}, and on "
        f"{where} train {held}",
        "command": _command("pause", others[0]),
    }


def _share(job: JobStatus) -> float:
    return job.held_share or job.share


def _command(name: str, job: JobStatus, *more: str) -> str:
    return " ".join(["lightning-core", name, job.name, *more])


def _until(seconds: float) -> str:
    """Return a time from now as the command `deadline` reads it, of two figures and rounded up, as less would not do.

    Example::

        >>> _until(0.2), _until(41.2), _until(293.1), _until(7261.0)
        ('1s', '42s', '300s', '130m')
    """
    size, unit = (1.0, "s") if seconds < 600 else (60.0, "m")
    count = max(math.ceil(seconds / size), 1)
    step = 10 ** max(len(str(count)) - 2, 0)
    return f"{step * math.ceil(count / step)}{unit}"
