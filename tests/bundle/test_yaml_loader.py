"""The only YAML loader: what it refuses and where, how little work that takes, and that no other loader is used."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonargparse
import lightning.pytorch as pl
import pytest
import torch
import yaml
from jsonargparse import _common, _typehints

from lightning_core.bundle import yaml_loader
from lightning_core.bundle.lightning_config import PARSER_MODE, build, check_config, read_scalar
from lightning_core.bundle.problems import MAX_PROBLEMS_SHOWN, BundleError, Position, Problems
from lightning_core.bundle.yaml_loader import MAX_VALUES, load_yaml
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.limits import MAX_JOBS

AS_DURATION = "or write a duration such as 1h30m"
JOB = {"model": "tests.tiny.Line", "deadline": "9s", "target": {"loss": 0.1}}


def read(folder: Path, text: str | bytes) -> tuple[Any, list[str]]:
    path = folder / "b.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    try:
        content, found = load_yaml(path)
    except BundleError as error:
        return None, [problem.removeprefix(str(path)) for problem in error.problems]
    return content, [problem.removeprefix(str(path)) for problem in found.messages]


@pytest.mark.promise("S5")
@pytest.mark.parametrize(
    ("text", "content", "problems"),
    [
        ("a: 1\nb: [x, {c: 2.5}]", {"a": 1, "b": ["x", {"c": 2.5}]}, []),
        (b"\xef\xbb\xbfa: 1", {"a": 1}, []),
        ("a: &a {b: 1}\nc: {<<: *a, d: 2}\ne: *a", {"a": {"b": 1}, "c": {"b": 1, "d": 2}, "e": {"b": 1}}, []),
        ("a: 1\n  \na: 2", {"a": 2}, [":3:1: duplicate key 'a' (first on line 1)"]),
        ("x: {y: 1, 'y': 2}", {"x": {"y": 2}}, [":1:11: duplicate key 'y' (first on line 1)"]),
        ("a: !!str 1", {"a": 1}, [":1:4: YAML tags are not allowed, got !!str"]),
        ("a: ! 1", {"a": 1}, [":1:4: YAML tags are not allowed, got !"]),
        ("a: !!binary aGk=", {"a": "aGk="}, [":1:4: YAML tags are not allowed, got !!binary"]),
        ("a: !!set {b}", {"a": {"b": None}}, [":1:4: YAML tags are not allowed, got !!set"]),
        (
            "%TAG ! tag:x,2000:\n---\na: !q [1]",
            {"a": [1]},
            [":3:4: YAML tags are not allowed, got tag:x,2000:q"],
        ),
        ("a:\n  - 1:30", {"a": [90]}, [":2:5: YAML reads 1:30 as 90 (base 60); quote it, \"1:30\", " + AS_DURATION]),
        ("a: 1:30.5", {"a": 90.5}, [":1:4: YAML reads 1:30.5 as 90.5 (base 60); quote it, \"1:30.5\", " + AS_DURATION]),
        ("a: 010", {"a": 8}, [":1:4: YAML reads 010 as 8 (base 8); remove the leading 0, or quote it"]),
        ("a: 0b_", {"a": "0b_"}, [":1:4: cannot be read (invalid literal for int() with base 2: ''); "
                                  "quote it if it is text, got '0b_'"]),
        ("a: 2026-02-30\nb: 2026-11-21T10:00:00Z", {"a": "2026-02-30", "b": "2026-11-21T10:00:00Z"}, []),
        ("a: [1\nb: 2", None, [":2:2: not YAML: a bracket is open: a comma or ']' is missing before this"]),
        ("a: 1\n--- \nb: 2", None, [":2:1: not YAML: a file holds one document; remove '---', '...' or what follows"]),
        ("? [a]\n: 1", None, [":1:3: not YAML: a key must be a text or a number"]),
        ("a: b\n \x1b[2J", None, [":2:2: special characters are not allowed, got '\\x1b'"]),
        ("a: *b", None, [":1:4: not YAML: no such alias; quote a text that begins with *"]),
        ("a: &a {b: *a}", None, [":1:11: alias *a refers to itself"]),
        ("a: " + "[" * 50 + "]" * 50, None, [":1:53: nested too deeply (limit 50)"]),
    ],
)  # fmt: skip
def test_values_are_read_and_errors_name_their_position(
    tmp_path: Path, text: str, content: Any, problems: list[str]
) -> None:
    got, found = read(tmp_path, text)
    assert found == problems
    assert repr(got) == repr(content)


@pytest.mark.promise("S5")
def test_limits_hold_exactly(tmp_path: Path) -> None:
    deepest = "[" * 50 + "]" * 50
    assert read(tmp_path, deepest)[1] == []
    assert read(tmp_path, f"[{deepest}]")[1] == [":1:51: nested too deeply (limit 50)"]
    aliases = "a: &a 1\nb: [{}]"
    assert read(tmp_path, aliases.format(", ".join(["*a"] * 100)))[1] == []
    assert read(tmp_path, aliases.format(", ".join(["*a"] * 101)))[1] == [":2:405: too many aliases (limit 100)"]
    largest = "# " + "x" * (yaml_loader.MAX_FILE_BYTES - 4) + "\n1"
    assert read(tmp_path, largest) == (1, [])
    assert read(tmp_path, f"#{largest}")[1] == [": cannot be read: larger than 1,048,576 bytes"]
    assert read(tmp_path, f"[{'1,' * (MAX_VALUES - 1)}]")[1] == []
    assert len(read(tmp_path, f"[{'1,' * MAX_VALUES}]")[1]) == 1


@pytest.mark.promise("S5")
def test_random_text_is_read_or_refused(tmp_path: Path) -> None:
    draw = random.Random(1)
    parts = ["a", ":", " ", "\n", "- ", "[", "]", "{", "}", "&x ", "*x", "!!int ", "!t ", "<<", "?", "|", ">", "'", '"',
             "2026-02-30", "0b_", "._", "=", "1:2", ",", "#", "%", "@", "\t", "---", "...", "\\", "1" * 4400, "\u2028",
             "\xe9", "  ", "0x_", "!!binary ", "~", "1e999", "-.inf", "\r"]  # fmt: skip
    refused = 0
    for _ in range(600):
        text = "".join(draw.choices(parts, k=draw.randint(1, 14)))
        content, found = read(tmp_path, text)  # nothing else is raised
        assert all(problem[0] == ":" for problem in found)
        refused += content is None
    assert 120 < refused < 560  # the texts are neither all valid nor all invalid


# ------------------------------------------------------------------------------------------------ how much work


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of nodes that the loader has constructed, by file."""
    done: list[int] = []
    dispose = yaml_loader._StrictLoader.dispose

    def count(loader: yaml_loader._StrictLoader) -> None:
        done.append(loader.nodes)
        dispose(loader)

    monkeypatch.setattr(yaml_loader._StrictLoader, "dispose", count)
    return done


