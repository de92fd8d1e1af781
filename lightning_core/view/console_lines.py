r"""Own lines
^^^^^^^^^

Messages on lines of their own while a progress bar is drawn: the bar is taken away first, and draws itself again.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info
from typing_extensions import override

# Those whose bar may be one of rich's, which knows nothing of others'.
_trainers: weakref.WeakSet[Any] = weakref.WeakSet()


def logger(name: str) -> logging.Logger:
    """Return the logger of a module of ours, whose messages begin on lines of their own.

    Nothing of the user's is configured: handlers and levels are as they were.
    """
    found = logging.getLogger(name)
    found.addFilter(_CLEARS)
    return found


def inform(words: str) -> None:
    """Log on rank zero, as Lightning does, on a line of its own."""
    clear_bars()
    rank_zero_info(words)


def watch_bar_of(trainer: Any) -> None:
    """Remember a Trainer, whose bar may have to be taken away."""
    _trainers.add(trainer)


def clear_bars() -> None:
    """Take away all bars that are drawn; whatever fails here is no reason not to speak."""
    with contextlib.suppress(Exception):
        for bar in _of_tqdm():
            if not bar.disable:
                bar.clear()
    with contextlib.suppress(Exception):
        for live in _of_rich():
            _take_away(live)


def _of_tqdm() -> Iterator[Any]:
    """All bars of tqdm: each class of them keeps its own, unless one above it does."""
    if (tqdm := sys.modules.get("tqdm.std")) is not None:
        classes = [tqdm.tqdm]
        for kind in classes:
            classes += kind.__subclasses__()
            yield from list(vars(kind).get("_instances", ()))


def _of_rich() -> Iterator[Any]:
    for trainer in list(_trainers):
        progress = getattr(trainer.progress_bar_callback, "progress", None)
        if (live := getattr(progress, "live", None)) is not None and live.is_started:
            yield live


def _take_away(live: Any) -> None:
    """Clear the lines that rich has drawn, and let it begin anew below what is printed next."""
    with live._lock:
        live.console.control(live._live_render.position_cursor())
        live._live_render._shape = None


class _Clears(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        clear_bars()
        return True


_CLEARS = _Clears()
