"""Triage: who can still be brought home in time, by what is believed so far?

Moore and Hodgson's algorithm keeps the most jobs that can end by their deadlines, if their work is known. Here it is
known with much doubt, and looking costs time. What that changes:

- Nobody is explored. A job that has shown nothing is believed to be as usual; it is tried when the rule picks it.
- A job is planned with a low quantile of its work: an optimist keeps too many, and the next look repairs it; whoever is
  dropped gets no data, and nothing repairs that.
- A job is given up only when it is unlikely even with all of the time to itself, and only for now.
- Sets of the same number are as good, and forecasts tremble: whoever trains already stays among the kept if that costs
  nobody. It spares a sixth of the switches.
- The kept ones run one after another by deadline, so that each ends as early as it can, and all slack is kept for
  errors. LARA's shares, by which each ends exactly at its deadline, keep none.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.planning.chance import Judge, Judgement, served_in_order
from lightning_core.planning.moore_hodgson import largest_feasible_set


class Triage:
    """The most jobs that may still make it, by a hopeful forecast; the most urgent of them first.

    Who is given up for now, :class:`~lightning_core.planning.chance.Judge` says; if no job passes, the likeliest go
    first. Those who pass and are not kept come after the kept ones, by deadline.

    Args:
        level: the quantile of the forecast work that a job is planned with.
        judge_after: loss cells that a job must have shown before it is judged.
        min_chance: below it a job is given up for now.
        slice_cells: loss cells that a job shows before another that is kept may take its place.
        max_slice: seconds after which another may do so in any case.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(
        self,
        level: float = 0.3,
        judge_after: int = 10,
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
        # Of those who have a slice, by place: when it began, and the cells that they had shown.
        self._slices: dict[int, tuple[float, int]] = {}

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
        trains = np.flatnonzero(np.isin(jobs.row, list(self._slices)))
        return largest_feasible_set(work, jobs.deadline, now, jobs.weight, jobs.size, jobs.devices, trains)

    def _go_on(self, jobs: JobView, order: IntArray, first: BoolArray, now: float) -> IntArray:
        """Whoever of the kept ones is in the middle of a slice goes on before the others."""
        going = {
            place: (began, shown)
            for place, (began, shown) in self._slices.items()
            if (row := int(np.searchsorted(jobs.row, place))) < len(jobs)
            and jobs.row[row] == place
            and first[row]
            and jobs.cells[row] - shown < self.slice_cells
            and now - began < self.max_slice
        }
        if going:
            going_on = np.isin(jobs.row[order], list(going))
            order = np.concatenate([order[going_on], order[~going_on]])
        lead = order[: jobs.devices]
        self._slices = {
            place: going.get(place, (now, cells))
            for place, cells in zip(jobs.row[lead].tolist(), jobs.cells[lead].tolist(), strict=True)
        }
        return order
