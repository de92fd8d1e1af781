"""Nodes that a pool rents on a market, as a bundle or the file of a pool asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.parts.market.cloud.cloud_spec import CloudSpec
from lightning_core.parts.market.cloud.provisioner_actor import start_provisioner


@dataclass(frozen=True, slots=True)
class RentedNodes:
    """A :class:`~lightning_core.core.supplies.NodeSource`.

    Args:
        spec: Configuration of the provisioner that brings the nodes.
    """

    spec: CloudSpec

    def start(self, pool: str, scheduler: str, folder: Path) -> Any:
        """Start the provisioner of a pool, or find it.

        Args:
            pool: Name of the pool.
            scheduler: Name of its scheduler's actor.
            folder: Its folder.
        """
        self.spec.save(folder)
        return start_provisioner(pool, scheduler, folder)
