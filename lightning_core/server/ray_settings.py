"""Settings of Ray that are needed before Ray is imported."""

from __future__ import annotations

from typing import Any

# Namespace of the actors.
NAMESPACE = "lightning_core"
# Only for a Ray that is started here. By default Ray gives its workers the lowest priority, so that a script beside
# them takes every core, and records 100,000 actor calls for its dashboard, which is not started: 360 MB within hours.
# It waits 30 s for its first server, which a busy machine may exceed.
PRIVATE_RAY = {
    "RAY_worker_niceness": "0", "RAY_task_events_report_interval_ms": "0", "RAY_gcs_server_port_wait_time_s": "90",
}  # fmt: skip
# Bytes of the object store of a Ray that is started here, in shared memory: hardly anything is kept there.
OBJECT_STORE_BYTES = 100 * 2**20


# Handle of an actor: Ray creates its methods at run time, unknown to type checkers.
Actor = Any
