"""The command ``mcp``: over its standard streams in a process of its own, and over HTTP with tokens."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import StdioServerParameters

from lightning_core.cli import main
from lightning_core.parts.assistants import mcp_command
from lightning_core.parts.assistants.mcp_command import PORT, check_package
from lightning_core.parts.assistants.mcp_server import AssistantServer
from lightning_core.parts.assistants.pool_access import PoolAccess
from lightning_core.parts.assistants.tools import Permit
from lightning_core.parts.owners.tokens import Tokens
from lightning_core.pool import Pool
from lightning_core.server.access.people import Person, rights_of
from tests.conftest import ROOT
from tests.parts.assistants.assistants import (
    Assistant,
    Refused,
    ask,
    ask_over_http,
    call,
    loss_job,
    over_http,
    pool_with,
)
from tests.parts.assistants.test_tools import CHANGES, READS
from tests.parts.web.serving import served as served_page
from tests.socket_servers import Pool as Server
from tests.waiting import PATIENCE

HANDSHAKE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "curl", "version": "8"}},
}  # fmt: skip


def command(folder: Path, *options: str, **environment: str) -> StdioServerParameters:
    """Return the command of a user, in whose environment is nothing but what is given."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "lightning_core", "mcp", "--pool", str(folder), *options],
        env={"PATH": os.environ["PATH"], **environment},
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- standard streams


def test_an_assistant_reads_over_the_standard_streams() -> None:
    with pool_with(loss_job("vit")) as (_, folder):

        async def story(made: Assistant) -> None:
            assert await made.names() == READS
            assert (await made.call("list_jobs"))["jobs"][0]["name"] == "vit"
            head = (folder / "head.json").read_text()
            (folder / "head.json").write_text(json.dumps(json.loads(head) | {"started": 0}))
            with pytest.raises(Refused, match="its pool is down"):
                await made.call("list_jobs")
            (folder / "head.json").write_text(head)
            assert (await made.call("get_job", job="vit"))["job"]["name"] == "vit"

        ask(command(folder), story)


@pytest.mark.nightly
def test_an_assistant_changes_over_the_standard_streams_by_a_handshake_of_old() -> None:
    """With the rights of a token in its environment; `why` says who asked."""
    with pool_with(loss_job("vit", owner="ann"), loss_job("gru", owner="bob")) as (_, folder):
        token = Tokens(folder / "pool").make("ann", rights_of(["see", "steer-own"]))

        async def story(made: Assistant) -> None:
            assert await made.names() == [*READS, *CHANGES]
            await made.call("set_deadline", job="vit", deadline="45m")
            with pytest.raises(Refused, match="gru belongs to bob; to change it, ann needs the right steer-all"):
                await made.call("cancel_job", job="gru")

        served = command(folder, "--allow-changes", LIGHTNING_CORE_TOKEN=token)
        ask(served, story, name="Claude Code", mode="legacy")
        [told] = [row.reason for row in Pool.connect(str(folder)).reasons("vit") if row.what == "command"]
        assert told.startswith("ann through mcp (Claude-Code): deadline 10m to 45m")


