"""LightningCLI configs: parsed before anything starts, built in the worker."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningCLI


class _ParsedOnly(LightningCLI):
    def instantiate_classes(self) -> None:
        """Nothing is built."""


def config_problem(config: Mapping[str, Any]) -> str | None:
    """What LightningCLI would complain about, in its words; None if nothing."""
    seed = config.get("seed_everything", True)
    if not isinstance(seed, bool | int):
        return f"seed_everything: expected a number or a bool, got {seed!r}"
    try:
        # Without the seed: to look at a config must not seed the process that looks.
        _cli(_ParsedOnly, {**config, "seed_everything": False}, {}, exit_on_error=False)
    except (ArgumentError, ValueError, TypeError) as error:
        return " ".join(str(error).split())
    return None


def build(config: Mapping[str, Any], kind: str, folder: Path, callback: pl.Callback) -> LightningCLI:
    """Trainer, model and data of a job, as attributes of the answer.

    Args:
        config: of LightningCLI.
        kind: of the device, ``"cpu"`` or ``"gpu"``.
        folder: where the job saves, unless its config says otherwise.
        callback: that joins the Trainer to the scheduler.
    """
    defaults = {
        "accelerator": kind,
        "devices": 1,
        # The target and the deadline end a job, and its state is saved then.
        "max_epochs": -1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
        "callbacks": [callback],
    }
    return _cli(LightningCLI, config, defaults)


def _cli(kind: type[LightningCLI], config: Mapping[str, Any], defaults: dict[str, Any], **parser: Any) -> LightningCLI:
    config = {key: value for key, value in config.items() if key != "ckpt_path"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(
            pl.LightningModule,
            pl.LightningDataModule if "data" in config else None,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,
            trainer_defaults=defaults,
            run=False,
            args=dict(config),
            parser_kwargs=parser,
        )
