"""Device time of each owner over time: that of its budget, and its lag behind the fair share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray
from lightning_core.core.saved_state import Stateful
from lightning_core.parts.owners.owner_terms import OwnerTerms

# Turns by which an owner can lag, or be ahead, at most: what was long ago does not count.
MAX_TURNS = 10.0


class DeviceTime(Stateful):
    """Device time by owner: shares and devices are constant between two rounds, so that it is exact.

    Args:
        turn: Seconds of a turn.

    Attributes:
        names: Names of the owners, in the order in which they came; the arrays have one entry for each.
        held: Devices that each holds since the last round, counted by shares.
        share: Fair share of each in devices since then.
        owed: Device-seconds by which each lags behind its share; 0 while it has no use for one.
        used: Device-seconds of each in this period of its budget.
        at: Scheduler time of the last round.
    """

    STATE = ("names", "held", "share", "owed", "used", "at")

    def __init__(self, turn: float) -> None:
        self.turn = turn
        self.names: list[str] = []
        self.held: FloatArray = np.zeros(0)
        self.share: FloatArray = np.zeros(0)
        self.owed: FloatArray = np.zeros(0)
        self.used: FloatArray = np.zeros(0)
        self.at = 0.0

    def add(self, name: str) -> None:
        """Add an owner that has had nothing."""
        self.names.append(name)
        for column in ("held", "share", "owed", "used"):
            setattr(self, column, np.append(getattr(self, column), 0.0))

    def advance(self, terms: Sequence[OwnerTerms], now: float) -> None:
        """Count the time since the last round.

        Args:
            terms: Terms of each owner.
            now: Scheduler time of this round.
        """
        self.used, owed = self.used_until(terms, now), self.owed + (self.share - self.held) * (now - self.at)
        most = MAX_TURNS * self.turn
        self.owed = np.where(self.share > 0, np.clip(owed, -most, most), 0.0)
        self.at = now

    def used_until(self, terms: Sequence[OwnerTerms], now: float) -> FloatArray:
        """Return the device-seconds that each has used of its budget until a time after the last round."""
        begun: FloatArray = np.array([0.0 if one.per is None else now // one.per * one.per for one in terms])
        before = np.where(begun > self.at, 0.0, self.used)
        used: FloatArray = before + self.held * (now - np.maximum(self.at, begun))
        return used

    def lags(self) -> FloatArray:
        """Return how far each lags, as turns are given: an owner with one keeps it until another lags by a turn."""
        has_turn: BoolArray = self.held > np.floor(self.share + 1e-9) + 1e-9
        lags: FloatArray = self.owed + np.where(has_turn, self.turn / 2, 0.0)
        return lags
