"""A search over Trainers on one device."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import optuna
import pytest
import torch
from optuna.trial import TrialState
from torch.utils.data import DataLoader, TensorDataset

from lightning_core.parts.search import lightning_search
from lightning_core.parts.search.lightning_search import Search

EPOCHS = 6


class Line(pl.LightningModule):
    """Learns y = 2 x at a rate of its own."""

    def __init__(self, rate: float, fails: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.slope = torch.nn.Parameter(torch.zeros(1))
        self.rate, self.fails = rate, fails
        self.first = 0

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if self.fails:
            raise OverflowError("as it was told")
        return ((self.slope * batch[0] - 2 * batch[0]) ** 2).mean()

    def on_train_start(self) -> None:
        self.first = self.current_epoch

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", ((self.slope * batch[0] - 2 * batch[0]) ** 2).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.rate)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.linspace(-1, 1, 8)[:, None]), batch_size=8)


class Made:
    """Makes the Trainers of a search, and keeps their modules."""

    def __init__(self, max_epochs: int = EPOCHS, fails: tuple[int, ...] = ()) -> None:
        self.modules = list[tuple[int, Line]]()
        self._max_epochs, self._fails = max_epochs, fails

    def __call__(self, trial: optuna.Trial) -> tuple[pl.Trainer, pl.LightningModule, Any]:
        module = Line(trial.suggest_float("rate", 1e-3, 0.3, log=True), trial.number in self._fails)
        self.modules.append((trial.number, module))
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=self._max_epochs, logger=False, num_sanity_val_steps=0,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        return trainer, module, (loader(), loader())


@pytest.fixture
def study() -> Iterator[optuna.Study]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    optuna.logging.set_verbosity(optuna.logging.INFO)


def test_the_best_of_some_trials_is_found(study: optuna.Study, tmp_path: Path) -> None:
    made = Made()
    said = list[str]()
    search = Search(study, made, "1m", metric="val_loss", folder=tmp_path, max_trials=5, on_news=said.append)
    found = search.run()
    assert said[-1].startswith(f"val_loss {found.value:.4g}, trial {found.trial} after ")
    values = [min(trial.intermediate_values.values()) for trial in study.trials]
    assert len(study.trials) == 5
    assert found.value == pytest.approx(min(values))
    assert found.trial == values.index(min(values))
    assert found.params == study.trials[found.trial].params
    # The checkpoint is the training that had the value, and nothing else is left behind.
    kept = Line.load_from_checkpoint(found.checkpoint, weights_only=True)
    assert float(((kept.slope - 2) ** 2).detach()) * float((loader().dataset.tensors[0] ** 2).mean()) == pytest.approx(  # type: ignore[attr-defined]
        found.value, rel=1e-4
    )
    assert [path.name for path in tmp_path.iterdir()] == ["best.ckpt"]
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}


def test_at_its_target_a_search_is_over(study: optuna.Study, tmp_path: Path) -> None:
    found = Search(study, Made(), "1m", metric="val_loss", folder=tmp_path, target=0.5).run()
    assert found.value <= 0.5
    last = max(trial.datetime_start for trial in study.trials if trial.datetime_start)
    assert study.trials[found.trial].datetime_start == last or len(study.trials[found.trial].intermediate_values) > 1


def test_a_search_ends_when_no_training_is_worth_its_time(study: optuna.Study, tmp_path: Path) -> None:
    found = Search(study, Made(), "1h", metric="val_loss", folder=tmp_path, worth=1e-6).run()
    # The first epoch is trained in any case; no second one of any trial can be worth a microsecond for 1 %.
    assert found.trial == 0
    assert [list(trial.intermediate_values) for trial in study.trials] == [[0]]
    assert study.trials[0].state == TrialState.PRUNED


def test_a_search_ends_at_its_deadline(study: optuna.Study, tmp_path: Path) -> None:
    began = time.monotonic()
    Search(study, Made(max_epochs=40), 3, metric="val_loss", folder=tmp_path).run()
    assert 2 < time.monotonic() - began < 20
    assert len(study.trials) > 3


def test_a_trial_that_fails_does_not_end_the_search(study: optuna.Study, tmp_path: Path) -> None:
    Search(study, Made(fails=(1,)), "1m", metric="val_loss", folder=tmp_path, max_trials=3).run()
    assert study.trials[1].state == TrialState.FAIL
    assert len(study.trials) == 3


def test_where_the_first_trial_fails_the_search_does(study: optuna.Study, tmp_path: Path) -> None:
    with pytest.raises(OverflowError, match="as it was told"):
        Search(study, Made(fails=(0,)), "1m", metric="val_loss", folder=tmp_path).run()


def test_a_metric_that_is_not_logged_is_named(study: optuna.Study, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metric 'val_acc' is not logged by the end of an epoch; logged: val_loss"):
        Search(study, Made(), "1m", metric="val_acc", folder=tmp_path).run()


def test_an_interrupted_search_goes_on(study: optuna.Study, tmp_path: Path) -> None:
    class Interrupted(Made):
        def __call__(self, trial: optuna.Trial) -> tuple[pl.Trainer, pl.LightningModule, Any]:
            if len(self.modules) == 4:
                raise KeyboardInterrupt
            return super().__call__(trial)

    with pytest.raises(KeyboardInterrupt):
        Search(study, Interrupted(), "1m", metric="val_loss", folder=tmp_path, max_trials=6).run()
    before = {trial.number: len(trial.intermediate_values) for trial in study.trials}
    waiting = {int(path.stem.split("-")[1]) for path in tmp_path.glob("trial-*.ckpt")}
    assert waiting
    made = Made()
    found = Search(study, made, "1m", metric="val_loss", folder=tmp_path, max_trials=6).run()
    for number, count in before.items():
        if number not in waiting:
            assert len(study.trials[number].intermediate_values) == count
    went_on = [module.first for number, module in made.modules if number in waiting]
    assert all(first >= 1 for first in went_on)
    for trial in study.trials:
        assert sorted(trial.intermediate_values) == list(range(len(trial.intermediate_values)))
    assert all(trial.state.is_finished() for trial in study.trials)
    lowest = min(min(trial.intermediate_values.values()) for trial in study.trials if trial.intermediate_values)
    assert found.value == pytest.approx(lowest)


class Interrupts(pl.Callback):
    """Interrupts a training after some epochs."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self._epochs:
            raise SystemExit


