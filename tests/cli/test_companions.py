"""What parts bring to stand beside a pool: `up` starts it, and `down` ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cli.main import main
from lightning_core.core.parts import Companion, Part, register, unregister


def number(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"--lamp must be a number, got {text!r}")
    return int(text)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls of a companion, and of a pool that is none."""
    made: list[Any] = []

    def start(folder: Path, value: int) -> str:
        made.append(("start", folder, value))
        if value == 0:
            raise RuntimeError("no light")
        return f"lamp {value} is lit"

    def end(folder: Path) -> None:
        made.append(("end", folder))
        raise RuntimeError("it is stuck")

    def up(folder: Path, *_: Any, **__: Any) -> dict[str, str]:
        made.append(("up", folder))
        return {"token": "", "address": "here"}

    monkeypatch.setattr("lightning_core.cluster.head.up", up)
    monkeypatch.setattr("lightning_core.cluster.head.down", lambda folder, *, now: made.append(("down", folder)))
    register("light", Part(companions={"lamp": Companion(start, end, number, "7", "light a lamp", "N")}))
    yield made
    unregister("light")


@pytest.mark.parametrize(("words", "value"), [(["--lamp"], 7), (["--lamp", "3"], 3), (["--lamp=4"], 4)])
def test_up_starts_it_once_the_pool_is_up(
    words: list[str], value: int, calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--folder", str(tmp_path), "--devices", "1", *words]) == 0
    assert calls == [("up", tmp_path), ("start", tmp_path, value)]
    assert f"lamp {value} is lit" in capsys.readouterr().out


def test_without_its_option_it_is_not_started(calls: list[Any], tmp_path: Path) -> None:
    assert main(["up", "--folder", str(tmp_path), "--devices", "1"]) == 0
    assert calls == [("up", tmp_path)]


def test_a_wrong_value_starts_nothing(calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--folder", str(tmp_path), "--lamp", "bright"]) == 2
    assert calls == []
    assert "--lamp must be a number, got 'bright'" in capsys.readouterr().err


def test_one_that_does_not_start_leaves_the_pool_up(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--folder", str(tmp_path), "--devices", "1", "--lamp", "0"]) == 0
    assert "no light; the pool is up all the same" in capsys.readouterr().err


def test_down_ends_it_and_the_pool_though_it_is_stuck(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["down", "--folder", str(tmp_path)]) == 0
    assert calls == [("end", tmp_path), ("down", tmp_path)]
    assert "lamp did not end: it is stuck" in capsys.readouterr().err


def test_the_option_is_in_the_help_of_up(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    said = capsys.readouterr().out
    assert "--lamp [N]" in said
    assert "light a lamp" in said


def test_an_option_that_up_has_leaves_the_other_parts_in_place(
    calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register("clash", Part(companions={"devices": Companion(lambda *_: "", lambda _: None)}))
    try:
        assert main(["up", "--folder", str(tmp_path), "--devices", "1", "--lamp"]) == 0
    finally:
        unregister("clash")
    assert ("start", tmp_path, 7) in calls
    assert "are left out" in capsys.readouterr().err