@pytest.mark.promise("S5", "S12")
@pytest.mark.parametrize(
    ("text", "words", "most"),
    [
        (
            "jobs:\n" + "".join(f"  j{n}: {{model: a.B, deadline: 9s, target: {{loss: 1}}}}\n" for n in range(10_000)),
            "too many values",
            MAX_VALUES + 1,
        ),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
            "too many values",
            2 * MAX_VALUES,
        ),
        ("[" * 500_000, "nested too deeply", 51),
        ("a: &a 1\nb: [" + "*a," * 300_000 + "]", "too many aliases", 200),
    ],
    ids=["ten thousand jobs", "billions", "bottomless", "aliases"],
)
def test_alias_bombs_are_refused_after_little_work(
    tmp_path: Path, work: list[int], text: str, words: str, most: int
) -> None:
    _, [problem] = read(tmp_path, text)
    assert words in problem
    assert 0 < work[0] <= most


@pytest.mark.promise("S5", "S12")
def test_too_large_files_are_not_parsed(tmp_path: Path, work: list[int]) -> None:
    for endless in (Path("/dev/zero"), tmp_path / "sparse"):
        if not endless.exists():
            with endless.open("wb") as file:
                file.truncate(10 * 2**30)  # a hole: it takes no room
        with pytest.raises(BundleError, match=r"larger than 1,048,576 bytes|it is a device; expected a regular file"):
            load_yaml(endless)
    assert not work


@pytest.mark.promise("S12")
def test_too_many_jobs_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("lightning_core.bundle.bundle_file.read_job", lambda *given: looked.append(given))
    with pytest.raises(BundleError, match="bundle: jobs: must be at most 1000 jobs, got 10000"):
        Bundle.from_dict({"jobs": {f"j{n}": JOB for n in range(10_000)}})
    with pytest.raises(BundleError, match=r"pool.devices: must be a whole number from 1 to 1024, got 1000000000"):
        Bundle.from_dict({"jobs": {}, "pool": {"devices": 10**9}})
    assert not looked
    assert MAX_JOBS == 1000


