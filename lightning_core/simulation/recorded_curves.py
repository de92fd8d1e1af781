"""Recorded loss curves of past runs, which simulations play again.

Rules

1. A recording is a CSV with the header ``step,loss`` or ``step,loss,lr``. The step is the number of batches done; a log
   that counts from 0 is moved up by one, since no loss is observed before the first batch. ``lr`` is the learning rate
   of that batch; only its ratio to the highest of the run counts.
2. Steps grow and all numbers are finite, or the file is refused. Losses of 0 or less are kept out one by one, as a live
   worker keeps them out: forecasts work with logarithms.
3. Recordings of one task under other names (another framework, a variant of the model) are one family. Tuning
   on some curves and testing on others must keep a family together.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.limits import MAX_COUNT, check_at_most, check_factor, shown
from lightning_core.core.reported import LearningRates, fewer
from lightning_core.core.targets.base import MAX_LOSS
from lightning_core.regular_files import MAX_TABLE_BYTES, read_text

HEADERS = ("step,loss", "step,loss,lr")
INDEX = "index.csv"
# The recordings that come with the package, of 36 trainings of nine tasks.
SHIPPED = Path(__file__).parents[1] / "recorded"
# Minimum number of rows of a recording.
MIN_ROWS = 2
# Characters of the path of a recording in an index.
MAX_PATH = 255
# Endings of tasks in other frameworks, with other layers, of other sizes, on other data of the same environment.
_VARIANTS = re.compile(
    r"_(?:jax|pytorch|layernorm|glu_tanh|tanh|model_size|embed_init|large_bn_init)$"
    r"| \d+(?:\.\d+)?[MB] parameters$"
    r"|-(?:random|medium|expert)(?:-[a-z]+)*-v\d+$"
)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A recorded run.

    Args:
        name: Name of its file, without ending.
        domain: Domain, such as ``cv`` or ``nlp``.
        task: Name of the task.
        family: Name shared by the runs of one task, whatever the task is called.
        position: Batches done at each observation, growing and positive, shape ``(n,)``.
        loss: Losses observed there, positive, shape ``(n,)``.
        seconds_per_batch: Seconds of a batch on the machine of the recording; None if unknown.
        restarts: Number of times that the loss climbed back most of the way to its start.
        lr: Learning rates there divided by the highest, in [0, 1], shape ``(n,)``; None if they are not known.
        method: Model, optimizer and their constants; runs that differ in nothing but the seed have the same.
    """

    name: str
    domain: str
    task: str
    family: str
    position: FloatArray
    loss: FloatArray
    seconds_per_batch: float | None = None
    restarts: int = 0
    lr: FloatArray | None = None
    method: str = ""

    def learning_rates(self, scale: float = 1.0) -> LearningRates | None:
        """Return the learning rates as a worker reports them; None if they are not known, or constant.

        Args:
            scale: Factor of the batches, for a curve that is played with more or fewer.

        Example::

            >>> rows = np.arange(1.0, 6.0)
            >>> Curve("a", "cv", "a", "a", rows, 6.0 - rows, lr=np.array([0.5, 1.0, 1.0, 1.0, 0.1])).learning_rates(10)
            LearningRates(batches=(10, 20, 40, 50), rates=(0.5, 1.0, 1.0, 0.1))
        """
        if self.lr is None or self.lr.min() == self.lr.max():
            return None
        batches = np.maximum(np.rint(self.position * scale), 1.0).astype(np.int64)
        return LearningRates.through(fewer(list(dict(zip(batches.tolist(), self.lr.tolist(), strict=True)).items()))[0])

    def reports(self, max_blocks: int = 1000) -> tuple[FloatArray, FloatArray]:
        """Return the curve in blocks of equally many rows; rows that fill no block are left out.

        Args:
            max_blocks: Maximum number of blocks.

        Returns:
            Position of each block's last row, and the mean loss over the block, both of shape ``(m,)``.

        Raises:
            ValueError: If ``max_blocks`` is below 1.

        Example::

            >>> rows = np.arange(1.0, 6.0)
            >>> Curve("a", "cv", "a", "a", rows, 6.0 - rows).reports(max_blocks=2)
            (array([3.]), array([4.]))
        """
        if max_blocks < 1:
            raise ValueError(f"max_blocks must be at least 1, got {max_blocks}")
        block = -(-len(self.loss) // max_blocks)
        full = len(self.loss) // block * block
        return self.position[block - 1 : full : block], self.loss[:full].reshape(-1, block).mean(axis=1)


def family(task: str) -> str:
    """Return the task without the names of its implementation and variant.

    Example::

        >>> [family(task) for task in ("wmt_glu_tanh_jax", "hopper-medium-replay-v0", "LM pretraining 25M parameters")]
        ['wmt', 'hopper', 'LM pretraining']
        >>> family("cifar10_3c3d"), family("atari-pong")
        ('cifar10_3c3d', 'atari-pong')
    """
    while (shorter := _VARIANTS.sub("", task)) != task:
        task = shorter
    return task


def load_curves(folder: Path | str) -> list[Curve]:
    """Return every recording of a folder, in the order of its ``index.csv``, or by name if it has none.

    The index has a column ``file``, and may have ``domain``, ``task``, ``method``, ``sec_per_step`` and ``jumps_back``;
    others are ignored. Missing domains and tasks are the file's name up to the first ``__``.

    Raises:
        ValueError: If a recording or the index is invalid, or there is none; the message has file and line.
    """
    folder = Path(folder)
    index = folder / INDEX
    if not folder.is_dir():
        raise ValueError(f"{folder}: is not a folder of recordings")
    if not index.exists():
        files = sorted(folder.glob("*.csv"))
        if not files:
            raise ValueError(f"{folder}: no recordings here: no CSV with the columns step,loss")
        return [_curve(path, {}, str(path)) for path in files]
    lines = csv.DictReader(StringIO(_read_text(index), newline=""))
    try:
        if "file" not in (lines.fieldnames or ()):
            got = ",".join(lines.fieldnames or ())[:80] or "nothing"
            raise ValueError(f"{index}:1: needs a column 'file', got {got}")
        rows = [(f"{index}:{lines.line_num}", row) for row in lines if row["file"]]
    except csv.Error as error:
        raise ValueError(f"{index}:{lines.line_num}: {error}") from None
    curves = [_curve(_inside(folder, row["file"], place), row, place) for place, row in rows]
    if not curves:
        raise ValueError(f"{index}: lists no recordings")
    return curves


def load_curve(path: Path | str) -> Curve:
    """Return a recording without an index.

    Raises:
        ValueError: If it is invalid; the message has file and line.
    """
    return _curve(Path(path), {}, str(path))


def _inside(folder: Path, name: str, place: str) -> Path:
    """Return the path of a recording that an index names: in its folder, and nowhere else."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{place}: file must be a path inside the folder, got {shown(name)}")
    if len(name) > MAX_PATH:
        raise ValueError(f"{place}: file must have at most {MAX_PATH} characters, got {shown(name)}")
    return folder / path


def _read_text(path: Path) -> str:
    try:
        return read_text(path, MAX_TABLE_BYTES)
    except FileNotFoundError:
        raise ValueError(f"{path}: not found") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _curve(path: Path, row: dict[str, str], place: str) -> Curve:
    prefix = path.stem.partition("__")[0]
    task = row.get("task") or prefix
    seconds, restarts = (_number(row.get(key), key, place) for key in ("sec_per_step", "jumps_back"))
    if seconds is not None and not seconds > 0:
        raise ValueError(f"{place}: sec_per_step must be positive, got {row['sec_per_step']}")
    check_factor(f"{place}: sec_per_step", seconds)
    check_at_most(f"{place}: jumps_back", restarts, MAX_COUNT)
    position, loss, lr = read_recording(path)
    good = loss > 0
    if np.count_nonzero(good) < MIN_ROWS:
        raise ValueError(f"{path}: needs at least {MIN_ROWS} positive losses, got {np.count_nonzero(good)}")
    return Curve(
        path.stem, row.get("domain") or prefix, task, family(task), position[good], loss[good], seconds,
        int(restarts or 0), None if lr is None else lr[good], row.get("method") or "",
    )  # fmt: skip


def _number(text: str | None, key: str, place: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{place}: {key} must be a number, got {shown(text)}")
    return value


def read_recording(path: Path) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Return the batches done, the logged values, whatever their signs, and the learning rates, of shape ``(n,)`` each.

    Learning rates are divided by the highest; they are None if there are none.

    Raises:
        ValueError: If it is invalid; the message has file and line.
    """
    lines = _read_text(path).rstrip().splitlines()
    header = lines[0].strip() if lines else ""
    if header not in HEADERS:
        raise ValueError(f"{path}:1: not a recording: its first line must be step,loss or step,loss,lr")
    width = header.count(",") + 1
    try:
        rows = np.array([line.split(",") for line in lines[1:]], dtype=np.float64)
    except ValueError:
        rows = np.zeros(0)
    if rows.ndim != 2 or rows.shape[1] != width:
        found = [_row(line, header, f"{path}:{number}") for number, line in enumerate(lines[1:], start=2)]
        rows = np.array(found).reshape(-1, width)
    if len(rows) < MIN_ROWS:
        raise ValueError(f"{path}: needs at least {MIN_ROWS} rows, got {len(rows)}")
    step, loss = rows[:, 0].copy(), rows[:, 1].copy()
    if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
        raise ValueError(f"{path}:{bad[0] + 2}: {_names(header)} must be finite, got {lines[bad[0] + 1][:80]}")
    if len(large := np.flatnonzero((step > MAX_COUNT) | (np.abs(loss) >= MAX_LOSS))):
        raise ValueError(
            f"{path}:{large[0] + 2}: step must be at most {MAX_COUNT} and loss below {MAX_LOSS:g}, "
            f"got {lines[large[0] + 1][:80]}"
        )
    if len(back := np.flatnonzero(np.diff(step) <= 0)):
        raise ValueError(f"{path}:{back[0] + 3}: steps must grow, got {step[back[0] + 1]:g} after {step[back[0]]:g}")
    if step[0] < 0:
        raise ValueError(f"{path}:2: steps must be at least 0, got {step[0]:g}")
    lr = rows[:, 2] if width == 3 else None
    if lr is not None and len(wrong := np.flatnonzero((lr < 0) | (lr >= MAX_LOSS))):
        raise ValueError(
            f"{path}:{wrong[0] + 2}: lr must be at least 0 and below {MAX_LOSS:g}, got {lines[wrong[0] + 1][:80]}"
        )
    if lr is not None and not lr.any():
        raise ValueError(f"{path}: lr must be above 0 somewhere")
    return step + (step[0] == 0), loss, None if lr is None else lr / lr.max()


def _names(header: str) -> str:
    return "step, loss and lr" if header == HEADERS[1] else "step and loss"


def _row(line: str, header: str, place: str) -> list[float]:
    try:
        found = [float(one) for one in line.split(",")]
    except ValueError:
        found = []
    if len(found) != header.count(",") + 1:
        raise ValueError(f"{place}: expected {header}, got {shown(line, 80)}")
    return found
