"""The client that speaks with a scheduler in a Ray actor, from a worker inside the cluster."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from lightning_core.core.answers import (
    Directive,
    JobForecast,
    JoinReply,
)
from lightning_core.core.events import (
    Report,
    WorkerExited,
)
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.server.ray_settings import NAMESPACE, Actor

# Seconds after which a call is abandoned and repeated; a killed actor is back well within them.
CALL_TIMEOUT = 10.0


class RayClient:
    """Speaks with a scheduler in a Ray actor; implements :class:`lightning_core.core.protocols.Client`.

    Args:
        name: Name of the actor.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor: Actor | None = None
        self.report_period = 0.0

    def join(self, job: Job, device: str) -> JoinReply:
        raise JoinRefusedError(f"{job.name}: a launched job already belongs to its pool and cannot join one")

    def report(self, report: Report) -> Directive | None:
        directive: Directive | None
        directive, self.report_period = self._call("report", report)
        return directive

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        answer: Directive | None = self._call("wait", job, version, timeout, patience=timeout + CALL_TIMEOUT)
        return answer

    def job_forecast(self, job: str) -> JobForecast | None:
        answer: JobForecast | None = self._call("job_forecast", job)
        return answer

    def left(self, event: WorkerExited) -> None:
        self._call("event", event)

    def close(self) -> None:
        """Do nothing: the worker stays in the cluster."""

    def _call(self, method: str, *args: Any, patience: float = CALL_TIMEOUT) -> Any:
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self._name, namespace=NAMESPACE)
            return ray.get(getattr(self._actor, method).remote(*args), timeout=patience)
        except (RayError, GetTimeoutError, ValueError) as error:
            raise ConnectionError(f"scheduler {self._name}: {type(error).__name__}: {error}") from error
