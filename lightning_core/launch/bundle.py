"""Bundles: jobs submitted together, as a file or as a Python object.

::

    policy: lara                       # or {name: lara, order: edf, explore: 10}
    pool: {devices: 1, kind: cpu}
    jobs:
      vit:
        config: vit.yaml               # a LightningCLI config, relative to this file
        deadline: 1h30m
        target: {loss: 0.35}           # of training_step; or {metric: train_loss, at_most: 0.35}, {batches: 2000}
      cnn:                             # ... or the config itself
        model: {class_path: mine.Cnn, init_args: {lr: 0.001}}
        data: {class_path: mine.Data}
        trainer: {max_epochs: 50}
        deadline: 10m
        target: {batches: 2000}
        cell: 5                        # least batches in a loss observation, 10 unless told
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from lightning_core.codec import target_to_dict
from lightning_core.durations import parse_duration
from lightning_core.launch.loading import BundleError, class_path_problems, load_yaml, unknown_keys
from lightning_core.scheduler import Settings
from lightning_core.types import STEP_LOSS, BatchTarget, Job, LossTarget, Target

if TYPE_CHECKING:
    from lightning_core.launch.cluster import Cluster, Watcher
    from lightning_core.summary import Summary

BUNDLE_KEYS = ("pool", "policy", "estimator", "period", "jobs")
POOL_KEYS = ("devices", "kind")
CONFIG_KEYS = ("model", "data", "trainer", "seed_everything", "optimizer", "lr_scheduler", "ckpt_path")
JOB_KEYS = ("config", "deadline", "target", "cell", *CONFIG_KEYS)
TARGET_KEYS = ("loss", "metric", "at_most", "batches")
# The launcher gives every job its device; a config that does too contradicts it.
LAUNCHERS_KEYS = ("accelerator", "devices", "num_nodes", "strategy")
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Kind = Literal["cpu", "gpu"]
CELL = 10


@dataclass(frozen=True)
class JobSpec:
    """A job and the LightningCLI config that trains it.

    Args:
        job: name, deadline, target.
        config: keys ``model``, ``data``, ``trainer``, ``seed_everything``, ...
        cell: least batches in a loss cell, of which estimators need some ten.
    """

    job: Job
    config: Mapping[str, Any]
    cell: int = CELL


@dataclass(frozen=True)
class Bundle:
    """Jobs submitted together, and how they share the pool.

    Args:
        jobs: in the order of submission.
        settings: policy, estimator and constants of the scheduler.
        kind: of the pool's devices.
        folder: where class paths are looked up, beside the current folder.

    Raises:
        BundleError: if there is no job, or two have one name.
    """

    jobs: tuple[JobSpec, ...]
    settings: Settings = field(default_factory=Settings)
    kind: Kind = "cpu"
    folder: Path = Path()

    def __post_init__(self) -> None:
        names = [spec.job.name for spec in self.jobs]
        if not names:
            raise BundleError(["jobs: at least one job is needed"])
        if twice := {name for name in names if names.count(name) > 1}:
            raise BundleError([f"jobs: {name!r} is there twice" for name in sorted(twice)])

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Reads a bundle file.

        Raises:
            BundleError: with every problem found.
        """
        path = Path(path)
        return cls.from_dict(load_yaml(path), path.parent, str(path))

    @classmethod
    def from_dict(cls, content: Any, folder: Path | str = ".", source: str = "bundle") -> Self:
        """What a bundle file holds, as Python objects.

        Args:
            content: a mapping as in the file.
            folder: what the paths in it are relative to.
            source: how errors call it.

        Raises:
            BundleError: with every problem found.
        """
        folder = Path(folder).resolve()
        if not isinstance(content, Mapping):
            raise BundleError([f"{source}: expected a mapping with 'jobs', got {type(content).__name__}"])
        problems = [f"{source}: {problem}" for problem in unknown_keys(content, BUNDLE_KEYS, "top level")]

        def attempt(where: str, make: Callable[[], Any]) -> Any:
            try:
                return make()
            except BundleError as error:
                problems.extend(f"{source}: {problem}" for problem in error.problems)
            except (ValueError, TypeError) as error:
                problems.append(f"{source}: {where}: {error}")
            return None

        kind = attempt("pool", lambda: _pool(content.get("pool", {})))
        settings = attempt("policy", lambda: _settings(content))
        jobs = content.get("jobs")
        specs = []
        if not isinstance(jobs, Mapping) or not jobs:
            problems.append(f"{source}: jobs: expected a mapping of at least one job, got {jobs!r}")
        else:
            for name, value in jobs.items():
                spec = attempt(f"jobs.{name}", lambda name=name, value=value: _job(name, value, folder))  # type: ignore[misc]
                specs.append(spec)
        if problems:
            raise BundleError(problems)
        return cls(tuple(specs), settings, kind, folder)

    def with_policy(self, text: str) -> Self:
        """The same jobs under another policy: a name, or a name with arguments such as ``lara:order=edf,explore=5``.

        Raises:
            ValueError: if the policy is unknown or an argument out of its range.
        """
        return replace(self, settings=_with_policy(self.settings, parse_policy(text)))

    def check(self) -> None:
        """Imports what the configs name and parses them as LightningCLI will, without building anything.

        Raises:
            BundleError: with every problem found.
        """
        from lightning_core.launch.configuration import config_problem

        for folder in (str(self.folder), str(Path.cwd())):
            if folder not in sys.path:
                sys.path.append(folder)
        problems = []
        for spec in self.jobs:
            where = f"jobs.{spec.job.name}"
            found = class_path_problems(spec.config, where)
            if not found and (problem := config_problem(spec.config)):
                found = [f"{where}: {problem}"]
            problems += found
        if problems:
            raise BundleError(problems)

    def run(
        self,
        policy: str | None = None,
        run_dir: Path | str | None = None,
        *,
        cluster: Cluster | None = None,
        watcher: Watcher | None = None,
    ) -> Summary:
        """Runs all jobs to their ends.

        Args:
            policy: instead of the bundle's, as in :meth:`with_policy`.
            run_dir: folder for the journal, the spec, the summary and what the jobs save; made anew.
            cluster: warm workers to use; None brings up a local Ray for this run.
            watcher: is shown the jobs while they run.

        Returns:
            What became of each job; also written to ``run_dir/summary.json``.

        Raises:
            BundleError: if a config is wrong, before anything has started.
        """
        from lightning_core.launch.cluster import Cluster, new_run_dir

        bundle = self if policy is None else self.with_policy(policy)
        bundle.check()
        folder = new_run_dir(run_dir)
        if cluster is not None:
            return cluster.run(bundle, folder, watcher)
        with Cluster(workers=len(self.jobs), kind=self.kind) as own:
            return own.run(bundle, folder, watcher)

    def to_dict(self) -> dict[str, Any]:
        """As a bundle file with everything inline; :meth:`from_dict` reads it."""
        settings = self.settings
        return {
            "pool": {"devices": 1, "kind": self.kind},
            "policy": {"name": settings.policy, **settings.policy_args},
            "estimator": {"name": settings.estimator, **settings.estimator_args},
            "period": f"{settings.period}s",
            "jobs": {
                spec.job.name: {
                    **spec.config,
                    "deadline": f"{spec.job.deadline}s",
                    "target": target_to_dict(spec.job.target),
                    "cell": spec.cell,
                }
                for spec in self.jobs
            },
        }


