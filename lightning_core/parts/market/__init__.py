"""The market: the live page of a pool that rents spot and on-demand nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.core.parts import LivePage, Part, later


def rents(about: Mapping[str, Any]) -> bool:
    """Return whether a pool rents its nodes on a market, by its description."""
    settings = about["settings"]
    return bool(settings.get("market")) or "market" in settings["controllers"]


part = Part(pages={"Market": LivePage(later("lightning_core.parts.market.market_page", "draw"), rents)})
"""What ``lightning_core`` registers as the part ``market``."""
