"""A pool over several nodes that are lost. Run as ``python -m tests.faults.nodes FOLDER``, in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.cluster_utils import Cluster as Nodes

from lightning_core.cluster import cluster as clusters
from lightning_core.cluster.pool_manager import start_pool_manager
from lightning_core.parts.market.cloud.provisioner import drain
from lightning_core.server.ray_settings import NAMESPACE
from tests.faults.test_workers import Story, Told, job, process_of, story_free, told

# Instead of a minute.
READY_WITHIN = 15.0
# Of a node that will be taken away, seconds.
NOTICE = 20.0


def end(node: Any) -> None:
    """End a node like a machine that is switched off; its raylet is reaped, or its workers would survive."""
    [raylet] = node.all_processes["raylet"]
    raylet.process.kill()
    raylet.process.wait()


def node_of(story: Story, name: str) -> str:
    """Return the id of the node on which a job trains."""
    [device] = story.jobs[name].devices
    table = ray.util.placement_group_table(ray.util.get_placement_group(f"{story.cluster.name}-device-{device}"))
    return str(table["bundles_to_node_id"][0])


def live_through(tell: Callable[[Story], Told], folder: Path, found: dict[str, Any]) -> NoReturn:
    """Run two jobs on two devices of the Ray that was joined, and write down what the story finds."""
    with clusters.Cluster(workers=2, devices=2) as pool:
        told(pool, folder / "run", tell, a=job(), b=job())
    (folder / "found.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # what is left of Ray ends with the group


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    setattr(clusters, "start_pool_manager", functools.partial(start_pool_manager, ready_within=READY_WITHIN))  # noqa: B010
    own = tempfile.mkdtemp(prefix="lc-")  # Ray's usual folder tells everybody here which cluster is the newest
    os.environ["RAY_TMPDIR"] = own
    machines: Any = Nodes(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "temp_dir": f"{own}/ray"}
    )
    device = {"num_cpus": 1, "resources": {"device": 1}}
    nodes = {node.node_id: node for node in (machines.add_node(**device) for _ in range(2))}
    ray.init(address=machines.address, namespace=NAMESPACE, log_to_driver=False)

    def another(story: Story) -> Told:
        new = machines.add_node(**device)
        nodes[new.node_id] = new
        yield from story.until(lambda jobs: all(job.state == "running" for job in jobs.values()), 90)

    def tell(story: Story) -> Told:
        yield from story.until(lambda jobs: jobs and min(job.batches for job in jobs.values()) > 20)
        lost = nodes[node_of(story, "a")]
        end(lost)
        began = time.monotonic()
        yield from story.until(lambda jobs: jobs["a"].incarnation == 2, 20)
        found["lost"] = time.monotonic() - began
        found["words"] = str(story.jobs["a"].fault)
        # One of them trains on the node that is left, the other waits for a device.
        yield from story.until(
            lambda jobs: any("no worker is ready" in str(job.grant_reason) for job in jobs.values()), 90
        )
        found["waits after"] = time.monotonic() - began
        yield from story.until(lambda jobs: any(job.state == "running" for job in jobs.values()))
        yield from another(story)
        found["restarts"] = {name: job.restarts for name, job in story.jobs.items()}

        # With notice enough: it saves, leaves, and waits for a device, with nothing lost.
        leaves = nodes[node_of(story, "b")]
        drain(machines.address, leaves.node_id, NOTICE)
        began = time.monotonic()
        yield from story.until(
            lambda jobs: "no worker is ready" in str(jobs["b"].grant_reason) and story_free(story, "b"), 20
        )
        found["left"] = time.monotonic() - began
        end(leaves)
        yield from another(story)
        found["b"] = (story.jobs["b"].restarts, story.jobs["b"].lost_batches)

        # There is no time to save: it resumes from its last checkpoint, and no failure is counted.
        incarnation = story.jobs["b"].incarnation
        taken, pool_manager = nodes[node_of(story, "b")], process_of(story.cluster.pool_manager)
        os.kill(pool_manager, signal.SIGSTOP)
        drain(machines.address, taken.node_id, NOTICE)
        end(taken)
        time.sleep(2.0)
        os.kill(pool_manager, signal.SIGCONT)
        began = time.monotonic()
        yield from story.until(lambda jobs: jobs["b"].incarnation == incarnation + 1, 20)
        found["taken"] = time.monotonic() - began
        found["preempted"] = str(story.jobs["b"].fault)

    live_through(tell, folder, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
