"""LaiRA with real workers: the beginning of its slices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Answer, End, Grant
from lightning_core.core.codec import decode_answers, decode_event
from lightning_core.core.events import Event, Report
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import launched
from tests.conftest import ROOT

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

# Nightly: tests/policies/test_laira_slices.py holds the same without workers.
pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SLICE = 1.0


def job() -> dict[str, Any]:
    return launched({"loss": 0.01}, "16s", init={"lr": 1e-4, "pause": 0.005}, on_miss="stop", cell=2)


class Change(NamedTuple):
    """The device passes from one job to another."""

    given: float
    stopped: float
    """When the job before has first reported under the grant that stopped it."""
    trains: float
    """When the new one was first seen to progress."""
    taken: float
    """When it lost the device again."""


def changes(path: Path) -> list[Change]:
    """Return the changes at the end of a slice, of jobs that lost the device to another one, not at their end."""
    with Journal.open(path, read_only=True) as journal:
        story = [(e.now, decode_event(e.event), decode_answers(e.answers)) for e in journal.entries()]
        assert replay(journal).digest == journal.digest
    found = []
    for at, (now, event, answers) in enumerate(story):
        stop, start = (_granted(event, answers, some) for some in (False, True))
        if stop is None or start is None or start.reason.code == "explore":
            continue
        reports = [(t, e) for t, e, _ in story[at + 1 :] if isinstance(e, Report)]
        done = max((e.batches for _, e, _ in story[:at] if isinstance(e, Report) and e.job == start.job), default=0)
        stopped = next(t for t, e in reports if e.job == stop.job and e.version >= stop.version)
        trains = next(t for t, e in reports if e.job == start.job and e.batches > done)
        told = [(t, a) for t, _, some in story[at + 1 :] for a in some if a.job == start.job]
        taken, last = next((t, a) for t, a in told if isinstance(a, End) or (isinstance(a, Grant) and not a.share))
        if isinstance(last, Grant):
            found.append(Change(now, stopped, trains, taken))
    return found


def _granted(event: Event, answers: list[Answer], some: bool) -> Grant | None:
    """Return the only new grant of a round, of some share or of none."""
    grants = [a for a in answers if isinstance(a, Grant) and (a.share > 0) is some]
    return grants[0] if len(grants) == 1 and not isinstance(event, Report) else None


def test_a_slice_counts_from_the_stop_report_of_the_job_before(cluster: Cluster, tmp_path: Path) -> None:
    # Three equal jobs with so much uncertainty that the less explored one goes first: they alternate slice by slice.
    policy = {
        "name": "laira",
        "look_ahead": False,
        "pd": False,
        "unit": 0.5,
        "initial_units": 2,
        "explore": 3,
        "noise": 5.0,
    }
    jobs = {name: job() for name in "abc"}
    Bundle.from_dict({"policy": policy, "period": "0.5s", "jobs": jobs}, ROOT).run(run_dir=tmp_path, cluster=cluster)
    made = changes(tmp_path / "journal.db")
    assert made
    for change in made:
        assert change.given < change.stopped < change.taken
        assert change.taken >= max(change.stopped, change.trains) + SLICE - 1e-6
