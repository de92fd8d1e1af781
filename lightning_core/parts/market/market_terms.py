"""The market of a pool: where prices come from, and which policies the selector chooses from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.limits import (
    MAX_FACTOR,
    MAX_SEED,
    check_at_most,
    check_factor,
    check_length,
    check_seconds,
)
from lightning_core.parts.market.cloud_events import MAX_RECORDED
from lightning_core.parts.market.feedback_file import Rows, read_feedback
from lightning_core.parts.market.forecasters import check_live, knows_future
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.paper_pool import make_pool, pool_of
from lightning_core.parts.market.traces import INTERVAL, read_trace, shipped_trace

# Minimum seconds of an interval: plans have one entry for each interval up to a deadline.
MIN_INTERVAL = 0.01
# Characters of a path, and number of policies.
MAX_PATH, MAX_POLICIES = 4096, 1000
# Policies that differ as much as possible: planning ahead, waiting, even pace, no forecast, no spot nodes.
DEFAULT_POLICIES = ("semi-markov", "ahap", "max-spot", "uniform-progress", "ahanp", "on-demand")

Step = Literal["adaptive", "paper"]
"""How far a job's feedback moves the weights of the policies."""
FirstJob = Literal["listed", "drawn"]
"""Which policy a job gets before any feedback."""
# What is said where the published step does not know the number of jobs.
NEEDS_JOBS = "needs to know the number of jobs to come: add `jobs: 40`, with yours"


