"""The page of a job: its curve and forecasts, its events with their reasons, its log, and its controls."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from lightning_core.bundle.scripts import SCRIPT, without_secrets
from lightning_core.core.answers import JobStatus
from lightning_core.core.durations import format_duration
from lightning_core.core.limits import format_bytes
from lightning_core.core.names import check_name, devices_words
from lightning_core.core.parts import group_of
from lightning_core.core.reported import HyperParameters, hyper_parameters
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.parts.web.pages.overview_page import in_script
from lightning_core.regular_files import open_regular
from lightning_core.report.chart import LEFT, RIGHT, WIDTH, chart
from lightning_core.report.job_card import badge, ending, shortened
from lightning_core.report.svg import escape
from lightning_core.storage.job_specs import FILE, home_of
from lightning_core.storage.private_files import read_own
from lightning_core.view.log_lines import LogLines
from lightning_core.view.text import clean
from lightning_core.view.why import rows

# Bytes and lines of the end of a log; rows of the table of events.
LOG_BYTES, LOG_LINES, MAX_STORY = 2**18, 400, 400
MAX_SPEC_BYTES = 2**20

Found = tuple[int, JobHistory]
"""Index and history of a job."""


def body(history: History, found: Found, status: JobStatus | None, steers: bool, state: str, folder: Path) -> str:
    """Return the content of the page.

    Args:
        history: History of the pool.
        found: The job.
        status: Its status; None if it is an earlier one of its name, or the pool has forgotten it.
        steers: Whether the reader may steer it.
        state: Initial state of the page, as JSON.
        folder: Folder of the pool.
    """
    _, job = found
    label = history.label(job)
    asks = _tools(job, status) if steers else ""
    config = _config(trained_with(folder, job, is_newest=status is not None))
    return (
        f'<p class="soft"><a href="/">All jobs</a></p><header class="head"><h1>{escape(label)}</h1>'
        f'<span id="verdict">{badge(job.verdict)}</span></header>'
        f'<p id="reason">{shortened(ending(job))}</p><p id="trouble" class="trouble" role="alert" hidden></p>{asks}'
        f'<div class="panel"><div id="chart" data-left="{LEFT}" data-margin="{WIDTH - RIGHT}" '
        f'data-run="{job.run_number}">{chart_of(history, found, 400, None)}</div>'
        '<div class="tools" role="group" aria-label="Zoom"><button class="plain" id="closer">zoom in</button>'
        '<button class="plain" id="wider">zoom out</button><button class="plain" id="earlier">earlier</button>'
        '<button class="plain" id="later">later</button><button class="plain" id="whole">all</button>'
        '<span class="soft">or drag across the chart</span></div></div>'
        f'<div class="columns"><section class="panel"><h2>Facts</h2><dl class="facts" id="facts">{facts(job, status)}'
        f"</dl></section>{config}</div>"
        '<section class="panel"><h2>What happened, and why</h2>'
        f'<div id="story">{story(job)}</div></section>'
        f"{_log(job, status)}"
        f'<script type="application/json" id="state">{in_script(state)}</script>'
    )


def chart_of(history: History, found: Found, width: int, span: tuple[float, float] | None) -> str:
    """Return the chart of a job, in an element that says which seconds it shows."""
    index, job = found
    end = max((history.last if job.ended is None else job.ended) - job.submitted, 1e-3)
    low, high = span or (0.0, 0.0)
    try:
        drawn = chart(job, history.label(job), history.last, index, width=width, span=span)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        drawn = f'<p class="soft">The chart cannot be drawn: {escape(error)}.</p>'
    # A chart of all of it ends where its axis does.
    full = max(1.04 * end, min(1.05 * (job.deadline - job.submitted), 1.8 * end))
    return f'<div class="drawn" data-low="{low!r}" data-high="{high or full!r}" data-end="{end!r}">{drawn}</div>'


def story(job: JobHistory) -> str:
    """Return everything that happened to a job, the newest first."""
    found = rows(job)[::-1]
    body = []
    for row in found[:MAX_STORY]:
        share = "" if row.share is None else f"{row.share:.2f}"
        devices = escape(devices_words(row.devices, row.kind, ", ")) if row.devices else ""
        body.append(
            f'<tr><td class=n data-label="after">{format_duration(row.time)}'
            f'<div class="soft" data-at="{job.submitted + row.time!r}"></div></td>'
            f'<td class=n data-label="what">{escape(row.what)}</td><td class=n data-label="share">{share}</td>'
            f'<td data-label="device">{devices}</td><td data-label="reason">{shortened(row.reason)}</td></tr>'
        )
    more = f'<p class="soft">The newest {MAX_STORY} of {len(found):,}.</p>' if len(found) > MAX_STORY else ""
    names = ("after", "what", "share", "device", "reason")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f'<table class="stack"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>{more}'


def facts(job: JobHistory, status: JobStatus | None) -> str:
    """Return the terms of a job, and how far it is, as a list of definitions."""
    terms = job.job
    found: list[tuple[str, object]] = [
        ("target", terms.target),
        ("reached", "-" if (value := job.reached) is None else terms.target.show(value)),
        ("deadline", "none" if terms.is_best_effort else f"{format_duration(job.deadline - job.submitted)} from its "
         "submission"),
        ("devices", terms.max_devices if terms.min_devices == terms.max_devices
         else f"{terms.min_devices} to {terms.max_devices}"),
        ("weight", f"{terms.weight:g}"),
    ]  # fmt: skip
    if status is not None:
        found += [("state", status.state), ("batches", f"{status.batches:,}")]
        if status.throughput is not None:
            found.append(("throughput", f"{status.throughput:.3g} batches per second"))
        if status.rates:
            found.append(
                ("by kind of device", ", ".join(f"{rate:.3g} on {kind}" for kind, rate in status.rates.items()))
            )
        if status.memory is not None:
            found.append(("memory at its peak", format_bytes(status.memory)))
        if status.checkpoint_batches is not None:
            found.append(("last checkpoint", f"batch {status.checkpoint_batches:,}"))
        if status.restarts:
            found.append(("restarts", f"{status.restarts}, {status.lost_batches:,} batches repeated"))
    if terms.owner:
        found.insert(0, ("owner", terms.owner))
    if (group := group_of(terms.parts)) is not None:
        found.append(("group", " ".join(group)))
    # The page's script inserts dates in the reader's time zone.
    dates = [("submitted", job.submitted), ("ended", job.ended)]
    if not terms.is_best_effort:
        dates.insert(1, ("due", job.deadline))
    begun = "".join(f'<div><dt>{name}</dt><dd data-at="{at!r}"></dd></div>' for name, at in dates if at is not None)
    rest = "".join(f"<div><dt>{name}</dt><dd>{shortened(clean(str(value)))}</dd></div>" for name, value in found)
    return begun + rest


def log_tail(folder: Path, name: str) -> str:
    """Return the last lines of the log of a launched job.

    Raises:
        OSError: If there is none here; the message says why.
    """
    log = LogLines()
    path = home_of(folder, check_name(name)) / "log.txt"
    if not path.exists():
        raise FileNotFoundError(
            f"{name} has no log here: a script prints in its own shell, and the log of a job that has ended ages out"
        )
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - LOG_BYTES, 0))
        lines = [*log.feed(file.read(LOG_BYTES)), *log.rest()]
    if size > LOG_BYTES:
        lines = lines[1:]  # the first is not whole
    return "\n".join(lines[-LOG_LINES:])


def _log(job: JobHistory, status: JobStatus | None) -> str:
    """Return the place of the log; a script prints in its own shell, and an earlier job's log is not kept."""
    if status is None or not job.job.is_launched:
        return ""
    return (
        '<section class="panel"><h2>Log</h2>'
        '<pre id="log" tabindex="0" role="region" aria-label="End of the log" class="log"></pre></section>'
    )


