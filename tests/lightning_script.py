"""A user's Lightning script as a job of a bundle: unchanged but for where it resumes from.

``python tests/lightning_script.py [--own] [--raise-at N]``; ``--own`` has a CoreCallback of its own.
"""

from __future__ import annotations

import os
import sys

import lightning.pytorch as pl
import torch

from tests.tiny import QUIET, Net, NoisyPoints


def main() -> None:
    torch.set_num_threads(1)
    callbacks: list[pl.Callback] = []
    if "--own" in sys.argv:
        from lightning_core.callbacks import CoreCallback

        callbacks.append(CoreCallback("a-name-of-its-own", "2h", "99 batches"))
    pl.seed_everything(7)
    model = Net()
    model.pause = 0.01
    trainer = pl.Trainer(max_epochs=-1, callbacks=callbacks, **QUIET)
    resume = os.environ.get("LIGHTNING_CORE_RESUME")
    print(f"resumes from {resume and os.path.basename(resume)}", flush=True)
    trainer.fit(model, datamodule=NoisyPoints(), ckpt_path=resume)
    print(f"after fit at {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
