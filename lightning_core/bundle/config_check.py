"""Checks configs by importing what they name and parsing them as LightningCLI will; nothing is built.

This needs torch and Lightning, which take seconds to import. A running pool has a process that has imported them
(:mod:`lightning_core.cluster.config_checker`); elsewhere the calling process does the work.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from lightning_core.bundle.class_paths import check_class_paths, check_imports
from lightning_core.bundle.preflight import check_checkpoint_content
from lightning_core.bundle.problems import KeyPath, Position, Problems


@dataclass(frozen=True)
class ConfigsToCheck:
    """The configs of a bundle, as plain data.

    Args:
        configs: LightningCLI config of each job.
        folders: Folders in which class paths are looked up, besides the installed packages.
        allow: Names that class paths may import; None for all that are not refused.
        checkpoints: Files that jobs start from, each with the index of its job in ``configs``.
    """

    configs: Sequence[Mapping[str, Any]]
    folders: Sequence[str]
    allow: Sequence[str] | None = None
    checkpoints: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class ConfigProblem:
    """A problem in a config.

    Args:
        job: Index of the config.
        path: Keys and indices that lead to the value.
        message: What is wrong with the value.
    """

    job: int
    path: KeyPath
    message: str


@dataclass(frozen=True)
class _ConfigProblems(Problems):
    """Collector that keeps the path of each problem: the caller knows the file and line of each value."""

    job: int = 0
    found: list[ConfigProblem] = field(default_factory=list)

    @override
    def within(self, position: Position) -> Self:
        return type(self)(position, self.messages, self.job, self.found)

    @override
    def add(self, message: str) -> None:
        self.found.append(ConfigProblem(self.job, self.position.path, message))


def check_configs(request: ConfigsToCheck) -> list[ConfigProblem]:
    """Import every class that the configs name, and parse the configs.

    Args:
        request: The configs. Their folders are added to ``sys.path`` of this process.

    Returns:
        Every problem found, in the order of the jobs.
    """
    from lightning_core.bundle.lightning_config import check_config

    sys.path += [folder for folder in request.folders if folder not in sys.path]
    found: list[ConfigProblem] = []
    for job, config in enumerate(request.configs):
        before = len(found)
        problems = _ConfigProblems(Position(""), job=job, found=found)
        for check in (check_class_paths, check_imports, check_config):
            if len(found) == before:  # each check relies on the one before
                check(config, problems, request.allow)
    for job, path in request.checkpoints:
        checkpoint = _ConfigProblems(Position("", path=("ckpt_path",)), job=job, found=found)
        check_checkpoint_content(Path(path), checkpoint)
    return found
