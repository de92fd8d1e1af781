"""All jobs of a scheduler as columns: one row a job in the order of submission, rows are never reused."""

from __future__ import annotations

from collections import deque
from math import isfinite, isnan

import numpy as np

from lightning_core.reasons import Reason
from lightning_core.types import (
    BatchTarget,
    BoolArray,
    Directive,
    End,
    FloatArray,
    IntArray,
    Job,
    JobStatus,
    State,
    Verdict,
)

# Throughput follows the last 30 busy seconds or so: long enough to be calm, short enough to notice a slower phase.
MEMORY = 30.0


class JobTable:
    """The columns and, beside them, what does not fit in an array.

    Args:
        window: cells whose mean is the current loss.
    """

    active: BoolArray
    exact: BoolArray  # target in batches
    goal: FloatArray  # target loss or number of batches
    deadline: FloatArray
    submitted: FloatArray
    incarnation: IntArray
    last_report: IntArray
    batches: IntArray
    busy: FloatArray
    recent_batches: FloatArray  # discounted sums for the throughput
    recent_busy: FloatArray
    cells: IntArray
    last_position: IntArray
    rejected: IntArray  # losses, by the worker
    rejected_cells: IntArray  # by us
    duty: FloatArray
    code: IntArray
    work_low: FloatArray
    work_mid: FloatArray
    work_high: FloatArray
    finish: FloatArray
    spare: FloatArray
    verdict_known: BoolArray
    infeasible: BoolArray
    feasible: BoolArray
    ended_at: FloatArray

    def __init__(self, window: int) -> None:
        self._window = window
        self.row_of: dict[str, int] = {}
        self.names: list[str] = []
        self.jobs: list[Job] = []
        self.directives: list[Directive] = []
        self.recent: list[deque[float]] = []
        self.waiting: list[dict[int, tuple[int, float]]] = []
        self.details: dict[int, str] = {}
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(16, kind))

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: Job, now: float, directive: Directive) -> int:
        """A new row; its number."""
        row = len(self)
        if row == len(self.active):
            for name, kind in _COLUMNS.items():
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(row, kind)]))
        self.row_of[job.name] = row
        self.names.append(job.name)
        self.jobs.append(job)
        self.directives.append(directive)
        self.recent.append(deque(maxlen=self._window))
        self.waiting.append({})
        self.active[row] = True
        self.exact[row] = isinstance(job.target, BatchTarget)
        self.goal[row] = job.target.batches if isinstance(job.target, BatchTarget) else job.target.at_most
        self.submitted[row] = now
        self.deadline[row] = now + job.deadline
        self.incarnation[row] = 1
        self.code[row] = -1
        return row

    def end(self, row: int, now: float, end: End) -> None:
        self.directives[row] = end
        self.active[row] = False
        self.duty[row] = 0.0
        self.ended_at[row] = now
        self.waiting[row].clear()

    def active_rows(self) -> IntArray:
        return np.flatnonzero(self.active[: len(self)])

    def progress(self, row: int, batches: int, busy: float, rejected: int, began: int) -> None:
        """Cumulative counts, which never go backwards; batches from before this worker began cost it no time."""
        more_batches = max(batches - int(self.batches[row]), 0)
        more_busy = max(busy - float(self.busy[row]), 0.0)
        keep = np.exp(-more_busy / MEMORY)
        timed = max(batches - max(int(self.batches[row]), began), 0)
        self.recent_batches[row] = keep * self.recent_batches[row] + timed
        self.recent_busy[row] = keep * self.recent_busy[row] + more_busy
        self.batches[row] += more_batches
        self.busy[row] += more_busy
        self.rejected[row] = max(int(self.rejected[row]), rejected)

    def throughput(self, rows: IntArray) -> FloatArray:
        """Batches per busy second, shape ``(n,)``; NaN until the first batch."""
        batches, busy = self.recent_batches[rows], self.recent_busy[rows]
        known = (batches > 0) & (busy > 0)
        return np.where(known, batches / np.where(known, busy, 1.0), np.nan)

    # ------------------------------------------------------------------------------------------------ to look at

    def verdict(self, row: int) -> Verdict | None:
        """Made from the columns when somebody looks: a round must not make an object a job."""
        directive = self.directives[row]
        if isinstance(directive, End):
            return directive.verdict
        if not self.verdict_known[row]:
            return None
        if self.infeasible[row]:
            return Verdict.INFEASIBLE
        return Verdict.FEASIBLE if self.feasible[row] else Verdict.AT_RISK

    def reason(self, row: int) -> Reason:
        """Of the verdict: why the job is believed to make it or not; of the end, once it has ended."""
        directive = self.directives[row]
        if isinstance(directive, End):
            return directive.reason
        spare, finish = float(self.spare[row]), float(self.finish[row])
        match self.verdict(row):
            case Verdict.FEASIBLE:
                return Reason("on_time", (float(self.deadline[row]) - finish,))
            case Verdict.INFEASIBLE if isfinite(self.work_low[row]):
                return Reason("too_long", (float(self.work_low[row]), spare))
            case Verdict.INFEASIBLE:
                return Reason("flat")
            case Verdict.AT_RISK if isfinite(finish):
                return Reason("late", (finish - float(self.deadline[row]),))
            case None:
                return Reason("too_early")
            case _:
                return directive.reason

    def status(self, row: int, now: float) -> JobStatus:
        directive = self.directives[row]
        ended = isinstance(directive, End)
        recent = self.recent[row]
        throughput = float(self.throughput(np.array([row]))[0])
        if isinstance(directive, End):
            state = State.ENDED
        elif directive.duty > 0:
            state = State.RUNNING if self.last_report[row] else State.QUEUED
        else:
            state = State.HELD if self.batches[row] else State.QUEUED
        return JobStatus(
            name=self.names[row],
            state=state,
            verdict=self.verdict(row),
            reason=self.reason(row),
            target=self.jobs[row].target,
            loss=sum(recent) / len(recent) if recent else None,
            batches=int(self.batches[row]),
            cells=int(self.cells[row]),
            rejected=int(self.rejected[row] + self.rejected_cells[row]),
            share=float(self.duty[row]),
            throughput=None if isnan(throughput) else throughput,
            busy=float(self.busy[row]),
            submitted_at=float(self.submitted[row]),
            deadline=float(self.deadline[row]),
            finish=None if ended else self._finish(row, now),
            finished_at=float(self.ended_at[row]) if ended else None,
            detail=self.details.get(row, ""),
        )

    def _finish(self, row: int, now: float) -> tuple[float, float, float] | None:
        """Early, likely, late: the planned end, give or take what the forecast of the work is unsure of."""
        finish = float(self.finish[row])
        low, mid, high = (float(column[row]) for column in (self.work_low, self.work_mid, self.work_high))
        if not (self.verdict_known[row] and isfinite(mid)):
            return None
        if not isfinite(finish):
            finish = now + mid  # not planned for: the end it would have alone
        share = float(self.duty[row]) or 1.0
        return finish - min((mid - low) / share, finish - now), finish, finish + (high - mid) / share


# The columns and their types stand once, in the class.
_KINDS = {"BoolArray": np.bool_, "FloatArray": np.float64, "IntArray": np.int64}
_COLUMNS = {name: _KINDS[kind] for name, kind in JobTable.__annotations__.items()}
