"""What a worker needs to know of a job that is launched: a file in the job's folder, written once, plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from lightning_core.core.codec import job_from_dict
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.names import check_name
from lightning_core.core.protocols import NameTakenError
from lightning_core.core.validation import checked
from lightning_core.storage.atomic_files import write_whole

# A spec larger than this is no spec.
LONGEST_SPEC = 2**20
# Of a launched job, least seconds between two saves.
SAVE_EVERY = 300.0
FILE = "spec.json"


class Spec(TypedDict):
    """What the Keeper needs to launch a job, plain data."""

    job: dict[str, Any]
    config: dict[str, Any]
    cell: int
    save_every: float
    keep_best: bool
    paths: list[str]


def home_of(folder: Path, job: str) -> Path:
    """Where a job of a pool saves, and what it printed."""
    return folder / "jobs" / job


def keep(specs: Sequence[Spec], folder: Path, taken: set[str]) -> tuple[Job, ...]:
    """Writes specs to the disk, for the Keeper.

    Args:
        specs: as they came in.
        folder: of the pool.
        taken: names that they may not have.

    Returns:
        Their jobs, to be submitted.

    Raises:
        ValueError: if a name is taken or a spec is none; then none of them is written.
        OSError: if the disk is full, say.
    """
    texts = check(specs, taken)
    for job, text in texts.items():
        home = home_of(folder, job.name)
        _put_away(home)
        home.mkdir(parents=True)
        write_whole(home / FILE, text)
    return tuple(texts)


def check(specs: Sequence[Spec], taken: set[str]) -> dict[Job, str]:
    """Return the jobs of specs, each with the text of its spec.

    Args:
        specs: as they came in.
        taken: names that they may not have.

    Raises:
        ValueError: if a name is taken or a spec is none.
    """
    taken = set(taken)
    texts: dict[Job, str] = {}
    for spec in specs:
        job, text = _job_of(spec), json.dumps(spec)
        check_name(job.name)
        if job.name in taken:
            raise NameTakenError(f"the name {job.name!r} is taken by a job that has not ended; choose another")
        if Capability.RELEASE not in job.can or job.device is not None:
            raise ValueError(f"{job.name} is launched, so it must be able to leave, and no device of its own")
        if len(text) > LONGEST_SPEC:
            raise ValueError(f"the spec of {job.name} must be at most {LONGEST_SPEC} bytes, got {len(text)}")
        taken.add(job.name)
        texts[job] = text
    return texts


def read(home: Path) -> Mapping[str, Any]:
    """The spec of a job, as it was kept.

    Raises:
        OSError, ValueError: if it is not there, or is none.
    """
    spec: Mapping[str, Any] = json.loads((home / FILE).read_text())
    return spec


def _job_of(spec: Any) -> Job:
    try:
        job: Job = checked(job_from_dict(checked(spec, Spec)["job"]), Job)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not understood: {type(error).__name__}: {error}") from None
    return job


def _put_away(folder: Path) -> None:
    """What an ended job of the same name left must not be taken for the new one's."""
    if folder.exists():
        attic = folder.parent.parent / "old"
        attic.mkdir(exist_ok=True)
        number = 1 + sum(1 for _ in attic.glob(f"{folder.name}~*"))
        os.replace(folder, attic / f"{folder.name}~{number}")
