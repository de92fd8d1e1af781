"""Why: every directive and every verdict carries a reason, a code and numbers in the core, words when it is read.

A new reason is one line in ``WORDS``. ``{0}`` and ``{1}`` are its numbers (``:t`` writes seconds as people do) and
``{text}`` words that came from outside.
"""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.durations import format_duration

WORDS = {
    # grants
    "submitted": "waits for the first plan",
    "first_in_line": "first in line",
    "behind": "waits behind {0:.0f} earlier",
    "fixed_share": "its fixed share",
    "equal_share": "one of {0:.0f} equal shares",
    "explore": "is being explored: {0:.0f} of {1:.0f} loss cells seen",
    "explored": "waits until all are explored: has {0:.0f} of {1:.0f} loss cells",
    "chosen": "can make it: needs {0:t} of the device and has {1:t}",
    "chosen_later": "can make it after more urgent jobs: needs {0:t} and has {1:t}",
    "dropped": "given up for now: needs {0:t} and has {1:t}, which others use better",
    "not_falling": "given up for now: by forecast it does not reach its target",
    "nothing_fits": "no job can make it by forecast; all are tried",
    "too_large": "needs {0:.0f} devices, the pool has {1:.0f}{text}",
    "no_such_device": "lives on device {0:.0f}, the pool has {1:.0f} devices",
    "no_such_location": "trains at {text}, where the pool has no device",
    "positive_losses": "{text} reckons with ratios of losses, so the target must be above 0, got {0:.4g}; "
    "take the policy triage, or the estimator posterior",
    "left_over": "uses what nobody else needs",
    "no_room": "waits for a device that it can use",
    "location_full": "waits for a device where it trains: the pool has {0:.0f} there",
    "makes_room": "makes room in memory for jobs before it",
    "paused": "paused by {text}",
    "told_none": "given no devices for now by {text}",
    "closing": "the pool is being taken down; it is saved and comes back",
    "not_begun": "begins in {0:t}",
    "recovering": "comes back in {0:t}",
    "late_goes_on": "deadline passed: goes on with what nobody else needs",
    "late_held": "deadline passed: held until it is given a new one",
    "no_share": "has no fixed share",
    "its_turn": "its turn",
    "not_its_turn": "waits for its turn: {0:.0f} come before it",
    "least_work": "among those that need the least: {0:t} of a device",
    "more_work": "waits for those that need less: needs {0:t} of a device",
    "easiest": "among the easiest: needs {0:t} and has {1:t}",
    "harder": "waits for easier ones: needs {0:t} and has {1:t}",
    "unjudged": "has shown too little to be judged",
    "unjudged_later": "waits for more urgent jobs; has shown too little to be judged",
    "has_a_chance": "has a chance: needs about {0:t}, {1:.0%} likely in time on its own",
    "more_urgent": "waits for more urgent jobs: needs about {0:t}, {1:.0%} likely in time on its own",
    "others_first": "waits for jobs that are surer to make it: needs about {0:t}, {1:.0%} likely in time on its own",
    "unlikely": "given up for now: would need about {0:t}, {1:.0%} likely in time on its own",
    "likely_never": "has a chance: {1:.0%} likely to reach its target in time on its own",
    "likely_never_urgent": "waits for more urgent jobs: {1:.0%} likely to reach its target in time on its own",
    "likely_never_others": "waits for jobs that are surer to make it: {1:.0%} likely to reach its target in time",
    "never": "given up for now: by forecast it does not reach its target, {1:.0%} likely in time on its own",
    "slice": "has this slice of {1:t}: comes on {0:.2g} times as fast as it must",
    "slower": "waits for its slice: comes on {0:.2g} times as fast as it must",
    "out_of_reach": "given up for now: alone until its deadline it would not reach its target by forecast",
    "halved": "dropped for others that are nearer to their targets: it is {0:.2g} times away from its own",
    "device_gone": "waits for a device: no worker is ready on {0:.0f} of the pool's",
    "full_speed": "at full speed until its speed is known",
    "on_ramp": "has what ends it in time: {0:.3g} devices, with {1:t} left",
    "early": "ends {1:t} early with the least that it can have (devices: {0:.3g})",
    "not_resized": "stays on {0:.0f} devices: {1:t} that a change would cost are more than it would bring",
    "back_to_size": "stays on {0:.0f} devices, for the last change of their number failed",
    "planned_later": "can make it later on {0:.0f} devices: {1:t} of them are planned",
    "beyond_reach": "cannot end in time: on {0:.0f} devices it would be {1:t} late",
    "outbid": "given up for now: it would take {0:t} of a device, which bring others home",
    "likeliest": "no job is likely to make it, this is among the likeliest: {1:.0%}",
    # verdicts
    "too_early": "too early to tell",
    "stands_still": "would need about {0:t} alone from now, and has {1:t}",
    "unsure": "by forecast it is more likely not to reach its target",
    "on_time": "on time with {0:t} to spare",
    "late": "would be {0:t} late",
    "too_long": "needs at least {0:t} alone on the device and has {1:t}",
    "flat": "its loss does not come down towards the target",
    "ends_before": "its training ends at {text} after {0:,.0f} batches, the target is forecast at {1:,.0f}",
    "ends_before_known": "its training ends at {text} after {0:,.0f} batches, the target is {1:,.0f}",
    "too_long_for_end": "needs at least {0:t} alone on the device, and its time (max_time or Slurm's) is up in {1:t}",
    "late_for_end": "would be {0:t} late for the end of its time (max_time or Slurm's)",
    "target_met": "target met with {0:t} to spare",
    "target_met_late": "target met {0:t} after the deadline",
    "crashed": "{text}",
    "gave_out_once": "{text} (it has come back once, as often as it may)",
    "gave_out": "{text} (it has come back {0:.0f} times, as often as it may)",
    "unschedulable": "its workers were not ready {0:.0f} times: {text}",
    "workers_lost": "the pool was down, and its script did not come back",
    "unknown_job": "unknown job",
    "superseded": "another incarnation of this job runs",
    # faults
    "worker_lost": "{text}; it goes on from batch {0:.0f}, {1:.0f} of its batches are to be done again",
    "raised": "its code raised ({text}); it goes on from batch {0:.0f}, {1:.0f} of its batches are to be done again",
    "preempted": "its node was taken away; it goes on from batch {0:.0f}, {1:.0f} of its batches are to be done again",
    "pool_lost": "the pool was lost; it goes on from batch {0:.0f}, {1:.0f} of its batches are to be done again",
    "diverged_back": "its losses were NaN or infinite from batch {text} on; it goes on from batch {0:.0f}, {1:.0f} of "
    "its batches are to be done again",
    # alerts
    "bad_losses": "its losses are NaN or infinite since batch {0:,.0f}",
    "stalled": "no batch for {0:t}, one usually takes {1:t}",
    # spot policies
    "spot_policy": "{text}, with {0:.0%} of the weight after the lessons of {1:.0f} jobs",
    "unready": "its workers were not ready in time ({text}); it is tried again",
}
# Why a job ended unmet is told in two parts, each with its code: what ended it, and how far it had come.
ENDED_BY = {
    "training_ended": "its training ended{text}",
    "interrupted": "interrupted by {text}",
    "deadline_passed": "deadline passed",
    "never_feasible": "deadline passed; it had been given up",
    "cancelled": "cancelled",
    "diverged": "stopped: its losses were NaN or infinite from batch {text} on",
    "diverged_again": "its losses were NaN or infinite from batch {text} on, and its retries are used up",
}
REACHED = {
    "": "",
    "more": ": best {0:.4g} of {1:.4g}; about {2:t} more would have done",
    "flat": ": best {0:.4g} of {1:.4g}; by forecast, ten times the time would not have done",
    "unsure": ": best {0:.4g} of {1:.4g}",
    "unseen": ": no value of its target was seen",
    "batches_more": ": {0:,.0f} of {1:,.0f} batches; about {2:t} more would have done",
    "batches": ": {0:,.0f} of {1:,.0f} batches",
}
WORDS |= {f"{by}_{far}".rstrip("_"): what + how for by, what in ENDED_BY.items() for far, how in REACHED.items()}
CODES = tuple(WORDS)
# Of grants to jobs that stand still for as long as somebody wants that: never why a job is believed to make it or not.
STANDS_STILL = frozenset({"paused", "told_none"})
_INDEX = {code: index for index, code in enumerate(CODES)}


class _Number(float):
    """A number that can be written as a duration."""

    def __format__(self, form: str) -> str:
        return format_duration(self) if form == "t" else super().__format__(form)


class Reason(NamedTuple):
    """A code with its numbers.

    Example::

        >>> str(Reason("chosen", (3.0, 12.5)))
        'can make it: needs 3.0s of the device and has 12.5s'
    """

    code: str
    numbers: tuple[float, ...] = ()
    text: str = ""

    def __str__(self) -> str:
        return WORDS[self.code].format(*map(_Number, self.numbers), text=self.text)


def index(code: str) -> int:
    """The place of a code in :data:`CODES`, for plans that carry reasons as arrays."""
    return _INDEX[code]
