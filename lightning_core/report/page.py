"""``report.html``: a run on one page, for a reader who has never seen it.

Rules

1. One file, which loads and runs nothing: no script, no address, and a content security policy that forbids both.
2. All text from outside is escaped (:func:`lightning_core.report.svg.escape`).
3. No colour stands alone: a symbol or a word stands with it.
"""

from __future__ import annotations

from pathlib import Path

from lightning_core.core.answers import Verdict
from lightning_core.core.durations import format_duration
from lightning_core.history.faults import total_words
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.chart import CLASSES, chart
from lightning_core.report.document import document, write_document
from lightning_core.report.gantt import gantt, swatch, use
from lightning_core.report.svg import escape
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.job_line import SYMBOLS
from lightning_core.view.why import Row, rows

# Number of grants of a job on the page, the newest ones.
MAX_GRANTS = 100

_LEGEND = (
    ('<path class="raw" d="M0 4L6 10L12 3L18 11L24 4L34 9"/><path class="curve" d="M0 6L34 8"/>',
     "loss: each observation, and the mean that counts"),
    ('<path class="goal" d="M0 7H34"/>', "target"),
    ('<path class="deadline" d="M17 0V14"/>', "deadline; dotted: an earlier one"),
    ('<path class="fan" fill-opacity=".25" d="M4 2L34 4V13z"/><path class="likely" d="M4 2L34 9"/>'
     '<circle class="asked" cx="4" cy="2" r="2"/>',
     "forecast made at the dot: early to late, the line likely"),
    ('<rect fill="#009e73" width="11" height="13"/><text x="5.5" y="11">✓</text><rect fill="#e69f00" x="11.500" '
     'width="11" height="13"/><text x="17" y="11">!</text><rect fill="#d55e00" x="23" width="11" height="13"/>'
     '<text x="28.500" y="11">✕</text>',
     "verdict: feasible, at risk, infeasible"),
    ('<path class="fault" d="M12 3l8 8M20 3l-8 8"/>', "a fault: its worker was lost"),
    ('<path class="remark" d="M17 12l-5 -9h10z"/>', "a command, or the worker started or left"),
    ('<path class="share" d="M0 14V6H20V0H34V14z"/>', "share of its devices, 0 to 1"),
)  # fmt: skip


def write(journal: Journal, path: Path, title: str = "") -> None:
    """Write the report, completely or not at all.

    Args:
        journal: Journal of a run, which may not be over.
        path: Path of the page.
        title: Title of the run, such as the name of its folder.
    """
    history = History.read(journal)
    fill_in(journal, history)
    write_document(path, page(history, title))


