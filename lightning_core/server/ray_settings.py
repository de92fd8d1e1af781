"""Settings of Ray that are needed before Ray is imported."""

from __future__ import annotations

from typing import Any

# Namespace of the actors.
NAMESPACE = "lightning_core"
# Only for a Ray that is started here. By default Ray gives its workers the lowest priority, so that a script beside
# them takes every core, and records 100,000 actor calls for its dashboard, which is not started: 360 MB within hours.
PRIVATE_RAY = {"RAY_worker_niceness": "0", "RAY_task_events_report_interval_ms": "0"}
# Bytes of the object store of a Ray that is started here, in shared memory: hardly anything is kept there.
OBJECT_STORE_BYTES = 100 * 2**20


# Handle of an actor: Ray creates its methods at run time, unknown to type checkers.
Actor = Any
