"""Configs checked by importing what they name and parsing them as LightningCLI will; nothing is built.

This needs torch and Lightning, which take seconds to import. A pool that is up has a process that has imported them
(:mod:`lightning_core.cluster.config_checker`); elsewhere the process that asks does it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from lightning_core.bundle.class_paths import check_imports, check_spelling
from lightning_core.bundle.preflight import check_checkpoint_content
from lightning_core.bundle.problems import Findings, Parts, Source


@dataclass(frozen=True)
class Configs:
    """The configs of a bundle, as plain data.

    Args:
        configs: of LightningCLI, one for each job.
        folders: where class paths are looked up beside what is installed.
        allow: what class paths may name; None for all that is not refused.
        checkpoints: files that jobs begin with, each with the place of its job in ``configs``.
    """

    configs: Sequence[Mapping[str, Any]]
    folders: Sequence[str]
    allow: Sequence[str] | None = None
    checkpoints: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class Problem:
    """What is wrong in a config.

    Args:
        job: its place among the configs.
        parts: keys and indices that lead to the value.
        words: what is wrong with it.
    """

    job: int
    parts: Parts
    words: str


@dataclass(frozen=True)
class _Noted(Findings):
    """Problems by their places: who asked knows the file and the line of each."""

    job: int = 0
    noted: list[Problem] = field(default_factory=list)

    @override
    def within(self, source: Source) -> Self:
        return type(self)(source, self.problems, self.job, self.noted)

    @override
    def add(self, words: str) -> None:
        self.noted.append(Problem(self.job, self.source.parts, words))


def check_configs(asked: Configs) -> list[Problem]:
    """Import every class that the configs name, and parse the configs.

    Args:
        asked: the configs. Their folders are added to the path of this process.

    Returns:
        Every problem found, in the order of the jobs.
    """
    from lightning_core.bundle.lightning_config import check_config

    sys.path += [folder for folder in asked.folders if folder not in sys.path]
    noted: list[Problem] = []
    for job, config in enumerate(asked.configs):
        before = len(noted)
        found = _Noted(Source(""), job=job, noted=noted)
        for check in (check_spelling, check_imports, check_config):
            if len(noted) == before:  # what is misspelt is not imported, and what cannot be imported is not parsed
                check(config, found, asked.allow)
    for job, path in asked.checkpoints:
        check_checkpoint_content(Path(path), _Noted(Source("", parts=("ckpt_path",)), job=job, noted=noted))
    return noted
