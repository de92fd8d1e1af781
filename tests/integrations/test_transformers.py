"""The callback for the Trainer of ``transformers``, with the real package and models of random weights."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from lightning_core.core.targets import parse_target
from lightning_core.integrations.transformers import CoreTrainerCallback
from lightning_core.testing.loop_conformance import LOOP_CHECKS, NAME, Exercise, ScriptedScheduler, scheduled
from tests.integrations.loops import CANNOT_OF_TRANSFORMERS, HOUR, Taught


class TaughtModel(torch.nn.Module):
    """The taught model with the interface that the Trainer wants."""

    def __init__(self, exercise: Exercise, done: int) -> None:
        super().__init__()
        self.taught = Taught(exercise, done)
        self.accepts_loss_kwargs = False

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if not self.training:
            return {"loss": torch.zeros(()), "logits": x}
        return {"loss": self.taught.batch(), "logits": x}


def arguments(folder: str, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        folder, per_device_train_batch_size=1, logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True,
        log_level="error", logging_nan_inf_filter=False, **{"save_strategy": "no", **more},
    )  # fmt: skip


def trainer_of(model: Any, given: TrainingArguments, data: Any, *callbacks: TrainerCallback, **more: Any) -> Trainer:
    made = Trainer(model, given, train_dataset=data, callbacks=list(callbacks), **more)
    made.remove_callback(PrinterCallback)
    return made


def _steps(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


class HuggingFace:
    """The Trainer of transformers."""

    metric = "eval_acc"
    cannot = CANNOT_OF_TRANSFORMERS

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        values = iter(exercise.evaluations)
        folder = tempfile.mkdtemp()
        given = arguments(
            folder, num_train_epochs=len(exercise.losses) // exercise.per_epoch, save_strategy="epoch",
            eval_strategy="epoch" if exercise.evaluations else "no",
        )  # fmt: skip
        done = 0 if state is None else json.loads(Path(state, "trainer_state.json").read_text())["global_step"]
        row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
        ours = CoreTrainerCallback(NAME, HOUR, target, **terms)
        made = trainer_of(
            TaughtModel(exercise, done), given, [row] * exercise.per_epoch, ours, eval_dataset=[row],
            compute_metrics=lambda _: {"acc": next(values)},
        )  # fmt: skip
        made.train(resume_from_checkpoint=state)
        return str(
            max(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]), default="")
        )


@pytest.mark.parametrize("name", LOOP_CHECKS)
def test_the_trainer_keeps_what_the_suite_asks(name: str) -> None:
    loop = HuggingFace()
    if name in loop.cannot:
        pytest.skip(loop.cannot[name])
    LOOP_CHECKS[name](loop)


def test_a_batch_is_an_optimizer_step(tmp_path: Path) -> None:
    client, exercise = ScriptedScheduler(), Exercise()
    ours = CoreTrainerCallback(NAME, HOUR, "loss<=0")
    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
    given = arguments(str(tmp_path), max_steps=12, gradient_accumulation_steps=4)
    with scheduled(client):
        trainer_of(TaughtModel(exercise, 0), given, [row] * 60, ours).train()
    assert client.reports[-1].batches == 12
    assert client.jobs[0].batch_size == 4
    [cell] = client.cells()
    assert cell.value == pytest.approx(sum(exercise.losses[:40]) / 40)


def test_a_loss_that_is_logged_too_seldom_is_said_at_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = CoreTrainerCallback(NAME, HOUR, "loss<=0")
    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
    given = arguments(str(tmp_path), max_steps=20)
    given.logging_steps = 500
    with scheduled(ScriptedScheduler()):
        trainer_of(TaughtModel(Exercise(), 0), given, [row] * 60, ours).train()
    assert "its loss is logged every 500 of 20 steps" in caplog.text
    assert "set logging_steps=1 or less" in caplog.text


def test_the_callback_of_lightning_names_what_fits(tmp_path: Path) -> None:
    from lightning_core.callbacks import CoreCallback

    wrong: Any = CoreCallback("a", "1h", "loss<=0", pool="local")
    with pytest.raises(TypeError, match=r"that of transformers takes .*CoreTrainerCallback"):
        Trainer(torch.nn.Linear(1, 1), arguments(str(tmp_path), max_steps=2), train_dataset=[1], callbacks=[wrong])


@pytest.mark.parametrize("target", ["val_loss<=0.1", "eval_acc>=0.9"])
def test_a_metric_that_is_never_logged_is_told_at_the_end(
    target: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
    with scheduled(ScriptedScheduler()):
        ours = CoreTrainerCallback(NAME, HOUR, target)
        trainer_of(TaughtModel(Exercise(), 0), arguments(str(tmp_path), max_steps=20), [row] * 60, ours).train()
    assert f"target metric '{target.split('<')[0].split('>')[0]}' was never logged; logged so far: " in caplog.text
    assert (ours.over, ours.verdict) == (False, ours.run.verdict)


def test_a_second_training_of_a_trainer_is_a_run_of_its_own(tmp_path: Path) -> None:
    first, second = ScriptedScheduler(), ScriptedScheduler()
    ours = CoreTrainerCallback(NAME, HOUR, "5 batches")
    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
    made = trainer_of(TaughtModel(Exercise(), 0), arguments(str(tmp_path), max_steps=20), [row] * 60, ours)
    with scheduled(first):
        made.train()
    with scheduled(second):
        made.train()
    assert [client.reports[-1].batches for client in (first, second)] == [5, 5]
    assert len(first.exits) == len(second.exits) == 1


def test_transformers_can_make_the_callback_of_a_checkpoint(tmp_path: Path) -> None:
    given = CoreTrainerCallback(NAME, "2h", "eval_loss<=0.5 for 2 evaluations", weight=2.0, pool="local").state()
    again = CoreTrainerCallback(**json.loads(json.dumps(given["args"])))
    assert (again.run.name, again.run.deadline_text) == (NAME, "7200s")
    assert again.run.target == parse_target("eval_loss<=0.5 for 2 evaluations")
