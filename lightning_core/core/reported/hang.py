"""A step of a training that hangs, as it is reported."""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.reasons import Reason


class Hang(NamedTuple):
    """A step of a training that takes far longer than any before it, while the rest of its process answers."""

    seconds: float
    """Seconds that it had taken when that was noticed."""
    longest: float = 0.0
    """Seconds that the longest one of its kind had taken; 0 if it is the first."""

    @property
    def reason(self) -> Reason:
        """The hang as a reason."""
        return Reason("hung", (self.seconds, self.longest)) if self.longest else Reason("hung_first", (self.seconds,))
