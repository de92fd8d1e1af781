"""LightningCLI configs: parsed before anything starts, built in the worker.

The parser gets only what :mod:`lightning_core.bundle.yaml_loader` has read. By itself it would read any text as YAML
again, or as the path of a file, and import whatever the text for a callable names. Here text is text or a number, and
no text may name what a class path may not (:mod:`lightning_core.bundle.class_paths`).
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

# Name under which our loader of scalars is registered with the parser.
PARSER_MODE = "lightning_core"


class _ParsedOnly(LightningCLI):
    def instantiate_classes(self) -> None:
        """Build nothing."""


class _Built(LightningCLI):
    def _dump_config(self) -> None:
        """Keep the parsed config as plain data, for hyper-parameters.

        Lightning would write it as YAML and read that back, which would read each text as YAML again.
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


def check_config(config: Mapping[str, Any], problems: Problems, allow: Sequence[str] | None = None) -> None:
    """Parse a config as the worker will, and add a problem for what LightningCLI complains about.

    Args:
        config: LightningCLI config.
        problems: Collector at the config.
        allow: Names that may be imported; None for all that are not refused.
    """
    try:
        with _strict_parser(allow):
            # Without the seed: a check must not seed the process that runs it.
            _cli(_ParsedOnly, {**config, "seed_everything": False}, {}, exit_on_error=False)
    except (ArgumentError, ValueError, TypeError) as error:
        path, message = simplify_message(str(error))
        for secret in _secrets(config):  # the parser repeats all values in its message
            message = message.replace(secret, "...")
        problems.at(*path).add(message)


def _secrets(value: Any, path: tuple[object, ...] = ()) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple):
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in inside:
            yield from _secrets(inner, (*path, key))
    elif isinstance(value, str) and value and is_secret(path):
        yield value


def read_scalar(text: str) -> bool | int | float | str:
    """Read text of a config where another type is expected: a number, true or false if it is one, otherwise text.

    YAML reads 1e-3 as text, but it is meant as a number.

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
def _strict_parser(allow: Sequence[str] | None = None) -> Iterator[None]:
    """Restrict the parser in the block: it imports only what class paths may name, and reads no YAML.

    The parser has no such setting of its own for a single parser, or for numbers. The settings restored here are
    private to it; tests check that they still exist.
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
    r"""Return the path that a message of the parser names, and the message in short; unknown messages stay as they are.

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
    """Build a job; its Trainer, model and data are attributes of the result.

    Args:
        config: LightningCLI config.
        kind: Kind of the device, ``"cpu"`` or ``"gpu"``.
        folder: Default root folder of the Trainer, unless the config names one.
        callback: Callback that joins the Trainer to the scheduler.
        ranks: Arguments of the Trainer for a job of several processes.
    """
    defaults = {
        "accelerator": kind,
        "devices": 1,
        # The target or the deadline ends a job, and its state is saved then.
        "max_epochs": -1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
        "callbacks": [callback],
        **(ranks or {}),
    }
    with _strict_parser():
        return _cli(_Built, config, defaults)


def _cli(kind: type[LightningCLI], config: Mapping[str, Any], defaults: dict[str, Any], **parser: Any) -> LightningCLI:
    # A copy, because the parser changes what it is given.
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
