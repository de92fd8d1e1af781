"""The earlier times of a pool, and one of them: its jobs, its devices, and a job of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lightning_core.core.answers import Verdict
from lightning_core.core.durations import format_duration
from lightning_core.core.names import is_name
from lightning_core.history.history import History
from lightning_core.report.gantt import gantt
from lightning_core.report.job_card import badge, ending, job_card, shortened
from lightning_core.report.job_tables import all_faults
from lightning_core.report.svg import escape

# Earlier times, and jobs of one, that are listed: the newest. Rows of each table of a job.
MAX_LISTED, MAX_JOBS, MAX_ROWS = 200, 1000, 400


def index(found: Sequence[tuple[str, datetime]]) -> str:
    """Return the list of the earlier times, each with the name and the date of its journal."""
    rows = "".join(
        f'<li><a href="/earlier/{stamp}">until {_date(ended)}</a></li>' for stamp, ended in found[:MAX_LISTED]
    )
    none = "<p>There are none: each <code>up</code> puts the journal aside if all its jobs had ended.</p>"
    return f"<h1>Earlier times of this pool</h1>{f'<ul>{rows}</ul>' if rows else none}"


def overview(history: History, stamp: str, ended: datetime) -> str:
    """Return the jobs and the devices of an earlier time."""
    met = sum(job.verdict is Verdict.MET for job in history.jobs)
    rows = "".join(
        f'<tr><td data-label="job"><a href="/earlier/{stamp}/{key}">{escape(history.label(job))}</a></td>'
        f'<td class=n data-label="outcome">{badge(job.verdict)}</td>'
        f'<td data-label="target">{escape(job.job.target)}</td>'
        f'<td class=n data-label="took">{_took(history, key)}</td>'
        f'<td data-label="why">{shortened(ending(job))}</td></tr>'
        for key, job in list(enumerate(history.jobs))[-MAX_JOBS:][::-1]
        if is_name(job.name)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("job", "outcome", "target", "took", "why"))
    many = len(history.jobs)
    return (
        f'<p class="soft"><a href="/earlier">Earlier times</a></p><h1>Until {_date(ended)}</h1>'
        f"<p>{met} of {many} target{'s' * (many != 1)} met in time, on {history.settings.devices} "
        f"device{'s' * (history.settings.devices != 1)} under {escape(history.settings.policy)}.</p>"
        f'<div class="panel">{gantt(history)}</div>{all_faults(history, ())}'
        f'<section class="panel"><h2>Jobs</h2><table class="stack"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        "</table></section>"
    )


def job(history: History, stamp: str, key: int) -> str:
    """Return one job of an earlier time."""
    return f'<p class="soft"><a href="/earlier/{stamp}">The pool at that time</a></p>{job_card(history, key, MAX_ROWS)}'


def _took(history: History, key: int) -> str:
    one = history.jobs[key]
    return format_duration((history.last if one.ended is None else one.ended) - one.submitted)


def _date(when: datetime) -> str:
    return f"{when:%a %d %b %Y, %H:%M}"
