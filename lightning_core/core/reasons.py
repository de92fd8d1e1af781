"""Reasons of directives and verdicts: a code and numbers in the core, words only when read.

A new reason is one line in ``WORDS``. ``{0}`` and ``{1}`` are its numbers, ``{0:t}`` writes seconds as a duration,
``{0:# device}`` writes a count with its noun ("1 device", "2 devices"), and ``{text}`` is the text of the reason. A
forecast has two significant figures: ``{0:ft}`` writes one of seconds, ``{0:fb}`` one of batches, and ``{0:ft1}`` and
``{1:fb0}`` are capped at "more than" ten times the number 1 or 0, beside which they stand.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import count
from typing import NamedTuple

from lightning_core.core.durations import FAR, format_duration, format_forecast, rounded
from lightning_core.core.limits import format_bytes, shown
from lightning_core.core.parts import reason_words

WORDS = {
    # grants
    "submitted": "waiting for the first plan",
    "first_in_line": "first in line",
    "behind": "queued behind {0:# job}",
    "fixed_share": "gets its fixed share",
    "equal_share": "one of {0:.0f} equal shares",
    "explore": "being explored: {0:.0f} of {1:.0f} loss cells seen",
    "explore_batches": "being explored: {0:.0f} of {1:.0f} batches trained",
    "explored": "waiting until every job is explored: {0:.0f} of {1:.0f} loss cells seen",
    "chosen": "expected in time: needs {0:ft1} of device time and has {1:t}",
    "chosen_later": "expected in time after more urgent jobs: needs {0:ft1} and has {1:t}",
    "dropped": "not scheduled: needs {0:ft1} and has {1:t}, and other jobs make better use of the devices",
    "not_falling": "not scheduled: by forecast it does not reach its target",
    "nothing_fits": "no job is forecast to finish in time; all of them are tried",
    "too_large": "needs {0:# device}, but the pool has {1:.0f}{text}",
    "no_such_device": "requires device {0:.0f}, but the pool has only {1:# device}",
    "no_such_machine": "needs {0:# device} of one machine, and the largest has {1:.0f} (`spread: pool` allows several)",
    "no_such_kind": "requires a device of kind {text}, where the pool has none",
    "no_such_location": "requires location {text}, where the pool has no device",
    "positive_losses": "{text} uses ratios of losses, so the target must be above 0, got {0:.4g}; use the policy "
    "triage or the estimator posterior",
    "left_over": "uses devices that no other job needs",
    "no_room": "waiting for a device that it can use",
    "location_full": "waiting for a device at its location: the pool has {0:.0f} there",
    "no_memory": "waiting for memory: it needs {0:b} of a device's {1:b}, and less is free",
    "memory_trial": "alone on its device until it is known how much memory it needs",
    "too_much_memory": "needs {0:b} of memory, but the pool's devices have {1:b}",
    "makes_room": "frees its memory for jobs ahead of it",
    "paused": "paused by {text}",
    "told_none": "holds no devices at the request of {text}",
    "closing": "the pool is shutting down; the job is saved and resumes with the pool",
    "not_begun": "starts in {0:t}",
    "recovering": "restarts in {0:t}",
    "late_goes_on": "deadline passed: continues on devices that no other job needs",
    "late_held": "deadline passed: held until it gets a new deadline",
    "no_share": "no fixed share",
    "its_turn": "its turn",
    "not_its_turn": "waiting for its turn behind {0:# job}",
    "least_work": "among the jobs with the least work left: {0:ft} of device time",
    "more_work": "waiting for jobs with less work left: needs {0:ft} of device time",
    "easiest": "among the easiest jobs: needs {0:ft1} and has {1:t}",
    "harder": "waiting for easier jobs: needs {0:ft1} and has {1:t}",
    "unjudged": "too few reports to judge it",
    "unjudged_later": "waiting for more urgent jobs; too few reports to judge it",
    "has_a_chance": "may finish in time: needs about {0:ft}, {1:.0%} likely in time on its own",
    "more_urgent": "waiting for more urgent jobs: needs about {0:ft}, {1:.0%} likely in time on its own",
    "others_first": "waiting for jobs more likely to finish in time: needs about {0:ft}, {1:.0%} likely in time on "
    "its own",
    "unlikely": "not scheduled: needs about {0:ft}, {1:.0%} likely in time on its own",
    "likely_never": "may reach its target: {1:.0%} likely in time on its own",
    "likely_never_urgent": "waiting for more urgent jobs: {1:.0%} likely to reach its target in time on its own",
    "likely_never_others": "waiting for jobs more likely to finish in time: {1:.0%} likely to reach its target in "
    "time on its own",
    "never": "not scheduled: by forecast it does not reach its target in time, {1:.0%} likely on its own",
    "slice": "runs in this time slice of {1:t}: improving {0:.2g} times as fast as required",
    "slower": "waiting for a time slice: improving {0:.2g} times as fast as required",
    "out_of_reach": "not scheduled: by forecast it misses its target even if it trains alone until its deadline",
    "halved": "dropped for jobs closer to their targets: it is a factor of {0:.2g} away from its own",
    "device_gone": "waiting for a device: no worker is ready on {0:.0f} of the pool's devices",
    "full_speed": "at full speed until its throughput is known",
    "on_ramp": "finishes in time on {0:# device}, with {1:ft} left",
    "early": "finishes {1:ft} early on the fewest devices that it can have ({0:.3g})",
    "not_resized": "stays on {0:# device}: a change would cost {1:ft}, more than it would save",
    "back_to_size": "stays on {0:# device}: the last change of their number failed",
    "planned_later": "planned on {0:# device}, starting in {1:ft}",
    "beyond_reach": "cannot finish in time: it would be {1:ft} late on {0:# device}",
    "outbid": "not scheduled: its {0:ft} of device time would make other jobs miss their deadlines",
    "likeliest": "no job is likely to finish in time; this one is among the likeliest: {1:.0%}",
    # verdicts
    "too_early": "too early to tell",
    "stands_still": "would need about {0:ft1} alone from now and has {1:t}",
    "unsure": "by forecast it is more likely to miss its target than to reach it",
    "on_time": "on time with {0:ft} to spare",
    "uncertain": "{1:.0%} likely to finish in time",
    "late": "forecast to finish {0:ft} late",
    "too_long": "needs at least {0:ft1} alone on its devices and has {1:t}",
    "flat": "{text} is not falling towards the target",
    "ends_before": "its training ends at {text} after {0:,.0f} batches, but by forecast the target needs at least "
    "{1:fb0}",
    "may_end_before": "its training ends at {text} after {0:,.0f} batches, perhaps before its target is met",
    "ends_before_known": "its training ends at {text} after {0:,.0f} batches, but the target is {1:,.0f}",
    "too_long_for_end": "needs at least {0:ft1} alone on its devices, but its time limit (max_time or Slurm's) is up "
    "in {1:t}",
    "late_for_end": "forecast to finish {0:ft} after its time limit (max_time or Slurm's)",
    "target_met": "target met with {0:t} to spare",
    "target_met_late": "target met {0:t} after the deadline",
    "crashed": "{text}",
    "retry_limit": "{text}; retry limit reached ({0:.0f})",
    "unschedulable": "its workers were not ready after {0:# attempt}: {text}",
    "workers_lost": "the pool was down, and its script has not joined again",
    "unknown_job": "unknown job",
    "superseded": "another incarnation of this job is running",
    # faults
    "worker_lost": "{text}; it resumes from batch {0:.0f} and repeats {1:# batch}",
    "raised": "its code raised ({text}); it resumes from batch {0:.0f} and repeats {1:# batch}",
    "hung_back": "{text}; it resumes from batch {0:.0f} and repeats {1:# batch}",
    "out_of_memory": "{text}; it resumes alone on its devices from batch {0:.0f} and repeats {1:# batch}",
    "preempted": "its node was preempted; it resumes from batch {0:.0f} and repeats {1:# batch}",
    "pool_lost": "the pool was lost; it resumes from batch {0:.0f} and repeats {1:# batch}",
    "diverged_back": "its losses were NaN or infinite from batch {text} on; it resumes from batch {0:.0f} and "
    "repeats {1:# batch}",
    # alerts
    "bad_losses": "its losses have been NaN or infinite since batch {0:,.0f}",
    "stalled": "no batch for {0:t}; one usually takes {1:t}",
    "hung": "no step for {0:t}; the longest took {1:t}{text}",
    "hung_first": "no step for {0:t} since the start{text}",
    "launch_timed_out": "its workers were not ready in time ({text}); it is retried",
}
WORDS |= {
    # best-effort jobs
    "best_effort": "best effort: equal share of the leftover devices",
    "best_effort_turn": "best effort: its turn on the devices reserved for jobs without a deadline",
    "best_effort_waits": "best effort: waiting for devices that no job with a deadline needs",
    "infeasible_waits": "judged infeasible: runs after feasible and best-effort jobs",
    "target_met_best_effort": "target met",
}
WORDS |= {
    # of jobs in what a divider gives their group; the text is its word for a group
    "late_in_share": "forecast to finish {0:ft} late in its {text}'s share of {1:# device}",
    "not_in_share": "not expected in time in its {text}'s share of {0:# device}",
    "too_long_for_cap": "needs at least {0:ft1} on the {2:# device} that its {text} may have, and has {1:t}",
    "above_cap": "needs {0:# device}, but its {text} may have {1:.0f} at most",
}
# The reason of a missed target has two parts, each with a code: the end of the job and its progress.
ENDED_BY = {
    "training_ended": "its training ended{text}",
    "interrupted": "interrupted by {text}",
    "deadline_passed": "deadline passed",
    "never_feasible": "deadline passed; it had been judged infeasible",
    "cancelled": "cancelled{text}",
    "diverged": "stopped: its losses were NaN or infinite from batch {text} on",
    "diverged_again": "its losses were NaN or infinite from batch {text} on; retry limit reached",
}
REACHED = {
    "": "",
    "more": ": best {0:.4g}, target {1:.4g}; by forecast, about {2:ft} more would have been enough",
    "range": ": best {0:.4g}, target {1:.4g}; unclear: by forecast, {2:ft} to {3:ft} more",
    "unsure": ": best {0:.4g}, target {1:.4g}",
    "unseen": ": its target metric was never seen",
    "batches_more": ": {0:,.0f} of {1:,.0f} batches; about {2:ft} more would have been enough",
    "batches": ": {0:,.0f} of {1:,.0f} batches",
}
WORDS |= {f"{by}_{far}".rstrip("_"): what + how for by, what in ENDED_BY.items() for far, how in REACHED.items()}
# Reasons of a controller's request for a job.
WORDS |= {
    "closed": "{text}",
    "withdrawn": "request withdrawn",
}
WORDS["beside"] = "beside {text}, at {0:.0%} of its throughput alone"
WORDS["seen_alone"] = "trains alone for a moment, so that its throughput is known"
WORDS["like"] = "like {text}, {0:.0%}"  # the basis of a forecast
WORDS |= {
    "part": "{text}",
    "needs_launch": "a script cannot leave a node: a pool whose nodes come and go launches its jobs, with `submit`",
}
WORDS["too_long_on"] = "needs at least {0:ft1} alone on {text}, its kind of devices, and has {1:t}"
WORDS["words"] = "{text}"  # a reason that another process sent as text alone
WORDS |= {
    "ranks_wait": "none of its {1:.0f} ranks has moved for {0:t}, and they are not all in the same place{text}",
    "met_goes_on": "target met: continues until its min_epochs or min_steps, on devices that no other job needs",
    "flat_metric": "{text} is not rising towards the target",
    "not_reached": "by forecast, {text} does not reach the target",
    "may_not_reach": "by forecast, {text} may not reach the target",
    "far_late": "forecast to take more than ten times as long as it has",
    # of grants, beside a verdict: the forecast is the verdict's to tell
    "scheduled": "scheduled",
    "not_scheduled": "not scheduled now",
    "after_others": "behind jobs that can finish in time",
    "better_use": "not scheduled: other jobs make better use of the devices",
    "urgent_first": "waiting for more urgent jobs",
    "likelier_first": "waiting for jobs more likely to finish in time",
    "easier_first": "waiting for easier jobs",
    "shorter_first": "waiting for jobs with less work left",
    "closer_first": "dropped for jobs closer to their targets",
    "has_slice": "runs in this time slice",
    "other_slice": "waiting for a time slice",
    "on_fewest": "on the fewest devices that it can have",
}
# Codes by their index. Those of parts are added when they are first used: an index means the same in one process only.
CODES = dict(enumerate(WORDS))
# Reasons of grants that hold a forecast, each with the same reason without it. A policy's forecast is of another moment
# than the verdict's, asks another question ("alone") and doubts otherwise, so that both together contradict each other.
WITHOUT_FORECAST = {
    "has_a_chance": "scheduled", "likely_never": "scheduled", "chosen": "scheduled", "nothing_fits": "scheduled",
    "likeliest": "scheduled", "least_work": "scheduled", "easiest": "scheduled", "unjudged": "scheduled",
    "on_ramp": "scheduled", "more_urgent": "urgent_first", "likely_never_urgent": "urgent_first",
    "chosen_later": "urgent_first", "unjudged_later": "urgent_first", "others_first": "likelier_first",
    "likely_never_others": "likelier_first", "infeasible_waits": "likelier_first", "unlikely": "not_scheduled",
    "never": "not_scheduled", "not_falling": "not_scheduled", "out_of_reach": "after_others",
    "beyond_reach": "after_others", "dropped": "better_use", "harder": "easier_first", "more_work": "shorter_first",
    "halved": "closer_first", "slice": "has_slice", "slower": "other_slice", "early": "on_fewest",
}  # fmt: skip
# Reasons of grants to jobs that stand still until told otherwise; they say nothing about the job's forecast.
STANDS_STILL = frozenset({"paused", "told_none"})
_INDEX = {code: index for index, code in CODES.items()}
_NEXT = count(len(CODES))


def words_of(code: str) -> str | None:
    """Return the words of a code, those of a part's (``PART.CODE``) among them; None if it is unknown here."""
    return WORDS.get(code) or (reason_words(code) if "." in code else None)


