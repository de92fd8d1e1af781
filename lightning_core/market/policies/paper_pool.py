"""The paper's pool of policies, and the number of policies of a pool that differ."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.market.ledger import Ledger
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.policies import Ahanp, Ahap
from lightning_core.market.policies.ahap import Mode
from lightning_core.market.programs.window_planner import WindowPlanner

SIGMAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MAX_OMEGA = 5


def paper_pool(mode: Mode = "default") -> dict[str, SpotPolicy]:
    """Return 105 of :class:`Ahap`, by window, commitment and price, and 7 of :class:`Ahanp`, by name.

    They share the tables of one planner, so they must be backtested together or one after another, not concurrently.

    Args:
        mode: ``"paper"`` for the algorithms as printed.
    """
    planner = WindowPlanner("literal" if mode == "paper" else "target")
    pool: dict[str, SpotPolicy] = {
        f"ahap-{omega}-{commitment}-{sigma}": Ahap(omega, commitment, sigma, mode=mode, planner=planner)
        for omega in range(1, MAX_OMEGA + 1)
        for commitment in range(1, omega + 1)
        for sigma in SIGMAS
    }
    return pool | {f"ahanp-{sigma}": Ahanp(sigma, mode) for sigma in SIGMAS}


def distinct(ledgers: Sequence[Ledger]) -> int:
    """Return the number of different decisions among the policies that left these ledgers."""
    return len({(ledger.spot.tobytes(), ledger.on_demand.tobytes()) for ledger in ledgers})
