"""What we say to Ray, for those who must say it before Ray is imported."""

from __future__ import annotations

# Of our actors.
NAMESPACE = "lightning_core"
# Ray gives its workers the lowest priority; a script beside them would win every core from them. For a Ray of our own.
NICE = {"RAY_worker_niceness": "0"}
