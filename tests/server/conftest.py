"""Fixtures of the tests of the server and its clients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.socket_servers import Pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool's server in this process."""
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        made = Pool(tmp_path / "a pool", Path(folder) / "socket")
        yield made
        made.close()
