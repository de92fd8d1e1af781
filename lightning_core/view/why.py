"""The history of a job's reasons: every grant, verdict and command with its reason, the newest last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.durations import format_duration
from lightning_core.core.limits import format_bytes
from lightning_core.core.names import devices_words
from lightning_core.core.parts import group_of, submission_words
from lightning_core.core.reasons import Reason
from lightning_core.history.faults import STARTS, total_words
from lightning_core.view.job_line import company_words
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.history.history import History
    from lightning_core.history.job_history import JobHistory
    from lightning_core.history.moments import Holding


class JobMoment(NamedTuple):
    """An event of a job."""

    time: float
    """Seconds since its submission."""
    what: str
    """``submitted``, ``grant``, ``fault``, a verdict, or the source: ``command``, ``plan``, ``worker``, ``pool``."""
    share: float | None
    """Share of its devices, if a grant changed it."""
    devices: tuple[int, ...] | None
    reason: str
    kind: str = ""
    """Kind of these devices; empty where all are alike."""


def rows(job: JobHistory) -> list[JobMoment]:
    """Return everything that happened to a job, the oldest first."""
    start = job.submitted
    # At the same time: commands first, then faults, verdicts and grants.
    found = [JobMoment(0.0, "submitted", None, None, _terms(job))]
    found += [JobMoment(r.time - start, r.kind, None, None, clean(r.words)) for r in job.remarks]
    found += [JobMoment(fault.time - start, "fault", None, None, clean(str(fault))) for fault in job.faults]
    found += [JobMoment(b.time - start, str(b.verdict), None, None, clean(str(b.reason))) for b in job.beliefs]
    found += [JobMoment(g.time - start, "grant", g.share, g.devices, clean(_grant_words(job, g)), clean(g.kind))
              for g in job.grants]  # fmt: skip
    return sorted(found, key=lambda row: row.time)


def _grant_words(job: JobHistory, grant: Holding) -> str:
    """Return the reason of a grant, without a forecast if a verdict shows one."""
    told = [belief.reason for belief in job.beliefs if belief.time <= grant.time]
    words = str(grant.reason if not told or grant.reason == told[-1] else grant.reason.without_forecast())
    own, before = job.owned_at(grant.time), job.owned_before(grant.time)
    if own is not None and own.beside and grant.reason.code != "beside":
        words += f"; {Reason('beside', (grant.pace, 0.0), ' and '.join(own.beside))}"
    if before is not None and before.beside and not (own is not None and own.beside):
        words += f"; no longer beside {' and '.join(before.beside)}"
    return words


def why(history: History, name: str) -> list[str]:
    """Return the history of a job as lines for a terminal, the newest last.

    Args:
        history: History of the run.
        name: Name of the job, as in :meth:`~lightning_core.history.history.History.of`.

    Raises:
        KeyError: If there is no such job; the message names the existing ones.
    """
    job = history.of(name)
    verdict = "no verdict yet" if job.verdict is None else str(job.verdict)
    is_one_of_several = job.run_number > 1 or history.label(job) != job.name
    run_number = f" (job {job.run_number} of this name)" if is_one_of_several else ""
    lines = [f"{clean(job.name)}{run_number}: {clean(str(job.reason))} ({verdict})"]
    if job.terms.owner:
        lines.append(f"owner: {clean(job.terms.owner)}")
    if (group := group_of(job.terms.parts)) is not None:
        lines.append(clean(": ".join(group)))
    if job.faults:
        lines.append(total_words(job.faults))
    return lines + table_of(sorted([*rows(job), *_away(history, job)], key=lambda row: row.time))


def table_of(found: Sequence[JobMoment]) -> list[str]:
    """Return the history of a job as the lines of a table, with its head."""
    table = [("after", "what", "share", "device", "reason")]
    for row in found:
        share = "" if row.share is None else f"{row.share:.2f}"
        devices = "" if row.devices is None else devices_words(row.devices, row.kind)
        table.append((format_duration(row.time), row.what, share, devices, row.reason))
    widths = [max(len(cells[column]) for cells in table) for column in range(4)]
    return [
        f"{after:>{widths[0]}}  {what:<{widths[1]}}  {share:>{widths[2]}}  {device:<{widths[3]}}  {reason}".rstrip()
        for after, what, share, device, reason in table
    ]


def why_now(job: JobStatus) -> list[str]:
    """Return the reasons of a job's current grant and verdict, from its pool's status, as lines for a terminal."""
    verdict = "no verdict yet" if job.verdict is None else str(job.verdict)
    devices = devices_words(job.devices, job.kind)
    holds = f"{job.share:.2f} of device {devices}" if job.devices else "no device"
    company = company_words(job)
    if company and not job.share:
        holds = f"on device {devices}"
    lines = [f"{job.name}: {job.reason} ({verdict})"]
    if job.owner:
        lines.append(f"owner: {job.owner}")
    if (group := group_of(job.parts)) is not None:
        lines.append(": ".join(group))
    if job.state is not State.ENDED:
        lines.append(f"{job.state}, {holds}: {job.grant_reason}" + (f"; {company}" if company and job.share else ""))
    lines += [str(told) for told in (job.fault, job.alert) if told is not None]
    return list(map(clean, lines))


def _away(history: History, job: JobHistory) -> list[JobMoment]:
    """Return when the pool made no decisions, and which devices of the pool had no worker, while the job ran."""
    end = history.last if job.ended is None else job.ended
    return [
        JobMoment(since - job.submitted, "pool", None, None, f"{what} for {format_duration(until - since)}")
        for since, until, what in history.gaps
        if job.submitted <= since < end
    ] + [
        JobMoment(outage.since - job.submitted, "pool", None, (outage.device,), clean(str(outage)))
        for outage in history.outages
        if outage.what != STARTS and job.submitted <= outage.since <= end
    ]


def _terms(job: JobHistory) -> str:
    """Return target and deadline as submitted, and every other term that is not the default."""
    first = job.terms
    parts = [
        str(first.target),
        "no deadline" if first.is_best_effort else f"deadline {format_duration(first.deadline)}",
    ]
    if first.begin:
        parts.append(f"not before {format_duration(first.begin)}")
    if first.weight != 1:
        parts.append(f"weight {first.weight:g}")
    if first.max_devices > 1:
        parts.append(f"{first.min_devices} to {first.max_devices} devices")
    if first.memory is not None:
        parts.append(f"{format_bytes(first.memory)} of memory")
    return clean(", ".join([*parts, *submission_words(first.parts)]))
