"""Authenticators of parts: each admits its own users, and one that fails refuses its own and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.parts import Part, later, register, unregister
from lightning_core.parts.owners.tokens import Tokens
from lightning_core.server.access.authenticators import Authenticators
from lightning_core.server.access.people import ALL_RIGHTS, POOL, Person, Right

BOB = Person("bob", frozenset({Right.SEE}))


class OfTests:
    """An authenticator that calls a function with each secret."""

    said: Callable[[str], Any]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def person(self, secret: str) -> Any:
        return type(self).said(secret)


@pytest.fixture
def says() -> Iterator[Callable[[Callable[[str], Any]], None]]:
    """Register an authenticator that says what a function does."""

    def says(function: Callable[[str], Any]) -> None:
        OfTests.said = staticmethod(function)

    register("a_directory", Part(members={"authenticators": {"a_directory": OfTests}}))
    yield says
    unregister("a_directory")


def test_the_users_of_each_authenticator_are_known(tmp_path: Path, says: Any) -> None:
    says({"bob's": BOB}.get)
    ann = Tokens(tmp_path).make("ann", [Right.STEER_OWN])
    known = Authenticators(tmp_path)
    assert known.person("bob's") == BOB
    assert known.person(ann) == Person("ann", frozenset({Right.STEER_OWN}))
    assert known.person("another") is None


@pytest.mark.parametrize(
    "said",
    [
        lambda secret: 1 / 0,
        lambda secret: "root",
        lambda secret: True,
        lambda secret: ("root", ALL_RIGHTS),
        lambda secret: POOL,
        lambda secret: Person("a\nb", ALL_RIGHTS),
        lambda secret: Person("root", frozenset({"everything"})),  # type: ignore[arg-type]
        lambda secret: Person("root", None),  # type: ignore[arg-type]
    ],
)
def test_one_that_fails_refuses_its_users_and_no_others(tmp_path: Path, says: Any, said: Any) -> None:
    says(said)
    ann = Tokens(tmp_path).make("ann", [Right.SEE])
    known = Authenticators(tmp_path)
    assert known.person("any") is None
    assert known.person(ann) == Person("ann", frozenset({Right.SEE}))


@pytest.mark.parametrize("broken", [lambda folder: 1 / 0, later("no_such_module", "Any"), later("os", "Any")])
def test_one_that_cannot_be_made_is_left_out(tmp_path: Path, broken: Any) -> None:
    register("broken", Part(members={"authenticators": {"broken": broken}}))
    try:
        assert Authenticators(tmp_path).person("any") is None
    finally:
        unregister("broken")
