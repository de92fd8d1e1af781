"""Tables of the report page: all jobs, and all faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from lightning_core.core.durations import format_duration
from lightning_core.history.faults import STARTS, Fault
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.gantt import swatch
from lightning_core.report.job_card import badge, ending, shortened
from lightning_core.report.svg import escape

# Maximum jobs that are shown at once, rows of the table of the rest, and rows of the newest faults.
MAX_OPEN, MAX_ROWS, MAX_FAULTS = 20, 4000, 200
_NAMES = ("job", "owner", "outcome", "target", "reached", "finished", "deadline", "reason")
_NUMBERS = ("outcome", "reached", "finished", "deadline")
_FEW = ("job", "owner", "outcome", "finished", "deadline")


def all_jobs(history: History, charts: Sequence[int]) -> str:
    """Return a table of the jobs that have a chart; of the first ones if there are many, and a folded one of the rest.

    Args:
        history: History of the run.
        charts: Indices of the jobs that have a chart, in their order on the page.
    """
    several = len({job.job.owner for job in history.jobs}) > 1
    names, few = (tuple(name for name in all_names if several or name != "owner") for all_names in (_NAMES, _FEW))
    others = sorted(set(range(len(history.jobs))) - set(charts))
    first = charts[:MAX_OPEN] if others else charts
    found = _table(names, [_cells(history, key, linked=True) for key in first])
    if not others:
        return found
    rest, drawn = [*charts[MAX_OPEN:], *others], set(charts)
    rows = [_cells(history, key, linked=key in drawn) for key in rest[:MAX_ROWS]]
    more = len(rest) - len(rows)
    note = f'<p class="soft">And {more:,} more, submitted later.</p>' if more else ""
    return (
        f"{found}<details><summary>{len(rest):,} more jobs: {outcomes(history, rest)}</summary>"
        f"{_table(few, rows)}{note}</details>"
    )


def outcomes(history: History, keys: Iterable[int]) -> str:
    """Return how many of some jobs have each verdict."""
    counts = Counter(str(history.jobs[key].verdict or "no verdict yet") for key in keys)
    return ", ".join(f"{count:,} {verdict}" for verdict, count in counts.most_common())


def _cells(history: History, key: int, *, linked: bool) -> dict[str, str]:
    job = history.jobs[key]
    label = escape(history.label(job))
    finished = "-" if job.ended is None else format_duration(job.ended - job.submitted)
    return {
        "job": link(key, label) if linked else f"<span>{label}</span>",
        "owner": escape(job.job.owner or "-"),
        "outcome": badge(job.verdict),
        "target": escape(job.job.target),
        "reached": _reached(job),
        "finished": finished,
        "deadline": format_duration(job.deadline - job.submitted),
        "reason": f"<span>{shortened(ending(job))}</span>",
    }


def link(key: int, label: str) -> str:
    """Return the name of a job, which leads to its card."""
    return f'<span>{swatch(key)}<a href="#job{key}">{label}</a></span>'


def _reached(job: JobHistory) -> str:
    return "-" if (value := job.reached) is None else job.job.target.show(value)


def _table(names: Sequence[str], rows: Sequence[dict[str, str]], numbers: Collection[str] = _NUMBERS) -> str:
    """Return a table that becomes a list on a narrow page."""
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-label="{n}"{" class=n" if n in numbers else ""}>{row[n]}</td>' for n in names)
        + "</tr>"
        for row in rows
    )
    return f'<table class="stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def all_faults(history: History, linked: Collection[int]) -> str:
    """Return a table of the faults of jobs and pool in the order of time; empty if there were none.

    Args:
        history: History of the run.
        linked: Indices of the jobs that have a card.
    """
    of_jobs = [(fault.time, key, fault) for key, job in enumerate(history.jobs) for fault in job.faults]
    found = [(time, _of_job(history, key, fault, key in linked)) for time, key, fault in
             sorted(of_jobs, key=lambda one: one[0])[-MAX_FAULTS:]]  # fmt: skip
    for since, until, what in history.gaps[-MAX_FAULTS:]:
        lost = "no decision for " + format_duration(until - since)
        found.append((since, _of_pool(what, lost, "resumed where its journal ended")))
    outages = _together(history)
    for (since, back, what), devices in list(outages.items())[-MAX_FAULTS:]:
        one = len(devices) == 1
        lost = ("the device" if one else f"{len(devices)} devices") + (
            "" if back is None else f" for {format_duration(back - since)}"
        )
        do = "continue elsewhere" if len(devices) < history.settings.devices else "wait"
        done = f"{'its' if one else 'their'} jobs {do}" + ("" if back is None else ", then continue there")
        named = f"device{'s' * (not one)} {', '.join(map(str, devices))}: {what}"
        found.append((since, _of_pool(named, lost, done)))
    if not found:
        return ""
    shown = sorted(found, key=lambda one: one[0])[-MAX_FAULTS:]
    rows = [{"after": format_duration(time)} | cells for time, cells in shown]
    count = len(of_jobs) + len(history.gaps) + len(outages)
    note = f'<p class="soft">The newest {len(rows)} of {count:,}.</p>' if count > len(rows) else ""
    table = _table(("after", "job", "fault", "lost", "done"), rows, ("after",))
    return f"<h2>Faults</h2><div class=panel>{table}{note}</div>"


def _together(history: History) -> dict[tuple[float, float | None, str], list[int]]:
    """Return the devices that had no worker for the same time and cause, by its beginning, its end, and the cause."""
    found = dict[tuple[float, float | None, str], list[int]]()
    for outage in history.outages:
        if outage.what == STARTS:
            continue
        found.setdefault((outage.since, outage.until, outage.what), []).append(outage.device)
    return found


def _of_job(history: History, key: int, fault: Fault, linked: bool) -> dict[str, str]:
    label = escape(history.label(history.jobs[key]))
    name = link(key, label) if linked else f"<span>{label}</span>"
    parts = {"fault": fault.what, "lost": fault.lost, "done": fault.done}
    return {"job": name} | {part: f"<span>{shortened(words)}</span>" for part, words in parts.items()}


def _of_pool(what: str, lost: str, done: str) -> dict[str, str]:
    parts = {"job": "the pool", "fault": what, "lost": lost, "done": done}
    return {part: f"<span>{shortened(words)}</span>" for part, words in parts.items()}
