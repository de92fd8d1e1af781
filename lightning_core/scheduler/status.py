"""Status of a job for users: its verdicts with their reasons, and its forecast."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isinf, isnan

import numpy as np

from lightning_core.core.answers import End, JobForecast, JobStatus, State, Verdict, VerdictChanged, Watched
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.durations import FAR, MAX_FORECAST, is_in_reach
from lightning_core.core.plans import JobView
from lightning_core.core.reasons import STANDS_STILL, Reason
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.estimators.posterior import READY_SHARE
from lightning_core.estimators.stated_work import likeliest, work_left
from lightning_core.planning.confidence import averaged, trusted_chances
from lightning_core.scheduler.device_memory import needed
from lightning_core.scheduler.forecasting import HIGH, LOW, MID, between, forecast_position
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.kinds.kind_view import job_rates
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.tables.table import AT_RISK, FEASIBLE, INFEASIBLE, MISSED, UNKNOWN, JobTable

BELIEFS = (None, Verdict.FEASIBLE, Verdict.AT_RISK, Verdict.INFEASIBLE, Verdict.MISSED)
# Cells that a curve of whole evaluations must have: each is an average already, and there are few.
MIN_EVALUATIONS = 4
# Trusted chance from which on a forecast is likely enough for "feasible", and until which it stays so.
LIKELY, STILL_LIKELY = 0.75, 0.65
# Trusted chance below which a job's likely end is not one in time.
EVEN = 0.5
# Trusted chance below which it is hopeless, and stays so.
HOPELESS, NOT_HOPELESS = 0.05, 0.1
# Fraction by which a job trains further before its forecast is restated: their number grows with the logarithm.
RESTATED_AFTER = 0.1
# Chance from which on the time that a job still needed is said, within a factor of two.
SURE = 0.7
# A forecast is not trusted beyond this many times what a job has trained.
MAX_EXTRAPOLATION = 10.0
# Characters of a text from outside.
MAX_TEXT_LENGTH = 200


def judge(round: Round, view: JobView, finish: FloatArray, curves: AboveFloor) -> list[VerdictChanged]:
    """Give verdicts: infeasible if there is no chance even alone, feasible if planned in time and likely enough.

    Work that is known counts as it is. A forecast from a curve counts by its trusted chance
    (:mod:`lightning_core.planning.confidence`), with a margin in favour of the verdict before; and only if the forecast
    that its user is told (:mod:`lightning_core.estimators.stated_work`) does not contradict the verdict.

    Args:
        round: The round; what is believed is written to its table.
        view: Its jobs.
        finish: When each is expected to reach its target, scheduler time; shape ``(n,)``.
        curves: Estimator that has seen all cells.

    Returns:
        The verdicts that differ from before.
    """
    table, settings, now = round.table, round.settings, round.now
    judged = np.flatnonzero(round.judged)
    rows, exact, finish = round.rows[judged], view.exact[judged], finish[judged]
    deadline = table.due(rows, now)
    spare = np.minimum(deadline - now, MAX_FORECAST)
    table.spare[rows] = spare
    table.finish[rows] = finish
    enough = np.where(table.evaluated[rows], min(MIN_EVALUATIONS, settings.judge_after), settings.judge_after)
    known = ~np.isnan(table.work_mid[rows]) & (exact | (table.cells[rows] >= enough))
    likely, hopeless = np.ones(len(rows), np.bool_), table.work_low[rows] > spare
    by_curve = np.flatnonzero(known & ~exact & (table.last_position[rows] > 0))
    if len(by_curve):
        before = table.belief[rows[by_curve]]
        chance = _chances(table, view, judged[by_curve], now)
        likely[by_curve] = chance >= np.where(before == FEASIBLE, STILL_LIKELY, LIKELY)
        stays = (before == INFEASIBLE) & (chance < NOT_HOPELESS)
        hopeless[by_curve] = stays | (hopeless[by_curve] & (chance < HOPELESS))
        claimed = by_curve[hopeless[by_curve] | (likely & (finish <= deadline))[by_curve]]
        _restate(table, curves, rows[claimed])
        at = rows[claimed]
        until = table.batches[at] + np.fmax(view.throughput[judged[claimed]], 0.0) * spare[claimed]
        until = np.minimum(until, table.ends_at[at])
        likely[claimed] &= ~(table.stated_mid[at] > until)
        hopeless[claimed] &= ~(table.stated_low[at] <= until)
    belief = np.where(likely & (finish <= deadline), FEASIBLE, AT_RISK)
    belief[hopeless] = INFEASIBLE
    belief[~known] = UNKNOWN
    changed = rows[(belief != table.belief[rows]) & known]
    table.belief[rows] = belief
    verdicts = []
    for row in changed.tolist():
        verdict = current_verdict(table, row)
        assert verdict is not None  # it is known, and the job has not ended
        verdicts.append(VerdictChanged(table.names[row], verdict, verdict_reason(table, row)))
    return verdicts


def _chances(table: JobTable, view: JobView, of: IntArray, now: float) -> FloatArray:
    """Return the trusted chances of jobs, averaged over their newest cells, and write them to the table.

    Only a cell that is new changes the average.
    """
    rows = view.row[of]
    new = np.isnan(table.chance[rows]) | (table.judged_at[rows] < table.last_position[rows])
    if new.any():
        some, jobs = rows[new], view.only(of[new])
        trusted = trusted_chances(jobs, now, table.history_share[some])
        table.chance[some] = averaged(table.chance[some], table.judged_at[some], trusted, jobs.position)
    table.judged_at[rows] = table.last_position[rows]
    return table.chance[rows]


def current_verdict(table: JobTable, row: int) -> Verdict | None:
    """Return the verdict of a job; None while it is too early to tell."""
    directive = table.directives[row]
    if row in table.met_at:
        return Verdict.MET
    return directive.verdict if isinstance(directive, End) else BELIEFS[table.belief[row]]


def verdict_reason(table: JobTable, row: int) -> Reason:
    """Return the reason of a job's verdict: made when it is asked for, so that a round makes no object per job."""
    directive = table.directives[row]
    if isinstance(directive, End):
        return directive.reason
    if row in table.met_at:
        return Reason("met_goes_on")
    belief = table.belief[row]
    if belief == UNKNOWN:
        return Reason("too_early")
    if belief == MISSED:
        return Reason("late_held" if table.holds[row] else "late_goes_on")
    if belief in (INFEASIBLE, AT_RISK) and table.ends_first(row) and isfinite(table.reach[row]):
        return _ends_first(table, row)
    if belief in (INFEASIBLE, AT_RISK) and _stands_still(table, row):
        return _flat(table, row)
    limited = bool(table.ends_by[row] < table.deadline[row])  # by max_time or the like
    spare = float(table.spare[row])
    if belief == INFEASIBLE:
        needs, code = float(table.work_low[row]), "too_long_for_end" if limited else "too_long"
        if needs <= spare:  # it stays infeasible until its chance is better than that
            return Reason("uncertain", (0.0, float(table.chance[row])))
        if needs < MAX_FORECAST and table.group_cap[row] < table.speedups[row].sizes[-1]:
            return Reason("too_long_for_cap", (needs, spare, float(table.group_cap[row])), table.group_word)
        if (kinds := table.jobs[row].kinds) and not limited and needs < MAX_FORECAST:
            return Reason("too_long_on", (needs, spare), " or ".join(kinds))
        return Reason(code, (needs, spare)) if needs < MAX_FORECAST else _flat(table, row)
    if directive.reason.code in STANDS_STILL:
        needs = float(table.work_mid[row])
        return Reason("stands_still", (needs, spare)) if needs < MAX_FORECAST else Reason("unsure")
    return _reason_of_time(table, row, table.grant_reason(row), limited=limited)


