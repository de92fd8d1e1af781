"""Gavel's policy for jobs with deadlines on several kinds of GPUs, as a policy of our scheduler."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from scipy.optimize import linprog

from lightning_core.core.arrays import FloatArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index


class GavelOnKinds:
    """Gavel (Narayanan et al., OSDI 2020, sections 4.2 and 5): a linear program over fractions X of time on kinds.

    With T the throughput of job m on kind j, normalised by that on its fastest, and s_m / d_m the throughput that its
    deadline needs: maximise the sum of throughput(m, X) = sum_j T_mj X_mj subject to throughput(m, X) >= s_m / d_m,
    sum_j X_mj <= 1, and sum_m size_m X_mj <= devices of j. The paper's other form divides by cost; where all devices
    cost alike and none is given back, that is this one. Time is given in rounds: on each kind to those whose fraction
    there most exceeds what they have had of it, as many as fit.

    Args:
        relaxed: What to do if not all deadlines can be kept: drop all of them from the program, as its authors' code
            does (False), or minimise the total shortfall (True).
        length: Seconds of a round.
    """

    knows_kinds: Literal[True] = True

    def __init__(self, relaxed: bool = False, length: float = 360.0) -> None:
        self.relaxed = relaxed
        self.length = length
        self._until = -math.inf
        self._chosen: dict[int, int] = {}  # kind of each job that has devices, by row
        self._had: dict[int, tuple[FloatArray, int]] = {}  # rounds on each kind, and rounds since it arrived
        self._parts: dict[int, FloatArray] = {}

    def plan(self, jobs: JobView, now: float) -> Plan:
        n, k, ids = len(jobs), len(jobs.kinds), jobs.row.tolist()
        new = [row for row in ids if row not in self._parts]
        if now >= self._until - 1e-6:
            self._until = now + self.length
            parts = self._program(jobs, now)
            self._parts = dict(zip(ids, parts, strict=True))
            self._had = {row: self._had.get(row, (np.zeros(k), 0)) for row in ids}
            self._chosen = self._rounds(jobs, ids)
            for row in ids:
                had, rounds = self._had[row]
                if row in self._chosen:
                    had = had + (np.arange(k) == self._chosen[row])
                self._had[row] = had, rounds + 1
        else:
            self._parts |= dict.fromkeys(new, np.zeros(k))
            self._chosen = self._fill(jobs, {row: at for row, at in self._chosen.items() if row in ids})
        kind = np.array([self._chosen.get(row, -1) for row in ids])
        chosen = kind >= 0
        finish = np.full(n, np.nan)
        some = np.flatnonzero(chosen)
        finish[some] = now + jobs.work[some] / np.maximum(jobs.pace[some, kind[some]], 1e-9)
        return Plan(
            order=np.lexsort((~chosen,)),
            share=chosen.astype(float),
            finish=finish,
            codes=np.full(n, index("first_in_line")),
            waiting=np.full(n, index("no_room")),
            numbers=np.zeros((n, 2)),
            work_conserving=False,
            replan_at=self._until,
            kind=kind,
        )

    def _rounds(self, jobs: JobView, ids: list[int]) -> dict[int, int]:
        """Return the kind of each job that has devices in the next round: by priority on its kind (section 5)."""
        pairs = []
        for at, row in enumerate(ids):
            had, rounds = self._had[row]
            for kind in np.flatnonzero(self._parts[row] > 1e-6).tolist():
                due = self._parts[row][kind] * (rounds + 1) / (had[kind] + 0.01)
                stays = self._chosen.get(row) == kind
                pairs.append((-round(float(due), 6), not stays, at, kind))
        chosen: dict[int, int] = {}
        free = list(jobs.kinds)
        for _, _, at, kind in sorted(pairs):
            if ids[at] not in chosen and jobs.size[at] <= free[kind]:
                chosen[ids[at]] = kind
                free[kind] -= int(jobs.size[at])
        return self._fill(jobs, chosen)

    def _fill(self, jobs: JobView, chosen: dict[int, int]) -> dict[int, int]:
        """Give devices that would be idle until the round ends to jobs that have none, each on its fastest kind."""
        free = list(jobs.kinds)
        for at, row in enumerate(jobs.row.tolist()):
            if row in chosen:
                free[chosen[row]] -= int(jobs.size[at])
        for at, row in enumerate(jobs.row.tolist()):
            if row not in chosen:
                fits = [kind for kind in np.argsort(-jobs.pace[at]).tolist()
                        if jobs.pace[at, kind] > 0 and jobs.size[at] <= free[kind]]  # fmt: skip
                if fits:
                    chosen[row] = fits[0]
                    free[fits[0]] -= int(jobs.size[at])
        return chosen

    def _program(self, jobs: JobView, now: float) -> FloatArray:
        """Return the fraction of time of each job on each kind, shape ``(n, k)``."""
        n, k = jobs.pace.shape
        need = jobs.work / np.maximum(jobs.deadline - now, 1.0)
        in_reach = need <= 1.0
        need = np.where(in_reach, need, 0.0)
        at_once = np.zeros((n + k, n * k))
        for at in range(n):
            at_once[at, at * k : (at + 1) * k] = 1.0
        for kind in range(k):
            at_once[n + kind, kind::k] = jobs.size
        limit = np.concatenate([np.ones(n), np.array(jobs.kinds, np.float64)])
        does = np.zeros((n, n * k))
        for at in range(n):
            does[at, at * k : (at + 1) * k] = jobs.pace[at]
        bounds = [(0.0, 1.0 if pace > 0 else 0.0) for pace in jobs.pace.ravel().tolist()]
        best = linprog(-jobs.pace.ravel(), np.vstack([at_once, -does]), np.concatenate([limit, -need]), bounds=bounds)
        if best.status != 0 and self.relaxed:
            need = self._nearest(at_once, limit, does, need, bounds)
            best = linprog(
                -jobs.pace.ravel(), np.vstack([at_once, -does]), np.concatenate([limit, -need + 1e-9]), bounds=bounds
            )
        if best.status != 0:
            best = linprog(-jobs.pace.ravel(), at_once, limit, bounds=bounds)
        return np.asarray(best.x).reshape(n, k)

    @staticmethod
    def _nearest(
        at_once: FloatArray, limit: FloatArray, does: FloatArray, need: FloatArray, bounds: list[tuple[float, float]]
    ) -> FloatArray:
        """Return feasible throughputs whose total shortfall from these is minimal."""
        n, m = does.shape
        rows = np.vstack([np.hstack([at_once, np.zeros((len(at_once), n))]), np.hstack([-does, -np.eye(n)])])
        short = linprog(
            np.concatenate([np.zeros(m), np.ones(n)]), rows, np.concatenate([limit, -need]),
            bounds=[*bounds, *((0.0, float(one)) for one in need)],
        )  # fmt: skip
        nearest: FloatArray = np.maximum(need - np.asarray(short.x)[m:], 0.0) * (1 - 1e-9)
        return nearest
