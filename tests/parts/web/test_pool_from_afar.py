"""`Pool` and the commands over HTTP: the same as on the pool's machine, the token kept secret, nothing followed."""

from __future__ import annotations

import http.server
import json
import math
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.problems import BundleError
from lightning_core.cli.main import main
from lightning_core.core.answers import Verdict
from lightning_core.core.events import PartEvent
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import AccessRefusedError
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.parts.web.visitors import account, reader
from lightning_core.pool import JobEndedError, NotOnThisMachineError, Pool, UnknownJobError, http_client
from lightning_core.server.access.people import Person, Right
from lightning_core.server.discovery import connect
from lightning_core.server.probe import PoolUnavailableError
from lightning_core.storage.job_specs import home_of
from tests.conftest import debian
from tests.parts.web.pages import Page
from tests.parts.web.serving import served
from tests.parts.web.test_submission import BUNDLE

TOKEN = "lct_s3cret"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setattr("lightning_core.cluster.config_checker.ask", lambda *_: [])
    with served(tmp_path / "pool", allow_submit=True) as (made, url):
        made.people |= {TOKEN: account("ann"), "of-reader": reader("reader")}
        made.submit(Job("vit", 600.0, LossTarget("loss", 0.5)), Job("gru", math.inf, BatchTarget(1000)))
        made.report("vit", 1, [2.0, 1.5, 1.3, 1.2])
        monkeypatch.setenv("LIGHTNING_CORE_POOL", url)
        monkeypatch.setenv("LIGHTNING_CORE_TOKEN", TOKEN)
        yield made


def test_a_pool_is_seen_as_on_its_own_machine(page: Page) -> None:
    _, there = page.server.do(page.server.actor.status())
    with Pool.connect(patience=0.1) as pool:
        assert pool.is_far
        assert pool.folder == page.web_app.folder
        assert (pool.settings.policy, pool.settings.devices, pool.kind) == ("edf", 2, "cpu")
        assert pool.person == account("ann")
        assert pool.counters()["events"]
        for near, far in zip(there, pool.jobs(), strict=True):
            words = (str(near.reason), str(near.grant_reason))
            assert (str(far.reason), str(far.grant_reason)) == words
            same = ("name", "state", "verdict", "target", "value", "batches", "share", "devices", "deadline", "finish")
            assert [getattr(far, key) for key in same] == [getattr(near, key) for key in same]
        assert pool.forecast("vit") is not None
        assert pool.reasons("vit")[0].what == "submitted"
        assert next(iter(pool.changes())).now.name == "vit"
        with pytest.raises(UnknownJobError, match="vit"):
            pool.status("vitt")
        assert TOKEN not in repr(pool)