def _ends_first(table: JobTable, row: int) -> Reason:
    """Return that a training may end by itself before its target; how much it needs, only where that is sure."""
    ends, limit, least = float(table.ends_at[row]), table.limits[row], float(table.stated_low[row])
    if table.exact[row]:
        return Reason("ends_before_known", (ends, float(table.reach[row])), limit)
    if table.belief[row] == INFEASIBLE and least > ends:
        return Reason("ends_before", (ends, least), limit)
    return Reason("may_end_before", (ends,), limit)


def _stands_still(table: JobTable, row: int) -> bool:
    """Return whether a curve has not come nearer to its target in the second half of what was seen."""
    return not table.exact[row] and not table.curves[row].falls()


def _flat(table: JobTable, row: int, otherwise: Reason | None = None) -> Reason:
    """Return that a curve does not come to its target: that it does not move towards it only where that was seen."""
    target = table.jobs[row].target
    if table.exact[row]:
        return Reason("far_late")
    if _stands_still(table, row):
        return Reason("flat_metric" if target.grows else "flat", (), target.observed)
    code = "not_reached" if table.belief[row] == INFEASIBLE else "may_not_reach"
    return otherwise or Reason(code, (), target.observed)


def _reason_of_time(table: JobTable, row: int, granted: Reason, *, limited: bool) -> Reason:
    """Return the reason of the verdict of a job that is feasible or at risk: how early or late it is.

    Args:
        table: All jobs.
        row: Row of the job.
        granted: Reason of its grant.
        limited: Whether its training ends by itself before its deadline.
    """
    share = float(table.group_share[row])
    early = min(float(table.deadline[row]), float(table.ends_by[row])) - float(table.finish[row])
    if not isfinite(early):  # the policy cannot say
        if table.work_mid[row] < MAX_FORECAST:
            return Reason("not_in_share", (share,), table.group_word) if share < inf else granted
        return Reason("unsure") if table.work_low[row] < MAX_FORECAST else _flat(table, row)
    if table.belief[row] == FEASIBLE:
        return Reason("on_time", (early,))
    if early >= 0:
        return Reason("uncertain", (early, float(table.chance[row])))
    if -early > (FAR - 1.0) * (float(table.deadline[row]) - float(table.submitted[row])):
        return _flat(table, row, otherwise=Reason("far_late"))
    if share < inf and not limited:
        return Reason("late_in_share", (-early, share), table.group_word)
    return Reason("late_for_end" if limited else "late", (-early,))


