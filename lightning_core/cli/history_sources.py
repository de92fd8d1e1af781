"""Where runs are imported from: recordings, TensorBoard logs, and journals."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.earlier_runs import BinnedCurve
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.targets import STEP_LOSS, LossTarget, Target, is_loss
from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import read_regular
from lightning_core.run.pool_reference import journal_path
from lightning_core.simulation.recorded_curves import read_recording
from lightning_core.storage.journals.excerpt import open_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.private_files import this_user
from lightning_core.storage.runs.past_run import PastRun, metric_of, new_id

# Bytes of a TensorBoard log, and of one record in it; longer records hold images and the like.
MAX_LOG_BYTES, MAX_RECORD_BYTES = 512 * 2**20, 2**20
LOG = "events.out.tfevents."
_HEADER = struct.Struct("<Q4x")
_END_BYTES = 4


class ImportTerms(NamedTuple):
    """What the user says of the runs that are imported."""

    like: str = ""
    model: str = ""
    batch_size: int | None = None
    target: Target | None = None
    tag: str | None = None
    """Scalar of a TensorBoard log; None for the target's metric."""


def read_runs(path: Path, terms: ImportTerms) -> tuple[list[PastRun], list[str]]:
    """Return the runs of a file or folder, and what is wrong with others.

    Args:
        path: A CSV file ``step,loss``, a TensorBoard log, the folder or journal of a run or a pool; or a folder of
            CSV files and logs.
        terms: What the user says of them.

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
