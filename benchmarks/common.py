"""The command line that all benchmarks share: sizes, tables on the screen, figures in files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Literal

from benchmarks import results
from lightning_core.storage.atomic_files import write_whole

Size = Literal["quick", "default", "full"]
Figures = dict[str, float | None]
# Help of the options that take a folder.
PATHS = {
    "curves": "folder of recorded loss curves",
    "traces": "folder of recorded traces",
    "plots": "write pictures to this folder",
    "folder": "keep what is done in this folder, and go on from what is there",
}
INPUTS = ("--curves", "--traces", "--data")
# Options that the figures do not depend on: where they are kept, and for how long a benchmark that is continued runs.
OUTPUTS = ("--json", "--results", "--plots", "--folder", "--plays", "--minutes")
# The file of --json that stands for standard output.
SCREEN = Path("-")


def main(
    name: str,
    summary: str,
    measure: Callable[..., Figures],
    flags: Mapping[str, str] | None = None,
    numbers: Mapping[str, tuple[int, str]] | None = None,
    **paths: Path | None,
) -> None:
    """Run ``measure(size)`` and write ``{"figures": {name: number}}``; a figure that was not measured is null.

    Args:
        name: Name of the module below ``benchmarks``.
        summary: Description for ``--help``.
        measure: Called with the size, and with ``flags``, ``numbers`` and ``paths`` by keyword.
        flags: Help text of each option that switches something on.
        numbers: Default and help text of each option that takes a whole number, such as ``--seed``.
        paths: Default of each option that takes a path, such as ``--curves``.
    """
    flags, numbers = flags or {}, numbers or {}
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=summary)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="about a minute on 2 cores")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="everything: takes minutes")
    add_files(parser)
    for option, default in paths.items():
        text = PATHS[option] + (f" (default: {_shown(default)})" if default else "")
        parser.add_argument(f"--{option}", type=Path, metavar="DIR", default=default, help=text)
    for option, (number, text) in numbers.items():
        parser.add_argument(f"--{option}", type=int, default=number, help=f"{text} (default: {number})")
    for option, text in flags.items():
        parser.add_argument(f"--{option}", action="store_true", help=text)
    parser.set_defaults(size="default")
    arguments = parser.parse_args()
    with tables_apart(arguments):
        options = {option: getattr(arguments, option) for option in (*paths, *flags, *numbers)}
        figures = measure(arguments.size, **options)
    keep(name, arguments, figures)


def _shown(path: Path) -> str:
    """Return a path as seen from the repository, or as it is if it lies elsewhere."""
    return os.path.relpath(path, results.ROOT) if path.is_absolute() else str(path)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where figures are written."""
    help_of_json = "write the figures to this file; without one to standard output, and the tables to standard error"
    parser.add_argument("--json", type=Path, nargs="?", const=SCREEN, metavar="FILE", help=help_of_json)
    text = "merge the figures into this record, such as docs/results.json (replaces figures of the same command)"
    parser.add_argument("--results", type=Path, metavar="FILE", help=text)


def tables_apart(arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """Return a context that prints to standard error where standard output is for the figures alone."""
    return redirect_stdout(sys.stderr) if arguments.json == SCREEN else nullcontext()


def keep(name: str, arguments: argparse.Namespace, figures: Mapping[str, float | None]) -> None:
    """Write the figures where the options say."""
    text = json.dumps({"figures": figures}, indent=2, allow_nan=False) + "\n"
    if arguments.json == SCREEN:
        sys.stdout.write(text)
    elif arguments.json:
        write_whole(arguments.json, text)
    if arguments.results:
        command = command_line(name, sys.argv[1:])
        with tables_apart(arguments):
            print(results.merge(name.rpartition(".")[2], arguments.size, command, figures, arguments.results))


def command_line(name: str, words: Sequence[str]) -> str:
    """Return the command of a run for the record: without output files, and with DIR for folders of this machine.

    Example::

        >>> command_line("market.spot", ["--full", "--traces", "/data/spot", "--results=docs/results.json"])
        'python -m benchmarks.market.spot --full --traces DIR'
        >>> command_line("market.late", ["--json", "--quick", "--seed", "1"])
        'python -m benchmarks.market.late --quick --seed 1'
    """
    kept = list[str]()
    value_of = ""  # the option whose value the next word may be
    for word in words:
        option, equals, _ = word.partition("=")
        if value_of and not word.startswith("--"):
            value_of = ""
            continue
        value_of = option if option in (*INPUTS, *OUTPUTS) and not equals else ""
        if option in INPUTS:
            kept += [option, "DIR"]
        elif option not in OUTPUTS:
            kept.append(word)
    return " ".join(["python", "-m", f"benchmarks.{name}", *kept])


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns, numbers to four significant digits."""
    cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    lines = [list(header), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        print("  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)), flush=True)
