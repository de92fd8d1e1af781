"""A live table of a pool's jobs in the output of a notebook's cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lightning_core.core.answers import JobStatus, State
from lightning_core.report.live_table import Key, key_of, live_lines, live_table, thinned

NEEDS_IPYTHON = "IPython is not installed: run pip install -c constraints.txt '.[notebook]' in the clone"


class Shown(NamedTuple):
    """The table at one moment, as IPython displays it.

    Attributes:
        html: For a notebook.
        text: For a terminal.
    """

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        """Return the text."""
        return self.text


def is_notebook(shell: Any) -> bool:
    """Return whether what a shell of IPython displays is shown by another program, such as Jupyter."""
    return getattr(shell, "kernel", None) is not None


def show(look: Callable[[], tuple[float, list[JobStatus]]], seconds: float, poll: float) -> None:
    """Show the table until all jobs have ended, some seconds have passed, or the cell is interrupted.

    The thread of the cell does it all: none is left behind. A terminal, where it cannot be updated, shows it once.

    Args:
        look: Returns scheduler time and the jobs.
        seconds: Seconds for which the table is kept up to date.
        poll: Seconds between two looks.

    Raises:
        ImportError: If IPython is not installed.
    """
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        raise ImportError(NEEDS_IPYTHON) from None

    seen: dict[Key, list[tuple[float, float]]] = {}
    until, shown = time.monotonic() + seconds, None
    if not is_notebook(get_ipython()):
        until = 0.0
    try:
        while True:
            now, jobs = look()
            for job in jobs:
                if job.value is not None and job.state is not State.ENDED:
                    seen[key_of(job)] = thinned([*seen.get(key_of(job), []), (now, job.value)])
            page = Shown(live_table(now, jobs, seen), live_lines(now, jobs))
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