@cache
def _count(words: str) -> int:
    """Return the number of numbers in some words."""
    return max((int(n) + 1 for n in re.findall(r"\{(\d)", words)), default=0)


def is_of_plans(code: str) -> bool:
    """Return whether the words of a code, if any are known here, need no more than the two numbers of a plan."""
    words = words_of(code) or code
    return bool(words) and _count(words) <= 2 and "{text}" not in words


@cache
def _limited(words: str) -> tuple[tuple[int, str, int], ...]:
    """Return the forecasts beside an available amount: number, form, and the number of the available amount."""
    return tuple((int(at), form, int(of)) for at, form, of in re.findall(r"\{(\d):(ft|fb)(\d)\}", words))


class _Number(float):
    """Number that can be formatted as a duration, a forecast, an amount of memory, or with the noun that it counts."""

    def __format__(self, form: str) -> str:
        if form == "t":
            return format_duration(self)
        if form.startswith("ft"):
            return format_forecast(self)
        if form.startswith("fb"):
            return f"{rounded(self):,.0f}"
        if form == "b":
            return format_bytes(self)
        if form.startswith("# "):
            noun = form[2:] if float(self) == 1 else _plural(form[2:])
            return f"{float(self):.3g} {noun}" if self < 1000 else f"{float(self):,.0f} {noun}"
        return super().__format__(form)


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith("ch") else "s")


