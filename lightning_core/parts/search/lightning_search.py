"""Search over Lightning Trainers on one device, with a deadline: trials pause and resume from checkpoints."""

from __future__ import annotations

import inspect
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import optuna
from optuna.trial import TrialState

from lightning_core.core.durations import parse_deadline, parse_duration, refuse_base_60, seconds_until
from lightning_core.parts.search.decision.deadline_search import NEW, DeadlineSearch
from lightning_core.storage.atomic_files import sync_file, sync_folder, unfinished_file
from lightning_core.view.console_lines import inform

MakeTrainer = Callable[[optuna.Trial], tuple[pl.Trainer, pl.LightningModule, Any]]
# Attributes of the study: seconds that a trial has trained; value and number of the trial in best.ckpt; epochs of all.
SECONDS, BEST, EPOCHS = "lightning_core:seconds", "lightning_core:best", "lightning_core:epochs"
# Seconds between two checkpoints of a trial that trains on.
SAVED_EVERY = 60.0
_logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """Result of a search."""

    value: float
    """Best value of all epochs of all trials."""
    params: Mapping[str, Any]
    """Hyper-parameters of the trial that had it."""
    trial: int
    """Number of that trial in the study."""
    checkpoint: Path
    """The training as it was then."""


class Search:
    """Trains the trials of a study for the best value at the deadline.

    One trial trains at a time. After an epoch it may make room for another one; then it is saved, and resumes later if
    it promises most. A search that was interrupted continues with the study and the folder that it had.

    Args:
        study: Study of Optuna; its sampler draws the trials, its direction is that of the search. Its pruner is not
            used.
        make_trainer: Returns Trainer, module and data (a data module, or the loaders of training and validation) of a
            trial; called whenever the trial resumes, with the same hyper-parameters. All Trainers have the same
            ``max_epochs``, and validate in each epoch if the metric is one of the validation.
        deadline: End of the search: a duration from its start such as ``"2h"`` or a number of seconds, or a time
            such as ``"18:00"``.
        metric: Name of the logged metric that is to be improved.
        folder: Folder of the checkpoints; it is made.
        target: Value that is enough: the search ends as soon as it is reached.
        max_trials: Number of trials that may begin; None for as many as there is time for.
        worth: Device time that a value 1 % better is worth, such as ``"10m"``: the search ends when no training is
            expected to be worth its time. None to search until the deadline.
        on_news: Called with a line of text whenever there is a better value; by default it is logged as Lightning does.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        study: optuna.Study,
        make_trainer: MakeTrainer,
        deadline: object,
        *,
        metric: str,
        folder: Path | str,
        target: float | None = None,
        max_trials: int | None = None,
        worth: object = None,
        on_news: Callable[[str], None] = inform,
    ) -> None:
        if max_trials is not None and max_trials < 1:
            raise ValueError(f"max_trials must be at least 1, got {max_trials}")
        if target is not None and not math.isfinite(target):
            raise ValueError(f"target must be finite, got {target}")
        refuse_base_60(self, deadline=deadline, worth=worth)
        self._worth = None if worth is None else parse_duration(worth)
        self._study, self._make_trainer, self._when = study, make_trainer, parse_deadline(deadline)
        self._metric, self._folder, self._target = metric, Path(folder), target
        self._on_news = on_news
        self._max_trials = math.inf if max_trials is None else max_trials
        self._end = math.inf
        self._search: DeadlineSearch | None = None
        self._trials = list[optuna.Trial]()  # by the numbers of the search
        self._starts = list[float]()

    def run(self) -> Found:
        """Train until the deadline, the target or the end of the last trial worth its time, and return the best.

        Raises:
            RuntimeError: If no trial has reported a value.
            ValueError: If the Trainers lack ``max_epochs`` or differ in it, or do not log the metric.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._end = time.monotonic() + seconds_until(self._when, datetime.now())
        self._restore_trials()
        while (chosen := self._choose()) is not None:
            self._train(chosen)
        for number, trial in enumerate(self._trials):
            if self._search is not None and not self._search.trials[number].over:
                self._study.tell(trial, state=TrialState.PRUNED)
                self._checkpoint(trial).unlink(missing_ok=True)
        best = self._study.user_attrs.get(BEST)
        if best is None:
            raise RuntimeError("no trial has reported a value before the deadline")
        value, number = best
        return Found(value, self._study.trials[number].params, number, self._folder / "best.ckpt")

    def _choose(self) -> int | None:
        """Return the number of the next trial; None if the search is over."""
        now = time.monotonic()
        if self._search is None:
            return NEW if now < self._end else None
        self._search.start = statistics.median(self._starts) if self._starts else 0.0
        return self._search.choose(now)

    def _train(self, number: int) -> None:
        """Train a trial until it ends or makes room."""
        began = time.monotonic()
        if number == NEW:
            trial = self._study.ask()
            trial.set_user_attr(SECONDS, 0.0)  # so that a later run knows it as one of this search
            self._checkpoint(trial).unlink(missing_ok=True)  # of another study in the same folder
        else:
            trial = self._trials[number]
        place = self._checkpoint(trial)
        try:
            trainer, module, data = _checked(self._make_trainer(trial))
            search = self._search_for(trainer)
            if number == NEW:
                number = search.begin()
                self._trials.append(trial)
            search.resume(number)
            watch = _Watch(self, search, number, began, place)
            trainer.callbacks.append(watch)  # type: ignore[attr-defined]
            trainer.fit(module, **_fit_data(data), **_fit_from(place))
        except Exception as error:
            pruned = isinstance(error, optuna.TrialPruned)
            self._study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
            if number != NEW and self._search is not None:
                self._search.end(number)
            if not pruned and (self._search is None or self._search.best is None):
                raise
            if not pruned:
                _logger.warning("trial %d has failed; the search continues without it", trial.number, exc_info=True)
            return
        self._starts.append(watch.start)
        if watch.saved:
            search.pause(number)
            return
        values = search.trials[number].values
        search.end(number)
        place.unlink(missing_ok=True)
        if search.trials[number].step >= search.max_steps:
            self._study.tell(trial, min(values) if search.mode == "min" else max(values))
        else:
            self._study.tell(trial, state=TrialState.PRUNED if values else TrialState.FAIL)

    def _search_for(self, trainer: pl.Trainer) -> DeadlineSearch:
        """Return the search; the first Trainer defines the length of a trial."""
        epochs = trainer.max_epochs
        if epochs is None or epochs < 2:
            raise ValueError(f"max_epochs of the Trainer of a trial must be at least 2, got {epochs}")
        if self._search is None:
            self._search = self._new_search(epochs)
            self._study.set_user_attr(EPOCHS, epochs)
        if epochs != self._search.max_steps:
            known = self._search.max_steps
            raise ValueError(f"all Trainers of a search must have the same max_epochs, got {epochs} after {known}")
        return self._search

    def _new_search(self, epochs: int) -> DeadlineSearch:
        return DeadlineSearch(
            deadline=self._end,
            max_steps=epochs,
            mode="max" if self._study.direction == optuna.study.StudyDirection.MAXIMIZE else "min",
            max_trials=self._max_trials,
            target=self._target,
            worth=self._worth,
        )

    def _restore_trials(self) -> None:
        """Resume the trials that an earlier run of the search has left in the study with a checkpoint."""
        epochs = self._study.user_attrs.get(EPOCHS)
        if epochs is None or self._search is not None:
            return
        search = self._search = self._new_search(int(epochs))
        for seen in self._study.get_trials(deepcopy=False):
            if SECONDS not in seen.user_attrs:
                continue
            trial = optuna.Trial(self._study, seen._trial_id)
            number = search.begin()
            self._trials.append(trial)
            seconds = float(seen.user_attrs[SECONDS])
            for step, value in sorted(seen.intermediate_values.items()):
                search.report(number, step + 1, value, seconds)
            if not seen.state.is_finished() and self._checkpoint(trial).exists():
                search.pause(number)
                continue
            search.end(number)
            if not seen.state.is_finished():
                self._study.tell(trial, state=TrialState.PRUNED if seen.intermediate_values else TrialState.FAIL)
        waiting = sum(not trial.over for trial in search.trials)
        _logger.info("the search continues: %d trials so far, %d of them can resume", len(search.trials), waiting)

    def _checkpoint(self, trial: optuna.Trial) -> Path:
        return self._folder / f"trial-{trial.number}.ckpt"

    def report(self, number: int, epoch: int, trainer: pl.Trainer, seconds: float) -> None:
        """Record the value of an epoch (from 1), and keep the training if it is the best so far.

        Raises:
            ValueError: The metric is not logged.
        """
        assert self._search is not None
        value = trainer.callback_metrics.get(self._metric)
        if value is None:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise ValueError(f"metric {self._metric!r} is not logged by the end of an epoch; logged: {logged}")
        trial, search = self._trials[number], self._search
        if epoch <= search.trials[number].step:
            return  # trained again, from a checkpoint before an interruption
        search.report(number, epoch, float(value), search.trials[number].seconds + seconds)
        trial.report(float(value), epoch - 1)
        trial.set_user_attr(SECONDS, search.trials[number].seconds)
        kept = self._study.user_attrs.get(BEST)
        better = kept is None or (float(value) < kept[0] if search.mode == "min" else float(value) > kept[0])
        if better and math.isfinite(float(value)):
            save(trainer, self._folder / "best.ckpt")
            self._study.set_user_attr(BEST, [float(value), trial.number])
            after = f"{epoch} epoch{'s' * (epoch > 1)}"
            self._on_news(f"{self._metric} {float(value):.4g}, trial {trial.number} after {after}")