def parse_policy(text: str) -> dict[str, Any]:
    """``lara:order=edf,explore=5`` as ``{"name": "lara", "order": "edf", "explore": 5}``.

    Raises:
        ValueError: if it is not of that form.
    """
    name, _, rest = text.partition(":")
    policy: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(f"policy must be NAME or NAME:KEY=VALUE,..., got {text!r}")
        policy[key] = int(value) if value.isdigit() else value
    return policy


def _with_policy(settings: Settings, policy: Mapping[str, Any]) -> Settings:
    name, args = _named(policy, settings.policy)
    return replace(settings, policy=name, policy_args=args)


def _settings(content: Mapping[str, Any]) -> Settings:
    default = Settings()
    estimator, estimator_args = _named(content.get("estimator", {}), default.estimator)
    period = content.get("period")
    settings = Settings(
        estimator=estimator,
        estimator_args=estimator_args,
        period=default.period if period is None else parse_duration(period),
    )
    return _with_policy(settings, content.get("policy", {}))


def _named(value: Any, default: str) -> tuple[str, dict[str, Any]]:
    """``lara`` or ``{name: lara, order: edf}`` as a name and arguments."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name or a mapping with 'name', got {value!r}")
    args = dict(value)
    return str(args.pop("name", default)), args


def _pool(value: Any) -> Kind:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping, got {value!r}")
    problems = unknown_keys(value, POOL_KEYS, "pool")
    devices, kind = value.get("devices", 1), value.get("kind", "cpu")
    if isinstance(devices, bool) or not isinstance(devices, int) or devices != 1:
        problems.append(f"pool.devices: this version shares one device, got {devices!r}")
    if kind not in ("cpu", "gpu"):
        problems.append(f"pool.kind must be cpu or gpu, got {kind!r}")
    if problems:
        raise BundleError(problems)
    return kind  # type: ignore[no-any-return]


def _job(name: Any, value: Any, folder: Path) -> JobSpec:
    where = f"jobs.{name}"
    if not isinstance(name, str) or not JOB_NAME.fullmatch(name):
        raise BundleError([f"jobs: a name has letters, digits, '.', '_', '-', at most 63, got {name!r}"])
    if not isinstance(value, Mapping):
        raise BundleError([f"{where}: expected a mapping with deadline, target and a config, got {value!r}"])
    problems = unknown_keys(value, JOB_KEYS, where)
    config: dict[str, Any] = {}
    target: Target | None = None
    deadline = 1.0
    try:
        config = _config(value, where, folder)
    except BundleError as error:
        problems += error.problems
    try:
        deadline = parse_duration(value.get("deadline"))
    except ValueError as error:
        problems.append(f"{where}.deadline: {error}")
    try:
        target = _target(value.get("target"))
    except ValueError as error:
        problems.append(f"{where}.target: {error}")
    cell = value.get("cell", CELL)
    if isinstance(cell, bool) or not isinstance(cell, int) or cell < 1:
        problems.append(f"{where}.cell: must be a whole number of batches, at least 1, got {cell!r}")
    if problems or target is None:
        raise BundleError(problems)
    return JobSpec(Job(name, deadline, target), config, cell)


def _config(value: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    inline = {key: value[key] for key in CONFIG_KEYS if key in value}
    if "config" in value:
        if inline:
            raise BundleError([f"{where}: either config or {', '.join(inline)}, not both"])
        path = folder / str(value["config"])
        inline = load_yaml(path)
        if not isinstance(inline, Mapping):
            raise BundleError([f"{path}: expected a LightningCLI config, got {type(inline).__name__}"])
        inline = dict(inline.get("fit", inline))  # `main.py --config x.yaml fit` files have a level more
        if problems := unknown_keys(inline, CONFIG_KEYS, str(path)):
            raise BundleError(problems)
    if "model" not in inline:
        raise BundleError([f"{where}: model is missing (inline, or in the file that config names)"])
    trainer = inline.get("trainer") or {}
    if taken := [key for key in LAUNCHERS_KEYS if isinstance(trainer, Mapping) and key in trainer]:
        raise BundleError([f"{where}.trainer.{key}: is set by the launcher; remove it" for key in taken])
    return inline


def _target(value: Any) -> Target:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {{loss: E}}, {{metric: NAME, at_most: E}} or {{batches: N}}, got {value!r}")
    if problems := unknown_keys(value, TARGET_KEYS, "target"):
        raise ValueError("; ".join(problems))
    keys = set(value)
    if keys == {"batches"}:
        return BatchTarget(_number(value["batches"], int))
    if keys == {"loss"}:
        return LossTarget(STEP_LOSS, _number(value["loss"], float))
    if keys == {"metric", "at_most"}:
        return LossTarget(str(value["metric"]), _number(value["at_most"], float))
    raise ValueError(f"expected loss, or metric with at_most, or batches, got {', '.join(sorted(map(str, keys)))}")


def _number(value: Any, kind: type[Any]) -> Any:
    # YAML 1.1 reads 1e-3 as text.
    if isinstance(value, str) and kind is float:
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
        raise ValueError(f"expected {'a whole number' if kind is int else 'a number'}, got {value!r}")
    return kind(value)
