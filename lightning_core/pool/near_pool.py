"""A pool on this machine: what is read of its folder, and checked and launched through its socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.names import did_you_mean
from lightning_core.pool.following import follow_log
from lightning_core.pool.pool_errors import UnknownJobError
from lightning_core.scheduler.summary import best_model
from lightning_core.server.access.people import Person, Right
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.view.why import JobMoment

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.pool.shapes import CurveAnswer


class NearPool:
    """Asks a pool on this machine what :class:`~lightning_core.pool.http_client.HttpClient` asks one from afar.

    Args:
        client: Connection to the pool's socket.
        look: Returns scheduler time and every job, and waits for a scheduler that is being restarted.
    """

    def __init__(self, client: SocketClient, look: Callable[[], tuple[float, list[JobStatus]]]) -> None:
        self._client, self._look = client, look

    def acting_for(self, person: Person, through: str = "") -> SocketClient:
        """Return a connection that speaks in the name of a person, who asks through a program."""
        return SocketClient(self._client.path, person, through=through)

    def job_status(self, job: str) -> JobStatus:
        """Return the status of the newest job of a name.

        Raises:
            UnknownJobError: If there is none.
        """
        _, jobs = self._look()
        for told in reversed(jobs):
            if told.name == job:
                return told
        raise UnknownJobError(f"no job {job!r}{did_you_mean(job, [told.name for told in jobs])}")

    def best_model(self, job: str) -> str:
        """Return the path of a job's best model; empty if none is kept."""
        return best_model(self._folder, job).get("best_model", "")

    def reasons(self, job: str) -> list[JobMoment]:
        """Return everything that happened to a job."""
        from lightning_core.pool.local_files import history_of
        from lightning_core.view.why import rows

        return rows(history_of(self._folder, job, self._sees))

    def curve(self, job: str, points: int) -> CurveAnswer:
        """Return the reported curve of a job."""
        from lightning_core.pool.api_answers import curve_answer
        from lightning_core.pool.local_files import history_of

        return curve_answer(history_of(self._folder, job, self._sees), points)

    def log(self, job: str, last: int | None, ended: Callable[[], bool] | None) -> Iterator[str]:
        """Yield the lines of a log, as :func:`~lightning_core.pool.following.follow_log` does."""
        from lightning_core.pool.local_files import log_of

        return follow_log(log_of(self._folder, job, self._sees), last, ended)

    def check(self, bundle: BundleSpec) -> None:
        """Find everything that the pool would refuse.

        Raises:
            BundleError: With every problem found.
            ValueError: With the first job whose name is taken, or whose spec is too large.
        """
        from lightning_core.cluster import config_checker
        from lightning_core.storage import job_specs

        asking = partial(config_checker.ask, self._client.path.with_name(config_checker.SOCKET_NAME))
        bundle.check(local=False, check=asking)
        taken = {job.name for job in self._look()[1] if job.state is not State.ENDED}
        job_specs.check([cast(job_specs.LaunchSpec, spec.for_worker(bundle.folder)) for spec in bundle.jobs], taken)

    def submit(self, bundle: BundleSpec) -> list[str]:
        """Launch the jobs of a bundle whose points in time are settled, and return their names."""
        self._client.launch([spec.for_worker(bundle.folder) for spec in bundle.jobs])
        return [spec.job.name for spec in bundle.jobs]

    @property
    def _sees(self) -> Callable[[str], bool]:
        """Whether the person for whom it asks may see the jobs of an owner: the pool's files know no rights."""
        from lightning_core.pool.local_files import anyone

        person = self._client.person
        return anyone if person is None or person.may(Right.SEE) else person.sees

    @property
    def _folder(self) -> Path:
        return Path(self._client.about()["folder"])
