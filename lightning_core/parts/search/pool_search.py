"""A search in a pool: its trials are jobs, which share devices with all others by the pool's policy.

The search decides which trials are alive: it pauses those that make room, resumes them later, and submits new draws.
The pool decides where and when live trials train. All knowledge of the trials is in the study and in the pool, so an
interrupted search resumes from both.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.commands import Cancel, Command, Pause, Resume
from lightning_core.core.control import Asker
from lightning_core.errors import LightningCoreError
from lightning_core.parts.search.decision.deadline_search import NEW, DeadlineSearch
from lightning_core.parts.search.search_file import SearchSpec
from lightning_core.parts.search.search_space import Parameter
from lightning_core.pool.pool import Pool
from lightning_core.pool.pool_errors import JobEndedError, UnknownJobError

# Attributes of the study: when the search ends; value, trial and job that were the best. Of a trial: seconds trained.
END, BEST, SECONDS = "lightning_core:end", "lightning_core:best", "lightning_core:seconds"
# The name under which it pauses its trials and resumes them.
SEARCH = Asker("search")
# Seconds between two looks at the pool.
POLL = 0.5
# Seconds after the end of a search for which its trials are not late: it cancels them. If it is gone, they end then.
GRACE = 30.0
# A search whose first trials all raise, this many of them, is over: the next ones would too.
HOPELESS = 3
log = logging.getLogger(__name__)


class SearchFailedError(LightningCoreError, RuntimeError):
    """The search has failed: none of its trials has reported a value."""


class Best(NamedTuple):
    """The best of a search so far."""

    value: float
    params: Mapping[str, Any]
    """Hyper-parameters of the trial that had it, by name."""
    job: str
    """Name of that trial's job."""
    epoch: int
    """Epochs that it had trained when the value became known."""


@dataclass
class _PoolTrial:
    """A trial, and the last status of its job."""

    trial: optuna.Trial
    seconds: float = 0.0
    """Seconds that it has trained, devices shared with others or not."""
    called_at: float = math.nan
    """Time of its submission or resumption, until it trains; NaN while it does."""
    trains: bool = False
    told: bool = False
    """Whether its outcome is in the study."""


