"""Triage: which jobs can still finish in time, by what is believed so far.

Moore and Hodgson's algorithm keeps the most jobs that can end by their deadlines if their work is known. Here it is
very uncertain, and observing costs time. That changes the following:

- There is no exploration. A job that has shown nothing follows the prior; it is tried when the rule picks it.
- A job is planned with a low quantile of its work: an optimist keeps too many jobs, which the next report corrects; a
  dropped job gets no data, and nothing corrects that.
- A job is given up only if it is unlikely even with all of the time to itself, and only for now.
- Sets of equal size are equally good, and forecasts fluctuate: a job that trains stays among the kept if that costs no
  other job. It saves a sixth of the switches.
- The kept jobs run one after another by deadline, so that each ends as early as it can and all slack is left for
  errors. LARA's shares, by which each ends exactly at its deadline, leave none.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, among, kept_by_row
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.saved_state import Stateful
from lightning_core.planning.chance import MIN_CELLS_TO_PLAN, Judge, Judgement, served_in_order
from lightning_core.planning.moore_hodgson import largest_feasible_set


class Triage(Stateful):
    """The most jobs that may still finish in time, by an optimistic forecast; the most urgent of them first.

    :class:`~lightning_core.planning.chance.Judge` decides which jobs are given up for now; if no job passes, the
    likeliest go first. Jobs that pass and are not kept come after the kept ones, by deadline.

    Args:
        level: Quantile of the forecast work that a job is planned with.
        judge_after: Loss cells that a job must show before it is judged.
        min_chance: Minimum chance of a job; below it the job is given up for now.
        slice_cells: Loss cells that a job shows before another kept job may take its place.
        max_slice: Seconds after which another may do so in any case.

    Raises:
        ValueError: If an argument is out of its range.
    """

    STATE = ("_slices",)

    def __init__(
        self,
        level: float = 0.1,
        judge_after: int = MIN_CELLS_TO_PLAN,
        min_chance: float = 0.15,
        slice_cells: int = 20,
        max_slice: float = 10.0,
    ) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level must be above 0 and below 1, got {level}")
        if slice_cells < 1:
            raise ValueError(f"slice_cells must be at least 1, got {slice_cells}")
        if not 0 <= max_slice < np.inf:
            raise ValueError(f"max_slice must be at least 0 seconds and finite, got {max_slice}")
        self.level = level
        self.slice_cells = slice_cells
        self.max_slice = max_slice
        self._judge = Judge(judge_after, min_chance)
        # Of the jobs with a slice, by row: when it began, and the cells that they had shown.
        self._slices: dict[int, tuple[float, int]] = {}

    def keep(self, stays: BoolArray) -> None:
        self._slices = kept_by_row(self._slices, stays)

    def plan(self, jobs: JobView, now: float) -> Plan:
        judgement = self._judge(jobs, now)
        occupied = judgement.occupied_time(self.level)
        first = self._kept(jobs, judgement, occupied, now)
        key = np.where(judgement.passes, jobs.deadline, -judgement.chance)
        order = np.lexsort((key, np.where(judgement.passes, ~first, 2)))
        order = self._go_on(jobs, order, first, now)
        return served_in_order(jobs, judgement, first, order, occupied, now)

    def _kept(self, jobs: JobView, judgement: Judgement, occupied: FloatArray, now: float) -> BoolArray:
        if not judgement.passes.any():
            return judgement.passes
        work = np.where(judgement.passes, occupied, np.inf)
        trains = np.flatnonzero(among(jobs.row, self._slices))
        return largest_feasible_set(work, jobs.deadline, now, jobs.weight, jobs.size, jobs.devices, trains)

    def _go_on(self, jobs: JobView, order: IntArray, first: BoolArray, now: float) -> IntArray:
        """Move the kept jobs that are in the middle of a slice to the front."""
        at = np.searchsorted(jobs.row, list(self._slices)).tolist()
        going = {
            table_row: (began, shown)
            for (table_row, (began, shown)), row in zip(self._slices.items(), at, strict=True)
            if row < len(jobs)
            and jobs.row[row] == table_row
            and first[row]
            and jobs.cells[row] - shown < self.slice_cells
            and now - began < self.max_slice
        }
        if going:
            going_on = among(jobs.row[order], going)
            order = np.concatenate([order[going_on], order[~going_on]])
        lead = order[: jobs.devices]
        self._slices = {
            row: going.get(row, (now, cells))
            for row, cells in zip(jobs.row[lead].tolist(), jobs.cells[lead].tolist(), strict=True)
        }
        return order
