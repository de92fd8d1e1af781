"""What every benchmark's command line shares: sizes, a table on the screen, figures in a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from benchmarks import results

Size = Literal["quick", "default", "full"]
Figures = dict[str, float | None]


def main(
    name: str, what: str, measure: Callable[..., Figures], flags: Mapping[str, str] | None = None, **paths: Path | None
) -> None:
    """Runs ``measure(size)`` and writes ``{"figures": {name: number}}``; a figure that was not measured is null.

    Each of ``paths`` is an option of its name, such as ``--curves``, with that default, and each of ``flags`` one to
    switch something on, with its help; ``measure`` gets them by keyword.
    """
    flags = flags or {}
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=what)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="within 50 seconds on 2 cores")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="everything, minutes")
    add_files(parser)
    for option, default in paths.items():
        parser.add_argument(f"--{option}", type=Path, metavar="PATH", default=default, help=f"default: {default}")
    for option, words in flags.items():
        parser.add_argument(f"--{option}", action="store_true", help=words)
    parser.set_defaults(size="default")
    arguments = parser.parse_args()
    figures = measure(arguments.size, **{option: getattr(arguments, option) for option in (*paths, *flags)})
    keep(name, arguments, figures)


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where figures are written."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    words = "merge the figures into this file of all results, such as docs/results.json"
    parser.add_argument("--results", type=Path, metavar="FILE", help=words)


def keep(name: str, arguments: argparse.Namespace, figures: Mapping[str, float | None]) -> None:
    """Write the figures where the options say."""
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": figures}, indent=2, allow_nan=False) + "\n")
    if arguments.results:
        words = list(sys.argv[1:])
        if "--results" in words:
            del words[words.index("--results") : words.index("--results") + 2]
        command = " ".join(["python", "-m", f"benchmarks.{name}", *words])
        results.merge(name.rpartition(".")[2], arguments.size, command, figures, arguments.results)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints columns, numbers to four figures."""
    cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    lines = [list(header), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        print("  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)), flush=True)