def test_what_is_no_message_ends_nothing_and_a_signal_ends_the_process(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightning_core", "mcp", "--pool", str(tmp_path / "none")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("", "{", "\x00", "[]", '"x"', '{"jsonrpc": "2.0", "id": 1}', "[" * 10**4, json.dumps(HANDSHAKE)):
            process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answers = iter(process.stdout.readline, "")
        answer = next(found for found in map(json.loads, answers) if "result" in found)
        assert answer["result"]["serverInfo"]["name"] == "lightning-core"
        assert answer["result"]["capabilities"]["tools"] == {"listChanged": False}
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


# ---------------------------------------------------------------------------------------------------- HTTP


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Path, str]]:
    """A pool of two owners, the folder of its tokens, and the address at which its tools are served."""
    with (
        pool_with(loss_job("of-ann", owner="ann"), loss_job("of-bob", owner="bob")) as (server, folder),
        over_http(folder, folder / "pool", Permit.CHANGES) as address,
    ):
        yield server, folder / "pool", address


def post(address: str, body: Any = HANDSHAKE, **headers: str) -> tuple[int, str]:
    """Return status and content of the answer to a request that a program makes by itself."""
    given = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
    try:
        connection.request("POST", "/mcp", body if isinstance(body, bytes) else json.dumps(body).encode(), given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_each_request_is_made_in_the_name_of_its_token(served: tuple[Server, Path, str], mode: str) -> None:
    server, folder, address = served
    ann = Tokens(folder).make("ann", rights_of(["steer-own"]))
    bob = Tokens(folder).make("bob", rights_of(["see"]))

    async def of_ann(made: Assistant) -> None:
        assert [job["name"] for job in (await made.call("list_jobs"))["jobs"]] == ["of-ann"]
        await made.call("pause_job", job="of-ann")
        with pytest.raises(Refused, match="no job 'of-bob'"):
            await made.call("explain_job", job="of-bob")

    async def of_bob(made: Assistant) -> None:
        assert {job["name"] for job in (await made.call("list_jobs"))["jobs"]} == {"of-ann", "of-bob"}
        with pytest.raises(Refused, match="of-bob belongs to bob; to change it, bob needs the right steer-own"):
            await made.call("pause_job", job="of-bob")

    ask_over_http(address, ann, of_ann, mode)
    ask_over_http(address, bob, of_bob, mode)
    held = {job.name: str(job.grant_reason) for job in server.do(server.actor.status())[1] if job.paused}
    assert held == {"of-ann": "paused by ann through mcp (claude-code)"}


def test_without_a_token_that_is_valid_nothing_is_said(served: tuple[Server, Path, str]) -> None:
    _, folder, address = served
    token = Tokens(folder).make("eve", rights_of(["see"]))
    assert post(address, Authorization=f"Bearer {token}")[0] == 200
    Tokens(folder).revoke("eve")
    for given in ("", "Bearer", "Bearer ", f"Bearer {token}", f"Basic {token}", token, "Bearer lct_" + "x" * 43,
                  "Bearer " + "x" * 5000):  # fmt: skip
        status, said = post(address, **({"Authorization": given} if given else {}))
        assert status == 401, given
        assert "vit" not in said
        assert token not in said


def test_a_session_is_its_users_alone_and_ends_with_the_token(served: tuple[Server, Path, str]) -> None:
    _, folder, address = served
    tokens = Tokens(folder)
    ann, eve = (tokens.make(name, rights_of(["see"])) for name in ("ann2", "eve2"))
    less = tokens.make("ann2", rights_of([]))
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", json.dumps(HANDSHAKE), headers | {"Authorization": f"Bearer {ann}"})
    answer = connection.getresponse()
    session = answer.headers["mcp-session-id"]
    answer.read()
    connection.close()
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert post(address, listing, Authorization=f"Bearer {ann}", Mcp_Session_Id=session)[0] == 200
    assert post(address, listing, Authorization=f"Bearer {eve}", Mcp_Session_Id=session)[0] == 404
    # Each request has the rights of its own token, not of the one that began the session.
    jobs = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "list_jobs", "arguments": {}}}
    for token, sees in ((ann, True), (less, False), (ann, True)):
        status, said = post(address, jobs, Authorization=f"Bearer {token}", Mcp_Session_Id=session)
        assert (status, "of-bob" in said) == (200, sees)
    tokens.revoke("ann2")
    assert post(address, listing, Authorization=f"Bearer {ann}", Mcp_Session_Id=session)[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content_Type": "text/plain"}, 400),
        ({"Content_Length": "999999999"}, 413),
    ],
)
@pytest.mark.parametrize("version", ["", "2026-07-28"])
def test_requests_that_a_page_of_another_site_could_make_are_refused(
    headers: dict[str, str], status: int, version: str, served: tuple[Server, Path, str]
) -> None:
    _, folder, address = served
    token = Tokens(folder).make("ann", rights_of(["see"]))
    more = {"Mcp_Protocol_Version": version} if version else {}
    assert post(address, Authorization=f"Bearer {token}", **more, **headers)[0] in (
        status,
        400 if status == 400 else status,
    )


