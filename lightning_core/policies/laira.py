"""LaiRA: look ahead to see which jobs can finish in time, then give a time slice to the one that improves fastest.

Wang, Liu and Zhou, "CoRE-Learning with Look-Ahead and Immediate Resource Allocation", 2025: eqs. 5 to 13, Algorithm 1.
The paper prints the structure and the equations. What it leaves open is read as follows:

- **The look-ahead** (eq. 8) extrapolates velocity and acceleration of the line over all steps that are left, hundreds
  of times as far as they were seen: most of its forecasts explode. By default the drift goes on for 0.3 times the cells
  seen (``damping`` of :class:`~lightning_core.estimators.Kalman`); ``dkf: {damping: null}`` is the printed formula.
- **Units.** s counts batches, as N does; the differences of ln s in eqs. 11 and 12 do not depend on it. The filter
  steps once per cell.
- **First** each job shows some cells, one job after another in the order of submission: "the initial uniform
  allocation", without which neither line nor rate exists.
- **A job that has shown no loss** after a while, because its first validation is far off, goes first as long as it has
  trained for less than an equal share of the time since its submission.
- **If no job is feasible** (eq. 8), all count as feasible. A job with too few cells to look ahead is feasible.
- **The current loss** in eqs. 11 and 12 is the mean over the last cells; a single cell is too noisy for a rate.
- **A negative score.** Of two jobs whose line rises, rho_hat / rho would prefer the harder one. They are ranked by
  rho_hat - rho, behind all jobs that improve.
- **The error** of a slice (eq. 10) is that of ln l at the end of the slice, as forecast by the line before it, over the
  jobs that ran: the others had no data, and their "error" would be the forecast itself.
- **The slice law** is printed with a plus, but a rising error should shorten the slice: its terms are subtracted here.
  What rounding down cuts off is kept for the next slice; otherwise every fluctuation of the error would cost a second.
- **A slice is training time** that its job really had: its clock starts when the job is seen to progress, so that a
  switch, a process that is still starting or a late stop report do not count. It ends early with its job.
- **A target in batches** is feasible if its work fits the time left, and its score is time over work.
- **Several devices**: a slice is the pool's. The best jobs that fit have it together, on whole devices; its clock
  starts with the last of them, and devices that one of them frees go to the next in order. Weights are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, kept_by_row
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Estimator
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Stateful
from lightning_core.estimators.kalman import Kalman
from lightning_core.estimators.ridge import Ridge
from lightning_core.planning.exploration import has_shown_nothing, may_show_more
from lightning_core.planning.sequencing import completion_times
from lightning_core.planning.time_slices import Ranking, SliceController, SliceHolders

# Minimum distance in ln s: at its deadline a job has none left.
MIN_DISTANCE = 1e-9
# Maximum ratio that a reason reports.
MAX_RATIO = 99.0


class Laira(Stateful):
    """Look-ahead and immediate Resource Allocation: time slices for the jobs that improve fastest for what they need.

    As printed, the score of a job falls to 0 towards its deadline, because the required rate then grows without bound:
    urgent jobs starve. That is the paper's rule, and it is kept.

    Args:
        look_ahead: Whether to pass over jobs that would miss their target with all the time that is left (DKF).
            Without it this is the paper's Short Term Allocation (STA).
        ucb: Whether to use the lower confidence bound of the line, in favour of unexplored jobs.
        pd: Whether slices adapt to the error of the forecasts; otherwise each has the initial length.
        explore: Loss cells that each job shows first.
        unit: Seconds per unit of time, of which slices are whole multiples; at least the scheduler's period.
        initial_units: Length of the first slices in units (M_1).
        max_units: Maximum length of a slice in units.
        kp: Units by which a slice shrinks per unit of growth of the error of ln l (proportional gain).
        kd: Units by which a slice shrinks per unit of growth of that growth (derivative gain).
        gamma: Forgetting factor of the line per cell (eq. 9).
        ridge: Weight of the line's penalty (lambda).
        bound: Bound on the norm of a line's parameters (S).
        noise: Sub-Gaussian scale of a cell's ln l (R).
        delta: Probability that the confidence bound fails.
        dkf: Arguments of :class:`~lightning_core.estimators.Kalman`, which looks ahead.
        stall_timeout: Seconds without progress after which a job that has a device is passed over.

    Raises:
        ValueError: If an argument is out of its range.
    """

    positive_losses = True
    STATE = ("_law", "_turns", "_forecasts", "_ranked", "_line", "_filter")

    def __init__(
        self,
        *,
        look_ahead: bool = True,
        ucb: bool = True,
        pd: bool = True,
        explore: int = 5,
        unit: float = 1.0,
        initial_units: int = 5,
        max_units: int = 50,
        kp: float = 20.0,
        kd: float = 5.0,
        gamma: float = 0.9,
        ridge: float = 1e-2,
        bound: float = 1.0,
        noise: float = 0.05,
        delta: float = 0.1,
        dkf: Mapping[str, Any] | None = None,
        stall_timeout: float = 30.0,
    ) -> None:
        if explore < 3:
            raise ValueError(f"explore must be at least 3 cells, got {explore}")
        if not 0 < unit < np.inf:
            raise ValueError(f"unit must be positive and finite, got {unit}")
        for name, number in (("bound", bound), ("noise", noise)):
            if not 0 <= number < np.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {number}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must be above 0 and below 1, got {delta}")
        self.explore = explore
        self.unit = unit
        self.ucb = ucb
        self._confidence = bound, noise, delta
        self._law = SliceController(initial_units, max_units, kp if pd else 0.0, kd if pd else 0.0)
        self._line = Ridge(gamma, ridge)
        self._filter = Kalman(**(dkf or {})) if look_ahead else None
        self._turns = SliceHolders(stall_timeout)
        self._forecasts: dict[int, _SliceForecast] = {}  # by row, for the jobs that have the slice
        self._ranked = Ranking()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        super().restore(state)
        self._forecasts = {row: _SliceForecast(*one) for row, one in self._forecasts.items()}

    def keep(self, stays: BoolArray) -> None:
        for part in (self._line, self._filter, self._turns, self._ranked):
            if part is not None:
                part.keep(stays)
        self._forecasts = kept_by_row(self._forecasts, stays)

    @property
    def banks(self) -> Sequence[Estimator]:
        return [self._line] if self._filter is None else [self._line, self._filter]

    def plan(self, jobs: JobView, now: float) -> Plan:
        rows = int(jobs.row.max()) + 1
        for bank in self.banks:
            bank.grow(rows)
        self._ranked.grow(rows)
        turns = self._turns
        turns.observe(jobs, now)
        if not turns.goes_on(now):
            self._adapt_length(jobs)
            to_explore = self._unexplored(jobs) & ~turns.sits_out(jobs, now)
            if to_explore.any():
                by_turn = np.lexsort((~turns.holds(jobs), ~to_explore))
                turns.start(jobs, by_turn[: int(to_explore.sum())], now, None)
            else:
                self._begin_slice(jobs, now)
        return self._slice_plan(jobs, now)

    def _unexplored(self, jobs: JobView) -> BoolArray:
        """Return which jobs lack a throughput or cells; with no usable loss, a job counts as explored in the end."""
        # One evaluation is worth several cells, but makes no line.
        lacks_line = (jobs.shown < self.explore) & np.isnan(self._line.slope(jobs.row))
        unseen = lacks_line | (jobs.cells < self.explore) | np.isnan(jobs.throughput)
        return np.where(jobs.exact, np.isnan(jobs.work), unseen) & may_show_more(jobs, self.explore)

    def _begin_slice(self, jobs: JobView, now: float) -> None:
        """Run steps 3 to 11 of Algorithm 1."""
        slack = np.maximum(jobs.deadline - now, MIN_DISTANCE)
        seen = ~jobs.exact & (jobs.position > 0) & (jobs.loss > 0) & (jobs.throughput > 0)
        feasible = self._look_ahead(jobs, slack, seen)
        none = not feasible.any()
        feasible |= none
        length = self._law.units * self.unit
        required, forecast = self._rates(jobs, slack, seen, length)
        score = scores(required, forecast)
        trained = jobs.batches / jobs.throughput
        owed = has_shown_nothing(jobs) & (trained < (now - jobs.submitted) / len(jobs))
        order = np.lexsort((jobs.deadline, -score, ~feasible, ~owed, self._turns.sits_out(jobs, now)))
        self._ranked.decide(
            jobs.row[order], (forecast / np.maximum(required, MIN_DISTANCE))[order], feasible[order], none
        )
        rows = self._turns.start(jobs, order, now, length)
        rows = rows[seen[rows]]
        # The forecast of the slice, to be compared with its outcome.
        ahead = self._line.log_loss(jobs.row[rows], jobs.position[rows])
        slope = self._line.slope(jobs.row[rows])
        columns = jobs.row[rows], jobs.position[rows], ahead, slope
        for row, *values in zip(*(column.tolist() for column in columns), strict=True):
            self._forecasts[row] = _SliceForecast(*values)

    def _look_ahead(self, jobs: JobView, slack: FloatArray, seen: BoolArray) -> BoolArray:
        """Return which jobs reach their target with all the time that is left (eq. 8)."""
        feasible = np.ones(len(jobs), np.bool_)
        if self._filter is None:
            return feasible
        feasible[jobs.exact] = ~(jobs.work[jobs.exact] > slack[jobs.exact])
        rows = np.flatnonzero(seen)
        reach = jobs.position[rows] + jobs.throughput[rows] * slack[rows]
        if len(jobs.ends_at):
            reach = np.minimum(reach, jobs.ends_at[rows])
        feasible[rows] = ~(self._filter.predict(jobs.row[rows], reach) > jobs.goal[rows])  # NaN says nothing
        return feasible

    def _rates(self, jobs: JobView, slack: FloatArray, seen: BoolArray, length: float) -> tuple[FloatArray, FloatArray]:
        """Return the required rate of each job (eq. 11) and its forecast rate (eq. 12); NaN where nothing is known.

        A rate is the fall of ln l per unit of ln s. For a target in batches the two are its work and its time.
        """
        required = np.where(jobs.exact, jobs.work, np.nan)
        forecast = np.where(jobs.exact & ~np.isnan(jobs.work), slack, np.nan)
        rows = np.flatnonzero(seen)
        line_rows, position, throughput = jobs.row[rows], jobs.position[rows], jobs.throughput[rows]
        log_loss, batches = np.log(jobs.loss[rows]), throughput * length
        required[rows] = rate(log_loss, np.log(jobs.goal[rows]), position, throughput * slack[rows])
        low = self._line.log_loss(line_rows, position + batches)
        if self.ucb:
            low -= self._line.radius(line_rows, *self._confidence) * self._line.width(line_rows, position + batches)
        forecast[rows] = rate(log_loss, low, position, batches)
        return required, forecast

    def _adapt_length(self, jobs: JobView) -> None:
        """Adapt the slice length to the error of the last slice (eq. 10), over its jobs with a cell since."""
        errors = []
        for row in np.flatnonzero(self._turns.holds(jobs)).tolist():
            expected = self._forecasts.get(int(jobs.row[row]))
            shown = expected is not None and jobs.position[row] > expected.position and jobs.loss[row] > 0
            if expected is not None and shown and np.isfinite(expected.log_loss):
                line = expected.log_loss - expected.slope * np.log(jobs.position[row] / expected.position)
                errors.append(abs(line - np.log(jobs.loss[row])))
        if errors:
            self._law.update(float(np.mean(errors)))
        self._forecasts.clear()

    def _slice_plan(self, jobs: JobView, now: float) -> Plan:
        n, ranked = len(jobs), self._ranked
        served, length = self._turns.holds(jobs), self._turns.length
        rank, ratio = ranked.rank[jobs.row], ranked.ratio[jobs.row]
        out = ranked.out[jobs.row]
        order = np.lexsort((rank, ~served))
        slack = np.maximum(jobs.deadline - now, MIN_DISTANCE)
        occupied = np.where(jobs.work < slack, jobs.work, slack)
        ends = completion_times(occupied, jobs.size, order[~out[order]], jobs.devices, now)
        if length is None:
            codes, waiting = np.full(n, index("explore")), np.full(n, index("explored"))
            numbers = np.stack([jobs.cells.astype(np.float64), np.full(n, float(self.explore))], axis=1)
        else:
            codes, waiting = np.full(n, index("slice")), np.full(n, index("slower"))
            unknown = np.isnan(ratio)
            codes[unknown], waiting[unknown] = index("unjudged"), index("unjudged_later")
            waiting[out] = index("out_of_reach")
            if ranked.none:
                codes[:], waiting[:] = index("nothing_fits"), index("out_of_reach")
            numbers = np.stack([np.clip(np.where(unknown, 0.0, ratio), 0.0, MAX_RATIO), np.full(n, length)], axis=1)
        return Plan(
            order=order,
            share=served.astype(np.float64),
            finish=ends - occupied + jobs.work,
            codes=codes,
            waiting=waiting,
            numbers=numbers,
        )


def rate(log_loss: FloatArray, to: FloatArray, position: FloatArray, batches: FloatArray) -> FloatArray:
    """Return the fall of ln l per unit of ln s, from ``log_loss`` to ``to`` over ``batches`` more (eqs. 11 and 12).

    Example: from a loss of 0.8 after 100 batches to 0.4 with 300 more, ln 2 / ln 4::

        >>> rate(np.log([0.8]), np.log([0.4]), np.array([100.0]), np.array([300.0])).round(6)
        array([0.5])
    """
    falls: FloatArray = (log_loss - to) / np.maximum(np.log1p(batches / position), MIN_DISTANCE)
    return falls


def scores(required: FloatArray, forecast: FloatArray) -> FloatArray:
    """Return the score of each job (eq. 13) from the rates of eqs. 11 and 12, shape ``(n,)``; the highest goes first.

    The score is the forecast rate over the required one. A job that needs none is done but for its last report: inf. A
    job that does not improve ranks behind all others, by how much is missing; one of which nothing is known has -inf.

    Example::

        >>> scores(np.array([2.0, 1.0, 0.0, 1.0, 3.0, np.nan]), np.array([1.0, 2.0, 1.0, -1.0, -1.0, 1.0]))
        array([ 0.5,  2. ,  inf, -2. , -4. , -inf])
    """
    needed = np.where(required > 0, required, 1.0)
    score = np.where(forecast > 0, forecast / needed, forecast - needed)
    score[required <= 0] = np.inf
    score[np.isnan(score) | np.isnan(required)] = -np.inf
    return score


class _SliceForecast(NamedTuple):
    """The line of a job at the start of its slice."""

    position: float
    log_loss: float
    slope: float
    """Fall of ln l per unit of ln s."""
