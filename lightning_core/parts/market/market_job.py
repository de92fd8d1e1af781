"""A job on a spot market and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from lightning_core.core.answers import JobStatus
from lightning_core.core.control import Ask, Asker
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import Saves, decode, encode
from lightning_core.parts.market.job_model import SURE, JobSpan
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import ForecastProvider
from lightning_core.parts.market.online.online_plan import OnlinePlan
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_policies import SPOT_POLICIES


@dataclass
class MarketJob:
    """A job and its plan."""

    policy: str
    """Spec of its spot policy."""
    forecasts: ForecastProvider
    submitted_at: float
    """Scheduler time: another one means another job of that name."""
    span: JobSpan
    held: NodeCounts = field(default_factory=NodeCounts)
    """Nodes that its plan holds."""
    told: tuple[float | str, ...] | None = None
    """Device count that was asked for last, the code of the reason, and the work that it was for if it is forecast."""
    decided: int = -1
    """Interval in which its plan decided last."""
    ended: bool = False
    """Whether it has ended, and its batches are counted."""
    job: SpotJob | None = None
    """The job as the market sees it; None while its throughput is unknown."""

    def __post_init__(self) -> None:
        self.spot_policy = SPOT_POLICIES.make(self.policy)
        self.plan = OnlinePlan(self.spot_policy, self.forecasts)

    @property
    def on_events(self) -> bool:
        """Whether its policy also decides within an interval, after changes of offers or nodes."""
        return bool(getattr(self.spot_policy, "decides_on_events", False))

    def is_of(self, status: JobStatus) -> bool:
        """Return whether a status is of this job, and not of another one of its name."""
        return status.submitted_at == self.submitted_at

    def state(self) -> dict[str, Any]:
        policy = self.spot_policy.state() if isinstance(self.spot_policy, Saves) else None
        return {
            "policy": self.policy, "remembers": policy, "submitted_at": self.submitted_at, "span": list(self.span),
            "held": list(self.held), "told": self.told and list(self.told), "decided": self.decided,
            "ended": self.ended, "job": None if self.job is None else encode(astuple(self.job)),
        }  # fmt: skip

    @classmethod
    def of(cls, state: Mapping[str, Any], forecasts: ForecastProvider) -> MarketJob:
        job = None if state["job"] is None else SpotJob(*decode(state["job"]))
        made = cls(
            state["policy"], forecasts, state["submitted_at"], JobSpan(*state["span"]), NodeCounts(*state["held"]),
            state["told"] and tuple(state["told"]), state["decided"], state["ended"], job,
        )  # fmt: skip
        if isinstance(made.spot_policy, Saves):
            made.spot_policy.restore(state["remembers"])
        return made

    def ask(self, status: JobStatus, work: float | None, left: float | None = None) -> list[Ask]:
        """Return the request for the job: as many devices as its plan holds nodes; none if it has not changed.

        Args:
            status: The job.
            work: Batches from its beginning that its nodes are for; None if they are unknown.
            left: Money that is left, if it goes without the nodes that it needs because they cost more.
        """
        devices, reason = self.held.all, self._why(status, work) if left is None else Reason("market.no_money", (left,))
        told: tuple[float | str, ...] = devices, reason.code, *reason.numbers[2:]
        if self.told == told:
            return []
        self.told = told
        return [Ask(status.name, Asker("market"), devices=devices, reason=reason)]

    def _why(self, status: JobStatus, work: float | None) -> Reason:
        """Return why it holds its nodes; where its work is forecast, also how much of it they are for."""
        nodes = float(self.held.spot), float(self.held.on_demand)
        if status.target.work is not None or work is None or self.job is None:
            return Reason("market.nodes_held", nodes)
        intervals, left = self.span.start + self.span.deadline - self.decided, work - status.batches
        if left > intervals * self.job.throughput[-1]:
            return Reason("market.nodes_held_in_doubt", (*nodes, SURE))
        return Reason("market.nodes_held_by_forecast", (*nodes, left, SURE))
