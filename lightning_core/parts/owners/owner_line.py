"""What monitoring shows of the owners of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.core.durations import format_duration
from lightning_core.core.parts import Figure
from lightning_core.view.text import clean

HOUR = 3600.0
# Owners that have figures.
MAX_FIGURES = 50


def owner_line(owner: Mapping[str, Any]) -> str:
    """Return the shares of an owner of jobs, in one line.

    Example::

        >>> ann = {"owner": "ann", "jobs": 3, "held": 3.0, "quota": 2, "borrowed": 1.0}
        >>> owner_line(ann | {"device_hours": 12.25, "budget": 100.0, "per": 604800.0})
        'ann: 3 devices (quota 2, 1 borrowed) for 3 jobs, 12.2 of 100 device-hours in 7d'
        >>> owner_line(ann | {"owner": "", "quota": 0, "device_hours": 0.5, "budget": None, "per": None})
        'owner unknown: 3 devices for 3 jobs, 0.5 device-hours'
    """
    quota = f" (quota {owner['quota']}, {owner['borrowed']:.3g} borrowed)" if owner["quota"] else ""
    of = "" if owner["budget"] is None else f" of {owner['budget']:.4g}"
    period = "" if owner["per"] is None else f" in {format_duration(owner['per'])}"
    return (
        f"{clean(owner['owner']) or 'owner unknown'}: {owner['held']:.3g} devices{quota} for {owner['jobs']} jobs, "
        f"{owner['device_hours']:.3g}{of} device-hours{period}"
    )


def figures(owners: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Return quotas, budgets and the time that is used of these, by owner."""
    terms = {one["owner"]: one for one in owners[:MAX_FIGURES]}
    used = {owner: HOUR * one["device_hours"] for owner, one in terms.items()}
    budgets = {owner: HOUR * one["budget"] for owner, one in terms.items() if one["budget"] is not None}
    return [
        Figure("owner_quota_devices", "Devices guaranteed to an owner.",
               {owner: one["quota"] for owner, one in terms.items()}, "owner"),
        Figure("owner_used_device_seconds", "Time on one device that an owner has used.", used, "owner"),
        Figure("owner_budget_device_seconds", "Time on one device that an owner may use.", budgets, "owner"),
    ]  # fmt: skip
