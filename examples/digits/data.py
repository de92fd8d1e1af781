"""scikit-learn's digits: 1,797 images of 8 x 8, in memory; a fifth is the test set."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]
TEST = 360


class Digits(pl.LightningDataModule):
    """Loaders of the digits, as ``(images (n, 1, 8, 8) in [0, 1], labels (n,))``.

    Args:
        batch_size: Images per batch.
        seed: Seed of the split; the order of training follows the global seed.
    """

    def __init__(self, batch_size: int = 64, seed: int = 0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.seed = seed

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
        labels = torch.tensor(digits.target, dtype=torch.long)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed))
        self.test = TensorDataset(images[order[:TEST]], labels[order[:TEST]])
        self.train = TensorDataset(images[order[TEST:]], labels[order[TEST:]])

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def test_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.test, TEST)