def _tools(job: JobHistory, status: JobStatus | None) -> str:
    """Return the buttons for the actions on a job."""
    most = job.job.max_devices
    return (
        '<div class="tools" id="asks" role="group" aria-label="Steer this job">'
        '<button data-ask="pause">Pause</button><button data-ask="resume">Resume</button>'
        '<button data-ask="deadline">Deadline …</button><button data-ask="devices" '
        f'data-most="{most}">Devices …</button><button data-ask="cancel" class="danger">Cancel job</button></div>'
        '<dialog id="ask" aria-labelledby="ask-words"><form method="dialog"><p id="ask-words"></p>'
        '<p id="ask-field" hidden><label for="ask-value" id="ask-label"></label> <input id="ask-value"></p>'
        '<div class="tools"><button value="yes" id="ask-yes">Yes</button><button value="no" class="plain">No</button>'
        "</div></form></dialog>"
    )


def _config(found: HyperParameters) -> str:
    """Return the hyper-parameters of a job as HTML; empty if unknown."""
    values = "".join(f"<div><dt>{escape(name)}</dt><dd>{shortened(value)}</dd></div>" for name, value in found)
    return values and f'<section class="panel"><h2>Hyper-parameters</h2><dl class="facts">{values}</dl></section>'


def trained_with(folder: Path, job: JobHistory, *, is_newest: bool) -> HyperParameters:
    """Return the hyper-parameters of a job without secrets: from its config, or else as reported by its training.

    Args:
        folder: Folder of the pool.
        job: The job.
        is_newest: Whether it is the newest of its name: of an earlier one, the config is gone.
    """
    if is_newest and job.job.is_launched:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            config = json.loads(read_own(home_of(folder, job.name), FILE, MAX_SPEC_BYTES))["config"]
            if SCRIPT in config:
                config = {SCRIPT: without_secrets(config[SCRIPT])}
            return hyper_parameters(config, is_config=True)
    return job.hyper_parameters