@dataclass(frozen=True, slots=True)
class MarketTerms:
    """A pool's market.

    Args:
        trace: Recording (:func:`~lightning_core.parts.market.traces.read_trace`), whose first interval is the pool's
            first; empty for the one that is shipped.
        price: Price of a spot node for an interval: where none is recorded, or instead of the recorded ones.
        on_demand: Price of an on-demand node.
        interval: Seconds of an interval; None: as recorded.
        pool: Pool of a SpotLake recording, ``INSTANCE@ZONE``.
        policies: Specs of policies in :data:`~lightning_core.parts.market.spot_policies.SPOT_POLICIES`; each job gets
            one of them; ``"paper"`` stands for the 112 of the paper as printed, ``"repaired"`` for the same 112 with
            the repairs that are this package's default.
        seed: Seed of the draws among them.
        step: How far feedback moves the weights: ``"adaptive"``, or ``"paper"`` for the published step, which must know
            the number of jobs.
        jobs: Number of jobs to come, for the published step; None for those of the bundle.
        first_job: Policy of the jobs before any feedback: ``"listed"`` for the first of the policies, or ``"drawn"``,
            as published: each is as likely.
        value: Value of a job that completes in time, relative to its cost on on-demand nodes alone.
        grace: Multiple of a job's deadline after which completion is worth nothing.
        soft_deadlines: Whether plans may complete a job with ``on_miss: continue`` after its deadline, at the price of
            the value that it loses by then; it is completed by the end of its grace whatever happens. Else the grace
            counts in the selector's feedback alone.
        kept_fraction: Fraction of an interval left for training when nodes change in it, until that is measured.
        forecaster: Spec of the forecaster that policies with a window look ahead by; it may know the future where the
            market is a recording.
        start: Seconds of the recording that lie before the pool's first interval: its past, in which the selector plays
            jobs before the first one is submitted.
        history: Recording of that past, in a file of its own.
        feedback: File that an earlier run has left (:mod:`~lightning_core.parts.market.feedback_file`), with which the
            selector begins; empty for none.
        minimum_charge: Seconds for which a node is billed at least; beyond that it is billed by the second.
        quoted: Whether a command quotes the live market, in place of a recording.

    Raises:
        ValueError: If one is out of its range.
    """

    trace: str = ""
    price: float | None = None
    on_demand: float = 1.0
    interval: float | None = None
    pool: str = ""
    policies: tuple[str, ...] = DEFAULT_POLICIES
    seed: int = 0
    step: Step = "adaptive"
    jobs: int | None = None
    first_job: FirstJob = "listed"
    value: float = 1.5
    grace: float = 1.5
    soft_deadlines: bool = False
    kept_fraction: float = 0.9
    forecaster: str = "last"
    start: float = 0.0
    history: str = ""
    feedback: str = ""
    minimum_charge: float = 0.0
    quoted: bool = False

    def __post_init__(self) -> None:
        listed = [self.policies] if isinstance(self.policies, str) else self.policies  # a file gives either
        object.__setattr__(self, "policies", pool_of(listed))
        check_at_most("market policies", len(self.policies), MAX_POLICIES)
        if not self.policies or len(set(self.policies)) < len(self.policies):
            got = ", ".join(self.policies) or "none"
            raise ValueError(f"market policies must be at least one, each once, got {got}")
        self.make()
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"market seed must be whole and at least 0, got {self.seed!r}")
        if self.step not in get_args(Step):
            raise ValueError(f"market step must be {' or '.join(get_args(Step))}, got {self.step!r}")
        if self.first_job not in get_args(FirstJob):
            raise ValueError(f"market first_job must be {' or '.join(get_args(FirstJob))}, got {self.first_job!r}")
        if self.jobs is not None:
            if self.step != "paper":
                raise ValueError(f"market jobs is for step 'paper', got step {self.step!r}")
            if type(self.jobs) is not int or self.jobs < 1:
                raise ValueError(f"market jobs must be whole and at least 1, got {self.jobs!r}")
        self._check_types()
        self._check_ranges()

    def _check_types(self) -> None:
        for rule in ("trace", "pool", "forecaster", "history", "feedback"):
            if not isinstance(text := getattr(self, rule), str):
                raise ValueError(f"market {rule} must be text, got {text!r}")
        for rule in ("price", "on_demand", "interval", "value", "grace", "kept_fraction", "start", "minimum_charge"):
            if isinstance(number := getattr(self, rule), bool | str):
                raise ValueError(f"market {rule} must be a number, got {number!r}")

        if not isinstance(self.soft_deadlines, bool):
            raise ValueError(f"market soft_deadlines must be true or false, got {self.soft_deadlines!r}")

    def _check_ranges(self) -> None:
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ValueError(f"market price must be at least 0 and finite, got {self.price}")
        positive = {
            "on_demand": self.on_demand,
            "value": self.value,
            "interval": INTERVAL if self.interval is None else self.interval,
        }
        for rule, number in positive.items():
            if not 0 < number < math.inf:
                raise ValueError(f"market {rule} must be positive and finite, got {number}")
        if not 1 < self.grace < math.inf:
            raise ValueError(f"market grace must be above 1 and finite, got {self.grace}")
        if not 0 < self.kept_fraction <= 1:
            raise ValueError(f"market kept_fraction must be above 0 and at most 1, got {self.kept_fraction}")
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Check the ranges of all values."""
        check_at_most("market seed", self.seed, MAX_SEED)
        for name in ("price", "grace"):
            check_at_most(f"market {name}", getattr(self, name), MAX_FACTOR)
        for name in ("on_demand", "value"):
            check_factor(f"market {name}", getattr(self, name))
        if self.interval is not None and self.interval < MIN_INTERVAL:
            raise ValueError(f"market interval must be at least {MIN_INTERVAL} seconds, got {self.interval}")
        check_seconds("market interval", self.interval)
        check_seconds("market minimum_charge", self.minimum_charge)
        check_seconds("market start", self.start)
        if self.quoted and (self.trace or self.start):
            raise ValueError("market trace and start are for a recorded market, and this one is quoted")
        if self.start and self.history:
            raise ValueError("market start and history must not both be given: each defines the past")
        for name in ("trace", "history", "feedback"):
            check_length(f"market {name}", getattr(self, name), MAX_PATH)
        check_length("market pool", self.pool)
        check_live(self.forecaster, recorded=not self.quoted)

    def market(self) -> Market:
        """Return the recording, from the pool's first interval on.

        Raises:
            ValueError: If it cannot be parsed, or is no longer than ``start``.
            OSError: If it cannot be read.
        """
        whole = self._read(self.trace, self.interval)
        begins = self._begins(whole)
        if begins >= len(whole):
            seconds = len(whole) * whole.seconds
            raise ValueError(f"market start must be before the end of the recording at {seconds:g} s, got {self.start}")
        return replace(whole, price=whole.price[begins:], available=whole.available[begins:]) if begins else whole

    def past(self) -> Market | None:
        """Return how the market was before the pool's first interval; None if that is not recorded.

        Raises:
            ValueError: If it cannot be parsed.
            OSError: If it cannot be read.
        """
        if self.history:
            return self._read(self.history, self.seconds)
        if self.quoted:
            return None
        whole = self._read(self.trace, self.interval)
        begins = self._begins(whole)
        return replace(whole, price=whole.price[:begins], available=whole.available[:begins]) if begins else None

    def earlier_jobs(self) -> Rows:
        """Return the utility of each policy for each job of an earlier run.

        Raises:
            ValueError: If they cannot be read, or are of other policies.
        """
        return read_feedback(Path(self.feedback), self.policies) if self.feedback else ()

    @property
    def seconds(self) -> float:
        """Seconds of an interval."""
        return (self.interval or INTERVAL) if self.quoted else self.market().seconds

    @property
    def knows_future(self) -> bool:
        """True if the forecaster takes future prices and nodes from the recording."""
        return knows_future(self.forecaster)

    @property
    def knows_more(self) -> bool:
        """True if a pool on these terms begins with events: a past market, feedback of earlier jobs, or the future."""
        return bool(self.start or self.history or self.feedback) or self.knows_future

    def check(self) -> None:
        """Read everything that the terms name.

        Raises:
            ValueError: If one cannot be parsed.
            OSError: If one cannot be read.
        """
        if not self.quoted:
            market = self.market()
            if self.knows_future:
                rule = f"intervals of the recording, with forecaster {self.forecaster!r}, which knows the future,"
                check_at_most(rule, len(market), MAX_RECORDED)
        if self.history:
            self.past()
        self.earlier_jobs()

    def _read(self, path: str, interval: float | None) -> Market:
        if not path:
            return shipped_trace(self.price, self.on_demand, interval)
        return read_trace(Path(path), self.price, self.on_demand, interval, self.pool)

    def _begins(self, whole: Market) -> int:
        """Return the first interval of the pool in a recording."""
        return round(self.start / whole.seconds)

    def is_soft(self, job: Job) -> bool:
        """Return whether plans may complete a job after its deadline."""
        return self.soft_deadlines and job.on_miss is OnMiss.CONTINUE

    def make(self) -> dict[str, SpotPolicy]:
        """Return new policies, by their specs."""
        return make_pool(self.policies)


def terms_of(settings: Any) -> MarketTerms | None:
    """Return the terms from which spot policies are drawn for the jobs of a pool; None if none is drawn."""
    terms = settings.controllers.get("market", {}).get("terms")
    return None if terms is None else MarketTerms(**terms)
