"""Class paths of a config: looked at before they are imported, imported before anything is built."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.launch.problems import Findings, Parts
from lightning_core.words import did_you_mean

# What a job trains, and on what; anything else that has a class_path is for the config's own parser to judge.
BASES = {"model": "LightningModule", "data": "LightningDataModule"}


def described_classes(config: Any, parts: Parts = ()) -> Iterator[tuple[Parts, Mapping[Any, Any]]]:
    """Every mapping with a ``class_path`` anywhere in a config, and where it is."""
    if isinstance(config, Mapping):
        if "class_path" in config:
            yield parts, config
        for key, inner in config.items():
            yield from described_classes(inner, (*parts, str(key)))
    elif isinstance(config, list | tuple):
        for index, inner in enumerate(config):
            yield from described_classes(inner, (*parts, index))


def check_spelling(config: Mapping[str, Any], found: Findings) -> None:
    """What can be said of the class paths without importing anything."""
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
            if len(parts) == 1 and parts[0] in BASES:  # of others, Lightning knows some by their short names
                here.add(f"must be the dotted path of a class, such as package.module.{path}, got {path!r}")
        elif not all(name.isidentifier() for name in path.split(".")):
            here.add(f"must be names joined by dots, got {path!r}")
        elif private := [name for name in path.split(".") if name.startswith("_")]:
            here.add(f"{private[0]!r} is private, expected a public class, got {path!r}")


def check_imports(config: Mapping[str, Any], found: Findings) -> None:
    """Imports every class and looks at it and at the names of its arguments; nothing is built."""
    for parts, value in described_classes(config):
        path = value["class_path"]
        if "." not in path:
            continue
        here = found.at(*parts)
        kind = BASES.get(str(parts[0])) if len(parts) == 1 else None
        try:
            made = _imported(path)
            if kind is not None:
                _check_class(made, path, kind)
        except ValueError as error:
            here.at("class_path").add(str(error))
        else:
            _check_arguments(made, value.get("init_args"), here.at("init_args"), complete=kind is not None)


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


def _check_class(made: Any, path: str, kind: str) -> None:
    import lightning.pytorch as pl

    if not isinstance(made, type):
        raise ValueError(f"{path!r} is not a class but a {type(made).__name__}")
    if not issubclass(made, getattr(pl, kind)):
        bases = ", ".join(f"{base.__module__}.{base.__qualname__}" for base in made.__bases__)
        raise ValueError(f"{path!r} is not a lightning.pytorch.{kind}; its base is {bases}")
    if inspect.isabstract(made):
        missing = ", ".join(sorted(vars(made)["__abstractmethods__"]))
        raise ValueError(f"{path!r} is abstract: it lacks {missing}")


def _check_arguments(made: Any, given: Any, found: Findings, complete: bool) -> None:
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
