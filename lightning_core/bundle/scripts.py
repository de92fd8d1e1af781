"""Scripts of a bundle: what ``script: train.py --lr 0.1`` starts, and the checks before it does.

The words are split as a shell splits them, and no shell runs. Rules of the first one

1. ``train.py``, a file of Python, is run by the Python of the pool, and so are ``python`` and ``-m package.module``.
2. A path, with a slash, is a program in the folder of the bundle.
3. Any other word is a program beside the pool's Python, such as ``torchrun``, or on its ``PATH``.

It runs in the folder of the bundle or, if its file is not there, in the one from which the bundle was submitted.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.bundle.problems import Problems
from lightning_core.core.limits import check_length, shown
from lightning_core.core.names import is_secret

# Key of the script, in a bundle and in the config of its job.
SCRIPT = "script"
MAX_SCRIPT = 8192
PYTHON = ("python", "python3")
_HIDDEN = "..."
# Keys that say how Lightning trains, by what a script does instead.
_OF_CONFIGS = "is for a job that Lightning trains from its config"
REFUSED_WITH_SCRIPT = {
    **dict.fromkeys(
        ("config", "model", "data", "trainer", "optimizer", "lr_scheduler", "seed_everything"),
        f"{_OF_CONFIGS}; a script builds its own: remove it, or script",
    ),
    "ckpt_path": f"{_OF_CONFIGS}; a script may be given a file to begin with: remove it, or script",
    "keep_best": f"{_OF_CONFIGS}; a script keeps what it likes: remove it, or script",
}
ONE_DEVICE = (
    "a script trains on one device, which its worker has; got {devices}: use one, or describe the job by model and "
    "data, which train on several"
)


def read_script(value: Any) -> str:
    """Return a script as it is in a job's config.

    Raises:
        ValueError: If it is no command.

    Example::

        >>> read_script("train.py --name 'a b'")
        "train.py --name 'a b'"
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a command, such as train.py --lr 0.1, got {shown(value)}")
    check_length(SCRIPT, value, MAX_SCRIPT)
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    words = split(value)
    if words[0] == "-m" and len(words) == 1:
        raise ValueError("-m must be followed by a module, such as -m package.train")
    if re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
        raise ValueError(f"must begin with what is run, got the variable {shown(words[0])}; use env {words[0]} ...")
    return value


def split(script: str) -> list[str]:
    """Return the words of a script, at least one.

    Raises:
        ValueError: If a quotation mark is missing, or there is no word.
    """
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise ValueError(f"must be words as a shell has them: {error}") from None
    if not words or not words[0]:
        raise ValueError("must begin with what is run, such as train.py")
    return words


def command_of(script: str, folder: Path) -> list[str]:
    """Return the command that a script stands for.

    Args:
        script: The script.
        folder: Folder of its bundle.

    Raises:
        ValueError: If it is no command.
        FileNotFoundError: If its file or program is not there.
        PermissionError: If it may not be read or run.
    """
    first, *rest = split(script)
    if first == "-m":
        return [sys.executable, first, *rest]
    if first in PYTHON:
        if rest and rest[0].endswith(".py"):
            _check(folder / rest[0], os.R_OK, "read")
        return [sys.executable, *rest]
    if first.endswith(".py"):
        _check(folder / first, os.R_OK, "read")
        return [sys.executable, first, *rest]
    if "/" in first:
        _check(folder / first, os.X_OK, "run; chmod +x would allow it")
        return [str(folder / first), *rest]
    beside = os.path.dirname(sys.executable)
    found = shutil.which(first, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        hint = f"; {first}.py is there" if (folder / f"{first}.py").is_file() else ""
        raise FileNotFoundError(f"no program {first!r} on this machine's PATH{hint}")
    return [found, *rest]


def find_command(script: str, folders: Sequence[Path]) -> tuple[list[str], Path]:
    """Return the command that a script stands for, and the folder in which it runs.

    Args:
        script: The script.
        folders: Folders in which its file is looked up, at least one.

    Raises:
        ValueError: If it is no command.
        OSError: As of :func:`command_of`, in the first folder.
    """
    missing = []
    for folder in folders:
        try:
            return command_of(script, folder), folder
        except FileNotFoundError as error:
            missing.append(error)
    raise missing[0]


def check_script(script: str, folders: Sequence[Path], problems: Problems) -> None:
    """Check that what a script runs is there.

    Args:
        script: The script.
        folders: Folders in which its file is looked up, at least one.
        problems: Collector at the script.
    """
    try:
        find_command(script, folders)
    except (OSError, ValueError) as error:
        problems.add(str(error))


def model_of_script(config: Mapping[str, Any]) -> str:
    """Return what stands for the model of a script, by which earlier runs are found: its file, module or program.

    Example::

        >>> [model_of_script({"script": text}) for text in ("train.py --lr 0.1", "python -m my.train", "bin/train")]
        ['train.py', 'my.train', 'bin/train']
    """
    words: Sequence[str] = split(config[SCRIPT])
    words = words[1:] if words[0] in PYTHON else words
    return next((word for word in words if word != "-m"), "")


def without_secrets(script: str) -> str:
    """Return a script as it may be shown: without the values of arguments that are named like secrets.

    Example::

        >>> without_secrets("train.py --lr 0.1 --api-key abc --token=def")
        'train.py --lr 0.1 --api-key ... --token=...'
    """
    parts, before = [], ""
    for word in split(script):
        name, equals, _ = word.partition("=")
        if _is_secret_option(before) and not word.startswith("-"):
            parts.append(_HIDDEN)
        else:
            parts.append(f"{shlex.quote(name)}={_HIDDEN}" if equals and _is_secret(name) else shlex.quote(word))
        before = word
    return " ".join(parts)


def _is_secret_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word and _is_secret(word)


def _is_secret(name: str) -> bool:
    return is_secret(("init_args", name.lstrip("-")))


def _check(path: Path, mode: int, verb: str) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path} not found")
    if not path.is_file():
        raise PermissionError(f"{path} is no file")
    if not os.access(path, mode):
        raise PermissionError(f"{path} may not be {verb}")
