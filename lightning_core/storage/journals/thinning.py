"""Thinning: what is kept of events that no restart needs any more.

Reports, why a job was granted what, and the history of loss curves need every submission, command, grant, verdict,
alert and fault. Of the other reports they need a few: the loss cells on a grid, the first and the last of each worker.
Of the ticks they need those that show a time without a scheduler. The rest is most of a journal.

An entry that is kept has no digest any more, but a mark that says whether events right before it were left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from lightning_core.storage.journals.journal_database import KEPT_ON, LEFT_OUT_BEFORE, Entry

# Ratio of two positions of the grid on which loss cells are kept: about a hundred from the first batches to the last.
GRID = 1.06
# Of a report, what only a running scheduler needs.
_TRANSIENT = ("checkpoint", "horizon", "in_slow_phase", "bad_losses", "hang")


def thinned(entries: Sequence[Entry], gap: float) -> list[Entry]:
    """Return what is kept of consecutive entries; the first and the last one stay.

    Args:
        entries: The entries, at least one.
        gap: Seconds between two events beyond which both stay: the scheduler may have been down.

    Example::

        >>> entries = [Entry(n, float(n), '{"kind":"tick"}', "[]", "") for n in (1, 2, 3, 4)] + [
        ...     Entry(5, 5.0, '{"kind":"cancel","job":"a"}', "[]", ""), Entry(6, 6.0, '{"kind":"tick"}', "[]", "")]
        >>> [(entry.number, entry.digest) for entry in thinned(entries, gap=2.5)]
        [(1, ''), (5, ''), (6, '-')]
    """
    keeps, reports = _needed(entries, gap), _Reports()
    bodies: dict[int, Entry] = {}
    for k, entry in enumerate(entries):
        if entry.event.startswith('{"kind":"report"'):
            bodies[k] = reports.reduced(k, entry)
    kept, before = [], -2
    for k in sorted(keeps | reports.kept):
        mark = KEPT_ON if before == k - 1 else LEFT_OUT_BEFORE
        kept.append(bodies.get(k, entries[k])._replace(digest=mark))
        before = k
    return kept


def _needed(entries: Sequence[Entry], gap: float) -> set[int]:
    """Return the places of the entries that stay for themselves: all but reports and ticks without consequences."""
    keeps, after_gap = {0, len(entries) - 1}, False
    for k, entry in enumerate(entries):
        is_tick = entry.event.startswith('{"kind":"tick"')
        if k and entry.now - entries[k - 1].now > gap:
            keeps |= {k - 1, k}
            after_gap = True
        if after_gap:  # ticks may come before the event that tells whether the scheduler was down
            keeps.add(k)
            after_gap = is_tick
        if not (is_tick or entry.event.startswith('{"kind":"report"')) or _has_answers(entry):
            keeps.add(k)
    return keeps


class _Reports:
    """Which reports stay: those with a cell on the grid, and the first and the last one of each worker."""

    def __init__(self) -> None:
        self._kept: set[int] = set()
        self._newest: dict[tuple[str, int], int] = {}  # place of the newest report of each worker
        self._at: dict[tuple[str, int], int] = {}  # where on the grid its newest kept report is

    @property
    def kept(self) -> set[int]:
        """Places of the reports that stay."""
        return self._kept | set(self._newest.values())

    def reduced(self, place: int, entry: Entry) -> Entry:
        """Return a report with its newest cell at most, if there was none at that place on the grid."""
        event, answers = json.loads(entry.event), json.loads(entry.answers)
        cells, accepted = [], next((answer["accepted"] for answer in answers if "accepted" in answer), None)
        if accepted is not None:
            cells = accepted.pop("cells", None)
            cells = [cell[1:] for cell in event.get("cells", ())] if cells is None else cells
        worker = event["job"], event["incarnation"]
        at = int(math.log(max(cells[-1][0] if cells else event["batches"], 1)) / math.log(GRID))
        is_next = self._at.get(worker) != at or bool(cells and event.get("evaluated"))
        if is_next:
            self._at[worker] = at
            self._kept.add(place)
        self._newest[worker] = place
        for name in ("cells", *_TRANSIENT):
            event.pop(name, None)
        if cells and is_next:
            event["cells"] = [[1, *cells[-1]]]
        return entry._replace(event=_text(event), answers=_text(answers))


def _has_answers(entry: Entry) -> bool:
    return entry.answers != "[]" and any("accepted" not in answer for answer in json.loads(entry.answers))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
