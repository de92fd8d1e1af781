"""The what-if panel: forecasts which jobs finish in time after a change, before anything is changed."""

from __future__ import annotations

import math

from lightning_core.core.durations import format_duration
from lightning_core.core.limits import format_bytes
from lightning_core.report.svg import escape
from lightning_core.scheduler.asking.prospects import Assumed, Kept
from lightning_core.server.access.people import Person, Right
from lightning_core.simulation.what_if import Assumption, Chances
from lightning_core.view.text import clean
from lightning_core.web.pool_watch import PoolSnapshot

# Differences of a chance below this are not shown; maximum rows of jobs whose chances stay the same.
NOTABLE, MAX_SAME = 0.05, 100


def panel(view: PoolSnapshot, person: Person, job: str = "") -> str:
    """Return the panel, whose script loads its content; empty for users who may not see all jobs.

    Args:
        view: Snapshot of the pool.
        person: The reader.
        job: Name of the only job that can be chosen; empty for any.
    """
    if not person.may(Right.SEE):
        return ""
    devices, steers = view.devices or 1, person.may(Right.STEER_OWN)
    choice = (
        f'<input type="hidden" id="if-job" value="{escape(job)}">' if job
        else '<label class="field">Job <select id="if-job"><option value="">none</option></select></label>'
    )  # fmt: skip
    most = max(2 * devices, 8)
    fixed = (
        " disabled" if view.is_on_market or view.about.get("settings", {}).get("locations") else ""
    )  # their number alone says too little
    apply = '<button id="if-apply" type="button" disabled>Apply to the job</button>' if steers else ""
    return (
        '<details class="panel what-if" id="what-if"><summary>What if …</summary>'
        '<p class="soft">Which jobs would finish in time if a job had another deadline or number of devices, or the '
        "pool had more or fewer? It is simulated beside the pool, and nothing changes until it is applied.</p>"
        '<form class="tools" id="if-form">'
        f'{choice}<label class="field">Deadline <input type="range" id="if-deadline" min="0" max="100" value="50" '
        'aria-describedby="if-deadline-words" disabled> <output id="if-deadline-words" for="if-deadline">unchanged'
        '</output></label><label class="field">Devices of the job <input type="range" id="if-own" min="0" '
        f'max="{most}" value="0" aria-describedby="if-own-words" disabled> <output id="if-own-words" for="if-own">'
        "unchanged</output></label>"
        f'<label class="field">Devices of the pool <input type="range" id="if-devices" min="1" max="{most}" '
        f'value="{devices}" data-now="{devices}" aria-describedby="if-devices-words"{fixed}> '
        f'<output id="if-devices-words" for="if-devices">{devices}</output></label>'
        f'<button class="plain" type="reset">Reset</button>{apply}</form>'
        '<div id="if-answer" role="status" aria-live="polite"></div></details>'
    )


def answer(found: Chances, change: Assumption) -> str:
    """Return the chances of the jobs as HTML: first those that the change affects."""
    rows = sorted(
        zip(found.names, found.before, found.after, found.known, strict=True),
        key=lambda row: (-abs(_moves(row[1], row[2])), row[0]),
    )
    moved = [row for row in rows if abs(_moves(row[1], row[2])) >= NOTABLE]
    same = [row for row in rows if abs(_moves(row[1], row[2])) < NOTABLE]
    before, after = (math.fsum(x for x in column if not math.isnan(x)) for column in (found.before, found.after))
    of = f"{found.futures} simulated future{'s' * (found.futures != 1)}"
    words = (
        f"Of the unfinished jobs, <b>{after:.1f} finish in time</b> on average, {before:.1f} without the change: the "
        f"mean of {of}."
    )
    none = "" if moved else "<p>It makes no difference to any job's chance.</p>"
    if change == Assumption(change.job):  # nothing of the job is to change
        words = f"Of the unfinished jobs, <b>{after:.1f} finish in time</b> on average: the mean of {of}."
        none = ""
    rest = (
        f"<details><summary>{len(same)} job{'s' * (len(same) != 1)} as before</summary>{_table(same[:MAX_SAME])}"
        "</details>" if same else ""
    )  # fmt: skip
    guessed = [name for name, known in zip(found.names, found.known, strict=True) if not known]
    note = (
        f'<p class="soft">Of {escape(", ".join(map(clean, guessed[:5])))}{" and others" * (len(guessed) > 5)} nothing '
        "is known yet; they are taken to be like the others.</p>" if guessed else ""
    )  # fmt: skip
    return f"<p>{words}</p>{none}{_table(moved)}{rest}{note}{_assumed(found.assumed)}"


def _assumed(assumed: Assumed) -> str:
    """Return the assumptions of the simulations beside the forecasts, as HTML."""
    notes = []
    if assumed.starts is not None:
        least, most = (format_duration(seconds) for seconds in assumed.starts)
        seconds = least if least == most else f"{least} to {most}"
        notes.append(f"A start, a resume and a move of a job take {seconds}, as moves were measured here.")
    elif assumed.starts_any:
        notes.append("No start, resume or move has been measured yet, so they are assumed to take no time.")
    if assumed.tries:
        jobs = f"{assumed.tries} job{'s' * (assumed.tries != 1)}"
        then = ("each has its devices for itself" if assumed.usual_memory is None
                else f"once tried, each takes {format_bytes(assumed.usual_memory)}, as others do")  # fmt: skip
        notes.append(f"The memory needs of {jobs} are not known yet: {then}.")
    if (kept := assumed.kept) is not None:
        notes.insert(0, f"<b>Prices and losses are not played.</b> {_kept(kept)}")
    if (one := assumed.resized) is not None:
        words = "" if one.measured else ", and how fast it is on so many has not been measured, but assumed"
        notes.append(f"{escape(clean(one.name))} takes {one.devices} device{'s' * (one.devices != 1)}{words}.")
    return f'<p class="soft">{" ".join(notes)}</p>' if notes else ""


def _moves(before: float, after: float) -> float:
    """Return how much a chance moves; a job that gets a deadline, or loses it, moves by all of it."""
    return 1.0 if math.isnan(before) != math.isnan(after) else (0.0 if math.isnan(before) else after - before)


def _table(rows: list[tuple[str, float, float, bool]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("job", "in time as things are", "in time then", ""))
    body = "".join(
        f'<tr><th scope="row">{escape(clean(name))}</th><td class=n data-label="as things are">{_part(before)}</td>'
        f'<td class=n data-label="then">{_part(after)}</td><td>{_direction(before, after)}</td></tr>'
        for name, before, after, _ in rows
    )
    return f'<table class="stack chances"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _part(chance: float) -> str:
    if math.isnan(chance):
        return '<span class="soft">no deadline</span>'
    return f'<meter min="0" max="1" value="{chance:.2f}" aria-hidden="true"></meter> {100 * chance:.0f} %'


def _direction(before: float, after: float) -> str:
    if math.isnan(before) or math.isnan(after) or abs(after - before) < NOTABLE:
        return ""
    return '<span class="better">▲ better</span>' if after > before else '<span class="worse">▼ worse</span>'


def _kept(kept: Kept) -> str:
    """Return the nodes of a market that the simulations keep, as HTML."""
    devices = f"The {kept.devices} devices that the market holds now stay" if kept.devices != 1 else (
        "The device that the market holds now stays"
    )  # fmt: skip
    if not kept.devices:
        devices = "The market holds no device now, and none comes"
    jobs = f"; {kept.without} job{'s' * (kept.without != 1)} without any wait{'s' * (kept.without == 1)} all the time"
    return f"{devices} to the end{jobs if kept.without else ''}."
