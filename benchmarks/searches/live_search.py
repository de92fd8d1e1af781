"""Searches on the digits until a deadline, trained live: ours beside Optuna's pruners, all with its sampler TPE.

Rules take turns on one device, so that a busy machine is busy for all of them. The value is the loss on the digits held
out, the best of all epochs.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable

import lightning.pytorch as pl
import numpy as np
import optuna
import torch

from benchmarks.common import Figures, Size, main, table
from examples.search import EPOCHS, make_trainer
from lightning_core.parts.search.lightning_search import Search
from lightning_core.parts.search.optuna import ForecastPruner

# Seconds of a search, and searches of each rule.
SIZES: dict[Size, tuple[float, int]] = {"quick": (10.0, 1), "default": (30.0, 5), "full": (60.0, 10)}


class _Reports(pl.Callback):
    """Reports each epoch to the trial, and ends the training where the pruner says so."""

    def __init__(self, trial: optuna.Trial, end: float) -> None:
        self._trial, self._end = trial, end
        self.best = float("inf")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if time.monotonic() > self._end:
            trainer.should_stop = True
            return
        value = float(trainer.callback_metrics["val_loss"])
        self.best = min(self.best, value)
        self._trial.report(value, trainer.current_epoch)
        trainer.should_stop = self._trial.should_prune()


def with_pruner(pruner: optuna.pruners.BasePruner, seconds: float, seed: int) -> tuple[float, int]:
    """Search with a pruner of Optuna; return the best value and the number of trials."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    end, best = time.monotonic() + seconds, float("inf")
    while time.monotonic() < end:
        trial = study.ask()
        trainer, model, (train, held_out) = make_trainer(trial)
        reports = _Reports(trial, end)
        trainer.callbacks.append(reports)  # type: ignore[attr-defined]
        trainer.fit(model, train, held_out)
        best = min(best, reports.best)
        if trainer.should_stop:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, reports.best)
    return best, len(study.trials)


def ours(seconds: float, seed: int) -> tuple[float, int]:
    """Search with `Search`; return the best value and the number of trials."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        found = Search(study, make_trainer, seconds, metric="val_loss", folder=folder).run()
    return found.value, len(study.trials)


def measure(size: Size) -> Figures:
    """Run all rules in turn."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    seconds, many = SIZES[size]
    rules: dict[str, Callable[[int], tuple[float, int]]] = {
        "search": lambda seed: ours(seconds, seed),
        "pruner": lambda seed: with_pruner(ForecastPruner(seconds, EPOCHS), seconds, seed),
        "hyperband": lambda seed: with_pruner(
            optuna.pruners.HyperbandPruner(max_resource=EPOCHS, reduction_factor=3), seconds, seed
        ),
        "halving": lambda seed: with_pruner(optuna.pruners.SuccessiveHalvingPruner(), seconds, seed),
        "median": lambda seed: with_pruner(optuna.pruners.MedianPruner(), seconds, seed),
    }
    found = {name: list[tuple[float, int]]() for name in rules}
    for seed in range(many):
        for name, rule in rules.items():
            found[name].append(rule(seed))
    rows: list[list[object]] = []
    figures: Figures = {}
    for name, results in found.items():
        values = np.array([value for value, _ in results])
        error = float(np.std(values, ddof=1) / np.sqrt(many)) if many > 1 else None
        figures |= {f"{name}_loss": float(values.mean()), f"{name}_loss_error": error}
        rows.append([name, float(values.mean()), error, float(np.mean([trials for _, trials in results]))])
    print(f"searches of {seconds:g} s, mean of {many}")
    table(["rule", "best loss", "s.e.", "trials"], rows)
    return figures


if __name__ == "__main__":
    main("searches.live_search", __doc__.splitlines()[0], measure)
