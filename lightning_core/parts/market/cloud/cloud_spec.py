"""Configuration of a pool's provisioner: the source of nodes, the source of quotes, and the lease."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lightning_core.parts.market.cloud import parse_provision
from lightning_core.parts.market.cloud.lease import lease_seconds
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import owner_only, read_own

FILE, MAX_FILE_BYTES = "cloud.json", 2**20
# Nodes that are processes of this machine.
SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class CloudSpec:
    """The cloud of a pool.

    Args:
        pool: Name of the pool, the label of its nodes.
        resource: Resource of a device, ``"GPU"`` or ``"device"``.
        provision: Source of nodes: :data:`SIMULATED`, or a text for
            :func:`~lightning_core.parts.market.cloud.parse_provision`.
        interval: Seconds of an interval of the market.
        terms: Arguments of :class:`~lightning_core.parts.market.market_terms.MarketTerms`; None if a command quotes.
        quotes: Command that prints quotes; None for a recorded market.
        notice: Seconds from a preemption notice to the end of a simulated node; 0 for no notice.
        leave: Seconds that a job has to leave a node which is returned.
        lease: Seconds without an answer of the pool after which its nodes are returned; None for the longer of two
            minutes and a quarter of an interval.

    Raises:
        ValueError: If they do not go together, or one is out of its range.
    """

    pool: str
    resource: str
    provision: str
    interval: float
    terms: dict[str, Any] | None = None
    quotes: str | None = None
    notice: float = 10.0
    leave: float = 10.0
    lease: float | None = None

    def __post_init__(self) -> None:
        if (self.terms is None) == (self.quotes is None):
            raise ValueError("a market is either recorded or quoted by a command")
        for name in ("notice", "leave"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 seconds and finite, got {getattr(self, name)}")
        if not 0 < self.lease_seconds < math.inf:
            raise ValueError(f"lease must be positive and finite, got {self.lease}")
        if self.terms is not None:
            MarketTerms(**self.terms)
        if self.provision != SIMULATED:
            parse_provision(self.provision)

    @classmethod
    def of(cls, settings: Settings, commands: Mapping[str, str], pool: str, kind: str, *, simulated: bool) -> Self:
        """Return the cloud of a pool.

        Args:
            settings: Settings of the pool, with its market.
            commands: ``quotes`` and ``provision`` of the market, each if it is given.
            pool: Name of the pool.
            kind: Kind of its devices.
            simulated: Whether its nodes are processes of this machine.
        """
        terms = terms_of(settings)
        assert terms is not None  # else it has no cloud
        provision = SIMULATED if simulated else commands.get("provision", "autoscaler")
        recorded = None if terms.quoted else dict(settings.controllers["market"]["terms"])
        resource = "GPU" if kind == "gpu" else "device"
        return cls(pool, resource, provision, terms.seconds, recorded, commands.get("quotes"))

    @property
    def lease_seconds(self) -> float:
        """Seconds that a lease lasts."""
        return lease_seconds(self.interval) if self.lease is None else self.lease

    def save(self, folder: Path) -> None:
        """Write it into the pool's folder, readable by its user alone: a command may contain a key."""
        with owner_only():
            write_whole(folder / FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the configuration that :meth:`save` wrote.

        Raises:
            OSError: If there is no such file of this user.
            ValueError: If it is damaged.
        """
        try:
            return cls(**json.loads(read_own(folder, FILE, MAX_FILE_BYTES)))
        except TypeError as error:
            raise ValueError(f"{folder / FILE}: is not the cloud of a pool ({error})") from None
