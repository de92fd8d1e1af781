"""What ``%load_ext lightning_core`` adds to IPython: ``%pool`` shows a pool, ``%%job`` runs a cell as a job.

It stands in this room because ``%pool`` is written on its client; what makes a job of a cell is
:mod:`lightning_core.integrations.cell_job`.
"""

from __future__ import annotations

import argparse
import ast
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lightning_core.core.durations import parse_when
from lightning_core.core.jobs import OnHold, OnMiss, OnNan, OnRefused
from lightning_core.core.names import check_name, did_you_mean
from lightning_core.core.targets import parse_target
from lightning_core.errors import LightningCoreError
from lightning_core.pool.pool import Pool
from lightning_core.pool.show import is_notebook
from lightning_core.server.discovery import AUTO
from lightning_core.variables import is_disabled
from lightning_core.view.text import clean

NO_POOL = "no pool is up; `lightning-core up` in a terminal brings one up"


class LineError(LightningCoreError, ValueError):
    """The line of a magic is wrong; the message has the rule and the value. It is empty if help was asked for."""


class LineParser(argparse.ArgumentParser):
    """Parser of the line of a magic, which raises what is wrong."""

    def parse_line(self, line: str) -> argparse.Namespace:
        """Return the arguments of a line.

        Raises:
            LineError: If there is a mistake, or it asks for help, which is printed.
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise LineError(f"{error}: {line}") from None
        found, rest = self.parse_known_args(words)
        if rest:
            options = [word for word in rest if word.startswith("-")]
            known = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(options[0].partition("=")[0], known) if options else ""
            self.error(f"unknown {'option' if options else 'argument'}: {' '.join(options or rest)}{hint}")
        return found

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise LineError(message or "")

    def error(self, message: str) -> NoReturn:
        raise LineError(message)


def load(shell: Any) -> None:
    """Add the magics to a shell of IPython."""
    for kind, name, magic in _magics(shell):
        shell.register_magic_function(magic, kind, name)


def unload(shell: Any) -> None:
    """Take the magics from a shell of IPython."""
    for kind, name, _ in _magics(shell):
        shell.magics_manager.magics[kind].pop(name, None)


def _magics(shell: Any) -> list[tuple[str, str, Callable[..., object]]]:
    def pool(line: str) -> None:
        _told(_pool, "%pool", line)

    def job(line: str, cell: str) -> object:
        __tracebackhide__ = True
        return _told(_job, "%%job", line, shell, cell)

    pool.__doc__, job.__doc__ = pool_parser().format_help(), job_parser().format_help()
    # IPython then shows no value of a cell whose last line ends in a semicolon.
    vars(job)["_ipython_magic_output_can_be_silenced"] = True
    return [("line", "pool", pool), ("cell", "job", job)]


def _told(do: Callable[..., object], magic: str, line: str, *more: object) -> object:
    """Do what a magic does; what is wrong with its line, or its pool, is an error of one line."""
    from IPython.core.error import UsageError

    __tracebackhide__ = True
    try:
        return do(line, *more)
    except LineError as error:
        if not str(error):
            return None
        raise UsageError(f"{magic}: {clean(str(error))}") from None


# ------------------------------------------------------------------------------------------------------------ %pool


def pool_parser() -> LineParser:
    """Return the parser of the line of ``%pool``."""
    parser = LineParser(prog="%pool", description="Show a table of all jobs of a pool, kept up to date until all have "
                        "ended or the cell is interrupted.")  # fmt: skip
    parser.add_argument("pool", nargs="?", default=AUTO, metavar="POOL", help="folder of a pool, host:port of its Ray, "
                        "or its https:// address, which takes LIGHTNING_CORE_TOKEN; by default the one that is "
                        "up")  # fmt: skip
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="show the jobs as they are now")
    until.add_argument("--seconds", type=_seconds, default=float("inf"), metavar="N", help="end after N seconds")
    return parser


def _pool(line: str) -> None:
    asked = pool_parser().parse_line(line)
    try:
        pool = Pool.find(asked.pool)
        if pool is None:
            print(NO_POOL)
            return
        with pool:
            pool.show(0.0 if asked.once else asked.seconds)
    except (OSError, ValueError, LightningCoreError) as error:
        raise LineError(str(error)) from None


# ------------------------------------------------------------------------------------------------------------- %%job


def job_parser() -> LineParser:
    """Return the parser of the line of ``%%job``."""
    parser = LineParser(prog="%%job", description="Run the cell as a job of the pool. A Trainer or a Fabric that it "
                        "makes joins by itself; a plain loop has its run in the variable `run`.")  # fmt: skip
    parser.add_argument("name", type=_checked(check_name), metavar="NAME", help="name of the job, unique in its pool")
    parser.add_argument("--deadline", type=_checked(parse_when), help="such as 2h or 18:00; none by default")
    parser.add_argument("--target", type=_checked(parse_target), required=True,
                        help='such as "val_acc>=0.92", "loss<=0.35" or "2000 batches"')  # fmt: skip
    parser.add_argument("--weight", type=_weight, help="relative importance when not all deadlines can be met")
    parser.add_argument("--like", metavar="NAME", help="name or tag of earlier runs with a similar loss curve")
    parser.add_argument("--pool", metavar="POOL", help="auto, local, folder of a pool, or host:port of its Ray")
    parser.add_argument("--on-miss", choices=list(OnMiss), help="what to do when the deadline passes")
    parser.add_argument("--on-hold", choices=list(OnHold), help="its memory on a GPU while it is held; of a Trainer")
    parser.add_argument("--on-nan", choices=[OnNan.CONTINUE, OnNan.STOP],
                        help="what to do when losses are NaN or infinite")  # fmt: skip
    parser.add_argument("--on-refused", choices=list(OnRefused), help="what to do while the name is taken")
    parser.add_argument("--submit", action="store_true", help="write the cell as a script, which the pool trains in a "
                        "process of its own: it knows nothing of this notebook")  # fmt: skip
    return parser


def _job(line: str, shell: Any, cell: str) -> object:
    from IPython.display import display

    from lightning_core.integrations.cell_job import CellJob

    __tracebackhide__ = True
    asked = vars(job_parser().parse_line(line))
    terms = {key: str(value) for key, value in asked.items() if value is not None}
    name = terms.pop("name")
    if terms.pop("submit") == "True":
        _submit(name, terms, shell, cell)
        return None
    try:
        job = CellJob(name, {key.upper(): text for key, text in terms.items()})
    except ValueError as error:
        raise LineError(str(error)) from None
    run = compiled(shell, cell)
    try:
        value = job.do(run, shell.user_ns)
        if job.outcome is None and not is_disabled():
            print(f"{name}: no training took part in the process of the notebook itself: make a Trainer or a Fabric in "
                  "the cell, or iterate over run.batches(loader)")  # fmt: skip
        return value
    finally:
        if job.outcome is not None and is_notebook(shell):
            display(job.outcome)


def _submit(name: str, terms: dict[str, str], shell: Any, cell: str) -> None:
    from lightning_core.pool.cell_script import submit_cell

    if "on_refused" in terms:
        raise LineError("--on-refused is for a cell that trains here: the name of a submitted job must be free")
    weight = {"weight": float(terms.pop("weight"))} if "weight" in terms else {}
    source = shell.transform_cell(cell)
    try:
        with Pool.connect(terms.pop("pool", AUTO)) as pool:
            path = submit_cell(pool, name, cell, source, {**terms, **weight}, Path.cwd())
            print(f"{name}: submitted to {pool.describe()}, which runs {path}")
    except (OSError, ValueError, LightningCoreError) as error:
        raise LineError("; ".join(str(error).splitlines())) from None


def compiled(shell: Any, cell: str) -> Callable[[], object]:
    """Return a function that runs a cell in a shell of IPython, and returns the value of its last expression.

    What the cell raises is raised, as ``shell.run_cell`` would not.
    """
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count, raw_code=cell)  # tracebacks show its lines
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    statements = shell.compile(tree, name, "exec")
    value = None if last is None else shell.compile(ast.Expression(last.value), name, "eval")

    def run() -> object:
        __tracebackhide__ = True
        exec(statements, shell.user_global_ns, shell.user_ns)
        return None if value is None else eval(value, shell.user_global_ns, shell.user_ns)

    return run


# ----------------------------------------------------------------------------------------------------------- values


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return a function that returns a text once it has been checked."""

    def read(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return read


def _weight(text: str) -> str:
    try:
        positive = 0 < float(text) < float("inf")
    except ValueError:
        positive = False
    if not positive:
        raise argparse.ArgumentTypeError(f"must be positive and finite, got {text!r}")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds of at least 0, got {text!r}")
    return seconds
