"""Fixtures of the tests of callbacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.matrix.forks import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process that has imported all that a training needs, and forks."""
    with Forks() as made:
        yield made
