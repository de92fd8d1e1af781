"""``report.html``: a run on one page, for a reader who has never seen it.

Rules

1. One file, which loads and runs nothing: no script, no address, and a content security policy that forbids both.
2. All text from outside is escaped (:func:`lightning_core.report.svg.escape`).
3. No colour stands alone: a symbol or a word stands with it.
4. It has at most 5 MB, however many jobs and observations there were. Of many jobs, those that matter first have a
   chart: those in trouble, then those that have not ended, then those that have. The others are in a table.
"""

from __future__ import annotations

import math
from pathlib import Path

from lightning_core.core.answers import Verdict
from lightning_core.core.durations import format_duration
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.report.gantt import about_lanes, gantt, swatch
from lightning_core.report.job_card import job_card
from lightning_core.report.job_tables import all_faults, all_jobs, outcomes
from lightning_core.report.lanes import use
from lightning_core.report.part_panels import panels
from lightning_core.report.style import STYLE
from lightning_core.report.svg import escape
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.journals.journal import Journal

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# Maximum number of charts, and bytes of all of them with their texts.
MAX_CARDS, MAX_CARD_BYTES = 100, 3_000_000
# Rows of each table of a job, the newest ones, and of all of them together.
MAX_ROWS, ALL_ROWS = 100, 2000
# Stops of the pool that the introduction tells of: the newest ones.
MAX_STOPS = 20
# The lower, the more it matters.
_RANKS = {Verdict.CRASHED: 0, Verdict.MISSED: 1, Verdict.INFEASIBLE: 2, Verdict.AT_RISK: 3, None: 4,
          Verdict.FEASIBLE: 4, Verdict.MET: 5, Verdict.CANCELLED: 6}  # fmt: skip
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
    ('<path class="share beside" d="M0 14V6H20V0H34V14z"/>', "the same beside others that train at the same time"),
)  # fmt: skip


def document(title: str, body: str) -> str:
    """Return a whole page.

    Args:
        title: Title of the page, as text.
        body: Its content, as HTML.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


def write_document(path: Path, text: str) -> None:
    """Write a page, completely or not at all."""
    write_whole(path, text)


def write(journal: Journal, path: Path, title: str = "", *, forecasts: bool = False) -> History:
    """Write the report, completely or not at all; return the history that it shows.

    Args:
        journal: Journal of a run, which may not be over.
        path: Path of the page.
        title: Title of the run, such as the name of its folder.
        forecasts: Whether to have forecasts of a long run too, which takes minutes.
    """
    history = History.read(journal)
    fill_in(journal, history, always=forecasts)
    write_document(path, page(history, title))
    return history


def page(history: History, title: str = "") -> str:
    """Return the report of a history that has its forecasts."""
    met = sum(job.verdict is Verdict.MET for job in history.jobs)
    late = [job.deadline < history.last for job in history.jobs if job.ended is None and job.verdict is not Verdict.MET]
    headline = f"{met:,} of {_count(len(history.jobs), 'target')} met in time"
    if running := late.count(False):
        headline += f", {running:,} still running"
    if late.count(True):
        headline += f", {late.count(True):,} running past the deadline"
    cards = _cards(history)
    return document(
        f"{title}: {headline}" if title else headline,
        f'<p class="soft">{escape(title or "Training jobs with deadlines")}</p><h1>{headline}</h1>'
        f"<p>{_intro(history)}</p>{_failed_parts(history)}{_tiles(history)}"
        f"<h2>Jobs</h2><div class=panel>{all_jobs(history, list(cards))}</div>"
        f"<h2>Devices</h2><div class=panel>{gantt(history)}{_who(history)}</div>{panels(history)}"
        f"{all_faults(history, cards)}"
        f'<h2>Job by job</h2><div class=panel><ul class="legend">{_legend()}</ul></div>'
        f'<p class="soft">{_about_charts(history, len(cards))}</p>'
        f'<div class="cards">{"".join(cards.values())}</div>',
    )


def first_jobs(history: History) -> list[int]:
    """Return the indices of the jobs that have a chart: all in the order of submission, or those that matter first."""
    keys = list(range(len(history.jobs)))
    if len(keys) <= MAX_CARDS:
        return keys
    return sorted(keys, key=lambda key: (_RANKS[history.jobs[key].verdict], -key))[:MAX_CARDS]


def _cards(history: History) -> dict[int, str]:
    """Return the cards by the indices of their jobs, as many as the page can hold."""
    keys = first_jobs(history)
    rows, size, found = min(MAX_ROWS, ALL_ROWS // max(len(keys), 1)), 0, {}
    for key in keys:
        card = job_card(history, key, rows)
        size += len(card.encode())
        if size > MAX_CARD_BYTES:
            break
        found[key] = card
    return found


def _about_charts(history: History, charts: int) -> str:
    words = "Times of a job count from its submission."
    if any(job.forecasts for job in history.jobs):
        words += " Forecasts are those that the scheduler used."
    elif any(job.progress for job in history.jobs):
        words += (
            " The forecasts of a long run are left out: its events would have to be handled again, which"
            " <code>lightning-core report --forecasts</code> does."
        )
    if charts < len(history.jobs):
        words += f" Of {len(history.jobs):,} jobs, {charts} have a chart: those in trouble first, then the newest."
    return words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def _intro(history: History) -> str:
    many, devices = _count(len(history.jobs), "training job"), _count(history.settings.devices, "device")
    due = sum(job.deadline < math.inf for job in history.jobs)
    said = "a target and a deadline" if due == len(history.jobs) else f"a target, and {due:,} of them a deadline"
    first = f"{many} shared {devices}; each had {said}."
    if len(history.jobs) > MAX_CARDS:
        first += f" {outcomes(history, range(len(history.jobs)))}."
    start = min((job.submitted for job in history.jobs), default=0.0)
    stops = history.stops[-MAX_STOPS:]
    left = (
        f"{'S' + what[1:]} after {format_duration(since - start)}, resumed {format_duration(until - since)} later."
        for since, until, what in stops
    )
    pool = [] if history.part_of is None else [f"Other jobs of the pool at {history.part_of.folder} are not shown."]
    return " ".join([first, *map(escape, [*left, *pool])])


def _failed_parts(history: History) -> str:
    """Return a line about each part from outside the library that failed."""
    lines = (f"a part failed, and was asked no more: {part}: {words}" for part, words in history.failed.items())
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


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


def _who(history: History) -> str:
    """Return the legend of the jobs' colours, with a hint if several jobs share one."""
    if len(history.jobs) > MAX_CARDS:
        words = "Several jobs have one colour: point at a box for its name."
        return f'<p class="soft">{about_lanes(history)} {words}</p>'
    jobs = (f"<span>{swatch(key)}{escape(history.label(job))}</span>" for key, job in enumerate(history.jobs))
    return f'<div class="who">{"".join(jobs)}</div><p class="soft">{about_lanes(history)}</p>'


def _legend() -> str:
    return "".join(
        f'<li><svg viewBox="0 0 34 14" aria-hidden="true">{sign}</svg><span>{words}</span></li>'
        for sign, words in _LEGEND
    )
