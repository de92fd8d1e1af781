"""The Python client of a pool, for notebooks and other tools; the commands of ``lightning-core`` are written on it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from lightning_core.core.answers import JobForecast, JobStatus, State
from lightning_core.core.commands import Cancel, Command, Pause, Resume, SetDeadline, SetDevices
from lightning_core.core.durations import parse_when, seconds_until
from lightning_core.core.events import PartEvent
from lightning_core.core.limits import shown
from lightning_core.core.names import check_program
from lightning_core.pool.following import Change, follow_changes
from lightning_core.pool.http_client import HttpClient
from lightning_core.pool.job_handle import JobHandle
from lightning_core.pool.near_pool import NearPool
from lightning_core.pool.pool_errors import JobEndedError, NoPoolError, UnknownJobError
from lightning_core.server.access.people import Person, person_from_dict
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import AUTO, connect, describe, is_url, kind_of
from lightning_core.server.probe import PoolUnavailableError
from lightning_core.view.why import JobMoment

if TYPE_CHECKING:
    import pandas as pd

    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.bundle.pool_section import ExistingPool
    from lightning_core.bundle.python_form import Training
    from lightning_core.pool.shapes import CurveAnswer
    from lightning_core.scheduler.settings import Settings

T = TypeVar("T")

# A scheduler that is being restarted answers again within this many seconds.
RESTART_SECONDS = 20.0


class Pool:
    """A pool that is up, seen from outside: submit jobs, look at them, and steer them.

    Every method asks the pool anew, so what it returns is current. A scheduler that is being restarted is waited for.
    Methods about one job raise :class:`UnknownJobError` if the pool has no job of that name; those that change a job
    raise :class:`JobEndedError` if it has ended.

    Args:
        client: Connection to the pool; :meth:`connect` finds the pool and makes one.
        patience: Seconds to wait for a scheduler that does not answer; by default 20.

    Example::

        with Pool.connect() as pool:
            vit, cnn = pool.submit("bundle.yaml")
            pool.set_deadline("vit", "45m")
            print(vit.result().best_model)
    """

    def __init__(self, client: SocketClient | HttpClient, patience: float | None = None) -> None:
        self.client = client
        self._asked = client if isinstance(client, HttpClient) else NearPool(client, self.look)
        self._patience = RESTART_SECONDS if patience is None else patience

    @classmethod
    def connect(
        cls, where: str = AUTO, *, patience: float | None = None, token: str | None = None, allow_http: bool = False,
        through: str = "",
    ) -> Self:  # fmt: skip
        """Connect to a pool.

        Args:
            where: Folder of the pool, ``host:port`` of its Ray, or its address over HTTP such as
                ``https://pool.example.org``, from anywhere. By default the pool that ``LIGHTNING_CORE_POOL`` names,
                else the one of this account on this machine.
            patience: Seconds to wait for a scheduler that does not answer; by default 20.
            token: Token of a person, for a page; by default that of ``LIGHTNING_CORE_TOKEN``.
            allow_http: Whether a page on another machine may be asked without TLS, so that all on the way can read
                the token.
            through: Name of the program that asks for the user, such as that of an assistant. It is noted with each
                command, beside the user; empty for none.

        Raises:
            NoPoolError: If no pool was named and none is up.
            ConnectionError: If a pool was named and cannot be reached.
            ValueError: If the address of a page, the token or the name of the program is not what it must be.
        """
        pool = cls.find(where, patience=patience, token=token, allow_http=allow_http, through=through)
        if pool is None:
            raise NoPoolError("no pool is up; `lightning-core up` brings one up")
        return pool

    @classmethod
    def find(
        cls, where: str = AUTO, *, patience: float | None = None, token: str | None = None, allow_http: bool = False,
        through: str = "",
    ) -> Self | None:  # fmt: skip
        """Connect to a pool as :meth:`connect` does; return None if none was named and none is up.

        Raises:
            ConnectionError: If a pool was named and cannot be reached.
            ValueError: If the address of a page, the token or the name of the program is not what it must be.
        """
        through = check_program(through) if through else ""
        where = os.environ.get("LIGHTNING_CORE_POOL") or AUTO if where == AUTO else where
        if is_url(where):
            token = os.environ.get("LIGHTNING_CORE_TOKEN", "") if token is None else token
            return cls(HttpClient(where, token, allow_http=allow_http, through=through), patience)
        client = connect(where)
        if client is None:
            return None
        client.through = through
        return cls(client, patience)

    def acting_for(self, person: Person, through: str = "") -> Self:
        """Return a pool that does what a person may do, over a connection of its own, in that person's name.

        Args:
            person: The person; the pool grants this to processes of its own account alone.
            through: Name of the program that asks for that person, as in :meth:`connect`.

        Raises:
            NotOnThisMachineError: If the pool is asked from afar.
        """
        return type(self)(self._asked.acting_for(person, through), self._patience)

    @property
    def is_far(self) -> bool:
        """Whether the pool is asked over HTTP, so that its files cannot be read here."""
        return isinstance(self.client, HttpClient)

    def close(self) -> None:
        """Close the connection; the pool and its jobs go on."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Pool({str(self.client.path)!r})"

    def about(self) -> Mapping[str, Any]:
        """Return what the pool says of itself: its process, folder, devices and settings, and to whom."""
        return self._patiently(self.client.about)

    def counters(self) -> Mapping[str, Any]:
        """Return what the scheduler's process has counted since it started: events, decisions, commits, faults."""
        return self._patiently(self.client.counters)

    @property
    def person(self) -> Person:
        """Who this process is to the pool, and what that person may do there."""
        return person_from_dict(self.about()["person"])

    @property
    def folder(self) -> Path:
        """Folder of the pool, on its own machine."""
        return Path(self.about()["folder"])

    @property
    def settings(self) -> Settings:
        """Policy, estimator, devices and constants of its scheduler."""
        from lightning_core.scheduler.settings import Settings

        return Settings(**self.about()["settings"])

    @property
    def kind(self) -> Literal["cpu", "gpu"]:
        """Kind of its devices, ``"cpu"`` or ``"gpu"``."""
        return kind_of(self.about())

    def describe(self) -> str:
        """Return folder, devices and policy in words."""
        return describe(self.about())

    def read(self, path: Path | str, allow_import: Sequence[str] = ()) -> BundleSpec:
        """Read a bundle file, or a file of one job, for this pool.

        Args:
            path: Of the file.
            allow_import: Modules and packages that class paths may name; empty for all that the file allows.

        Raises:
            BundleError: With every problem found, and everything that this pool does not have.
        """
        from lightning_core.bundle.bundle_file import BundleSpec

        bundle = BundleSpec.from_file(path, self.as_existing())
        bundle.check_targets(self.settings)
        return bundle.importing_only(allow_import) if allow_import else bundle

    def read_text(self, text: str) -> BundleSpec:
        """Read a bundle that was sent as text; its paths are relative to the current folder.

        Raises:
            BundleError: With every problem found, as of a file named ``bundle``.
        """
        from lightning_core.bundle.bundle_file import BundleSpec

        bundle = BundleSpec.from_text(text, Path.cwd(), self.as_existing())
        bundle.check_targets(self.settings)
        return bundle

    def as_existing(self) -> ExistingPool:
        """Return the pool as a file of jobs that is read for it knows it."""
        from lightning_core.bundle.pool_section import ExistingPool

        settings = self.settings
        return ExistingPool(settings.devices, self.kind, f"the pool at {self.folder}", settings.locations)

    def check(self, bundle: BundleSpec) -> None:
        """Find everything that the pool would refuse, before anything is submitted.

        Raises:
            BundleError: With every problem found.
            ValueError: With the first job whose name is taken, or whose spec is too large.
        """
        self._asked.check(bundle)

    def submit(
        self,
        bundle: BundleSpec | Training | Iterable[Training] | Path | str,
        *,
        now: datetime | None = None,
        checked: bool = False,
    ) -> list[JobHandle]:
        """Submit jobs, which the pool launches.

        Args:
            bundle: A bundle, the path of a bundle file, or jobs that are written in Python.
            now: The time from which deadlines count; by default the present.
            checked: Whether :meth:`check` has passed already.

        Returns:
            A handle of each job, in the order of submission.

        Raises:
            BundleError: With every problem found; then nothing is submitted.
            ValueError: If the pool refuses a job; then nothing is submitted.
        """
        if isinstance(bundle, Path | str):
            bundle = self.read(bundle)
        bundle = self._as_bundle(bundle)
        if not checked:
            self.check(bundle)
        names = self._asked.submit(bundle.submit(now or datetime.now()).saved_every(self.settings.save_every))
        return [JobHandle(self, name) for name in names]

    def _as_bundle(self, given: BundleSpec | Training | Iterable[Training]) -> BundleSpec:
        """Return jobs that are written in Python as a bundle for this pool."""
        from lightning_core.bundle.bundle_file import BundleSpec
        from lightning_core.bundle.python_form import Training
        from lightning_core.cluster.bundle import Bundle

        if isinstance(given, BundleSpec):
            return given
        return Bundle([given] if isinstance(given, Training) else given, self.settings, self.kind)

    def job(self, name: str) -> JobHandle:
        """Return the handle of a job that the pool has.

        Raises:
            UnknownJobError: If it has none of that name.
        """
        handle = JobHandle(self, name)
        handle.status()
        return handle

    def to_frame(self) -> pd.DataFrame:
        """Return every job as a row of a pandas data frame; its columns are the fields of a job's status.

        Times are seconds of scheduler time; the forecast end is in ``early_finish``, ``finish`` and ``late_finish``.

        Raises:
            ImportError: If pandas is not installed.
        """
        from lightning_core.pool.frame import frame_of

        return frame_of(self.jobs())

    def best_model(self, job: str) -> str:
        """Return the path of a job's best model on the pool's machine; empty if none is kept."""
        return self._patiently(partial(self._asked.best_model, job))

    def look(self) -> tuple[float, list[JobStatus]]:
        """Return scheduler time in seconds, and every job in the order of submission."""
        return self._patiently(self.client.status)

    def jobs(self) -> list[JobStatus]:
        """Return every job in the order of submission; a name that was used again appears again."""
        return self.look()[1]

    def status(self, job: str) -> JobStatus:
        """Return a job's state, verdict, reasons, progress and share as they are now."""
        return self._patiently(partial(self._asked.job_status, job))

    def forecast(self, job: str) -> JobForecast | None:
        """Return when a job is forecast to reach its target; None while it is too early to tell."""
        self.status(job)
        return self._patiently(partial(self.client.job_forecast, job))

    def reasons(self, job: str) -> list[JobMoment]:
        """Return everything that happened to a job: grants, verdicts, faults and commands, each with its reason.

        Args:
            job: Name of the job; ``name@1`` for the first one of a name that was used again.

        Raises:
            NotOnThisMachineError: If the pool is on another machine.
        """
        return self._patiently(partial(self._asked.reasons, job))

    def curve(self, job: str, points: int = 1000) -> CurveAnswer:
        """Return the reported curve of a job: its metric, the value at which its target is met, and points.

        Args:
            job: Name of the job; ``name@1`` for the first one of a name that was used again.
            points: Points at most, evenly spaced, from 2 to 10,000.

        Raises:
            ValueError: If the number of points is out of its range.
            NotOnThisMachineError: If the pool is on another machine.
        """
        from lightning_core.pool.shapes import MAX_POINTS

        if not 2 <= points <= MAX_POINTS:
            raise ValueError(f"points must be 2 to {MAX_POINTS:,}, got {shown(points)}")
        return self._patiently(partial(self._asked.curve, job, points))

    def logs(self, job: str, *, last: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a launched job has printed; of a progress bar, what stands there in the end.

        Args:
            job: Name of the job.
            last: Lines to begin with, counted from the end; None for all of them, of which the last 400 come from afar.
            follow: Whether to go on until the job has ended.

        Raises:
            NotOnThisMachineError: If the pool is on another machine, or the job is a script, which prints in its shell.
            AgedOutError: If the job ended so long ago that its log is gone.
        """
        ended = partial(self._has_ended, job) if follow else None
        return self._patiently(partial(self._asked.log, job, last, ended))

    def _has_ended(self, job: str) -> bool:
        try:
            return self.status(job).state is State.ENDED
        except UnknownJobError:  # the scheduler forgets in time what has ended
            return True

    def changes(self, *, poll: float = 0.5) -> Iterator[Change]:
        """Yield every job as it is, then each job whenever its state, verdict, share, devices or deadline changes.

        Ends when the caller stops iterating.

        Args:
            poll: Seconds between two looks.
        """
        return follow_changes(self.look, poll)

    def show(self, seconds: float = math.inf, *, poll: float = 1.0) -> None:
        """Show a live table of all jobs in a notebook, each with its forecast as a fan.

        Ends when all jobs have ended, or the cell is interrupted; the table stays, and no thread is left behind.

        Args:
            seconds: Seconds after which it ends as well; 0 to show the jobs once.
            poll: Seconds between two looks.

        Raises:
            ImportError: If IPython is not installed.
        """
        from lightning_core.pool.show import show

        show(self.look, seconds, poll)

    def set_deadline(self, job: str, deadline: float | str | None) -> None:
        """Give a job another deadline, or none.

        Args:
            job: Name of the job.
            deadline: Seconds from now, or text: a duration from now such as ``"45m"``, or a time such as ``"18:00"`` or
                ``"2026-11-23T18:00"``. None for none: it then trains on what jobs with deadlines leave.

        Raises:
            ValueError: If the deadline is not positive, or has passed.
        """
        if isinstance(deadline, str):
            seconds = seconds_until(parse_when(deadline), datetime.now())
        else:
            seconds = math.inf if deadline is None else float(deadline)
        self.send(SetDeadline(job, seconds))

    def set_devices(self, job: str, devices: int | None) -> None:
        """Train a job on another number of devices: of those it can train on, the largest that is not above it.

        Args:
            job: Name of the job.
            devices: Number of devices; 0 to hold none until another number is set, None to leave it to what is planned.

        Raises:
            ValueError: If the number is negative, or more than the pool has.
        """
        self.send(SetDevices(job, devices))

    def pause(self, job: str, *, release: bool = False) -> None:
        """Let a job stand still until :meth:`resume`.

        Args:
            job: Name of the job.
            release: Whether to save it and free its memory too.
        """
        self.send(Pause(job, release))

    def resume(self, job: str) -> None:
        """Let a paused job go on; one that is not paused, and held by a controller, trains from now on all the same."""
        self.send(Resume(job))

    def cancel(self, job: str) -> None:
        """End a job; a launched one is saved first."""
        self.send(Cancel(job))

    def send(self, command: Command) -> None:
        """Send a command about a job that has not ended."""
        if self.status(command.job).state is State.ENDED:
            raise JobEndedError(f"{command.job} has ended")
        self.client.event(command)

    def tell(self, event: str, **body: Any) -> None:
        """Send an event of an installed part, which its controllers hear.

        Args:
            event: ``PART.EVENT``.
            **body: What it says, as JSON values.

        Raises:
            ValueError: If the pool has no part with such an event, or the body does not fit it.
            AccessRefusedError: If the person who asks may not steer all jobs.
        """
        self.client.event(PartEvent(event, body))

    def _patiently(self, ask: Callable[[], T]) -> T:
        until = time.monotonic() + self._patience
        while True:
            try:
                return ask()
            except PoolUnavailableError:
                raise
            except ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
