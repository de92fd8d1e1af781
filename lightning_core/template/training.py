"""Three models that learn to tell noisy shapes apart, and a script that trains one of them.

python training.py trains it by itself, or beside the jobs of the pool that `lightning-core up` has brought up.
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import LossTarget

SIDE = 16


def shapes(count: int, seed: int) -> TensorDataset:
    """Draw discs, rings, squares and crosses, each somewhere in a noisy picture of 16 by 16."""
    draw = torch.Generator().manual_seed(seed)
    kind = torch.randint(4, (count,), generator=draw)
    centre = 5 + 5 * torch.rand(count, 2, 1, 1, generator=draw)
    size = (2.5 + 2 * torch.rand(count, generator=draw)).view(-1, 1, 1)
    grid = torch.arange(SIDE, dtype=torch.float)
    down, right = (grid.view(1, -1, 1) - centre[:, 0]).abs(), (grid.view(1, 1, -1) - centre[:, 1]).abs()
    away = (down**2 + right**2).sqrt()
    drawn = torch.stack([
        away <= size,
        (away <= size) & (away >= size - 1.5),
        torch.maximum(down, right) <= size * 0.85,
        (torch.minimum(down, right) <= 0.8) & (torch.maximum(down, right) <= size),
    ])  # fmt: skip
    picture = drawn[kind, torch.arange(count)].float() + 0.6 * torch.randn(count, SIDE, SIDE, generator=draw)
    return TensorDataset(picture.unsqueeze(1), kind)


class Shapes(pl.LightningDataModule):
    """The pictures, made when they are first needed."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.train, self.val = shapes(8192, seed=1), shapes(1024, seed=2)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.val, 256)


class Classifier(pl.LightningModule):
    """What the models have in common."""

    def __init__(self, net: nn.Module, lr: float) -> None:
        super().__init__()
        self.net, self.lr = net, lr

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)


class Linear(Classifier):
    """Sees each pixel by itself: it will never tell a disc from a ring wherever they are."""

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 4)), lr)


class Mlp(Classifier):
    """Two hidden layers."""

    def __init__(self, width: int = 128, lr: float = 1e-3) -> None:
        layers = [nn.Linear(SIDE**2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)]
        super().__init__(nn.Sequential(nn.Flatten(), *layers), lr)


class Cnn(Classifier):
    """Two convolutions."""

    def __init__(self, channels: int = 16, lr: float = 1e-3) -> None:
        layers = [
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
            nn.Flatten(), nn.Linear(2 * channels, 4),
        ]  # fmt: skip
        super().__init__(nn.Sequential(*layers), lr)


def main() -> None:
    """Train a CNN until its mean loss is 0.5; at most for ten epochs."""
    torch.set_num_threads(1)
    pl.seed_everything(1)
    core = CoreCallback("script", deadline="1m", target=LossTarget("loss", 0.5))
    trainer = pl.Trainer(
        max_epochs=10, callbacks=[core], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Cnn(), datamodule=Shapes())


if __name__ == "__main__":
    main()
