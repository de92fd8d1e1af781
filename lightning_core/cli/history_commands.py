"""``lightning-core history``: the runs that a pool remembers, by which it forecasts new ones."""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lightning_core.cli.arguments import add_folder, whole_number
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.core.earlier_runs import BinnedCurve
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.names import did_you_mean
from lightning_core.core.targets import STEP_LOSS, LossTarget, Target, is_loss, parse_target
from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import read_regular
from lightning_core.run.pool_reference import journal_path
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.discovery import folder_here
from lightning_core.simulation.recorded_curves import read_recording
from lightning_core.storage.journals.excerpt import open_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.private_files import private_folder, this_user
from lightning_core.storage.runs.past_run import PastRun, metric_of, new_id
from lightning_core.storage.runs.run_store import FILE, RunStore
from lightning_core.view.text import clean

# Bytes of a TensorBoard log, and of one record in it; longer records hold images and the like.
MAX_LOG_BYTES, MAX_RECORD_BYTES = 512 * 2**20, 2**20
LOG = "events.out.tfevents."
_HEADER = struct.Struct("<Q4x")
_END_BYTES = 4


class ImportTerms(NamedTuple):
    """Terms of the user for imported runs."""

    like: str = ""
    model: str = ""
    batch_size: int | None = None
    target: Target | None = None
    tag: str | None = None
    """Scalar of a TensorBoard log; None for the target's metric."""


def read_runs(path: Path, terms: ImportTerms) -> tuple[list[PastRun], list[str]]:
    """Return the runs of a file or folder, and the problems of others.

    Args:
        path: A CSV file ``step,loss``, a TensorBoard log, the folder or journal of a run or a pool; or a folder of
            CSV files and logs.
        terms: Terms of the user for them.

    Raises:
        FileNotFoundError: If there is nothing.
        ModuleNotFoundError: If reading a TensorBoard log needs tensorboardX, and it is not installed.
    """
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    if path.suffix == ".db" or (path.is_dir() and any((path / name).exists() for name in ("journal.db", "pool.json"))):
        return list(_of_journal(path, terms)), []
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.suffix == ".csv" or one.name.startswith(LOG))
    runs, problems = [], []
    for file in files:
        try:
            runs.append(_of_log(file, terms) if file.name.startswith(LOG) else _of_recording(file, terms))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    return runs, problems


def _of_recording(path: Path, terms: ImportTerms) -> PastRun:
    step, loss, _ = read_recording(path)
    return _run(path.stem, step.tolist(), loss.tolist(), path, terms)


def _of_log(path: Path, terms: ImportTerms) -> PastRun:
    tag = terms.tag or (terms.target or LossTarget(STEP_LOSS, 1.0)).observed
    found: dict[int, float] = {}
    tags: set[str] = set()
    for step, name, value in _scalars(path):
        tags.add(name)
        if name == tag and step >= 0:
            found[step] = value  # a run that was resumed has logged some steps twice
    if not found:
        have = f"its scalars are {', '.join(sorted(tags)[:20])}" if tags else "it has no scalars"
        raise ValueError(f"{path}: no scalar {tag!r}: {have}; name one with --tag")
    steps = sorted(found)
    name = path.parent.name if path.parent.name not in ("", ".") else path.name
    return _run(name, [step + 1.0 for step in steps], [found[step] for step in steps], path, terms)


def _scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield step, tag and value of the scalars of a TensorBoard log; a record that is cut off ends it."""
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped]

    data = read_regular(path, MAX_LOG_BYTES)
    at = 0
    while at + _HEADER.size <= len(data):
        [length] = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + length > len(data):
            return
        if length <= MAX_RECORD_BYTES:
            try:
                event = Event.FromString(data[at : at + length])
            except Exception as error:  # protobuf's own, which is no ValueError in every version
                raise ValueError(f"{path}: not a TensorBoard log: {error}") from None
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    yield int(event.step), str(value.tag), float(value.simple_value)
        at += length + _END_BYTES


def _run(name: str, batches: Sequence[float], values: Sequence[float], path: Path, terms: ImportTerms) -> PastRun:
    target = terms.target or LossTarget(STEP_LOSS, 1.0)
    curve, met_at, last = BinnedCurve(), None, 0
    for position, value in zip(map(round, batches), values, strict=True):
        if last < position <= MAX_COUNT and is_loss(value):
            last = position
            curve.add(position, target.falling(value))
            if terms.target is not None and met_at is None and target.reaches(value):
                met_at = position
    if len(curve) < 2:
        raise ValueError(f"{path}: needs at least 2 finite values at different steps")
    points = curve.points()
    verdict = "" if terms.target is None else "met" if met_at is not None else "missed"
    return PastRun(
        new_id((name, metric_of(target), points)), name, this_user(), terms.like, terms.model, metric_of(target),
        terms.batch_size, "" if terms.target is None else str(target), verdict, *points, met_at, (), 0.0, 0.0,
        path.stat().st_mtime,
    )  # fmt: skip


def _of_journal(path: Path, terms: ImportTerms) -> Iterator[PastRun]:
    """Yield the runs of a journal that have ended; on which kind of devices is not known."""
    try:
        journal = Journal.open(journal_path(path), read_only=True)
        with journal:
            part = journal.part_of
            if part is None:
                replayed, names, since = replay(journal), None, 0.0
            else:
                with open_whole(part) as whole:
                    replayed, names, since = replay(whole), set(part.jobs), part.submitted_at
            written_at = journal.path.stat().st_mtime
    except LightningCoreError as error:
        raise ValueError(str(error)) from None
    for run in replayed.scheduler.ended_runs():
        if names is None or (run.job.name in names and run.submitted >= since):
            past = PastRun.of(run, this_user(), "", written_at - (replayed.now - run.ended))
            yield past._replace(
                like=terms.like or past.like, model=terms.model or past.model,
                batch_size=terms.batch_size or past.batch_size,
            )  # fmt: skip


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
    shown = add("show", _show, "show the stored runs of a job")
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
    print(f"{added} imported" + (f", {len(runs) - added} were already there" if added < len(runs) else ""))
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
