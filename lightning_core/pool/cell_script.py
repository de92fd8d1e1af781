"""A cell of a notebook as a script, which a pool trains in a process of its own."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_core.core.answers import State
from lightning_core.pool.pool import Pool
from lightning_core.storage.atomic_files import write_whole

# First line of such a script, by which it is known that it may be written anew.
_FIRST = "# A cell of a notebook, written by `%%job {name} --submit`: the pool runs it until the job has ended."
# What a plain loop finds in the variable of a cell that trains in its notebook.
_RUN = "import lightning_core\n\nrun = lightning_core.track()\n"


def submit_cell(pool: Pool, name: str, cell: str, source: str, terms: Mapping[str, Any], folder: Path) -> Path:
    """Write a cell as a script and submit it as a job; return the path of the script.

    Args:
        pool: Pool that trains it.
        name: Name of the job.
        cell: The cell.
        source: The cell as Python has it.
        terms: Terms of the job, as keys of a bundle.
        folder: Folder in which the script is written and runs.

    Raises:
        ValueError: If it cannot be a script, or the pool refuses it.
        OSError: If it cannot be written, or the pool does not answer.
    """
    from lightning_core.bundle.python_form import Training
    from lightning_core.cluster.bundle import Bundle

    if pool.is_far:
        raise ValueError("--submit needs a pool that is named by its folder: its machine must have the script")
    text = script_of(name, cell, source)
    path = folder / f"{name}.cell.py"
    if any(job.name == name and job.state is not State.ENDED for job in pool.jobs()):
        raise ValueError(f"the name {name!r} is taken by a job that has not ended; choose another")
    if path.exists() and not path.read_text(errors="replace").startswith(_FIRST.format(name=name)):
        raise ValueError(f"{path} must be written, and is another file: rename it, or the job")
    write_whole(path, text)
    training = Training(name, script=path.name, **terms)
    pool.submit(Bundle([training], pool.settings, pool.kind, folder))
    return path


def script_of(name: str, cell: str, source: str) -> str:
    """Return a cell as a script.

    Args:
        name: Name of the job.
        cell: The cell.
        source: The cell as Python has it.

    Raises:
        ValueError: If it is for IPython alone.
        SyntaxError: If it is no Python.

    Example::

        >>> print(script_of("a", "run.step(loss=1)", "run.step(loss=1)"))  # doctest: +ELLIPSIS
        # A cell of a notebook, ...
        import lightning_core
        <BLANKLINE>
        run = lightning_core.track()
        run.step(loss=1)
        <BLANKLINE>
    """
    if source.strip() != cell.strip():
        raise ValueError("a cell for --submit must be plain Python, without %magics and !commands: no IPython runs it")
    uses_run = any(isinstance(node, ast.Name) and node.id == "run" for node in ast.walk(ast.parse(source)))
    lines = [_FIRST.format(name=name), *([_RUN.rstrip()] if uses_run else []), source.strip("\n"), ""]
    text = "\n".join(lines)
    compile(text, f"{name}.cell.py", "exec")
    return text
