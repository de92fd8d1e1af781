"""Events as lines of JSON: what they leave out, and what they never hold."""

from __future__ import annotations

import math

import pytest

from lightning_core.core.codec import encode_event
from lightning_core.core.events import Report


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_a_line_of_json_has_no_number_that_json_does_not_know(seconds: float) -> None:
    with pytest.raises(ValueError, match="busy: expected a finite number, got "):
        encode_event(Report("a", 1, 1, 1, 10, seconds))
