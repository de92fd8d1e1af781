"""Resuming a run: what has changed in its bundle, and for how long it was down."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.core.commands import Cancel, SetDeadline, SetLocation, SetTerms
from lightning_core.core.events import Event, WorkersLost
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import FILE, home_of, sha256
from lightning_core.storage.journals import downtime
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.private_files import owner_only

log = logging.getLogger(__name__)


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
