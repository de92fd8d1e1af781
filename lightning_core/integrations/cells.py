"""Where a loop runs: in which thread, and in which cell of IPython, whose end says that the loop may have been left."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def watch_cells(ended: Callable[[BaseException | None], object]) -> Callable[[], None] | None:
    """Call a function whenever a cell has ended, from the one that runs now on.

    Args:
        ended: Called with what the cell raised; None if it raised nothing.

    Returns:
        A function that ends the calls; None where this thread runs no cell.
    """
    if threading.current_thread() is not threading.main_thread() or (shell := shell_here()) is None:
        return None

    def after_cell(result: Any) -> None:
        ended(getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None))

    def end() -> None:
        with suppress(ValueError):
            shell.events.unregister("post_run_cell", after_cell)

    shell.events.register("post_run_cell", after_cell)
    return end


def thread_here() -> tuple[int, int]:
    """Return process and thread: a fork has the thread of its parent, and what its parent has begun."""
    return os.getpid(), threading.get_ident()


def shell_here() -> Any:
    """Return the shell of IPython in this process; None if there is none."""
    ipython = sys.modules.get("IPython")  # which a process without a shell need not import
    try:
        return None if ipython is None else ipython.get_ipython()
    except Exception:  # the code of others: it may be half imported
        return None
