"""Play jobs on a cluster of several kinds of GPUs to the scheduler in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

from benchmarks.clusters.cluster_play import registered
from benchmarks.unlike.measured_kinds import KINDS, DrawnJob, device_kinds
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.protocols import Policy
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation

# Seconds between rounds without events, and that a job loses when it resumes on other devices.
PERIOD, RESTART = 360.0, 30.0
REPORTS = 40


@dataclass(frozen=True)
class KindContender:
    """A policy, with what it knows of the kinds.

    Args:
        policy: Name of a policy, or a policy of the benchmark.
        arguments: Its arguments.
        knows: Rates on each kind are known from earlier runs; or seen as jobs train; or the scheduler takes all devices
            for alike.
    """

    policy: str | Callable[..., Policy]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    knows: Literal["rates", "kinds", "nothing"] = "rates"


class PlayedKinds(NamedTuple):
    """Outcome of a play."""

    met: int
    jobs: int
    switches: int
    seconds: float
    """Seconds of real time spent in the scheduler, over its rounds."""


def play(
    jobs: Sequence[DrawnJob], devices: Mapping[str, int], contender: KindContender, restart: float = RESTART
) -> PlayedKinds:
    """Play jobs under a policy; a job that resumes on other devices loses so many seconds."""
    kinds = device_kinds(devices)
    with registered(contender.policy) as name:
        settings = Settings(
            name, contender.arguments, estimator="log_time", period=PERIOD, devices=len(kinds), resident=len(kinds),
            locations=() if contender.knows == "nothing" else kinds, stay=0.0, resize=restart, remember=len(jobs),
        )  # fmt: skip
        given = [_simulated(job, contender.knows, restart) for job in jobs]
        outcome = Simulation(settings, given, Delays(report_every=PERIOD), kinds=kinds).run()
    return PlayedKinds(
        outcome.met, len(jobs), sum(job.switches for job in outcome.jobs), outcome.deciding / max(outcome.rounds, 1)
    )


def _simulated(drawn: DrawnJob, knows: str, restart: float) -> SimulatedJob:
    # To the blind it is as fast as on the mean of the kinds.
    usual = sum(drawn.rates) / len(drawn.rates)
    run = EarlierRun(
        f"{drawn.model} {drawn.size}", (), (), throughputs=((drawn.size, usual),),
        on_kinds=tuple((kind, drawn.size, rate) for kind, rate in zip(KINDS, drawn.rates, strict=True))
        if knows == "rates" else (),
    )  # fmt: skip
    job = Job(
        drawn.name, drawn.deadline, BatchTarget(drawn.batches), min_devices=drawn.size, max_devices=drawn.size,
        on_miss=OnMiss.STOP, can=frozenset({Capability.HOLD, Capability.RELEASE}), resize_seconds=restart,
        model=drawn.model,
    )  # fmt: skip
    step = max(ceil(drawn.batches / REPORTS), 1)
    position = [*range(step, drawn.batches, step), drawn.batches]
    first = drawn.rates[0]
    return SimulatedJob(
        job, position, [1.0] * len(position), first, drawn.submitted, restart=restart, earlier=(run,),
        paces={kind: rate / first for kind, rate in zip(KINDS, drawn.rates, strict=True)},
    )  # fmt: skip
