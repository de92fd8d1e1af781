"""Notifications of changed verdicts, by a command, a webhook, or both; the scheduler never waits for either."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, TypedDict

from lightning_core.core.answers import Alert, Answer, End, Grant
from lightning_core.core.control import Ask, PoolAnswer

log = logging.getLogger(__name__)

# Seconds after which a command or a request is abandoned.
TIMEOUT = 10.0
# Notifications beyond this are dropped.
MAX_QUEUED = 1000


class OnVerdict(TypedDict, total=False):
    """A bundle's ``on_verdict`` section."""

    command: Sequence[str]
    webhook: str


class Notifier:
    """Sends notifications one after another, in a thread of its own.

    Args:
        on_verdict: ``command``, run without a shell, with ``LIGHTNING_CORE_EVENT``, ``_JOB``, ``_VERDICT`` and
            ``_REASON`` in its environment; ``webhook``, an http(s) address that gets the same as a JSON body by POST.
            The event is ``verdict``; or ``alert``, without a verdict: losses are NaN, or no batch comes.
    """

    def __init__(self, on_verdict: Mapping[str, Any]) -> None:
        self._command = list(on_verdict.get("command", ()))
        self._webhook = str(on_verdict.get("webhook", ""))
        self._ended: dict[str, int] = {}  # version of each job's end
        self._news: queue.Queue[dict[str, str]] = queue.Queue(MAX_QUEUED)
        if self._command or self._webhook:
            threading.Thread(target=self._run, name="notifier", daemon=True).start()

    def tell(self, answers: Sequence[Answer]) -> None:
        """Queue a notification for every verdict and alert among the answers; returns at once."""
        if not (self._command or self._webhook):
            return
        for answer in answers:
            if isinstance(answer, Grant | Ask | PoolAnswer) or (isinstance(answer, End) and not self._is_new(answer)):
                continue
            alert = isinstance(answer, Alert)
            verdict = "" if isinstance(answer, Alert) else str(answer.verdict)
            news = {"event": "alert" if alert else "verdict", "job": answer.job, "verdict": verdict,
                    "reason": str(answer.reason)}  # fmt: skip
            try:
                self._news.put_nowait(news)
            except queue.Full:
                log.warning("on_verdict is too slow: %s: %s was not passed on", answer.job, answer.reason)

    def _is_new(self, end: End) -> bool:
        """Return whether an end is new: a report for an ended or unknown job (version 0) gets its end again."""
        if end.version <= self._ended.get(end.job, 0):
            return False
        self._ended[end.job] = end.version
        return True

    def _run(self) -> None:
        while True:
            body = self._news.get()
            for act in (self._execute, self._post):
                try:
                    act(body)
                except (OSError, subprocess.SubprocessError, HTTPException, ValueError) as error:
                    log.warning("on_verdict: %s", error)

    def _execute(self, body: dict[str, str]) -> None:
        if self._command:
            told = {f"LIGHTNING_CORE_{key.upper()}": value.replace("\0", "") for key, value in body.items()}
            subprocess.run(self._command, env=os.environ | told, timeout=TIMEOUT, check=True, stdin=subprocess.DEVNULL)

    def _post(self, body: dict[str, str]) -> None:
        if self._webhook:
            request = urllib.request.Request(
                self._webhook, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT):
                pass
