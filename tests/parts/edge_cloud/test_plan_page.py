"""The live page of a pool with a plan."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_core.history.history import History
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.edge_cloud import part
from lightning_core.parts.edge_cloud.plan_page import draw
from lightning_core.scheduler.settings import Settings

PLAN = {
    "period": "night",
    "next": 3600.0,
    "asked": {"vit": [False, "edge", 2, "<i>as planned"], "lm": [True, "", 0, "held until the day"]},
    "short": {"gru": "no room"},
}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PLAN, "The plan stands: night, for another 50m."),
        (PLAN | {"next": None}, "The plan stands: night."),
        (PLAN | {"period": None}, "The plan begins in 50m."),
        (PLAN | {"period": None, "next": None}, "The plan is over."),
    ],
)
def test_the_page_says_what_the_plan_asks_of_each_job(plan: dict[str, Any], words: str) -> None:
    about = {"controllers": {"plan": plan}}
    html = draw(PoolScene(History(Settings()), 600.0, about, [], 900))
    assert words in html
    assert "edge, 2 devices" in html
    assert "held until the day" in html
    assert "no room" in html
    assert "<i>" not in html


def test_pools_that_hold_to_a_plan_alone_have_the_page() -> None:
    fits = part.pages["Plan"].fits
    assert fits({"controllers": {"plan": PLAN}})
    assert not fits({"controllers": {"plan": None}})
    assert not fits({"controllers": {}})
