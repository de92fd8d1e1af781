"""Specs: names with arguments as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import pytest

from lightning_core.core.specs import Family, parse_spec


class Part:
    def __init__(
        self, size: int = 2, share: float | None = 0.5, mode: Literal["calm", "wild"] = "calm", *,
        keeps: bool = False, others: Sequence[int] = (),
    ) -> None:  # fmt: skip
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.told = size, share, mode, keeps


FAMILY = Family("thing", {"part": Part, "plain": object})


def test_arguments_arrive_as_what_they_are() -> None:
    assert FAMILY.make("part").told == (2, 0.5, "calm", False)  # type: ignore[attr-defined]
    assert FAMILY.make("part:size=3,share=1,mode=wild,keeps=true").told == (3, 1, "wild", True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["a", "a:b=1", "a:b=1,c=2.5,d=true,e=false,f=x-y"])
def test_a_spec_is_its_text(text: str) -> None:
    assert str(parse_spec(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parts", "thing must be one of part, plain, got 'parts'; did you mean 'part'?"),
        ("", "thing must be one of part, plain, got ''"),
        ("part:size", "thing must be NAME or NAME:KEY=VALUE,..., got 'part:size'"),
        ("part:size=", "thing must be NAME or NAME:KEY=VALUE,..., got 'part:size='"),
        ("part:size=1,size=2", "thing part: argument 'size' must be given once, got 'part:size=1,size=2'"),
        ("part:sizes=1", "thing part: unknown argument 'sizes'; did you mean 'size'?"),
        ("plain:size=1", "thing plain: unknown argument 'size'; it takes none"),
        ("part:size=1.5", "thing part: size: expected int, got 1.5"),
        ("part:size=true", "thing part: size: expected int, got True"),
        ("part:size=0", "size must be at least 1, got 0"),
        ("part:share=nan", "thing part: share: expected a finite number, got nan"),
        ("part:mode=mild", "thing part: mode: expected one of calm, wild, got 'mild'"),
        ("part:keeps=1", "thing part: keeps: expected bool, got 1"),
        ("part:others=1", "thing part: others: it cannot be given as text"),
    ],
)
def test_what_is_wrong_is_said_with_what_there_is(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        FAMILY.make(text)
    assert str(caught.value) == words
