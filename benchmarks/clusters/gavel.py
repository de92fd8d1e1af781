"""Gavel's policies for jobs with deadlines, as policies of our scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.sequencing import completion_times


class Gavel:
    """Gavel (OSDI 2020) with deadlines: a linear program decides the fraction of time for which each job should run.

    With x the fraction, g the devices that its user asked for, w the seconds of work left and d those to the deadline:
    maximise sum x subject to x >= w / d for each job and sum g x <= devices. Time is given in rounds, to the jobs whose
    fraction most exceeds what they have had, as many as fit. A job that continues keeps its devices. Within a round, a
    job that arrives starts if devices are idle.

    Args:
        relaxed: What to do if not all deadlines can be kept: drop all of them from the program, as its authors' code
            does (False), or minimise the total shortfall (True).
        length: Seconds of a round.
    """

    def __init__(self, relaxed: bool = False, length: float = 360.0) -> None:
        self.relaxed = relaxed
        self.length = length
        self._until = -math.inf
        self._chosen: list[int] = []
        self._had: dict[int, tuple[int, int]] = {}  # rounds in which it ran, and rounds since it arrived

    def plan(self, jobs: JobView, now: float) -> Plan:
        n, ids = len(jobs), jobs.row.tolist()
        if now >= self._until - 1e-6:
            self._until = now + self.length
            parts = self._linear_program(jobs.work, jobs.deadline - now, jobs.size, jobs.devices)
            had = {id_: self._had.get(id_, (0, 0)) for id_ in ids}
            due = [parts[row] * (had[id_][1] + 1) / (had[id_][0] + 0.01) for row, id_ in enumerate(ids)]
            runs = np.isin(jobs.row, self._chosen)
            order = sorted(range(n), key=lambda row: (-round(due[row], 6), not runs[row], row))
            self._chosen = self._fitting(jobs, order)
            self._had = {p: (ran + (p in self._chosen), rounds + 1) for p, (ran, rounds) in had.items()}
        first = [ids.index(id_) for id_ in self._chosen if id_ in ids]
        rest = [row for row in range(n) if row not in first]
        self._chosen = self._fitting(jobs, [*first, *rest])
        chosen = np.isin(jobs.row, self._chosen)
        order_now = np.lexsort((~chosen,))
        finish = np.where(chosen, completion_times(jobs.work, jobs.size, order_now, jobs.devices, now), np.nan)
        return Plan(
            order=order_now,
            share=chosen.astype(float),
            finish=finish,
            codes=np.full(n, index("first_in_line")),
            waiting=np.full(n, index("no_room")),
            numbers=np.zeros((n, 2)),
            work_conserving=False,
        )

    @staticmethod
    def _fitting(jobs: JobView, order: Sequence[int]) -> list[int]:
        free, chosen = jobs.devices, []
        for row in order:
            if jobs.size[row] <= free:
                free -= int(jobs.size[row])
                chosen.append(int(jobs.row[row]))
        return chosen

    def _linear_program(self, work: FloatArray, left: FloatArray, size: IntArray, devices: int) -> FloatArray:
        need = work / np.maximum(left, 1.0)
        in_reach = need <= 1.0
        minimum = np.where(in_reach, need, 0.0)
        best = linprog(
            -np.ones(len(work)), size[None, :], [devices], bounds=np.column_stack([minimum, np.ones(len(work))])
        )
        if best.status == 0:
            return np.asarray(best.x)
        minimum = self._nearest(minimum, size, devices) if self.relaxed else np.zeros(len(work))
        best = linprog(
            -np.ones(len(work)), size[None, :], [devices], bounds=np.column_stack([minimum, np.ones(len(work))])
        )
        return np.asarray(best.x) if best.status == 0 else minimum

    @staticmethod
    def _nearest(minimum: FloatArray, size: IntArray, devices: int) -> FloatArray:
        """Return feasible fractions whose total shortfall from these is minimal."""
        n = len(minimum)
        short = linprog(-np.ones(n), size[None, :], [devices], bounds=np.column_stack([np.zeros(n), minimum]))
        return np.asarray(short.x) * (1 - 1e-9)
