"""Notifications of verdicts to a command or a URL: each change once, in order, without blocking."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lightning_core.core.answers import Answer, End, Grant, Verdict, VerdictChanged
from lightning_core.core.reasons import Reason
from lightning_core.server import notifications
from lightning_core.server.notifications import Notifier
from tests.waiting import until

AT_RISK = VerdictChanged("a", Verdict.AT_RISK, Reason("late", (3.0,)))
MET = End("a", 4, Verdict.MET, Reason("target_met", (51.0,)))
WROTE = """
import os, sys
with open(sys.argv[1], "a") as file:
    print(*(os.environ["LIGHTNING_CORE_" + key] for key in ("JOB", "VERDICT", "REASON")), sep="|", file=file)
"""


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_command_is_run_once_for_each_verdict_in_order(tmp_path: Path) -> None:
    out = tmp_path / "out"
    notifier = Notifier({"command": [sys.executable, "-c", WROTE, str(out)]})
    notifier.tell([Grant("a", 1, 1.0, (0,), Reason("first_in_line")), AT_RISK])
    notifier.tell([MET])
    notifier.tell([MET])  # a worker that reported once more
    notifier.tell([End("a", 0, Verdict.CANCELLED, Reason("superseded"))])  # one of an old incarnation
    crashed = End("b", 2, Verdict.CRASHED, Reason("crashed", text="$(touch x) `y`\0\n"))
    notifier.tell([crashed])
    until(lambda: len(lines(out)) >= 3)
    assert lines(out)[:3] == [
        "a|at risk|forecast to finish 3.0s late",
        "a|met|target met with 51.0s to spare",
        "b|crashed|$(touch x) `y`",
    ]


def test_a_reused_job_name_is_notified_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    notifier = Notifier({"command": [sys.executable, "-c", WROTE, str(out)]})
    notifier.tell([MET, MET._replace(version=9)])
    until(lambda: len(lines(out)) == 2)


def test_nothing_is_told_of_trials(tmp_path: Path) -> None:
    out = tmp_path / "out"
    notifier = Notifier({"command": [sys.executable, "-c", WROTE, str(out)]}, lambda job: job == "night-0")
    of_a_trial: list[Answer] = [AT_RISK._replace(job="night-0"), MET._replace(job="night-0")]
    notifier.tell([*of_a_trial, MET, *of_a_trial])
    notifier.drain(60.0)
    assert [line.split("|")[0] for line in lines(out)] == ["a"]


@pytest.fixture
def web() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An address, and what was posted to it; its first answer is no HTTP."""
    posts: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append(json.loads(body))
            if len(posts) == 1:
                self.wfile.write(b"gibberish\r\n\r\n")
            else:
                self.send_response(204)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", posts
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_json_and_once_more_if_its_answer_is_none(web: tuple[str, list[dict[str, str]]]) -> None:
    address, posts = web
    notifier = Notifier({"webhook": address})
    notifier.tell([AT_RISK, MET])
    until(lambda: len(posts) == 3)
    assert posts == [
        {"event": "verdict", "job": "a", "verdict": "at risk", "reason": "forecast to finish 3.0s late"},
        {"event": "verdict", "job": "a", "verdict": "at risk", "reason": "forecast to finish 3.0s late"},
        {"event": "verdict", "job": "a", "verdict": "met", "reason": "target met with 51.0s to spare"},
    ]


@pytest.mark.parametrize(
    "command", [["/nowhere/at/all"], [sys.executable, "-c", "raise SystemExit(3)"], [sys.executable, "-c", "input()"]]
)
def test_a_failed_command_is_logged_and_the_next_one_runs(
    command: list[str], web: tuple[str, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    address, posts = web
    notifier = Notifier({"command": command, "webhook": address})
    notifier.tell([AT_RISK, MET])
    notifier.drain(60)
    assert len(posts) == 3
    assert "on_verdict: " in caplog.text


def test_a_slow_command_is_abandoned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(notifications, "TIMEOUT", 2.0)
    monkeypatch.setattr(notifications, "MAX_QUEUED", 2)
    notifier = Notifier({"command": [sys.executable, "-c", "import time; time.sleep(60)"]})
    for _ in range(5):
        notifier.tell([AT_RISK])
    assert "timed out" not in caplog.text  # no call has waited for it
    assert "a: forecast to finish 3.0s late was not passed on" in caplog.text
    until(lambda: "timed out" in caplog.text)


def test_without_a_command_or_a_webhook_there_is_no_thread() -> None:
    before = threading.active_count()
    Notifier({}).tell([AT_RISK, MET])
    assert threading.active_count() == before
