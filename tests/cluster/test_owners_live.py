"""Two owners on a pool of two devices: what one does not use the other has, and it comes back; a group looks on."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.history.history import History
from lightning_core.node.processes import is_alive
from lightning_core.pool import Pool
from lightning_core.server.access.people import Person, rights_of
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head
from lightning_core.storage.journals.journal import Journal
from tests.cluster.test_pool import Shell, batches
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

POOL = """
pool: {devices: 2, resident: 3, owners: {ann: {devices: 1}, bob: {devices: 1}}}
policy: edf
group: {name: GROUP, folder: team}
"""
BUNDLE = """
jobs:
  NAME:
    seed_everything: 1
    model: {class_path: tests.script.Busy}
    data: {class_path: tests.tiny.Points}
    trainer: {logger: false}
    deadline: 30m
    target: {batches: 1000000}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    (tmp_path / "pool.yaml").write_text(POOL.replace("GROUP", grp.getgrgid(os.getgid()).gr_name))
    said = made.command("up", "--config", str(tmp_path / "pool.yaml"))
    assert f"members of its group reach it with --pool {tmp_path / 'team'}" in said
    yield made
    head = read_head(made.folder)
    if head is not None and is_alive(head):
        made.command("down", "--now")


def submit(shell: Shell, owner: str, name: str) -> None:
    """Submit a job of a person."""
    path = shell.home / f"{name}.yaml"
    path.write_text(BUNDLE.replace("NAME", name))
    head = read_head(shell.folder)
    assert head is not None
    client = SocketClient(Path(head["socket"]), Person(owner, rights_of(["submit"])))
    with closing(client):
        Pool(client).submit(BundleSpec.from_file(path), checked=True)


def test_a_share_that_was_lent_comes_back(shell: Shell, record_property: Callable[[str, object], None]) -> None:
    submit(shell, "ann", "a1")
    submit(shell, "ann", "a2")
    until(lambda: batches(shell, "a1") > 20 and batches(shell, "a2") > 20)  # both devices, of which one is bob's
    said = shell.command("status", "--pool", str(shell.home / "team"))
    assert "ann: 2 devices (quota 1, 1 borrowed) for 2 jobs" in said
    submit(shell, "bob", "b1")
    until(lambda: batches(shell, "b1") > 20)
    jobs = shell.jobs()
    assert [(jobs[name].owner, jobs[name].share) for name in ("b1", "a1", "a2")] == [
        ("bob", 1.0), ("ann", 1.0), ("ann", 0.0)
    ]  # fmt: skip
    assert shell.command("why", "a2").splitlines()[1] == "owner: ann"
    with Journal.open(shell.folder / "journal.db", read_only=True) as journal:
        history = History.read(journal)
        turn = journal.settings().turn
    b1, a2 = history.of("b1"), history.of("a2")
    granted = next(grant.time for grant in b1.grants if grant.share == 1)
    record_property("figure", f"{granted - b1.submitted:.3f} s")
    assert granted - b1.submitted <= turn
    assert [grant.share for grant in a2.grants if grant.time >= b1.submitted][-1] == 0
    shell.command("cancel", "b1")
    before = batches(shell, "a2")
    until(lambda: batches(shell, "a2") > before)  # and is lent again
