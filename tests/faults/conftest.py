"""Hooks of all tests of faults."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They mark themselves."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("faults")
