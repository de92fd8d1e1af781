"""Class paths of a config: looked at before they are imported, imported before anything is built.

Rules

1. A class path names a class, and where Lightning says of what kind, one of that kind. A function is not called.
2. What is of Python's own library, or installs, imports or unpickles, is refused before it is imported: no model is
   there, but ``subprocess.Popen`` is.
3. ``allow_import`` names what may be imported, and then nothing else may. It may name what rule 2 refuses. Of two that
   match, the longer one decides.
4. A bundle is code all the same: a class that it may name can do anything (SECURITY.md).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_core.bundle.problems import KeyPath, Problems
from lightning_core.core.names import did_you_mean

# What a job trains, and on what.
BASES = {"model": "LightningModule", "data": "LightningDataModule"}
# What else has a place of its own, imported only for the check. Classes among the arguments of others must be what
# those arguments are annotated with: the config's own parser sees to it before anything is built.
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
# Of Python's own library, these only hold and compute.
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


def described_classes(config: Any, parts: KeyPath = ()) -> Iterator[tuple[KeyPath, Mapping[Any, Any]]]:
    """Every mapping with a ``class_path`` anywhere in a config, and where it is."""
    if isinstance(config, Mapping):
        if "class_path" in config:
            yield parts, config
        for key, inner in config.items():
            yield from described_classes(inner, (*parts, str(key)))
    elif isinstance(config, list | tuple):
        for index, inner in enumerate(config):
            yield from described_classes(inner, (*parts, index))


def check_class_paths(config: Mapping[str, Any], found: Problems, allow: Sequence[str] | None = None) -> None:
    """What can be said of the class paths without importing anything.

    Args:
        config: of LightningCLI.
        found: takes what is wrong.
        allow: what may be imported; None for all that is not refused.
    """
    for key in BASES:
        value = config.get(key)
        if key not in config or (isinstance(value, Mapping) and "class_path" in value):
            continue
        given = "missing" if isinstance(value, Mapping) else f"missing, got {value!r}"
        found.at(key).add(f"class_path is {given}; expected {{class_path: package.module.Class, init_args: {{...}}}}")
    for parts, value in described_classes(config):
        path = value["class_path"]
        here = found.at(*parts, "class_path")
        if not isinstance(path, str) or not path:
            here.add(f"must be the dotted path of a class, such as package.module.Class, got {path!r}")
        elif "." not in path:
            # Of others than these, Lightning knows some by their short names.
            if (len(parts) == 1 and parts[0] in BASES) or allow is not None:
                here.add(f"must be the dotted path of a class, such as package.module.{path}, got {path!r}")
        elif not all(name.isidentifier() for name in path.split(".")):
            here.add(f"must be names joined by dots, got {path!r}")
        elif private := [name for name in path.split(".") if name.startswith("_")]:
            here.add(f"{private[0]!r} is private, expected a public class, got {path!r}")
        elif words := refusal(path, allow):
            here.add(f"not allowed, and not imported: {words}")


def refusal(path: str, allow: Sequence[str] | None = None) -> str:
    """Why a dotted path may not be imported; empty if it may.

    Example::

        >>> refusal("subprocess.Popen")
        "'subprocess.Popen' is of Python's own library; allow_import would allow it"
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
        where = "of Python's own library" if names[0] in sys.stdlib_module_names else "no part of a training"
        return f"{path!r} is {where}" + ("; allow_import would allow it" if names[0] != "jsonargparse" else "")
    return "" if allow is None else f"{path!r} is not in allow_import, {', '.join(allow) or 'which is empty'}"


def check_imports(config: Mapping[str, Any], found: Problems, allow: Sequence[str] | None = None) -> None:
    """Imports every class and looks at it and at the names of its arguments; nothing is built.

    Args:
        config: of LightningCLI, its class paths looked at by :func:`check_class_paths`.
        found: takes what is wrong.
        allow: what may be imported; None for all that is not refused.
    """
    for parts, value in described_classes(config):
        path = value["class_path"]
        if "." not in path:
            continue
        here = found.at(*parts)
        try:
            made = _imported(path)
            _check_class(made, path, EXPECTED_BASES.get(_place(parts), ()))
            # Under whatever name it was imported, it is where it was defined.
            if words := refusal(f"{made.__module__}.{made.__qualname__}", allow):
                raise ValueError(f"not allowed: {path!r} is another name of what is refused: {words}")
        except ValueError as error:
            here.at("class_path").add(str(error))
        else:
            complete = len(parts) == 1 and parts[0] in BASES
            _check_arguments(made, value.get("init_args"), here.at("init_args"), complete)


def _place(parts: KeyPath) -> str:
    """Of a class in the config, whether it stands there alone or in a list."""
    return ".".join(str(part) for part in (parts[:-1] if parts and isinstance(parts[-1], int) else parts))


def _imported(path: str) -> Any:
    module_name, _, class_name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            where = "it is neither installed, nor beside the bundle, nor in the current folder"
            raise ValueError(f"{path!r} does not import: no module {error.name!r}; {where}") from None
        raise ValueError(f"{path!r} does not import: ModuleNotFoundError: {error}") from None
    except (Exception, SystemExit) as error:  # whatever the module does while it is imported is the person's to read
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
    if bases and not issubclass(made, tuple(map(_imported, bases))):
        given = ", ".join(f"{base.__module__}.{base.__qualname__}" for base in made.__bases__)
        raise ValueError(f"{path!r} is not a {' or '.join(bases)}; its base is {given}")
    if inspect.isabstract(made):
        missing = ", ".join(sorted(vars(made)["__abstractmethods__"]))
        raise ValueError(f"{path!r} is abstract: it lacks {missing}")


def _check_arguments(made: Any, given: Any, found: Problems, complete: bool) -> None:
    """Names of arguments against the signature.

    Args:
        made: the class.
        given: its ``init_args``.
        found: at them.
        complete: whether nobody else adds arguments (an optimizer gets its parameters later).
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        found.add(f"must be a mapping of arguments, got {given!r}")
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
                found.at(str(key)).add(f"unknown argument {key!r}{hint}; {takes}")
    if complete:
        for parameter in named:
            if parameter.default is parameter.empty and parameter.name not in given:
                found.at(parameter.name).add(f"is missing; {takes}")
