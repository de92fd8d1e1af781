"""A time without quotes is a number to YAML: it is refused where a library that reads YAML passes it on."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from lightning_core.core.durations import _in_base_60, refuse_base_60


class Timed:
    def __init__(self, deadline: object) -> None:
        refuse_base_60(self, deadline=deadline)


class OfAUser(Timed):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)


def reader(name: str) -> Callable[[type[Timed], object], Timed]:
    """Return the function of a library that constructs objects."""
    module = types.ModuleType(name)
    exec("def construct(kind, value):\n    return kind(value)\n", module.__dict__)
    construct: Callable[[type[Timed], object], Timed] = module.__dict__["construct"]
    return construct


@pytest.mark.parametrize("name", ["jsonargparse._common", "hydra._internal.instantiate", "omegaconf"])
@pytest.mark.parametrize("kind", [Timed, OfAUser])
@pytest.mark.parametrize("text", ["18:00", "1:30", "1:30:00", "23:59", "100:00:00", "1:30.5"])
def test_a_time_that_yaml_reads_in_base_60_is_refused(name: str, kind: type[Timed], text: str) -> None:
    value = yaml.safe_load(text)
    assert isinstance(value, int | float)
    with pytest.raises(ValueError, match=f"deadline: YAML reads .* as {value:g} .*give a unit, {value:g}s"):
        reader(name)(kind, value)
    assert yaml.safe_load(_in_base_60(value)) == value


@pytest.mark.parametrize("value", ["18:00", "1h", None, 59, 2.5, False, True])
def test_what_base_60_cannot_make_is_accepted(value: object) -> None:
    reader("jsonargparse")(OfAUser, value)


def test_a_number_of_seconds_in_a_script_is_one() -> None:
    for kind in (Timed, OfAUser):
        kind(1080)
    reader("jsonargparse_of_a_user")(Timed, 1080)


def test_a_script_that_such_a_library_calls_says_what_it_means() -> None:
    def main(value: object) -> Timed:
        return Timed(1080)

    reader("jsonargparse")(main, 5)  # type: ignore[arg-type]
