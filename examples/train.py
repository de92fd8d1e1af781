"""An ordinary Lightning script with one callback added.

    python -m examples.train --job cnn --deadline 2m
    python -m examples.train --job vit --model vit --deadline 5m --loss 0.3

It learns to read handwritten digits and stops when its loss is low enough. Without a pool it forecasts its own end.
With a pool (``lightning-core up`` in any shell), start it several times under different names: all share the device.
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
    """Train one model until its target is met, and return its Trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="digits", help="name of the job, unique in the pool (%(default)s)")
    parser.add_argument("--deadline", default="2m", help="time limit, such as 90s or 1h30m (%(default)s)")
    parser.add_argument("--model", default="cnn", choices=sorted(MODELS), help="model to train (%(default)s)")
    parser.add_argument("--loss", default=0.2, type=float, help="training loss to reach (%(default)s)")
    parser.add_argument("--pool", default="auto", help="auto, local, or the address of a pool (%(default)s)")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # processes that share a device must not leave threads spinning
    pl.seed_everything(1, verbose=False)
    core = CoreCallback(
        options.job, deadline=options.deadline, target=LossTarget("loss", options.loss), pool=options.pool
    )
    trainer = pl.Trainer(max_epochs=10_000, callbacks=[core], logger=False, enable_checkpointing=False)
    trainer.fit(MODELS[options.model](), Digits())
    trainer.test(trainer.lightning_module, Digits())
    return trainer


if __name__ == "__main__":
    main()