@pytest.mark.promise("S12")
def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.from_dict({"jobs": {"x" * 10**6: JOB, "a": {**JOB, "y" * 10**6: "z" * 10**6}}})
    assert len(caught.value.problems) == 2
    assert len(str(caught.value)) < 2000


def test_only_the_first_of_many_problems_are_shown() -> None:
    error = BundleError(f"problem {number // 2}" for number in range(24_000))  # no problem is told twice
    assert len(error.problems) == 12_000
    lines = str(error).splitlines()
    assert lines[MAX_PROBLEMS_SHOWN - 1 :] == [f"problem {MAX_PROBLEMS_SHOWN - 1}", "... and 11,900 more problems"]


# ------------------------------------------------------------------------------------------------ no other loader


class Choosy(pl.LightningModule):
    """Has an argument of each kind for which the parser would read a text in a way of its own."""

    def __init__(
        self,
        number: int = 1,
        rate: float = 0.1,
        flag: bool = False,
        numbers: list[int] | None = None,
        table: dict[str, int] | None = None,
        call: Callable[[float], float] | None = None,
        kind: type = int,
        anything: Any = None,
        words: str = "",
        token: str = "",
    ) -> None:
        super().__init__()
        self.given = (number, rate, flag, numbers, table, call, kind, anything, words)


def config(**given: Any) -> dict[str, Any]:
    return {"model": {"class_path": "tests.bundle.test_yaml_loader.Choosy", "init_args": given}}


def problems(given: dict[str, Any], allow: list[str] | None = None) -> list[str]:
    found = Problems(Position("b"))
    check_config(given, found, allow)
    return found.messages


@pytest.fixture
def read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that are read as YAML or JSON by another loader."""
    read: list[str] = []

    def noted(reader: Callable[..., Any]) -> Callable[..., Any]:
        def called(text: Any, *more: Any, **named: Any) -> Any:
            read.append(str(text))
            return reader(text, *more, **named)

        return called

    for name in ("load", "load_all", "compose", "parse", "scan"):  # the others call these
        monkeypatch.setattr(yaml, name, noted(getattr(yaml, name)))
    monkeypatch.setattr(json, "loads", noted(json.loads))
    return read


@pytest.mark.promise("S5", "S6")
@pytest.mark.parametrize(
    "given",
    [
        {"number": "1:30"},
        {"number": "0o17"},
        {"number": "[&a [x, x], *a]"},
        {"number": "!!python/object/apply:os.getpid []"},
        {"rate": "yes"},
        {"flag": "on"},
        {"numbers": "[1, 2]"},
        {"numbers": "more.yaml"},
        {"table": "{a: 1}"},
        {"table": "more.yaml"},
        {"call": "{class_path: tests.bundle.test_yaml_loader.Choosy}"},
    ],
    ids=str,
)
def test_text_values_are_never_parsed_as_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_elsewhere: list[str], given: dict[str, Any]
) -> None:
    (tmp_path / "more.yaml").write_text("[1, 2]" if "numbers" in given else "{a: 1}")
    monkeypatch.chdir(tmp_path)
    assert problems(config(**given))
    with pytest.raises((SystemExit, jsonargparse.ArgumentError)):  # nor by the worker
        build(config(**given), "cpu", tmp_path, pl.Callback())
    assert not read_elsewhere


@pytest.mark.promise("S5")
def test_workers_build_exactly_what_was_read(tmp_path: Path, read_elsewhere: list[str]) -> None:
    given = {
        "number": "7", "rate": "1e-3", "flag": "true", "numbers": [1, 2], "table": {"a": 1},
        "call": "math.sqrt", "anything": "{class_path: subprocess.Popen}", "words": "[1, 2]",
    }  # fmt: skip
    assert problems(config(**given)) == []
    made = build(config(**given), "cpu", tmp_path, pl.Callback())
    expected = (7, 0.001, True, [1, 2], {"a": 1}, math.sqrt, int, "{class_path: subprocess.Popen}", "[1, 2]")
    assert made.model.given == expected
    kept = made.config_dump["model"]["init_args"]
    assert kept == {
        **given, "number": 7, "rate": 0.001, "flag": True, "call": "math.sqrt", "kind": "builtins.int", "token": "",
    }  # fmt: skip
    assert not read_elsewhere


class Remembering(pl.LightningModule):
    """Saves its hyper-parameters, as Lightning's own tutorials have it."""

    def __init__(self, inner: torch.nn.Module, rate: float = 0.1, words: str = "") -> None:
        super().__init__()
        self.save_hyperparameters()


