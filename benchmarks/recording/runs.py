"""Tasks and runs that are recorded: several models, optimizers and learning rates of each task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn
from torch.nn import functional as F

from benchmarks.recording import data as sets
from benchmarks.recording import models
from benchmarks.recording.data import Data
from benchmarks.recording.models import Learner, Loss, QLearner


@dataclass(frozen=True, slots=True)
class Task:
    """A learning task.

    Args:
        domain: Field of research.
        load: Loader of its data from the folder of unpacked packages.
        batch_size: Pairs per batch.
        models: Constructors of its networks.
        loss: Loss of outputs and targets.
        learner: Lightning module that trains it.
    """

    domain: str
    load: Callable[[Path], Data]
    batch_size: int
    models: dict[str, Callable[[], nn.Module]]
    loss: Loss = F.cross_entropy
    learner: type[Learner] = Learner


@dataclass(frozen=True, slots=True)
class Run:
    """One training.

    Args:
        task: Key of ``TASKS``.
        model: Key of the task's models.
        optimizer: ``sgd``, ``momentum`` or ``adam``.
        lr: Learning rate.
        rows: Number of losses that are recorded.
        mean_of: Batches per recorded loss, which is their mean.
        schedule: Schedule of the learning rate: ``constant``, ``cosine`` or ``step``.
        note: Note for the index.
    """

    task: str
    model: str
    optimizer: str
    lr: float
    rows: int
    mean_of: int
    schedule: str = "constant"
    note: str = ""

    @property
    def name(self) -> str:
        """Name of its file, without ``.csv``.

        >>> Run("digits", "cnn", "adam", 1e-3, 400, 10, "cosine").name
        'digits__cnn_adam_lr0.001_cosine'
        """
        schedule = "" if self.schedule == "constant" else f"_{self.schedule}"
        return f"{self.task}__{self.model}_{self.optimizer}_lr{self.lr:g}{schedule}"

    @property
    def batches(self) -> int:
        """Total number of batches."""
        return self.rows * self.mean_of

    def rate(self, batch: int) -> float:
        """Return the learning rate of a batch, as the learner's schedule sets it.

        >>> run = Run("digits", "cnn", "adam", 1e-3, 400, 10, "step")
        >>> [run.rate(batch) for batch in (2000, 2001, 3001)] == [1e-3, 1e-4, 1e-5]
        True
        """
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * (batch - 1) / self.batches)) / 2
        drops = sum(batch > drop for drop in (self.batches // 2, self.batches * 3 // 4))
        return self.lr if self.schedule == "constant" else self.lr / 10**drops

    def learner(self) -> Learner:
        """Return a new module to train, initialised from the global seed."""
        task = TASKS[self.task]
        net = task.models[self.model]()
        return task.learner(net, task.loss, self.optimizer, self.lr, self.schedule, self.batches)


def _reads(width: int, outputs: int, inputs: int, length: int, numbers: bool) -> dict[str, Callable[[], nn.Module]]:
    """Return a GRU, an LSTM and a transformer of the same width that classify a sequence."""
    return {
        "gru": partial(models.Recurrent, nn.GRU, inputs, width, outputs, numbers),
        "lstm": partial(models.Recurrent, nn.LSTM, inputs, width, outputs, numbers),
        "transformer": partial(models.Transformer, length, inputs, width, outputs, numbers),
    }


TASKS: dict[str, Task] = {
    "digits": Task(
        "cv",
        sets.digits,
        32,
        {
            "linear": partial(models.linear, 64, 10),
            "mlp": partial(models.mlp, 64, 64, 10, dropout=0.3),
            "cnn": partial(models.cnn, 8, 10, dropout=0.5),
            **_reads(32, 10, 8, 8, False),
        },
    ),
    "fashion_mnist": Task(
        "cv",
        sets.fashion,
        64,
        {
            "linear": partial(models.linear, 784, 10),
            "mlp": partial(models.mlp, 784, 128, 10),
            "cnn": partial(models.cnn, 28, 10, width=8),
        },
    ),
    "fashion_mnist_autoencoder": Task(
        "cv-generative",
        sets.fashion_images,
        64,
        {"autoencoder": partial(models.autoencoder, 784, 128, 16)},
        F.mse_loss,
    ),
    "movie_reviews": Task(
        "nlp",
        sets.reviews,
        32,
        {
            "bag": partial(models.WordBag, 7100, 32, 2, dropout=0.5),
            **_reads(32, 2, 7100, sets.WORDS, True),
        },
    ),
    "shakespeare_characters": Task(
        "nlp",
        sets.shakespeare,
        16,
        {
            "gru": partial(models.Recurrent, nn.GRU, 96, 96, 96, embedded=True, every=True),
            "lstm": partial(models.Recurrent, nn.LSTM, 96, 96, 96, embedded=True, every=True),
            "transformer": partial(models.Transformer, sets.CHARACTERS, 96, 64, 96, embedded=True, every=True),
        },
    ),
    "japanese_vowels": Task(
        "audio",
        sets.vowels,
        16,
        {"mlp": partial(models.mlp, 29 * 12, 64, 9, dropout=0.5), **_reads(16, 9, 12, 29, False)},
    ),
    "prompt_languages": Task(
        "audio",
        sets.prompts,
        32,
        {
            "mlp": partial(models.mlp, sets.FRAMES * sets.BANDS, 64, 4),
            "cnn": partial(models.cnn, sets.FRAMES, 4, width=8),
            **_reads(48, 4, sets.BANDS, sets.FRAMES, False),
        },
    ),
    "cartpole_imitation": Task(
        "rl",
        sets.cartpole_meant,
        64,
        {"linear": partial(models.linear, 4, 2), "mlp": partial(models.mlp, 4, 64, 2)},
    ),
    "cartpole_q": Task("rl", sets.cartpole_done, 64, {"mlp": partial(models.mlp, 4, 64, 2)}, learner=QLearner),
}

RUNS: dict[str, Run] = {
    run.name: run
    for run in (
        Run("digits", "linear", "sgd", 0.1, 500, 20),
        Run("digits", "linear", "sgd", 0.001, 500, 20, note="lr too low"),
        Run("digits", "mlp", "momentum", 0.02, 500, 20),
        Run("digits", "cnn", "adam", 1e-3, 500, 12, "step"),
        Run("digits", "cnn", "sgd", 0.7, 400, 10, note="lr too high"),
        Run("digits", "gru", "adam", 2e-3, 500, 10),
        Run("digits", "transformer", "adam", 3e-4, 400, 10, "cosine"),
        Run("fashion_mnist", "linear", "sgd", 0.02, 500, 20),
        Run("fashion_mnist", "mlp", "sgd", 0.05, 500, 20),
        Run("fashion_mnist", "mlp", "adam", 1e-3, 500, 20),
        Run("fashion_mnist", "mlp", "adam", 0.03, 400, 20, note="lr too high"),
        Run("fashion_mnist", "cnn", "momentum", 0.01, 400, 15),
        Run("fashion_mnist", "cnn", "adam", 2e-3, 400, 15, "cosine"),
        Run("fashion_mnist_autoencoder", "autoencoder", "adam", 1e-3, 500, 20),
        Run("fashion_mnist_autoencoder", "autoencoder", "adam", 5e-5, 500, 20, note="lr low"),
        Run("fashion_mnist_autoencoder", "autoencoder", "momentum", 1.0, 400, 20, "step"),
        Run("movie_reviews", "bag", "adam", 1e-3, 500, 20),
        Run("movie_reviews", "bag", "sgd", 0.1, 500, 20, note="lr low"),
        Run("movie_reviews", "gru", "adam", 3e-4, 400, 10),
        Run("movie_reviews", "lstm", "momentum", 0.003, 400, 10, note="lr too low, hardly learns"),
        Run("movie_reviews", "transformer", "adam", 5e-4, 400, 10, "cosine"),
        Run("shakespeare_characters", "gru", "adam", 2e-3, 500, 10),
        Run("shakespeare_characters", "gru", "sgd", 0.5, 500, 10),
        Run("shakespeare_characters", "lstm", "adam", 2e-3, 500, 10, "cosine"),
        Run("shakespeare_characters", "transformer", "adam", 1e-3, 500, 10),
        Run("shakespeare_characters", "transformer", "adam", 0.03, 400, 10, note="lr too high"),
        Run("japanese_vowels", "mlp", "momentum", 0.005, 500, 20),
        Run("japanese_vowels", "gru", "adam", 1e-3, 500, 10),
        Run("japanese_vowels", "lstm", "sgd", 0.1, 500, 10),
        Run("prompt_languages", "mlp", "adam", 3e-4, 500, 10),
        Run("prompt_languages", "cnn", "momentum", 0.003, 500, 10, "cosine"),
        Run("prompt_languages", "gru", "adam", 1e-3, 500, 10),
        Run("cartpole_imitation", "mlp", "adam", 1e-3, 500, 20),
        Run("cartpole_imitation", "mlp", "sgd", 0.02, 500, 20),
        Run("cartpole_imitation", "linear", "adam", 1e-3, 500, 20),
        Run("cartpole_q", "mlp", "adam", 5e-4, 500, 20, note="temporal differences: climbs as worth grows"),
    )
}