def unmet_reason(
    table: JobTable, curves: AboveFloor, settings: Settings, row: int, ended_by: str, text: str = ""
) -> Reason:
    """Return why a job ended before its target was met: what ended it, its best value, and what it still needed.

    Args:
        table: All jobs.
        curves: Estimator that has seen all cells.
        settings: Settings of the scheduler.
        row: Row of the job.
        ended_by: Code in :data:`lightning_core.core.reasons.ENDED_BY`.
        text: What ended it, from outside.
    """
    text = text.strip().rsplit("\n", 1)[-1][:MAX_TEXT_LENGTH]
    text = f" {text}" if text and ended_by in ("training_ended", "cancelled") else text
    reached, numbers = _reached_code(table, curves, settings, row)
    return Reason(f"{ended_by}_{reached}".rstrip("_"), numbers, text)


def _reached_code(table: JobTable, curves: AboveFloor, settings: Settings, row: int) -> tuple[str, tuple[float, ...]]:
    """Return how far a job has come: a code in :data:`lightning_core.core.reasons.REACHED`, and its numbers."""
    rows, target, batches = np.array([row]), table.jobs[row].target, float(table.batches[row])
    throughput = float(table.throughput(rows)[0])
    if not target.observes and target.work is None:
        return ("unseen" if batches else ""), ()
    if target.work is not None:
        more = max(target.work - batches, 1.0) / throughput
        if more < MAX_FORECAST:
            return "batches_more", (batches, float(target.work), more)
        return ("batches", (batches, float(target.work))) if batches else ("", ())
    if isnan(table.loss[row]):
        return ("unseen" if batches else ""), ()
    best, goal = float(table.best[row]), target.goal
    if isnan(best):  # the window is not full yet
        best = target.logged(float(table.loss[row]))
    if isnan(throughput) or table.cells[row] < (MIN_EVALUATIONS if table.evaluated[row] else settings.judge_after):
        return "unsure", (best, goal)
    left = _stated_work(table, curves, row) / throughput
    more, chance = likeliest(left)
    if chance >= SURE and more < MAX_EXTRAPOLATION * table.busy[row]:
        return "more", (best, goal, more)
    early, late = (float(between(left[None], level)[0]) for level in (LOW, HIGH))
    if late < MAX_EXTRAPOLATION * table.busy[row]:
        return "range", (best, goal, early, late)
    return "unsure", (best, goal)


