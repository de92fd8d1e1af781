"""The result of a run: its jobs, its figures and its exit code."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lightning_core.core.answers import JobStatus, Verdict
from lightning_core.core.codec import seconds_or_none
from lightning_core.errors import LightningCoreError

if TYPE_CHECKING:
    from lightning_core.scheduler.settings import Settings

EXIT_MET, EXIT_CRASHED, EXIT_BAD_INPUT, EXIT_NOT_MET, EXIT_POOL_LOST = 0, 1, 2, 3, 70


class PoolLostError(LightningCoreError, ConnectionError):
    """The pool is lost; checkpoints and the journal remain."""


@dataclass(frozen=True)
class Summary:
    """The end of a run.

    Args:
        policy: Name of the policy.
        jobs: Jobs as they ended.
        wall: Seconds of scheduler time from the first submission to the end of the run.
        run_dir: Folder with the journal, the spec and the summary.
        interrupted: Signal that ended the run; None if none did.
        devices: Number of devices of the pool.
        lost: Whether the run ended because the pool was lost.
        down: Seconds of ``wall`` in which the pool was down.
    """

    policy: str
    jobs: tuple[JobStatus, ...]
    wall: float
    run_dir: Path
    interrupted: int | None = None
    devices: int = 1
    lost: bool = False
    down: float = 0.0

    @classmethod
    def of(
        cls,
        settings: Settings,
        now: float,
        jobs: list[JobStatus],
        run_dir: Path,
        interrupted: int | None = None,
        *,
        lost: bool = False,
        down: float = 0.0,
    ) -> Self:
        """Sum up a run.

        Args:
            settings: Settings of the scheduler.
            now: Scheduler time; the end of the run if not all of its jobs have ended.
            jobs: Jobs as they are now.
            run_dir: Folder of the run.
            interrupted: Signal that ended the run; None if none did.
            lost: Whether the run ended because the pool was lost.
            down: Seconds in which the pool was down.
        """
        args = ",".join(f"{key}={value}" for key, value in settings.policy_args.items())
        policy = settings.policy + (f":{args}" if args else "")
        start = min((job.submitted_at for job in jobs), default=0.0)
        end = max((now if job.finished_at is None else job.finished_at for job in jobs), default=now)
        return cls(policy, tuple(jobs), max(end - start, 0.0), run_dir, interrupted, settings.devices, lost, down)

    @property
    def met(self) -> int:
        """Number of jobs that met their target in time."""
        return sum(job.verdict is Verdict.MET for job in self.jobs)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if all jobs met, 3 if some did not, 1 if one crashed, 128 + signal, 70 if the pool was lost."""
        if self.interrupted is not None:
            return 128 + self.interrupted
        if self.lost:
            return EXIT_POOL_LOST
        if any(job.verdict is Verdict.CRASHED for job in self.jobs):
            return EXIT_CRASHED
        return EXIT_MET if self.met == len(self.jobs) else EXIT_NOT_MET

    @property
    def figures(self) -> dict[str, float]:
        """Numbers of the whole run, such as its seconds and the fraction of device time spent training."""
        busy = sum(job.busy for job in self.jobs)
        trained = sum(job.device_seconds for job in self.jobs)
        available = (self.wall - self.down) * self.devices
        return {
            "jobs": len(self.jobs),
            "met": self.met,
            "wall_s": self.wall,
            "busy_s": busy,
            "device_s": trained,
            "down_s": self.down,
            "device_use": min(trained / available, 1.0) if available > 0 else 0.0,
            "rejected_losses": sum(job.rejected for job in self.jobs),
            "restarts": sum(job.restarts for job in self.jobs),
            "lost_batches": sum(job.lost_batches for job in self.jobs),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return {
            "policy": self.policy,
            "met": self.met,
            "jobs": {job.name: _job(job) | best_model(self.run_dir, job.name) for job in self.jobs},
            "figures": self.figures,
        }

    def to_json(self) -> str:
        """Return the text of ``summary.json``."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"


def best_model(folder: Path, job: str) -> dict[str, str]:
    """Return the path of a launched job's best model as ``best_model``; empty if none is kept."""
    path = folder.absolute() / "jobs" / job / "best.ckpt"
    with suppress(PermissionError):  # of a pool of another account
        if path.exists():
            return {"best_model": str(path)}
    return {}


def _job(job: JobStatus) -> dict[str, Any]:
    body = {
        "verdict": job.verdict,
        "finished_at": job.finished_at,
        "metric": job.target.quantity,
        "value": job.value,
        "best": job.best,
        "loss": job.loss,
        "batches": job.batches,
        "reason": str(job.reason),
        "target": str(job.target),
        "deadline": seconds_or_none(job.deadline - job.submitted_at),
        "busy": job.busy,
        "device_seconds": job.device_seconds,
        "kind": job.kind,
        "rejected_losses": job.rejected,
        "restarts": job.restarts,
        "lost_batches": job.lost_batches,
        "fault": None if job.fault is None else str(job.fault),
    }
    return body | {"traceback": job.detail} if job.detail else body
