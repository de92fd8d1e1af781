"""Saves the best model of a training while it goes on: the one that met the target, or came closest to it.

Rules

1. An evaluated metric that is better than all before is saved at once. The loss of every batch is averaged as the
   scheduler does, and saved rarely enough to take less than 2% of the training time; a model that meets the target is
   saved in any case.
2. Training waits only for a copy in host memory. The file is written under a temporary name, synced and renamed, and
   its manifest holds its SHA-256 and the value. The previous file is kept for one more generation.
3. A resumed training continues from the value in the manifest; a new one starts without it.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.core.jobs import Job
from lightning_core.core.targets import Target, newest
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.generations import newest_valid
from lightning_core.storage.job_specs import MIN_TRAINING_PER_SAVE
from lightning_core.storage.manifests import CorruptCheckpointError, Manifest, read_manifest
from lightning_core.view.console_lines import logger

from .checkpoint_io import SafeCheckpointIO
from .job_writer import write
from .shards import saves_shards, whole_file_argument

log = logger(__name__)

# Seconds that a training which has ended waits for the file.
MAX_WRITE = 300.0
# Name of the file; a script's is preceded by the name of its job.
FILE = "best.ckpt"
# Folder of a script's best models below the Trainer's root. Its name is that of no module: beside a script, a folder
# called like the package would be imported in place of one that is installed editable.
FOLDER = "lightning-core"


class BestModelSaver:
    """Saves the best model of a fit; used on all ranks, of which the first sees the values.

    Args:
        job: Name of the job, for log messages.
        path: Path of the file.
        target: Target whose metric decides; for a target in batches, the loss of the step does.
        resumed: Whether the file, if it exists, is from this training and has to be improved upon.
    """

    def __init__(self, job: str, path: Path, target: Target, *, resumed: bool) -> None:
        self.wanted: float | None = None
        """Value for which the model should be saved as it is now; None if it should not."""
        self._job = job
        self._is_possible = True
        self._file = path
        self._target = target
        self._window = Settings().window
        self._recent = newest(target, self._window)
        self._io = SafeCheckpointIO(asynchronous=True)
        self._best: float | None = None
        self._met = False
        self.saved = resumed
        """Whether the file is from this training."""
        self._not_before = 0.0
        if resumed:
            with suppress(CorruptCheckpointError, OSError):
                manifest = read_manifest(path)
                self._best = None if manifest is None else manifest.value

    @property
    def path(self) -> str:
        """Path of the best model; empty while there is none."""
        return str(self._file) if self.saved and self._file.exists() else ""

    def see(self, value: float, *, evaluated: bool) -> None:
        """Take in a value and decide whether the model should be saved.

        Args:
            value: Value as it was logged.
            evaluated: Whether it is a whole evaluation.
        """
        if not math.isfinite(value) or not self._is_possible:
            return
        self._recent.append(value)
        target, recent = self._target, list(self._recent)
        if evaluated:
            self._consider(value, at_once=True)
        elif not target.observes:
            if not self._met:
                mean = sum(recent[-self._window :]) / len(recent[-self._window :])
                self._consider(mean, len(recent) >= self._window)
        else:
            full = len(recent) >= self._window
            reached = target.reached(0, recent, evaluated, self._window)
            assert reached is not None  # there is a value
            self._consider(reached, full)
            if full and not self._met and target.is_met(0, recent, evaluated, self._window):
                self._met, self.wanted = True, reached

    def aim(self, target: Target) -> None:
        """Take in the target anew: of one in epochs, the batches have become known."""
        self._target = target

    def note_batches(self, batches: int) -> None:
        """Take in the number of batches done: the model that meets a target in batches is saved.

        One that watches a metric is met by its last evaluation, and the best of all is kept.
        """
        if self._is_possible and batches == self._target.work and not self._met and not self._target.watches:
            recent = list(self._recent)[-self._window :]
            self._met, self.wanted = True, sum(recent) / len(recent) if recent else float(batches)

    def save(self, trainer: pl.Trainer) -> None:
        """Save the model as it is now, on all ranks together; an error is logged and training continues."""
        value, self.wanted = self.wanted, None
        began = time.monotonic()
        try:
            write(trainer, self._file, self._io, value=value, asynchronous=True)
        except MisconfigurationException as error:  # so it would be each time
            self._is_possible = False
            if trainer.is_global_zero:
                log.warning("%s: no best model is kept: %s", self._job, error)
            return
        except Exception as error:
            log.warning("%s: the best model is not saved: %s", self._job, error)
            return
        self._best, self.saved = value, True
        now = time.monotonic()
        self._not_before = now + MIN_TRAINING_PER_SAVE * (now - began)

    def close(self) -> Manifest | None:
        """Wait for pending writes.

        Returns:
            Manifest of the best model; None if there is none.
        """
        if (error := self._io.close(MAX_WRITE)) is not None:  # it must not fail a training that has finished
            words = getattr(error, "strerror", None) or error
            log.warning("%s: the best model could not be written: %s", self._job, words)
        found = newest_valid(self._file)
        return None if found is None else found[1]

    def summary_line(self, manifest: Manifest) -> str:
        """Return the line that tells where the best model is."""
        metric = self._target.observed
        value = "" if manifest.value is None else f" ({metric} {manifest.value:.4g})"
        return f"{self._job}: the best model{value} after {manifest.batches} batches is in {self._file}"

    def _consider(self, value: float, full: bool = True, *, at_once: bool = False) -> None:
        if not full or not self._is_better(value):
            return
        if at_once or time.monotonic() >= self._not_before:
            self.wanted = value

    def _is_better(self, value: float) -> bool:
        if self._best is None:
            return True
        return value < self._best if self._target.lower_is_better else value > self._best


def check_keep_best(trainer: pl.Trainer, keep_best: bool | Path) -> None:
    """Check that there is a local folder for the best model, before anything starts.

    Raises:
        MisconfigurationException: If there is none.
    """
    if keep_best is True and "://" in trainer.default_root_dir:
        raise MisconfigurationException(
            f"keep_best saves to local files, but default_root_dir is {trainer.default_root_dir}: "
            "pass keep_best the path of a local folder"
        )


def best_model_saver(
    trainer: pl.Trainer, job: Job, keep_best: bool | Path, *, launched: bool, resumed: bool
) -> BestModelSaver | None:
    """Return what saves the best model; None if it is not to be saved or cannot be, on all ranks alike.

    Args:
        trainer: Trainer of the job.
        job: Job whose target decides.
        keep_best: Whether to save the best model, or the folder to save it in.
        launched: Whether the job was launched by a pool, and has the folder for itself.
        resumed: Whether the job was resumed.
    """
    if keep_best is False:
        return None
    if saves_shards(trainer.strategy):
        if trainer.is_global_zero:
            log.warning("%s: no best model is kept: it is one file, and %s saves shards; pass it %s", job.name,
                        type(trainer.strategy).__name__, whole_file_argument(trainer.strategy))  # fmt: skip
        return None
    folder = Path(trainer.default_root_dir) / FOLDER if keep_best is True else Path(keep_best)
    path = folder / (FILE if launched else f"{job.name}-{FILE}")
    with suppress(OSError):  # the folder that the process is in may have gone
        path = path.absolute()
    return BestModelSaver(job.name, path, job.target, resumed=resumed)
