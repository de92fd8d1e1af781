"""The tables of DECOR-NN (Baresi, Garlini and Quattrocchi), and where what the paper prints contradicts itself.

Tables I and III are of a CPU of 8 cores with a step of 1 s, tables II and IV of 4 GPUs with a step of 5 s. In tables
III and IV the deadline is cut to 80 % when the ramp has come to 30 %. Every cell is of three runs.
"""

from __future__ import annotations

from bisect import bisect_left
from statistics import fmean
from typing import Literal, NamedTuple

Kind = Literal["cpu", "gpu"]
MODELS = ("Inception v3", "ResNet50", "VGG-19")
DEVICES: dict[Kind, int] = {"cpu": 8, "gpu": 4}
STEP: dict[Kind, float] = {"cpu": 1.0, "gpu": 5.0}
CHANGED_AT, CHANGED_TO = 0.3, 0.8


class PrintedCell(NamedTuple):
    """A row of a table.

    Attributes:
        table: Number of the table.
        kind: ``"cpu"`` or ``"gpu"``.
        model: Name of the model.
        tightness: Deadline over minimum training time (d_c), before it is cut.
        devices: Mean number of cores or GPUs.
        error: Mean distance of the end from the deadline, per cent of it.
        earliest: Error of the earliest run, per cent; 0 if none was early.
        latest: Error of the latest run, per cent; 0 if none was late.
    """

    table: str
    kind: Kind
    model: str
    tightness: float
    devices: float
    error: float
    earliest: float
    latest: float

    @property
    def changed(self) -> bool:
        """Whether the deadline is cut."""
        return self.table in ("III", "IV")

    @property
    def key(self) -> str:
        """Beginning of the names of its figures."""
        return f"table_{self.table}_{self.model.split()[0].lower()}_{self.tightness:g}"


def _cells(table: str, kind: Kind, tightness: tuple[float, ...], rows: str) -> list[PrintedCell]:
    numbers = [tuple(map(float, row.split())) for row in rows.strip().splitlines()]
    where = [(model, each) for model in MODELS for each in tightness]
    return [PrintedCell(table, kind, *at, *row) for at, row in zip(where, numbers, strict=True)]


PRINTED = [
    *_cells("I", "cpu", (1.0, 1.5, 1.8), """
        7.83 0.79 -0.72 1.2
        2.88 0.43 -0.43 0
        2.32 0.47 -0.54 0
        7.93 3.78 0 5.67
        2.60 0.43 -0.48 0
        2.42 0.34 -0.4 0
        7.87 0.93 0 1.1
        2.76 0.49 -0.49 0
        2.27 0.47 -0.51 0"""),
    *_cells("II", "gpu", (1.0, 1.5, 1.8), """
        4.00 2.48 0 2.59
        2.89 0.42 -0.29 0.55
        2.29 0.93 0 1.01
        4.00 5.04 0 5.99
        2.80 1.25 0 1.99
        2.30 0.83 0 0.85
        4.00 2.53 0 2.62
        2.94 0.30 0 0.35
        2.43 0.27 0 0.39"""),
    *_cells("III", "cpu", (1.5, 1.8), """
        3.92 2.10 0 2.28
        3.85 1.16 0 1.16
        3.95 1.47 0 2.28
        3.89 1.01 0 1.47
        3.91 2.30 0 2.47
        3.84 1.38 0 1.53"""),
    *_cells("IV", "gpu", (1.5, 1.8), """
        3.35 1.40 -1.60 0
        2.73 1.19 -1.26 0
        3.40 2.13 -2.24 0
        2.78 1.65 -1.72 0
        3.42 0.94 -0.97 0
        2.80 0.80 -0.89 0"""),
]  # fmt: skip


def of(table: str, model: str, tightness: float) -> PrintedCell:
    """Return a cell."""
    [found] = [cell for cell in PRINTED if (cell.table, cell.model, cell.tightness) == (table, model, tightness)]
    return found


