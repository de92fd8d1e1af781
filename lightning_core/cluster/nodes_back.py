"""Gives the nodes of a pool back through the actor that brings them."""

from __future__ import annotations

import logging
import time

import ray
from ray.exceptions import RayError

from lightning_core.server.ray_settings import Actor

log = logging.getLogger(__name__)

# Seconds that giving all nodes back may take, and seconds between two requests.
GIVE_BACK_TIMEOUT, AWAY_PAUSE = 70.0, 0.5


def give_nodes_back(provisioner: Actor) -> bool:
    """Have a provisioner return all nodes, for good; the request is repeated while it restarts.

    Returns:
        Whether no node is there any more; False if that is not known.
    """
    until = time.monotonic() + GIVE_BACK_TIMEOUT
    while (left := until - time.monotonic()) > 0:
        try:
            return bool(ray.get(provisioner.give_back.remote(), timeout=left))
        except RayError as error:
            log.warning("the provisioner does not answer: %s", " ".join(str(error).split()))
            time.sleep(AWAY_PAUSE)
    return False
