"""Plays one job on one node, tick by tick, by the rules of the public simulator of "Can't Be Late".

At the beginning of a tick it is seen whether spot nodes are available in this tick, and a spot node that is held is
preempted if they are not. Then the policy says what to hold. A node that was not held before is launched: for the
start-up time it is paid for and does no work, over as many ticks as that takes. Each tick on a node is paid for whole.
Nothing that was done is lost. A job that is not done at its deadline is late, and is finished on demand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from lightning_core.core.arrays import BoolArray

# Price of a V100 spot node on AWS, relative to on-demand.
SPOT_PRICE = 0.9731 / 3.06
# Seconds that do not matter.
EXACT = 1e-6


class Kind(IntEnum):
    """Kind of node that is held."""

    NONE = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A job that needs one node.

    Args:
        work: Seconds on a node.
        deadline: Seconds from its start.
        start_up: Seconds that each launch of a node takes.
        tick: Seconds between two decisions.
        spot_price: Price of a spot node, relative to an on-demand node.

    Raises:
        ValueError: If on-demand nodes alone cannot complete it in time, or a number is out of its range.
    """

    work: float
    deadline: float
    start_up: float
    tick: float
    spot_price: float = SPOT_PRICE

    def __post_init__(self) -> None:
        if not (self.work > 0 and self.tick > 0 and self.start_up >= 0):
            raise ValueError(f"work and tick must be positive and start_up at least 0, got {self}")
        if not 0 < self.spot_price < 1:
            raise ValueError(f"spot_price must be above 0 and below 1, got {self.spot_price}")
        if self.work + self.start_up > self.deadline:
            raise ValueError(f"work and start_up must fit before the deadline, got {self}")

    @property
    def ticks(self) -> int:
        """Ticks that begin before the deadline."""
        return math.ceil(self.deadline / self.tick - EXACT)


@dataclass(frozen=True, slots=True)
class State:
    """State of a job at the beginning of a tick, once it is seen whether spot nodes are available.

    Args:
        job: The job.
        elapsed: Seconds since its start.
        done: Work done, in seconds on a node.
        start_up: Seconds of start-up still to come on the node that is held.
        held: Kind of node that is held; none after a preemption.
        seen: Whether spot nodes were available in each tick of the recording up to this one, those before the job's
            start included, shape ``(ticks,)``.
    """

    job: Job
    elapsed: float
    done: float
    start_up: float
    held: Kind
    seen: BoolArray

    @property
    def spot(self) -> bool:
        """Whether spot nodes are available in this tick."""
        return bool(self.seen[-1])

    @property
    def left(self) -> float:
        """Work left."""
        return self.job.work - self.done

    @property
    def time_left(self) -> float:
        """Seconds to the deadline."""
        return self.job.deadline - self.elapsed

    def even(self, ahead: float = 0.0) -> float:
        """Return the work that is done by so many seconds after now at an even pace to the deadline."""
        return self.job.work * (self.elapsed + ahead) / self.job.deadline


class Policy(Protocol):
    """Decides tick by tick what a job holds. It may have memory; at ``elapsed`` 0 a new job begins."""

    def decide(self, state: State) -> Kind:
        """Return the kind of node to hold in this tick; spot only if it is available."""


@runtime_checkable
class Clairvoyant(Protocol):
    """A policy that is shown the future: a bound on what forecasts can give, not one to use."""

    def reveal(self, coming: BoolArray) -> None:
        """Take in whether spot nodes are available in each tick from the job's start on."""


class Outcome(NamedTuple):
    """What became of a job."""

    cost: float
    """Price paid, in seconds of an on-demand node."""
    end: float
    """Seconds from its start to its completion."""
    on_time: bool
    launches: int
    held: tuple[Kind, ...]
    """Kind of node held in each tick before the deadline."""


def play(policy: Policy, job: Job, available: BoolArray, start: int) -> Outcome:
    """Play a job from a tick of a recording on.

    Args:
        policy: The policy.
        job: The job.
        available: Whether spot nodes are available in each tick of the recording.
        start: Tick at which the job starts.

    Raises:
        ValueError: If the recording ends before the deadline, or the policy wants a spot node where there is none.

    Example::

        >>> import numpy as np
        >>> class Spot:
        ...     def decide(self, state):
        ...         return Kind.SPOT if state.spot else Kind.NONE
        >>> job = Job(work=120.0, deadline=300.0, start_up=20.0, tick=60.0, spot_price=0.25)
        >>> outcome = play(Spot(), job, np.array([True, True, False, True, True]), 0)
        >>> outcome.cost, outcome.end, outcome.launches
        (45.0, 220.0, 2)
    """
    if not 0 <= start <= len(available) - job.ticks:
        raise ValueError(f"start must be 0 to {len(available) - job.ticks} of this recording, got {start}")
    if isinstance(policy, Clairvoyant):
        policy.reveal(available[start : start + job.ticks])
    held, start_up, done, launches = Kind.NONE, 0.0, 0.0, 0
    ticks: list[Kind] = []
    for tick in range(job.ticks):
        if held is Kind.SPOT and not available[start + tick]:
            held, start_up = Kind.NONE, 0.0
        chosen = policy.decide(State(job, tick * job.tick, done, start_up, held, available[: start + tick + 1]))
        if chosen is Kind.SPOT and not available[start + tick]:
            raise ValueError(f"spot nodes are not available in tick {tick}, and {policy!r} wants one")
        if chosen is not held:
            held, start_up = chosen, 0.0 if chosen is Kind.NONE else job.start_up
            launches += chosen is not Kind.NONE
        ticks.append(held)
        if held is Kind.NONE:
            continue
        if start_up + job.work - done <= job.tick + EXACT:
            return _outcome(job, ticks, tick * job.tick + start_up + job.work - done, launches)
        done += max(job.tick - start_up, 0.0)
        start_up = max(start_up - job.tick, 0.0)
    begin = job.ticks * job.tick
    if held is not Kind.ON_DEMAND:
        start_up, launches = job.start_up, launches + 1
    return _outcome(job, ticks, begin + start_up + job.work - done, launches)


def _outcome(job: Job, ticks: Sequence[Kind], end: float, launches: int) -> Outcome:
    after = max(math.ceil((end - EXACT) / job.tick) - len(ticks), 0)  # ticks on demand after the deadline
    paid = ticks.count(Kind.SPOT) * job.spot_price + ticks.count(Kind.ON_DEMAND) + after
    return Outcome(paid * job.tick, end, end <= job.deadline + EXACT, launches, tuple(ticks))


def on_demand_cost(job: Job) -> float:
    """Return the cost of a job on one on-demand node from its start to its end: the unit of all costs."""
    return math.ceil((job.start_up + job.work) / job.tick - EXACT) * job.tick
