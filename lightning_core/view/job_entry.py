"""A job as JSON that any program can read: no infinity, reasons as text.

``status --json`` and the API of a pool use this form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, cast

from msgspec import Meta

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.codec import status_from_dict, status_to_dict
from lightning_core.core.durations import is_in_reach
from lightning_core.core.parts import columns_of
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.summary import best_model
from lightning_core.view.text import clean

REASONS = ("reason", "grant_reason", "fault", "alert", "like")


def says(words: str) -> Meta:
    """Return the description of a value, for the schema of its type."""
    return Meta(description=words)


class JobEntry(TypedDict):
    """A job. Times are seconds of scheduler time, and null while unknown."""

    name: str
    owner: Annotated[str, says("Name of the person to whom it belongs; empty if unknown.")]
    state: State
    verdict: Annotated[Verdict | None, says("Expected outcome, in the end the outcome; null while too early to tell.")]
    reason: Annotated[str, says("Reason of its verdict.")]
    grant_reason: Annotated[str, says("Reason of its grant.")]
    target: Annotated[dict[str, Any], says("Its target, with the keys of a bundle.")]
    metric: Annotated[str, says("Quantity that its target compares.")]
    value: Annotated[float | None, says("Newest value that its target compares.")]
    best: Annotated[float | None, says("Best of these values so far.")]
    loss: Annotated[float | None, says("Current loss; null for a metric that should grow.")]
    batches: Annotated[int, says("Batches done.")]
    cells: Annotated[int, says("Loss cells seen.")]
    rejected: Annotated[int, says("Losses that were NaN or infinite.")]
    share: Annotated[float, says("Share of its devices, from 0 to 1.")]
    beside: Annotated[list[str], says("Names of the jobs that train at the same time on its device.")]
    pace: Annotated[float, says("Expected throughput beside them, as a fraction of its throughput alone.")]
    held_share: Annotated[float, says("Share that counts as its own: of jobs that train at once, its part of theirs.")]
    device_seconds: Annotated[float, says("Seconds of its devices that count as its own.")]
    devices: Annotated[list[int], says("Devices on which it is.")]
    kind: Annotated[str, says("Kind of these devices, or of the last ones; empty where all are alike.")]
    rates: Annotated[
        dict[str, float],
        says("Batches per second on each kind of devices, measured or expected; empty where all are alike."),
    ]
    throughput: Annotated[float | None, says("Batches per second of training.")]
    busy: Annotated[float, says("Seconds that it has trained, validated and saved.")]
    submitted_at: float
    deadline: Annotated[float | None, says("Null for none.")]
    finish: Annotated[list[float | None] | None, says("Forecast end: early, likely and late; null in it beyond reach.")]
    finished_at: float | None
    detail: Annotated[str, says("Traceback, if the job crashed.")]
    incarnation: int
    weight: float
    paused: bool
    restarts: Annotated[int, says("Restarts after a fault.")]
    lost_batches: Annotated[int, says("Batches repeated because of faults.")]
    checkpoint_batches: Annotated[int | None, says("Batches done at its last checkpoint; null for a script.")]
    fault: Annotated[str | None, says("Newest of its faults.")]
    alert: Annotated[str | None, says("Present problem of its training, such as NaN losses.")]
    notes: Annotated[dict[str, str], says("What controllers tell of it, by their names.")]
    like: Annotated[str | None, says("Earlier runs that its forecast rests on.")]
    memory: Annotated[float | None, says("Bytes of a device's memory that its process had at its peak.")]
    memory_needed: Annotated[float | None, says("Bytes of each of its devices' memory that count as its need.")]
    watched: Annotated[
        list[float] | None,
        says("Metric that its target watches: batches done at its newest value, that value, its best."),
    ]
    parts: Annotated[dict[str, dict[str, Any]], says("Data that parts keep with it, by the name of the part.")]
    columns: NotRequired[Annotated[dict[str, str], says("What installed parts add to it, by heading.")]]
    best_model: NotRequired[Annotated[str, says("Path of its best model, on the pool's machine, if it is kept.")]]


def job_entry(job: JobStatus, folder: Path) -> JobEntry:
    """Return a job as an entry.

    Args:
        job: Status of the job.
        folder: Folder of its pool, where its best model may be.
    """
    finish, start = None, job.submitted_at
    if job.finish is not None:
        finish = [time if is_in_reach(time - start, job.deadline - start) else None for time in job.finish]
    words = {key: None if (reason := getattr(job, key)) is None else str(reason) for key in REASONS}
    watched = None if job.watched is None else list(job.watched)
    more = {
        "finish": finish,
        "metric": job.target.quantity,
        "devices": list(job.devices),
        "watched": watched,
        "beside": list(job.beside),
    }
    own = {"columns": columns} if (columns := columns_of(job)) else {}
    notes = {"notes": {by: str(note) for by, note in job.notes.items()}}
    return cast(JobEntry, status_to_dict(job) | words | notes | more | own | best_model(folder, job.name))


def job_of_entry(entry: Mapping[str, Any]) -> JobStatus:
    """Return the status of a job from its entry; of its reasons only the words are left.

    Raises:
        ValueError: If a value is invalid.
        KeyError: If one is missing.
        TypeError: If one is missing, or of another type.
    """
    known = {field.name: entry[field.name] for field in fields(JobStatus) if field.name in entry}
    said = {key: entry.get(key) for key in REASONS}
    words = {key: None if text is None else list(Reason("words", (), clean(text))) for key, text in said.items()}
    notes = {by: list(Reason("words", (), clean(text))) for by, text in entry.get("notes", {}).items()}
    finish = entry["finish"] and [math.inf if time is None else time for time in entry["finish"]]
    return status_from_dict(known | words | {"notes": notes, "finish": finish})
