"""Class paths of a config: checked by name before they are imported, and imported before anything is built.

Rules

1. A class path names a class, and one with the right base class where Lightning expects one. Functions are not called.
2. The standard library, and packages that install, import or unpickle, are refused before they are imported: they hold
   no models, but they do hold ``subprocess.Popen``.
3. If ``allow_import`` is given, only what it names may be imported. It may name what rule 2 refuses; of two entries
   that match, the longer one decides.
4. A bundle is still code: a class that it may name can do anything (SECURITY.md).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_core.bundle.problems import KeyPath, Problems
from lightning_core.core.names import did_you_mean

# Base classes of the model and the data, below lightning.pytorch.
BASES = {"model": "LightningModule", "data": "LightningDataModule"}
# Base classes by key, imported only for the check. Classes among the arguments of others are checked by the config's
# parser, against the annotations of those arguments.
EXPECTED_BASES = {
    "optimizer": ("torch.optim.Optimizer",),
    "lr_scheduler": ("torch.optim.lr_scheduler.LRScheduler", "torch.optim.lr_scheduler.ReduceLROnPlateau"),
    "trainer.callbacks": ("lightning.pytorch.Callback",),
    "trainer.logger": ("lightning.pytorch.loggers.Logger",),
    "trainer.profiler": ("lightning.pytorch.profilers.Profiler",),
    "trainer.plugins": (
        "lightning.pytorch.plugins.Precision",
        "lightning.pytorch.plugins.ClusterEnvironment",
        "lightning.pytorch.plugins.CheckpointIO",
        "lightning.pytorch.plugins.LayerSync",
    ),
    **{key: (f"lightning.pytorch.{name}",) for key, name in BASES.items()},
}
# Modules of the standard library that only compute and hold data.
HARMLESS = frozenset({"collections", "datetime", "decimal", "fractions", "math", "random", "statistics"})
REFUSED = (frozenset(sys.stdlib_module_names) - HARMLESS) | {
    "cloudpickle",
    "dill",
    "joblib",
    "jsonargparse",
    "pip",
    "pkg_resources",
    "setuptools",
}


def described_classes(config: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Mapping[Any, Any]]]:
    """Yield every mapping with a ``class_path`` anywhere in a config, with its path."""
    if isinstance(config, Mapping):
        if "class_path" in config:
            yield path, config
        for key, inner in config.items():
            yield from described_classes(inner, (*path, str(key)))
    elif isinstance(config, list | tuple):
        for index, inner in enumerate(config):
            yield from described_classes(inner, (*path, index))


def check_class_paths(config: Mapping[str, Any], problems: Problems, allow: Sequence[str] | None = None) -> None:
    """Check what can be checked of the class paths without importing anything.

    Args:
        config: LightningCLI config.
        problems: Collector at the config.
        allow: Names that may be imported; None for all that are not refused.
    """
    for key in BASES:
        value = config.get(key)
        if key not in config or (isinstance(value, Mapping) and "class_path" in value):
            continue
        given = "missing" if isinstance(value, Mapping) else f"missing, got {value!r}"
        problems.at(key).add(
            f"class_path is {given}; expected {{class_path: package.module.Class, init_args: {{...}}}}"
        )
    for key_path, value in described_classes(config):
        path = value["class_path"]
        here = problems.at(*key_path, "class_path")
        if not isinstance(path, str) or not path:
            here.add(f"must be the dotted path of a class, such as package.module.Class, got {path!r}")
        elif "." not in path:
            # Lightning has short names for some other classes.
            if (len(key_path) == 1 and key_path[0] in BASES) or allow is not None:
                here.add(f"must be the dotted path of a class, such as package.module.{path}, got {path!r}")
        elif not all(name.isidentifier() for name in path.split(".")):
            here.add(f"must be names joined by dots, got {path!r}")
        elif path.startswith("__main__."):
            name = path.removeprefix("__main__.")
            here.add(
                f"is in the script that was started, which no worker can import; put it into a file, such as train.py, "
                f"and write train.{name}, got {path!r}"
            )
        elif private := [name for name in path.split(".") if name.startswith("_")]:
            here.add(f"{private[0]!r} is private, expected a public class, got {path!r}")
        elif message := refusal(path, allow):
            here.add(f"not allowed, and not imported: {message}")


def refusal(path: str, allow: Sequence[str] | None = None) -> str:
    """Return why a dotted path may not be imported; empty if it may.

    Example::

        >>> refusal("subprocess.Popen")
        "'subprocess.Popen' belongs to the standard library; allow_import would allow it"
        >>> refusal("mine.Model"), refusal("functools.partial", ["mine", "functools.partial"])
        ('', '')
        >>> refusal("theirs.Model", ["mine"])
        "'theirs.Model' is not in allow_import, mine"
    """
    names = path.split(".")
    prefixes = {".".join(names[: end + 1]) for end in range(len(names))}
    if allow is not None and prefixes & set(allow):
        return ""
    if names[0] in REFUSED:
        where = "belongs to the standard library" if names[0] in sys.stdlib_module_names else "is no part of a training"
        return f"{path!r} {where}" + ("; allow_import would allow it" if names[0] != "jsonargparse" else "")
    return "" if allow is None else f"{path!r} is not in allow_import, {', '.join(allow) or 'which is empty'}"


def check_imports(config: Mapping[str, Any], problems: Problems, allow: Sequence[str] | None = None) -> None:
    """Import every class, and check it and the names of its arguments; nothing is built.

    Args:
        config: LightningCLI config that has passed :func:`check_class_paths`.
        problems: Collector at the config.
        allow: Names that may be imported; None for all that are not refused.
    """
    for key_path, value in described_classes(config):
        path = value["class_path"]
        if "." not in path:
            continue
        here = problems.at(*key_path)
        try:
            made = _import(path)
            _check_class(made, path, EXPECTED_BASES.get(_key_of(key_path), ()))
            # A class may be imported under another name; what counts is where it is defined.
            if message := refusal(f"{made.__module__}.{made.__qualname__}", allow):
                raise ValueError(f"not allowed: {path!r} is another name of a class that is refused: {message}")
        except ValueError as error:
            here.at("class_path").add(str(error))
        else:
            complete = len(key_path) == 1 and key_path[0] in BASES
            _check_arguments(made, value.get("init_args"), here.at("init_args"), complete)


def _key_of(path: KeyPath) -> str:
    """Return the dotted key of a class, be it the value or an item of a list."""
    return ".".join(str(part) for part in (path[:-1] if path and isinstance(path[-1], int) else path))


def _import(path: str) -> Any:
    module_name, _, class_name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            where = "it is not installed, not beside the bundle, and not in the current folder"
            raise ValueError(f"{path!r} does not import: no module {error.name!r}; {where}") from None
        raise ValueError(f"{path!r} does not import: ModuleNotFoundError: {error}") from None
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ValueError(f"{path!r} does not import: {type(error).__name__}: {error}") from None
    try:
        return getattr(module, class_name)
    except AttributeError:
        members = {name: member for name, member in vars(module).items() if isinstance(member, type) and name[0] != "_"}
        classes = [name for name, member in members.items() if member.__module__.startswith(module_name)]
        hint = did_you_mean(class_name, classes) if classes else "; it has no class"
        raise ValueError(f"module {module_name!r} has no {class_name!r}{hint}") from None


def _check_class(made: Any, path: str, bases: Sequence[str]) -> None:
    if not isinstance(made, type):
        raise ValueError(f"{path!r} is not a class but a {type(made).__name__}")
    if bases and not issubclass(made, tuple(map(_import, bases))):
        given = ", ".join(f"{base.__module__}.{base.__qualname__}" for base in made.__bases__)
        raise ValueError(f"{path!r} is not a {' or '.join(bases)}; its base is {given}")
    if inspect.isabstract(made):
        missing = ", ".join(sorted(vars(made)["__abstractmethods__"]))
        raise ValueError(f"{path!r} is abstract: {missing} not implemented")


def _check_arguments(made: Any, given: Any, problems: Problems, complete: bool) -> None:
    """Check the names of arguments against the signature.

    Args:
        made: Class to be built.
        given: Its ``init_args``.
        problems: Collector at the arguments.
        complete: Whether these are all arguments; an optimizer gets its parameters later.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        problems.add(f"must be a mapping of arguments, got {given!r}")
        return
    try:
        parameters = list(inspect.signature(made).parameters.values())
    except (ValueError, TypeError):  # some classes written in C have no signature
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = f"{made.__name__}({', '.join(map(str, named))})"
    names = [parameter.name for parameter in named]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for key in given:
            if key not in names:
                hint = did_you_mean(key, names) if names else "; it takes no argument"
                problems.at(str(key)).add(f"unknown argument {key!r}{hint}; {takes}")
    if complete:
        for parameter in named:
            if parameter.default is parameter.empty and parameter.name not in given:
                problems.at(parameter.name).add(f"is missing; {takes}")
