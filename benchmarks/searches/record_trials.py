"""Record the trials of a random search on the digits, epoch by epoch, for the benchmark that replays them.

    python -m benchmarks.searches.record_trials --out benchmarks/searches/digits.json.xz --trials 256

Every trial trains to its end: so any rule of stopping can be played on them. One process, one thread; a trial that
is in the file already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import logging
import lzma
import statistics
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.searches.digits_trials import draw, train


def read(path: Path) -> list[dict[str, Any]]:
    """Return the recorded trials: hyper-parameters, the values of each epoch, and the median seconds of an epoch."""
    with lzma.open(path, "rt") as opened:
        trials: list[dict[str, Any]] = json.load(opened)
    return trials


def record(path: Path, trials: int, seed: int) -> None:
    """Train the trials that the file lacks; it is written anew every sixteen trials."""
    rng = np.random.default_rng(seed)
    drawn = [draw(rng) for _ in range(trials)]
    done = read(path) if path.exists() else []
    for number in range(len(done), trials):
        kept = train(drawn[number], seed + number)
        done.append(
            {
                "parameters": drawn[number],
                "val_loss": [_short(value) for value in kept.losses],
                "val_error": [_short(value) for value in kept.errors],
                "seconds_per_epoch": _short(statistics.median(kept.seconds)),
            }
        )
        print(number, drawn[number], done[-1]["val_loss"][-1], done[-1]["seconds_per_epoch"], flush=True)
        if number % 16 == 15 or number == trials - 1:
            with lzma.open(path, "wt", preset=9) as opened:
                json.dump(done, opened)


def _short(value: float) -> float | None:
    """Return a value with five significant digits; None if it is not finite."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the trials of a random search on the digits.")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file of the trials (json.xz)")
    parser.add_argument("--trials", type=int, default=256, help="number of trials")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    record(arguments.out, arguments.trials, arguments.seed)


if __name__ == "__main__":
    main()
