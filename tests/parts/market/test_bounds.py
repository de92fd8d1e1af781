"""Upper bounds of what a market is given."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.core.limits import MAX_ITEMS
from lightning_core.parts.market.cloud_events import EarlierFeedback
from lightning_core.scheduler.settings import Settings
from tests.core.test_limits import CENTURY
from tests.parts.market.market_pool import MARKET


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"interval": 1e-9}, "market interval must be at least 0.01 seconds"),
        ({"interval": 1e10}, f"market interval must be {CENTURY}"),
        ({"value": 1e10}, r"market value must be 1e-09 to 1e\+09"),
        ({"on_demand": 1e-300}, r"market on_demand must be 1e-09 to 1e\+09"),
        ({"trace": "x" * 5000}, "a text must have at most 4,096 characters"),
    ],
)
def test_terms_have_upper_bounds(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(controllers={"market": MARKET | {"terms": terms}})


def test_earlier_feedback_has_an_upper_bound() -> None:
    with pytest.raises(ValueError, match="numbers of earlier feedback must be at most"):
        EarlierFeedback(((0.5,) * MAX_ITEMS,), ((0.5,),))
    EarlierFeedback(((0.5,) * (MAX_ITEMS - 1),), ((0.5,),))