def test_bodies_that_are_no_messages_are_refused_and_the_next_one_is_answered(served: tuple[Server, Path, str]) -> None:
    _, folder, address = served
    token = Tokens(folder).make("ann", rights_of(["see"]))
    for body in (b"", b"{", b"\xff", b"[" * 10**5, b"x" * (2**21 + 1), b'{"jsonrpc": "2.0"}'):
        assert 400 <= post(address, body, Authorization=f"Bearer {token}")[0] < 500
    assert ask_over_http(address, token, lambda made: made.call("list_jobs"))["left_out"] == 0


def test_only_this_machine_is_served_and_a_signal_ends_it(tmp_path: Path) -> None:
    with pool_with(loss_job("vit")) as (_, folder):
        words = [sys.executable, "-m", "lightning_core", "mcp", "--pool", str(folder), "--http", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith(
                f"the pool at {folder}/pool (1 cpu device, edf) is served to assistants at http://127.0.0.1:"
            )
            address = next(word for word in said.split() if word.startswith("http://")).rstrip(";")
            assert post(address)[0] == 401
            token = Tokens(folder / "pool").make("ann", rights_of(["see"]))
            assert ask_over_http(address, token, Assistant.names) == READS
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""


# ---------------------------------------------------------------------------------------------------- the command


def test_options_of_the_command() -> None:
    parser = main.make_parser(with_parts=True)
    read = parser.parse_args(["mcp"])
    assert (read.http, read.allow_changes, read.allow_submit, read.acts) == (None, False, False, False)
    assert parser.parse_args(["mcp", "--http"]).http == PORT
    assert parser.parse_args(["mcp", "--http", "0"]).http == 0


def test_http_needs_a_pool_of_this_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["mcp", "--http", "0"]) == 2
    assert "no pool is up; `lightning-core up` brings one up" in capsys.readouterr().err
    monkeypatch.setenv("LIGHTNING_CORE_TOKEN", "lct_x")
    assert main.main(["mcp", "--http", "0", "--pool", "http://127.0.0.1:9"]) == 2
    said = capsys.readouterr().err
    assert "its tokens are known on its own machine; start `lightning-core mcp --http` there" in said
    with pool_with() as (_, folder), over_http(folder, folder / "pool") as address:
        port = str(urlsplit(address).port)
        assert main.main(["mcp", "--http", port, "--pool", str(folder)]) == 2
        assert f"127.0.0.1, port {port}: Address already in use; name another port" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "is_known"), [("2.1.1", False), ("2.2.0", True), ("2.10", True), ("3.0.0", False)])
def test_a_package_of_another_version_is_refused(number: str, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_command, "version", lambda _: number)
    assert 'mcp = ["mcp>=2.2,<3"]' in (ROOT / "pyproject.toml").read_text()
    if is_known:
        check_package()
    else:
        with pytest.raises(
            ValueError, match=rf"mcp must be at least 2.2 and below 3, got {number}; run pip install -c"
        ):
            check_package()


def test_without_the_package_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightning_core.bundle.problems.find_spec", lambda _: None)
    assert main.main(["mcp"]) == 2
    said = "error: mcp is not installed; run pip install -c constraints.txt '.[mcp]' in the clone\n"
    assert capsys.readouterr().err == said


def test_a_pool_from_afar_is_asked_by_its_token_and_is_told_the_program(tmp_path: Path) -> None:
    """Through the API of its page, which checks the rights and passes the program on."""
    with served_page(tmp_path / "pool") as (page, address):
        page.submit(loss_job("vit", owner="ann"))
        page.people["lct_ann"] = Person("ann", rights_of(["steer-own"]))

        def tools(token: str) -> Any:
            return AssistantServer(PoolAccess(address, token), [Permit.CHANGES]).mcp

        assert call(tools("lct_ann"), "list_jobs")["user"] == "ann (steer-own)"
        call(tools("lct_ann"), "pause_job", job="vit")
        moments = call(tools("lct_ann"), "explain_job", job="vit")["moments"]
        assert "ann through mcp (claude-code): pause" in [moment["reason"] for moment in moments]
        assert call(tools("lct_ann"), "read_curve", job="vit")["metric"] == "loss"
        with pytest.raises(Refused, match="knows no such token"):
            call(tools("lct_eve"), "list_jobs")
        with pytest.raises(Refused, match="asks for a token: set LIGHTNING_CORE_TOKEN"):
            call(tools(""), "list_jobs")
