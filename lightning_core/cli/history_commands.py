"""``lightning-core history``: the runs that a pool remembers, by which it forecasts new ones."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from lightning_core.cli.arguments import add_folder, whole_number
from lightning_core.cli.history_sources import ImportTerms, read_runs
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.names import did_you_mean
from lightning_core.core.targets import parse_target
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.discovery import folder_here
from lightning_core.storage.private_files import private_folder
from lightning_core.storage.runs.past_run import PastRun
from lightning_core.storage.runs.run_store import FILE, RunStore
from lightning_core.view.text import clean


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``history``."""
    description = "list, show, import and forget the runs that a pool remembers, by which it forecasts new ones"
    commands = command("history", print, description).add_subparsers(required=True, metavar="WHAT")

    def add(name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=words)
        made.set_defaults(run=run)
        add_folder(made)
        return made

    listed = add("list", _list, "list the runs, the newest first")
    listed.add_argument("--json", action="store_true", help="print JSON")
    shown = add("show", _show, "show what is kept of the runs of a job")
    shown.add_argument("name", metavar="NAME", help="name of the job")
    shown.add_argument("--json", action="store_true", help="print JSON")
    imported = add("import", _import, "import runs: recordings, TensorBoard logs, or a run's folder with its journal")
    imported.add_argument("path", type=Path, metavar="PATH", help="CSV step,loss; TensorBoard log; or a folder of them")
    imported.add_argument("--like", default="", metavar="TAG", help="tag that later jobs name with `like`")
    target = "target whose metric was recorded, such as 'val_acc>=0.9' (default: the metric loss)"
    imported.add_argument("--target", metavar="TARGET", help=target)
    imported.add_argument("--tag", metavar="TAG", help="scalar of a TensorBoard log (default: the target's metric)")
    imported.add_argument("--model", default="", metavar="CLASS", help="class path of the LightningModule")
    imported.add_argument("--batch-size", type=whole_number(1, MAX_COUNT), metavar="N", help="samples in a batch")
    forgotten = add("forget", _forget, "forget runs")
    forgotten.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the job")
    forgotten.add_argument("--like", default="", metavar="TAG", help="only runs with this tag")
    forgotten.add_argument("--older-than", metavar="TIME", help="only runs that ended longer ago, such as 90d")


@contextmanager
def _store(arguments: argparse.Namespace, *, create: bool = False) -> Iterator[RunStore]:
    folder = arguments.folder or folder_here()
    if create:
        private_folder(folder)
    elif not (folder / FILE).exists():
        raise ValueError(f"{folder}: no runs are kept there; name the folder of a pool with --folder DIR")
    store = RunStore(folder / FILE)
    try:
        yield store
    finally:
        store.close()


def _list(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        runs = list(store.runs())
    if arguments.json:
        print(json.dumps([_summary(run) for run in runs], indent=2))
        return EXIT_MET
    table = [("name", "ended", "outcome", "target", "trained", "points", "like")]
    table += [
        (clean(run.name), _date(run.ended_at), run.verdict or "-", clean(run.target or run.metric),
         format_duration(run.trained) if run.trained else "-", str(len(run.batches)), clean(run.like or run.model))
        for run in runs
    ]  # fmt: skip
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for row in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return EXIT_MET


def _show(arguments: argparse.Namespace) -> int:
    with _store(arguments) as store:
        runs = list(store.runs(arguments.name))
        names = {run.name for run in store.runs()} if not runs else set()
    if not runs:
        raise ValueError(f"no run of {arguments.name!r} is kept{did_you_mean(arguments.name, sorted(names))}")
    if arguments.json:
        print(json.dumps([_summary(run) | {"curve": [run.batches, run.losses]} for run in runs], indent=2))
        return EXIT_MET
    for run in runs:
        print("\n".join(_lines(run)))
    return EXIT_MET


def _lines(run: PastRun) -> Iterator[str]:
    outcome = f"{run.verdict or 'outcome unknown'}, {_date(run.ended_at)}"
    yield clean(f"{run.name}: {run.target or run.metric} ({outcome})")
    if run.met_at is not None:
        yield f"  met after {run.met_at:,} batches"
    if run.trained:
        yield f"  trained for {format_duration(run.trained)}, {format_duration(run.took)} after its submission"
    known = {"like": run.like, "model": run.model, "metric": run.metric, "batch size": str(run.batch_size or "")}
    for what, value in known.items():
        if value:
            yield clean(f"  {what}: {value}")
    for devices, kind, throughput in run.throughputs:
        yield clean(f"  {throughput:.3g} batches per second on {devices} {kind or 'device'}{'s' * (devices > 1)}")
    if run.batches:
        last = len(run.batches) - 1
        some = sorted({round(k * last / 7) for k in range(8)})
        yield "  " + "  ".join(f"{run.batches[k]:,}: {run.losses[k]:.4g}" for k in some)


def _import(arguments: argparse.Namespace) -> int:
    target = parse_target(arguments.target) if arguments.target else None
    if target is not None and not target.observes:
        raise ValueError(f"--target must name a metric, got {arguments.target!r}")
    terms = ImportTerms(arguments.like, arguments.model, arguments.batch_size, target, arguments.tag)
    runs, problems = read_runs(arguments.path, terms)
    if not runs:
        raise ValueError("\n".join(problems) or f"{arguments.path}: holds no runs")
    with _store(arguments, create=True) as store:
        added = store.add(runs, forgotten=True)
    for problem in problems:
        print(f"left out: {clean(problem)}")
    print(f"{added} imported" + (f", {len(runs) - added} were there already" if added < len(runs) else ""))
    return EXIT_MET


def _forget(arguments: argparse.Namespace) -> int:
    before = None if arguments.older_than is None else time.time() - parse_duration(arguments.older_than)
    with _store(arguments) as store:
        names = sorted({run.name for run in store.runs()})
        count = store.forget(arguments.name, arguments.like, before)
    if arguments.name and not count:
        if arguments.name in names:  # it has other runs
            raise ValueError(
                f"no run of {arguments.name!r} is as asked for; `history show {arguments.name}` shows them"
            )
        raise ValueError(f"no run of {arguments.name!r} is kept{did_you_mean(arguments.name, names)}")
    print(f"{count} forgotten")
    return EXIT_MET


def _summary(run: PastRun) -> dict[str, object]:
    return {name: value for name, value in run._asdict().items() if name not in ("batches", "losses")}


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