def test_a_trial_that_was_interrupted_after_its_checkpoint_trains_again_from_there(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lightning_search, "SAVED_EVERY", 0.0)

    class Stopped(Made):
        def __call__(self, trial: optuna.Trial) -> tuple[pl.Trainer, pl.LightningModule, Any]:
            trainer, module, data = super().__call__(trial)
            trainer.callbacks.append(Interrupts(4))  # type: ignore[attr-defined]
            return trainer, module, data

    with pytest.raises(SystemExit):
        Search(study, Stopped(), "1m", metric="val_loss", folder=tmp_path, max_trials=1).run()
    assert (tmp_path / "trial-0.ckpt").exists()
    # As if the newest checkpoint were older than what was reported.
    trial = optuna.Trial(study, 0)
    trial.report(0.001, 4)
    made = Made()
    found = Search(study, made, "1m", metric="val_loss", folder=tmp_path, max_trials=1).run()
    assert made.modules[0][1].first == 4
    assert study.trials[0].state == TrialState.COMPLETE
    assert sorted(study.trials[0].intermediate_values) == list(range(EPOCHS))
    assert found.trial == 0


def test_a_checkpoint_of_another_study_is_not_taken(study: optuna.Study, tmp_path: Path) -> None:
    Search(study, Made(), "1m", metric="val_loss", folder=tmp_path, max_trials=1).run()
    (tmp_path / "best.ckpt").rename(tmp_path / "trial-0.ckpt")
    other, made = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=4)), Made()
    Search(other, made, "1m", metric="val_loss", folder=tmp_path, max_trials=1).run()
    assert made.modules[0][1].first == 0
    assert len(other.trials[0].intermediate_values) == EPOCHS


def test_a_search_that_is_over_trains_no_more(study: optuna.Study, tmp_path: Path) -> None:
    first = Search(study, Made(), "1m", metric="val_loss", folder=tmp_path, max_trials=2).run()
    made = Made()
    assert Search(study, made, "1m", metric="val_loss", folder=tmp_path, max_trials=2).run() == first
    assert Search(study, made, "1m", metric="val_loss", folder=tmp_path, target=first.value).run() == first
    assert made.modules == []


def test_a_trainer_that_cannot_be_made_does_not_end_the_search(study: optuna.Study, tmp_path: Path) -> None:
    class Broken(Made):
        def __call__(self, trial: optuna.Trial) -> tuple[pl.Trainer, pl.LightningModule, Any]:
            if trial.number == 1:
                raise OSError("no such file")
            return super().__call__(trial)

    Search(study, Broken(), "1m", metric="val_loss", folder=tmp_path, max_trials=3).run()
    assert study.trials[1].state == TrialState.FAIL
    assert all(trial.state.is_finished() for trial in study.trials)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_trials": 0}, "max_trials must be at least 1, got 0"),
        ({"deadline": "soon"}, "must be a duration"),
        ({"worth": 0}, "duration must be positive, got 0"),
        ({"target": float("nan")}, "target must be finite, got nan"),
    ],
)
def test_a_bad_argument_is_refused(study: optuna.Study, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"deadline": "1m", "metric": "val_loss", "folder": tmp_path} | changes
    with pytest.raises(ValueError, match=message):
        Search(study, Made(), **arguments)


def test_what_make_trainer_returns_is_checked(study: optuna.Study, tmp_path: Path) -> None:
    def swapped(trial: optuna.Trial) -> Any:
        trainer, module, data = Made()(trial)
        return module, trainer, data

    with pytest.raises(
        ValueError, match="must return a Trainer, a LightningModule and the data, got Line, Trainer, tuple"
    ):
        Search(study, swapped, "1m", metric="val_loss", folder=tmp_path).run()


def test_trainers_must_agree_on_their_epochs(study: optuna.Study, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_epochs of the Trainer of a trial must be at least 2, got 1"):
        Search(study, Made(max_epochs=1), "1m", metric="val_loss", folder=tmp_path).run()
