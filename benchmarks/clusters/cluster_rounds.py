"""How long a whole round of ``decor`` takes, by number of jobs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.clusters.cluster_play import PERIOD
from benchmarks.clusters.cluster_trace import HOUR
from benchmarks.common import Figures, table
from lightning_core.core.events import Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings


def round_ms(
    arguments: Mapping[str, Any],
    count: int,
    devices: int,
    *,
    crowded: bool = False,
    comes: bool = False,
    repeats: int = 5,
) -> float:
    """Return the median milliseconds of a whole round of ``decor`` with jobs that have all started.

    Args:
        arguments: Arguments of the policy.
        count: Number of jobs.
        devices: Devices of the pool.
        crowded: Whether the jobs need far more devices than the pool has; otherwise they need nearly all of them.
        comes: Whether a new job is submitted before each round, so that others may have to leave their devices.
        repeats: Number of rounds.
    """
    draw = np.random.default_rng(count)
    scheduler = Scheduler(Settings("decor", arguments, estimator="log_time", devices=devices, resident=devices))
    hours = count / devices * (2.0 if crowded else 8.0)

    def job(name: str) -> Job:
        one, grows = draw.uniform(0.5, 2.0), draw.uniform(1.5, 1.95)
        return Job(
            name,
            draw.uniform(0.5, 1.5) * hours * HOUR,
            BatchTarget(int(one * 4 * HOUR * draw.uniform(0.2, 1.8))),
            max_devices=64,
            can=frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE}),
            sizes=tuple(2**k for k in range(7)),
            throughputs=tuple(one * grows**k for k in range(7)),
            resize_seconds=60.0,
        )

    scheduler.handle(Submit(tuple(job(f"job{number}") for number in range(count))), 0.0)
    for number in range(count):
        scheduler.handle(Report(f"job{number}", 1, 1, 99, 1 + number % 7, 1.0), 1.0)
    times = []
    for step in range(1, repeats + 2):
        event = Submit((job(f"new{step}"),)) if comes else Tick()
        start = time.perf_counter()
        scheduler.handle(event, 1.0 + PERIOD * step)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:])


def print_decisions(arguments: Mapping[str, Any], counts: Sequence[int], devices: int) -> Figures:
    """Print and return the time of a round by number of jobs."""
    kinds = {
        "nearly all fit": {"crowded": False},
        "many do not fit": {"crowded": True},
        "... and one more arrives": {"crowded": True, "comes": True},
    }
    ms = {kind: [round_ms(arguments, count, devices, **how) for count in counts] for kind, how in kinds.items()}
    print(f"\nA whole round of decor on {devices} devices, all jobs active: median ms")
    table(["jobs", *kinds], [[count, *(ms[kind][at] for kind in kinds)] for at, count in enumerate(counts)])
    if len(counts) > 1:
        slopes = [np.polyfit(np.log(counts), np.log(one), 1)[0] for one in ms.values()]
        print(f"The time grows as {', '.join(f'n^{slope:.1f}' for slope in slopes)}.")
    names = zip(("decision_ms", "decision_crowded_ms", "decision_one_comes_ms"), ms.values(), strict=True)
    return {f"{name}_{count}": one[at] for name, one in names for at, count in enumerate(counts)}
