"""A Ray cluster whose machines are processes of this one: to see how nodes come and go where there are none to rent."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MEMORY = 80 * 2**20
# A node that is gone is known after a second or two, not after a quarter of a minute.
HEALTH = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
}


def make_token() -> None:
    """A token of this process's own, for a Ray that it is going to start; none once Ray has been imported."""
    if "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def local_machines() -> Iterator[Any]:
    """A head without devices that this process has joined, as a ``ray.cluster_utils.Cluster``; it ends with the block.

    And with this process, however that ends, and so does whatever it starts meanwhile.

    Raises:
        RuntimeError: if Ray was imported before, without a token: it looks for one only then.
    """
    make_token()
    import ray
    from ray.cluster_utils import Cluster as Machines

    from lightning_core.cloud.ray_cluster import has_token, join_ray
    from lightning_core.node.orphan_guard import ended_with_us
    from lightning_core.node.signals import protected_from_ray
    from lightning_core.server.ray_settings import NICE

    if not has_token():
        raise RuntimeError("Ray was imported without a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before that")
    own = tempfile.mkdtemp(prefix="lc-")
    # Where Ray notes which cluster of this machine is the newest: this one is nobody else's.
    os.environ |= NICE | HEALTH | {"RAY_TMPDIR": own}
    head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": f"{own}/ray", "object_store_memory": MEMORY}
    try:
        # Nodes may come in threads, which can set no signal handlers.
        with ended_with_us("RAY_TMPDIR", own):
            with protected_from_ray():
                machines: Any = Machines(initialize_head=True, shutdown_at_exit=False, head_node_args=head)
            try:
                join_ray(machines.address)
                yield machines
            finally:
                ray.shutdown()
                machines.shutdown()
    finally:
        shutil.rmtree(own, ignore_errors=True)
