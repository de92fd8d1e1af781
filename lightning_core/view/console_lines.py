"""Log messages on lines of their own while a progress bar is drawn: the bar is cleared first and redraws itself."""

from __future__ import annotations

import contextlib
import logging
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info
from typing_extensions import override

# Trainers whose progress bar may be drawn by rich, which keeps no list of its bars.
_trainers: weakref.WeakSet[Any] = weakref.WeakSet()


def logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose messages start on lines of their own.

    The user's handlers and levels are left as they are.
    """
    found = logging.getLogger(name)
    found.addFilter(_CLEAR_BARS)
    return found


def inform(message: str) -> None:
    """Log a message on a line of its own, on rank zero, as Lightning does."""
    clear_bars()
    rank_zero_info(message)


def watch_bar_of(trainer: Any) -> None:
    """Remember a Trainer whose progress bar may have to be cleared."""
    _trainers.add(trainer)


def clear_bars() -> None:
    """Clear all progress bars; a failure here does not stop the message."""
    with contextlib.suppress(Exception):
        for bar in _tqdm_bars():
            if not bar.disable:
                bar.clear()
    with contextlib.suppress(Exception):
        for live in _rich_displays():
            _clear_rich(live)


def _tqdm_bars() -> Iterator[Any]:
    """Yield all bars of tqdm; each of its classes may keep its own list."""
    if (tqdm := sys.modules.get("tqdm.std")) is not None:
        classes = [tqdm.tqdm]
        for kind in classes:
            classes += kind.__subclasses__()
            yield from list(vars(kind).get("_instances", ()))


def _rich_displays() -> Iterator[Any]:
    for trainer in list(_trainers):
        progress = getattr(trainer.progress_bar_callback, "progress", None)
        if (live := getattr(progress, "live", None)) is not None and live.is_started:
            yield live


def _clear_rich(live: Any) -> None:
    """Clear the lines that rich has drawn, so that it redraws below what is printed next."""
    with live._lock:
        live.console.control(live._live_render.position_cursor())
        live._live_render._shape = None


class _ClearBars(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        clear_bars()
        return True


_CLEAR_BARS = _ClearBars()
