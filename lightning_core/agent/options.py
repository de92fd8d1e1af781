"""Validated options of a job in its training process, and its terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from lightning_core.agent.reporting.joining import MIN_DEADLINE
from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.core.durations import WallTime, When, parse_when, seconds_until
from lightning_core.core.jobs import Beside, Job, OnHold, OnMiss, OnNan, OnRefused, as_beside
from lightning_core.core.names import check_name
from lightning_core.core.protocols import Client, DeviceLock
from lightning_core.core.targets import STEP_LOSS, Target, as_target
from lightning_core.variables import PREFIX, terms_of_company
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)


@dataclass(frozen=True)
class Options:
    """Options of a job in its training process: those of a script, and from ``client`` on those of a launched job.

    ``CoreCallback`` and ``LaunchedCallback`` describe each.
    """

    job: Job
    pool: str
    stop_when_met: bool
    every: int
    on_refused: OnRefused
    keep_best: bool | Path
    hang: float | None
    history: Path | None = None
    requeue: bool = False
    client: Client | None = None
    device_lock: DeviceLock | None = None
    launched: bool = False
    incarnation: int = 1
    devices: tuple[int, ...] = (0,)
    cores: int = 1
    give_up: Callable[..., None] | None = None
    suspender: Path | None = None

    def __post_init__(self) -> None:
        if not self.pool:
            raise ValueError("pool must be 'auto', 'local' or the address of a pool, got ''")
        LossMeter(lambda cell: None, self.every)  # raises now rather than in fit

    def same_on_all_ranks(self) -> list[object]:
        """Return what must be the same on all ranks of a training, as plain values."""
        return [self.launched, self.keep_best is not False, self.metric]

    @property
    def metric(self) -> str:
        """Name of the metric that the target is about; empty for none, and for the loss of a batch."""
        target = self.job.target
        return target.observed if (target.observes or target.watches) and target.observed != STEP_LOSS else ""


def read_on_refused(value: str) -> OnRefused:
    """Return what to do if the pool refuses a job; a ValueError names the possible values."""
    if value not in tuple(OnRefused):
        raise ValueError(f"on_refused must be one of {', '.join(OnRefused)}, got {value!r}")
    return OnRefused(value)


def _beside() -> Beside:
    try:
        return as_beside(terms_of_company())
    except ValueError as error:
        raise ValueError(f"{PREFIX}BESIDE: {error}") from None


class JobTerms:
    """A job and its deadline; a time of day is resolved when ``fit`` starts.

    Whether it may train beside others is said by its environment.

    Args:
        name: Name of the job.
        deadline: Deadline, a duration or a point in time; None for best effort.
        target: Target of the job.
        weight: Relative importance when not all deadlines can be met.
        on_miss: What to do when the deadline passes.
        on_nan: What to do when the losses are NaN or infinite.
        like: Name or tag of earlier runs with a similar loss curve.
        on_hold: Treatment of its GPU memory while it is held.

    Raises:
        ValueError: If a value is out of range, or the deadline is past.
    """

    def __init__(
        self,
        name: str,
        deadline: When | None,
        target: Target | str,
        weight: float = 1.0,
        on_miss: str = "continue",
        on_nan: str = "continue",
        like: str = "",
        on_hold: str = "keep",
    ) -> None:
        if on_miss not in tuple(OnMiss):
            raise ValueError(f"on_miss must be one of {', '.join(OnMiss)}, got {on_miss!r}")
        if on_hold not in tuple(OnHold):
            raise ValueError(f"on_hold must be one of {', '.join(OnHold)}, got {on_hold!r}")
        if on_nan not in (OnNan.CONTINUE, OnNan.STOP):
            why = ": only a job launched by a pool can go back to a checkpoint" if on_nan == OnNan.RESTART else ""
            raise ValueError(f"on_nan must be 'continue' or 'stop' in a script, got {on_nan!r}{why}")
        self._wall_time: WallTime | None = None
        self.job = Job(
            check_name(name),
            math.inf if deadline is None else self._seconds(deadline),
            as_target(target),
            weight=weight,
            on_miss=OnMiss(on_miss),
            on_nan=OnNan(on_nan),
            like=like,
            on_hold=OnHold(on_hold),
            beside=_beside(),
        )

    @property
    def deadline_text(self) -> str:
        """The deadline as it was written, by which a resumed script recognises it."""
        if self.job.is_best_effort:
            return "none"
        return f"{self.job.deadline:g}s" if self._wall_time is None else self._wall_time.text

    def job_now(self) -> Job:
        """Return the job with its deadline, if that is a point in time, counted from now, when ``fit`` starts."""
        if self._wall_time is None:
            return self.job
        try:
            moment = self._wall_time.resolve(datetime.now())
        except ValueError as error:  # it has passed since the callback was created: train nevertheless
            log.warning("%s: deadline: %s", self.job.name, error)
            return replace(self.job, deadline=MIN_DEADLINE)
        inform(f"{self.job.name}: deadline {moment}")
        return replace(self.job, deadline=moment.seconds)

    def _seconds(self, deadline: When) -> float:
        try:
            when = parse_when(deadline)
            if isinstance(when, WallTime):
                self._wall_time = when
            return seconds_until(when, datetime.now())
        except ValueError as error:
            raise ValueError(f"deadline: {error}") from None