def pace(kind: Kind, model: str, devices: float) -> float:
    """Return the pace of a model on a number of devices, as a part of that on all.

    On GPUs it is proportional, with which tables II and IV agree. On the CPU it goes through the mean cores of table I,
    in straight lines: with d_c = 1.5 a model had 2 / 3 of the pace of 8 cores on 2.6 to 2.9.

    Example::

        >>> pace("gpu", "VGG-19", 3), round(pace("cpu", "VGG-19", 2.76), 3), pace("cpu", "VGG-19", 8)
        (0.75, 0.667, 1.0)
    """
    if kind == "gpu":
        return devices / DEVICES[kind]
    known = [(of("I", model, each).devices, 1.0 / each) for each in (1.8, 1.5)]
    points = [(0.0, 0.0), *known, (float(DEVICES[kind]), 1.0)]
    at = min(bisect_left(points, (devices,)), len(points) - 1)
    (fewer, slower), (more, faster) = points[at - 1], points[at]
    return slower + (faster - slower) * (devices - fewer) / (more - fewer)


def after_cut(cell: PrintedCell) -> tuple[float, float]:
    """Return the pace that is needed once the deadline is cut, and the mean devices that the paper gives from then on.

    Before, a job has the devices that it has without a cut; times are in those of a run on all devices.
    """
    at, ends = CHANGED_AT * cell.tightness, CHANGED_TO * cell.tightness
    before = of({"III": "I", "IV": "II"}[cell.table], cell.model, cell.tightness)
    return (1.0 - CHANGED_AT) / (ends - at), (cell.devices * ends - before.devices * at) / (ends - at)


class Contradiction(NamedTuple):
    """Two things in the paper that do not fit together.

    Attributes:
        says: What the text says.
        where: Section.
        printed: What the tables print.
    """

    says: str
    where: str
    printed: str


def contradictions() -> list[Contradiction]:
    """Return where the text does not fit the tables, or a table itself, in words with the numbers of the tables."""
    relaxed = [cell for cell in PRINTED if cell.tightness > 1.0]
    worst = max(max(-cell.earliest, cell.latest) for cell in relaxed)
    third = [cell for cell in PRINTED if cell.table == "III"]
    late = [cell.latest for cell in third if cell.earliest == 0 < cell.latest]
    tight = [cell for cell in PRINTED if cell.table == "II" and cell.tightness == 1.0]
    (faster, fewer), (slower, more) = (
        (fmean(column) for column in zip(*map(after_cut, cells), strict=True))
        for cells in ([cell for cell in third if cell.tightness == each] for each in (1.5, 1.8))
    )
    return [
        Contradiction(
            "An average deviation from the deadline of 1.75 %", "abstract",
            f"the mean of all {len(PRINTED)} cells is {fmean(cell.error for cell in PRINTED):.2f} %, "
            f"of those above d_c 1.0 {fmean(cell.error for cell in relaxed):.2f} %",
        ),
        Contradiction(
            "Feasible deadlines are missed by 2.51 % at most", "conclusions",
            f"the largest error above d_c 1.0 is {worst:.2f} %",
        ),
        Contradiction(
            "On GPUs with d_c 1.5 the largest delays are 2.59, 1.99 and 0.35 %", "V.B",
            f"table II has {of('II', 'Inception v3', 1.5).latest:.2f} % for the first; "
            f"{of('II', 'Inception v3', 1.0).latest:.2f} % is its row of d_c 1.0",
        ),
        Contradiction(
            "Deadlines that change are met on the CPU \"without any violations\"", "V.C",
            f"in table III {len(late)} of {len(third)} rows end late in every run, by up to {max(late):.2f} %",
        ),
        Contradiction(
            "Misses at d_c 1.0 come from the controller's transient; GPUs confirm it", "V.A, V.B",
            f"in table II all {DEVICES['gpu']} GPUs were allocated from the first to the last second, and training on "
            f"all of them took {min(cell.error for cell in tight):.1f} to {max(cell.error for cell in tight):.1f} % "
            "longer than the run on all of them that gave the deadline",
        ),
        Contradiction(
            "Devices follow the pace that a deadline demands", "V.C",
            f"after the cut of table III {faster:.2f} of the full pace takes {fewer:.1f} cores on average, and "
            f"{slower:.2f} takes {more:.1f} (with table I's cores before it): fewer for the faster",
        ),
    ]  # fmt: skip
