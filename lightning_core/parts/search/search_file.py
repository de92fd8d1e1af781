"""The file of a search: a job with ``search``, whose trials are jobs with other hyper-parameters.

::

    deadline: "18:00"                 # of the search; it ends then
    model: {class_path: mine.Cnn}     # and the other keys of a job, but for its target
    data: mine.Data
    search:
      metric: val_loss                # logged once an epoch
      epochs: 30                      # of a whole trial
      space:
        model.init_args.lr: {float: [1e-4, 0.1], log: true}
        model.init_args.width: {int: [8, 256], step: 8}
        model.init_args.optimizer: {choices: [adam, sgd]}
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_core.bundle.bundle_content import read_allow_import
from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.config_section import CONFIG_KEYS, REFUSED_TRAINER_KEYS
from lightning_core.bundle.job_section import JOB_KEYS, read_job
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.bundle.problems import BundleError, Problems, require
from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import MAX_COUNT, MAX_DEVICES, shown
from lightning_core.core.names import MAX_NAME_LENGTH, did_you_mean
from lightning_core.core.targets import STEP_LOSS
from lightning_core.core.validation import positive_int
from lightning_core.parts.search.search_space import MAX_VALUES, Parameter, finite, read_space

SEARCH = "search"
# Arguments of the Trainer that are the same in all trials.
OWN_TRAINER_KEYS = {
    **REFUSED_TRAINER_KEYS, "max_epochs": "is set by the search", "strategy": "is the same in all trials; set it there",
}  # fmt: skip
SAMPLERS = ("tpe", "random", "grid")
KEYS = ("metric", "mode", "epochs", "space", "sampler", "seed", "target", "worth", "trials", "at_once")
EXAMPLES = {"metric": "val_loss", "epochs": "30", "space": "{model.init_args.lr: {float: [1e-4, 0.1]}}"}
# What the trials of a search have in common: the file cannot set it.
REFUSED = {
    "script": "is for a job; a search gives hyper-parameters to a config, by model and data, or config",
    "target": "is for a job; the goal of a search is search.metric, and what is enough search.target",
    "begin": "is for a job; trials begin when the search says",
    "on_miss": "is for a job; trials end with the search",
    "curve": "is for simulate, which plays no searches",
    "throughput": "is for simulate, which plays no searches",
    "paces": "is for simulate, which plays no searches",
}
# Characters that trials add to the name of the search.
NUMBER_LENGTH = 12
MAX_POINTS = 10_000


@dataclass(frozen=True)
class SearchSpec:
    """A search: a job whose trials differ in their hyper-parameters.

    Args:
        template: Job of which each trial is a copy; its deadline is that of the search.
        space: What is drawn for each trial.
        metric: Name of the logged metric that is to be improved.
        mode: Whether it is minimised, ``"min"``, or maximised, ``"max"``.
        epochs: Epochs of a whole trial.
        folder: Folder in which class paths are looked up.
        sampler: What draws: one of :data:`SAMPLERS`.
        seed: Seed of the sampler; None for another one each time.
        target: Value that is enough; None for as good as can be.
        worth: Device seconds that a value 1 % better is worth; None to search until the deadline.
        trials: Number of trials that may begin; None for as many as there is time for.
        at_once: Number of trials that may train at once; None for as many as the pool has devices for.
        allow_import: Names that class paths may import; None for all but the standard library.
    """

    template: JobSpec
    space: tuple[Parameter, ...]
    metric: str
    mode: str
    epochs: int
    folder: Path
    sampler: str = "tpe"
    seed: int | None = None
    target: float | None = None
    worth: float | None = None
    trials: int | None = None
    at_once: int | None = None
    allow_import: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Name of the search; those of its trials begin with it."""
        return self.template.job.name

    @property
    def max_trials(self) -> float:
        """Number of trials that may begin; inf for any."""
        points = math.prod(len(one.grid or ()) for one in self.space) if self.sampler == "grid" else math.inf
        return min(points, math.inf if self.trials is None else self.trials)

    def trial(self, number: int, values: Mapping[str, Any], seconds: float, weight: float = 1.0) -> JobSpec:
        """Return the job of a trial.

        Args:
            number: Number of the trial.
            values: Value of each hyper-parameter, by its name.
            seconds: Seconds until its deadline.
            weight: Part of the weight of the search that the trial has.
        """
        config = copy.deepcopy(dict(self.template.config))
        for parameter in self.space:
            *way, last = parameter.path
            section = config
            for key in way:
                section = section.setdefault(key, {})
            section[last] = values[parameter.name]
        job = self.template.job
        job = replace(job, name=f"{self.name}-{number}", deadline=seconds, weight=job.weight * weight,
                      parts={**job.parts, "search": {"trial_of": self.name}})  # fmt: skip
        return replace(self.template, job=job, config=config, clock={})

    def samples(self) -> list[JobSpec]:
        """Return trials in which each value that configs are checked on stands at least once."""
        ends = [parameter.ends for parameter in self.space]
        rows = range(max(map(len, ends)))
        drawn = [{p.name: values[k % len(values)] for p, values in zip(self.space, ends, strict=True)} for k in rows]
        jobs = [self.trial(k, values, 60.0) for k, values in enumerate(drawn)]
        return [replace(one, job=replace(one.job, name=f"{self.name}-sample-{k}")) for k, one in enumerate(jobs)]

    def bundle(self, jobs: Sequence[JobSpec]) -> BundleSpec:
        """Return jobs of the search as a bundle that a pool takes."""
        return BundleSpec(tuple(jobs), folder=self.folder, allow_import=self.allow_import)

    @classmethod
    def from_file(cls, path: Path | str, existing: ExistingPool, allow_import: Sequence[str] = ()) -> SearchSpec:
        """Read the file of a search.

        Args:
            path: Of the file.
            existing: Pool in which it is to run.
            allow_import: Names that class paths may import; empty for those of the file.

        Raises:
            BundleError: With every problem found.
        """
        require("yaml")
        from lightning_core.bundle.yaml_loader import load_yaml

        path = Path(path)
        content, problems = load_yaml(path, "file is empty; expected a job with search")
        if not isinstance(content, Mapping) or SEARCH not in content:
            problems.add("expected a job with the key search; `lightning-core run` takes files without it")
            raise BundleError(problems.messages)
        return _read(content, path, problems, existing, allow_import)


