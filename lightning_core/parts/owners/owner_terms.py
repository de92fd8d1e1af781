"""Terms of an owner of jobs in a pool: a weight, a quota, a cap and a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_core.core.limits import MAX_DEVICES, MAX_FACTOR, check_at_most, check_factor, check_seconds, shown
from lightning_core.core.names import check_person

OTHERS = "*"
"""Key of the terms of each owner that has none of its own."""
MAX_OWNERS = 1000
"""Owners with terms of their own."""
MIN_PER = 3600.0
"""Minimum seconds of a budget's period."""


@dataclass(frozen=True, slots=True)
class OwnerTerms:
    """What one owner may have of a pool.

    Args:
        weight: Part of the pool that its jobs get beside those of others, relative to the others' weights.
        devices: Quota: as many devices are its own whenever it has jobs that can use them.
        max_devices: Cap: maximum number of devices, with those that it borrows; None for no cap.
        device_hours: Budget in hours on one device, counted by shares; None for no limit. Once it is spent, its jobs
            have only the devices that no other owner can use.
        per: Seconds after which the budget is renewed, in scheduler time from 0 on; None for never.

    Raises:
        ValueError: If a number is out of its range.
    """

    weight: float = 1.0
    devices: int = 0
    max_devices: int | None = None
    device_hours: float | None = None
    per: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be positive and finite, got {self.weight}")
        check_factor("weight", self.weight)
        if self.devices < 0:
            raise ValueError(f"devices must be at least 0, got {self.devices}")
        check_at_most("devices", self.devices, MAX_DEVICES)
        if self.max_devices is not None and self.max_devices < max(self.devices, 1):
            raise ValueError(
                f"max_devices must be at least 1 and at least the quota of {self.devices} devices, "
                f"got {self.max_devices}"
            )
        check_at_most("max_devices", self.max_devices, MAX_DEVICES)
        if self.device_hours is not None and not self.device_hours >= 0:
            raise ValueError(f"device_hours must be at least 0, got {self.device_hours}")
        check_at_most("device_hours", self.device_hours, MAX_FACTOR)
        if self.per is not None and self.device_hours is None:
            raise ValueError(f"per is the period of device_hours, which are missing, got {self.per}")
        check_seconds("per", self.per, MIN_PER)

    @property
    def cap(self) -> float:
        """Maximum number of devices; inf for no cap."""
        return math.inf if self.max_devices is None else float(self.max_devices)


def owner_terms(owners: Mapping[str, Mapping[str, Any]]) -> dict[str, OwnerTerms]:
    """Return the terms of each owner that is named, and of all others under :data:`OTHERS`.

    Args:
        owners: Arguments of :class:`OwnerTerms` by the name of the owner.

    Raises:
        ValueError: If a name or an argument is wrong.
    """
    terms = {}
    for name, given in owners.items():
        if name != OTHERS:
            check_person(name)
        try:
            terms[name] = OwnerTerms(**given)
        except (TypeError, ValueError) as error:
            raise ValueError(f"owner {shown(name)}: {error}") from None
    if OTHERS in terms and terms[OTHERS].devices:
        raise ValueError(f"owner '*' must have no quota, got {terms[OTHERS].devices} devices: others may be any number")
    return terms


def check_quotas(terms: Mapping[str, OwnerTerms], devices: int) -> None:
    """Check that the quotas of all owners are at most what a pool has; a ValueError says if they are not.

    Args:
        terms: Terms by the name of the owner.
        devices: Devices of the pool.
    """
    if (total := sum(one.devices for one in terms.values())) > devices:
        raise ValueError(f"the quotas of all owners must be at most the pool's {devices} devices, got {total}")
