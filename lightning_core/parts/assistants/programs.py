"""Names of the programs through which users ask: what a client of the protocol calls itself, which may be any text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lightning_core.core.names import check_program

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec

PART, PROTOCOL = "assistants", "mcp"
# Characters that are read of a client's name, and kept of it.
MAX_READ, MAX_KEPT = 200, 32


@dataclass(frozen=True)
class Assisted:
    """Data of a job that was submitted through a program.

    Args:
        program: Name of the program.

    Raises:
        ValueError: If the name is not valid for a program.
    """

    program: str

    def __post_init__(self) -> None:
        check_program(self.program)


def program_of(client: object) -> str:
    """Return the name under which a client of the protocol is noted.

    Args:
        client: What it calls itself.

    Example::

        >>> [program_of(name) for name in ("claude-code", "Visual Studio Code", "\\x1b[2J; ada\\n", None)]
        ['mcp (claude-code)', 'mcp (Visual-Studio-Code)', 'mcp (2J-ada)', 'mcp']
    """
    words = re.sub(r"[^A-Za-z0-9._]+", "-", client[:MAX_READ]) if isinstance(client, str) else ""
    kept = words.strip("-._")[:MAX_KEPT].rstrip("-._")
    return check_program(f"{PROTOCOL} ({kept})" if kept else PROTOCOL)


def noted(bundle: BundleSpec, program: str) -> BundleSpec:
    """Return a bundle whose jobs say through which program they were submitted."""
    jobs = (replace(spec.job, parts={**spec.job.parts, PART: {"program": program}}) for spec in bundle.jobs)
    return replace(bundle, jobs=tuple(replace(spec, job=job) for spec, job in zip(bundle.jobs, jobs, strict=True)))


def submission_words(data: Mapping[str, Any]) -> str:
    """Return what histories say of the submission of a job."""
    return f"submitted through {check_program(data['program'])}"
