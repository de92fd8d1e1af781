"""Tables for people: aligned by rich where it is installed, else with tabs between."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Prints columns, the first to the left and the others to the right.

    Args:
        header: of the columns.
        rows: the cells; what comes from outside is clean already.
        title: a line above.
    """
    if title:
        print(title)
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print(*("\t".join(row) for row in (header, *rows)), sep="\n")
        return
    made = Table(box=None, pad_edge=False)
    for number, name in enumerate(header):
        made.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*row)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160).print(made)
