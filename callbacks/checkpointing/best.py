"""The best model of a training, kept while it goes on: the one that met the target, or came closest to it.

Rules

1. A value of an evaluated metric that is better than all before is saved at once. A loss of every batch is averaged as
   the scheduler does it, and saved so seldom that it takes less than a fiftieth of the training's time; where the
   target is met it is saved whatever it takes.
2. Training waits for the copy to host memory only. The file is written beside its place, synced and renamed, and its
   manifest holds its SHA-256 and the value. The one before it stays until then, and one generation longer.
3. A training that is resumed goes on from the value in the manifest; one that begins anew begins anew.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import lightning.pytorch as pl

from lightning_core.core.targets import STEP_LOSS, BatchTarget, LossTarget, Target
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.generations import CorruptCheckpointError, Manifest, newest, read_manifest

from .checkpoint_io import SafeCheckpointIO
from .job_writer import write
from .resumable import RARELY

log = logging.getLogger(__name__)


class Best:
    """Keeps the best model of a fit; on all ranks, of which the first sees the values.

    Args:
        job: Name, for messages.
        place: Path of the file.
        target: Whose metric decides; the step's loss for one in batches.
        resumed: Whether what lies at the place is of this training, and must be beaten.
    """

    def __init__(self, job: str, place: Path, target: Target, *, resumed: bool) -> None:
        self.wanted: float | None = None
        """The value for the sake of which the model should be kept now, as it is; None if it need not be."""
        self._job = job
        self._place = place
        self._target = target
        self._window = Settings().window
        self._recent: deque[float] = deque(maxlen=max(self._window, target.for_evaluations))
        self._io = SafeCheckpointIO(asynchronous=True)
        self._best: float | None = None
        self._met = False
        self.saved = resumed
        """Whether what lies at the place is of this training."""
        self._not_before = 0.0
        if resumed:
            with suppress(CorruptCheckpointError):
                manifest = read_manifest(place)
                self._best = None if manifest is None else manifest.value

    @property
    def path(self) -> str:
        """Where the best model lies; empty while there is none."""
        return str(self._place) if self.saved and self._place.exists() else ""

    def see(self, value: float, *, evaluated: bool) -> None:
        """Take in a value as logged, from which it follows whether the model is wanted."""
        if not math.isfinite(value):
            return
        self._recent.append(value)
        target, recent = self._target, list(self._recent)
        if isinstance(target, BatchTarget):
            if not self._met:
                self._look(sum(recent[-self._window :]) / len(recent[-self._window :]), len(recent) >= self._window)
        elif evaluated:
            self._look(value, at_once=True)
        else:
            full = len(recent) >= self._window
            self._look(target.reached(recent, evaluated, self._window), full)
            if full and not self._met and target.is_met(recent, evaluated, self._window):
                self._met, self.wanted = True, target.reached(recent, evaluated, self._window)

    def done(self, batches: int) -> None:
        """So many batches are done: of a target in batches, the model that met it is kept."""
        if isinstance(self._target, BatchTarget) and batches == self._target.batches and not self._met:
            recent = list(self._recent)[-self._window :]
            self._met, self.wanted = True, sum(recent) / len(recent) if recent else float(batches)

    def save(self, trainer: pl.Trainer) -> None:
        """Save the model as it is now, on all ranks together; one that cannot be saved is told of, and no more."""
        value, self.wanted = self.wanted, None
        began = time.monotonic()
        try:
            write(trainer, self._place, self._io, value=value, later=True)
        except Exception as error:  # of a strategy that writes by itself, say: training goes on
            log.warning("%s: its best model is not saved: %s", self._job, error)
            return
        self._best, self.saved = value, True
        now = time.monotonic()
        self._not_before = now + RARELY * (now - began)

    def close(self) -> Manifest | None:
        """Wait for what is still to be written.

        Returns:
            What is known of the best model; None if there is none.
        """
        try:
            self._io.teardown()
        except Exception as error:  # a training that has come to its end has not failed
            log.warning("%s: its best model could not be written: %s", self._job, error)
        found = newest(self._place)
        return None if found is None else found[1]

    def words(self, manifest: Manifest) -> str:
        """Return the line that tells where the best model is."""
        metric = self._target.metric if isinstance(self._target, LossTarget) else STEP_LOSS
        value = "" if manifest.value is None else f" ({metric} {manifest.value:.4g})"
        return f"{self._job}: the best model{value} after {manifest.batches} batches is in {self._place}"

    def _look(self, value: float, full: bool = True, *, at_once: bool = False) -> None:
        if not full or not self._is_better(value):
            return
        if at_once or time.monotonic() >= self._not_before:
            self.wanted = value

    def _is_better(self, value: float) -> bool:
        if self._best is None:
            return True
        grows = isinstance(self._target, LossTarget) and self._target.grows
        return value > self._best if grows else value < self._best
