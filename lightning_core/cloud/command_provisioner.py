"""TODO."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence

from lightning_core.cloud.provisioner import log
from lightning_core.market.online.node_counts import NodeCounts

# How long a command may take, and how soon it is tried again, seconds; how often at the end.
COMMAND_TIMEOUT = 60.0


RETRY_SECONDS = 5.0


MAX_CLOSE_ATTEMPTS = 3


class CommandProvisioner:
    """A command of the user's brings them up: it is run whenever the wish changes, and told by the environment.

    ``LIGHTNING_CORE_SPOT`` and ``LIGHTNING_CORE_ON_DEMAND`` say how many there should be. It is run again with each
    wish, also if that is the same: nodes may have gone meanwhile; and after a while if it failed. A node that it takes
    away it drains first (``ray drain-node``), so that who trains there can save.

    Args:
        words: the command and its arguments; no shell reads them.

    Raises:
        ValueError: if there is no command.
    """

    def __init__(self, words: Sequence[str] | str) -> None:
        self._words = shlex.split(words) if isinstance(words, str) else list(words)
        if not self._words:
            raise ValueError("a command must be named, got none")
        self._wanted: NodeCounts | None = None
        self._news = threading.Condition()
        self._is_news = self._over = False
        self._thread = threading.Thread(target=self._run, name="lightning-core-provision", daemon=True)
        self._thread.start()

    def want(self, wanted: NodeCounts) -> None:
        with self._news:
            self._wanted, self._is_news = wanted, True
            self._news.notify()

    def close(self) -> None:
        """Nodes that are still there when this fails are named in a warning: somebody pays for them."""
        with self._news:
            self._wanted, self._is_news, self._over = NodeCounts(), True, True
            self._news.notify()
        self._thread.join((1 + MAX_CLOSE_ATTEMPTS) * (COMMAND_TIMEOUT + RETRY_SECONDS))

    def _run(self) -> None:
        tries = MAX_CLOSE_ATTEMPTS
        while True:
            with self._news:
                self._news.wait_for(lambda: self._is_news)
                wanted, over, self._is_news = self._wanted, self._over, False
            assert wanted is not None  # somebody has said so
            if self._tell(wanted):
                if over:
                    return
                continue
            if over and (tries := tries - 1) < 1:
                log.error(
                    "%s could not be told that no node is wanted any more: some may still be paid for", self._words[0]
                )
                return
            time.sleep(RETRY_SECONDS)
            with self._news:
                self._is_news = True

    def _tell(self, wanted: NodeCounts) -> bool:
        told = {"LIGHTNING_CORE_SPOT": str(wanted.spot), "LIGHTNING_CORE_ON_DEMAND": str(wanted.on_demand)}
        try:
            # A group of its own: Ctrl-C is meant for the run, which gives its nodes back with this.
            subprocess.run(
                self._words, env=os.environ | told, check=True, timeout=COMMAND_TIMEOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            why = f"exit code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
            if isinstance(error, subprocess.TimeoutExpired):  # its words would name the whole command, maybe with a key
                why = f"no answer within {COMMAND_TIMEOUT:g} s"
            log.warning("%s spot and %s on-demand nodes could not be asked for: %s: %s", *wanted, self._words[0], why)
            return False
        return True