def _read(
    content: Mapping[str, Any], path: Path, problems: Problems, existing: ExistingPool, allow: Sequence[str]
) -> SearchSpec:
    problems.check_keys(content, ("name", SEARCH, "allow_import", *JOB_KEYS))
    for key, words in REFUSED.items():
        if key in content:
            problems.at(key).add(words)
    if content.get("deadline") is None:
        problems.add('deadline is missing: when the search ends, such as 2h or "18:00"')
    allowed = None
    if allow or content.get("allow_import") is not None:
        allowed = problems.at("allow_import").read(read_allow_import, list(allow) or content["allow_import"])
    terms = _terms(content[SEARCH], problems.at(SEARCH))
    section = {key: value for key, value in content.items() if key in JOB_KEYS and key not in REFUSED}
    section |= {"on_miss": "stop", "on_nan": section.get("on_nan", "stop"), "keep_best": True}
    section["target"] = {"epochs": 1} if terms is None else {key: terms[key] for key in ("epochs", "metric", "mode")}
    folder, name = path.parent.resolve(), content.get("name", path.stem)
    if isinstance(name, str) and len(name) > MAX_NAME_LENGTH - NUMBER_LENGTH:
        problems.at("name").add(f"must have at most {MAX_NAME_LENGTH - NUMBER_LENGTH} characters, got {len(name)}")
    template = read_job(name, section, folder, problems, existing.devices, allowed, existing.locations)
    if template is not None and terms is not None:
        template = _trained_to(template, terms["epochs"], problems)
        _check_space(template, terms["space"], problems.at(SEARCH, "space"))
    if problems.messages or template is None or terms is None:
        raise BundleError(problems.messages)
    return SearchSpec(template, folder=folder, allow_import=allowed, **terms)