def page(history: History, title: str = "") -> str:
    """Return the report of a history that has its forecasts."""
    met = sum(job.verdict is Verdict.MET for job in history.jobs)
    running = sum(job.ended is None for job in history.jobs)
    headline = f"{met} of {_count(len(history.jobs), 'target')} met in time"
    if running:
        headline += f", {running} still running"
    cards = "".join(_card(history, job, key) for key, job in enumerate(history.jobs))
    return document(
        f"{title}: {headline}" if title else headline,
        f'<p class="soft">{escape(title or "Training jobs with deadlines")}</p><h1>{headline}</h1>'
        f"<p>{_intro(history)}</p>{_tiles(history)}"
        f"<h2>Jobs</h2><div class=panel>{_overview(history)}</div>"
        f"<h2>Devices</h2><div class=panel>{gantt(history)}{_who(history)}</div>{_faults(history)}"
        f'<h2>Job by job</h2><div class=panel><ul class="legend">{_legend()}</ul></div>'
        f'<p class="soft">Times of a job count from its submission. Forecasts are those that the scheduler used.</p>'
        f'<div class="cards">{cards}</div>',
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _intro(history: History) -> str:
    many, devices = _count(len(history.jobs), "training job"), _count(history.settings.devices, "device")
    first = f"{many} shared {devices}; each had a target and a deadline."
    start = min((job.submitted for job in history.jobs), default=0.0)
    left = (
        f"{'S' + what[1:]} after {format_duration(since - start)}, resumed {format_duration(until - since)} later."
        for since, until, what in history.stops
    )
    pool = [] if history.part_of is None else [f"What else ran in the pool at {history.part_of.folder} is not shown."]
    return " ".join([first, *map(escape, [*left, *pool])])


def _tiles(history: History) -> str:
    settings = history.settings
    start = min((job.submitted for job in history.jobs), default=0.0)
    seconds = max((history.wall - start) * settings.devices, 1e-9)
    busy = sum(job.device_seconds for job in history.jobs)
    values = {
        "policy": " ".join([settings.policy, *(f"{key}={value}" for key, value in settings.policy_args.items())]),
        "devices": settings.devices,
        "took": format_duration(history.wall - start),
        "device time granted": f"{100 * use(history):.0f} %",
        "device time trained": f"{100 * busy / seconds:.0f} %",
    }
    tiles = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="tiles">{tiles}</dl>'


def _overview(history: History) -> str:
    names = ("job", "outcome", "target", "reached", "finished", "deadline", "reason")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = []
    for key, job in enumerate(history.jobs):
        cells = (
            f'<span>{swatch(history, job)}<a href="#job{key}">{escape(history.label(job))}</a></span>',
            _badge(job.verdict),
            escape(job.job.target),
            _reached(job),
            "-" if job.ended is None else format_duration(job.ended - job.submitted),
            format_duration(job.deadline - job.submitted),
            f"<span>{escape(_ending(job))}</span>",
        )
        body.append("<tr>" + "".join(f'<td data-label="{n}"{" class=n" if n in _NUMBERS else ""}>{c}</td>'
                                     for n, c in zip(names, cells, strict=True)) + "</tr>")  # fmt: skip
    return f'<table class="stack"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


_NUMBERS = ("outcome", "reached", "finished", "deadline")


def _ending(job: JobHistory) -> str:
    return "; ".join([str(job.reason), *([total_words(job.faults)] if job.faults else [])])


def _badge(verdict: Verdict | None) -> str:
    if verdict is None:
        return '<span class="badge" data-symbol="?">no verdict yet</span>'
    return f'<span class="badge {CLASSES[verdict]}" data-symbol="{SYMBOLS[verdict]}">{verdict}</span>'


def _reached(job: JobHistory) -> str:
    return "-" if (value := job.reached) is None else job.job.target.show(value)


def _who(history: History) -> str:
    jobs = (f"<span>{swatch(history, job)}{escape(history.label(job))}</span>" for job in history.jobs)
    return f'<div class="who">{"".join(jobs)}</div><p class="soft">The height is the share of the device.</p>'


def _faults(history: History) -> str:
    """Return a table of the faults of jobs and pool in the order of time; empty if there were none."""
    found: list[tuple[float, str, str, str, str]] = []
    for key, job in enumerate(history.jobs):
        name = f'<span>{swatch(history, job)}<a href="#job{key}">{escape(history.label(job))}</a></span>'
        found += [(f.time, name, escape(f.what), escape(f.lost), escape(f.done)) for f in job.faults]
    for since, until, what in history.gaps:
        lost = "no decision for " + format_duration(until - since)
        found.append((since, "<span>the pool</span>", escape(what), lost, "resumed where its journal ended"))
    for outage in history.outages:
        lost = "the device" + ("" if outage.until is None else f" for {format_duration(outage.until - outage.since)}")
        done = "its jobs continue elsewhere" + ("" if outage.until is None else ", then there again")
        found.append((outage.since, "<span>the pool</span>", escape(outage.what), lost, done))
    if not found:
        return ""
    names = ("after", "job", "fault", "lost", "done")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = []
    for time, *cells in sorted(found):
        first = f'<td class=n data-label="after">{format_duration(time)}</td>'
        rest = "".join(f'<td data-label="{n}"><span>{c}</span></td>' for n, c in zip(names[1:], cells, strict=True))
        body.append(f"<tr>{first}{rest}</tr>")
    return (
        f'<h2>Faults</h2><div class=panel><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _legend() -> str:
    return "".join(
        f'<li><svg viewBox="0 0 34 14" aria-hidden="true">{sign}</svg><span>{words}</span></li>'
        for sign, words in _LEGEND
    )


def _card(history: History, job: JobHistory, key: int) -> str:
    label = history.label(job)
    story = [row for row in rows(job) if row.what != "grant"]
    grants = [row for row in rows(job) if row.what == "grant"]
    shown = _table(grants[-MAX_GRANTS:], shares=True)
    detail = (
        f"<details><summary>traceback</summary><pre>{_lines(job.detail)}</pre></details>" if "\n" in job.detail else ""
    )
    bad = f" Ignored losses (NaN or infinite): {job.rejected}." if job.rejected else ""
    hidden = f", the newest {MAX_GRANTS} of {len(grants)}" if len(grants) > MAX_GRANTS else ""
    return (
        f'<article class="card" id="job{key}"><header><h3>{swatch(history, job)}{escape(label)}</h3>'
        f"{_badge(job.verdict)}</header>"
        f'<p class="soft">{escape(job.job.target)}: {escape(_ending(job))}.{bad}</p>'
        f"{_chart(history, job, key)}"
        f"<details><summary>verdicts and commands ({len(story)})</summary>{_table(story)}</details>"
        f"<details><summary>grants ({len(grants)}{hidden})</summary>{shown}</details>"
        f"{detail}</article>"
    )


def _chart(history: History, job: JobHistory, key: int) -> str:
    """Return the chart of a job; if it cannot be drawn, its name and why, so that the others are shown."""
    label = history.label(job)
    try:
        return chart(job, label, history.last, key)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        return f'<p class="soft">The chart of {escape(label)} cannot be drawn: {escape(error)}.</p>'


def _table(found: list[Row], *, shares: bool = False) -> str:
    names = ("after", "share", "device", "reason") if shares else ("after", "what", "reason")
    body = []
    for row in found:
        devices = ", ".join(map(str, row.devices or ())) or "-"
        middle = [f"{row.share or 0:.2f}", devices] if shares else [escape(row.what)]
        cells = [format_duration(row.time), *middle]
        body.append(
            "<tr>" + "".join(f"<td class=n>{cell}</td>" for cell in cells) + f"<td>{escape(row.reason)}</td></tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _lines(text: str) -> str:
    return "\n".join(escape(line) for line in text.splitlines())