class Reason(NamedTuple):
    """A reason: a code, its numbers and its text.

    Example::

        >>> str(Reason("chosen", (3.0, 12.5)))
        'expected in time: needs 3.0s of device time and has 12.5s'
        >>> str(Reason("dropped", (4711.0, 12.5)))  # doctest: +ELLIPSIS
        'not scheduled: needs more than 2m and has 12.5s, ...'
    """

    code: str
    numbers: tuple[int | float, ...] = ()
    """As they were written: replayed answers are compared as text, in which 2 is not 2.0."""
    text: str = ""

    def __str__(self) -> str:
        if (words := words_of(self.code)) is None:  # of a part that is not installed here
            return " ".join(filter(None, [self.code, *map(str, self.numbers), self.text]))
        numbers = [_Number(number) for number in self.numbers]
        for at, form, of in _limited(words):
            forecast, there_is = self.numbers[at], self.numbers[of]
            if rounded(forecast) <= there_is < forecast:  # two figures would say that it is enough
                words = re.sub(rf"((about|at least) )?\{{{at}:{form}{of}\}}", "more", words)
            elif forecast > (most := FAR * there_is):
                words = re.sub(rf"((about|at least) )?\{{{at}:{form}{of}\}}", f"more than {{{at}:{form}}}", words)
                numbers[at] = _Number(most)
        return words.format(*numbers, text=self.text)

    def without_forecast(self) -> Reason:
        """Return the reason of a grant in the form shown beside a verdict.

        Example::

            >>> str(Reason("more_urgent", (43.5, 0.78)).without_forecast())
            'waiting for more urgent jobs'
        """
        return Reason(WITHOUT_FORECAST[self.code]) if self.code in WITHOUT_FORECAST else self


def check_reason(reason: Reason) -> Reason:
    """Return a reason from outside after checking that it can be formatted.

    Raises:
        ValueError: If its code is unknown, or numbers are missing.
    """
    if not isinstance(reason.code, str) or (words := words_of(reason.code)) is None:
        if isinstance(reason.code, str) and "." in reason.code:
            return reason  # of a part that is not installed here
        raise ValueError(f"unknown reason {shown(reason.code)}")
    if len(reason.numbers) < (count := _count(words)):
        raise ValueError(f"reason {reason.code} needs {count} numbers, got {len(reason.numbers)}")
    return reason


def index(code: str) -> int:
    """Return the index of a code in :data:`CODES`, for plans that hold reasons as arrays.

    Raises:
        KeyError: If it is neither the library's nor of the form ``PART.CODE``.
    """
    if (known := _INDEX.get(code)) is not None:
        return known
    if "." not in code:
        raise KeyError(code)
    CODES[new := next(_NEXT)] = code
    return _INDEX.setdefault(code, new)
