"""The cloud of a pool in a line: existing and requested nodes, the reason, and the money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.core.parts import Figure
from lightning_core.view.text import clean


def cloud_line(cloud: Mapping[str, Any]) -> str:
    """Return the line about a pool's cloud.

    Args:
        cloud: Result of :meth:`.MarketController.describe`.

    Example::

        >>> nodes = {"spot": 2, "on_demand": 0, "wanted_spot": 2, "wanted_on_demand": 1}
        >>> cloud_line(nodes | {"reason": "the plans of 2 jobs", "spent": 3.5, "money": 16.5, "trouble": {}})
        'market: 2 spot and 0 on-demand nodes, of 2 and 1 wanted (the plans of 2 jobs); 3.5 spent, 16.5 left'

    With several zones, it names those of the existing and the requested nodes.
    """
    seen_in, wanted_in = _in_words(cloud, "seen_in"), _in_words(cloud, "wanted_in")
    there = f"{cloud['spot']} spot and {cloud['on_demand']} on-demand nodes{seen_in}"
    wanted = f"of {cloud['wanted_spot']} and {cloud['wanted_on_demand']} wanted{wanted_in} ({cloud['reason']})"
    left = "" if cloud["money"] is None else f", {cloud['money']:.4g} left"
    trouble = f"; {trouble_line(cloud)}" if cloud["trouble"] else ""
    return f"market: {there}, {wanted}; {cloud['spent']:.4g} spent{left}{trouble}"


def _in_words(cloud: Mapping[str, Any], where: str) -> str:
    """Return where nodes are, if that is known."""
    places = cloud.get(where)
    return f" in {clean(', '.join(places))}" if places else ""


def trouble_line(cloud: Mapping[str, Any]) -> str:
    """Return the problems of nodes, quotes and controllers.

    Example::

        >>> trouble_line({"trouble": {"quotes": "now.sh: exit code 7"}})
        'quotes: now.sh: exit code 7'
    """
    return "; ".join(f"{part}: {clean(words)}" for part, words in cloud["trouble"].items())


def figures(cloud: Mapping[str, Any]) -> list[Figure]:
    """Return the numbers of a pool's cloud for monitoring."""
    there = {"spot": cloud["spot"], "on-demand": cloud["on_demand"]}
    wanted = {"spot": cloud["wanted_spot"], "on-demand": cloud["wanted_on_demand"]}
    spent = cloud["spent"]
    found = [
        Figure("nodes", "Rented nodes that are up.", there, "kind"),
        Figure("nodes_wanted", "Nodes that are wanted on the market.", wanted, "kind"),
        Figure("spent", "Money that was spent on the market, in the unit of its prices.", spent, counts=True),
        Figure("cloud_trouble", "Parts of the cloud that are in trouble.", len(cloud["trouble"])),
    ]
    if cloud["money"] is not None:
        found.append(Figure("budget", "Money that may be spent in all.", spent + cloud["money"]))
    return found
