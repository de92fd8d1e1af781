"""A step of a training that hangs, as it is reported."""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.reasons import Reason


class Hang(NamedTuple):
    """A step that takes far longer than any before it while its process answers; or ranks that have parted."""

    seconds: float
    """Seconds that it had taken when that was noticed."""
    longest: float = 0.0
    """Seconds that the longest one of its kind had taken; 0 if it is the first."""
    ranks: int = 1
    """Ranks that wait for each other; 1 if it is a step of one of them."""

    @property
    def reason(self) -> Reason:
        """The hang as a reason."""
        if self.ranks > 1:
            return Reason("ranks_wait", (self.seconds, self.ranks))
        return Reason("hung", (self.seconds, self.longest)) if self.longest else Reason("hung_first", (self.seconds,))
