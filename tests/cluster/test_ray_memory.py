"""Ray's control process keeps nothing of the calls between the actors of a pool."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.faults.soak import RAYS, titled, usage

CALLS, MAX_MB = 2500, 4.0


@pytest.mark.cluster
@pytest.mark.promise("R22")
def test_the_control_process_does_not_grow_with_calls(local_ray: None) -> None:
    """Ray 2.60 would record each call, up to 100,000 of them: 14 MB for these, 360 MB in all."""
    import ray

    class Called:
        def call(self) -> None:
            """Return."""

    actor: Any = ray.remote(num_cpus=0)(Called).remote()
    ray.get(actor.call.remote(), timeout=60)
    [gcs] = titled(os.getpid(), RAYS["gcs"])()
    before = usage(gcs).mb
    for _ in range(10):
        ray.get([actor.call.remote() for _ in range(CALLS // 10)], timeout=60)
    time.sleep(2.0)  # Ray sends its records every second
    assert usage(gcs).mb - before < MAX_MB
    ray.kill(actor)
