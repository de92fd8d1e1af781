"""A simulated cloud: a Ray cluster whose nodes are processes of this machine."""

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
# A lost node is detected after a second or two instead of fifteen.
HEALTH = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
}


def make_token() -> None:
    """Set a new token for the Ray that this process will start; does nothing once Ray has been imported."""
    if "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def local_machines() -> Iterator[Any]:
    """Yield a ``ray.cluster_utils.Cluster`` that this process has joined, with a head without devices.

    It ends with the block, or with this process however that ends, and so do all its children.

    Raises:
        RuntimeError: If Ray was imported before, without a token.
    """
    make_token()
    import ray
    from ray.cluster_utils import Cluster as Machines

    from lightning_core.cluster.ray_cluster import has_token, join_ray
    from lightning_core.node.orphan_guard import ended_with_us
    from lightning_core.node.signals import protected_from_ray
    from lightning_core.server.ray_settings import PRIVATE_RAY

    if not has_token():
        raise RuntimeError("Ray was imported without a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before that")
    own = tempfile.mkdtemp(prefix="lc-")
    # Ray notes the newest cluster of a machine there; other processes must not find this one.
    os.environ |= PRIVATE_RAY | HEALTH | {"RAY_TMPDIR": own}
    head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": f"{own}/ray", "object_store_memory": MEMORY}
    try:
        # Nodes may be added in threads, which cannot set signal handlers.
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
