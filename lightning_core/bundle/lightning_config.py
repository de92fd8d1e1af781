"""LightningCLI configs: parsed before anything starts, built in the worker.

The parser is given what :mod:`lightning_core.bundle.yaml_loader` has read, and has no way round it: it would read any
text as YAML once more, or as the path of a file to read, and import whatever a text for a callable names. Here a text
is a text or a number, and what a class path may not name (:mod:`lightning_core.bundle.class_paths`), no text may.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse import ArgumentError, _common, _typehints, set_loader, set_parsing_settings
from lightning.pytorch.cli import LightningCLI

from lightning_core.bundle.class_paths import REFUSED
from lightning_core.bundle.problems import Problems
from lightning_core.core.names import is_secret

# How the parser calls our way to read a text.
PARSER_MODE = "lightning_core"


class _ParsedOnly(LightningCLI):
    def instantiate_classes(self) -> None:
        """Nothing is built."""


class _Built(LightningCLI):
    def _dump_config(self) -> None:
        """What was parsed as plain data, for hyper-parameters.

        Lightning has the parser write it as YAML and read that; on the way it would read each text as YAML once more.
        """
        self.config_dump = _plain(self.config.as_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type) or callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__ or 'builtins'}.{named.__qualname__}"
    return value if isinstance(value, str | int | float | None) else str(value)


def check_config(config: Mapping[str, Any], found: Problems, allow: Sequence[str] | None = None) -> None:
    """Parses a config as the worker will; what LightningCLI would complain about goes to ``found``.

    Args:
        config: of LightningCLI.
        found: takes what is wrong.
        allow: what may be imported; None for all that is not refused.
    """
    try:
        with _strictly(allow):
            # Without the seed: to look at a config must not seed the process that looks.
            _cli(_ParsedOnly, {**config, "seed_everything": False}, {}, exit_on_error=False)
    except (ArgumentError, ValueError, TypeError) as error:
        parts, words = simplify_message(str(error))
        for secret in _secrets(config):  # the parser says again all that it was given
            words = words.replace(secret, "...")
        found.at(*parts).add(words)


def _secrets(value: Any, path: tuple[object, ...] = ()) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple):
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in inside:
            yield from _secrets(inner, (*path, key))
    elif isinstance(value, str) and value and is_secret(path):
        yield value


def read_scalar(text: str) -> bool | int | float | str:
    """A text of a config where something else is wanted: a number, true or false if it is one, and nothing else.

    YAML reads 1e-3 as text, and people write it as a number.

    Example::

        >>> read_scalar("1e-3"), read_scalar("-7"), read_scalar("true"), read_scalar("1:30")
        (0.001, -7, True, '1:30')
    """
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[-+]?\d{1,400}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) else text


set_loader(PARSER_MODE, read_scalar)


@contextmanager
def _strictly(allow: Sequence[str] | None = None) -> Iterator[None]:
    """Meanwhile the parser imports no more than class paths may name, whatever text names it, and reads no YAML.

    It has no other way to say so for one parser, or for numbers. What is set back here is private to it: the tests see
    to it that it is still there.
    """
    hints: Any = _typehints
    settings, read_number = dict(_common.parsing_settings), hints.basic_json_or_yaml_load
    everything = [] if allow is None else ["*"]
    try:
        set_parsing_settings(import_path_denylist=[*REFUSED, *everything], import_path_allowlist=list(allow or ()))
        hints.basic_json_or_yaml_load = read_scalar
        yield
    finally:
        _common.parsing_settings.update(settings)
        hints.basic_json_or_yaml_load = read_number


def simplify_message(message: str) -> tuple[list[str], str]:
    r"""Where a message of the parser points, and what it says there; all of it if it is of no known form.

    Example::

        >>> simplify_message("Parser key \"trainer.max_epochs\": Expected a <class 'int'>. Got value: x")
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
    if denied := re.search(r"Importing '(\S+)' is not allowed", said):
        return parts, f"{denied[1]!r} is not allowed, and not imported; allow_import would allow it"
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
    with _strictly():
        return _cli(_Built, config, defaults)


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
            parser_kwargs={"parser_mode": PARSER_MODE, **parser},
        )
