"""The trainings of which there are recordings, as classes that a bundle can name."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from benchmarks.recording import RUNS, Learner, Pairs
from benchmarks.recording.models import QLearner
from benchmarks.recording.runs import TASKS


class Recorded(Learner):
    """The module of a run.

    Args:
        run: Key of ``RUNS``.
    """

    def __init__(self, run: str) -> None:
        one = RUNS[run]
        task = TASKS[one.task]
        super().__init__(task.models[one.model](), task.loss, one.optimizer, one.lr, one.schedule, one.batches)


class RecordedQ(QLearner):
    """The module of a run of offline Q-learning.

    Args:
        run: Key of ``RUNS``.
    """

    def __init__(self, run: str) -> None:
        one = RUNS[run]
        task = TASKS[one.task]
        super().__init__(task.models[one.model](), task.loss, one.optimizer, one.lr, one.schedule, one.batches)


class RecordedData(pl.LightningDataModule):
    """The data of a run's task, from the file that :func:`keep_data` has written.

    Args:
        task: Key of ``TASKS``.
        folder: Folder of the file.
    """

    def __init__(self, task: str, folder: str) -> None:
        super().__init__()
        self.task, self.folder = task, folder

    def setup(self, stage: str) -> None:
        data = torch.load(_file(Path(self.folder), self.task), weights_only=True)
        self.pairs = Pairs(data, TASKS[self.task].batch_size)

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return self.pairs.train_dataloader()


def module_of(run: str) -> str:
    """Return the class path of the module of a run."""
    q_learning = TASKS[RUNS[run].task].learner is QLearner
    return f"{__name__}.{'RecordedQ' if q_learning else 'Recorded'}"


def keep_data(task: str, packages: Path, folder: Path) -> None:
    """Write the data of a task to a file, unless it is there: reading the packages takes far longer.

    Args:
        task: Key of ``TASKS``.
        packages: Folder of unpacked packages, which are downloaded unless they are there.
        folder: Folder of the file.
    """
    if not _file(folder, task).exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(TASKS[task].load(packages), _file(folder, task))


def _file(folder: Path, task: str) -> Path:
    return folder / f"{task}.pt"
