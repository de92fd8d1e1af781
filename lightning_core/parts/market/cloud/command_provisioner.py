"""A command of the user's as a provisioner."""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
from collections.abc import Sequence

from lightning_core.parts.market.cloud.user_command import UserCommandError, run_command
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes

log = logging.getLogger(__name__)

# Seconds that the command may take.
COMMAND_TIMEOUT = 60.0
# Seconds before a failed command is run again.
RETRY_SECONDS = 5.0
MAX_CLOSE_ATTEMPTS = 3


class CommandProvisioner:
    """Runs a command with the newest request; the environment tells it how many nodes there should be.

    ``LIGHTNING_CORE_SPOT`` and ``LIGHTNING_CORE_ON_DEMAND`` are the numbers of nodes. ``LIGHTNING_CORE_OFFERS`` says
    how many of them are of each offer (:func:`offers_text`; empty for any); their zone and type should be the labels
    ``ray.io/availability-zone`` and ``lightning-core/instance-type``. ``LIGHTNING_CORE_POOL_LABEL`` is the value for
    their label ``lightning-core/pool``: without it a node belongs to every pool of its cluster. The command is run
    again even if the request is the same as the last, because nodes may have gone in between, and after a while if it
    failed. Of several requests that arrive while it runs, only the newest is carried out. It should drain a node (``ray
    drain-node``) before it takes it away, so that the job there can save.

    Args:
        command: The command and its arguments; no shell is involved.
        pool: Name of the pool.

    Raises:
        ValueError: If the command is empty.
    """

    def __init__(self, command: Sequence[str] | str, pool: str = "pool") -> None:
        self._pool = pool
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._command:
            raise ValueError("the command must not be empty")
        self.trouble = ""
        """Reason of the command's last failure; empty if it succeeded."""
        self._wanted, self._places = NodeCounts(), tuple[PlacedNodes, ...]()
        self._condition = threading.Condition()
        self._is_pending = self._closed = False
        self._thread = threading.Thread(target=self._run, name="lightning-core-provision", daemon=True)
        self._thread.start()

    def scale_to(self, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
        with self._condition:
            self._wanted, self._places, self._is_pending = wanted, tuple(places), True
            self._condition.notify()

    def close(self) -> None:
        """Request that there be no nodes; log an error if that fails, because they are still paid for."""
        with self._condition:
            self._wanted, self._places, self._is_pending, self._closed = NodeCounts(), (), True, True
            self._condition.notify()
        self._thread.join((1 + MAX_CLOSE_ATTEMPTS) * (COMMAND_TIMEOUT + RETRY_SECONDS))

    def _run(self) -> None:
        attempts = MAX_CLOSE_ATTEMPTS
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_pending)
                wanted, places, closed, self._is_pending = self._wanted, self._places, self._closed, False
            if self._execute(wanted, places):
                if closed:
                    return
                continue
            if closed and (attempts := attempts - 1) < 1:
                log.error(
                    "%s failed to return the nodes: check by hand whether some are still paid for", self._command[0]
                )
                return
            time.sleep(RETRY_SECONDS)
            with self._condition:
                self._is_pending = True

    def _execute(self, wanted: NodeCounts, places: Sequence[PlacedNodes]) -> bool:
        """Run the command and return whether it succeeded."""
        told = {
            "LIGHTNING_CORE_SPOT": str(wanted.spot), "LIGHTNING_CORE_ON_DEMAND": str(wanted.on_demand),
            "LIGHTNING_CORE_POOL_LABEL": self._pool, "LIGHTNING_CORE_OFFERS": offers_text(places),
        }  # fmt: skip
        try:
            run_command(self._command, COMMAND_TIMEOUT, environment=told)
        except UserCommandError as error:
            self.trouble = f"cannot request {wanted.spot} spot and {wanted.on_demand} on-demand nodes: {error}"
            log.warning("%s", self.trouble)
            return False
        self.trouble = ""
        return True


def offers_text(places: Sequence[PlacedNodes]) -> str:
    """Return how many nodes of each offer there should be, as JSON with a version; empty if they may be anywhere.

    Example::

        >>> offers_text([PlacedNodes("us-east-1a", "p3.2xlarge", 2, 0)])
        '{"version": 2, "offers": [{"zone": "us-east-1a", "type": "p3.2xlarge", "spot": 2, "on_demand": 0}]}'
    """
    return json.dumps({"version": 2, "offers": [place._asdict() for place in places]}) if places else ""
