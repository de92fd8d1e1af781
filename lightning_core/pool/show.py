"""A live table of a pool's jobs in the output of a notebook's cell."""

from __future__ import annotations

import time
from collections.abc import Callable

from lightning_core.core.answers import JobStatus, State
from lightning_core.report.live_table import Key, key_of, live_table, thinned


def show(look: Callable[[], tuple[float, list[JobStatus]]], seconds: float, poll: float) -> None:
    """Show the table until all jobs have ended, some seconds have passed, or the cell is interrupted.

    The thread of the cell does it all: none is left behind.

    Args:
        look: Returns scheduler time and the jobs.
        seconds: Seconds for which the table is kept up to date.
        poll: Seconds between two looks.

    Raises:
        ImportError: If IPython is not installed.
    """
    from IPython.display import HTML, display

    seen: dict[Key, list[tuple[float, float]]] = {}
    until, shown = time.monotonic() + seconds, None
    try:
        while True:
            now, jobs = look()
            for job in jobs:
                if job.value is not None and job.state is not State.ENDED:
                    seen[key_of(job)] = thinned([*seen.get(key_of(job), []), (now, job.value)])
            page = HTML(live_table(now, jobs, seen))
            if shown is None:
                shown = display(page, display_id=True)
            else:
                shown.update(page)
            left = until - time.monotonic()
            if left <= 0 or all(job.state is State.ENDED for job in jobs):
                return
            time.sleep(min(poll, left))
    except KeyboardInterrupt:  # the button that stops a cell: the table stays as it is
        pass
