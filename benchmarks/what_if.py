"""How soon it is said who would make it after a change, and on how many futures that rests.

A pool of eight devices and a hundred jobs is played for some minutes, with its journal. Then the question is asked as
the page asks it: first some seconds after the page has started, when the journal must be read; once more for another
change; and once more when the journal must be read anew.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.simulation.what_if import Assumption
from lightning_core.web.routes.what_if_process import WhatIf, warm_up

DEVICES = 8
# Seconds between the start of the page and the first question.
STARTED = 5.0
# Jobs, and seconds that are played before the question, by size.
SIZES = {"quick": (30, 60.0), "default": (100, 200.0), "full": (100, 600.0)}


def measure(size: Size) -> Figures:
    """Measure the seconds to each answer, and its futures."""
    many, seconds = SIZES[size]
    with tempfile.TemporaryDirectory(prefix="lc-") as temp:
        journal = Path(temp) / "journal.db"
        Simulation(Settings(devices=DEVICES), _jobs(many), journal=journal).run(until=seconds)
        one, other = WhatIf(journal), WhatIf(journal)
        warm_up()  # as the page does when it starts
        time.sleep(STARTED)
        rows: list[list[object]] = []
        figures: Figures = {}
        for words, asked, devices in (("first", one, 2 * DEVICES), ("next", one, DEVICES // 2), ("anew", other, 2)):
            began = time.perf_counter()
            found = asked.ask(Assumption(devices=devices))
            seconds = time.perf_counter() - began
            figures |= {f"{words}_seconds": seconds, f"{words}_futures": float(found.futures)}
            rows.append([words, seconds, found.futures, sum(found.before), sum(found.after)])
    table(["question", "seconds", "futures", "jobs in time", "then"], rows)
    return figures


def _jobs(many: int) -> list[SimulatedJob]:
    rng = np.random.default_rng(1)
    position = np.unique(np.geomspace(10, 40_000, 400).astype(int) // 10 * 10)
    found = []
    for k in range(many):
        target: Target = LossTarget("loss", 0.3) if k % 3 else BatchTarget(3000)
        loss = 2.3 * (1 + position / 30) ** -rng.uniform(0.25, 0.7) * np.exp(rng.normal(0, 0.05, len(position)))
        deadline = float(rng.uniform(120, 4000)) if k % 7 else math.inf
        found.append(SimulatedJob(Job(f"job-{k}", deadline, target), position, loss, float(rng.uniform(4, 40))))
    return found


if __name__ == "__main__":
    main("what_if", __doc__.splitlines()[0], measure)
