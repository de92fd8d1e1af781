"""Runs one bundle on a pool: submits it, follows its jobs, has them leave after a signal, and writes the summary."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.problems import BundleError
from lightning_core.cluster.ray_calls import answer, call
from lightning_core.core.commands import Cancel, SetDeadline, SetLocation, SetTerms
from lightning_core.core.events import Close, Event, WorkersLost
from lightning_core.node.signals import describe_signal, recorded_signals
from lightning_core.run.follow import POLL, Watcher, follow
from lightning_core.run.run_folder import write_spec
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import PoolLostError, Summary
from lightning_core.server.ray_settings import Actor
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import FILE, home_of, sha256
from lightning_core.storage.journals import downtime
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.private_files import owner_only
from lightning_core.worker.script_run import FINISH_WITHIN

log = logging.getLogger(__name__)
# Seconds that jobs may take to leave once told to, and seconds for the rest of the shutdown after that.
SHUTDOWN_GRACE = 30.0
CLOSE_TIMEOUT = 3.0


def seconds_down(run_dir: Path) -> float:
    """Return the seconds for which a run was down before it was resumed; 0 if they are not known."""
    try:
        with Journal.open(run_dir / "journal.db", read_only=True) as journal:
            return downtime.seconds_down(journal.entries())
    except (JournalError, sqlite3.DatabaseError) as error:  # the summary is worth more than this figure
        log.warning("the downtime of the run is not known: %s", error)
        return 0.0


def changes(before: BundleSpec, now: BundleSpec, run_dir: Path) -> list[Event]:
    """Return the events that bring a run from its earlier bundle to the present one, except for new jobs.

    The specs of changed jobs are written to the folder of the run.
    """
    events: list[Event] = [WorkersLost()]
    old = {spec.job.name: spec for spec in before.jobs}
    new = {spec.job.name: spec for spec in now.jobs}
    events += [Cancel(name) for name in old if name not in new]
    for name in old.keys() & new.keys():
        job, was = new[name].job, old[name].job
        if job.deadline != was.deadline:
            events.append(SetDeadline(name, job.deadline, from_submission=True))
        terms = SetTerms.between(was, job)
        if new[name].to_dict() != old[name].to_dict():
            text = json.dumps(new[name].for_worker(now.folder))
            with owner_only():
                home_of(run_dir, name).mkdir(parents=True, exist_ok=True)  # that of a job that has ended may be gone
                write_whole(home_of(run_dir, name) / FILE, text)
            terms = replace(terms or SetTerms(name), spec_sha256=sha256(text))
        if terms is not None:
            events.append(terms)
        if job.location != was.location:
            events.append(SetLocation(name, job.location))
    return events


class BundleRunner:
    """A run of a bundle.

    Args:
        name: Name of the scheduler's actor.
        scheduler: Actor of the scheduler.
        pool_manager: Actor of the pool manager.
        is_lost: Returns whether the control process of Ray is dead.
        watcher: Object that is shown the jobs.
        give_back: Gives the nodes of a supply back once all jobs have left: the scheduler still hears of their end.

    Attributes:
        busy: Jobs whose workers had not left in time; empty while the run lasts.
    """

    def __init__(
        self, name: str, scheduler: Actor, pool_manager: Actor, is_lost: Callable[[], bool], watcher: Watcher | None,
        give_back: Callable[[], None],
    ) -> None:  # fmt: skip
        self._name, self._scheduler, self._pool_manager = name, scheduler, pool_manager
        self._is_lost, self._watcher, self._give_back = is_lost, watcher, give_back
        self.busy: list[str] = []

    def run(self, bundle: BundleSpec, settings: Settings, run_dir: Path, before: BundleSpec | None) -> Summary:
        """Run a bundle to its end, and close the scheduler.

        Args:
            bundle: Bundle to run.
            settings: Settings of the scheduler.
            run_dir: Folder of the run.
            before: Bundle of the run to resume, as it was; None for a new run.

        Raises:
            BundleError: If the scheduler refuses the bundle.
            PoolLostError: If the pool no longer answers.
        """
        scheduler = self._scheduler
        try:
            with recorded_signals() as received:
                self._submit(bundle, run_dir, before, received)
                follow(lambda: call(scheduler, "status"), lambda: received or self._is_lost(), self._watcher)
                until, lost = time.monotonic() + SHUTDOWN_GRACE, self._is_lost()
                if received or lost:
                    self._close_jobs(received, until)
                elif any(spec.script for spec in bundle.jobs):
                    until += FINISH_WITHIN
                self.busy = self._wait_until_idle(until, received)
                now, jobs = call(scheduler, "status", until=until + CLOSE_TIMEOUT)
                if self.busy:
                    log.warning("killed because they had not left: %s", ", ".join(self.busy))
            number = received[0] if received else None
            down = 0.0 if before is None else seconds_down(run_dir)
            summary = Summary.of(settings, now, jobs, run_dir, number, lost=lost, down=down)
            with owner_only():
                write_whole(run_dir / "summary.json", summary.to_json())
            if not lost:
                self._give_back()
                until = max(until, time.monotonic())
            call(scheduler, "close", until=until + CLOSE_TIMEOUT)
            return summary
        except RayTaskError as error:  # refused by the scheduler
            raise BundleError([" ".join(str(error.cause).split())]) from error
        except (RayError, GetTimeoutError) as error:
            raise PoolLostError(f"the pool no longer answers: {error}") from error

    def _submit(self, bundle: BundleSpec, run_dir: Path, before: BundleSpec | None, received: list[int]) -> None:
        """Submit the bundle, except for jobs that were submitted before an interruption."""
        _, known = answer(self._scheduler.status.remote(), received)
        if known and before is not None:
            for event in changes(before, bundle, run_dir):
                answer(self._scheduler.event.remote(event), received)
        answer(self._pool_manager.serve.remote(self._name, str(run_dir)), received)
        submitted = {job.name for job in known}
        bundle = bundle.submit(datetime.now(), except_for=submitted)
        write_spec(bundle, run_dir)
        new = [spec.for_worker(bundle.folder) for spec in bundle.jobs if spec.job.name not in submitted]
        answer(self._scheduler.launch.remote(new), received)

    def _close_jobs(self, received: list[int], until: float) -> None:
        """Make all jobs write a checkpoint and leave."""
        cause = describe_signal(received[0]) if received else ""
        log.warning(
            "%s: jobs write a checkpoint and leave, within %.0f s",
            cause or "Ray's control process has died",
            SHUTDOWN_GRACE,
        )
        call(self._scheduler, "event", Close(cause), until=until)

    def _wait_until_idle(self, until: float, received: list[int]) -> list[str]:
        """Wait until all workers have left their jobs; return the jobs whose workers have not by then.

        After a signal those have the seconds of a shutdown.
        """
        signals = len(received)
        while True:
            if len(received) > signals:
                signals, until = len(received), min(until, time.monotonic() + SHUTDOWN_GRACE)
            busy: list[str] = call(self._pool_manager, "busy", until=until)
            if not busy or time.monotonic() > until:
                return busy
            if self._watcher is not None:
                self._watcher.update(*call(self._scheduler, "status", until=until))
            time.sleep(POLL)
