"""Measure a whole round of the scheduler, and how its cost grows with the number of jobs.

A round is ``handle(Tick)`` in which every job's share changes: it forecasts, plans and judges all jobs and makes a new
grant for each. The commit to the journal depends on the disk, and is measured separately.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.forecasts.banks import measure_banks
from lightning_core.core.answers import Grant, Verdict
from lightning_core.core.earlier_runs import MAX_EARLIER_RUNS, EarlierRun
from lightning_core.core.events import MAX_RUNS_AT_ONCE, Cell, EarlierRuns, Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.ended_runs import EndedRun
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.private_files import this_user
from lightning_core.storage.runs.past_run import PastRun
from lightning_core.storage.runs.pool_history import PoolHistory
from lightning_core.storage.runs.run_store import FILE, RunStore

# Devices of the larger pool.
DEVICES = 8
TARGET = LossTarget("loss", 0.001)
# Seconds between two rounds, longer than the slices of LaiRA and triage, so that each round decides again; and the
# number of such rounds before the first deadline.
PAST_A_SLICE, ROUNDS = 6.0, 5


def loaded(
    jobs: int,
    policy: str,
    seed: int = 0,
    policy_args: dict[str, object] | None = None,
    devices: int = 1,
    *,
    history: bool = False,
    kinds: bool = False,
) -> Scheduler:
    """Return a scheduler with running jobs, each with 12 cells of a noisy power law; not all deadlines can be met.

    Args:
        jobs: Number of jobs.
        policy: Name of the policy.
        seed: Seed of the curves and deadlines.
        policy_args: Arguments of the policy.
        devices: Devices of the pool.
        history: Whether each job has as many earlier runs as it may have, no two of them alike.
        kinds: Whether the devices are of two kinds, half of them of each.
    """
    draw = np.random.default_rng(seed)
    locations = ("fast", "slow") * (devices // 2) if kinds else ()
    scheduler = Scheduler(Settings(policy=policy, policy_args=policy_args or {}, devices=devices, locations=locations))
    deadlines = draw.uniform(50, 60.0 * jobs, jobs).tolist()
    scheduler.handle(Submit(tuple(Job(f"job{k}", d, TARGET) for k, d in enumerate(deadlines))), 0.0)
    at_once = MAX_RUNS_AT_ONCE // MAX_EARLIER_RUNS
    for k in range(0, jobs if history else 0, at_once):
        names = [f"job{j}" for j in range(k, min(k + at_once, jobs))]
        runs = tuple(_earlier_run(name, draw) for name in names for _ in range(MAX_EARLIER_RUNS))
        places = [tuple(range(n, n + MAX_EARLIER_RUNS)) for n in range(0, len(runs), MAX_EARLIER_RUNS)]
        scheduler.handle(EarlierRuns(runs, tuple(zip(names, places, strict=True))), 0.0)
    for k in range(jobs):
        slope, throughput = draw.uniform(0.2, 0.9), draw.uniform(20, 400)
        losses = [float((10 * n) ** -slope * draw.lognormal(0, 0.02)) for n in range(1, 13)]
        cells = tuple(Cell(n, 10 * n, loss) for n, loss in enumerate(losses, 1))
        scheduler.handle(Report(f"job{k}", 1, 1, 99, 120, 120 / throughput, cells), 0.0)
    return scheduler


def _earlier_run(name: str, draw: np.random.Generator) -> EarlierRun:
    """Return a run of 100 points of a noisy power law."""
    batches = np.unique(np.geomspace(10, draw.uniform(1e4, 1e5), 100).astype(int))
    losses = batches ** -draw.uniform(0.2, 0.9) * draw.lognormal(0, 0.02, len(batches))
    return EarlierRun(name, tuple(batches.tolist()), tuple(losses.tolist()))


def round_ms(
    jobs: int, policy: str, repeats: int, devices: int = 1, *, step: float = 1e-3, moved: bool = False
) -> tuple[float, int]:
    """Return the median milliseconds of a round in which every share changes, and the number of grants it made.

    Args:
        jobs: Number of running jobs.
        policy: Name of the policy.
        repeats: Number of rounds that are timed.
        devices: Devices of the pool.
        step: Seconds of scheduler time between two rounds.
        moved: Whether every curve has a new cell since the last round, so that every job is forecast again. The
            update by the cells is not timed: it happens when they arrive.
    """
    scheduler = loaded(jobs, policy, devices=devices)
    rounds = [_round(scheduler, jobs, k, step, moved=moved) for k in range(repeats + 1)]
    return statistics.median(ms for ms, _ in rounds[1:]), rounds[-1][1]


def history_ms(jobs: int, repeats: int) -> tuple[float, float]:
    """Return the median milliseconds of a round in which all jobs are forecast again, with earlier runs and without.

    The two take turns, so that other load affects both.
    """
    schedulers = [loaded(jobs, "triage", history=history) for history in (True, False)]
    times = [[_round(one, jobs, k, PAST_A_SLICE, moved=True)[0] for one in schedulers] for k in range(repeats + 1)]
    with_history, without = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return with_history, without


def kinds_ms(jobs: int, policy: str, repeats: int) -> tuple[float, float]:
    """Return the median milliseconds of a round on devices of two kinds, and on as many that are alike.

    The two take turns, so that other load affects both.
    """
    schedulers = [loaded(jobs, policy, devices=DEVICES, kinds=kinds) for kinds in (True, False)]
    times = [[_round(one, jobs, k, PAST_A_SLICE, moved=False)[0] for one in schedulers] for k in range(repeats + 1)]
    with_kinds, without = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return with_kinds, without


def lookup_ms(stored: int = 1000, repeats: int = 50) -> float:
    """Return the median milliseconds in which the earlier runs of a job are found among others of the same kind."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder) / FILE)
        ended = [EndedRun(Job(f"job{k}", 60.0, TARGET, model="a.Model"), Verdict.MET, *_earlier_run("", draw)[1:3],
                          100, ((1, 50.0),), 60.0, 0.0, float(k), None) for k in range(stored)]  # fmt: skip
        store.add(PastRun.of(run, this_user(), "cpu", run.ended) for run in ended)
        store.close()
        history, times = PoolHistory(Path(folder)), []
        for _ in range(repeats):
            start = time.perf_counter()
            [found] = history.find([Job("new", 60.0, TARGET, model="a.Model")])
            times.append(time.perf_counter() - start)
            assert len(found.runs) == MAX_EARLIER_RUNS
        history.close()
    return statistics.median(times) * 1e3