def test_all_jobs_come_from_afar_in_as_many_pages_as_it_takes(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.submit(*(Job(f"more-{k}", 600.0, BatchTarget(9)) for k in range(5)))
    monkeypatch.setattr(http_client, "PAGE", 3)
    with Pool.connect(patience=0.1) as pool:
        assert [job.name for job in pool.jobs()] == ["vit", "gru", *(f"more-{k}" for k in range(5))]
        monkeypatch.setattr(http_client, "MAX_PAGES", 2)
        with pytest.raises(ConnectionError, match="more than 6 jobs"):
            pool.jobs()


def test_jobs_are_steered_from_afar(page: Page) -> None:
    with Pool.connect(patience=0.1) as pool:
        pool.set_deadline("vit", "45m")
        assert pool.status("vit").deadline == pytest.approx(pool.look()[0] + 2700, abs=60)
        pool.set_deadline("vit", 100.5)
        pool.set_deadline("vit", None)
        assert pool.status("vit").deadline == math.inf
        pool.set_devices("vit", 0)
        assert pool.status("vit").share == 0.0
        pool.set_devices("vit", None)
        pool.pause("vit")
        assert pool.status("vit").paused
        pool.resume("vit")
        assert not pool.status("vit").paused
        job = pool.job("vit")
        job.cancel()
        result = job.result(timeout=60.0)
        assert (result.verdict, result.best_model) == (Verdict.CANCELLED, "")
        with pytest.raises(JobEndedError):
            pool.cancel("vit")
        assert any("ann" in row.reason for row in pool.reasons("vit") if row.what == "command")
        with pytest.raises(ValueError, match="yesterday"):
            pool.set_deadline("gru", "yesterday")
        with pytest.raises(ValueError, match="-1"):
            pool.set_devices("gru", -1)
        with pytest.raises(ValueError, match="devices must be at most the pool's"):
            pool.set_devices("gru", 99)
        assert [row.reason for row in pool.reasons("vit@1")] == [row.reason for row in pool.reasons("vit")]
        with pytest.raises(UnknownJobError, match="no job 'vit' of the number 7"):
            pool.reasons("vit@7")


def test_a_reader_from_afar_changes_nothing(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_TOKEN", "of-reader")
    with Pool.connect(patience=0.1) as pool, pytest.raises(AccessRefusedError, match="steer"):
        pool.cancel("vit")
    monkeypatch.setenv("LIGHTNING_CORE_TOKEN", "lct_wr0ng")
    with Pool.connect(patience=5.0) as pool, pytest.raises(AccessRefusedError, match="revoked") as refused:
        pool.jobs()
    assert "wr0ng" not in str(refused.value)


def test_a_bundle_is_submitted_from_afar(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "bundle.yaml"
    (tmp_path / "model.yaml").write_text(
        "model: {class_path: lightning.pytorch.demos.boring_classes.BoringModel, init_args: {}}\n"
        "trainer: {max_epochs: 1, gradient_clip_val: 1.0e-05}\n"
    )
    path.write_text("jobs:\n  b: {config: model.yaml, deadline: 10m, target: {batches: 20}}\n")
    with Pool.connect(patience=0.1) as pool:
        assert [job.name for job in pool.submit(path)] == ["b"]
        told = pool.status("b")
        assert (told.owner, told.deadline - told.submitted_at) == ("ann", 600.0)
        spec = json.loads((home_of(page.web_app.folder, "b") / "spec.json").read_text())
        assert spec["config"]["trainer"]["gradient_clip_val"] == 1e-05
        with pytest.raises(ValueError, match="taken"):
            pool.submit(path)
        path.write_text("jobs:\n  c: {config: model.yaml, deadline: -5, target: {batches: 20}}\n")
        with pytest.raises(BundleError, match=r"bundle.yaml:2:"):
            pool.submit(path)
        path.write_text("jobs: {c: {config: model.yaml, deadline: 10m, devices: 9, target: {batches: 20}}}\n")
        with pytest.raises(BundleError, match="devices"):
            pool.submit(path)


def test_without_the_right_no_bundle_is_taken(page: Page, tmp_path: Path) -> None:
    page.people[TOKEN] = Person("ann", frozenset({Right.STEER_OWN}))
    (tmp_path / "bundle.yaml").write_text(BUNDLE)
    with Pool.connect(patience=0.1) as pool, pytest.raises(AccessRefusedError, match="submit"):
        pool.submit(tmp_path / "bundle.yaml")


def test_the_end_of_a_log_is_shown_and_not_followed(page: Page) -> None:
    home = home_of(page.web_app.folder, "vit")
    home.mkdir(parents=True)
    (home / "log.txt").write_text("one\ntwo\nthree\n")
    with Pool.connect(patience=0.1) as pool:
        assert list(pool.logs("vit", last=2)) == ["two", "three"]
        with pytest.raises(NotOnThisMachineError, match="own machine"):
            pool.logs("vit", follow=True)
        with pytest.raises(NotOnThisMachineError, match="one person"):
            pool.acting_for(account("eve"))
        with pytest.raises(NotOnThisMachineError, match="PartEvent"):
            pool.client.event(PartEvent("edge_cloud.plan_given", {}))
    with pytest.raises(PoolUnavailableError, match="cannot be joined"):
        connect()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["status"], "vit"),
        (["status", "--json"], '"name": "gru"'),
        (["why", "vit"], "submitted"),
        (["deadline", "vit", "2h"], "its deadline is"),
        (["devices", "vit", "1"], "trains on 1 device"),
        (["pause", "vit"], "paused"),
        (["cancel", "vit"], "cancelled"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_work_from_afar(
    page: Page, capsys: pytest.CaptureFixture[str], command: list[str], words: str
) -> None:
    assert main(command) == 0
    told = capsys.readouterr()
    assert words in told.out
    assert TOKEN not in told.out + told.err


def test_what_needs_the_pools_files_says_so(page: Page, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bundle.yaml").write_text(BUNDLE)
    assert main(["run", str(tmp_path / "bundle.yaml")]) == 2
    assert "submit" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:s3cret@pool.example.org", "https://pool.example.org/?token=s3cret", "https://pool.example.org/s3cret",
        "https://", "http://127.0.0.1:s3cret", "https://pool.example.org#s3cret",
    ],
)  # fmt: skip
def test_an_address_holds_nothing_else_and_is_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="address of a pool must be") as wrong:
        Pool.connect(url, token="x")
    assert "s3cret" not in str(wrong.value)


def test_another_machine_is_not_spoken_to_without_tls() -> None:
    for url in ("http://pool.example.org", "http://10.0.0.1:8710", "http://127.0.0.1.example.org"):
        with pytest.raises(ValueError, match="without TLS"):
            Pool.connect(url, token=TOKEN)
        Pool.connect(url, token=TOKEN, allow_http=True).close()
    for url in ("http://127.0.0.1:1", "http://localhost:1/", "http://[::1]:1", "https://pool.example.org"):
        Pool.connect(url, token=TOKEN).close()


@pytest.mark.parametrize("token", ["", "s3cret\r\nHost: evil", "s3 cret", "s3crét"])
def test_a_token_that_is_none_is_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="token") as wrong:
        Pool.connect("http://127.0.0.1:1", token=token)
    assert "s3" not in str(wrong.value)