def _restate(table: JobTable, curves: AboveFloor, rows: IntArray) -> None:
    """Restate the forecasts of rows that have trained far enough since the last time; NaN where there is none."""
    for row in rows[table.batches[rows] > table.stated_at[rows] * (1.0 + RESTATED_AFTER)].tolist():
        left, batches = _stated_work(table, curves, row), int(table.batches[row])
        early, likely = (float(between(left[None], level)[0]) for level in (LOW, MID))
        table.stated_at[row], table.stated_low[row], table.stated_mid[row] = batches, batches + early, batches + likely


def _stated_work(table: JobTable, curves: AboveFloor, row: int) -> FloatArray:
    """Return quantiles of the batches that a loss has left to its target, as its user is told; shape ``(20,)``."""
    rows, batches = np.array([row]), float(table.batches[row])
    if table.history_share[row] >= READY_SHARE:  # earlier runs of the task know it better
        left: FloatArray = forecast_position(curves, rows, table.goal[rows])[0] - batches
    else:
        position, loss = (np.array(column, np.float64) for column in table.curves[row].points())
        left = work_left(position, loss, float(table.goal[row]), curves.schedule_of(row))
        left = left - (batches - position[-1]) if len(position) else left
    return np.maximum(left, 1.0)


# ---------------------------------------------------------------------------------------------------- status


def job_status(
    table: JobTable, row: int, now: float, kinds: Sequence[str] = (), rates: KindRates | None = None
) -> JobStatus:
    """Return the status of a job.

    Args:
        table: All jobs.
        row: Row of the job.
        now: Scheduler time in seconds.
        kinds: Names of the kinds of devices; of fewer than two, none is shown.
        rates: How fast kinds of trainings are on them; None for a job that is over.
    """
    directive = table.directives[row]
    ended = isinstance(directive, End)
    throughput = float(table.throughput(np.array([row]))[0])
    value, best, loss = _values(table, row)
    reason, grant_reason = verdict_reason(table, row), table.grant_reason(row)
    if current_verdict(table, row) is not None and grant_reason != reason:
        grant_reason = grant_reason.without_forecast()  # one forecast at a time: the verdict's
    if table.recovering[row] and not table.launched[row]:
        grant_reason = Reason("workers_lost")
    return JobStatus(
        name=table.names[row],
        state=_state(table, row),
        verdict=current_verdict(table, row),
        reason=reason,
        target=table.jobs[row].target,
        value=value,
        best=best,
        loss=loss,
        batches=int(table.batches[row]),
        cells=int(table.cells[row]),
        rejected=int(table.rejected[row] + table.rejected_cells[row]),
        share=float(table.share[row]),
        throughput=None if isnan(throughput) else throughput,
        busy=float(table.busy[row]),
        submitted_at=float(table.submitted[row]),
        deadline=float(table.deadline[row]),
        finish=None if ended else _finish(table, row, now),
        finished_at=float(table.ended_at[row]) if ended else None,
        detail=table.details.get(row, ""),
        grant_reason=grant_reason,
        devices=table.home[row],
        incarnation=int(table.incarnation[row]),
        weight=float(table.weight[row]),
        paused=bool(table.paused[row]),
        restarts=int(table.restarts[row]),
        lost_batches=int(table.lost_batches[row]),
        checkpoint_batches=table.checkpoints[row][0].batches if table.checkpoints[row] else None,
        fault=table.faults.get(row),
        alert=next(reversed(table.alerts.get(row, {}).values()), None),
        notes=dict(table.notes.get(row, {})),
        like=_like(table, row),
        memory=None if isnan(table.memory[row]) else float(table.memory[row]),
        memory_needed=needed(table, row),
        owner=table.jobs[row].owner,
        watched=_watched(table, row),
        beside=table.beside_names(row),
        pace=float(table.pace[row]),
        device_seconds=float(table.device_seconds[row]),
        held_share=float(table.held_share(np.array([row]))[0]),
        parts=table.jobs[row].parts,
        kind=kinds[kind] if len(kinds) > 1 and (kind := int(table.kind[row])) >= 0 else "",
        rates={} if rates is None or ended or len(kinds) < 2 else job_rates(table, row, rates, kinds),
    )


