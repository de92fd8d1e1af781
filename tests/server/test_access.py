"""To whom a job belongs, and who asked for what: the server says it, whatever a request claims."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.problems import BundleError
from lightning_core.core.answers import JobStatus
from lightning_core.core.codec import encode_event, job_from_dict, job_to_dict, status_from_dict, status_to_dict
from lightning_core.core.commands import Cancel, Pause
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.server.access.accounts import account_of
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.storage.job_specs import home_of
from tests.builders import spec
from tests.socket_servers import Pool

SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})
JOB = Job("job", 600.0, BatchTarget(1000), can=SCRIPT)
LAUNCHED = Job("launched", 600.0, BatchTarget(1000))
ME = account_of(os.getuid())


@pytest.fixture
def client(pool: Pool) -> Iterator[SocketClient]:
    made = SocketClient(pool.path)
    yield made
    made.close()


def of(client: SocketClient, job: str) -> JobStatus:
    return next(told for told in client.status()[1] if told.name == job)


def test_a_job_belongs_to_the_account_whose_process_sent_it(client: SocketClient) -> None:
    client.join(JOB, "cpu")
    client.launch([spec(LAUNCHED)])
    assert {of(client, "job").owner, of(client, "launched").owner, client.job("job").owner} == {ME}


def test_an_owner_that_a_join_or_a_spec_claims_is_overwritten(client: SocketClient, pool: Pool) -> None:
    client.join(replace(JOB, owner="mallory"), "cpu")
    client.launch([spec(replace(LAUNCHED, owner="mallory"))])
    assert (of(client, "job").owner, of(client, "launched").owner) == (ME, ME)
    kept = json.loads((home_of(pool.folder, "launched") / "spec.json").read_text())
    assert kept["job"]["owner"] == ME
    assert client.job("launched").owner == ME


@pytest.mark.parametrize("owner", [["mallory"], {"name": "mallory"}, 7, "<b>", "a\nb", "\x1b[2J", "x" * 5000])
def test_an_owner_that_is_no_name_is_overwritten_too(client: SocketClient, owner: Any) -> None:
    client.call("join", job={**job_to_dict(JOB), "owner": owner}, device="cpu", incarnation=None)
    forged = spec(LAUNCHED)
    forged["job"]["owner"] = owner
    client.launch([forged])
    assert (of(client, "job").owner, of(client, "launched").owner) == (ME, ME)


def test_a_bundle_that_names_an_owner_is_refused(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text("jobs:\n  vit:\n    target: {batches: 10}\n    deadline: 1m\n    owner: mallory\n")
    with pytest.raises(BundleError, match="owner"):
        BundleSpec.from_file(bundle)


def test_who_sent_a_command_is_in_the_reason_whatever_the_command_claims(client: SocketClient) -> None:
    client.launch([spec(LAUNCHED)])
    client.event(Pause("launched", who="mallory"))
    assert str(of(client, "launched").grant_reason) == f"paused by {ME}"
    client.event(Cancel("launched", "mallory"))
    assert str(of(client, "launched").reason) == f"cancelled by {ME}"


def test_a_submission_is_no_event_for_clients(client: SocketClient) -> None:
    """It would bring jobs of any owner."""
    with pytest.raises(ValueError, match="Submit is not for clients to send"):
        client.call("event", event=encode_event(Submit((replace(JOB, owner="mallory"),))))


def test_journals_and_states_without_owners_are_read_and_stay_as_they_are(client: SocketClient) -> None:
    assert "owner" not in job_to_dict(JOB)
    assert job_from_dict(job_to_dict(JOB)).owner == ""
    assert job_from_dict(job_to_dict(replace(JOB, owner="ann"))).owner == "ann"
    client.join(JOB, "cpu")
    told = status_to_dict(of(client, "job"))
    assert status_from_dict(told).owner == ME
    del told["owner"]  # of a pool of an earlier release
    assert status_from_dict(told).owner == ""


def test_an_account_without_a_name_that_names_a_person_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        pw_name = "<script>"

    monkeypatch.setattr("pwd.getpwuid", lambda user: Entry)
    assert account_of(4_000_000_001) == "uid4000000001"
    monkeypatch.undo()
    assert account_of(4_000_000_002) == "uid4000000002"
