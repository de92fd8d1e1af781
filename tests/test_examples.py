"""The digit models are what the demo says they are: of some size, and able to learn."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch

from examples.digits import MODELS, Digits
from tests.tiny import QUIET

STEPS = {"vit": 300, "lstm": 1400, "cnn": 250, "resnet_narrow": 100, "resnet_wide": 60}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_digit_model_reads_nine_of_ten(name: str) -> None:
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    model, data = MODELS[name](), Digits()
    assert sum(p.numel() for p in model.parameters()) >= 50_000
    trainer = pl.Trainer(max_steps=STEPS[name], max_epochs=-1, **QUIET)
    trainer.fit(model, data)
    [result] = trainer.test(model, data, verbose=False)
    assert result["test_accuracy"] > 0.9
