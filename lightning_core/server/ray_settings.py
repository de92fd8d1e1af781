"""Settings of Ray that are needed before Ray is imported."""

from __future__ import annotations

from typing import Any

# Namespace of the actors.
NAMESPACE = "lightning_core"
# For a Ray that is started here only. It would give its workers the lowest priority, so that a script beside them would
# take every core, and record 100,000 calls of actors for its dashboard, which is not started: 360 MB within hours.
PRIVATE_RAY = {"RAY_worker_niceness": "0", "RAY_task_events_report_interval_ms": "0"}


# Handle of an actor: Ray creates its methods at run time, unknown to type checkers.
Actor = Any
