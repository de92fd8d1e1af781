"""Notices that a training hangs: its thread stays in one step, while the rest of its process answers.

The training thread notes what it begins, and the thread that reports looks how long that lasts. A step of training or
validation hangs if it lasts far longer than any of its kind before, and so does the wait for a batch. Everything else
may take any time: a hold, a turn on the device, a checkpoint, the other callbacks, a debugger.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum, auto
from pathlib import Path

from lightning_core.core.reported import Hang

# A step hangs if it lasts this many times as long as the longest of its kind. The first one is not counted among them:
# it may compile, which may come again for another shape, so that a step may always last this many times as long as it.
FACTOR, FIRST_FACTOR = 20.0, 2.0
# The first step of a kind may last this many times as long as any step may.
UNKNOWN_FACTOR = 10.0
# A process is given up once a step has lasted this many times as long as it may.
GIVE_UP_FACTOR = 2.0
# Beside others, everything may take this many times as long: the cores or the memory of a device may be the limit, and
# two that train at once then take somewhat more than twice as long each.
COMPANY_FACTOR = 4.0
# Seconds between two looks that count at most: while the whole process stood still, nothing hung.
MAX_GAP = 5.0
# Where Lightning and a plain loop wait for a batch, and what a debugger consists of.
FETCHERS = {("loops", "fetchers.py"), ("integrations", "plain.py")}
DEBUGGERS = ("bdb.py", "pydevd.py", "pydevd_frame.py")


class Phase(IntEnum):
    """Part of a training whose duration is much the same every time."""

    TRAINING = auto()
    """A batch of training."""
    VALIDATION = auto()
    """A batch of validation."""
    QUANTUM_END = auto()
    """Waiting for the device to finish its work at the end of a quantum."""
    FIRST_BATCH = auto()
    """From the start of an epoch to its first batch."""
    NEXT_BATCH = auto()
    """From a batch of training to the next one."""
    VALIDATION_BATCH = auto()
    """From the start of a validation, or a batch of it, to the next batch."""
    STEP = auto()
    """A batch of training in a loop that does anything else meanwhile, such as validating."""


# Here other callbacks run too: what hangs is the wait for a batch.
_WAITS = (Phase.FIRST_BATCH, Phase.NEXT_BATCH, Phase.VALIDATION_BATCH)


class HangWatch:
    """Watches how long the thread that creates it stays in one phase.

    Args:
        limit: Seconds that a phase may last at least, at a full share; None to watch nothing.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.moves = 0
        """Number of steps that have begun or ended, and of signs of life in what may take any time."""
        self.saves = False
        """Whether the thread is saving a checkpoint, as far as is known."""
        self.suspended = False
        """Whether this process is off its GPU, or about to leave it: no step is under way, and calls of CUDA block."""
        self.in_loader = False
        """Whether a step in which a loop does anything is waiting for its loader just now."""
        self.thread = threading.get_ident()
        """Id of the thread that is watched."""
        self.is_over = False
        """Whether what hangs has lasted so long that the process should be given up."""
        self._limit = limit
        self._clock = clock
        self._step: tuple[Phase, float] | None = None
        self._first: dict[Phase, float] = {}
        self._longest = dict.fromkeys(Phase, -1.0)  # of all but the first; below any while there was no first
        self._seen: tuple[Phase, float] | None = None
        self._looked_at = clock()
        self._lasted = self._limit_so_far = 0.0
        self._hang: Hang | None = None

    # ------------------------------------------------------------------------------------------------ training thread

    def turn(self, phase: Phase) -> None:
        """Note that the present phase, if there is one, has ended as it should, and that another one begins."""
        self.moves += 1
        self.saves = False
        ended, now = self._step, self._clock()
        self._step = phase, now
        if ended is not None and now - ended[1] > self._longest[ended[0]]:
            self._note_longest(ended[0], now - ended[1])

    def done(self) -> None:
        """Note that the present phase, if there is one, has ended as it should; what comes now may take any time."""
        self.moves += 1
        ended, self._step = self._step, None
        if ended is not None and (lasted := self._clock() - ended[1]) > self._longest[ended[0]]:
            self._note_longest(ended[0], lasted)

    def begin(self, phase: Phase) -> None:
        """Note that a phase begins; the present one, if there is one, has not ended as it should."""
        self._step = None
        self.turn(phase)

    def excuse(self, *, saves: bool = False) -> None:
        """Note that what comes now may take any time; ``saves`` that it is the writing of a checkpoint."""
        self.moves += 1
        self._step, self.saves = None, saves

    def _note_longest(self, phase: Phase, lasted: float) -> None:
        if phase in self._first:
            self._longest[phase] = lasted
        else:
            self._first[phase], self._longest[phase] = lasted, 0.0

    # ------------------------------------------------------------------------------------------------ reporting thread

    def look(self, share: float, *, beside: bool = False) -> Hang | None:
        """Return what hangs, as it was when that was noticed; None if nothing does. To be called often.

        Args:
            share: Share of its devices that the training has; with half of them all takes twice as long.
            beside: Whether it trains beside others. A step that began so may last as long as beside them to its end.
        """
        step, now = None if self.suspended else self._step, self._clock()
        phase = None if step is None else Phase.NEXT_BATCH if self.in_loader and step[0] is Phase.STEP else step[0]
        gap, self._looked_at = min(now - self._looked_at, MAX_GAP), now
        if step is not self._seen:
            self._seen, self._hang, self._limit_so_far = step, None, 0.0
            self._lasted = 0.0 if step is None else min(now - step[1], MAX_GAP)
        else:
            self._lasted += gap
        limit = math.inf if phase is None else self._may_last(phase) * (COMPANY_FACTOR if beside else 1.0) / share
        self._limit_so_far = limit = max(limit, self._limit_so_far)
        if phase is not None and self._lasted > limit and _is_excused(phase, self._stack()):
            self._lasted = 0.0
        if step is None or self._lasted <= limit:
            self._hang = None
        elif self._hang is None:
            self._hang = Hang(self._lasted, self._longest_of(step[0]))
        self.is_over = self._lasted > GIVE_UP_FACTOR * limit
        return self._hang

    def story(self) -> str:
        """Return where the training thread is, and in the last line for how long."""
        lasted = "" if self._seen is None else str(Hang(self._lasted, self._longest_of(self._seen[0])).reason)
        return "".join(traceback.format_list(self._stack())) + lasted

    def _stack(self) -> Sequence[traceback.FrameSummary]:
        """Return the calls that the training thread is in, the innermost last."""
        frame = sys._current_frames().get(self.thread)
        return [] if frame is None else traceback.extract_stack(frame)

    def _may_last(self, phase: Phase) -> float:
        """Return the seconds that a phase may last at a full share."""
        if self._limit is None:
            return math.inf
        if phase not in self._first:
            return UNKNOWN_FACTOR * self._limit
        limit = UNKNOWN_FACTOR * self._limit if phase is Phase.STEP else self._limit
        return max(limit, FIRST_FACTOR * self._first[phase], FACTOR * self._longest[phase])

    def _longest_of(self, phase: Phase) -> float:
        return max(self._first.get(phase, 0.0), self._longest[phase])


def _is_excused(phase: Phase, stack: Sequence[traceback.FrameSummary]) -> bool:
    """Return whether a phase is known to take any time where the training thread is."""
    files = [Path(frame.filename) for frame in stack]
    if any(file.name in DEBUGGERS for file in files):
        return True
    return phase in _WAITS and not any(file.parts[-2:] in FETCHERS for file in files)
