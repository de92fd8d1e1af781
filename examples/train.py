"""An ordinary Lightning script with one callback added.

    python -m examples.train --job cnn --deadline 2m
    python -m examples.train --job vit --model vit --deadline 5m --loss 0.3

It reads handwritten digits and ends when its loss is low enough. Without a pool it forecasts its own end. With one
(``lightning-core up`` in any shell), start it as often as you like, under different names: all share the device.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import lightning.pytorch as pl
import torch

from examples.digits import MODELS, Digits
from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import LossTarget


def main(arguments: Sequence[str] | None = None) -> pl.Trainer:
    """Trains one model until its loss is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="digits", help="name, unique in the pool (%(default)s)")
    parser.add_argument("--deadline", default="2m", help="such as 90s or 1h30m (%(default)s)")
    parser.add_argument("--model", default="cnn", choices=sorted(MODELS), help="(%(default)s)")
    parser.add_argument("--loss", default=0.2, type=float, help="training loss to reach (%(default)s)")
    parser.add_argument("--pool", default="auto", help="auto, local, or where the pool is (%(default)s)")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # processes that take turns must not leave threads spinning in another's turn
    pl.seed_everything(1, verbose=False)
    core = CoreCallback(
        options.job, deadline=options.deadline, target=LossTarget("loss", options.loss), pool=options.pool
    )
    trainer = pl.Trainer(max_epochs=200, callbacks=[core], logger=False, enable_checkpointing=False)
    trainer.fit(MODELS[options.model](), Digits())
    trainer.test(trainer.lightning_module, Digits())
    return trainer


if __name__ == "__main__":
    main()
