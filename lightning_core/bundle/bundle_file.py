"""Bundles: jobs submitted together, as a file or as a Python object.

::

    policy: lara                       # or {name: lara, order: edf, explore: 10}
    estimator: log_time                # of losses, or {name: log_time, power: 4}; the policy's own unless told
    pool:
      devices: 2                       # 1 to 64, 1 unless told
      kind: cpu                        # or gpu
      resident: 4                      # most jobs kept warm in all; all of them unless told
    on_verdict: {command: "notify-send", webhook: "https://example.org/hook"}
    allow_import: [mine, lightning, torch]   # all that class paths may name; unless told, all but Python's own library
    jobs:
      vit:
        config: vit.yaml               # a LightningCLI config, relative to this file
        deadline: 1h30m                # or "18:00", "2026-11-23T18:00": a point in time, quoted
        target: {loss: 0.35}           # of training_step; or {metric: train_loss, at_most: 0.35}, {batches: 2000},
                                       # {metric: val_acc, at_least: 0.92, best: 1.0, for_evaluations: 2}; or in a line,
                                       # val_acc>=0.92 for 2 evaluations
        begin: 10m                     # not before
        weight: 2                      # as good as two jobs when not all can make it
        devices: 2                     # or min_devices and max_devices
        on_miss: hold                  # or continue (unless told), stop
        work: 40m                      # a person's own estimate of what it needs alone
        curve: vit-before.csv          # these two are for `simulate` alone: the recording that stands in for it,
        throughput: 12.5               # and its batches a second alone
      cnn:                             # ... or the config itself
        model: {class_path: mine.Cnn, init_args: {lr: 0.001}}
        data: {class_path: mine.Data}
        trainer: {max_epochs: 50}
        deadline: 10m
        target: {batches: 2000}
        cell: 5                        # least batches in a loss observation, 10 unless told
        save_every: 1m                 # 5m unless told; beside it whoever must leave saves

A file of one job says the same of it at the top, and its ``name`` unless the file's own will do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from lightning_core.bundle.config_check import ConfigProblem, ConfigsToCheck, check_configs
from lightning_core.bundle.job_spec import JobSpec, exact_duration, is_file_name, read_job
from lightning_core.bundle.on_verdict import read_on_verdict
from lightning_core.bundle.pool_section import (
    ExistingPool,
    Kind,
    market_to_dict,
    parse_policy,
    read_allow_import,
    read_bundle_content,
    with_policy,
    with_quantum,
)
from lightning_core.bundle.preflight import check_checkpoint_file, check_gpus, folder_warnings
from lightning_core.bundle.problems import BundleError, Position, Problems, require
from lightning_core.scheduler.settings import Settings

__all__ = ["BundleSpec", "JobSpec", "Kind"]

EMPTY = "file is empty; expected a mapping with 'jobs', or one job"


@dataclass(frozen=True)
class BundleSpec:
    """Jobs submitted together, and how they share the pool; :class:`lightning_core.Bundle` also runs them.

    Args:
        jobs: in the order of submission.
        settings: policy, estimator, devices and constants of the scheduler.
        kind: of the pool's devices.
        folder: where class paths are looked up, beside the current folder.
        on_verdict: whom to tell when a verdict changes: ``command``, a list of words, and ``webhook``, an address.
        allow_import: what class paths may name; None for all but Python's own library and the like.

    Raises:
        BundleError: if there is no job, or two have one name.
    """

    jobs: tuple[JobSpec, ...]
    settings: Settings = field(default_factory=Settings)
    kind: Kind = "cpu"
    folder: Path = Path()
    on_verdict: Mapping[str, Any] = field(default_factory=dict)
    allow_import: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", with_quantum(self.settings, self.kind))
        names = [spec.job.name for spec in self.jobs]
        if not names:
            raise BundleError(["jobs: at least one job is needed"])
        if twice := {name for name in names if names.count(name) > 1}:
            raise BundleError([f"jobs: {name!r} is there twice" for name in sorted(twice)])
        self.check_targets(self.settings)

    def check_targets(self, settings: Settings) -> None:
        """Find jobs whose targets are not for a policy or its estimator.

        Args:
            settings: Of the pool that is to take the jobs.

        Raises:
            BundleError: With every such job.
        """
        refused = [(spec.job.name, settings.refusal(spec.job.target)) for spec in self.jobs]
        if words := [f"jobs.{name}.target: {reason}" for name, reason in refused if reason is not None]:
            raise BundleError(words)

    @classmethod
    def from_file(cls, path: Path | str, there: ExistingPool | None = None) -> Self:
        """Reads a bundle file, or a file of one job.

        Args:
            path: of the file.
            there: the pool, if one is there already; None for one as the file says.

        Raises:
            BundleError: with every problem found.
        """
        require("yaml")
        from lightning_core.bundle.yaml_loader import load_yaml

        path = Path(path)
        content, found = load_yaml(path, EMPTY)
        return cls._read(content, path.parent, found, there)

    def read_again(self, path: Path | str, there: ExistingPool | None = None) -> Self:
        """Read the file of a run that goes on: times of day are those of the day on which each job was submitted.

        Args:
            path: Of the bundle file, as it is now.
            there: The pool that it was read for, if it was there already.

        Raises:
            BundleError: With every problem found.
        """
        from lightning_core.bundle.yaml_loader import load_yaml

        path = Path(path)
        content, found = load_yaml(path, EMPTY)
        submitted = {spec.job.name: spec.submitted for spec in self.jobs}
        return self._read(content, path.parent, found, there, submitted)

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
        return cls._read(content, Path(folder), Problems(Position(source)))

    @classmethod
    def _read(
        cls,
        content: Any,
        folder: Path,
        found: Problems,
        there: ExistingPool | None = None,
        submitted: Mapping[str, datetime | None] | None = None,
    ) -> Self:
        folder = folder.resolve()
        parts = read_bundle_content(content, folder, found, there)
        on_verdict = read_on_verdict(parts.content.get("on_verdict"), found.at("on_verdict"))
        allow = None
        if parts.content.get("allow_import") is not None:
            allow = found.at("allow_import").read(read_allow_import, parts.content["allow_import"])
        locations = () if parts.settings is None else parts.settings.locations
        specs = [
            read_job(name, value, folder, at, parts.devices, allow, locations, (submitted or {}).get(str(name)))
            for name, value, at in parts.jobs
        ]
        for (_, _, at), spec in zip(parts.jobs, specs, strict=True):
            if spec is not None and parts.settings is not None:
                refusal = parts.settings.refusal(spec.job.target)
                if refusal is not None:
                    at.at("target").add(str(refusal))
        jobs = tuple(spec for spec in specs if spec is not None)
        if found.messages or parts.settings is None:
            raise BundleError(found.messages)
        return cls(jobs, parts.settings, parts.kind, folder, on_verdict, allow)

    def with_policy(self, text: str) -> Self:
        """The same jobs under another policy: a name, or a name with arguments such as ``lara:order=edf,explore=5``.

        Their losses are forecast by the estimator that the bundle names, else by the policy's own.

        Raises:
            ValueError: if the policy is unknown or an argument out of its range.
        """
        return replace(self, settings=with_policy(self.settings, parse_policy(text)))

    def submitted(self, now: datetime, but: Container[str] = ()) -> Self:
        """Return the same jobs as they are submitted now: from here on their points in time are settled.

        Args:
            now: The present time; a naive one is in the machine's time zone.
            but: Names of jobs that were submitted before.

        Raises:
            BundleError: If a point in time has passed.
        """
        return replace(self, jobs=tuple(s if s.job.name in but else s.as_of(now) for s in self.jobs))

    def moments(self, now: datetime) -> list[str]:
        """Return a line for each point in time that a job names, such as ``a: deadline 18:00 CET, in 3h12m``."""
        return [f"{spec.job.name}: {key} {moment}" for spec in self.jobs for key, moment in spec.moments(now).items()]

    def importing_only(self, names: Sequence[str]) -> Self:
        """The same jobs, whose class paths may name what is in these modules and packages alone.

        Raises:
            ValueError: if one is no dotted name.
        """
        return replace(self, allow_import=read_allow_import(names))

    def check(
        self, *, local: bool = True, check: Callable[[ConfigsToCheck], list[ConfigProblem]] = check_configs
    ) -> None:
        """Finds what can be found before anything starts: first what needs no import, then what the configs name.

        Classes are imported and configs are parsed as LightningCLI will, without building anything.

        Args:
            local: whether the pool will be on this machine, which should then have its devices.
            check: what imports and parses; a pool that is up has a process for it.

        Raises:
            BundleError: with every problem found.
        """
        require("torch", "lightning", "ray", "jsonargparse")
        checkpoints = self._checkpoints()
        found = Problems(Position("bundle"))
        if local and self.settings.locations and not _in_a_ray():
            words = "locations are nodes of a Ray cluster, which is joined by `lightning-core run --ray ADDRESS`"
            found.at("pool", "devices").add(words)
        if local and self.kind == "gpu":
            check_gpus(self.settings.devices, found.at("pool", "kind"))
        for path, spec in checkpoints.items():
            check_checkpoint_file(path, found.within(spec.position.at("ckpt_path")))
        if found.messages:
            raise BundleError(found.messages)

        jobs = list(self.jobs)
        asked = ConfigsToCheck(
            [spec.config for spec in jobs],
            [str(self.folder), str(Path.cwd())],
            self.allow_import,
            [(jobs.index(spec), str(path)) for path, spec in checkpoints.items()],
        )
        for problem in check(asked):
            Problems(jobs[problem.job].position, found.messages).at(*problem.path).add(problem.message)
        if found.messages:
            raise BundleError(found.messages)

    def warnings(self, run_dir: Path) -> list[str]:
        """What may go wrong later in this folder."""
        return folder_warnings(run_dir, list(self._checkpoints()))

    def _checkpoints(self) -> dict[Path, JobSpec]:
        """Files that jobs begin with, each with the first job that does."""
        named = [(spec.config.get("ckpt_path"), spec) for spec in reversed(self.jobs)]
        return {Path(path): spec for path, spec in named if path is not None and is_file_name(path)}

    def to_dict(self) -> dict[str, Any]:
        """As a bundle file with everything inline; :meth:`from_dict` reads it."""
        settings = self.settings
        where = dict(Counter(settings.locations))
        pool: dict[str, Any] = {"devices": where or settings.devices, "kind": self.kind}
        if settings.cores > 1:
            pool["cores"] = settings.cores
        if settings.resident is not None:
            pool["resident"] = settings.resident
        estimator = {"name": settings.estimator} if settings.estimator else {}
        estimator |= settings.estimator_args
        return {
            "pool": pool,
            "policy": {"name": settings.policy, **settings.policy_args},
            **({"estimator": estimator} if estimator else {}),
            "period": exact_duration(settings.period),
            **({} if settings.market is None else {"market": market_to_dict(settings.market)}),
            **({"on_verdict": dict(self.on_verdict)} if self.on_verdict else {}),
            **({} if self.allow_import is None else {"allow_import": list(self.allow_import)}),
            "jobs": {spec.job.name: spec.to_dict() for spec in self.jobs},
        }


def _in_a_ray() -> bool:
    """Whether this process has joined one."""
    ray = sys.modules.get("ray")  # it takes seconds to import
    return ray is not None and bool(ray.is_initialized())