def _trained_to(template: JobSpec, epochs: int, problems: Problems) -> JobSpec:
    """Return the template, whose training ends after the epochs of a trial."""
    trainer = dict(template.config.get("trainer") or {})
    if (told := trainer.get("max_epochs", epochs)) != epochs:
        problems.within(template.position).at("trainer", "max_epochs").add(
            f"must be search.epochs, {epochs}, or not be set, got {shown(told)}"
        )
    return replace(template, config={**template.config, "trainer": {**trainer, "max_epochs": epochs}})


def _check_space(template: JobSpec, space: Sequence[Parameter], problems: Problems) -> None:
    """Check that each hyper-parameter has a place in the config."""
    for parameter in space:
        first, *rest = parameter.path
        at = problems.at(parameter.name)
        if first not in CONFIG_KEYS or not rest:
            at.add(f"must begin with a section of the config, as model.init_args.lr: {', '.join(CONFIG_KEYS)}")
            continue
        if first == "trainer" and rest[0] in OWN_TRAINER_KEYS:
            at.add(OWN_TRAINER_KEYS[rest[0]])
        section: Any = template.config
        for key in parameter.path[:-1]:
            section = section.get(key, {}) if isinstance(section, Mapping) else None
        if not isinstance(section, Mapping):
            at.add("leads through a value of the config that is no mapping")


def _terms(section: Any, problems: Problems) -> dict[str, Any] | None:
    """Return what ``search`` says, as arguments of :class:`SearchSpec`; None, with the problems added, if wrong."""
    if not isinstance(section, Mapping):
        problems.add(f"expected a mapping with metric, epochs and space, got {shown(section)}")
        return None
    before = len(problems.messages)
    problems.check_keys(section, KEYS)
    for key, example in EXAMPLES.items():
        if section.get(key) is None:
            problems.add(f"{key} is missing; expected one such as {example}")
    readers: dict[str, Callable[[Any], Any]] = {
        "metric": _metric, "mode": _one_of("min", "max"), "epochs": _epochs, "sampler": _one_of(*SAMPLERS),
        "seed": _seed, "target": finite, "worth": parse_duration,
        "trials": lambda value: positive_int(value, maximum=10**6),
        "at_once": lambda value: positive_int(value, maximum=MAX_DEVICES),
    }  # fmt: skip
    terms: dict[str, Any] = {
        key: problems.at(key).read(read, section[key]) for key, read in readers.items() if section.get(key) is not None
    }
    space = terms["space"] = read_space(section.get("space"), problems.at("space"))
    terms.setdefault("mode", "min")
    if terms.get("sampler") == "grid":
        for parameter in space:
            if parameter.grid is None:
                rule = f"needs choices, or whole numbers or a step, at most {MAX_VALUES} values, for the sampler grid"
                problems.at("space", parameter.name).add(rule)
        if (points := math.prod(len(one.grid or ()) for one in space)) > MAX_POINTS:
            problems.at("sampler").add(f"grid must have at most {MAX_POINTS:,} points, got {points:,}")
    return terms if len(problems.messages) == before else None


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{shown(value)} is unknown{did_you_mean(value, words)}")
        return str(value)

    return read


def _metric(value: Any) -> str:
    if not isinstance(value, str) or not value or " " in value or value == STEP_LOSS:
        raise ValueError(f"must be the name under which it is logged, such as val_loss, got {shown(value)}")
    return value


def _epochs(value: Any) -> int:
    if isinstance(value, int) and value < 2:
        raise ValueError(f"must be at least 2, as a search stops trials between epochs, got {shown(value)}")
    return positive_int(value, maximum=MAX_COUNT)


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise ValueError(f"must be a whole number from 0 to 2**32 - 1, got {shown(value)}")
    return value
