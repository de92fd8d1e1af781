"""A job on the report page: its chart, its events, and its grants."""

from __future__ import annotations

from lightning_core.core.answers import Verdict
from lightning_core.core.durations import format_duration
from lightning_core.core.names import devices_words
from lightning_core.history.faults import total_words
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.chart import CLASSES, chart
from lightning_core.report.gantt import swatch
from lightning_core.report.svg import escape
from lightning_core.view.job_line import SYMBOLS
from lightning_core.view.why import JobMoment, rows

# Characters of a reason in a table: it may repeat what a program printed.
MAX_WORDS = 400


def job_card(history: History, key: int, max_rows: int) -> str:
    """Return the card of a job, as HTML.

    Args:
        history: History of the run.
        key: Index of the job.
        max_rows: Maximum number of rows of each of its tables: the newest ones.
    """
    job = history.jobs[key]
    label = history.label(job)
    happened = rows(job)
    story = [row for row in happened if row.what != "grant"]
    grants = [row for row in happened if row.what == "grant"]
    detail = (
        f"<details><summary>traceback</summary><pre>{_lines(job.detail)}</pre></details>" if "\n" in job.detail else ""
    )
    bad = f" Ignored losses (NaN or infinite): {job.rejected}." if job.rejected else ""
    owner = f"Owner: {escape(job.job.owner)}. " if job.job.owner else ""
    like = next((f" Last forecast {shortened(made.like)}." for made in reversed(job.forecasts) if made.like), "")
    return (
        f'<article class="card" id="job{key}"><header><h3>{swatch(key)}{escape(label)}</h3>'
        f"{badge(job.verdict)}</header>"
        f'<p class="soft">{owner}{escape(job.job.target)}: {shortened(ending(job))}.{bad}{like}</p>'
        f"{_chart(history, job, key)}"
        f"<details><summary>verdicts and commands ({_count(story, max_rows)})</summary>"
        f"{_table(story[-max_rows:])}</details>"
        f"<details><summary>grants ({_count(grants, max_rows)})</summary>"
        f"{_table(grants[-max_rows:], shares=True)}</details>"
        f"{detail}</article>"
    )


def ending(job: JobHistory) -> str:
    """Return why a job stands as it does, and its faults."""
    return "; ".join([str(job.reason), *([total_words(job.faults)] if job.faults else [])])


def badge(verdict: Verdict | None) -> str:
    """Return a verdict with its symbol."""
    if verdict is None:
        return '<span class="badge" data-symbol="?">no verdict yet</span>'
    return f'<span class="badge {CLASSES[verdict]}" data-symbol="{SYMBOLS[verdict]}">{verdict}</span>'


def shortened(words: object) -> str:
    """Return text from anywhere, escaped, and not longer than a table can hold."""
    text = str(words)
    return escape(text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}...")


def _count(found: list[JobMoment], max_rows: int) -> str:
    return f"the newest {max_rows} of {len(found)}" if len(found) > max_rows else str(len(found))


def _chart(history: History, job: JobHistory, key: int) -> str:
    """Return the chart of a job; if it cannot be drawn, its name and why, so that the others are shown."""
    label = history.label(job)
    try:
        return chart(job, label, history.last, key)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        return f'<p class="soft">The chart of {escape(label)} cannot be drawn: {escape(error)}.</p>'


def _table(found: list[JobMoment], *, shares: bool = False) -> str:
    names = ("after", "share", "device", "reason") if shares else ("after", "what", "reason")
    body = []
    for row in found:
        devices = escape(devices_words(row.devices or (), row.kind, ", "))
        middle = [f"{row.share or 0:.2f}", devices] if shares else [escape(row.what)]
        cells = [format_duration(row.time), *middle]
        body.append(
            "<tr>" + "".join(f"<td class=n>{cell}</td>" for cell in cells) + f"<td>{shortened(row.reason)}</td></tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _lines(text: str) -> str:
    return "\n".join(escape(line) for line in text.splitlines())