def _round(scheduler: Scheduler, jobs: int, number: int, step: float, *, moved: bool) -> tuple[float, int]:
    """Return the milliseconds of a round, and the number of grants it made."""
    scheduler._table.share[:jobs] = -1.0  # whatever is planned is a change
    if moved:
        _next_cell(scheduler, jobs, 13 + number)
    start_at = scheduler.settings.stay  # from then on every job may move: the worst case for the allocator
    start = time.perf_counter()
    answers = scheduler.handle(Tick(), start_at + float(number + 1) * step)
    return (time.perf_counter() - start) * 1e3, sum(isinstance(answer, Grant) for answer in answers)


def _next_cell(scheduler: Scheduler, jobs: int, number: int) -> None:
    """Add a cell to every curve at once."""
    rows, position = np.arange(jobs), np.full(jobs, 10.0 * number)
    for bank in (scheduler._state.curves.bank, *scheduler._state.banks):
        bank.observe(rows, position, position**-0.5)


def commit_ms(repeats: int = 200) -> float:
    """Return the median milliseconds to commit one event to a journal in the temporary folder."""
    with tempfile.TemporaryDirectory() as folder, Journal.create(Path(folder) / "journal.db", Settings()) as journal:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            journal.append(Tick(), 0.0, [])
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(size: Size) -> Figures:
    """Print all tables and return their figures."""
    sizes = [100, 300, 1000, 3000, 10_000] + ([30_000, 100_000] if size == "full" else [])
    repeats = 7 if size == "quick" else 21
    policies = ["lara", "edf"] if size == "quick" else ["lara", "edf", "fifo", "uniform"]
    cost = {(p, n): round_ms(n, p, repeats if n > 100 else 10 * repeats) for p in policies for n in sizes}
    print("A whole round in which all jobs change: median ms (grants made)")
    table(["jobs", *policies], [[n, *(f"{cost[p, n][0]:.3f} ({cost[p, n][1]})" for p in policies)] for n in sizes])
    whole = ["laira", "triage"]
    decided = {(p, n): round_ms(n, p, ROUNDS, step=PAST_A_SLICE)[0] for p in whole for n in sizes}
    anew = {n: round_ms(n, "triage", ROUNDS, step=PAST_A_SLICE, moved=True)[0] for n in sizes}
    print("\nThe same under laira and triage, and under triage when every curve has a new cell: median ms")
    table(["jobs", *whole, "triage, new cells"], [[n, *(decided[p, n] for p in whole), anew[n]] for n in sizes])
    with_history, without = history_ms(10_000, ROUNDS)
    print(f"\nA round over 10,000 jobs under triage when every curve has a new cell: {with_history:.0f} ms if each has "
          f"{MAX_EARLIER_RUNS} earlier runs of its own, {without:.0f} ms without")  # fmt: skip
    kinds = {(p, n): kinds_ms(n, p, ROUNDS) for p in ("triage", "edf") for n in sizes if n in (100, 1000, 10_000)}
    print(f"\nA whole round on {DEVICES} devices of two kinds, and on as many that are alike: median ms")
    table(["policy", "jobs", "two kinds", "alike", "ratio"], [
        [p, n, f"{two:.1f}", f"{one:.1f}", f"{two / one:.2f}"] for (p, n), (two, one) in kinds.items()
    ])  # fmt: skip
    found = lookup_ms()
    print(f"The earlier runs of a job are found among 1,000 in {found:.2f} ms")
    banks = measure_banks(repeats)
    print(f"\nUpdate of 10,000 dynamic Kalman filters with one cell each: {banks['bank_ms_10000']:.2f} ms, "
          f"{banks['bank_vs_filterpy']:.0f} times as fast as filterpy one by one")  # fmt: skip
    several = ["guarded_edf", "triage", "edf", "uniform"]
    allocated = {(p, n): round_ms(n, p, repeats, DEVICES)[0] for p in several for n in sizes}
    print(f"\nA whole round on a pool of {DEVICES} devices: median ms")
    table(["jobs", *several], [[n, *(f"{allocated[p, n]:.3f}" for p in several)] for n in sizes])
    lara = {n: cost["lara", n][0] for n in sizes}
    # Growth from 1,000 jobs on: below that the fixed cost of a round hides it.
    large = [n for n in sizes if n >= 1000]
    exponent = float(np.polyfit(np.log(large), np.log([lara[n] for n in large]), 1)[0])
    n_log_n = float(np.polyfit(np.log(large), np.log([n * np.log(n) for n in large]), 1)[0])
    print(f"\nlara grows as n^{exponent:.2f} from 1,000 jobs on; n log n is n^{n_log_n:.2f} there.")
    print(f"Journal commit (WAL, FULL), not included: {commit_ms():.3f} ms")
    return {
        "ms_100": lara[100],
        "ms_10000": lara[10_000],
        "exponent": exponent,
        f"ms_100_on_{DEVICES}": allocated["guarded_edf", 100],
        f"ms_10000_on_{DEVICES}": allocated["guarded_edf", 10_000],
        "laira_ms_10000": decided["laira", 10_000],
        "ours_ms_10000": decided["triage", 10_000],
        "ours_anew_ms_10000": anew[10_000],
        "history_anew_ratio": with_history / without,
        **{f"kinds_ratio_{n}": kinds["triage", n][0] / kinds["triage", n][1] for n in (100, 1000, 10_000)},
        "history_lookup_ms_1000": found,
        **banks,
    }


if __name__ == "__main__":
    main("policies.decide", __doc__.splitlines()[0], measure)
