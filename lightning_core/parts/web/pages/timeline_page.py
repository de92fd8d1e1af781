"""The timeline page: the share of each device that each job held over time."""

from __future__ import annotations

import time

from lightning_core.history.history import History
from lightning_core.parts.web.pool_watch import PoolSnapshot
from lightning_core.report.gantt import about_lanes, gantt
from lightning_core.report.job_tables import all_faults
from lightning_core.report.part_panels import panels
from lightning_core.report.svg import escape

# Lengths that can be chosen, in seconds.
LENGTHS = ((600, "10 minutes"), (3600, "hour"), (6 * 3600, "6 hours"), (86400, "day"), (7 * 86400, "week"),
           (0, "all"))  # fmt: skip


def body() -> str:
    """Return the content of the page; its script loads the lanes."""
    choices = "".join(
        f'<label><input type="radio" name="last" value="{seconds}"{" checked" if seconds == 3600 else ""}> {words}'
        "</label>"
        for seconds, words in LENGTHS
    )
    return (
        '<h1>Timeline</h1><fieldset class="chips" id="last"><legend class="quiet">The last</legend>'
        f"{choices}</fieldset>"
        '<div id="lanes" aria-live="off"><p class="soft">Reading the journal …</p></div>'
    )


def lanes(history: History, view: PoolSnapshot, last: float | None) -> str:
    """Return the lanes of the devices, the panels of parts and the faults, as HTML.

    Args:
        history: History of the pool.
        view: Snapshot of the pool.
        last: Seconds that are shown; None or 0 for all.
    """
    until = max(history.last, view.now)
    since = 0.0 if not last else max(until - last, 0.0)
    start, end = (time.strftime("%a %d %b %Y, %H:%M", time.localtime(t + view.offset)) for t in (since, until))
    words = f"From {start} to {end}, in this machine's time zone; times below count from the start of the pool."
    return (
        f'<div class="panel">{gantt(history, since, until)}<p class="soft">{escape(words)} '
        f"{about_lanes(history)}</p></div>"
        f"{panels(history)}{all_faults(history, ())}"
    )
