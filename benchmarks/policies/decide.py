"""What one whole round costs, and how the cost grows with the number of jobs.

A round is ``handle(Tick)`` with every job's share changed: forecast all, plan all, judge all, a new grant for each. The
commit to the journal is apart: it depends on the disk, and is shown beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.forecasts.banks import measure_banks
from lightning_core.core.answers import Grant
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journal import Journal

# Of the pool of several devices that is measured beside the one.
DEVICES = 8
# Seconds between two rounds that are more than LaiRA's slices and triage's: each of them decides anew. So many of them
# stay before the first deadline.
PAST_A_SLICE, ROUNDS = 6.0, 5


def loaded(
    jobs: int, policy: str, seed: int = 0, policy_args: dict[str, object] | None = None, devices: int = 1
) -> Scheduler:
    """A scheduler with so many running jobs, each with 12 cells of a noisy power law; deadlines too tight for all."""
    draw = np.random.default_rng(seed)
    scheduler = Scheduler(Settings(policy=policy, policy_args=policy_args or {}, devices=devices))
    deadlines = draw.uniform(50, 60.0 * jobs, jobs).tolist()
    target = LossTarget("loss", 0.001)
    scheduler.handle(Submit(tuple(Job(f"job{k}", d, target) for k, d in enumerate(deadlines))), 0.0)
    for k in range(jobs):
        slope, speed = draw.uniform(0.2, 0.9), draw.uniform(20, 400)
        losses = [float((10 * n) ** -slope * draw.lognormal(0, 0.02)) for n in range(1, 13)]
        cells = tuple(Cell(n, 10 * n, loss) for n, loss in enumerate(losses, 1))
        scheduler.handle(Report(f"job{k}", 1, 1, 99, 120, 120 / speed, cells), 0.0)
    return scheduler


def round_ms(
    jobs: int, policy: str, repeats: int, devices: int = 1, *, step: float = 1e-3, moved: bool = False
) -> tuple[float, int]:
    """Median milliseconds of a round in which every share has changed, and how many grants it made.

    Args:
        jobs: that run.
        policy: its name.
        repeats: rounds that are timed.
        devices: of the pool.
        step: seconds of scheduler time between two rounds.
        moved: whether every curve has a new cell since the round before, so that every job is forecast anew. Taking
            the cells in is not timed: it is done when they arrive.
    """
    scheduler = loaded(jobs, policy, devices=devices)
    start_at = scheduler.settings.stay  # from then on every job may be moved, and the allocator has most to look at
    times, made = [], 0
    for k in range(repeats + 1):
        scheduler._table.share[:jobs] = -1.0  # whatever is planned is a change
        if moved:
            _next_cell(scheduler, jobs, 13 + k)
        start = time.perf_counter()
        answers = scheduler.handle(Tick(), start_at + float(k + 1) * step)
        times.append(time.perf_counter() - start)
        made = sum(isinstance(answer, Grant) for answer in answers)
    return statistics.median(times[1:]) * 1e3, made


def _next_cell(scheduler: Scheduler, jobs: int, number: int) -> None:
    """The next cell of every curve, all at once."""
    rows, position = np.arange(jobs), np.full(jobs, 10.0 * number)
    for bank in scheduler._state.banks:
        bank.observe(rows, position, position**-0.5)


def commit_ms(repeats: int = 200) -> float:
    """Median milliseconds to journal one event durably, on the disk of the temporary folder."""
    with tempfile.TemporaryDirectory() as folder, Journal.create(Path(folder) / "journal.db", Settings()) as journal:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            journal.append(Tick(), 0.0, [])
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(size: Size) -> Figures:
    sizes = [100, 300, 1000, 3000, 10_000] + ([30_000, 100_000] if size == "full" else [])
    repeats = 7 if size == "quick" else 21
    policies = ["lara", "edf"] if size == "quick" else ["lara", "edf", "fifo", "uniform"]
    cost = {(p, n): round_ms(n, p, repeats if n > 100 else 10 * repeats) for p in policies for n in sizes}
    print("A whole round, all jobs changed: median ms (grants made)")
    table(["jobs", *policies], [[n, *(f"{cost[p, n][0]:.3f} ({cost[p, n][1]})" for p in policies)] for n in sizes])
    whole = ["laira", "triage"]
    decided = {(p, n): round_ms(n, p, ROUNDS, step=PAST_A_SLICE)[0] for p in whole for n in sizes}
    anew = {n: round_ms(n, "triage", ROUNDS, step=PAST_A_SLICE, moved=True)[0] for n in sizes}
    print("LaiRA's and triage's, and triage's when every curve has a new cell: median ms")
    table(["jobs", *whole, "triage, all new"], [[n, *(decided[p, n] for p in whole), anew[n]] for n in sizes])
    banks = measure_banks(repeats)
    print(f"A cell of 10,000 curves into the bank of dynamic Kalman filters: {banks['bank_ms_10000']:.2f} ms, "
          f"{banks['bank_vs_filterpy']:.0f} times as fast as filterpy row by row")  # fmt: skip
    several = ["guarded_edf", "triage", "edf", "uniform"]
    dealt = {(p, n): round_ms(n, p, repeats, DEVICES)[0] for p in several for n in sizes}
    print(f"The same on a pool of {DEVICES} devices: median ms")
    table(["jobs", *several], [[n, *(f"{dealt[p, n]:.3f}" for p in several)] for n in sizes])
    lara = {n: cost["lara", n][0] for n in sizes}
    # Growth where it matters, from 1,000 jobs on: below it the fixed cost of a round hides it.
    large = [n for n in sizes if n >= 1000]
    exponent = float(np.polyfit(np.log(large), np.log([lara[n] for n in large]), 1)[0])
    n_log_n = float(np.polyfit(np.log(large), np.log([n * np.log(n) for n in large]), 1)[0])
    print(f"lara grows as n^{exponent:.2f} from 1,000 jobs on; n log n is n^{n_log_n:.2f} there.")
    print(f"Journal commit (WAL, FULL), apart: {commit_ms():.3f} ms")
    return {
        "ms_100": lara[100],
        "ms_10000": lara[10_000],
        "exponent": exponent,
        f"ms_100_on_{DEVICES}": dealt["guarded_edf", 100],
        f"ms_10000_on_{DEVICES}": dealt["guarded_edf", 10_000],
        "laira_ms_10000": decided["laira", 10_000],
        "ours_ms_10000": decided["triage", 10_000],
        "ours_anew_ms_10000": anew[10_000],
        **banks,
    }


if __name__ == "__main__":
    main("policies.decide", __doc__.splitlines()[0], measure)
