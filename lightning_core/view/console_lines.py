"""Lines of a training for its user, in the log or printed, above a progress bar, which is cleared and redraws itself.

No line can fail the training: if the terminal is closed, full or of another kind, or a handler raises, it is lost.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

# Seconds that printing a line may wait.
MAX_WAIT = 1.0
# Trainers whose progress bar may be drawn by rich, which keeps no list of its bars.
_trainers: weakref.WeakSet[Any] = weakref.WeakSet()


class LineLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages start on lines of their own, and which never raises."""

    @override
    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        with contextlib.suppress(Exception):  # a handler or a filter of the user's
            if self.isEnabledFor(level):
                clear_bars()
                super().log(level, msg, *args, **{"stacklevel": 2, **options})


def logger(name: str) -> LineLogger:
    """Return the logger of a module; the user's handlers and levels stay unchanged."""
    return LineLogger(logging.getLogger(name), {})


def inform(message: str) -> None:
    """Log a message on a line of its own, as Lightning does where it is imported; where nothing logs, print it."""
    with contextlib.suppress(Exception):
        clear_bars()
        as_lightning = sys.modules.get("lightning.pytorch") or sys.modules.get("pytorch_lightning")
        if as_lightning is not None:
            from lightning_utilities.core.rank_zero import rank_zero_info

            rank_zero_info(message)
        elif logging.root.handlers:
            logging.getLogger("lightning_core").info(message)
        else:  # no one has said where messages go
            print_line(f"lightning_core: {message}")


def print_line(line: str) -> None:
    """Print a line for the user, regardless of the log level.

    The progress bar itself is not asked to: that of tqdm prints nothing once it is closed.
    """
    clear_bars()
    with contextlib.suppress(Exception):
        stream = sys.stdout
        encoding = getattr(stream, "encoding", None) or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        if type(stream) is io.TextIOWrapper and _is_file(stream):
            # Not through its buffer: unwritten data would be retried when the process ends, and fail it.
            stream.flush()
            _write(stream.fileno(), f"{line}\n".encode(encoding))
        else:
            stream.write(f"{line}\n")
            if hasattr(stream, "flush"):
                stream.flush()


def _is_file(stream: io.TextIOWrapper) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:
        return False


def _write(descriptor: int, text: bytes) -> None:
    """Write to a file, unless it takes nothing now: a pipe that no process reads, or a terminal that was stopped."""
    if hasattr(select, "poll"):
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        if [events for _, events in room.poll(1e3 * MAX_WAIT)] != [select.POLLOUT]:
            return
    os.write(descriptor, text)


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
    """Clear the lines that rich has drawn, so that it redraws below the next output."""
    with live._lock:
        live.console.control(live._live_render.position_cursor())
        live._live_render._shape = None
