"""Text tables: aligned by rich if it is installed, else separated by tabs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table, the first column aligned left and the others right.

    Args:
        header: Names of the columns.
        rows: Cells; text from outside must have gone through :func:`~lightning_core.view.text.clean`.
        title: Line above the table.
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
