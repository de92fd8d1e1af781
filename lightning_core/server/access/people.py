"""Users and their rights on the jobs of a pool."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from lightning_core.core.names import check_person, did_you_mean
from lightning_core.core.protocols import AccessRefusedError
from lightning_core.core.validation import checked


class Right(StrEnum):
    """A right beyond seeing one's own jobs."""

    SEE = "see"
    """See the jobs of all."""
    SUBMIT = "submit"
    """Submit jobs. A bundle is code that runs as the pool's account."""
    STEER_OWN = "steer-own"
    """Change their own jobs: deadline, devices, pause, cancel, ..."""
    STEER_ALL = "steer-all"
    """See and change the jobs of all, and the plan of the pool."""


class Person(NamedTuple):
    """A user and their rights.

    Example::

        >>> ann = Person("ann", frozenset({Right.STEER_OWN}))
        >>> ann.sees("ann"), ann.sees("bob"), ann.steers("ann"), ann.steers("bob")
        (True, False, True, False)
    """

    name: str
    """Name of the account, or of the token; empty for the pool itself."""
    rights: frozenset[Right]

    def may(self, right: Right) -> bool:
        """Return whether the user has a right; a user who may steer all jobs may see them and steer their own."""
        implied = right in (Right.SEE, Right.STEER_OWN) and Right.STEER_ALL in self.rights
        return implied or right in self.rights

    def sees(self, owner: str) -> bool:
        """Return whether the person may see the jobs of an owner; empty for a job of unknown owner."""
        return owner == self.name or self.may(Right.SEE)

    def steers(self, owner: str) -> bool:
        """Return whether the person may change the jobs of an owner."""
        return self.may(Right.STEER_ALL) or (owner == self.name and self.may(Right.STEER_OWN))

    def check(self, right: Right) -> None:
        """Check that the person has a right.

        Raises:
            AccessRefusedError: If not; the message names the right.
        """
        if not self.may(right):
            raise AccessRefusedError(f"{self.name} needs the right {right}, and has {self.words}")

    @property
    def words(self) -> str:
        """The rights as text."""
        return ", ".join(right for right in Right if right in self.rights) or "none"

    def to_dict(self) -> dict[str, Any]:
        """Return the person as JSON values."""
        return {"name": self.name, "rights": [right for right in Right if right in self.rights]}


ALL_RIGHTS = frozenset(Right)
POOL = Person("", ALL_RIGHTS)
"""The pool itself: its manager, its workers, and everything else that has joined its Ray."""


def person_from_dict(body: Any) -> Person:
    """Return the person that :meth:`Person.to_dict` wrote.

    Raises:
        ValueError: If the name is not valid for a person, or a right is unknown.
        KeyError: If the name or the rights are missing.
    """
    name = check_person(checked(body, dict)["name"])
    return Person(name, rights_of(checked(body["rights"], list[str])))


def rights_of(words: Iterable[str]) -> frozenset[Right]:
    """Return the rights that are named.

    Raises:
        ValueError: If there is no such right.

    Example::

        >>> sorted(rights_of("see,submit".split(",")))
        [<Right.SEE: 'see'>, <Right.SUBMIT: 'submit'>]
        >>> rights_of(["stear-own"])
        Traceback (most recent call last):
        ...
        ValueError: unknown right 'stear-own'; did you mean 'steer-own'?
    """
    known = set(map(str, Right))
    words = [word.strip() for word in words]
    if wrong := [word for word in words if word not in known]:
        raise ValueError(f"unknown right {wrong[0][:60]!r}{did_you_mean(wrong[0], known)}")
    return frozenset(map(Right, words))
