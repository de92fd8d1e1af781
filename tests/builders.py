"""Builders that many tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.core.codec import job_to_dict
from lightning_core.core.control import Asker, Rights, declare_rights
from lightning_core.core.jobs import Job
from lightning_core.core.parts import Group, Part, register
from lightning_core.core.targets import BatchTarget

# A controller that may ask for anything.
PLANNER = Asker("planner")
# Another one, whose word counts less and which may ask for sizes only.
SIZER = Asker("sizer")
declare_rights(SIZER, Rights("the sizer", sizes=True, rank=100, is_pure=True))
declare_rights(PLANNER, Rights("the planner", holds=True, places=True, sizes=True, rank=80, is_pure=True))

# One who may ask for anything by commands, of a part.
OPERATOR = Asker("operator")
_RIGHTS = Rights("the operator", holds=True, places=True, sizes=True, rank=80)
# Another one, whose word counts less and which may ask for sizes only.
RESIZER = Asker("resizer")


@dataclass(frozen=True)
class Fold:
    """Data of a job of the part: which fold it is, and of which cross-validation; none for one that stands alone."""

    fold: int = 0
    of: str = ""


_ASKERS = {"operator": _RIGHTS, "resizer": Rights("the resizer", sizes=True, rank=100)}
_FOLDS = Group(lambda data: str(data.get("of", "")), lambda jobs: f"{len(jobs)} folds")
register("tests", Part(askers=_ASKERS, job_data=Fold, group=_FOLDS))
# Data of a job of the part, which belongs to a group.
FOLD = {"tests": {"fold": 3, "of": "night"}}


def job(
    name: str = "a", deadline: float = 1000.0, batches: int = 1000, *, devices: int | None = None, **terms: Any
) -> Job:
    """Return a job that is to train a number of batches.

    Args:
        name: Name of the job.
        deadline: Deadline in seconds after its submission.
        batches: Batches of its target.
        devices: Number of devices that it trains on, no more and no fewer; None for what its other terms say.
        terms: Other terms of the job.
    """
    if devices is not None:
        terms |= {"min_devices": devices, "max_devices": devices}
    return Job(name, deadline, BatchTarget(batches), **terms)


def spec(job: Job | str) -> Any:
    """Return the spec of a launched job, as a client submits it.

    Args:
        job: The job, or its name.
    """
    job = Job(job, 600.0, BatchTarget(1000)) if isinstance(job, str) else job
    return {
        "job": job_to_dict(job), "config": {}, "cell": 1, "save_every": 60.0, "keep_best": False, "hang": None,
        "paths": [],
    }  # fmt: skip


def launched(
    target: dict[str, Any],
    deadline: str | None = "10m",
    *,
    model: str = "tests.tiny.Line",
    data: str = "tests.tiny.Points",
    init: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    **terms: Any,
) -> dict[str, Any]:
    """Return the section of a bundle for a job that trains a small model.

    Args:
        target: Its target, such as ``{"batches": 100}``.
        deadline: Its deadline; None for none.
        model: Class path of the module.
        data: Class path of the data module.
        init: Arguments of the module.
        trainer: Arguments of the Trainer, beside that it has no logger.
        terms: Other keys of the section.
    """
    if deadline is not None:
        terms["deadline"] = deadline
    return {
        "seed_everything": 1,
        "model": {"class_path": model, "init_args": init or {}},
        "data": {"class_path": data},
        "trainer": {"logger": False, **(trainer or {})},
        "target": target,
        **terms,
    }


def numbered(
    folder: Path, deadline: str, batches: int, pause: float, *callbacks: dict[str, Any], **terms: Any
) -> dict[str, Any]:
    """Return the section of a bundle for a job that writes the numbers of its batches into a new folder.

    Args:
        folder: The folder, which is made.
        deadline: Its deadline.
        batches: Batches of its target.
        pause: Seconds that it sleeps in each batch.
        callbacks: Further callbacks of its Trainer.
        terms: Other keys of the section.
    """
    folder.mkdir()
    module = "benchmarks.live.numbered_training"
    return launched(
        {"batches": batches},
        deadline,
        model=f"{module}.Network",
        data=f"{module}.Data",
        init={"folder": str(folder), "pause": pause},
        trainer={"callbacks": [{"class_path": f"{module}.Writes"}, *callbacks]},
        **terms,
    )
