"""One job of a bundle file: its terms, and the LightningCLI config that trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from lightning_core.bundle.class_paths import check_class_paths
from lightning_core.bundle.device_counts import micro_batches_of, sizes
from lightning_core.bundle.preflight import check_plain
from lightning_core.bundle.problems import BundleError, Position, Problems, require
from lightning_core.core.codec import job_to_dict
from lightning_core.core.durations import Moment, WallTime, parse_duration, parse_when, seconds_until
from lightning_core.core.jobs import Capability, Job, OnMiss, OnNan
from lightning_core.core.names import NAME_RULE, did_you_mean, is_name
from lightning_core.core.targets import STEP_LOSS, BatchTarget, LossTarget, Target, parse_target
from lightning_core.storage.job_specs import SAVE_EVERY

CONFIG_KEYS = ("model", "data", "trainer", "seed_everything", "optimizer", "lr_scheduler", "ckpt_path")
TERMS = ("deadline", "target", "begin", "weight", "devices", "min_devices", "max_devices", "on_miss", "on_nan", "work",
         "cell", "restarts", "retries", "location", "save_every", "keep_best")  # fmt: skip
# Of what is played in its place by a simulation; a run takes no notice.
RECORDING_KEYS = ("curve", "throughput")
# Of a job that a run has begun: when it was submitted, which is what its times of day go by from then on.
SUBMITTED = "submitted"
JOB_KEYS = ("config", *TERMS, SUBMITTED, *RECORDING_KEYS, *CONFIG_KEYS)
TARGET_KEYS = ("loss", "metric", "at_most", "at_least", "best", "batches", "for_evaluations")
# The launcher gives every job its devices and its end; a config that does too contradicts it.
LAUNCHERS_KEYS = {
    **dict.fromkeys(("accelerator", "devices", "num_nodes", "strategy"), "is set by the launcher; remove it"),
    "max_time": "contradicts the job's deadline; remove it and use deadline",
}
# Checkpoints that Lightning finds by itself.
LIGHTNINGS_CHECKPOINTS = ("last", "best", "hpc", "registry")

CELL = 10
_CAN = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE})


@dataclass(frozen=True)
class JobSpec:
    """A job and the LightningCLI config that trains it.

    Args:
        job: name, deadline, target and the other terms.
        config: keys ``model``, ``data``, ``trainer``, ``seed_everything``, ...; plain data throughout.
        cell: least batches in a loss cell, of which estimators need some ten.
        save_every: least seconds between two saves for fear of what cannot be foreseen; None: as the run does it.
        keep_best: whether the best model is kept in the job's folder.
        source: of the config, so that a problem can name file and line.
        clock: Terms given as points in wall-clock time, ``deadline`` and ``begin``; the job has them in seconds, as of
            its submission, or as of when it was read.
        submitted: Time of its submission; None before that.

    Raises:
        BundleError: if the config holds what cannot be sent to a worker.
    """

    job: Job
    config: Mapping[str, Any]
    cell: int = CELL
    save_every: float | None = None
    keep_best: bool = field(default=False, kw_only=True)
    source: Position | None = field(default=None, compare=False, repr=False)
    clock: Mapping[str, WallTime] = field(default_factory=dict)
    submitted: datetime | None = None

    def __post_init__(self) -> None:
        found = Problems(self.position)
        check_plain(self.config, found)
        if found.messages:
            raise BundleError(found.messages)

    @property
    def position(self) -> Position:
        """Of the config."""
        return self.source or Position("bundle").at("jobs", self.job.name)

    @property
    def saves(self) -> float:
        """Least seconds between two saves."""
        return SAVE_EVERY if self.save_every is None else self.save_every

    def as_of(self, now: datetime) -> Self:
        """Return the job as it is submitted now.

        Raises:
            BundleError: If a point in time has passed.
        """
        terms: dict[str, Any] = {}
        for key, when in self.clock.items():
            try:
                terms[key] = seconds_until(when, now)
            except ValueError as error:
                raise BundleError([self.position.at(key).problem(str(error))]) from None
        try:
            return replace(self, job=replace(self.job, **terms), submitted=now)
        except ValueError as error:
            raise BundleError([self.position.problem(str(error))]) from None

    def moments(self, now: datetime) -> dict[str, Moment]:
        """Return when its points in time are, by term."""
        return {key: when.resolve(now) for key, when in self.clock.items()}

    def for_worker(self, folder: Path) -> dict[str, Any]:
        """What the Keeper needs to launch the job, plain data; class paths are looked up in ``folder`` too."""
        paths = [str(folder), str(Path.cwd())]
        return {"job": job_to_dict(self.job), "config": self.config, "cell": self.cell, "save_every": self.saves,
                "keep_best": self.keep_best, "paths": paths}  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """As in a bundle file, the config inline."""
        job = self.job
        terms: dict[str, Any] = {"deadline": exact_duration(job.deadline), "target": job.target.to_dict()}
        if job.begin:
            terms["begin"] = exact_duration(job.begin)
        terms |= {key: when.text for key, when in self.clock.items()}
        if self.submitted is not None:
            terms[SUBMITTED] = self.submitted.astimezone().isoformat()
        if job.work is not None:
            terms["work"] = exact_duration(job.work)
        if job.restarts is not None:
            terms["restarts"] = job.restarts
        if job.location:
            terms["location"] = job.location
        return {
            **self.config,
            **terms,
            "weight": job.weight,
            "min_devices": job.min_devices,
            "max_devices": job.max_devices,
            "on_miss": str(job.on_miss),
            "on_nan": str(job.on_nan),
            "retries": job.retries,
            "cell": self.cell,
            **({} if self.save_every is None else {"save_every": exact_duration(self.save_every)}),
            **({"keep_best": True} if self.keep_best else {}),
        }


def read_job(
    name: Any,
    value: Any,
    folder: Path,
    found: Problems,
    devices: int,
    allow: Sequence[str] | None = None,
    locations: Sequence[str] = (),
    submitted: datetime | None = None,
) -> JobSpec | None:
    """A job of a bundle file; None, with its problems in ``found``, if anything is wrong.

    Args:
        name: its key.
        value: what the file says of it.
        folder: what paths are relative to.
        found: at the job.
        devices: of the pool.
        allow: what its config may import; None for all that is not refused.
        locations: of the pool's devices.
        submitted: Time of its submission, if it was submitted and the file may not say so.
    """
    before = len(found.messages)
    if not is_name(name):
        quote = "" if isinstance(name, str) else "; quote it"
        found.add(f"a name is {NAME_RULE}, got {name!a}{quote}")  # of letters that only look alike, their codes
        return None
    if not isinstance(value, Mapping):
        given = "empty" if value is None else f"got {value!r}"
        found.add(f"{given}; expected a mapping with deadline, target and a config")
        return None
    found.check_keys(value, JOB_KEYS)

    def term(key: str, parse: Any, default: Any = None) -> Any:
        if value.get(key) is None:
            return default
        return found.at(key).read(parse, value[key])

    config, source = _config(value, folder, found, allow)
    for key, example in (("deadline", "1h30m"), ("target", "{loss: 0.35}")):
        if value.get(key) is None:
            (found.at(key) if key in value else found).add(f"{key} is missing; expected one such as {example}")
    submitted = term(SUBMITTED, _moment, submitted)
    now = datetime.now() if submitted is None else submitted
    clock: dict[str, WallTime] = {}

    def when(key: str, default: float | None = None) -> Any:
        def parse(value: Any) -> float:
            found_ = parse_when(value)
            if isinstance(found_, WallTime):
                clock[key] = found_
            return seconds_until(found_, now)

        return term(key, parse, default)

    deadline, target = when("deadline"), term("target", read_target)
    begin, work = when("begin", 0.0), term("work", parse_duration)
    weight, on_miss = term("weight", _positive, 1.0), term("on_miss", _on_miss, OnMiss.CONTINUE)
    on_nan = term("on_nan", _on_nan, OnNan.CONTINUE)
    cell, save_every = term("cell", positive_int, CELL), term("save_every", parse_duration)
    keep_best = term("keep_best", _yes_or_no, False)
    restarts, retries = term("restarts", _times), term("retries", _times, 0)
    if deadline is not None and begin is not None and begin >= deadline:
        found.at("begin").add(f"must be before the deadline {value['deadline']}, got {value['begin']!r}")
    both = term("devices", positive_int)
    if both is not None and (twice := [key for key in ("min_devices", "max_devices") if key in value]):
        found.at("devices").add(f"stands for min_devices and max_devices; remove it, or {' and '.join(twice)}")
    least = term("min_devices", positive_int, both or 1)
    most = term("max_devices", positive_int, both or least)
    if least is not None and most is not None and least > most:
        found.at("min_devices").add(f"must be at most max_devices {most}, got {least}")
    location = value.get("location") or ""
    if location and location not in locations:
        known = ", ".join(dict.fromkeys(locations)) or "none: pool.devices says no locations"
        found.at("location").add(f"must be one of the pool's ({known}), got {location!r}")
        location = ""
    there, where = (list(locations).count(location), f" at {location}") if location else (devices, "")
    if least is not None and least > there:
        key = "devices" if both else "min_devices"
        found.at(key).add(f"must be at most the pool's {there}{where}, or the job can never be scheduled, got {least}")
    if len(found.messages) > before:
        return None
    several = sizes(micro_batches_of(config, most), least, most)
    job = Job(
        name,
        deadline,
        target,
        begin=begin,
        weight=weight,
        min_devices=least,
        max_devices=most,
        on_miss=on_miss,
        on_nan=on_nan,
        work=work,
        can=_CAN | {Capability.RESIZE} if several else _CAN,
        restarts=restarts,
        retries=retries,
        sizes=several,
        location=location,
    )
    return JobSpec(job, config, cell, save_every, source, clock, submitted, keep_best=keep_best)


def _config(
    value: Mapping[str, Any], folder: Path, found: Problems, allow: Sequence[str] | None
) -> tuple[dict[str, Any], Position]:
    config = {key: value[key] for key in CONFIG_KEYS if key in value}
    if "config" in value:
        if config:
            found.at("config").add(f"either config or {', '.join(config)}, not both")
            return config, found.position
        if not isinstance(value["config"], str):
            found.at("config").add(f"must be the path of a LightningCLI config, got {value['config']!r}")
            return config, found.position
        try:
            require("yaml")
            from lightning_core.bundle.yaml_loader import load_yaml

            content, inner = load_yaml(folder / value["config"], "file is empty; expected a LightningCLI config")
        except BundleError as error:
            found.messages.extend(error.problems)
            return config, found.position
        found.messages.extend(inner.messages)
        found = found.within(inner.position)
        if isinstance(content, Mapping) and "fit" in content:  # of `main.py --config x.yaml fit`
            content, found = content["fit"], found.at("fit")
        if not isinstance(content, Mapping):
            found.add(f"expected a LightningCLI config, a mapping with model, got {content!r}")
            return config, found.position
        found.check_keys(content, CONFIG_KEYS)
        config = {key: content[key] for key in CONFIG_KEYS if key in content}
    if "model" not in config:
        found.add("model is missing (inline, or in the file that config names)")
    for key in ("model", "data"):  # `model: mine.Cnn` is short for a class without arguments
        if isinstance(config.get(key), str):
            config[key] = {"class_path": config[key]}
    _check_config(config, folder, found, allow)
    return config, found.position


def _check_config(config: dict[str, Any], folder: Path, found: Problems, allow: Sequence[str] | None) -> None:
    check_plain(config, found)
    check_class_paths(config, found, allow)
    trainer = config.get("trainer")
    if isinstance(trainer, Mapping):
        for key, words in LAUNCHERS_KEYS.items():
            if key in trainer:
                found.at("trainer", key).add(words)
    elif trainer is not None:
        found.at("trainer").add(f"must be a mapping of Trainer's arguments, got {trainer!r}")
    seed = config.get("seed_everything", True)
    if not isinstance(seed, bool | int):
        found.at("seed_everything").add(f"must be a whole number or a bool, got {seed!r}")
    checkpoint = config.get("ckpt_path")
    if checkpoint is None:
        config.pop("ckpt_path", None)
    elif not isinstance(checkpoint, str) or not checkpoint:
        found.at("ckpt_path").add(f"must be the path of a checkpoint, got {checkpoint!r}")
    elif is_file_name(checkpoint):
        config["ckpt_path"] = str(folder / checkpoint)


def is_file_name(checkpoint: str) -> bool:
    """Whether a ``ckpt_path`` names a file here, not an address or one that Lightning finds by itself."""
    return checkpoint.partition(":")[0] not in LIGHTNINGS_CHECKPOINTS and "://" not in checkpoint


def read_target(value: Any) -> Target:
    """Read a job's target.

    Args:
        value: One line such as ``val_acc>=0.9``; or ``{loss: E}``, ``{metric: NAME, at_most: E}``, ``{metric: NAME,
            at_least: X, best: 1.0}``, each with ``for_evaluations: N`` if it is to hold so often; or ``{batches: N}``.

    Raises:
        ValueError: If it is none of these, or a number is out of its range.
    """
    forms = "val_acc>=0.9, {loss: E}, {metric: NAME, at_most: E}, {metric: NAME, at_least: X} or {batches: N}"
    if isinstance(value, str):
        return parse_target(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {forms}, got {value!r}")
    for key in value:
        if key not in TARGET_KEYS:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, TARGET_KEYS)}")
    terms = dict(value)
    if terms.keys() == {"batches"}:
        return BatchTarget(positive_int(terms["batches"]))
    if "batches" in terms and terms.keys() == {"batches", "for_evaluations"}:
        raise ValueError("for_evaluations is of a metric, and batches are counted; remove it")
    if "loss" in terms and not {"metric", "at_most"} & terms.keys():
        terms |= {"metric": STEP_LOSS, "at_most": terms.pop("loss")}
    times = positive_int(terms.pop("for_evaluations", 1))
    if not isinstance(terms.get("metric", ""), str):
        raise ValueError(f"metric must be a name, got {terms['metric']!r}")
    if terms.keys() not in ({"metric", "at_most"}, {"metric", "at_least"}, {"metric", "at_least", "best"}):
        raise ValueError(f"expected {forms}, got {', '.join(sorted(value)) or 'nothing'}")
    numbers = {key: read_number(terms[key]) for key in ("at_most", "at_least", "best") if key in terms}
    return LossTarget(terms["metric"], **numbers, for_evaluations=times)


def exact_duration(seconds: float) -> str:
    """What is read as exactly so many seconds.

    Example::

        >>> exact_duration(90.0), exact_duration(1e-05)
        ('90s', '0.00001s')
    """
    return f"{np.format_float_positional(seconds, trim='-')}s"


def positive_int(value: Any, most: int | None = None) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: if it is none; a bool is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        limit = "of at least 1" if most is None else f"from 1 to {most}"
        raise ValueError(f"must be a whole number {limit}, got {value!r}")
    return value


def _moment(value: Any) -> datetime:
    """A time that was noted: naive, in the machine's time zone, which knows of summer time."""
    try:
        return datetime.fromtimestamp(datetime.fromisoformat(value).timestamp())
    except (TypeError, ValueError, OverflowError, OSError):
        raise ValueError(f"is noted by a run, as 2026-11-23T18:00:00+00:00; remove it, got {value!r}") from None


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")
    return value


def _times(value: Any) -> int:
    """How often: a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"must be a whole number of at least 0, got {value!r}")
    return value


def read_number(value: Any) -> float:
    """A number.

    Raises:
        ValueError: if it is none; a bool is none.
    """
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, got {value!r}")
    return float(value)


def _positive(value: Any) -> float:
    given = read_number(value)
    if not (given > 0 and math.isfinite(given)):
        raise ValueError(f"must be positive and finite, got {value!r}")
    return given


def _on_nan(value: Any) -> OnNan:
    try:
        return OnNan(value)
    except ValueError:
        raise ValueError(f"{value!r} is unknown{did_you_mean(value, map(str, OnNan))}") from None


def _on_miss(value: Any) -> OnMiss:
    try:
        return OnMiss(value)
    except ValueError:
        raise ValueError(f"{value!r} is unknown{did_you_mean(value, map(str, OnMiss))}") from None
