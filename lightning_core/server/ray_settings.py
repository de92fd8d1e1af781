"""Settings of Ray that are needed before Ray is imported."""

from __future__ import annotations

from typing import Any

# Namespace of the actors.
NAMESPACE = "lightning_core"
# Ray gives its workers the lowest priority, so that a script beside them would take every core. For a private Ray only.
WORKER_NICENESS = {"RAY_worker_niceness": "0"}


# Handle of an actor: Ray creates its methods at run time, unknown to type checkers.
Actor = Any
