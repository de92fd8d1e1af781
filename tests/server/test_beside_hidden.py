"""The status of a job whose companion belongs to another person."""

from __future__ import annotations

import asyncio
import json

import pytest

from lightning_core.core.answers import JobStatus
from lightning_core.server.access.people import Person, rights_of
from lightning_core.server.load.shared_status import SharedStatus
from tests.pairs import pair, play, simulated


@pytest.mark.parametrize(("owner", "told"), [("ann", ["bert"]), ("bob", ["another owner's job"])])
def test_a_companion_of_another_owner_is_not_named_to_who_may_not_see_it(owner: str, told: list[str]) -> None:
    _, jobs = play([simulated("resnet", 500.0, 1500, owner="ann"), simulated("bert", 700.0, 1000, owner=owner)])

    async def status() -> tuple[float, list[JobStatus]]:
        return 60.0, jobs

    ann = Person("ann", rights_of(["submit"]))
    _, found = json.loads(asyncio.run(SharedStatus(status).text_for(ann)))
    resnet = next(job for job in found if job["name"] == "resnet")
    assert resnet["beside"] == told
    assert ("bert" in json.dumps(found)) == (owner == "ann")
    bob = Person("bob", rights_of(["submit"]))
    assert "resnet" not in asyncio.run(SharedStatus(status).text_for(bob)) or owner == "ann"


def test_whom_one_may_see_is_named() -> None:
    _, jobs = play(pair())

    async def status() -> tuple[float, list[JobStatus]]:
        return 60.0, jobs

    _, found = json.loads(asyncio.run(SharedStatus(status).text()))
    assert [job["beside"] for job in found] == [["bert"], ["resnet"]]
