"""A job as a line of cells, the same in the live view, the board and plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.durations import format_duration, format_end
from lightning_core.core.limits import format_bytes
from lightning_core.core.names import devices_words
from lightning_core.core.parts import columns_of
from lightning_core.core.reasons import Reason
from lightning_core.history.faults import fault_words
from lightning_core.view.text import clean

COLUMNS = (
    "job",
    "owner",
    "state",
    "loss / target",
    "time / deadline",
    "share",
    "device",
    "memory",
    "batches/s",
    "forecast end",
    "verdict",
    "reason",
)

SYMBOLS = {
    Verdict.FEASIBLE: "✓",
    Verdict.AT_RISK: "!",
    Verdict.INFEASIBLE: "✕",
    Verdict.MET: "✓",
    Verdict.MISSED: "✕",
    Verdict.CRASHED: "†",
    Verdict.CANCELLED: "-",
}


def line(now: float, job: JobStatus) -> tuple[str, ...]:
    """Return the cells of one job, in the order of ``COLUMNS``."""
    until = now if job.finished_at is None else job.finished_at
    start = job.submitted_at
    if job.finish is None:
        end = "-"
    else:
        early, likely, late = (format_end(moment - start, job.deadline - start) for moment in job.finish)
        end = likely if early == late else f"{likely} ({early} to {late})"
    return (
        clean(job.name),
        clean(job.owner) or "-",
        "paused" if job.paused and job.state is not State.ENDED else str(job.state),
        _progress(job),
        f"{format_duration(until - start)} / {format_duration(job.deadline - start)}",
        "beside" if job.beside and not job.share else f"{job.share:.2f}",
        clean(devices_words(job.devices, job.kind)),
        _memory(job),
        "-" if job.throughput is None else f"{job.throughput:.0f}",
        end,
        "-" if job.verdict is None else str(job.verdict),
        _reason(job),
    )


def telling(columns: Iterable[str], jobs: Sequence[JobStatus]) -> list[str]:
    """Return the columns without those that would tell nothing: owners if there is one, memory that is not known."""
    silent = set() if several_owners(jobs) else {"owner"}
    if all(job.memory_needed is None for job in jobs):
        silent.add("memory")
    return [name for name in columns if name not in silent]


def several_owners(jobs: Iterable[JobStatus]) -> bool:
    """Return whether jobs belong to several owners, so that whose each is should be shown."""
    return len({job.owner for job in jobs}) > 1


def _memory(job: JobStatus) -> str:
    """Return the peak memory of its process on a device, and its stated need if that is larger."""
    had = "-" if job.memory is None else format_bytes(job.memory)
    needed = "-" if job.memory_needed is None else format_bytes(job.memory_needed)
    return had if needed == had else f"{had} / {needed}"


def _reason(job: JobStatus) -> str:
    """Return the reasons of the verdict and of the grant, and the fault that the job is recovering from."""
    faults = fault_words(job)
    if job.state is State.RECOVERING:
        return clean("; ".join(faults or [str(job.grant_reason)]))
    parts = [str(job.reason)] if job.verdict is not None else []
    company = company_words(job)
    if job.state is not State.ENDED and str(job.grant_reason) not in (str(job.reason), *faults):
        told = str(job.grant_reason)
        parts += [] if company and told.startswith(company.partition(",")[0]) else [told]
    parts += [company] if company else []
    parts += [fault for fault in faults if fault not in parts]
    if job.like is not None and job.state is not State.ENDED:
        parts.append(f"forecast {job.like}")
    parts += [f"{heading} {words}" for heading, words in columns_of(job).items()]
    if job.rejected:
        parts.append(f"{job.rejected} NaN or infinite losses ignored")
    return clean("; ".join(parts))


def company_words(job: JobStatus) -> str:
    """Return beside which jobs one trains, and how fast; empty if it trains beside none.

    Args:
        job: Job to show.
    """
    return str(Reason("beside", (job.pace, 0.0), " and ".join(job.beside))) if job.beside else ""


def _ending(job: JobStatus) -> str:
    return clean("; ".join([str(job.reason), *fault_words(job)]))


def _progress(job: JobStatus) -> str:
    """Return the progress towards the target, in the unit of the target, and the best of the metric that it watches."""
    progress = job.target.describe_progress(job.batches, job.value)
    return progress if job.watched is None else f"{progress} {job.watched.best:.4g}"


def _value(job: JobStatus) -> str:
    return "-" if job.value is None else job.target.show(job.value)
