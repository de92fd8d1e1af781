"""Play the conditions of DECOR-NN's tables in virtual time, under ``decor`` as printed and as it is by default.

The pool, the step, the ratio of deadline to minimum training time and the cut are the paper's. Not printed there, so
assumed: a training of ``SECONDS`` and ``BATCHES`` on all devices ("on the order of minutes"); the pace of a model by
devices (:func:`~benchmarks.papers.decor_nn.pace`); a throughput that drifts by ``DRIFT`` (autoregressive, every
``DRIFT_EVERY`` seconds), as on shared machines; a change of GPUs that takes ``RESIZE``, as measured for warm workers.
The paper gives neither K nor eta: eta is the 0.1 that ``decor`` has, K is a core or GPU per per cent, or 3, or 10.

As in the paper, the minimum training time is that of a run on all devices, which drifts too. So d_c 1.0 measures the
drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, table
from benchmarks.papers.decor_nn import (
    CHANGED_AT,
    CHANGED_TO,
    DEVICES,
    MODELS,
    PRINTED,
    STEP,
    Kind,
    PrintedCell,
    pace,
)
from benchmarks.papers.decor_page import GAINS, by_table, figure
from lightning_core.core.answers import Answer, End, Grant
from lightning_core.core.commands import SetDeadline
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.simulation.virtual_pool import VirtualPool
from lightning_core.simulation.virtual_workers import VirtualWorker

SECONDS, BATCHES = 300.0, 600
DRIFT, DRIFT_EVERY, DRIFT_KEPT = 0.05, 5.0, 0.9
RESIZE = 0.3
# Seed of the run on all devices that gives the minimum training time; those of the runs with deadlines are above it.
FASTEST_SEED, RUNS = 0, 3
REPORT = 0.01


class PlayedRun(NamedTuple):
    """End of a run.

    Attributes:
        took: Seconds from its submission.
        deadline: Deadline at its end, seconds from its submission.
        devices: Mean number of devices or cores from the first grant on.
    """

    took: float
    deadline: float
    devices: float

    @property
    def error(self) -> float:
        """Error in per cent (eq. 7): positive if it ended late."""
        return 100.0 * (self.took - self.deadline) / self.deadline


class _DriftingPool(VirtualPool):
    """A pool on which a training has the pace of a model on its cores or GPUs, times a drift."""

    model = ""
    kind: Kind = "cpu"
    drift = 1.0

    def _set_throughput(self, worker: VirtualWorker) -> None:
        worker.advance(self._queue.now)
        worker.set_throughput(self._queue.now, 0.0)  # so that a drift alone counts as a change
        if worker.share and worker.at:
            devices = worker.share * DEVICES["cpu"] if self.kind == "cpu" else float(len(worker.at))
            rate = BATCHES / SECONDS * pace(self.kind, self.model, devices) * self.drift
            worker.throughput = rate / worker.share
            worker.by_size = dict.fromkeys(worker.by_size, worker.throughput)
        super()._set_throughput(worker)


class _Play(Simulation):
    """A run of one job whose throughput drifts, and whose deadline may be cut."""

    def __init__(
        self, settings: Settings, job: SimulatedJob, kind: Kind, model: str, seed: int, cut: float | None
    ) -> None:
        self._kind, self._model = kind, model
        super().__init__(settings, [job], Delays(report=REPORT, report_every=0.1))
        self._draw, self._log = np.random.default_rng(seed), 0.0
        self._granted: list[tuple[float, float]] = []
        self._queue.at(0.0, self._drift, self._pool.workers[job.job.name])
        if cut is not None:
            shortened = SetDeadline(job.job.name, CHANGED_TO * job.job.deadline, from_submission=True)
            self._queue.at(cut, self._handle, shortened)

    def _make_pool(self, workers: Mapping[str, VirtualWorker]) -> VirtualPool:
        pool = _DriftingPool(workers, self._settings.devices, None, self._delays, 0, self._queue, self._send)
        pool.kind, pool.model = self._kind, self._model
        self._drifting = pool
        return pool

    def _drift(self, worker: VirtualWorker) -> None:
        if worker.over:
            return
        fresh = DRIFT if not self._granted else DRIFT * math.sqrt(1.0 - DRIFT_KEPT**2)
        self._log = DRIFT_KEPT * self._log + fresh * self._draw.standard_normal()
        self._drifting.drift = math.exp(self._log)
        if worker.share:
            self._drifting._set_throughput(worker)
        self._queue.at(self._queue.now + DRIFT_EVERY, self._drift, worker)

    def _hear(self, answers: list[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, Grant):
                devices = answer.share * (DEVICES["cpu"] if self._kind == "cpu" else len(answer.devices))
                self._granted.append((self._queue.now, devices))
            elif isinstance(answer, End):
                self._granted.append((self._queue.now, 0.0))
        super()._hear(answers)
        if self._kind == "cpu" and any(isinstance(answer, Grant) for answer in answers):
            self._confirm()

    def _confirm(self) -> None:
        """Report cores as granted at once: the paper's quota is set from outside, also within a batch."""
        [worker] = self._pool.workers.values()
        if worker.ready:
            worker.advance(self._queue.now)
            self._send(worker.report(self._queue.now, worker.closed()))

    def mean_devices(self) -> float:
        times, devices = np.array(self._granted).T
        return float(np.sum(devices[:-1] * np.diff(times)) / (times[-1] - times[0]))


