"""The section of the results that holds the tables of DECOR-NN against the same conditions played here."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.papers.decor_nn import CHANGED_TO, PRINTED, PrintedCell, contradictions
from benchmarks.papers.markdown import head, row, wrapped
from benchmarks.papers.record import Record, Run

DECOR_HEADING = "DECOR-NN's tables, and the same conditions here"
INTRODUCTION = (
    "DECOR-NN is of Baresi, Garlini and Quattrocchi. Tables I and III are of a CPU of 8 cores, II and IV of 4 GPUs. "
    "In III and IV the deadline is cut to 80 % when the ramp has come to 30 %. Here each cell is three runs in "
    "virtual time, by the scheduler that ships, with the paper's devices, steps of 1 and 5 s, and ratios of deadline "
    "to minimum training time. What the paper does not print is assumed: a training of 300 s and 600 batches on all "
    "devices; pace in proportion to GPUs, as tables II and IV have it, for all models alike, and on the CPU through "
    "the mean cores of table I; a throughput that drifts by 5 %, in each run in another way. *As printed* is `mode: "
    "paper`, with a core or a GPU for each per cent and eta 0.1, as the paper gives neither. An error is the distance "
    "of the end from the deadline, in per cent of it, with the earliest and the latest run; 0 where none was early, "
    "or late."
)
MODES = {"paper": "as printed", "default": "`decor`"}
TABLES = {"I": "CPU", "II": "GPUs", "III": "CPU, cut", "IV": "GPUs, cut"}
# Factors on K that are played too, as the paper does not say what it was.
GAINS = (1, 3, 10)


def decor_section(runs: Sequence[Run]) -> list[str]:
    """Return the lines of the section; none if its figures were never measured."""
    record = Record(runs)
    if not record.known("decor", [figure(PRINTED[0], "paper", "error")]):
        return []
    run = record.run("decor", figure(PRINTED[0], "paper", "error"))
    rows = [_row(record, cell) for cell in PRINTED]
    return [
        "", f"## {DECOR_HEADING}", "",
        *wrapped(f"{INTRODUCTION} `{run['command']}`, {run['size']}, {run['day']}:"), "",
        *head(["table", "model", "d_c", "printed: error %", "devices",
               *(f"{title}: {what}" for title in MODES.values() for what in ("error %", "devices"))]),
        *map(row, rows), "",
        *wrapped("By table, the mean error in per cent. At d_c 1.0 it is how much slower than the first run the others "
                 "drift, and how late K brings all devices; above that, K hardly matters."), "",
        *head(["d_c", "table", "printed", *(f"as printed, K {gain}" for gain in GAINS), "`decor`"]),
        *map(row, _by_table(record)), "",
        *wrapped("What the paper says does not always fit its tables:"), "",
        *head(["the paper says", "where", "its tables"]),
        *(row([one.says, one.where, one.printed]) for one in contradictions()),
    ]  # fmt: skip


def figure(cell: PrintedCell, mode: str, what: str) -> str:
    """Return the name of a figure of a cell."""
    return f"{cell.key}_{mode}_{what}"


def by_table(mode: str, table: str, tight: bool) -> str:
    """Return the name of the mean error of a table, at d_c 1.0 or above it."""
    return f"table_{table}_{'tight' if tight else 'relaxed'}_{mode}_error"


def _row(record: Record, cell: PrintedCell) -> list[str]:
    tightness = f"{cell.tightness:g}" + f" → {CHANGED_TO * cell.tightness:g}" * cell.changed
    line = [f"{cell.table} ({TABLES[cell.table]})", cell.model, tightness]
    line += _numbers(cell.error, cell.earliest, cell.latest, cell.devices)
    for mode in MODES:
        names = [figure(cell, mode, what) for what in ("error", "earliest", "latest", "devices")]
        line += _numbers(*(record("decor", name) for name in names))
    return line


def _numbers(error: float, earliest: float, latest: float, devices: float) -> list[str]:
    return [f"{error:.2f} ({earliest + 0.0:.2f} to {latest:.2f})", f"{devices:.2f}"]


def _by_table(record: Record) -> list[list[str]]:
    rows = []
    for tight in (True, False):
        for table in TABLES:
            cells = [cell for cell in PRINTED if cell.table == table and (cell.tightness == 1.0) == tight]
            if not cells:
                continue
            modes = [*(f"paper_k{gain}" for gain in GAINS), "default"]
            numbers = [fmean(cell.error for cell in cells)]
            numbers += [record("decor", by_table(mode, table, tight)) for mode in modes]
            rows.append(["1.0" if tight else "above", table, *(f"{number:.2f}" for number in numbers)])
    return rows
