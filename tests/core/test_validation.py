"""Values of other types than their fields have are refused with what was expected and what came."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from lightning_core.core.validation import checked


class Pairs(NamedTuple):
    """Fields of several kinds."""

    one: tuple[str, int] = ("a", 1)
    several: tuple[float, ...] = ()
    either: int | None = None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"one": ("a",)}, r"one: expected tuple\[str, int\], got \('a',\)"),
        ({"one": ("a", 1, 2)}, r"one: expected tuple\[str, int\], got "),
        ({"one": ["a", 1]}, r"one: expected tuple\[str, int\], got "),
        ({"one": (1, "a")}, "one: expected .*, got 1"),
        ({"several": [1.0]}, r"several: expected tuple\[float, ...\], got "),
        ({"several": (1.0, "b")}, "several: expected .*, got 'b'"),
        ({"either": "c"}, "either: expected .*, got 'c'"),
    ],
)
def test_a_value_of_another_type_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked(Pairs(**changed), Pairs)


def test_values_of_their_types_are_taken() -> None:
    for made in (Pairs(), Pairs(("", 0), (1.0, 2), 3)):
        assert checked(made, Pairs) is made