def play(kind: Kind, model: str, arguments: Mapping[str, Any], deadline: float, seed: int, cut: bool) -> PlayedRun:
    """Play one training with a deadline, seconds from its submission; ``arguments`` are those of ``decor``."""
    cpu, devices = kind == "cpu", DEVICES[kind]
    settings = Settings(
        "decor", {"alpha": 1.0, "period": STEP[kind], **arguments}, estimator="log_time", period=STEP[kind],
        devices=1 if cpu else devices, cores=devices if cpu else 1, quantum=0.05 / devices if cpu else 1.0,
        resize=RESIZE,
    )  # fmt: skip
    sizes = () if cpu else tuple(range(1, devices + 1))
    can = frozenset(Capability) if cpu else frozenset(Capability) - {Capability.TIME_SLICE}
    job = Job("job", deadline, BatchTarget(BATCHES), max_devices=1 if cpu else devices, can=can, sizes=sizes)
    position = range(1, BATCHES + 1)
    rate = BATCHES / SECONDS
    simulated = SimulatedJob(job, position, [1.0] * BATCHES, rate, throughputs=[rate] * len(sizes), restart=RESIZE)
    simulation = _Play(settings, simulated, kind, model, seed, CHANGED_AT * deadline if cut else None)
    [one] = simulation.run().jobs
    assert one.finished_at is not None
    return PlayedRun(one.finished_at, deadline * CHANGED_TO if cut else deadline, simulation.mean_devices())


def fastest(kind: Kind, model: str) -> float:
    """Return the seconds that a training takes on all devices."""
    devices = DEVICES[kind]
    fixed = {"mode": "paper", "gain": 1e6 / devices, "eta": 0.1}
    return play(kind, model, fixed, SECONDS / 2, FASTEST_SEED, cut=False).took


def arguments_of(mode: str, kind: Kind) -> dict[str, Any]:
    """Return the arguments of ``decor``: ``"default"``, or ``"paper_k3"`` for 3 cores or GPUs per per cent."""
    if mode == "default":
        return {}
    gain = float(mode.removeprefix("paper_k"))
    return {"mode": "paper", "gain": gain / DEVICES["cpu"] if kind == "cpu" else gain}


def play_cell(cell: PrintedCell, mode: str) -> list[PlayedRun]:
    """Play the runs of a cell."""
    deadline, arguments = cell.tightness * fastest(cell.kind, cell.model), arguments_of(mode, cell.kind)
    first = FASTEST_SEED + 1 + RUNS * MODELS.index(cell.model)
    return [play(cell.kind, cell.model, arguments, deadline, seed, cell.changed) for seed in range(first, first + RUNS)]


def play_tables(cells: Sequence[PrintedCell] = PRINTED) -> Figures:
    """Play all cells, print them beside the paper's, and return their figures."""
    modes = [*(f"paper_k{gain}" for gain in GAINS), "default"]
    played = {(cell, mode): play_cell(cell, mode) for cell in cells for mode in modes}
    figures: Figures = {}
    for (cell, mode), runs in played.items():
        if (shown := {"paper_k1": "paper", "default": "default"}.get(mode)) is not None:
            figures |= {figure(cell, shown, what): number for what, number in _figures(runs).items()}
    for table_name in dict.fromkeys(cell.table for cell in cells):
        for tight in (True, False):
            some = [cell for cell in cells if cell.table == table_name and (cell.tightness == 1.0) == tight]
            for mode in modes if some else ():
                figures[by_table(mode, table_name, tight)] = fmean(
                    abs(run.error) for cell in some for run in played[cell, mode]
                )
    print_tables(cells, figures)
    return figures


def _figures(runs: Sequence[PlayedRun]) -> dict[str, float]:
    errors = [run.error for run in runs]
    return {
        "error": fmean(map(abs, errors)),
        "earliest": min(0.0, *errors),
        "latest": max(0.0, *errors),
        "devices": fmean(run.devices for run in runs),
    }


def print_tables(cells: Sequence[PrintedCell], figures: Figures) -> None:
    """Print each cell beside the paper's."""
    whats = ("error", "earliest", "latest", "devices")
    rows = [
        [cell.table, cell.model, cell.tightness, *(getattr(cell, what) for what in whats),
         *(figures[figure(cell, mode, what)] for mode in ("paper", "default") for what in whats)]
        for cell in cells
    ]  # fmt: skip
    table(
        ["table", "model", "d_c", *(f"{who} {what}" for who in ("printed", "paper", "default") for what in whats)], rows
    )
