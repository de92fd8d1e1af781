"""Triage: who can still be saved, by what is believed so far?"""

from __future__ import annotations

import numpy as np

from lightning_core.policies.chance import chances, expected_work, judged, quantile
from lightning_core.policies.guarded_edf import reasons
from lightning_core.policies.in_order import ends_in_order
from lightning_core.policies.moore_hodgson import largest_feasible_set
from lightning_core.types import BoolArray, JobView, Plan


class Triage:
    """The most jobs that can be expected to make it, most urgent first; the others get what nobody else needs.

    Args:
        level: the quantile of the forecast work that a job is planned with.
        least_chance: below it a job is given up for now.
        judge_after: loss cells that a job must have shown before it is judged.
        slice_cells: loss cells that a job shows before another may take its place.
        longest: seconds after which another may take its place in any case.
    """

    def __init__(
        self,
        level: float = 0.4,
        least_chance: float = 0.15,
        judge_after: int = 20,
        slice_cells: int = 8,
        longest: float = 10.0,
        rule: str = "mh",
    ) -> None:
        self.level, self.least_chance, self.judge_after = level, least_chance, judge_after
        self.slice_cells, self.longest, self.rule = slice_cells, longest, rule
        self._since: dict[int, tuple[float, int]] = {}

    def plan(self, jobs: JobView, now: float) -> Plan:
        slack = np.maximum(jobs.deadline - now, 1e-9)
        known = judged(jobs, self.judge_after)
        work = expected_work(jobs, known, slack)
        chance = chances(work, slack)
        passes = ~known | (chance >= self.least_chance)
        occupied = np.minimum(quantile(work, self.level), slack)
        n = len(jobs)
        if passes.any():
            if self.rule == "edf":
                first = passes
                order = np.lexsort((jobs.deadline, ~first))
            elif self.rule == "mh":
                first = largest_feasible_set(
                    np.where(passes, occupied, np.inf), jobs.deadline, now, jobs.weight, jobs.size, jobs.devices
                )
                order = np.lexsort((np.where(passes, jobs.deadline, -chance), np.where(passes, ~first, 2)))
            else:  # index
                first = passes
                e = np.mean(np.minimum(work, slack[:, None]), axis=1)
                order = np.lexsort((-chance / e, ~passes))
            order = self._stay(order, jobs, now, first)
            served = order[passes[order]]
        else:
            first = np.ones(n, np.bool_)
            order = np.lexsort((jobs.deadline, -chance))
            served = order
        lead = order[: jobs.devices]
        self._since = {
            p: self._since.get(p, (now, c))
            for p, c in zip(jobs.place[lead].tolist(), jobs.cells[lead].tolist(), strict=True)
        }
        ends = ends_in_order(occupied, jobs.size, served, jobs.devices, now)
        duty = np.zeros(n)
        duty[served] = 1.0
        codes, waiting = reasons(known, passes, first)
        finite = np.isfinite(jobs.work)
        return Plan(
            order=order,
            duty=duty,
            finish=ends - occupied + jobs.work,
            codes=codes,
            waiting=waiting,
            numbers=np.stack([np.where(finite, jobs.work, 0.0), np.where(known, chance, 0.0)], axis=1),
        )

    def _stay(self, order, jobs: JobView, now: float, first: BoolArray):
        """Whoever is in the middle of a slice goes on."""
        if not self._since:
            return order
        stay = np.zeros(len(jobs), np.bool_)
        for row in np.flatnonzero(np.isin(jobs.place, list(self._since))).tolist():
            since, cells = self._since[int(jobs.place[row])]
            if first[row] and jobs.cells[row] - cells < self.slice_cells and now - since < self.longest:
                stay[row] = True
            else:
                self._since[int(jobs.place[row])] = (now, int(jobs.cells[row]))
        return order[np.argsort(~stay[order], kind="stable")]
