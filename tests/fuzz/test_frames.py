"""Frames to the pool's server: one answer in JSON for each line, or a closed connection; the server goes on.

The pool is one for all values, as in life. In the end its journal replays to the state that it is in.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from lightning_core.server import connections
from lightning_core.server.clients.socket_client import PROTOCOL, SocketClient
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.fuzz.fuzzing import Target, fuzz, fuzz_for_long
from tests.server.test_client import GARBAGE, GOOD, event, request, spec
from tests.socket_servers import Pool

Frames = list[bytes]

# Frames that once had no answer, stopped the loop, or were answered with what is no JSON.
FOUND: list[Frames] = [
    [b'{"id":1e999,"protocol":5,"call":"about","args":{}}\n'],
    [b'{"id":1,"protocol":5,"call":"about","args":' + b"[" * 900 + b"]" * 900 + b"}\n"],
    [event(kind="worker_exited", job="a", incarnation=1, detail="\ud800" * 9000)],
    [request("wait", job="a", version=-(2**53), timeout=-1)],
    *([line] for line, _ in GARBAGE.values()),
]

NAMES = st.sampled_from(["a", "b", "stranger", "", "../x", "x" * 100, "\ud800", "a\n", "CON"])
NUMBERS = st.one_of(
    st.integers(-2, 20), st.sampled_from([2**53, -(2**53), 2**63, 10**400, 1e308, -1e-308, 1e999, float("nan"), 0.5])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, NAMES, st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)
KINDS = ("report", "worker_exited", "cancel", "pause", "resume", "set_deadline", "set_devices", "set_location",
         "set_terms", "close", "tick", "launch_timed_out", "selector_feedback",
         "earlier_runs", "earlier_feedback")  # fmt: skip
CALLS = ("join", "event", "wait", "job_forecast", "status", "prepare", "launch", "job", "about", "sudo")


@st.composite
def changed(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """A mapping with one value or another changed, left out or added."""
    made = dict(body)
    for key in draw(st.lists(st.sampled_from([*body, "more"]), max_size=3)):
        if draw(st.booleans()):
            made[key] = draw(VALUES)
        else:
            made.pop(key, None)
    return made


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    script = spec("a")["job"] | {"can": ["hold", "time_slice"]}
    told = GOOD | {"kind": draw(st.sampled_from(KINDS)), "job": draw(NAMES), "cells": [[1, 5, 0.5]]}
    if told["kind"] != "report" and draw(st.booleans()):
        told = {"kind": told["kind"], "job": told["job"]}
    body = {
        "job": draw(st.one_of(NAMES, changed(script))), "device": "cpu",
        "incarnation": draw(st.sampled_from([None, 1])),
        "event": json.dumps(draw(changed(told))), "version": 0, "timeout": 0.01, "after": 0,
        "specs": [draw(changed(spec(f"{draw(NAMES)}")))],
    }  # fmt: skip
    return draw(changed(body))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A request with an error or two, in its values or in its bytes."""
    body = {"id": draw(st.one_of(st.just(1), VALUES)), "protocol": PROTOCOL, "call": draw(st.sampled_from(CALLS)),
            "args": draw(arguments())}  # fmt: skip
    line = bytearray(json.dumps(draw(changed(body))).encode())
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(line) - 1), st.integers(0, 255)), max_size=2)):
        line[at] = byte
    return bytes(line).replace(b"\n", b" ") + b"\n"


def nested(opening: bytes, depth: int, closing: bytes) -> bytes:
    return b'{"id":1,"protocol":5,"call":"launch","args":' + opening * depth + b"1" + closing * depth + b"}\n"


FRAMES = st.lists(
    st.one_of(
        mutated(),
        st.binary(max_size=200).map(lambda raw: raw + b"\n"),
        st.builds(
            nested, st.sampled_from([b"[", b'{"a":', b"[[],"]), st.integers(1, 3000), st.sampled_from([b"]", b"}"])
        ),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@contextmanager
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A pool, and the target that sends it frames, in two pieces each, on two connections in turn."""
    monkeypatch.setattr(connections, "CALLS_PER_SECOND", 1e9)  # the time would pass with waiting
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        pool = Pool(tmp_path / "pool", Path(folder) / "socket")
        honest = SocketClient(pool.path)
        honest.launch([spec("b")])

        def target(frames: Frames) -> None:
            with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
                for connection in (one, other):
                    connection.settimeout(20)
                    connection.connect(str(pool.path))
                exchange(one, other, frames)
            began = time.monotonic()
            assert honest.about()["devices"] == ["cpu0"]
            assert honest.status()[0] >= 0
            assert time.monotonic() - began < 60

        yield target
        honest.close()
        alive = pool.do(pool.actor.status())[1]
        pool.close()
    with Journal.open(tmp_path / "pool" / "journal.db") as journal:
        replayed = replay(journal)
        assert replayed.digest == journal.digest
    assert [status.name for status in replayed.scheduler.status()] == [status.name for status in alive]


def exchange(one: socket.socket, other: socket.socket, frames: Frames) -> None:
    """Send each frame, with a part of it on the other connection in between; read an answer for each line."""
    with one.makefile("rb") as answers:
        for frame in frames:
            half = len(frame) // 2
            try:
                one.sendall(frame[:half])
                other.sendall(frame[:half].replace(b"\n", b" "))
                one.sendall(frame[half:])
                for _ in range(frame.count(b"\n")):
                    if not (line := answers.readline()):
                        return  # it has closed the connection
                    check_answer(line)
            except (BrokenPipeError, ConnectionResetError):
                return


def check_answer(line: bytes) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON: {line!r}")

    answer = json.loads(line, parse_constant=refuse)
    assert answer["id"] is None or isinstance(answer["id"], int | str)
    assert len({"value", "refused", "failed"} & answer.keys()) == 1
    assert "Traceback" not in answer.get("refused", "")
    # Only what the pool has to say is a failure: that a job is unknown, or that its reporter is another.
    assert not answer.get("failed", "").startswith(("TypeError", "KeyError", "AttributeError", "UnicodeEncodeError"))


def test_every_frame_is_answered_or_its_connection_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as target:
        fuzz(target, FRAMES, number=60, found=FOUND)


@pytest.mark.nightly
def test_frames_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as target:
        fuzz_for_long(target, FRAMES)
