"""Thinning of events that no restart needs any more.

Reports, `why` and the history of loss curves need every submission, command, grant, verdict, alert and fault. Of the
other reports they need a few: loss cells on a grid, each with those before it whose mean counts against the target, and
the first and the last report of each worker. Of the ticks they need those that show a time without a scheduler. The
rest, which is most of a journal, goes.

A retained entry has no digest, and each cell of a report has a mark in place of its number. Thinned entries can be
thinned again together with those that followed: then fewer reports are the first or the last of their workers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.downtime import MAX_LATENESS
from lightning_core.storage.journals.journal_database import JournalEntry

# Ratio of two positions of the grid on which loss cells are kept: about a hundred from the first batches to the last.
GRID = 1.06
# Marks of a cell: whether cells right before it were left out.
AFTER_A_BREAK, FOLLOWS = 1, 2
# Fields of a report that only a running scheduler needs.
_TRANSIENT = ("checkpoint", "horizon", "in_slow_phase", "bad_losses", "hang", "learning_rates", "used")
_REPORT, TICK = '{"kind":"report"', '{"kind":"tick"'


def thinned(entries: Sequence[JournalEntry], settings: Settings) -> list[JournalEntry]:
    """Return the retained entries; the first and the last one always stay.

    Args:
        entries: The entries, at least one; those without a digest were thinned before.
        settings: Settings of the scheduler.

    Example::

        >>> entries = [JournalEntry(n, float(n), '{"kind":"tick"}', "[]", "") for n in (1, 2, 3, 4)] + [
        ...     JournalEntry(5, 5.0, '{"kind":"cancel","job":"a"}', "[]", ""),
        ...     JournalEntry(6, 6.0, '{"kind":"tick"}', "[]", "")]
        >>> [entry.number for entry in thinned(entries, Settings(period=1.0))]
        [1, 5, 6]
    """
    reports = {k: _StoredReport.of(entry) for k, entry in enumerate(entries) if entry.event.startswith(_REPORT)}
    gap = settings.period + MAX_LATENESS  # the scheduler may have been down
    keeps = {0, len(entries) - 1, *_around_gaps(entries, gap), *_with_consequences(entries), *_on_grid(reports)}
    pending: dict[tuple[str, int], list[_AcceptedCell]] = {}  # cells of each worker that may be in its next report
    kept = []
    for k, entry in enumerate(entries):
        if (report := reports.get(k)) is not None:
            cells = _newest(pending.get(report.worker, []) + report.cells, settings.window)
            if k in keeps:
                entry = _shortened(entry, cells)
                cells = []
            pending[report.worker] = cells
        if k in keeps:
            kept.append(entry._replace(digest=""))
    return kept


class _AcceptedCell(NamedTuple):
    mark: int
    batches: int
    loss: float


class _StoredReport(NamedTuple):
    """Data that decides whether a report is kept. Its text is then read again: all texts would fill the memory."""

    worker: tuple[str, int]
    cells: list[_AcceptedCell]
    """The cells that were accepted."""
    batches: int
    """Position on the curve."""
    is_evaluation: bool

    @classmethod
    def of(cls, entry: JournalEntry) -> Self:
        body, parts = json.loads(entry.event), json.loads(entry.answers)
        told = body.get("cells", ())
        cells: list[Any] = []
        for own in _accepted(body, parts):
            cells = own.get("cells", [cell[1:] for cell in told])
        marks = [FOLLOWS] * len(cells) if entry.digest else [mark for mark, *_ in told]
        cells = [_AcceptedCell(mark, *cell) for mark, cell in zip(marks, cells, strict=True)]
        batches = max(cells[-1].batches if cells else body["batches"], 1)
        return cls((body["job"], body["incarnation"]), cells, batches, bool(cells and body.get("evaluated")))


def _accepted(body: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the accepted part of a report."""
    return [part["accepted"] for part in parts if "accepted" in part and part["job"] == body["job"]]


def _shortened(entry: JournalEntry, cells: list[_AcceptedCell]) -> JournalEntry:
    """Return a report that is kept, with other cells."""
    body, parts = json.loads(entry.event), json.loads(entry.answers)
    for name in ("cells", *_TRANSIENT):
        body.pop(name, None)
    for own in _accepted(body, parts):
        own.pop("cells", None)
    return entry._replace(event=_text(body | ({"cells": cells} if cells else {})), answers=_text(parts))


def _newest(cells: list[_AcceptedCell], count: int) -> list[_AcceptedCell]:
    if len(cells) <= count:
        return cells
    first, *others = cells[-count:]
    return [first._replace(mark=AFTER_A_BREAK), *others]


def _around_gaps(entries: Sequence[JournalEntry], gap: float) -> Iterator[int]:
    """Yield the places before and after a gap; ticks may come before the event that explains it."""
    after_gap = False
    for k in range(1, len(entries)):
        before, entry = entries[k - 1 : k + 1]
        if entry.number == before.number + 1 and entry.now - before.now > gap:
            yield k - 1
            after_gap = True
        if after_gap:
            yield k
            after_gap = entry.event.startswith(TICK)


def _with_consequences(entries: Sequence[JournalEntry]) -> Iterator[int]:
    """Yield the places of all but the reports and ticks that led to nothing new; a directive may be repeated."""
    versions: dict[str, int] = {}
    for k, entry in enumerate(entries):
        news = not entry.event.startswith((_REPORT, TICK))
        for answer in json.loads(entry.answers) if entry.answers != "[]" else ():
            if answer.get("kind") not in ("grant", "end"):
                news |= "accepted" not in answer and "called" not in answer
            # An end of version 0 answers a worker that is not known.
            elif (version := answer["version"]) > versions.get(answer["job"], 0):
                news, versions[answer["job"]] = True, version
        if news:
            yield k


def _on_grid(reports: Mapping[int, _StoredReport]) -> Iterator[int]:
    """Yield the places of reports with a cell on the grid, and of the first and the last one of each worker."""
    reached: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for k, report in reports.items():
        at = int(math.log(report.batches) / math.log(GRID))
        if reached.get(report.worker) != at or report.is_evaluation:
            reached[report.worker] = at
            yield k
        last[report.worker] = k
    yield from last.values()


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