def test_hyperparameters_are_saved_as_they_were_parsed(tmp_path: Path) -> None:
    inner = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 1}}
    given = {"inner": inner, "rate": "1e-3", "words": "[1, 2]"}
    model = {"class_path": "tests.bundle.test_yaml_loader.Remembering", "init_args": given}
    made = build({"model": model}, "cpu", tmp_path, pl.Callback()).model
    assert isinstance(made, Remembering)
    saved = dict(made.hparams)
    assert (saved["rate"], saved["words"]) == (0.001, "[1, 2]")
    assert saved["inner"]["class_path"] == "torch.nn.Linear"
    assert saved["_class_path"] == "tests.bundle.test_yaml_loader.Remembering"


@pytest.mark.promise("S6")
@pytest.mark.parametrize(
    "given",
    [
        {"call": "os.system"},
        {"call": "builtins.eval"},
        {"call": "tests.bundle.test_yaml_loader.random.os.system"},
        {"call": "subprocess.Popen"},
        {"kind": "subprocess.Popen"},
        {"anything": {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "made"]}}},
        {
            "anything": [
                {"class_path": "tests.bundle.test_yaml_loader.random.os.system", "init_args": {"command": "touch made"}}
            ]
        },
    ],
    ids=str,
)
def test_text_values_cannot_name_refused_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = bool(problems(config(**given)))
    try:
        made = build(config(**given), "cpu", tmp_path, pl.Callback())
    except (SystemExit, jsonargparse.ArgumentError):
        made = None
    assert refused or (made is not None and made.model.given[7] == given["anything"])  # a value, and nothing else
    assert not (tmp_path / "made").exists()


@pytest.mark.promise("S6")
def test_allow_import_applies_to_text_values() -> None:
    assert problems(config(call="torch.relu")) == []
    assert problems(config(call="torch.relu"), ["tests", "torch"]) == []
    [problem] = problems(config(call="torch.relu"), ["tests"])
    assert problem.startswith("b: model.init_args.call: 'torch.relu' is not allowed, and not imported; allow_import")
    assert problems(config(), ["mine"])
    assert problems(config(call="json.dumps"))
    assert problems(config(call="json.dumps"), ["tests", "json.dumps"]) == []
    assert problems(config(call="json.dumps"), ["tests", "json.loads"])


def test_the_parser_itself_is_unchanged() -> None:
    """The private functions that the loader uses still exist, and a user's own use of the parser is unchanged."""
    settings, number = dict(_common.parsing_settings), _typehints.basic_json_or_yaml_load  # type: ignore[attr-defined]
    problems(config(number="x"))
    problems(config(), ["mine"])
    assert _common.parsing_settings == settings
    assert _typehints.basic_json_or_yaml_load is number  # type: ignore[attr-defined]
    assert jsonargparse.get_loader(PARSER_MODE) is read_scalar
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--numbers", type=list[int])
    assert parser.parse_args(["--numbers=[1, 2]"]).numbers == [1, 2]


@pytest.mark.promise("S5")
def test_every_file_is_read_by_this_loader(tmp_path: Path, work: list[int]) -> None:
    """Bundles, files of one job, configs that they name, and those that a simulation reads."""
    from lightning_core.simulation.bundle_curves import read_bundle

    (tmp_path / "c.yaml").write_text("model: a.B\n")
    (tmp_path / "b.yaml").write_text("jobs: {a: {config: c.yaml, deadline: 9s, target: {loss: 1}}}\n")
    (tmp_path / "j.yaml").write_text("model: a.B\ndeadline: 9s\ntarget: {loss: 1}\n")
    Bundle.from_file(tmp_path / "b.yaml")
    assert len(work) == 2
    Bundle.from_file(tmp_path / "j.yaml")
    assert len(work) == 3
    with pytest.raises(BundleError):
        read_bundle(tmp_path / "j.yaml", None)
    assert len(work) == 4
