"""The budget controller: no nodes are requested beyond it, and jobs that need them go without."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_core.core.control import Allowance
from lightning_core.core.events import Event
from lightning_core.core.limits import MAX_FACTOR, check_at_most, shown
from lightning_core.core.pool_view import PoolView
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import Stateful


class Budget(Stateful):
    """Limits what the market may spend, over all jobs and all time.

    Expenses are those of the market's ledger, and an interval is paid for before it begins. So the last interval costs
    no more than the remaining budget, and if it covers only one of two jobs, the more urgent one gets it.

    Args:
        money: Money in the unit of the prices, positive.

    Raises:
        ValueError: If it is not.

    Example::

        >>> Budget(0)
        Traceback (most recent call last):
        ...
        ValueError: money must be positive and finite, got 0
    """

    STATE = ("_said",)

    def __init__(self, money: float) -> None:
        if isinstance(money, bool) or not isinstance(money, int | float) or not 0 < money < math.inf:
            raise ValueError(f"money must be positive and finite, got {shown(money)}")
        check_at_most("money", money, MAX_FACTOR)
        self._money = float(money)
        self._said = False

    def handle(self, event: Event, now: float, pool: PoolView) -> Sequence[Allowance]:
        said, self._said = self._said, True
        return [] if said else [Allowance(self._money, Reason("budget", (self._money,)))]

    def wakeup(self) -> float | None:
        return None
