"""Each loop that has an adapter keeps what the conformance suite asks, but for what it says it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.testing.loop_conformance import LOOP_CHECKS
from tests.integrations.loops import loops

CASES = [pytest.param(loop, name, id=f"{type(loop).__name__}-{name}") for loop in loops() for name in LOOP_CHECKS]


@pytest.mark.parametrize(("loop", "name"), CASES)
def test_a_loop_keeps_what_the_suite_asks(loop: Any, name: str) -> None:
    if name in loop.cannot:
        pytest.skip(loop.cannot[name])
    LOOP_CHECKS[name](loop)
