"""Class paths: refused by name without an import, or imported and inspected without building anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.class_paths import (
    EXPECTED_BASES,
    HARMLESS,
    REFUSED,
    check_class_paths,
    check_imports,
    refusal,
)
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.cluster.bundle import Bundle

JOB = {"model": "tests.tiny.Line", "deadline": "9s", "target": {"batches": 1}}


def spelling(config: dict[str, Any], allow: list[str] | None = None) -> list[str]:
    found = Problems(Position("b"))
    check_class_paths(config, found, allow)
    return found.messages


@pytest.mark.promise("S6")
@pytest.mark.parametrize(
    "module",
    [
        "os",
        "posix",
        "subprocess",
        "builtins",
        "sys",
        "ctypes",
        "pickle",
        "importlib",
        "runpy",
        "code",
        "shutil",
        "socket",
        "pty",
        "timeit",
        "pip",
        "dill",
    ],
)
def test_classes_that_run_or_unpickle_are_refused(module: str) -> None:
    assert module in REFUSED
    for path in (f"{module}.thing", f"{module}.inner.Thing"):
        assert refusal(path)
        assert refusal(path, ["lightning", "mine"])
        assert not refusal(path, [module])


@pytest.mark.promise("S6")
@pytest.mark.parametrize("path", ["lightning.pytorch.Trainer", "torch.nn.Linear", "mine.Model", "osmosis.Model",
                                  "mine.os.Model", *(f"{module}.Thing" for module in sorted(HARMLESS))])  # fmt: skip
def test_harmless_classes_are_accepted(path: str) -> None:
    assert not refusal(path)


@pytest.mark.promise("S6")
@pytest.mark.parametrize(
    ("path", "allow", "allowed"),
    [
        ("mine.Model", ["mine"], True),
        ("mine.deep.Model", ["mine"], True),
        ("mine.Model", ["mine.Model"], True),
        ("mine.Other", ["mine.Model"], False),
        ("minefield.Model", ["mine"], False),
        ("theirs.Model", ["mine", "torch"], False),
        ("torch.optim.SGD", ["torch.optim"], True),
        ("torch.nn.Linear", ["torch.optim"], False),
        ("functools.partial", ["functools.partial"], True),
        ("functools.reduce", ["functools.partial"], False),
        ("mine.Model", [], False),
    ],
)
def test_allow_import_limits_every_class(path: str, allow: list[str], allowed: bool) -> None:
    assert bool(refusal(path, allow)) != allowed


@pytest.mark.promise("S6")
@pytest.mark.parametrize("where", ["model", "data", "optimizer", "trainer"])
def test_refused_modules_are_not_imported(where: str, tmp_path: Path) -> None:
    evil = {"class_path": "antigravity.fly", "init_args": {}}  # it opens a browser when it is imported
    given = {"callbacks": [evil]} if where == "trainer" else evil
    with pytest.raises(BundleError, match=r"not imported: 'antigravity.fly' belongs to the standard library"):
        Bundle.from_dict({"jobs": {"a": {**JOB, where: given}}})
    assert "antigravity" not in sys.modules


@pytest.mark.promise("S6")
def test_modules_outside_allow_import_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text("raise AssertionError('imported')")
    text = {"jobs": {"a": {**JOB, "model": "never.Model"}}, "allow_import": ["tests", "lightning"]}
    with pytest.raises(BundleError, match=r"'never.Model' is not in allow_import, tests, lightning"):
        Bundle.from_dict(text, tmp_path)
    bundle = Bundle.from_dict({**text, "allow_import": None}, tmp_path).importing_only(["tests"])
    with pytest.raises(BundleError, match=r"'never.Model' is not in allow_import, tests"):
        bundle.check()
    assert "never" not in sys.modules


@pytest.mark.parametrize("name", ["a b", "", 7, "a..b", "a-b", "jsonargparse", "jsonargparse.set_parsing_settings"])
def test_allow_import_takes_names_only(name: Any) -> None:
    with pytest.raises(BundleError, match="allow_import: "):
        Bundle.from_dict({"jobs": {"a": JOB}, "allow_import": [name]})


@pytest.mark.promise("S6")
def test_classes_are_checked_without_being_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "eager.py").write_text(
        "import lightning.pytorch as pl\n"
        "class Model(pl.LightningModule):\n"
        "    def __new__(cls, *given): raise AssertionError('built')\n"
        "class Stop(pl.Callback):\n"
        "    def __init__(self, after: int): raise AssertionError('built')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    callback = {"class_path": "eager.Stop", "init_args": {"after": 3}}
    job = {**JOB, "model": "eager.Model", "trainer": {"callbacks": [callback]}}
    Bundle.from_dict({"jobs": {"a": job}}, tmp_path).check()


@pytest.mark.parametrize("place", EXPECTED_BASES)
def test_every_position_has_an_existing_base(place: str) -> None:
    found = Problems(Position("b"))
    config: dict[str, Any] = {"class_path": "torch.nn.Identity"}
    for key in reversed(place.split(".")):
        config = {key: config}
    check_imports(config, found)
    [problem] = found.messages
    assert f"{place}.class_path: 'torch.nn.Identity' is not a " in problem


def test_short_names_are_resolved_by_lightning_unless_imports_are_limited() -> None:
    config = {"model": {"class_path": "mine.Model"}, "trainer": {"logger": {"class_path": "CSVLogger"}}}
    assert spelling(config) == []
    [problem] = spelling(config, ["mine"])
    assert problem.startswith("b: trainer.logger.class_path: must be the dotted path of a class")
