"""Joining by the environment, and the example of a plain script."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from examples import train
from lightning_core import autojoin
from lightning_core.callbacks import CoreCallback
from lightning_core.core.jobs import Beside, OnHold
from lightning_core.core.targets import BatchTarget, LossTarget, Target, parse_target
from tests.tiny import QUIET, Line, Points

RIGHT = {"JOB": "a", "DEADLINE": "60s", "TARGET": "40 batches", "POOL": "local"}


def set_environment(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in {**RIGHT, **changes}.items():
        monkeypatch.setenv(f"LIGHTNING_CORE_{name}", value)


def test_without_a_job_variable_nothing_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, JOB="")
    assert autojoin.callbacks() == []


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ({"TARGET": "40 batches"}, "LIGHTNING_CORE_TARGET is set and"),
        ({"DEADLINE": "60s", "TARGET": "x"}, "LIGHTNING_CORE_DEADLINE, LIGHTNING_CORE_TARGET are set and"),
        ({"POOL": "local", "TARGET": ""}, ""),
        ({"DISABLE": "1", "TARGET": "40 batches"}, ""),
    ],
)
def test_a_target_without_a_job_is_warned_about_once(
    told: dict[str, str], names: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the entry point, where Lightning asks whenever a Trainer is made."""
    monkeypatch.setattr(autojoin, "_logged", set())
    for name, value in told.items():
        monkeypatch.setenv(f"LIGHTNING_CORE_{name}", value)
    pl.Trainer(max_epochs=1, **QUIET)
    pl.Trainer(max_epochs=1, **QUIET)
    rule = "training continues without target and deadline; set LIGHTNING_CORE_JOB to a name of the job"
    warned = [one.getMessage() for one in caplog.records if one.name == autojoin.__name__]
    assert warned == ([f"{names} LIGHTNING_CORE_JOB is not: {rule}"] if names else [])


def test_a_job_need_not_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, DEADLINE="")
    [callback] = autojoin.callbacks()
    assert isinstance(callback, CoreCallback)
    assert callback._terms.job_now().is_best_effort


def test_an_unchanged_trainer_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, WEIGHT="2.5", ON_MISS="stop", ON_HOLD="offload", BESIDE="never")
    [callback] = autojoin.callbacks()
    assert isinstance(callback, CoreCallback)
    assert (callback._terms.job.on_hold, callback._terms.job.beside) == (OnHold.OFFLOAD, Beside.NEVER)
    trainer = pl.Trainer(max_epochs=-1, callbacks=[callback], **QUIET)
    trainer.fit(Line(pause=0.003), Points())
    assert 40 <= trainer.global_step < 1000


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("train_loss<=0.35", LossTarget("train_loss", 0.35)),
        (" val/acc >= 0.9 ", LossTarget("val/acc", at_least=0.9)),
        ("2000 batches", BatchTarget(2000)),
    ],
)
def test_targets_are_read_from_the_environment(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TARGET": ""}, "LIGHTNING_CORE_TARGET must be set if LIGHTNING_CORE_JOB is"),
        ({"DEADLINE": "soon"}, "LIGHTNING_CORE_DEADLINE: must be a duration such as .*, got 'soon'"),
        ({"DEADLINE": "2020-01-01T18:00"}, "deadline: a time must be in the future, got '2020-01-01T18:00'"),
        ({"TARGET": "loss<0.3"}, "LIGHTNING_CORE_TARGET: target must be like .*, got 'loss<0.3'"),
        ({"TARGET": "loss<=low"}, "LIGHTNING_CORE_TARGET: target must be a number after <=, got 'low'"),
        ({"TARGET": "loss<=inf"}, "LIGHTNING_CORE_TARGET: target loss must be finite, got inf"),
        ({"TARGET": "0 batches"}, "LIGHTNING_CORE_TARGET: target batches must be a whole number of at least 1, got 0"),
        ({"WEIGHT": "heavy"}, "LIGHTNING_CORE_WEIGHT: weight must be positive and finite, got 'heavy'"),
        ({"ON_REFUSED": "cry"}, "LIGHTNING_CORE_ON_REFUSED: on_refused must be one of hold, .*, got 'cry'"),
        ({"REQUEUE": "1"}, "LIGHTNING_CORE_REQUEUE must be yes or no, got '1'"),
        ({"ON_MISS": "die"}, "LIGHTNING_CORE_ON_MISS: on_miss must be one of .*, got 'die'"),
        ({"ON_HOLD": "go"}, "LIGHTNING_CORE_ON_HOLD: on_hold must be one of keep, offload, suspend, got 'go'"),
        ({"BESIDE": "me"}, "LIGHTNING_CORE_BESIDE: beside must be one of never, auto, always, got 'me'"),
    ],
)
def test_wrong_values_are_named(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], words: str) -> None:
    set_environment(monkeypatch, **changes)
    with pytest.raises(MisconfigurationException, match=words):
        autojoin.callbacks()


def test_the_example_trains_by_itself_until_its_loss_is_met() -> None:
    trainer = train.main(["--job", "small", "--model", "resnet_wide", "--loss", "1.0", "--pool", "local"])
    assert trainer.should_stop
    assert trainer.current_epoch < 20
