"""Losses and progress that a training has yet to report, and the numbered reports made of them."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

from lightning_core.core.events import BadLosses, Cell, Checkpoint, Horizon, Report
from lightning_core.core.limits import MAX_REPORTED_CELLS
from lightning_core.core.reported import Hang, HyperParameters, LearningRates, MemoryUse
from lightning_core.core.targets import Met


class Numbering(NamedTuple):
    """Where the numbers of reports to one scheduler are."""

    reports: int
    cells: int
    began: tuple[int, float] | None
    """Batches and busy seconds at its first report."""


class Outbox:
    """Collects the news of one job for its next report.

    The training thread stores attributes and adds cells; the reporting thread makes the reports. There is no lock:
    each attribute is stored in one step.

    Attributes:
        progress: Batches since the job began, and busy seconds and rejected losses of this process. None before the
            training begins.
        evaluated: Whether each cell is a whole evaluation.
        checkpoint: Newest checkpoint.
        horizon: Where the training ends by itself, without its seconds.
        ends_by: Monotonic time at which a time limit ends the training.
        bad_losses: Newest run of losses that are NaN or infinite.
        in_slow_phase: Whether the training does something other than its batches, which may take long.
        hang: Step that hangs; None if none does.
        learning_rates: Learning rates of the training, reported until a report with them has arrived.
        epoch_batches: Batches of an epoch, for a target in epochs; reported as they are.
        memory: Memory of the training, once it has trained; reported as they are.
        hyper_parameters: What it is trained with; reported as they are.
        used: Seconds of its device that the training has used; None where that is unknown.
        met: What met the target; stored after the cell that did it, so that no report has it without that cell.
    """

    def __init__(self) -> None:
        self.progress: tuple[int, float, int] | None = None
        self.evaluated = False
        self.checkpoint: Checkpoint | None = None
        self.horizon: Horizon | None = None
        self.ends_by = math.inf
        self.bad_losses: BadLosses | None = None
        self.in_slow_phase = True
        self.hang: Hang | None = None
        self.learning_rates: LearningRates | None = None
        self.epoch_batches: int | None = None
        self.memory: MemoryUse | None = None
        self.hyper_parameters: HyperParameters | None = None
        self.met: Met | None = None
        self.used: float | None = None
        self._arrived_memory: MemoryUse | None = None
        self._arrived_parameters: HyperParameters | None = None
        self._arrived_epoch: int | None = None
        self._arrived_rates: LearningRates | None = None
        self._cells: deque[Cell] = deque()
        self._began: tuple[int, float] | None = None
        self._number = 0
        self._arrived = self._before = 0
        self._sent: tuple[int, float, int] | None = None

    @property
    def has_progress(self) -> bool:
        """Return whether the training has moved since the last report."""
        return self.progress != self._sent

    @property
    def has_trained(self) -> bool:
        """Return whether the training has done a batch since its first report."""
        progress, began = self.progress, self._began
        return progress is not None and began is not None and progress[0] > began[0]

    def add(self, cell: Cell) -> None:
        """Add a cell, which is kept until a report with it has arrived."""
        self._cells.append(cell)

    def make_report(self, job: str, incarnation: int, version: int) -> Report | None:
        """Return the next report; None before the training begins.

        Args:
            job: Name of the job.
            incarnation: Its incarnation.
            version: Version of the newest known directive.
        """
        progress = self.progress
        if progress is None:
            return None
        met = self.met  # before the cells, to which the training thread adds first
        waiting = tuple(self._cells)[:MAX_REPORTED_CELLS]  # in one step: the training thread adds to them
        cells = tuple(cell._replace(number=cell.number - self._before) for cell in waiting)
        batches, busy, rejected = self._sent = progress
        if self._began is None:
            self._began = batches, 0.0
        began, busy_before = self._began
        self._number += 1
        return Report(
            job, incarnation, self._number, version, batches, busy - busy_before, cells, rejected, began,
            self.evaluated, self.checkpoint, self._horizon_now(), self.bad_losses, self.in_slow_phase,
            self.hang, None if (rates := self.learning_rates) is self._arrived_rates else rates,
            None if (epoch := self.epoch_batches) == self._arrived_epoch else epoch,
            None if (memory := self.memory) == self._arrived_memory else memory,
            None if (parameters := self.hyper_parameters) == self._arrived_parameters else parameters, met, self.used,
        )  # fmt: skip

    def note_arrival(self, report: Report) -> None:
        """Forget the cells of a report that has arrived, and that what else is reported once is to be reported."""
        self._arrived_rates = report.learning_rates or self._arrived_rates
        self._arrived_epoch = report.epoch_batches or self._arrived_epoch
        self._arrived_memory = report.memory or self._arrived_memory
        self._arrived_parameters = report.hyper_parameters or self._arrived_parameters
        for _ in report.cells:
            self._cells.popleft()
        self._arrived += len(report.cells)

    def start_over(self) -> None:
        """Number reports and cells from 1 and count busy seconds from now, as a new incarnation does."""
        self._number = 0
        self._arrived_rates = self._arrived_epoch = self._arrived_memory = self._arrived_parameters = None
        self._before = self._arrived
        self._began = None if self.progress is None else self.progress[:2]

    def numbering(self) -> Numbering:
        """Return how reports to the present scheduler are numbered."""
        return Numbering(self._number, self._arrived - self._before, self._began)

    def resume(self, kept: Numbering) -> None:
        """Go on as with a scheduler that knows earlier reports, after others went elsewhere."""
        self.start_over()
        self._number, self._began = kept.reports, kept.began
        self._before -= kept.cells

    def _horizon_now(self) -> Horizon | None:
        if self.horizon is None or self.ends_by == math.inf:
            return self.horizon
        return self.horizon._replace(seconds=max(self.ends_by - time.monotonic(), 0.0))
