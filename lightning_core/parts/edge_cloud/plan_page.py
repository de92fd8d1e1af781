"""The live page of a pool with a plan: its period, and what it asks of each job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.core.durations import format_duration
from lightning_core.core.parts import Html
from lightning_core.history.pool_scene import PoolScene
from lightning_core.report.part_panels import as_table
from lightning_core.report.svg import escape
from lightning_core.view.text import clean


def draw(scene: PoolScene) -> Html:
    """Return the content of the page."""
    plan: Mapping[str, Any] = scene.about["controllers"]["plan"]
    left = None if plan["next"] is None else format_duration(max(plan["next"] - scene.now, 0.0))
    if plan["period"] is None:
        words = "The plan is over." if left is None else f"The plan begins in {left}."
    else:
        words = f"The plan stands: {clean(plan['period'])}" + (f", for another {left}." if left else ".")
    rows = [
        [clean(name), "held" if hold else f"{clean(location)}, {devices} devices", clean(str(reason))]
        for name, (hold, location, devices, reason) in plan["asked"].items()
    ] + [[clean(name), "no more", clean(why)] for name, why in plan["short"].items()]
    asked = as_table([["job", "planned", "why"], *rows]) if rows else ""
    return Html(f'<section class="panel"><p>{escape(words)}</p>{asked}</section>')
