"""The page beside a pool: it starts, says its link, starts again if it dies, and ends with the pool."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_core.node.processes import is_alive, started
from lightning_core.parts.web import page_process
from lightning_core.parts.web.page_guard import FILE, LOG, MAX_STARTS, STEADY, guard
from lightning_core.parts.web.page_process import PageError, end_page, start_page
from tests.socket_servers import Pool
from tests.waiting import until


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
    assert told.startswith("the pool at "), told
    with urllib.request.urlopen(link[0], timeout=30) as answer:
        assert answer.status == 200
    noted = json.loads((pool.folder / FILE).read_text())
    assert all(is_alive(noted[name]) for name in ("guard", "page"))
    assert (pool.folder / LOG).stat().st_mode & 0o077 == 0
    end_page(pool.folder)
    assert not any(is_alive(noted[name]) for name in ("guard", "page"))
    assert not (pool.folder / FILE).exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(link[0], timeout=5)
    end_page(pool.folder)  # there is none to end


@pytest.mark.nightly
def test_a_page_that_is_killed_is_there_again_and_ends_with_the_pool(pool: Pool) -> None:
    link = re.search(r"(http://\S+)/enter\?key=(\S+)", start_page(pool.folder, 0))
    assert link is not None
    before = json.loads((pool.folder / FILE).read_text())
    os.kill(before["page"]["pid"], signal.SIGKILL)
    until(lambda: (pool.folder / LOG).read_text().count("/enter?key=") == 2)
    after = json.loads((pool.folder / FILE).read_text())
    assert after["guard"] == before["guard"]
    assert is_alive(after["page"])
    told = (pool.folder / LOG).read_text()
    assert "the page ended with -9; it is started again in 1.0s (1 of 9), with a new link" in told
    again = re.findall(r"http://\S+/enter\?key=\S+", told)[-1]
    assert again.startswith(f"{link[1]}/enter?key=")  # the same port
    with urllib.request.urlopen(again, timeout=30) as answer:
        assert answer.status == 200
    os.kill(after["guard"]["pid"], signal.SIGKILL)
    until(lambda: not is_alive(after["guard"]))
    assert is_alive(after["page"])
    end_page(pool.folder)
    assert not is_alive(after["page"])


def test_a_process_that_is_killed_is_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / LOG).write_text("http://127.0.0.1:8710/enter?key=x")
    pids, waits = list[int](), iter([None, None])

    def kill() -> None:
        until(lambda: (tmp_path / FILE).exists())
        pids.append(json.loads((tmp_path / FILE).read_text())["page"]["pid"])
        (tmp_path / FILE).unlink()
        os.kill(pids[-1], signal.SIGKILL)

    def command(*_: object) -> list[str]:
        threading.Thread(target=kill).start()
        return ["/bin/sleep", "60"]

    with pytest.raises(StopIteration):
        guard(tmp_path, 0, command, lambda _: next(waits))
    assert len(set(pids)) == 3
    assert capfd.readouterr().out.count("the page ended with -9; it is started again in") == 3


def served(folder: Path, words: str, code: int = 3) -> Callable[[Path, int], list[str]]:
    """A page that says something in the log and ends."""
    return lambda _, port: ["/bin/sh", "-c", f"echo {words}:{port} >> {folder / LOG}; exit {code}"]


def test_a_page_that_dies_at_once_is_started_after_growing_pauses_and_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pauses = list[float]()
    (tmp_path / LOG).write_text("http://127.0.0.1:8710/enter?key=x")
    assert guard(tmp_path, 0, served(tmp_path, "port"), pauses.append, lambda: 0.0) == 3
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert re.findall("port:[0-9]+", (tmp_path / LOG).read_text()) == ["port:0"] + ["port:8710"] * (MAX_STARTS - 1)
    *_, last = capfd.readouterr().out.splitlines()
    assert last == "the page ended with 3, 10 times in a row: giving up; `lightning-core serve` starts one"


def test_a_page_that_was_there_for_long_is_started_as_at_first(tmp_path: Path) -> None:
    pauses, times = list[float](), iter([0.0, 1.0, 1.0, 2.0, 2.0, 2.0 + STEADY])
    (tmp_path / LOG).write_text("http://127.0.0.1:8710/enter?key=x")
    with pytest.raises(StopIteration):
        guard(tmp_path, 0, served(tmp_path, "port"), pauses.append, lambda: next(times))
    assert pauses == [1.0, 2.0, 1.0]


def test_a_page_that_never_was_there_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / LOG).touch()
    assert guard(tmp_path, 0, served(tmp_path, "no pool", 4), lambda _: pytest.fail("it waits")) == 4


def test_a_port_that_is_taken_is_said(pool: Pool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PageError, match=f"did not start: .*port {port}"):
            start_page(pool.folder, port)
    assert not (pool.folder / FILE).exists()


def test_a_process_that_has_the_id_since_is_left_alone(tmp_path: Path) -> None:
    other = {"pid": os.getpid(), "started": 1}
    (tmp_path / FILE).write_text(json.dumps({"guard": other, "page": other}))
    end_page(tmp_path)  # would end this process
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_text("[]")
    end_page(tmp_path)


def test_a_page_that_says_nothing_is_ended(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_process, "START_TIMEOUT", 0.0)
    with pytest.raises(PageError, match="did not start"):
        start_page(pool.folder, 0)
    assert not (pool.folder / FILE).exists()
