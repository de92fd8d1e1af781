"""Starts the scheduler's actor on this node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.groups import GroupSocket
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.server.ray_settings import NAMESPACE, Actor

# Calls at a time: each launched job waits for news with one, all the time. Ray's default is 1,000.
MAX_CALLS = 20_000


def this_node() -> NodeAffinitySchedulingStrategy:
    """Return the scheduling strategy that keeps an actor on this node, where the pool's folder is."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def start_scheduler(
    name: str,
    settings: Settings,
    folder: Path,
    socket: str = "",
    on_verdict: Mapping[str, Any] | None = None,
    group: GroupSocket | None = None,
) -> Actor:
    """Start a named, detached scheduler that Ray restarts whenever it dies, or return the existing one."""
    actor: Any = ray.remote(SchedulerActor)
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=MAX_CALLS,
        num_cpus=0,
        scheduling_strategy=this_node(),
    ).remote(settings.to_dict(), str(folder), socket, on_verdict, group)
