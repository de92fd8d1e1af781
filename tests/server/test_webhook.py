"""A webhook whose receiver fails, hangs, redirects or is gone: what arrives, how often, and who waits for it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_core.core.answers import Verdict, VerdictChanged
from lightning_core.core.events import Report
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.server import notifications, webhook
from lightning_core.server.notifications import Notifier
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.server.webhook import MAX_POSTS, Webhook, read_secret, sign
from tests.builders import FOLD
from tests.conftest import ROOT
from tests.waiting import until

SECRET = b"a secret of some length"
NEWS = {"event": "verdict", "job": "vit", "verdict": "at risk", "reason": "forecast to finish 3.0s late"}


def verdict(job: str) -> VerdictChanged:
    return VerdictChanged(job, Verdict.AT_RISK, Reason("late", (3.0,)))


class Receiver:
    """A web server that answers each post as a function says, and keeps what was posted."""

    def __init__(self) -> None:
        self.answer: Callable[[int, str], int | str] = lambda number, path: 204
        """Status for the post of a number, from 1 on, to a path; or the address to which it is redirected."""
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {key.lower(): value for key, value in self.headers.items()}
                receiver.posts.append((self.path, headers, body))
                answer = receiver.answer(len(receiver.posts), self.path)
                self.send_response(307 if isinstance(answer, str) else answer)
                if isinstance(answer, str):
                    self.send_header("Location", answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}/hook?token=hidden"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "FIRST_PAUSE", 0.01)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "hook.secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    return path


def test_what_is_posted_is_signed_as_standard_webhooks_says(receiver: Receiver, secret_file: Path) -> None:
    Webhook(receiver.address, secret_file).post(NEWS)
    [(path, headers, body)] = receiver.posts
    assert path == "/hook?token=hidden"
    assert json.loads(body) == NEWS
    assert headers["content-type"] == "application/json"
    number, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
    assert re.fullmatch(r"msg_[0-9a-f]{32}", number)
    assert abs(int(timestamp) - time.time()) < 60
    mac = hmac.new(SECRET, f"{number}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()


def test_the_example_of_standard_webhooks() -> None:
    """From its specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_a_secret_there_is_no_signature(receiver: Receiver) -> None:
    Webhook(receiver.address).post(NEWS)
    assert "webhook-signature" not in receiver.posts[0][1]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_receiver_that_fails_for_a_while_gets_it_under_one_id(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda number, path: status if number < 4 else 200
    Webhook(receiver.address).post(NEWS)
    assert len(receiver.posts) == 4
    assert len({headers["webhook-id"] for _, headers, _ in receiver.posts}) == 1
    assert len({body for *_, body in receiver.posts}) == 1
    Webhook(receiver.address).post(NEWS)
    assert len({headers["webhook-id"] for _, headers, _ in receiver.posts}) == 2


def test_pauses_grow_and_are_drawn(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(webhook, "FIRST_PAUSE", 1.0)
    slow = SimpleNamespace(time=time.time, sleep=pauses.append)  # its own alone: other threads of the process sleep too
    monkeypatch.setattr(webhook, "time", slow)
    receiver.answer = lambda number, path: 500
    for _ in range(20):
        with pytest.raises(OSError, match="answers 500"):
            Webhook(receiver.address).post(NEWS)
    assert len(receiver.posts) == 20 * MAX_POSTS
    for place in range(MAX_POSTS - 1):
        drawn = pauses[place :: MAX_POSTS - 1]
        assert all(0.5 * 2**place <= pause <= 1.5 * 2**place for pause in drawn)
        assert len(set(drawn)) > 1


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_a_receiver_that_refuses_is_not_asked_again(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda number, path: status
    with pytest.raises(OSError, match=f"the webhook at 127.0.0.1 answers {status}"):
        Webhook(receiver.address).post(NEWS)
    assert len(receiver.posts) == 1


def test_a_redirect_on_the_same_host_is_followed_with_the_same_body(receiver: Receiver, secret_file: Path) -> None:
    receiver.answer = lambda number, path: "/new" if path != "/new" else 204
    Webhook(receiver.address, secret_file).post(NEWS)
    (_, first, body), (path, second, again) = receiver.posts
    assert (path, again) == ("/new", body)
    assert {key: first[key] for key in first if "webhook" in key} == {
        key: second[key] for key in second if "webhook" in key
    }


def test_a_redirect_to_another_host_is_not_followed(receiver: Receiver) -> None:
    other = Receiver()
    for address in (other.address, receiver.address.replace("127.0.0.1", "localhost"), "file:///etc/passwd"):
        receiver.posts.clear()
        receiver.answer = lambda number, path, to=address: to  # type: ignore[misc]
        with pytest.raises(OSError, match="answers 307"):
            Webhook(receiver.address).post(NEWS)
        assert len(receiver.posts) == 1
    assert not other.posts
    other.close()


def test_a_receiver_that_redirects_in_a_circle_is_given_up(receiver: Receiver) -> None:
    receiver.answer = lambda number, path: "/hook"
    with pytest.raises(OSError, match="infinite loop"):
        Webhook(receiver.address).post(NEWS)
    assert len(receiver.posts) <= 11


def test_one_that_is_gone_is_tried_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Receiver()
    gone.close()
    pauses: list[float] = []
    slow = SimpleNamespace(time=time.time, sleep=pauses.append)  # its own alone: other threads of the process sleep too
    monkeypatch.setattr(webhook, "time", slow)
    with pytest.raises(OSError, match=r"the webhook at 127\.0\.0\.1 does not answer: .*refused") as raised:
        Webhook(gone.address).post(NEWS)
    assert len(pauses) == MAX_POSTS - 1
    assert "hidden" not in str(raised.value)


def test_a_receiver_that_hangs_delays_no_other(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifications, "MAX_QUEUED", 2)
    held = threading.Event()

    def hang(number: int, path: str) -> int:
        held.wait(60)
        return 204

    receiver.answer = hang
    out = tmp_path / "out"
    notifier = Notifier({"webhook": receiver.address, "command": ["sh", "-c", f"echo $LIGHTNING_CORE_JOB >> '{out}'"]})
    began = time.monotonic()
    notifier.tell([verdict("first")])
    until(lambda: receiver.posts)
    for job in ("second", "third", "fourth"):
        notifier.tell([verdict(job)])
        until(lambda job=job: out.exists() and job in out.read_text())  # type: ignore[misc]  # the command is run
    assert time.monotonic() - began < 50
    assert "webhook of on_verdict is too slow: second: forecast to finish 3.0s late was not passed on" in caplog.text
    notifier.drain(0.1)
    held.set()
    notifier.drain(60)
    assert [json.loads(body)["job"] for *_, body in receiver.posts] == ["first", "third", "fourth"]


def test_a_receiver_that_does_not_answer_in_time_is_asked_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT", 0.5)
    held = threading.Event()
    receiver.answer = lambda number, path: 204 if number > 1 or held.wait(60) else 500
    Webhook(receiver.address).post(NEWS)
    assert len(receiver.posts) == 2
    held.set()


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"short", 0o600, "at least 16 bytes, got 5"),
        (b"", 0o600, "at least 16 bytes, got 0"),
        (SECRET, 0o640, "readable by its user alone"),
        (SECRET, 0o604, "readable by its user alone"),
        (b"whsec_&&&", 0o600, "must be base64"),
        (b"whsec_" + base64.b64encode(b"short"), 0o600, "at least 16 bytes, got 5"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes, mode: int, words: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ValueError, match=words) as raised:
        read_secret(path)
    assert content.decode() not in str(raised.value) or content in (b"", b"short")


def test_a_secret_of_base64(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"whsec_" + base64.b64encode(SECRET))
    path.chmod(0o600)
    assert read_secret(path) == SECRET


def test_the_secret_is_never_told(receiver: Receiver, secret_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answer = lambda number, path: 400
    with caplog.at_level(logging.DEBUG):
        notifier = Notifier({"webhook": receiver.address, "secret_file": str(secret_file)})
        notifier.tell([verdict("vit")])
        notifier.drain(60)
        secret_file.unlink()
        notifier.tell([verdict("vit")])
        notifier.drain(60)
    assert "answers 400" in caplog.text
    assert "hook.secret" in caplog.text  # it is gone, and nothing was posted unsigned
    assert len(receiver.posts) == 1
    assert SECRET.decode() not in caplog.text
    assert "hidden" not in caplog.text


def test_the_receiver_in_the_guide_accepts_what_is_signed_and_nothing_else(secret_file: Path) -> None:
    guide = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "hmac" in block]
    code = (
        code.replace('"hook.secret"', repr(str(secret_file))).replace("8000", "0").replace("server.serve_forever()", "")
    )
    space: dict[str, object] = {}
    exec(code, space)
    server = space["server"]
    assert isinstance(server, ThreadingHTTPServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        Webhook(address, secret_file).post(NEWS)
        assert space["told"] == [NEWS]
        with pytest.raises(OSError, match="answers 401"):
            Webhook(address).post(NEWS)
        secret_file.write_bytes(b"another secret of some length")
        with pytest.raises(OSError, match="answers 401"):
            Webhook(address, secret_file).post(NEWS)
        assert space["told"] == [NEWS]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_pool_that_closes_lets_the_last_notification_leave(receiver: Receiver, tmp_path: Path) -> None:
    async def live() -> None:
        actor = SchedulerActor({}, str(tmp_path), on_verdict={"webhook": receiver.address})
        jobs = (
            Job("vit", 600.0, BatchTarget(10)),
            Job("night-0", 600.0, BatchTarget(10), parts=FOLD),
        )
        await actor.submit(jobs)
        for job in jobs:
            await actor.event(Report(job.name, 1, 1, 1, 10, 1.0))
        await actor.close()

    def late(number: int, path: str) -> int:
        time.sleep(0.3)
        return 204

    receiver.answer = late
    asyncio.run(live())
    told = [json.loads(body) for *_, body in receiver.posts]
    assert told[-1]["verdict"] == "met"
    assert {news["job"] for news in told} == {"vit"}  # a job of a group is no news
