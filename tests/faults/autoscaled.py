"""Spot and on-demand nodes by Ray's autoscaler, on Ray's own simulated cloud, whose machines are raylets.

Run as ``python -m tests.faults.autoscaled FOLDER [STORY]``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from lightning_core.cluster.cluster import Cluster
from lightning_core.cluster.local_machines import HEALTH, MEMORY
from lightning_core.cluster.ray_cluster import join_ray
from lightning_core.cluster.ray_nodes import MARKET_LABEL, POOL_LABEL, list_nodes
from lightning_core.node.signals import descendants, kill_all
from lightning_core.parts.market.cloud.autoscaler_provisioner import AutoscalerProvisioner
from lightning_core.parts.market.cloud.provisioner import MARKET_TYPES, count_nodes
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.provisioner_conformance import check_provisioner
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.worker.process_group import free_port
from tests.conftest import ROOT

HEAD = "f" * 51 + "00000"
# Known to Ray as "fake_multinode", whose defaults its package lacks.
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
PATIENCE = 120.0
# Node types of machines of both kinds, and of one kind for each of two pools.
BOTH = {kind: {MARKET_LABEL: kind} for kind in MARKET_TYPES}
OWN = {f"spot-of-{pool}": {MARKET_LABEL: "spot", POOL_LABEL: pool} for pool in ("one", "other")}


def config(gcs: str, labels: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the config of a cloud whose machines have one device each, with the labels of each type."""
    types: dict[str, Any] = {
        kind: {
            "resources": {"CPU": 1, "device": 1, "object_store_memory": MEMORY}, "labels": dict(several),
            "node_config": {}, "min_workers": 0, "max_workers": 3,
        }
        for kind, several in labels.items()
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
def made_up_cloud(folder: Path, labels: Mapping[str, Mapping[str, str]] = BOTH) -> Iterator[str]:
    """Start a head with an autoscaler; yield its address."""
    gcs, file = f"127.0.0.1:{free_port()}", folder / "autoscaler.json"
    file.write_text(json.dumps(config(gcs, labels)))
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


def one(folder: Path, found: dict[str, Any]) -> None:
    """The provisioner itself, with a pool that has more worker slots than nodes are requested."""
    with made_up_cloud(folder) as address:
        join_ray(address)
        cloud = AutoscalerProvisioner("device", leave=20.0)
        cloud.scale_to(NodeCounts(0, 1))
        found["came"] = wait_for(lambda: count_nodes() == NodeCounts(0, 1))
        with Cluster(4, devices=4, min_devices=1) as pool:

            def warm() -> int:
                return int(ray.get(pool.pool_manager.warm.remote()))

            # The pool has room for four, and waits for none of them.
            time.sleep(8)
            found["with room for four"] = alive()
            cloud.scale_to(NodeCounts(2, 1))
            found["more"] = wait_for(lambda: count_nodes() == NodeCounts(2, 1) and warm() == 3)
            cloud.scale_to(NodeCounts(1, 0))
            found["fewer"] = wait_for(lambda: count_nodes() == NodeCounts(1, 0) and warm() == 1)
            found["given back"] = wait_for(lambda: alive() == 1)
            time.sleep(8)
            found["at last"] = list(count_nodes())
        cloud.close()
        wait_for(lambda: alive() == 0)
        check_provisioner(lambda: AutoscalerProvisioner("device", leave=2.0), count_nodes, PATIENCE)


def two(folder: Path, found: dict[str, Any]) -> None:
    """Two pools on one cluster, each with node types of its own."""
    with made_up_cloud(folder, OWN) as address:
        join_ray(address)
        first, second = (
            AutoscalerProvisioner("device", leave=2.0, pool=pool, words=["labelled"]) for pool in ("one", "other")
        )

        def there() -> list[int]:
            return [len(list_nodes("device", pool)) for pool in ("one", "other")]

        first.scale_to(NodeCounts(1, 0))
        second.scale_to(NodeCounts(2, 0))
        found["both came"] = wait_for(lambda: there() == [1, 2])
        first.scale_to(NodeCounts(2, 0))
        found["one more"] = wait_for(lambda: there() == [2, 2])
        second.close()
        found["one gave back"] = wait_for(lambda: there() == [2, 0] and alive() == 2)
        time.sleep(8)
        found["at last"] = there()
        first.close()
        wait_for(lambda: alive() == 0)


def actors() -> dict[str, Any]:
    """Return the scheduler and the provisioner of the only pool."""
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    [provisioner] = [name for name in names if name.endswith("-provisioner")]
    pool = provisioner.removesuffix("-provisioner")
    others = ("-provisioner", "-manager")
    [scheduler] = [
        name for name in names
        if name.startswith(f"{pool}-") and name.count("-") == 2 and not name.endswith(others)
    ]  # fmt: skip
    return {
        "provisioner": ray.get_actor(provisioner, namespace=NAMESPACE),
        "scheduler": ray.get_actor(scheduler, namespace=NAMESPACE),
    }


def killed(folder: Path, found: dict[str, Any]) -> None:
    """The command of a run is killed, then its scheduler and its provisioner: the jobs end, and no node stays."""
    trace, bundle = folder / "market.csv", folder / "bundle.yaml"
    trace.write_text("available,price\n" + "2,0.3\n" * 200)
    job = {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(folder), "pause": 0.05},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False}, "deadline": "30m", "target": {"batches": 600}, "save_every": "2s",
    }  # fmt: skip
    market = {"trace": str(trace), "interval": "10s", "policies": ["max-spot"]}
    bundle.write_text(json.dumps({"period": "0.5s", "market": market, "jobs": {"a": job}}))
    with made_up_cloud(folder) as address:
        words = [sys.executable, "-m", "lightning_core.cli.main", "run", str(bundle), "--ray", address]
        words += ["--run-dir", str(folder / "run")]
        with (folder / "run.log").open("w") as log:
            command = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
        join_ray(address)

        def batches() -> int:
            try:
                _, jobs = ray.get(actors()["scheduler"].status.remote(), timeout=5.0)
                return int(jobs[0].batches) if jobs else 0
            except (RayError, ValueError):
                return 0

        def holds(least: int) -> bool:
            assert command.poll() in (None, -signal.SIGKILL), (folder / "run.log").read_text()
            return batches() >= least

        found["trained"] = wait_for(lambda: holds(30))
        command.kill()
        command.wait()
        wait_for(lambda: holds(60))
        for name, least in (("provisioner", 90), ("scheduler", 120)):
            os.kill(ray.get(actors()[name].pid.remote()), signal.SIGKILL)
            found[f"after the {name}"] = wait_for(lambda least=least: holds(least))  # type: ignore[misc]
        found["ended"] = wait_for(lambda: holds(600))
        found["given back"] = wait_for(lambda: alive() == 0)
        with suppress(RayError):
            _, jobs = ray.get(actors()["scheduler"].status.remote(), timeout=5.0)
            found["lost"] = jobs[0].lost_batches


def main(folder: Path, story: str = "one") -> None:
    found: dict[str, Any] = {}
    {"one": one, "two": two, "killed": killed}[story](folder, found)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
