"""Commands about the journal of a run: replay it, make a report of it, draw it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_core.cli.arguments import new_file
from lightning_core.core.durations import format_duration
from lightning_core.run.pool_reference import journal_path
from lightning_core.scheduler.summary import EXIT_BAD_INPUT, EXIT_MET
from lightning_core.storage.journals.excerpt import compare
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.private_files import is_ours


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``replay`` and ``report``."""
    made = command("replay", _replay, "replay the journal of a run and compare every answer")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run or a pool, or its journal.db")
    made = command("report", _report, "write report.html, which shows the whole run on one page")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    made.add_argument("--out", type=new_file, metavar="FILE", help="default: report.html in the run's folder")
    made.add_argument("--forecasts", action="store_true",
                      help="draw the forecasts of a long run too, which takes minutes")  # fmt: skip


def _replay(arguments: argparse.Namespace) -> int:
    with Journal.open(journal_path(arguments.run_dir), read_only=True) as journal:
        if (part := journal.part_of) is not None:
            again, same = compare(journal, part), True
            print(f"part of the journal of the pool at {part.folder}, which was replayed; jobs: "
                  f"{', '.join(part.jobs)}", file=sys.stderr)  # fmt: skip
        else:
            again = replay(journal, whole=True)
            same = again.digest == journal.digest
    body: dict[str, Any] = {"events": again.events - again.after, "digest": again.digest, "identical": same}
    print(json.dumps(body))
    since = f"{again.events - again.after} events behind event {again.after}, as older ones are thinned,"
    what = since if again.after else f"{again.events} events"
    print(f"{what} over {format_duration(again.now)} replayed", file=sys.stderr)
    return EXIT_MET if same else EXIT_BAD_INPUT


def _report(arguments: argparse.Namespace) -> int:
    from lightning_core.report.page import write

    path = journal_path(arguments.run_dir)
    if arguments.out is None and not is_ours(path.parent):
        raise ValueError(f"{path.parent}: another user can change this folder; name the report's file with --out FILE")
    out = arguments.out or path.with_name("report.html")
    with Journal.open(path, read_only=True) as journal:
        write(journal, out, path.parent.resolve().name, forecasts=arguments.forecasts)
    print(out)
    return EXIT_MET