def _watched(table: JobTable, row: int) -> Watched | None:
    """Return the metric that the target of a job watches, once there is a value."""
    if not table.jobs[row].target.watches or not table.recent[row]:
        return None
    return Watched(int(table.last_position[row]), table.recent[row][-1], float(table.best[row]))


def _like(table: JobTable, row: int) -> Reason | None:
    """Return the earlier runs that the forecast of a job rests on; None if it does not."""
    share, names = float(table.history_share[row]), dict.fromkeys(table.earlier.get(row, ()))
    return Reason("like", (share,), " and ".join(names)) if share > 0 else None


def job_forecast(status: JobStatus, now: float) -> JobForecast:
    """Return what the user of a job is told of its forecast: nothing of an end that is beyond reach."""
    alert = "" if status.alert is None else str(status.alert)
    if status.finish is None:
        return JobForecast(status.verdict, str(status.reason), status.held_share, None, None, alert=alert)
    start, limit = status.submitted_at, status.deadline - status.submitted_at
    early, likely, late = (max(end - now, 0.0) if is_in_reach(end - start, limit) else None for end in status.finish)
    spare = None if likely is None or limit == inf else status.deadline - status.finish[1]
    return JobForecast(status.verdict, str(status.reason), status.held_share, likely, spare, early, late, alert)


def _state(table: JobTable, row: int) -> State:
    directive = table.directives[row]
    if isinstance(directive, End):
        return State.ENDED
    if table.recovering[row]:
        return State.RECOVERING
    if directive.trains:
        return State.RUNNING if table.last_report[row] else State.QUEUED
    if not table.batches[row]:
        return State.QUEUED
    has_process = table.home[row] or table.last_report[row] or not table.launched[row]
    return State.HELD if has_process else State.RELEASED


def _values(table: JobTable, row: int) -> tuple[float | None, float | None, float | None]:
    """Return the value against the target and the best one, both as logged, and the current loss."""
    target, recent = table.jobs[row].target, table.recent[row]
    loss = None if isnan(mean := float(table.loss[row])) else mean
    value = target.reached(int(table.batches[row]), recent, bool(table.evaluated[row]), table.window)
    if not target.observes:
        return value, value, None if target.watches and not target.lower_is_better else loss
    best = None if isnan(reached := float(table.best[row])) else reached
    return value, best, None if target.grows else value


def _finish(table: JobTable, row: int, now: float) -> tuple[float, float, float] | None:
    """Return the early, likely and late end: the planned end and the uncertainty of the work around it.

    None while it contradicts the verdict: an end in time of a job that is less likely in time than not.
    """
    finish = float(table.finish[row])
    low, mid, high = (float(column[row]) for column in (table.work_low, table.work_mid, table.work_high))
    if table.belief[row] == UNKNOWN or not mid < MAX_FORECAST:
        return None
    share = float(table.share[row]) or 1.0
    if not isfinite(finish):  # not planned: the end that it would have alone, or, of a best-effort job, at its share
        finish = now + (mid / share if isinf(table.deadline[row]) else mid)
    in_time = finish <= min(float(table.deadline[row]), float(table.ends_by[row]))
    doubted = table.belief[row] == INFEASIBLE or (table.belief[row] == AT_RISK and table.chance[row] < EVEN)
    if in_time and doubted:
        return None
    # A bad case without an end is one of many years: what is said of a job goes out as JSON, which has no infinity.
    high = min(high, MAX_FORECAST)
    return finish - min((mid - low) / share, finish - now), finish, finish + (high - mid) / share
