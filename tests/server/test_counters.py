"""What a scheduler's process counts for those who watch it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import get_args

import pytest

from lightning_core.core.codec import kind_of
from lightning_core.core.events import Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.counters import BOUNDS, Counters
from lightning_core.server.host import Host
from tests.socket_servers import Pool

JOB = Job("job", 600.0, BatchTarget(20), can=frozenset({Capability.TIME_SLICE, Capability.HOLD}))


def test_a_pool_says_what_it_has_counted(pool: Pool) -> None:
    client = SocketClient(pool.path)
    other = SocketClient(pool.path)
    before = client.counters()
    assert (before["events"], before["commits"], before["connections"], before["refused"]) == ({}, 0, 1, 0)
    began = time.monotonic()
    other.join(JOB, "cpu")
    for number in (1, 2):
        other.report(Report("job", 1, number, 0, 10 * number, 0.5))
    for _ in range(2):  # it has ended, and its end is repeated
        other.report(Report("job", 1, 3, 0, 30, 0.5))
    with pytest.raises(JoinRefusedError):
        other.call("no such call")
    took = time.monotonic() - began
    after = client.counters()
    assert after["events"] == {"submit": 1, "report": 2}
    assert after["ends"] == {"met": 1}
    assert after["rounds"] == 2  # the first report of a worker that is where it should be needs none
    assert 1 <= after["commits"] <= 3
    assert (after["connections"], after["refused"]) == (2, 1)
    assert after["journal_bytes"] > before["journal_bytes"] > 0
    decisions = after["decisions"]
    assert decisions["count"] == 3
    assert 0 < after["round_seconds"] < decisions["seconds"]
    assert 0 < decisions["seconds"] + after["commit_seconds"] < took <= after["age"]
    client.close()
    other.close()


def test_faults_are_counted_by_their_cause() -> None:
    host = Host(Settings())
    can = JOB.can | {Capability.RELEASE}
    host.handle(Submit((replace(JOB, can=can), replace(JOB, name="other", can=can))))
    host.handle(WorkerExited("job", 1, ExitCause.LOST, "killed"))
    host.handle(WorkerExited("other", 1, ExitCause.HUNG, "stuck"))
    host.handle(WorkerExited("job", 2, ExitCause.LOST, "killed"))
    host.handle(WorkerExited("job", 2, ExitCause.LOST, "told twice"))
    counted = host.counters.to_dict()
    assert counted["faults"] == {"worker_lost": 2, "hung_back": 1}
    host.handle(WorkerExited("other", 2, ExitCause.UNUSABLE, "no such class"))
    assert host.counters.to_dict()["ends"] == {"crashed": 1}


def test_each_decision_is_in_one_bucket() -> None:
    counters, event = Counters(), Report("job", 1, 1, 0, 0, 0.0)
    for seconds in (*BOUNDS, 2 * BOUNDS[-1], 0.0):
        counters.decided(event, seconds, 0, [], [])
    found = counters.to_dict()["decisions"]
    assert list(found["at_or_below"].values()) == [k + 2 for k in range(len(BOUNDS))]  # a bound is within its bucket
    assert found["count"] == len(BOUNDS) + 2


def test_rounds_have_the_time_of_the_events_that_asked_for_them() -> None:
    counters, event = Counters(), Report("job", 1, 1, 0, 0, 0.0)
    for seconds, rounds in ((1.0, 0), (0.25, 1), (0.5, 2)):
        counters.decided(event, seconds, rounds, [], [])
    found = counters.to_dict()
    assert (found["rounds"], found["round_seconds"]) == (3, 0.75)


def test_every_event_has_a_kind() -> None:
    kinds = [kind_of(event) for event in get_args(Event)]
    assert len(set(kinds)) == len(kinds) > 15
