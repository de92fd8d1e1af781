"""Notifications of changed verdicts, by a command, a webhook, or both; the scheduler never waits for either."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypedDict

from lightning_core.core.answers import Alert, Answer, End, Grant
from lightning_core.core.control import Ask, Note, PartAnswer
from lightning_core.server.webhook import Webhook

log = logging.getLogger(__name__)

# Seconds after which a command is abandoned.
TIMEOUT = 10.0
# Notifications that wait; if there are more, the oldest is lost.
MAX_QUEUED = 1000


class OnVerdict(TypedDict, total=False):
    """A bundle's ``on_verdict`` section."""

    command: Sequence[str]
    webhook: str
    secret_file: str


class Notifier:
    """Passes notifications on, each channel in a thread of its own: a dead webhook delays no command.

    Args:
        on_verdict: ``command``, run without a shell, with ``LIGHTNING_CORE_EVENT``, ``_JOB``, ``_VERDICT`` and
            ``_REASON`` in its environment; ``webhook``, an http(s) address that gets the same as a JSON body by POST,
            signed with the secret in ``secret_file``. The event is ``verdict``; or ``alert``, without a verdict: losses
            are NaN, or no batch comes.
        is_left_out: Function that returns whether the job of a name sends no notifications.
    """

    def __init__(self, on_verdict: Mapping[str, Any], is_left_out: Callable[[str], bool] = lambda job: False) -> None:
        self._is_left_out = is_left_out
        self._ended: dict[str, int] = {}  # version of each job's end
        self._ways = list[_Delivery]()
        if command := on_verdict.get("command"):
            self._ways.append(_Delivery("command", lambda body: _execute(list(command), body)))
        if address := on_verdict.get("webhook"):
            secret = on_verdict.get("secret_file")
            self._ways.append(_Delivery("webhook", Webhook(address, Path(secret) if secret else None).post))

    def tell(self, answers: Sequence[Answer]) -> None:
        """Queue a notification for every verdict and alert among the answers; returns at once."""
        if not self._ways:
            return
        for answer in answers:
            if isinstance(answer, Grant | Ask | Note | PartAnswer) or (
                isinstance(answer, End) and not self._is_new(answer)
            ):
                continue
            if self._is_left_out(answer.job):
                continue
            alert = isinstance(answer, Alert)
            verdict = "" if isinstance(answer, Alert) else str(answer.verdict)
            news = {"event": "alert" if alert else "verdict", "job": answer.job, "verdict": verdict,
                    "reason": str(answer.reason)}  # fmt: skip
            for way in self._ways:
                way.put(news)

    def drain(self, seconds: float) -> None:
        """Return once all has been passed on, or after some seconds."""
        until = time.monotonic() + seconds
        for way in self._ways:
            way.drain(until - time.monotonic())

    def _is_new(self, end: End) -> bool:
        """Return whether an end is new: a report for an ended or unknown job (version 0) gets its end again."""
        if end.version <= self._ended.get(end.job, 0):
            return False
        self._ended[end.job] = end.version
        return True


class _Delivery:
    """Passes notifications on, one after another.

    Args:
        name: Name of the channel, for the log.
        send: Passes one on.
    """

    def __init__(self, name: str, send: Callable[[dict[str, str]], None]) -> None:
        self._name, self._send = name, send
        self._news = deque[dict[str, str]]()
        self._changed = threading.Condition()
        self._is_busy = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, news: dict[str, str]) -> None:
        """Add a notification; if too many wait, the oldest is lost."""
        with self._changed:
            if len(self._news) >= MAX_QUEUED:
                lost = self._news.popleft()
                words = "the %s of on_verdict is too slow: %s: %s was not passed on"
                log.warning(words, self._name, lost["job"], lost["reason"])
            self._news.append(news)
            self._changed.notify_all()

    def drain(self, seconds: float) -> None:
        """Return once all has been passed on, or after some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._news and not self._is_busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._news)
                news, self._is_busy = self._news.popleft(), True
            try:
                self._send(news)
            except (OSError, subprocess.SubprocessError, HTTPException, ValueError) as error:
                log.warning("on_verdict: %s: %s was not passed on: %s", news["job"], news["reason"], error)


def _execute(command: Sequence[str], body: Mapping[str, str]) -> None:
    told = {f"LIGHTNING_CORE_{key.upper()}": value.replace("\0", "") for key, value in body.items()}
    subprocess.run(command, env=os.environ | told, timeout=TIMEOUT, check=True, stdin=subprocess.DEVNULL)
