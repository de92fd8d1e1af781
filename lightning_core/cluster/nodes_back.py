"""Gives the nodes of a pool back through the actor that brings them."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

import ray
from ray.exceptions import RayError

from lightning_core.server.ray_settings import Actor

log = logging.getLogger(__name__)

# Seconds that giving all nodes back may take, unless their provisioner has more patience; of an answer beyond that; and
# between two requests.
GIVE_BACK_TIMEOUT, REPLY_TIMEOUT, AWAY_PAUSE = 70.0, 10.0, 0.5


def give_nodes_back(provisioner: Actor) -> bool:
    """Have a provisioner return all nodes, for good; the request is repeated while it restarts.

    Returns:
        Whether no node is there any more; False if that is not known.
    """
    began, patience = time.monotonic(), GIVE_BACK_TIMEOUT
    while (left := began + patience - time.monotonic()) > 0:
        try:
            patience = max(patience, ray.get(provisioner.patience.remote(), timeout=left) + REPLY_TIMEOUT)
            left = began + patience - time.monotonic()
            return bool(ray.get(provisioner.give_back.remote(), timeout=left))
        except RayError as error:
            log.warning("the provisioner does not answer: %s", " ".join(str(error).split()))
            time.sleep(AWAY_PAUSE)
    return False


def still_billed(provisioner: Actor) -> str:
    """Return the warning that nodes were not given back, with their names if the provisioner knows them."""
    names: list[str] = []
    with suppress(RayError):
        names = ray.get(provisioner.remaining.remote(), timeout=REPLY_TIMEOUT)
    which = f": {', '.join(names)}" if names else ""
    return f"nodes may still be running and billed; check your cloud console{which}"
