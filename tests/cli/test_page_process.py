"""The page beside a pool: it starts, says its link, and ends with the pool."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.cli.access import page_process
from lightning_core.cli.access.page_process import FILE, LOG, PageError, end_page, start_page
from lightning_core.node.processes import is_alive, started
from tests.socket_servers import Pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    folder = tmp_path / "pool"
    made = Pool(folder, tmp_path / "s")
    me = {"pid": os.getpid(), "started": started(os.getpid())}
    head = me | {"temp": str(tmp_path / "temp"), "socket": str(made.path), "address": "", "token": ""}
    (folder / "head.json").write_text(json.dumps(head))
    yield made
    end_page(folder)
    made.close()


def test_the_page_starts_says_its_link_and_ends(pool: Pool) -> None:
    told = start_page(pool.folder, 0)
    link = re.search(r"http://\S+/enter\?key=\S+", told)
    assert link is not None, told
    with urllib.request.urlopen(link[0], timeout=30) as answer:
        assert answer.status == 200
    noted = json.loads((pool.folder / FILE).read_text())
    assert is_alive(noted)
    assert (pool.folder / LOG).stat().st_mode & 0o077 == 0
    end_page(pool.folder)
    assert not is_alive(noted)
    assert not (pool.folder / FILE).exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(link[0], timeout=5)
    end_page(pool.folder)  # there is none to end


def test_a_port_that_is_taken_is_said(pool: Pool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PageError, match=f"did not start: .*port {port}"):
            start_page(pool.folder, port)
    assert not (pool.folder / FILE).exists()


def test_a_process_that_has_the_id_since_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"pid": os.getpid(), "started": 1}))
    end_page(tmp_path)  # would end this process
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_text("[]")
    end_page(tmp_path)


def test_a_page_that_says_nothing_is_ended(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_process, "START_TIMEOUT", 0.0)
    with pytest.raises(PageError, match="did not start"):
        start_page(pool.folder, 0)
    assert not (pool.folder / FILE).exists()
