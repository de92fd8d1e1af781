"""Searches the hyper-parameters of a network on the digits until a deadline, and draws what became of the trials.

Run from the repository's root, after ``pip install -e '.[lightning,optuna,view]'``:
``python examples/search.py``. What it does:

1. draws trials with Optuna's sampler TPE: width, dropout, optimizer, learning rate and its decay;
2. trains one at a time; after an epoch a trial makes room if the device is worth more elsewhere, and may go on later;
3. at the deadline prints the best value and its hyper-parameters, and draws the curves of all trials to ``search.png``.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import matplotlib
import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_core.parts.search.lightning_search import Found, Search

EPOCHS = 30


class Perceptron(pl.LightningModule):
    """A network of one hidden layer."""

    def __init__(self, width: int, dropout: float, lr: float, adam: bool) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", F.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        kind = torch.optim.AdamW if self.hparams["adam"] else torch.optim.SGD
        optimizer = kind(self.parameters(), self.hparams["lr"])
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the digits for training, and those held out."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).flatten(1)
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, train = order[:600], order[600:]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), 32, shuffle=True),
        DataLoader(TensorDataset(images[held_out], labels[held_out]), 600),
    )


def make_trainer(trial: optuna.Trial) -> tuple[pl.Trainer, pl.LightningModule, Any]:
    """Return Trainer, module and data of a trial."""
    model = Perceptron(
        width=trial.suggest_int("width", 8, 256, log=True),
        dropout=trial.suggest_float("dropout", 0.0, 0.6),
        lr=trial.suggest_float("lr", 1e-4, 1.0, log=True),
        adam=trial.suggest_categorical("adam", [False, True]),
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer, model, loaders()


def draw(study: optuna.Study, found: Found, place: Path) -> None:
    """Draw the curves of all trials: the best in colour, those that were trained further than a third darker."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for trial in study.trials:
        epochs = [step + 1 for step in trial.intermediate_values]
        best = trial.number == found.trial
        shade = "tab:blue" if best else "0.55" if len(epochs) > EPOCHS / 3 else "0.8"
        axes.plot(
            epochs, list(trial.intermediate_values.values()), color=shade, lw=2.5 if best else 1,
            marker="." if len(epochs) == 1 else None, zorder=3 if best else 2, label="the best" if best else None,
        )  # fmt: skip
    axes.set(yscale="log", xlabel="epoch", ylabel="loss on the digits held out")
    axes.set_title(f"{len(study.trials)} trials, {sum(len(t.intermediate_values) for t in study.trials)} epochs in all")
    axes.legend()
    figure.savefig(place, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Search hyper-parameters on the digits until a deadline.")
    parser.add_argument("--deadline", default="45s", help="when the search ends, such as 45s or 18:00 (default: 45s)")
    parser.add_argument("--picture", type=Path, default=Path("search.png"), help="the picture (default: search.png)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    with tempfile.TemporaryDirectory() as folder:
        found = Search(study, make_trainer, arguments.deadline, metric="val_loss", folder=folder).run()
        whole = sum(len(trial.intermediate_values) == EPOCHS for trial in study.trials)
        print(f"{len(study.trials)} trials began, {whole} were trained to their end")
        print(f"best loss {found.value:.4f}, of trial {found.trial}: {dict(found.params)}")
        draw(study, found, arguments.picture)
        print(f"curves: {arguments.picture}")


if __name__ == "__main__":
    main()
