"""Specs of launched jobs: plain data for a worker, in a file of the job's folder that is written once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from lightning_core.core.codec import job_from_dict
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.limits import MAX_COUNT, check_at_most, check_seconds
from lightning_core.core.names import check_name
from lightning_core.core.parts import check_job_data
from lightning_core.core.protocols import NameTakenError
from lightning_core.core.validation import converted
from lightning_core.regular_files import NEVER_READABLE
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import read_own

MAX_SPEC_BYTES = 2**20
# Default minimum seconds between two periodic checkpoints of a launched job.
SAVE_EVERY = 300.0
# Minimum seconds of training per second that saving took.
MIN_TRAINING_PER_SAVE = 50
# Default seconds that any step of a launched job may take before it hangs.
HANG = 300.0
FILE = "spec.json"


class LaunchSpec(TypedDict):
    """Plain data from which the pool manager launches a job."""

    job: dict[str, Any]
    config: dict[str, Any]
    cell: int
    save_every: float
    keep_best: bool
    hang: float | None
    paths: list[str]


def home_of(folder: Path, job: str) -> Path:
    """Return the folder of a job in its pool's folder: its spec, checkpoints and output."""
    return folder / "jobs" / job


def store(specs: Sequence[LaunchSpec], folder: Path, taken: set[str]) -> tuple[Job, ...]:
    """Write specs to the disk, for the pool manager.

    Args:
        specs: Specs as received.
        folder: Folder of the pool.
        taken: Names of the active jobs.

    Returns:
        The jobs to submit.

    Raises:
        ValueError: If a name is taken or a spec is invalid; then no spec is written.
        OSError: If a spec cannot be written.
    """
    texts = check(specs, taken)
    for job, text in texts.items():
        home = home_of(folder, job.name)
        _archive(home)
        home.mkdir(parents=True)
        write_whole(home / FILE, text)
    return tuple(replace(job, spec_sha256=sha256(text)) for job, text in texts.items())


def sha256(text: str) -> str:
    """Return the digest by which a spec is recognised: the journal holds that of each job's spec."""
    return hashlib.sha256(text.encode()).hexdigest()


def check(specs: Sequence[LaunchSpec], taken: set[str]) -> dict[Job, str]:
    """Return the jobs of specs, each with the text of its spec.

    Args:
        specs: Specs as received.
        taken: Names of the active jobs.

    Raises:
        ValueError: If a name is taken or a spec is invalid.
    """
    taken = set(taken)
    texts: dict[Job, str] = {}
    for spec in specs:
        job, text = _job_of(spec), json.dumps(spec)
        check_name(job.name)
        if job.name in taken:
            raise NameTakenError(f"the name {job.name!r} is taken by a job that has not ended; choose another")
        if Capability.RELEASE not in job.can or job.device is not None:
            raise ValueError(
                f"{job.name} must be able to release its devices and must not name a device: the pool launches it"
            )
        if len(text) > MAX_SPEC_BYTES:
            raise ValueError(f"the spec of {job.name} must be at most {MAX_SPEC_BYTES} bytes, got {len(text)}")
        taken.add(job.name)
        texts[job] = text
    return texts


def read(folder: Path, job: str, digest: str) -> Mapping[str, Any]:
    """Return the spec of a job.

    Args:
        folder: Folder of the pool.
        job: Name of the job.
        digest: Its SHA-256 in the journal.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not the one that was submitted, is not valid JSON, lacks a key, or another user can change
            it.
    """
    try:
        text = read_own(folder, str(home_of(Path(), job) / FILE), MAX_SPEC_BYTES).decode()
    except OSError as error:
        if error.errno in NEVER_READABLE:
            raise ValueError(f"{home_of(folder, job) / FILE}: {error.strerror}") from None
        raise
    if sha256(text) != digest:
        raise ValueError(
            f"{home_of(folder, job) / FILE} is not the spec that was submitted: its SHA-256 is not the one in the "
            "journal; submit the job again"
        )
    spec: Mapping[str, Any] = json.loads(text)
    if missing := [key for key in LaunchSpec.__annotations__ if key not in spec]:
        raise ValueError(f"{home_of(folder, job) / FILE} has no {', '.join(missing)}; submit the job again")
    return spec


def _job_of(spec: Any) -> Job:
    try:
        job = job_from_dict(converted(spec, LaunchSpec)["job"])
        check_job_data(job.parts)
        check_at_most("cell", spec["cell"], MAX_COUNT)
        check_seconds("save_every", spec["save_every"])
        check_seconds("hang", spec["hang"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"invalid spec: {type(error).__name__}: {error}") from None
    return job


def _archive(folder: Path) -> None:
    """Move the folder of an ended job of the same name away, so that the new job does not use its files."""
    if folder.exists():
        attic = folder.parent.parent / "old"
        attic.mkdir(exist_ok=True)
        # Earlier ones may have aged out, so their count means nothing.
        before = [path.name.rpartition("~") for path in attic.iterdir()]
        number = 1 + max((int(k) for name, _, k in before if name == folder.name and k.isdecimal()), default=0)
        os.replace(folder, attic / f"{folder.name}~{number}")
