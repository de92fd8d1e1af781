"""Searches until a deadline on two devices, trained live: a pool's, and TPE with ASHA in Ray Tune.

Both draw from the same space with Optuna's TPE, and their trials train the same network, whose batches wait as if for
an accelerator: a whole trial takes half a minute. The clock starts when the Ray cluster is up. Ray Tune starts a
process for each trial, which imports torch; the pool's two workers begin to import it when it is brought up, and keep
it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import optuna

from benchmarks.common import Figures, Size, main, table
from benchmarks.results import ROOT
from benchmarks.searches.tune_search import DEVICES
from examples.search import EPOCHS

# Seconds of a search, and searches of each kind.
SIZES: dict[Size, tuple[float, int]] = {"quick": (60.0, 1), "default": (120.0, 3), "full": (240.0, 5)}
SPACE = {
    "model.init_args.width": {"int": [8, 256], "log": True},
    "model.init_args.dropout": {"float": [0.0, 0.6]},
    "model.init_args.lr": {"float": [1e-4, 1.0], "log": True},
    "model.init_args.adam": {"choices": [False, True]},
}


def in_a_pool(folder: Path, seconds: float, seed: int) -> dict[str, float]:
    """Search in a pool by the command line; return the best loss, the number of trials and the epochs they trained."""
    env = os.environ | {"LIGHTNING_CORE_HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lightning_core.cli.main"]
    subprocess.run([*command, "up", "--devices", str(DEVICES)], env=env, cwd=folder, check=True, stdout=sys.stderr)
    try:
        end = datetime.now() + timedelta(seconds=seconds)
        (folder / "digits.yaml").write_text(json.dumps({
            "deadline": end.isoformat(timespec="seconds"),
            "model": {"class_path": "benchmarks.searches.waiting_digits.WaitingPerceptron"},
            "data": "benchmarks.searches.waiting_digits.Digits",
            "search": {"metric": "val_loss", "epochs": EPOCHS, "seed": seed, "space": SPACE},
        }))  # fmt: skip
        subprocess.run(
            [*command, "search", "digits.yaml", "--allow-import", "benchmarks", "--json", "found.json"],
            env=env, cwd=folder, check=True, stdout=sys.stderr,
        )  # fmt: skip
    finally:
        subprocess.run([*command, "down", "--now"], env=env, cwd=folder, check=True, stdout=sys.stderr)
    found = json.loads((folder / "found.json").read_text())
    study = optuna.load_study(study_name="digits", storage=f"sqlite:///{folder}/searches/digits/study.db")
    epochs = sum(len(trial.intermediate_values) for trial in study.trials)
    return {"value": found["value"], "trials": found["trials"], "epochs": epochs}


def in_tune(folder: Path, seconds: float, seed: int) -> dict[str, float]:
    """Search in Ray Tune, in a process of its own; return the same."""
    line = [sys.executable, "-m", "benchmarks.searches.tune_search", str(folder), str(seconds), str(seed)]
    # Ray keeps its token at home.
    env = os.environ | {"HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=env, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.strip().rsplit("\n", 1)[-1]))


def measure(size: Size) -> Figures:
    """Search in turn in a pool and in Ray Tune."""
    seconds, many = SIZES[size]
    found: dict[str, list[dict[str, float]]] = {"pool": [], "tune": []}
    for seed in range(many):
        for name, search in (("pool", in_a_pool), ("tune", in_tune)):
            with tempfile.TemporaryDirectory(prefix="lc-") as folder:
                began = time.monotonic()
                found[name].append(search(Path(folder), seconds, seed))
                print(f"{name}, seed {seed}: {found[name][-1]}, {time.monotonic() - began:.0f} s with the cluster",
                      flush=True)  # fmt: skip
    rows: list[list[object]] = []
    figures: Figures = {}
    for name, results in found.items():
        mean = {key: float(np.mean([one[key] for one in results])) for key in ("value", "trials", "epochs")}
        rows.append([name, *mean.values()])
        figures |= {f"{name}_loss": mean["value"], f"{name}_epochs": mean["epochs"]}
    difference = np.array([ours["value"] - theirs["value"] for ours, theirs in zip(*found.values(), strict=True)])
    figures["difference_error"] = float(np.std(difference, ddof=1) / np.sqrt(many)) if many > 1 else None
    print(f"searches of {seconds:g} s on {DEVICES} devices, mean of {many}")
    table(["", "best loss", "trials", "epochs"], rows)
    return figures


if __name__ == "__main__":
    main("searches.live_pool_search", __doc__.splitlines()[0], measure)
