"""Bundles: jobs submitted together, as a file or as a Python object.

::

    policy: lara                       # or {name: lara, order: edf, explore: 10}
    estimator: log_time                # of losses, or {name: log_time, power: 4}; by default the policy's own
    pool:
      devices: 2                       # 1 to 1024, by default 1
      kind: cpu                        # or gpu
      resident: 4                      # maximum number of jobs kept warm; by default all
    market: {trace: market.csv, interval: 30m}    # nodes that come and go: a run rents its devices there
    on_verdict: {command: "notify-send", webhook: "https://example.org/hook"}
    allow_import: [mine, lightning, torch]   # all that class paths may name; by default all but the standard library
    jobs:
      vit:
        config: vit.yaml               # a LightningCLI config, relative to this file
        deadline: 1h30m                # or "18:00", "2026-11-23T18:00": a point in time, quoted
        target: {loss: 0.35}           # of training_step; or {metric: train_loss, at_most: 0.35}, {batches: 2000},
                                       # {metric: val_acc, at_least: 0.92, best: 1.0, for_evaluations: 2}; or in a line,
                                       # val_acc>=0.92 for 2 evaluations
        begin: 10m                     # earliest start
        weight: 2                      # counts as two jobs when not all can meet their deadlines
        devices: 2                     # or min_devices and max_devices
        on_miss: hold                  # or continue (the default), stop
        work: 40m                      # your own estimate of its training time alone
        curve: vit-before.csv          # for `simulate` only: the recording that stands in for it,
        throughput: 12.5               # and its batches per second alone
      cnn:                             # ... or the config itself
        model: {class_path: mine.Cnn, init_args: {lr: 0.001}}
        data: {class_path: mine.Data}
        trainer: {max_epochs: 50}
        deadline: 10m
        target: {batches: 2000}
        cell: 5                        # minimum number of batches in a loss observation, by default 10
        save_every: 1m                 # minimum time between periodic checkpoints, by default 5m
        hang: 20m                      # time that any step may take before it hangs, by default 5m; or off
      gan:
        script: train.py --lr 0.1      # any training loop, in a process of its own; it runs in the folder of this file
        target: {loss: 0.1}

A file of one job has the keys of the job at the top, and ``name`` unless the file's own name will do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from lightning_core.bundle.bundle_content import read_allow_import, read_bundle_content
from lightning_core.bundle.config_check import ConfigProblem, ConfigsToCheck, check_configs
from lightning_core.bundle.config_section import is_file_name
from lightning_core.bundle.job_section import read_job
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.bundle.pool_section import ExistingPool, Kind, pool_to_dict, with_quantum
from lightning_core.bundle.preflight import check_checkpoint_file, check_gpus, folder_warnings
from lightning_core.bundle.problems import BundleError, Position, Problems, require
from lightning_core.bundle.scripts import SCRIPT, check_script
from lightning_core.bundle.settings_section import with_policy
from lightning_core.bundle.strategies import refusal_of_kind
from lightning_core.bundle.values import exact_duration
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.core.parts import all_of
from lightning_core.core.supplies import Supply
from lightning_core.scheduler.settings import Settings

NO_GPUS = "simulated nodes have no GPUs: name a Ray cluster that has with --ray"
EMPTY = "file is empty; expected a mapping with 'jobs', or one job"


@dataclass(frozen=True)
class BundleSpec:
    """Jobs submitted together, and how they share a pool; :class:`lightning_core.Bundle` can also run them.

    Args:
        jobs: Jobs in the order of submission.
        settings: Policy, estimator, devices and constants of the scheduler.
        kind: Kind of the pool's devices.
        folder: Folder in which class paths are looked up, besides the current folder, and in which scripts run.
        on_verdict: What to run when a verdict changes: ``command``, a list of words, and ``webhook``, a URL.
        allow_import: Names that class paths may import; None for all but the standard library and the like.
        supply: Where the nodes of its pool come from; None for devices that stay.

    Raises:
        BundleError: If there is no job, two jobs have the same name, or imports are limited and a job is a script.
    """

    jobs: tuple[JobSpec, ...]
    settings: Settings = field(default_factory=Settings)
    kind: Kind = "cpu"
    folder: Path = Path()
    on_verdict: Mapping[str, Any] = field(default_factory=dict)
    allow_import: tuple[str, ...] | None = None
    supply: Supply | None = None

    def __post_init__(self) -> None:
        remember = max(self.settings.remember, len(self.jobs))
        object.__setattr__(self, "settings", with_quantum(replace(self.settings, remember=remember), self.kind))
        names = [spec.job.name for spec in self.jobs]
        if not names:
            raise BundleError(["jobs: at least one job is needed"])
        if twice := {name for name in names if names.count(name) > 1}:
            raise BundleError([f"jobs: {name!r} is there twice" for name in sorted(twice)])
        if self.allow_import is not None and (scripts := [spec for spec in self.jobs if spec.script]):
            words = "a script imports what it likes, which allow_import cannot limit: remove one of them"
            raise BundleError([spec.position.at(SCRIPT).problem(words) for spec in scripts])
        self.check_targets(self.settings)

    def check_targets(self, settings: Settings) -> None:
        """Check that the policy and its estimator can handle the target of each job.

        Args:
            settings: Settings of the pool that is to take the jobs.

        Raises:
            BundleError: With every job whose target they cannot handle.
        """
        refused = [(spec.job.name, settings.refusal(spec.job.target)) for spec in self.jobs]
        if problems := [f"jobs.{name}.target: {reason}" for name, reason in refused if reason is not None]:
            raise BundleError(problems)

    @classmethod
    def from_file(cls, path: Path | str, existing: ExistingPool | None = None) -> Self:
        """Read a bundle file, or a file of one job.

        Args:
            path: Path of the file.
            existing: Pool that is to take the jobs, if it is running already; None for a pool as the file says.

        Raises:
            BundleError: With every problem found.
        """
        require("yaml")
        from lightning_core.bundle.yaml_loader import load_yaml

        path = Path(path)
        content, problems = load_yaml(path, EMPTY)
        return cls._read(content, path.parent, problems, existing)

    @classmethod
    def from_text(cls, text: str, folder: Path | str, existing: ExistingPool | None = None) -> Self:
        """Read a bundle that was sent as text; problems are those of a file named ``bundle``.

        Args:
            text: Content as of a bundle file.
            folder: Folder to which the paths in it are relative.
            existing: Pool that is to take the jobs, if it is running already.

        Raises:
            BundleError: With every problem found.
        """
        require("yaml")
        from lightning_core.bundle.yaml_loader import parse_yaml

        content, problems = parse_yaml(text, Path("bundle"), EMPTY)
        return cls._read(content, Path(folder), problems, existing)

    def read_again(self, path: Path | str, existing: ExistingPool | None = None) -> Self:
        """Read the file of a run that is resumed; times of day are those of the day on which each job was submitted.

        Args:
            path: Path of the bundle file, as it is now.
            existing: Pool that takes the jobs, if it was running already.

        Raises:
            BundleError: With every problem found.
        """
        from lightning_core.bundle.yaml_loader import load_yaml

        path = Path(path)
        content, problems = load_yaml(path, EMPTY)
        submitted = {spec.job.name: spec.submitted for spec in self.jobs}
        return self._read(content, path.parent, problems, existing, submitted)

    @classmethod
    def from_dict(cls, content: Any, folder: Path | str = ".", source: str = "bundle") -> Self:
        """Make a bundle of Python objects.

        Args:
            content: Mapping as in a bundle file.
            folder: Folder to which the paths in it are relative.
            source: Name of the bundle in messages.

        Raises:
            BundleError: With every problem found.
        """
        return cls._read(content, Path(folder), Problems(Position(source)))

    @classmethod
    def _read(
        cls,
        content: Any,
        folder: Path,
        problems: Problems,
        existing: ExistingPool | None = None,
        submitted: Mapping[str, datetime | None] | None = None,
    ) -> Self:
        folder = folder.resolve()
        shared = read_bundle_content(content, folder, problems, existing)
        locations = () if shared.settings is None else shared.settings.locations
        jobs = []
        for raw in shared.jobs:
            moment = (submitted or {}).get(str(raw.name))
            spec = read_job(
                raw.name, raw.section, folder, raw.problems, shared.devices, shared.allow_import, locations, moment
            )
            jobs.append((raw, spec))
        for raw, spec in jobs:
            if spec is None or shared.settings is None:
                continue
            if (refusal := shared.settings.refusal(spec.job.target)) is not None:
                raw.problems.at("target").add(str(refusal))
            if (refusal := shared.settings.memory_refusal(spec.job.memory)) is not None:
                raw.problems.at("memory").add(str(refusal))
        if problems.messages or shared.settings is None:
            raise BundleError(problems.messages)
        specs = tuple(spec for _, spec in jobs if spec is not None)
        return cls(specs, shared.settings, shared.kind, folder, shared.on_verdict, shared.allow_import, shared.supply)

    def with_policy(self, text: str) -> Self:
        """Return the same jobs under another policy.

        The losses are forecast by the estimator that the bundle names, otherwise by the policy's own.

        Args:
            text: Name, or name with arguments such as ``lara:order=edf,explore=5``.

        Raises:
            ValueError: If the policy is unknown or an argument is out of range.
        """
        return replace(self, settings=with_policy(self.settings, text))

    def submit(self, now: datetime, except_for: Container[str] = ()) -> Self:
        """Return the jobs as submitted now, which settles their points in time.

        Args:
            now: Present time; without a time zone, in that of the machine.
            except_for: Names of jobs that were submitted before.

        Raises:
            BundleError: If a point in time has passed.
        """
        return replace(self, jobs=tuple(s if s.job.name in except_for else s.submit(now) for s in self.jobs))

    def supplied(self) -> Self:
        """Return the same jobs on a pool whose nodes come and go; without a supply, the bundle itself.

        The pool has twice as many devices as its jobs can use, so that new nodes are warm before old ones go. A job
        that does not say how often to save does so as the supply says, for what a lost node would cost it.

        Raises:
            BundleError: If a job cannot be there.
        """
        if (supply := self.supply) is None:
            return self
        problems = [
            f"jobs.{spec.job.name}.location: must not be set where nodes come and go, got {spec.job.location}"
            for spec in self.jobs
            if spec.job.location
        ]
        if (devices := sum(spec.job.max_devices for spec in self.jobs)) > MAX_DEVICES // 2:
            problems.append(
                f"jobs: may use at most {MAX_DEVICES // 2} devices together where nodes come and go, got {devices}"
            )
        if problems:
            raise BundleError(problems)
        pool = replace(self.settings, devices=2 * devices, resident=None, locations=())
        try:
            settings = supply.settings(pool, [spec.job for spec in self.jobs])
        except ValueError as error:
            raise BundleError([str(error)]) from None
        return replace(self, settings=settings).saved_every(supply.save_every)

    def saved_every(self, seconds: float | None) -> Self:
        """Return the jobs, saved so often where they do not say; None for the default."""
        return replace(self, jobs=tuple(replace(s, save_every=s.save_every or seconds) for s in self.jobs))

    def moments(self, now: datetime) -> list[str]:
        """Return a line for each point in time that a job names, such as ``a: deadline 18:00 CET, in 3h12m``."""
        return [f"{spec.job.name}: {key} {moment}" for spec in self.jobs for key, moment in spec.moments(now).items()]

    def importing_only(self, names: Sequence[str]) -> Self:
        """Return the same jobs, with class paths restricted to these modules, packages and classes.

        Raises:
            ValueError: If one is no dotted name.
        """
        return replace(self, allow_import=read_allow_import(names))

    def check(
        self, *, local: bool = True, check: Callable[[ConfigsToCheck], list[ConfigProblem]] = check_configs
    ) -> None:
        """Check what can be checked before anything starts: first what needs no import, then what the configs name.

        Classes are imported and configs are parsed as LightningCLI will; nothing is built.

        Args:
            local: Whether the pool will be on this machine, which must then have its devices.
            check: Function that imports and parses; a running pool has a process for it.

        Raises:
            BundleError: With every problem found.
        """
        require("torch", "lightning", "ray", "jsonargparse")
        checkpoints = self._checkpoints()
        problems = Problems(Position("bundle"))
        if local and self.settings.locations and not _in_a_ray():
            message = "locations are nodes of a Ray cluster; join one with `lightning-core run --ray ADDRESS`"
            problems.at("pool", "devices").add(message)
        if local and self.kind == "gpu" and self.supply is not None:
            problems.at("pool", "kind").add(NO_GPUS)
        elif local and self.kind == "gpu":
            check_gpus(self.settings.devices, problems.at("pool", "kind"))
        for path, spec in checkpoints.items():
            check_checkpoint_file(path, problems.within(spec.position.at("ckpt_path")))
        for spec in self.jobs:
            if spec.script:
                check_script(spec.script, (self.folder, Path.cwd()), problems.within(spec.position.at(SCRIPT)))
            elif reason := refusal_of_kind(spec.config, self.kind):
                problems.within(spec.position.at("trainer", "strategy")).add(reason)
        if problems.messages:
            raise BundleError(problems.messages)

        jobs = [spec for spec in self.jobs if not spec.script]
        if not jobs:
            return
        request = ConfigsToCheck(
            [spec.config for spec in jobs],
            [str(self.folder), str(Path.cwd())],
            self.allow_import,
            [(jobs.index(spec), str(path)) for path, spec in checkpoints.items()],
        )
        for problem in check(request):
            at = problems.within(jobs[problem.job].position)
            at.at(*problem.path).add(problem.message)
        if problems.messages:
            raise BundleError(problems.messages)

    def warnings(self, run_dir: Path) -> list[str]:
        """Return a line for each thing that may go wrong later in the folder of a run."""
        return folder_warnings(run_dir, list(self._checkpoints()))

    def _checkpoints(self) -> dict[Path, JobSpec]:
        """Return the files that jobs start from, each with the first job that does."""
        named = [(spec.config.get("ckpt_path"), spec) for spec in reversed(self.jobs)]
        return {Path(path): spec for path, spec in named if path is not None and is_file_name(path)}

    def to_dict(self) -> dict[str, Any]:
        """Return the bundle as in a file, with everything inline; :meth:`from_dict` reads it."""
        settings = self.settings
        estimator = {"name": settings.estimator} if settings.estimator else {}
        estimator |= settings.estimator_args
        return {
            "pool": pool_to_dict(settings, self.kind),
            "policy": {"name": settings.policy, **settings.policy_args},
            **({"estimator": estimator} if estimator else {}),
            "period": exact_duration(settings.period),
            **({} if self.supply is None else {_key_of(self.supply): self.supply.section()}),
            **({"on_verdict": dict(self.on_verdict)} if self.on_verdict else {}),
            **({} if self.allow_import is None else {"allow_import": list(self.allow_import)}),
            "jobs": {spec.job.name: spec.to_dict() for spec in self.jobs},
        }


def _key_of(supply: Supply) -> str:
    """Return the key of the section that a supply is read from."""
    return next(name for name, kind in all_of("supplies").items() if isinstance(supply, kind))


def _in_a_ray() -> bool:
    """Return whether this process has joined a Ray cluster."""
    ray = sys.modules.get("ray")  # importing it takes seconds
    return ray is not None and bool(ray.is_initialized())