class _Stranger(http.server.BaseHTTPRequestHandler):
    """A server that is no pool; it notes what it was sent."""

    status, headers_sent, content = 200, dict[str, str](), b""
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(self.status)
        for name, value in {**self.headers_sent, "Content-Length": str(len(self.content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stranger(
    status: int, content: bytes, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Serve what is no pool; give its address, and the paths that it is asked for."""
    seen: list[str] = []
    more = {"status": status, "content": content, "headers_sent": headers or {}, "seen": seen}
    server = http.server.HTTPServer(("127.0.0.1", 0), type("Handler", (_Stranger,), more))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        base = "http://127.0.0.1" if context is None else "https://localhost"
        yield f"{base}:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_redirect_is_not_followed() -> None:
    with stranger(200, b"{}") as (elsewhere, seen):
        with (
            stranger(307, b"", {"Location": f"{elsewhere}/api/v1/jobs"}) as (url, _),
            Pool.connect(url, token=TOKEN, patience=5.0) as pool,
            pytest.raises(PoolUnavailableError, match="not followed"),
        ):
            pool.jobs()
        assert seen == []


@pytest.mark.parametrize(
    ("status", "content"),
    [(200, b"<html>"), (200, b"[]"), (200, b"{}"), (404, b"not found"), (500, b'{"error": 1}'), (200, b"[" * 10**5)],
)
def test_what_is_no_pool_is_said_and_not_believed(status: int, content: bytes) -> None:
    with (
        stranger(status, content) as (url, _),
        Pool.connect(url, token=TOKEN, patience=0.0) as pool,
        pytest.raises(ConnectionError) as wrong,
    ):
        pool.jobs()
    assert url in str(wrong.value)
    assert TOKEN not in str(wrong.value)


def test_a_certificate_that_the_system_does_not_trust_is_refused_at_once(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [debian("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
               "-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with stranger(200, b"{}", context=context) as (url, seen):
        with Pool.connect(url, token=TOKEN, patience=60.0) as pool, pytest.raises(PoolUnavailableError, match="cert"):
            pool.jobs()
        assert seen == []


def test_a_connection_that_the_server_has_closed_is_made_again(page: Page) -> None:
    with Pool.connect(patience=0.0) as pool:
        assert pool.status("vit")
        client: Any = pool.client
        client._api._connection.sock.shutdown(2)
        assert pool.status("vit")
        pool.pause("vit")


def test_a_server_that_is_gone_is_said() -> None:
    with stranger(200, b"{}") as (url, _):
        pass
    with Pool.connect(url, token=TOKEN, patience=0.0) as pool, pytest.raises(ConnectionError, match="does not answer"):
        pool.jobs()