class PoolSearch:
    """Searches for the best value that is possible by a deadline, in a pool.

    Args:
        pool: The pool.
        spec: The search.
        study: Study of Optuna that draws the trials and records their outcomes; :func:`study_of` makes one. Its
            direction must be that of the search. Its pruner is not used.
        connect: Reconnects to a pool that was down; None to wait on the existing connection.
        on_news: Called with the best, whenever there is a better one.
        poll: Seconds between two looks at the pool.

    Raises:
        ValueError: The study has another direction, or more than one.
    """

    def __init__(
        self,
        pool: Pool,
        spec: SearchSpec,
        study: optuna.Study,
        *,
        connect: Callable[[], Pool] | None = None,
        on_news: Callable[[Best], None] = lambda best: None,
        poll: float = POLL,
    ) -> None:
        if study.directions != [direction := direction_of(spec)]:
            told = ", ".join(one.name for one in study.directions)
            raise ValueError(f"study must {direction.name} for mode {spec.mode}, got {told}")
        self._pool, self._spec, self._study = pool, spec, study
        self._connect, self._on_news, self._poll = connect, on_news, poll
        self.at_once = spec.at_once or max(pool.settings.devices // spec.template.job.min_devices, 1)
        """Number of trials that may train at once."""
        self._trials = list[_PoolTrial]()
        self._starts = list[float]()
        self._looked_at = math.nan
        self._per_epoch: int | None = None
        self._failed, self._failures, self._away = "", 0, False
        kept = study.user_attrs.get(BEST)
        self.best = None if kept is None else Best(*kept)
        """The best so far, which the study keeps; None before the first value."""

    @property
    def has_reached(self) -> bool:
        """Whether the best value is as good as the target; true if there is no target."""
        target = self._spec.target
        return target is None or (self.best is not None and not self._is_better(target, self.best.value))

    @cached_property
    def end(self) -> datetime:
        """Time at which the search ends, as set by its first run."""
        told = self._study.user_attrs.get(END)
        if told is None:
            now, when = time.time(), self._spec.template.clock.get("deadline")
            given = self._spec.template.job.deadline
            told = now + (given if when is None else when.resolve(datetime.fromtimestamp(now)).seconds)
            self._study.set_user_attr(END, told)
        return datetime.fromtimestamp(told)

    @property
    def seconds_left(self) -> float:
        """Seconds until the search ends; not above 0 once it has."""
        return self.end.timestamp() - time.time()

    def check(self) -> None:
        """Check the configs of trials, as the pool will read them, before anything is submitted.

        Raises:
            BundleError: With every problem found.
            ValueError: The name of a trial is taken by a job that is not of this search.
        """
        own = {f"{self._spec.name}-{trial.number}" for trial in self._study.get_trials(deepcopy=False)}
        taken = re.compile(re.escape(self._spec.name) + r"-\d+")
        for job in self._pool.jobs():
            if job.state is not State.ENDED and job.name not in own and taken.fullmatch(job.name):
                raise ValueError(f"{job.name} is a job of the pool already: give the search another name, or cancel it")
        self._pool.check(self._spec.bundle(self._spec.samples()))

    def run(self) -> Best:
        """Search until the deadline, the target or the end of the last trial worth its time, and return the best.

        A pool that does not answer is waited for until the deadline: its jobs wait with it, and end by themselves soon
        after that. If the search is interrupted, the trials that train are paused, and the next run resumes from there.

        Raises:
            SearchFailedError: No trial has reported a value.
        """
        spec = self._spec
        worth = None if spec.worth is None else spec.worth / spec.template.job.min_devices
        search = DeadlineSearch(
            deadline=self.end.timestamp(), max_steps=spec.epochs, max_trials=spec.max_trials,
            mode="min" if spec.mode == "min" else "max", target=spec.target, worth=worth,
        )  # fmt: skip
        self._restore_trials(search)
        try:
            while self._continues(search):
                time.sleep(min(self._poll, max(self.seconds_left, 0.0)))
        except BaseException:
            self._pause_all(search)
            raise
        self._finish(search)
        if self.best is None:
            words = f": {self._failed}" if self._failed else " before the deadline"
            raise SearchFailedError(f"{spec.name}: no trial has reported {spec.metric}{words}")
        return self.best

    # ---------------------------------------------------------------------------------------------- looking and acting

    def _continues(self, search: DeadlineSearch) -> bool:
        """Do a step, and return whether the search continues; it does while the pool does not answer."""
        try:
            continues = self._step(search)
        except ConnectionError as error:
            if not self._away:
                log.warning("%s: the search waits for the pool: %s", self._spec.name, error)
            self._away, self._looked_at = True, math.nan
            if self.seconds_left <= 0:
                return False
            if self._connect is not None:
                with suppress(ConnectionError):
                    pool = self._connect()
                    self._pool.close()
                    self._pool = pool
            return True
        self._away = False
        return continues

    def _step(self, search: DeadlineSearch) -> bool:
        """Process the status of the pool, and return whether the search continues."""
        self._record(search)
        now = time.time()
        hopeless = search.best is None and self._failures >= HOPELESS
        enough = self._spec.target is not None and self.has_reached  # if only between two looks
        if search.is_over(now) or enough or hopeless:
            return False
        for number, one in enumerate(search.trials):
            if one.running and not one.over and one.compared_at <= one.step and not search.continues(number, now):
                self._pause(number)
                search.pause(number)
        if self._starts:
            search.start = statistics.median(self._starts)
        while sum(one.running and not one.over for one in search.trials) < self.at_once:
            if (chosen := search.choose(now)) is None:
                break
            if chosen == NEW:
                self._begin(search)
            else:
                self._send(Resume(self._name(self._trials[chosen]), SEARCH))
                search.resume(chosen)
                self._trials[chosen].called_at = now
        # Without a trial worth its time, those that wait will not train again.
        return any(not one.over and (one.running or search.worth is None) for one in search.trials)

    def _begin(self, search: DeadlineSearch) -> None:
        """Draw a trial and submit its job."""
        trial = self._study.ask({one.name: distribution_of(one) for one in self._spec.space})
        trial.set_user_attr(SECONDS, 0.0)
        seconds = max(self.seconds_left, 0.0) + GRACE
        job = self._spec.trial(trial.number, trial.params, seconds, 1 / self.at_once)
        # Its job may be in the pool although the answer was lost: then the next look finds it.
        self._trials.append(_PoolTrial(trial, called_at=time.time()))
        search.begin()
        self._pool.submit(self._spec.bundle([job]), checked=True)

    def _record(self, search: DeadlineSearch) -> None:
        """Record the status of the trials."""
        _, jobs = self._pool.look()
        newest, now = {job.name: job for job in jobs}, time.time()
        since = 0.0 if math.isnan(self._looked_at) else now - self._looked_at
        self._looked_at = now
        for number, one in enumerate(self._trials):
            if one.told:
                continue
            status = newest.get(self._name(one))
            if status is not None:
                self._record_values(search, number, status, now, since)
            if status is None or status.state is State.ENDED:
                self._ended(search, number, status)

    def _record_values(self, search: DeadlineSearch, number: int, status: JobStatus, now: float, since: float) -> None:
        """Record the newest value of a trial, and its training time since the last look."""
        one, seen = self._trials[number], search.trials[number]
        trains = status.state is State.RUNNING and seen.running
        if trains:
            one.seconds += since if one.trains else 0.0
            if not math.isnan(one.called_at):
                self._starts.append(now - one.called_at)
                one.called_at = math.nan
        one.trains = trains
        self._per_epoch = status.target.epoch_batches or self._per_epoch
        if status.watched is None or not self._per_epoch:
            return
        epoch = min(round(status.watched.batches / self._per_epoch), self._spec.epochs)
        if epoch <= seen.step:
            return
        one.seconds = max(one.seconds, status.busy)  # it may have begun and ended to train between two looks
        search.report(number, epoch, status.watched.value, one.seconds)
        one.trial.report(status.watched.value, epoch - 1)
        one.trial.set_user_attr(SECONDS, one.seconds)
        found = Best(status.watched.best, one.trial.params, status.name, epoch)
        if math.isfinite(found.value) and (self.best is None or self._is_better(found.value, self.best.value)):
            self.best = found
            self._study.set_user_attr(BEST, list(found))
            self._on_news(found)

    def _ended(self, search: DeadlineSearch, number: int, status: JobStatus | None) -> None:
        """Record that the job of a trial has ended, or is no longer known."""
        one, values = self._trials[number], search.trials[number].values
        if status is not None and status.verdict is Verdict.CRASHED:
            self._failed = status.detail.strip().rsplit("\n", 1)[-1] or str(status.reason)
            self._failures += bool(status.detail)  # one that has diverged says nothing of the others
            log.warning("%s has failed; the search continues without it: %s", status.name, self._failed)
            self._tell(number, TrialState.FAIL)
        elif search.trials[number].step >= self._spec.epochs:
            self._study.tell(one.trial, min(values) if search.mode == "min" else max(values))
            one.told = True
        else:
            self._tell(number, TrialState.PRUNED if values else TrialState.FAIL)
        search.end(number)

    # ------------------------------------------------------------------------------------------------ ends and returns

    def _restore_trials(self, search: DeadlineSearch) -> None:
        """Restore the trials that an earlier run of the search has left in the study and in the pool."""
        paused = {job.name for job in self._pool.jobs() if job.paused}
        for seen in self._study.get_trials(deepcopy=False):
            if SECONDS not in seen.user_attrs:
                continue  # the user's own
            number, one = search.begin(), _PoolTrial(optuna.Trial(self._study, seen._trial_id))
            one.seconds, one.told = float(seen.user_attrs[SECONDS]), seen.state.is_finished()
            self._trials.append(one)
            for step, value in sorted(seen.intermediate_values.items()):
                search.report(number, step + 1, value, one.seconds)
            if one.told:
                search.end(number)
            elif self._name(one) in paused:
                search.pause(number)

    def _pause_all(self, search: DeadlineSearch) -> None:
        for number, one in enumerate(search.trials):
            if one.running and not one.over and not self._away:
                with suppress(ConnectionError):
                    self._pause(number)

    def _finish(self, search: DeadlineSearch) -> None:
        """End the live trials; their reports stay in the study."""
        for number, one in enumerate(self._trials):
            if not one.told:
                with suppress(ConnectionError):
                    if not self._away:
                        self._send(Cancel(self._name(one)))
                self._tell(number, TrialState.PRUNED if search.trials[number].values else TrialState.FAIL)

    def _tell(self, number: int, state: TrialState) -> None:
        self._study.tell(self._trials[number].trial, state=state)
        self._trials[number].told = True

    def _pause(self, number: int) -> None:
        self._send(Pause(self._name(self._trials[number]), release=True, by=SEARCH))

    def _send(self, command: Command) -> None:
        """Send a command about the job of a trial, unless it has just ended."""
        with suppress(JobEndedError, UnknownJobError):
            self._pool.send(command)

    def _name(self, one: _PoolTrial) -> str:
        return f"{self._spec.name}-{one.trial.number}"

    def _is_better(self, value: float, other: float) -> bool:
        return value < other if self._spec.mode == "min" else value > other


def direction_of(spec: SearchSpec) -> optuna.study.StudyDirection:
    """Return the direction of a study for a search."""
    minimizes = spec.mode == "min"
    return optuna.study.StudyDirection.MINIMIZE if minimizes else optuna.study.StudyDirection.MAXIMIZE


def distribution_of(one: Parameter) -> BaseDistribution:
    """Return a hyper-parameter as Optuna draws it."""
    if one.choices:
        return CategoricalDistribution(one.choices)
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=one.log, step=int(one.step or 1))
    return FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def study_of(spec: SearchSpec, storage: str | Path | None = None) -> optuna.Study:
    """Return the study of a search: an existing one with its trials, or a new one.

    Args:
        spec: The search, whose name the study has.
        storage: File of SQLite that keeps it, or the URL of another storage of Optuna; None to keep it in memory.
    """
    sampler: optuna.samplers.BaseSampler = (
        optuna.samplers.TPESampler(seed=spec.seed, constant_liar=True)
        if spec.sampler == "tpe"
        else optuna.samplers.RandomSampler(seed=spec.seed)
    )
    study = optuna.create_study(
        storage=f"sqlite:///{storage.resolve()}" if isinstance(storage, Path) else storage, study_name=spec.name,
        load_if_exists=True, direction=direction_of(spec), sampler=sampler,
    )  # fmt: skip
    if spec.sampler == "grid" and not study.get_trials(deepcopy=False):
        names = [one.name for one in spec.space]
        points = list(itertools.product(*(one.grid or () for one in spec.space)))
        random.Random(spec.seed).shuffle(points)  # time may end before the grid
        for point in points:
            study.enqueue_trial(dict(zip(names, point, strict=True)))
    return study
