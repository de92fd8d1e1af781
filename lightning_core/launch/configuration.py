"""LightningCLI configs: parsed before anything starts, built in the worker."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningCLI

from lightning_core.launch.problems import Findings


class _ParsedOnly(LightningCLI):
    def instantiate_classes(self) -> None:
        """Nothing is built."""


def check_config(config: Mapping[str, Any], found: Findings) -> None:
    """Parses a config as the worker will; what LightningCLI would complain about goes to ``found``."""
    try:
        # Without the seed: to look at a config must not seed the process that looks.
        _cli(_ParsedOnly, {**config, "seed_everything": False}, {}, exit_on_error=False)
    except (ArgumentError, ValueError, TypeError) as error:
        parts, words = plain_words(str(error))
        found.at(*parts).add(words)


def plain_words(message: str) -> tuple[list[str], str]:
    r"""Where a message of the parser points, and what it says there; all of it if it is of no known form.

    Example::

        >>> plain_words("Parser key \"trainer.max_epochs\": Expected a <class 'int'>. Got value: x")
        (['trainer', 'max_epochs'], "expected int, got 'x'")
    """
    text = " ".join(message.split())
    if option := re.fullmatch(r"Group '(\S+)' does not accept option '(\S+)'", text):
        return [*option[1].split("."), *option[2].split(".")], "unknown key"
    keys = re.findall(r'[Pp]arser key "([^"]+)":', text)
    parts = [part for key in keys for part in (*key.split("."), "init_args")][:-1]
    said = re.split(r'[Pp]arser key "[^"]+":', text)[-1].strip()
    if other := re.search(r"Import path (\S+) does not correspond to a subclass of (\w+)", said):
        return parts, f"{other[1]!r} is not a {other[2]}"
    if problem := re.search(r"Problem with given class_path '([^']+)': (.*?) - (?:Expected a|Not a valid)", said):
        return parts, f"{problem[1]}: {problem[2]}"
    expected = re.search(r"Subtypes: \[(.*?)\] Errors:|Expected an? (<class '[^']+'>)", said)
    got = re.search(r"(?:Got value|Given value): (.*?)(?: - |$)", said)
    if not (expected and got):
        return parts, said
    kinds = re.sub(r"<class '([^']+)'>", r"\1", expected[1] or expected[2]).replace("NoneType", "null")
    return parts, f"expected {re.sub(r'[A-Za-z_.]+[.](?=[A-Za-z_])', '', kinds)}, got {got[1]!r}"


def build(
    config: Mapping[str, Any], kind: str, folder: Path, callback: pl.Callback, ranks: Mapping[str, Any] | None = None
) -> LightningCLI:
    """Trainer, model and data of a job, as attributes of the answer.

    Args:
        config: of LightningCLI.
        kind: of the device, ``"cpu"`` or ``"gpu"``.
        folder: where the job saves, unless its config says otherwise.
        callback: that joins the Trainer to the scheduler.
        ranks: the Trainer's arguments for a job of several processes.
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
        **(ranks or {}),
    }
    return _cli(LightningCLI, config, defaults)


def _cli(kind: type[LightningCLI], config: Mapping[str, Any], defaults: dict[str, Any], **parser: Any) -> LightningCLI:
    # A copy: the parser puts objects of its own into what it is given.
    config = {key: deepcopy(value) for key, value in config.items() if key != "ckpt_path"}
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
            args=config,
            parser_kwargs=parser,
        )
