"""Fixtures of the tests of the server and its clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.socket_servers import Pool, socket_pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool's server in this process."""
    with socket_pool(tmp_path / "a pool") as made:
        yield made
