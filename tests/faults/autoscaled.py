"""Spot and on-demand nodes by Ray's autoscaler, on Ray's own simulated cloud, whose machines are raylets.

Run as ``python -m tests.faults.autoscaled FOLDER``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from lightning_core.cloud.autoscaler_provisioner import AutoscalerProvisioner
from lightning_core.cloud.conformance import check_provisioner
from lightning_core.cloud.provisioner import MARKET_LABEL, count_nodes
from lightning_core.cloud.ray_cluster import join_ray
from lightning_core.cloud.simulated_cloud import HEALTH, MEMORY
from lightning_core.cluster.cluster import Cluster
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.node.signals import descendants, kill_all
from lightning_core.worker.process_group import free_port

HEAD = "f" * 51 + "00000"
# Known to Ray as "fake_multinode", whose defaults its package lacks.
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
PATIENCE = 90.0


def config(gcs: str) -> dict[str, Any]:
    """Return the config of a cloud with machines of both kinds, each with one device."""
    types: dict[str, Any] = {
        kind: {
            "resources": {"CPU": 1, "device": 1, "object_store_memory": MEMORY}, "labels": {MARKET_LABEL: kind},
            "node_config": {}, "min_workers": 0, "max_workers": 3,
        }
        for kind in ("spot", "on-demand")
    }  # fmt: skip
    types["ray.head.default"] = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "made-up", "max_workers": 6, "idle_timeout_minutes": 0.1, "head_node_type": "ray.head.default",
        "auth": {}, "cluster_synced_files": [],
        "setup_commands": [], "head_setup_commands": [], "worker_setup_commands": [],
        "provider": {
            "type": "external", "module": PROVIDER, "launch_multiple": True, "head_node_id": HEAD, "gcs_address": gcs,
            "disable_node_updaters": True, "disable_launch_config_check": True,
        },
        "available_node_types": types,
    }  # fmt: skip


@contextmanager
def made_up_cloud(folder: Path) -> Iterator[str]:
    """Start a head with an autoscaler; yield its address."""
    gcs, file = f"127.0.0.1:{free_port()}", folder / "autoscaler.json"
    file.write_text(json.dumps(config(gcs)))
    with tempfile.TemporaryDirectory(prefix="lc-", ignore_cleanup_errors=True) as own:
        os.environ |= HEALTH | {
            "RAY_TMPDIR": own, "RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD, "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }  # fmt: skip
        ray_ = str(Path(sys.executable).with_name("ray"))
        words = [ray_, "start", "--head", "--block", f"--autoscaling-config={file}", "--num-cpus=1",
                 f"--port={gcs.rpartition(':')[2]}", "--node-ip-address=127.0.0.1", f"--temp-dir={own}/ray",
                 "--include-dashboard=false", f"--object-store-memory={MEMORY}"]  # fmt: skip
        head = subprocess.Popen(words, stdout=(folder / "head.log").open("w"), stderr=subprocess.STDOUT)
        for name in ("RAY_OVERRIDE_NODE_ID_FOR_TESTING", "RAY_CLOUD_INSTANCE_ID"):
            del os.environ[name]
        try:
            wait_for(lambda: "Ray runtime started" in (folder / "head.log").read_text())
            yield gcs
        finally:
            ray.shutdown()
            mine = descendants()
            head.send_signal(signal.SIGKILL)
            kill_all(mine)


def wait_for(true: Callable[[], bool]) -> float:
    """Wait for a condition; return the seconds that it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.2)
    return time.monotonic() - began


def alive() -> int:
    """Return the nodes with a device, including those that are being removed."""
    listed: Any = ray.nodes
    return sum(node["Alive"] and node["Resources"].get("device", 0) >= 1 for node in listed())


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    with made_up_cloud(folder) as address:
        join_ray(address)
        cloud = AutoscalerProvisioner("device", leave=20.0)
        cloud.scale_to(NodeCounts(0, 1))
        found["came"] = wait_for(lambda: count_nodes() == NodeCounts(0, 1))
        with Cluster(4, devices=4, min_devices=1) as pool:
            # The pool has room for four, and waits for none of them.
            time.sleep(8)
            found["with room for four"] = alive()
            cloud.scale_to(NodeCounts(2, 1))
            found["more"] = wait_for(lambda: count_nodes() == NodeCounts(2, 1) and pool.warm_devices() == 3)
            cloud.scale_to(NodeCounts(1, 0))
            found["fewer"] = wait_for(lambda: count_nodes() == NodeCounts(1, 0) and pool.warm_devices() == 1)
            found["given back"] = wait_for(lambda: alive() == 1)
            time.sleep(8)
            found["at last"] = list(count_nodes())
        cloud.close()
        wait_for(lambda: alive() == 0)
        check_provisioner(lambda: AutoscalerProvisioner("device", leave=2.0), count_nodes, PATIENCE)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
