"""Bundle files for simulations: the terms of the jobs, and a recorded loss curve for each training.

Configs are not read. Beside its terms, a job may have::

    vit:
      deadline: 1h30m
      target: {loss: 0.35}
      curve: vit-before.csv            # a recording step,loss; beside this file or in the folder of recordings
      throughput: 12.5                 # batches a second alone on its devices
      paces: {a100: 1, t4: 0.25}       # on each kind of devices, as a factor on it

Rules

1. A named recording is played unchanged. Its speed is the job's ``throughput``, else that of the recording's index,
   else such that the target is reached after the job's ``work``.
2. A job that names none borrows the shape of one that the seed draws for its name: losses are scaled so that the target
   is reached at some place of the curve, batches so that this takes the job's ``work``. Comparing a target with losses
   of another task would be meaningless.
3. The throughput of a job that can be resized is that on its largest number of devices; on fewer it has its part.
4. A job of unknown duration is assumed to need 0.8 of its fair share of the pool's time.
5. A job without a recording plays the curve of an earlier run that reached its target, at that run's speed, before
   anything is made up. The run is found as for a live job, by its tag or model, and by its name.
6. On several kinds of devices a job is as fast as its ``paces`` say; where it has none, as earlier runs were there,
   which the scheduler then knows, or as other trainings were that are known on both. Its throughput and its work are
   those on the fastest kind that it may be on. While nothing tells kinds apart, all are alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_core.bundle.bundle_content import read_bundle_content
from lightning_core.bundle.job_section import JOB_KEYS, TERMS, read_job
from lightning_core.bundle.job_spec import batch_size_of, model_of
from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.bundle.problems import BundleError, Problems, require
from lightning_core.bundle.settings_section import with_policy
from lightning_core.core.arrays import FloatArray
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.jobs import Job
from lightning_core.core.specs import Spec
from lightning_core.core.supplies import Supply
from lightning_core.core.validation import read_number
from lightning_core.planning.moore_hodgson import largest_feasible_set
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import Curve, load_curve, load_curves, read_recording
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.storage.private_files import this_user
from lightning_core.storage.runs.kept_rates import KeptRates
from lightning_core.storage.runs.past_run import PastRun
from lightning_core.storage.runs.run_store import RunStore

# Maximum number of cells of a curve: as many as a live job has, not as many as its log has lines.
MAX_CELLS = 1000
# Fractions of a borrowed recording between which the target is reached, evenly on a logarithmic scale.
EARLIEST, LATEST = 0.06, 0.7
# Fraction of its fair share of the pool's time that a job of unknown duration needs.
LOAD = 0.8
# Seconds that count as the deadline of a job that has none, for the work that is drawn for it.
NO_DEADLINE = 3600.0
# Relative margin with which a scaled curve reaches its target.
ROUNDING = 1e-9
# Parts of a job that may be made up: its curve, from another task; and its time, from its fair share.
MADE_UP = ("curve", "time")
# Config that is read in place of the job's.
NOTHING = {"model": {"class_path": "simulated.Training"}}


@dataclass(frozen=True, slots=True)
class Played:
    """A job of a bundle with the recording that stands in for its training.

    Args:
        given: Job for the simulation.
        recording: Name of the recording.
        needs: Seconds alone on its devices until its target is reached; inf if never.
        drawn: Whether only the shape of the recording is used.
        made_up: Parts that are neither recorded nor given, some of :data:`MADE_UP`, as text.
        paces_from: Origin of its speed on each kind of devices: ``given``, ``earlier runs``, or empty where all are
            alike.
    """

    given: SimulatedJob
    recording: str
    needs: float
    drawn: bool
    made_up: str = ""
    paces_from: str = ""


@dataclass(frozen=True, slots=True)
class PlayedBundle:
    """A bundle to be simulated.

    Args:
        jobs: Jobs in the order of the file.
        settings: Settings of the scheduler.
        supply: Where its nodes come from; None for devices that stay.
    """

    jobs: tuple[Played, ...]
    settings: Settings
    supply: Supply | None = None

    @property
    def ceiling(self) -> int | None:
        """Maximum number of jobs that could be met if all work were known in advance; None on several devices.

        By Moore and Hodgson's algorithm; begin times and weights do not count here.
        """
        if self.settings.devices != 1:
            return None
        needs = np.array([played.needs for played in self.jobs])
        deadline = np.array([played.given.job.deadline for played in self.jobs])
        return int(largest_feasible_set(needs, deadline, 0.0).sum())

    def under(self, policies: Sequence[str]) -> dict[str, Settings]:
        """Return the settings of each policy, by its text; without any, those of the bundle's own policy.

        Raises:
            ValueError: If a policy is unknown or an argument is out of its range.
        """
        if not policies:
            return {str(Spec(self.settings.policy, self.settings.policy_args)): self.settings}
        return {text: with_policy(self.settings, text) for text in policies}


def read_bundle(
    path: Path,
    folder: Path | None,
    seed: int = 0,
    devices: int | None = None,
    *,
    shuffle: bool = False,
    kept: Path | None = None,
) -> PlayedBundle:
    """Read a bundle file, or a file of one job, and give each job its recording.

    Args:
        path: Path of the file.
        folder: Folder of recordings; None if every job names its own.
        seed: Seed of the random draws.
        devices: Number of devices instead of the file's.
        shuffle: Whether the jobs come in an order that the seed draws, not in the file's.
        kept: Path of a store of earlier runs, which exists; None to use none.

    Raises:
        RunStoreError: If the store cannot be read.
        BundleError: With every problem found in the file.
        ValueError: If a recording of the folder is invalid.
    """
    require("yaml")
    from lightning_core.bundle.yaml_loader import load_yaml

    content, found = load_yaml(path, "file is empty; expected a mapping with 'jobs', or one job")
    parts = read_bundle_content(content, path.parent, found, None if devices is None else ExistingPool(devices))
    curves = [] if folder is None else load_curves(folder)
    part = parts.devices / max(len(parts.jobs), 1)
    with nullcontext() if kept is None else closing(RunStore(kept)) as store:
        settings = parts.settings or Settings()
        kinds = tuple(dict.fromkeys(settings.kinds))
        rates = KeptRates(kinds, parts.kind, store) if kinds else None
        reader = _Reader(path.parent, folder, curves, seed, settings, part, store, rates)
        played = [reader.read(name, value, at, parts.devices) for name, value, at in parts.jobs]
    if found.messages or parts.settings is None:
        raise BundleError(found.messages)
    jobs = [job for job in played if job is not None]
    if shuffle:
        jobs = [jobs[at] for at in np.random.default_rng(seed).permutation(len(jobs)).tolist()]
    return PlayedBundle(tuple(jobs), parts.settings, parts.supply)


@dataclass(frozen=True)
class _Reader:
    """Reads jobs.

    Args:
        beside: Folder of the bundle file.
        folder: Folder of recordings.
        curves: All recordings of that folder.
        seed: Seed of the random draws.
        settings: Settings of the scheduler.
        part: Fraction of the pool's devices that each job has if all have the same.
        kept: Earlier runs; None for none.
        rates: What is known of how fast they were on each kind of devices; None where all are alike.
    """

    beside: Path
    folder: Path | None
    curves: list[Curve]
    seed: int
    settings: Settings
    part: float
    kept: RunStore | None = None
    rates: KeptRates | None = None

    def read(self, name: Any, value: Any, found: Problems, devices: int) -> Played | None:
        """Return a job with its recording; None, with the problems in ``found``, if anything is wrong."""
        if not isinstance(value, Mapping):
            read_job(name, value, self.beside, found, devices)  # names the problem
            return None
        before = len(found.messages)
        found.check_keys(value, JOB_KEYS)
        terms = {key: value[key] for key in TERMS if key in value}
        spec = read_job(name, terms | NOTHING, self.beside, found, devices, locations=self.settings.locations)
        throughput = None
        if value.get("throughput") is not None:
            throughput = found.at("throughput").read(_speed, value["throughput"])
        paces = self._paces(value, found)
        if spec is None or len(found.messages) > before:
            return None
        played = self._played(spec.job, value, throughput, found, devices)
        return None if played is None else self._on_kinds(played, value, paces)

    def _played(
        self, job: Job, value: Mapping[str, Any], throughput: float | None, found: Problems, devices: int
    ) -> Played | None:
        """Return a job with its recording, as if all devices were alike."""
        try:
            if value.get("curve") is not None:
                return self._named(job, self._find(value["curve"]), throughput)
            run = self._earlier(job, value)
            if run is not None and throughput is None:
                throughput = _speed_of(run, min(job.max_devices, devices))
            if run is not None and throughput and (played := self._repeated(job, run, throughput)) is not None:
                return played
            if not self.curves:
                raise ValueError("names no recording; give it a curve: FILE, or name a folder of recordings (--curves)")
            return self._drawn(job, throughput)
        except ValueError as error:
            found.at(*(("curve",) if "curve" in value else ())).add(str(error))
            return None

    def _paces(self, value: Mapping[str, Any], found: Problems) -> Mapping[str, float]:
        """Return the paces that a job gives; empty if it gives none, or they are wrong."""
        if (given := value.get("paces")) is None:
            return {}
        at, kinds = found.at("paces"), {*self.settings.locations}
        if not isinstance(given, Mapping) or not given:
            at.add(f"must be a factor for each kind of devices, such as {{a100: 1, t4: 0.25}}, got {given!r}")
            return {}
        if kinds and (unknown := [str(kind) for kind in given if kind not in kinds]):
            at.add(f"there is no kind {unknown[0]!r}; the pool has {', '.join(sorted(kinds))}")
        return {str(kind): at.at(str(kind)).read(_factor, pace) or 1.0 for kind, pace in given.items()}

    def _on_kinds(self, played: Played, value: Mapping[str, Any], paces: Mapping[str, float]) -> Played:
        """Return a job as it is on the kinds of the pool."""
        if self.rates is None:
            return played
        known = _identified(played.given.job, value)
        kinds, counts = self.rates.kinds, Counter(self.settings.locations)
        wanted = (known.location,) if known.location else known.kinds
        allowed = [kind for kind in kinds if not wanted or kind in wanted]
        if paces:
            paces = {kind: paces.get(kind, 1.0) for kind in kinds}
            needs = played.needs / max(paces[kind] for kind in allowed)
            return replace(played, given=replace(played.given, job=known, paces=paces), needs=needs, paces_from="given")
        self.rates.learn(known)
        if not self.rates.compare:
            return replace(played, given=replace(played.given, job=known))
        size = min(known.max_devices, max(counts[kind] for kind in allowed))
        rate, _ = self.rates.rates.expect(known.family, size, kinds)
        fastest = max(rate[kinds.index(kind)] for kind in allowed)
        is_repeated = not played.drawn and value.get("curve") is None and value.get("throughput") is None
        if is_repeated and self.rates.rates.has(known.family, size, kinds):
            throughput = math.exp(fastest)
            needs = played.needs * played.given.throughput / throughput
            given = replace(played.given, throughput=throughput, throughputs=_by_size(known, throughput))
            played = replace(played, given=given, needs=needs)
        own = {kind: math.exp(one - fastest) for kind, one in zip(kinds, rate.tolist(), strict=True)}
        measured = [(kind, size, played.given.throughput * pace) for kind, pace in own.items()
                    if self.rates.is_measured(known.family, size, kind)]  # fmt: skip
        earlier = (EarlierRun(known.name, (), (), on_kinds=tuple(measured)),) if measured else ()
        given = replace(played.given, job=known, paces=own, earlier=earlier)
        return replace(played, given=given, paces_from="earlier runs")

    def _find(self, name: Any) -> Path:
        if not isinstance(name, str) or not name:
            raise ValueError(f"must be the path of a recording, got {name!r}")
        places = [place / name for place in (self.beside, self.folder) if place is not None]
        for place in places:
            if place.is_file():
                return place
        raise ValueError(f"{name}: no such recording in {' or '.join(str(place.parent) for place in places)}")

    def _earlier(self, job: Job, section: Mapping[str, Any]) -> PastRun | None:
        """Return the earlier run that is most like a job; None if there is none."""
        if self.kept is None:
            return None
        known = _identified(job, section)
        found = self.kept.similar(known, this_user()) or self.kept.similar(replace(known, like=job.name), this_user())
        return found[0] if found else None

    def _repeated(self, job: Job, run: PastRun, throughput: float) -> Played | None:
        """Return a job that trains as an earlier run did; None if that does not show when its target is reached."""
        if not job.target.observes or len(run.batches) < self.settings.window:
            return None
        # Stored curves are thinned: between points, a curve is assumed to be straight.
        position = np.unique(np.rint(np.linspace(run.batches[0], run.batches[-1], MAX_CELLS)))
        loss = np.interp(position, run.batches, run.losses)
        passage = self._passage(job, position, loss)
        if passage == math.inf:
            return None
        given = SimulatedJob(job, position, loss, throughput, 0.0, _by_size(job, throughput))
        return Played(given, f"{run.name} (earlier run)", passage / throughput, False)

    def _named(self, job: Job, path: Path, throughput: float | None) -> Played:
        curve = next((known for known in self.curves if self._is(known, path)), None)
        if job.target.observes and (job.target.grows or job.target.threshold <= 0):
            position, logged, lr = read_recording(path)
            loss = np.array([job.target.falling(value) for value in logged.tolist()])
            seconds = None if curve is None else curve.seconds_per_batch
            curve = Curve(path.stem, "", "", "", position, loss, seconds, lr=lr)
        elif curve is None:
            curve = load_curve(path)
        position, loss = curve.reports(MAX_CELLS)
        passage = self._passage(job, position, loss)
        if throughput is None and curve.seconds_per_batch is not None:
            throughput = 1.0 / curve.seconds_per_batch
        made_up = ""
        if throughput is None:
            made_up = "" if job.work else MADE_UP[1]
            throughput = (passage if passage < math.inf else float(position[-1])) / self._expected(job)
        rates = curve.learning_rates()
        given = SimulatedJob(job, position, loss, throughput, 0.0, _by_size(job, throughput), learning_rates=rates)
        return Played(given, path.name, passage / throughput, False, made_up)

    def _is(self, curve: Curve, path: Path) -> bool:
        return self.folder is not None and path == self.folder / f"{curve.name}.csv"

    def _drawn(self, job: Job, throughput: float | None) -> Played:
        """Return a falling curve of a run that was not restarted; the same for a name whatever the other jobs."""
        draw = np.random.default_rng([self.seed, *job.name.encode()])
        falling = [curve for curve in self.curves if not curve.restarts and _falls(curve, self.settings.window)]
        if not falling:
            raise ValueError(f"{self.folder}: no recording there is of one run and comes down")
        curve = falling[int(draw.integers(len(falling)))]
        position, loss = curve.reports(MAX_CELLS)
        last = float(position[-1])
        if job.target.observes:
            part = math.exp(draw.uniform(math.log(EARLIEST), math.log(LATEST)))
            mean = _trailing(loss, self.settings.window)
            lowest = float(mean[: max(int(part * len(mean)), 1)].min())
            if (goal := job.target.threshold) > 0:
                loss = loss * (goal / lowest * (1 - ROUNDING))
            else:  # moved down, for no factor turns its sign
                loss = loss + (goal - lowest - ROUNDING * (abs(goal) + lowest))
        seconds = self._expected(job)
        passage = self._passage(job, position, loss)
        known = job.work or (throughput is not None and not job.target.observes)
        made_up = MADE_UP[0] if known else ", ".join(MADE_UP)
        if not job.target.observes:
            position = position * (passage / position[-1])
            position, loss = _whole(position, loss)
            throughput = throughput or passage / seconds
        elif throughput is not None:
            position, loss = _whole(position * (throughput * seconds / passage), loss)
            passage = self._passage(job, position, loss)
        else:
            throughput = passage / seconds
        rates = curve.learning_rates(float(position[-1]) / last)
        given = SimulatedJob(job, position, loss, throughput, 0.0, _by_size(job, throughput), learning_rates=rates)
        return Played(given, curve.name, passage / throughput, True, made_up)

    def _passage(self, job: Job, position: FloatArray, loss: FloatArray) -> float:
        """Return the batches after which the target is reached; inf if it is not within the recording."""
        if not job.target.observes:
            if job.target.work is None:
                raise ValueError("the batches of an epoch are not known without training: add epoch_batches to target")
            return float(job.target.work)
        mean = _trailing(loss, self.settings.window)
        reached = np.flatnonzero(mean <= job.target.threshold)
        return float(position[reached[0] + self.settings.window - 1]) if len(reached) else math.inf

    def _expected(self, job: Job) -> float:
        """Return the expected seconds of work alone on its devices."""
        size = min(job.max_devices, self.settings.devices)
        due = NO_DEADLINE if job.is_best_effort else job.deadline
        return job.work or LOAD * (due - job.begin) * min(self.part / size, 1.0)


def _identified(job: Job, section: Mapping[str, Any]) -> Job:
    """Return a job with what its section says of it, by which earlier runs are found."""
    model = section.get("model")
    config = {**section, "model": {"class_path": model}} if isinstance(model, str) else section
    return replace(job, model=model_of(config), batch_size=batch_size_of(config))


def _speed_of(run: PastRun, size: int) -> float | None:
    """Return the batches per second of an earlier run on a number of devices; None if it does not show them."""
    return next((rate for devices, _, rate in run.throughputs if devices == size), None)


def _trailing(loss: FloatArray, window: int) -> FloatArray:
    """Return the means over a window of cells, shape ``(n - window + 1,)``; empty if there are fewer cells."""
    if len(loss) < window:
        return np.empty(0)
    return np.convolve(loss, np.ones(window) / window, "valid")


def _by_size(job: Job, throughput: float) -> list[float]:
    """Return the throughput on each number of devices that a job can be resized to; empty if it cannot be."""
    return [throughput * size / job.sizes[-1] for size in job.sizes]


def _falls(curve: Curve, window: int) -> bool:
    tenth = max(len(curve.loss) // 10, 1)
    return len(curve.loss) >= window and float(curve.loss[-tenth:].mean()) < float(curve.loss[:tenth].mean())


def _whole(position: FloatArray, loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return whole, growing positions; of cells that would close after the same batch, the last one."""
    whole = np.maximum(np.rint(position), 1.0)
    last = np.append(np.diff(whole) > 0, True)
    return whole[last], loss[last]


def _factor(value: Any) -> float:
    given = read_number(value)
    if not 0 < given < math.inf:
        raise ValueError(f"must be a positive, finite factor, got {value!r}")
    return given


def _speed(value: Any) -> float:
    given = read_number(value)
    if not 0 < given < math.inf:
        raise ValueError(f"must be positive and finite batches a second, got {value!r}")
    return given
