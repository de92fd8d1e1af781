"""Values of other types than their fields have are refused with what was expected and what came."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest

from lightning_core.core.validation import checked, form_of, loads, made


class Pairs(NamedTuple):
    """Fields of several kinds."""

    one: tuple[str, int] = ("a", 1)
    several: tuple[float, ...] = ()
    either: int | None = None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"one": ("a",)}, r"one: expected array of length 2, got \('a',\)"),
        ({"one": ["a", 1, 2]}, "one: expected array of length 2, got "),
        ({"one": "a"}, "one: expected array, got 'a'"),
        ({"one": [1, 1]}, r"one\[0\]: expected str, got 1"),
        ({"several": [1.0, "b"]}, r"several\[1\]: expected float, got 'b'"),
        ({"several": [1.0, True]}, r"several\[1\]: expected float, got True"),
        ({"several": [1.0, math.nan]}, "several: expected a finite number, got nan"),
        ({"several": [1.0, 2**53 + 1]}, r"several: expected int of at most 2\*\*53, got 9007199254740993"),
        ({"several": [0.0] * 100_001}, "several: expected at most 100,000 values, got 100,001"),
        ({"either": "c"}, r"either: expected int \| null, got 'c'"),
        ({"either": True}, r"either: expected int \| null, got True"),
        ({"either": object()}, "either: expected a JSON value, got <object"),
        ({"eiter": 1}, "unknown field 'eiter'; did you mean 'either'"),
    ],
)
def test_a_value_of_another_type_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked(changed, form_of(Pairs))


def test_values_of_their_types_are_taken() -> None:
    for one in (Pairs(), Pairs(("", 0), (1.0, 2), 3)):
        assert made(Pairs, one._asdict()) == one
        assert checked([["", 0], [1.0, 2], 3], Pairs) == Pairs(("", 0), (1.0, 2.0), 3)
    assert made(Pairs, {"either": -(2**53)}) == Pairs(either=-(2**53))


def test_text_that_is_no_json_is_refused() -> None:
    for text in ("", "{", "NaN", "1e999", "[1,]", '"\\ud800"', b"\xff"):
        with pytest.raises(ValueError, match="invalid JSON: "):
            loads(text)