class _Watch(pl.Callback):
    """Reports each epoch of a trial, and saves it when it makes room."""

    def __init__(self, search: Search, trials: DeadlineSearch, number: int, began: float, place: Path) -> None:
        self._search, self._trials, self._number, self._place = search, trials, number, place
        self._since = self._saved_at = began
        self.start = 0.0
        self.saved = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.monotonic()
        self.start, self._since = now - self._since, now

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.monotonic()
        self._search.report(self._number, trainer.current_epoch + 1, trainer, now - self._since)
        over = self._trials.trials[self._number].over
        if over or not self._trials.continues(self._number, now):
            trainer.should_stop = True
            self.saved = not over
            if self.saved:
                save(trainer, self._place)
        elif now - self._saved_at >= SAVED_EVERY:
            save(trainer, self._place)
            self._saved_at = now
        self._since = time.monotonic()


def _checked(made: Any) -> tuple[pl.Trainer, pl.LightningModule, Any]:
    """Return the checked result of ``make_trainer``."""
    if isinstance(made, tuple) and len(made) == 3:
        trainer, module, data = made
        if isinstance(trainer, pl.Trainer) and isinstance(module, pl.LightningModule):
            return trainer, module, data
    kinds = ", ".join(type(part).__name__ for part in made) if isinstance(made, tuple) else type(made).__name__
    raise ValueError(f"make_trainer must return a Trainer, a LightningModule and the data, got {kinds}")


def save(trainer: pl.Trainer, place: Path) -> None:
    """Save a training under a temporary name, sync, and rename it: an earlier file stays whole."""
    with unfinished_file(place) as (new, _):
        trainer.save_checkpoint(new)
        with new.open("rb") as written:  # Lightning has moved a file of its own there
            sync_file(written)
        os.replace(new, place)
    sync_folder(place.parent)


def _fit_from(place: Path) -> dict[str, Any]:
    """Return the arguments with which ``Trainer.fit`` resumes from a checkpoint, if there is one."""
    if not place.exists():
        return {}
    safely = {"weights_only": True} if "weights_only" in inspect.signature(pl.Trainer.fit).parameters else {}
    return {"ckpt_path": str(place), **safely}


def _fit_data(data: Any) -> dict[str, Any]:
    """Return the data of a trial as ``Trainer.fit`` takes it."""
    if isinstance(data, pl.LightningDataModule):
        return {"datamodule": data}
    train, validation = data if isinstance(data, tuple | list) else (data, None)
    return {"train_dataloaders": train, "val_dataloaders": validation}
