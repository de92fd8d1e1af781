"""Events per second that are written, read back and journalled, beside the standard library's JSON in the same run.

The event is a report of ten loss cells: nearly all events of a pool are reports. The reference is ``json.dumps`` and
``json.loads`` of the same line, which check nothing. Seconds are those of the processor: neither other work counts
nor the disk, for which a commit waits.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import Figures, Size, main
from lightning_core.core.answers import Accepted, Grant
from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.events import Cell, Checkpoint, Report
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal

REPEATS: dict[Size, int] = {"quick": 20, "default": 60, "full": 200}
PER_REPEAT, PER_COMMIT = 500, 100
REPORT = Report(
    "vit-large", 1, 120, 7, 51_234, 1234.5678, checkpoint=Checkpoint(51_000, "ab" * 32),
    cells=tuple(Cell(k, 51_000 + 10 * k, 0.35 + k * 1.23e-3) for k in range(1, 11)),
)  # fmt: skip
ACCEPTED = Accepted("vit-large", 51_234, 1234.5678, tuple((batches, value) for _, batches, value in REPORT.cells))
GRANT = Grant("vit-large", 8, 0.25, (0, 1), Reason("chosen", (310.25, 412.5)))


def measure(size: Size) -> Figures:
    """Measure all in turn, so that each meets the same load, and keep the fastest of the repeats."""
    line, answers = encode_event(REPORT), encode_answers([GRANT], [ACCEPTED], REPORT)
    body = json.loads(line)
    with (
        tempfile.TemporaryDirectory(prefix="wire") as folder,
        Journal.create(Path(folder) / "j.db", Settings()) as kept,
    ):
        number = 0

        def append() -> None:
            nonlocal number
            number += 1
            kept.add(REPORT, float(number), [GRANT], [ACCEPTED])
            if number % PER_COMMIT == 0:
                kept.commit()

        tasks: dict[str, Callable[[], object]] = {
            "json written": lambda: json.dumps(body, separators=(",", ":"), allow_nan=False),
            "json read": lambda: json.loads(line),
            "event written": lambda: encode_event(REPORT),
            "event read": lambda: decode_event(line),
            "answers written": lambda: encode_answers([GRANT], [ACCEPTED], REPORT),
            "answers read": lambda: decode_answers(answers),
            "journalled": append,
        }
        seconds = dict.fromkeys(tasks, float("inf"))
        for _ in range(REPEATS[size]):
            for name, task in tasks.items():
                seconds[name] = min(seconds[name], _seconds(task))
    reference = seconds["json written"] + seconds["json read"]
    print(f"{'':16}{'a second':>10}{'µs':>8}{'of JSON both ways':>20}")
    for name, each in seconds.items():
        print(f"{name:16}{1 / each:10,.0f}{1e6 * each:8.1f}{each / reference:20.2f}")
    return {
        "events_written_per_second": 1 / seconds["event written"],
        "events_read_per_second": 1 / seconds["event read"],
        "events_journalled_per_second": 1 / seconds["journalled"],
        "written_over_json": seconds["event written"] / reference,
        "read_over_json": seconds["event read"] / reference,
        "answers_written_over_json": seconds["answers written"] / reference,
        "answers_read_over_json": seconds["answers read"] / reference,
        "journalled_over_json": seconds["journalled"] / reference,
    }


def _seconds(task: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(PER_REPEAT):
        task()
    return (time.thread_time() - began) / PER_REPEAT


if __name__ == "__main__":
    main("wire", (__doc__ or "").partition("\n")[0], measure)
