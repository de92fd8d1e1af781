"""Three models that learn to classify noisy shapes, and a script that trains one of them.

python training.py trains it without a pool, or in the pool that `lightning-core up` has started.
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
    """Draw noisy 16 x 16 images of discs, rings, squares and crosses at random positions."""
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
    """The images, drawn when they are first needed."""

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
    """Base class of the models."""

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
    """A linear model, which cannot recognise a shape at an arbitrary position."""

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 4)), lr)


class Mlp(Classifier):
    """A perceptron with two hidden layers."""

    def __init__(self, width: int = 128, lr: float = 1e-3) -> None:
        layers = [nn.Linear(SIDE**2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)]
        super().__init__(nn.Sequential(nn.Flatten(), *layers), lr)


class Cnn(Classifier):
    """A network with two convolutions."""

    def __init__(self, channels: int = 16, lr: float = 1e-3) -> None:
        layers = [
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
            nn.Flatten(), nn.Linear(2 * channels, 4),
        ]  # fmt: skip
        super().__init__(nn.Sequential(*layers), lr)


def main() -> None:
    """Train a CNN until its mean loss is 0.5, for at most ten epochs."""
    torch.set_num_threads(1)
    pl.seed_everything(1)
    core = CoreCallback("script", deadline="1m", target=LossTarget("loss", 0.5))
    trainer = pl.Trainer(
        max_epochs=10, callbacks=[core], logger=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Cnn(), datamodule=Shapes())


if __name__ == "__main__":
    main()
