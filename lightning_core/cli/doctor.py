"""``lightning-core doctor``: what matters to a pool on this machine, and what to do about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lightning_core.cli.arguments import add_folder
from lightning_core.node.checks.findings import Finding, Severity
from lightning_core.server.discovery import folder_here, home
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from rich.table import Table

EXIT_OK, EXIT_ERRORS = 0, 1
STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``doctor``."""
    words = "say what matters to a pool on this machine, and what to do; exit with 1 if a pool or a training cannot run"
    doctor = command("doctor", _doctor, words)
    doctor.add_argument("--json", action="store_true", help="print a list of findings as JSON")
    add_folder(doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from lightning_core.cli.machine_checks import ThisMachine, examine
    from lightning_core.cli.pool_file import read_pool_file
    from lightning_core.node.checks.limit_checks import PoolSize

    try:
        folder = arguments.folder or folder_here()
    except ValueError:  # a pool is named by its address, which a check says
        folder = home()
    wanted = read_pool_file(None, None, None)  # what `up` takes alone
    findings = examine(ThisMachine(folder, PoolSize(wanted.devices, wanted.resident), wanted.kind))
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        show(findings)
    return EXIT_ERRORS if any(finding.severity is Severity.ERROR for finding in findings) else EXIT_OK


def show(findings: Sequence[Finding]) -> None:
    """Print findings, each with what to do below it, and how many need attention.

    They are wrapped and in colour if rich is installed and this is a terminal, else each is in one line.
    """
    if not (sys.stdout.isatty() and _show_wrapped(findings)):
        names = max(len(finding.name) for finding in findings)
        levels = max(len(finding.severity) for finding in findings)
        for finding in findings:
            print(f"{finding.severity:<{levels}}  {finding.name:<{names}}  {clean(finding.found)}")
            if finding.remedy:
                print(f"{'':{levels}}  {'':{names}}  -> {clean(finding.remedy)}")
    print(f"\n{summary(findings)}")


def _show_wrapped(findings: Sequence[Finding]) -> bool:
    """Print findings by rich; return whether it is installed."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return False
    Console(highlight=False, markup=False).print(table(findings))
    return True


def table(findings: Sequence[Finding]) -> Table:
    """Return findings as a table of rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column()
    for finding in findings:
        lines = [Text(clean(line)) for line in (finding.found, finding.remedy and f"-> {finding.remedy}") if line]
        name = Text(finding.name, style="bold" if finding.remedy else "")
        made.add_row(Text(finding.severity, style=STYLES[finding.severity]), name, Group(*lines))
    return made


def summary(findings: Sequence[Finding]) -> str:
    """Return how many findings need attention.

    Example::

        >>> from lightning_core.node.checks.findings import note, ok, warning
        >>> summary([ok("a", "1")]), summary([warning("a", "1", "2"), note("b", "1", "2"), note("c", "1", "2")])
        ('nothing to do', 'no error; 1 warning, 2 notes')
    """
    count = Counter(finding.severity for finding in findings)
    errors = count[Severity.ERROR]
    others = [f"{count[one]} {one}{'s' * (count[one] > 1)}" for one in (Severity.WARNING, Severity.NOTE) if count[one]]
    if not errors and not others:
        return "nothing to do"
    first = f"{errors} error{'s' * (errors > 1)}: a pool or a training cannot run" if errors else "no error"
    return "; ".join([first, *([", ".join(others)] if others else [])])
