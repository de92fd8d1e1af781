"""Jobs of a bundle that are written in Python, with classes in place of class paths."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.bundle.config_section import CONFIG_KEYS
from lightning_core.bundle.job_section import read_job
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.core.durations import When
from lightning_core.core.targets import Target
from lightning_core.scheduler.settings import Settings

PUT_INTO_A_FILE = "put it into a file, such as train.py, and import it from there"


class Training:
    """A job of a bundle, written in Python: what trains it, and its terms.

    A worker builds the model, its data and the Trainer in a process of its own. So they are named by their classes, or
    by ``functools.partial`` of a class with its arguments, and the classes are in files that the worker can import.
    Wherever a class or a partial stands, among arguments too, the worker passes an object of that class. Or it starts a
    script, with any training loop.

    Args:
        name: Name of the job.
        deadline: Seconds from submission, a duration such as ``"1h30m"``, or a time such as ``"18:00"``; None for none.
        target: When the job counts as met, such as ``"val_acc>=0.9"``.
        model: The LightningModule; a class path will do as well. Not with a script.
        data: The LightningDataModule; None if the model has loaders of its own.
        trainer: Arguments of the Trainer, but for those that the pool sets.
        script: What trains the job instead, such as ``"train.py --lr 0.1"``, in the folder of the bundle.
        terms: Further keys of a job in a bundle file, such as ``devices``, ``weight`` or ``seed_everything``.

    Example::

        >>> vit = Training("vit", "1h30m", "loss<=0.35", model="mine.Vit", trainer={"max_epochs": 50}, retries=1)
        >>> spec = vit.read(Settings())
        >>> str(spec.job.target), spec.job.deadline, spec.config
        ('loss <= 0.35', 5400.0, {'model': {'class_path': 'mine.Vit'}, 'trainer': {'max_epochs': 50}})

    With classes::

        from functools import partial
        from mine import Digits, Vit

        Training("vit", "1h30m", "loss<=0.35", model=partial(Vit, lr=0.001), data=Digits)
        Training("gan", "2h", "loss<=0.1", script="train.py --lr 0.1")
    """

    def __init__(
        self,
        name: str,
        deadline: When | None = None,
        target: Target | str | None = None,
        *,
        model: type | Callable[..., Any] | str | None = None,
        data: type | Callable[..., Any] | str | None = None,
        trainer: Mapping[str, Any] | None = None,
        script: str | None = None,
        **terms: Any,
    ) -> None:
        self.name = name
        """Name of the job."""
        given = {"model": model, "script": script, "deadline": deadline, "target": target, "data": data,
                 "trainer": trainer}  # fmt: skip
        self._section = {**{key: value for key, value in given.items() if value is not None}, **terms}

    def __repr__(self) -> str:
        return f"Training({self.name!r})"

    def read(self, settings: Settings, folder: Path | str | None = None, allow: Sequence[str] | None = None) -> JobSpec:
        """Return the job as it is read from a file.

        Args:
            settings: Settings of the pool that is to take the job.
            folder: Folder to which paths are relative; by default the current one.
            allow: Names that class paths may import; None for all but the standard library and the like.

        Raises:
            BundleError: With every problem found.
        """
        problems = Problems(Position("bundle").at("jobs", str(self.name)))
        section = {
            key: as_class_paths(value, problems.at(key)) if key in CONFIG_KEYS else value
            for key, value in self._section.items()
        }
        spec = None
        if not problems.messages:
            root = Path.cwd() if folder is None else Path(folder).resolve()
            spec = read_job(self.name, section, root, problems, settings.devices, allow, settings.locations)
        if spec is not None and (refusal := settings.memory_refusal(spec.job.memory)) is not None:
            problems.at("memory").add(str(refusal))
        if spec is None or problems.messages:
            raise BundleError(problems.messages)
        return spec


def as_class_paths(value: Any, problems: Problems) -> Any:
    """Return plain data that describes a value: a class and a partial of one by their class path and arguments.

    Args:
        value: Part of a LightningCLI config, with live classes.
        problems: Collector at the value.

    Example::

        >>> from datetime import timedelta
        >>> as_class_paths({"pause": functools.partial(timedelta, minutes=2)}, Problems(Position("a")))
        {'pause': {'class_path': 'datetime.timedelta', 'init_args': {'minutes': 2}}}
    """
    if isinstance(value, Mapping):
        return {key: as_class_paths(inner, problems.at(str(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_class_paths(inner, problems.at(index)) for index, inner in enumerate(value)]
    if isinstance(value, functools.partial):
        arguments = {key: as_class_paths(inner, problems.at(key)) for key, inner in _arguments(value, problems).items()}
        return {"class_path": _path_of(value.func, problems), **({"init_args": arguments} if arguments else {})}
    if isinstance(value, type) or inspect.isroutine(value):
        return {"class_path": _path_of(value, problems)}
    if isinstance(value, Path):
        return os.fspath(value)
    if type(value) not in (str, int, float, bool, type(None)):
        name = type(value).__name__
        problems.add(
            f"must be a class, or functools.partial of one with its arguments, such as partial({name}, ...): a worker "
            f"builds its own; got an object of {name}"
        )
    return value


def _arguments(made: functools.partial[Any], problems: Problems) -> dict[str, Any]:
    """Return the arguments of a partial by their names; those without a name are problems."""
    if not made.args:
        return made.keywords
    try:
        names = list(inspect.signature(made.func).parameters)[: len(made.args)]
        inspect.signature(made.func).bind_partial(*made.args, **made.keywords)
    except (ValueError, TypeError) as error:
        problems.add(f"partial of {made.func}: {error}; name each argument")
        return {}
    return {**dict(zip(names, made.args, strict=False)), **made.keywords}


def _path_of(made: Any, problems: Problems) -> str:
    """Return the class path of a class; a problem if a worker could not import it."""
    name, module = getattr(made, "__qualname__", repr(made)), getattr(made, "__module__", "")
    path = f"{module}.{name}"
    if not isinstance(made, type):
        what = "a lambda" if "<lambda>" in name else f"the function {path}"
        problems.add(f"must be a class, or functools.partial of one, which a worker can import, got {what}")
    elif module == "__main__":
        problems.add(f"{name} is in the notebook or script that runs, which no worker can import; {PUT_INTO_A_FILE}")
    elif "." in name or getattr(sys.modules.get(module), name, None) is not made:
        problems.add(f"{path} is not at the top level of a file, where a worker can import it; {PUT_INTO_A_FILE}")
    return path


def folder_of_script() -> Path:
    """Return the folder of the script that runs, where Python looks modules up; in a notebook the current folder."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path.cwd() if file is None else Path(file).resolve().parent
