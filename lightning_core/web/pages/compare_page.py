"""Comparison of several jobs: their curves in one chart, and the hyper-parameters that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from lightning_core.core.durations import format_duration
from lightning_core.history.job_history import JobHistory
from lightning_core.report.comparison_chart import Axis, JobCurve, comparison_chart, key_of_line
from lightning_core.report.job_card import badge, shortened
from lightning_core.report.svg import escape

# Jobs that can be compared at once, and rows of values.
MAX_JOBS, MAX_ROWS = 8, 200


class ComparedJob(NamedTuple):
    """A job in the comparison."""

    label: str
    job: JobHistory
    asked: str
    """Its name in the address of the page."""
    values: dict[str, object]
    """Hyper-parameters by name, secrets left out; empty if they are not known."""


def body(jobs: Sequence[ComparedJob], last: float, axis: Axis, width: int) -> str:
    """Return the content of the page.

    Args:
        jobs: The jobs that are compared.
        last: Scheduler time of the last event.
        axis: Axis over which their curves are drawn.
        width: Width of the charts in pixels.
    """
    if not jobs:
        return (
            '<h1>Compare jobs</h1><p>Choose jobs by the boxes at their names on <a href="/">the first page</a>, '
            "or name them in the address: <code>/compare?job=a&amp;job=b</code>; an earlier run is <code>a@1</code>."
            "</p>"
        )
    legend = "".join(
        f'<li>{key_of_line(key)}<span><a href="/jobs/{escape(one.job.name)}">{escape(one.label)}</a></span></li>'
        for key, one in enumerate(jobs)
    )
    return (
        f'<h1>Compare {len(jobs)} job{"s" * (len(jobs) != 1)}</h1><nav class="tools" aria-label="Drawn over">'
        f"{_choices(jobs, axis)}</nav>"
        f'<div class="panel"><div id="charts">{charts(jobs, axis, width)}</div><ul class="legend">{legend}</ul></div>'
        f'<section class="panel wide"><h2>How they went</h2>{_outcomes(jobs, last)}</section>'
        f'<section class="panel wide"><h2>Hyper-parameters that differ</h2>{_differences(jobs)}</section>'
    )


def charts(jobs: Sequence[ComparedJob], axis: Axis, width: int) -> str:
    """Return a chart for each metric among the jobs."""
    by_metric: dict[str, list[JobCurve]] = {}
    for key, one in enumerate(jobs):
        by_metric.setdefault(one.job.job.target.axis, []).append(JobCurve(one.label, one.job, key))
    return "".join(comparison_chart(curves, axis, width) for curves in by_metric.values())


def _choices(jobs: Sequence[ComparedJob], axis: Axis) -> str:
    """Return links to the same page over something else; over epochs only if all jobs tell theirs."""
    names = [("job", one.asked) for one in jobs]
    axes = [one for one in Axis if one is not Axis.EPOCHS or all(job.job.job.target.epoch_batches for job in jobs)]
    return "<span class=soft>over</span> " + " ".join(
        f'<a class="choice" href="/compare?{escape(urlencode([*names, ("axis", str(one))]))}"'
        f"{' aria-current=true' if one is axis else ''}>{one}</a>"
        for one in axes
    )


def _outcomes(jobs: Sequence[ComparedJob], last: float) -> str:
    rows = [
        ("outcome", [badge(one.job.verdict) for one in jobs]),
        ("target", [escape(one.job.job.target) for one in jobs]),
        ("reached", [_reached(one.job) for one in jobs]),
        ("took", [format_duration((last if one.job.ended is None else one.job.ended) - one.job.submitted)
                  for one in jobs]),
        ("trained", [format_duration(one.job.progress[-1].busy if one.job.progress else 0.0) for one in jobs]),
        ("batches", [f"{one.job.progress[-1].batches:,}" if one.job.progress else "-" for one in jobs]),
        ("devices at most", [str(one.job.size) for one in jobs]),
        ("faults", [str(len(one.job.faults)) for one in jobs]),
    ]  # fmt: skip
    return _table(jobs, rows)


def _reached(job: JobHistory) -> str:
    return "-" if (value := job.reached) is None else escape(job.job.target.show(value))


def _differences(jobs: Sequence[ComparedJob]) -> str:
    unknown = [one.label for one in jobs if not one.values]
    note = f'<p class="soft">Not known of {escape(", ".join(unknown))}.</p>' if unknown else ""
    told = [one for one in jobs if one.values]
    names = dict.fromkeys(name for one in told for name in one.values)
    rows = [
        (escape(name), ["" if (value := one.values.get(name)) is None else shortened(str(value)) for one in jobs])
        for name in names
        if len({str(one.values.get(name)) for one in told}) > 1
    ]
    if not rows:
        same = f"All {len(names)} are the same." if len(told) > 1 else "There is nothing to compare."
        return f"<p>{same}</p>{note}"
    more = f'<p class="soft">The first {MAX_ROWS} of {len(rows)}.</p>' if len(rows) > MAX_ROWS else ""
    return f"{_table(jobs, rows[:MAX_ROWS])}{more}{note}"


def _table(jobs: Sequence[ComparedJob], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f'<th scope="col">{escape(one.label)}</th>' for one in jobs)
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{value}</td>" for value in values)}</tr>'
        for name, values in rows
    )
    return (
        '<div class="scrolls" tabindex="0" role="region" aria-label="Table"><table class="compared"><thead><tr>'
        f"<td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
