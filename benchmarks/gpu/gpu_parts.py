"""Measure one part of what the GPU code paths do; :mod:`benchmarks.gpu.gpu_evidence` runs all of them.

``python -m benchmarks.gpu.gpu_parts PART FILE`` writes the figures, and the name of the device, to the file.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Figures
from benchmarks.gpu.turns import Turns, gaps_between_turns
from benchmarks.live.workloads import Stamps, read_stamps
from benchmarks.results import ROOT
from lightning_core.storage.atomic_files import write_whole

if TYPE_CHECKING:
    import pytest

GIB = 2**30
# Batches in whose seconds the memory is read several times.
READ = 2000
# Bytes of state that are moved to measure how fast that is: at most, and as a fraction of what is free.
MOVED, MOVED_FRACTION = 4 * GIB, 0.25
# Width and layers of two jobs that do not fit together: 3 GiB of parameters, gradients and moments each.
WIDE, LAYERS = 8192, 3
# Seconds of a test after which its threads are printed.
STUCK = 60
# Bytes that are left free for them, and how often they change turns.
ROOM, TURNS = int(6.5 * GIB), 6


class SkippedError(Exception):
    """This machine has not what the part needs."""


class FailedError(Exception):
    """The part was measured, and what it measured must not be."""

    def __init__(self, why: str, figures: Figures) -> None:
        super().__init__(why)
        self.figures = figures


class Wide(pl.LightningModule):
    """Layers of the same width, trained by Adam.

    Args:
        width: Width of its layers.
        layers: Number of layers.
    """

    def __init__(self, width: int = 2048, layers: int = 8) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        self.width = width

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(6400, self.width)), batch_size=64)


def fit(model: pl.LightningModule, callbacks: list[pl.Callback], batches: int, data: Any = None) -> None:
    """Train on one GPU."""
    trainer = pl.Trainer(
        max_steps=batches, max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="gpu", devices=1, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)


class Outcomes:
    """Notes what becomes of each test, in the file of the part: what was found stays there if the part is ended.

    Args:
        file: File of the part.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._of: dict[str, str] = {}
        self.chosen = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._of[report.nodeid] = "failed"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._of[report.nodeid] = report.outcome
            write_outcome(self._file, self.figures(), self.why())

    def figures(self) -> Figures:
        """Return how many tests have passed, failed and been skipped."""
        found = list(self._of.values())
        return {f"checks_{outcome}": found.count(outcome) for outcome in ("passed", "failed", "skipped")}

    def why(self) -> str:
        """Return which tests failed or have not run; nothing if all is well."""
        words = []
        if failed := [name.rpartition("::")[2] for name, outcome in self._of.items() if outcome == "failed"]:
            words.append(f"failed: {', '.join(failed)}")
        if (missing := self.chosen - len(self._of)) > 0:
            words.append(f"{missing} of {self.chosen} tests not run")
        return "; ".join(words)


def checks(file: Path) -> Figures:
    """Run the tests of the working directory that need a GPU, those that need a pool last."""
    import hypothesis  # noqa: F401  # needed by some of them: without it the part is left out
    import pytest

    texts = {path: path.read_text() for path in Path("tests").rglob("test_*.py")}
    paths = sorted(path for path, text in texts.items() if re.search(r"mark\.gpu\b", text))
    paths.sort(key=lambda path: "gpu_cluster" in texts[path])
    # What is printed says in which test it was, and where, if it is ended at its limit.
    words = ["-v", "-m", "gpu", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={STUCK}", *map(str, paths)]
    pytest.main(words, plugins=[outcomes := Outcomes(file)])
    if why := outcomes.why():
        raise FailedError(why, outcomes.figures())
    return outcomes.figures()


def overhead(_file: Path) -> Figures:
    """Measure the hooks of the callback in a training on the GPU, and by how much it slows that down."""
    from benchmarks.live.overhead import WARM, clock_cost, timed
    from benchmarks.live.workloads import Noise, Regression
    from lightning_core.callbacks import CoreCallback
    from lightning_core.core.targets import BatchTarget

    batches, clock = WARM + 1000, clock_cost()
    hooks: list[float] = []
    slower = []

    class Watch(pl.Callback):
        """Notes when the device has done some batches."""

        def __init__(self) -> None:
            self.at: list[float] = []

        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step in (WARM, batches):
                torch.cuda.synchronize()
                self.at.append(time.perf_counter())

    def seconds(callbacks: list[pl.Callback]) -> float:
        watch = Watch()
        fit(Regression(), [*callbacks, watch], batches, Noise())
        return watch.at[1] - watch.at[0]

    for _ in range(3):  # alternating, so that other load affects both
        without = seconds([])
        callback = CoreCallback("bench", "1d", BatchTarget(10**9), pool="local")
        spent = timed(callback)
        slower.append(seconds([callback]) / without - 1)
        hooks += spent[WARM:]
    return {
        "callback_us": (statistics.median(hooks) - clock) * 1e6,
        "callback_p99_us": (float(np.quantile(hooks, 0.99)) - clock) * 1e6,
        "slower_pct": statistics.median(slower) * 100,
    }


def shares(_file: Path) -> Figures:
    """Measure the progress of two jobs with equal work per batch that share the GPU 70 to 30."""
    from lightning_core.cluster.bundle import Bundle
    from lightning_core.cluster.cluster import Cluster

    job = {"model": {"class_path": "benchmarks.gpu.gpu_parts.Wide"}, "trainer": {"logger": False},
           "deadline": "20s", "target": {"batches": 10**9}, "on_miss": "stop"}  # fmt: skip
    content = {"pool": {"kind": "gpu"}, "policy": {"name": "fixed", "shares": [0.7, 0.3]},
               "jobs": {"more": job, "less": job}}  # fmt: skip
    with tempfile.TemporaryDirectory() as temp, Cluster(workers=2, kind="gpu") as cluster:
        summary = Bundle.from_dict(content, ROOT).run(run_dir=Path(temp) / "run", cluster=cluster)
    if idle := [f"{job.name}: {job.reason}" for job in summary.jobs if not job.batches]:
        raise RuntimeError(f"both jobs must train: {', '.join(idle)}")
    more, less = (status.batches for status in summary.jobs)
    return {"share_error": abs(more / (more + less) / 0.7 - 1)}


def memory(_file: Path) -> Figures:
    """Compare the peak that is reported with torch's, and measure how fast the state of a training is moved."""
    from lightning_core.agent.steering.offload import Offload
    from lightning_core.callbacks.launched import LaunchedCallback
    from lightning_core.core.targets import BatchTarget

    with tempfile.TemporaryDirectory() as temp:
        client = Turns(0, Path(temp) / "turn", last=1, batches=10**9)
        fit(Wide(), [LaunchedCallback("job", BatchTarget(10**9), client=client)], READ)
    peaks = [report.memory.peak for report in client.reports if report.memory is not None]
    figures: Figures = {"peak_in_torch": max(peaks) / torch.cuda.max_memory_reserved() if peaks else None}
    torch.cuda.empty_cache()
    size = int(min(MOVED, MOVED_FRACTION * torch.cuda.mem_get_info()[0]))
    width = 4096
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(max(1, size // (16 * width**2)))))
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, width, device="cuda")).square().mean().backward()
    optimizer.step()
    torch.cuda.empty_cache()
    state = Offload("bench", lambda: [model, optimizer], torch.device("cuda", torch.cuda.current_device()))
    before, size = torch.cuda.memory_reserved(), state.frees()
    took: dict[str, list[float]] = {"out": [], "back": []}
    for _ in range(4):
        took["out"].append(_seconds(state.move_out))
        held = torch.cuda.memory_reserved()
        took["back"].append(_seconds(state.move_back))
    return (
        figures
        | {
            "moved_gib": size / GIB,
            "held_fraction": held / before,
            "out_first_gb_s": size / took["out"][0] / 1e9,  # it has to get the memory first
            "out_gb_s": size / statistics.median(took["out"][1:]) / 1e9,
            "back_gb_s": size / statistics.median(took["back"][1:]) / 1e9,
        }
    )


def _seconds(do: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    do()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def turns(_file: Path) -> Figures:
    """Let two jobs that do not fit the GPU together take turns on it: each leaves its memory while it is held."""
    from lightning_core.node.device_arbiter import DeviceArbiter

    free = torch.cuda.mem_get_info()[0]
    if free < ROOM:
        raise SkippedError(f"needs {ROOM / GIB:.1f} GiB of free memory, found {free / GIB:.1f} GiB")
    # What is left fits one of them only.
    kept = torch.empty(free - ROOM, dtype=torch.uint8, device="cuda")
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        arbiter = DeviceArbiter(folder / "arbiter")
        jobs = [processes.Process(target=_train_in_turns, args=(number, folder)) for number in (0, 1)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        arbiter.close()
        if any(job.exitcode for job in jobs):
            raise RuntimeError(f"both jobs must end as they should, ended with {[job.exitcode for job in jobs]}")
        gaps = gaps_between_turns([read_stamps(folder / f"{number}.npy") for number in (0, 1)])
    del kept
    state = 4 * 4 * LAYERS * WIDE * (WIDE + 1)
    return {
        "both_gib": 2 * state / GIB,
        "room_gib": ROOM / GIB,
        "changes": len(gaps),
        "change_s": statistics.median(gaps),
    }


def _train_in_turns(number: int, folder: Path) -> None:
    from lightning_core.agent.steering.fit_signals import JobEnded
    from lightning_core.callbacks.launched import LaunchedCallback
    from lightning_core.core.targets import BatchTarget
    from lightning_core.node.arbiter_client import ArbiterClient

    lock = ArbiterClient(folder / "arbiter")
    client = Turns(number, folder / "turn", TURNS)
    core = LaunchedCallback("job", BatchTarget(10**9), client=client, device_lock=lock, on_hold="offload", hang="off")
    try:
        fit(Wide(WIDE, LAYERS), [core, Stamps(str(folder / f"{number}.npy"))], 10**9)
    except JobEnded:  # after the last turn
        lock.close()


def suspend(_file: Path) -> Figures:
    """Suspend a process with 1 and 8 GiB and a captured graph, and bring it back."""
    from benchmarks.gpu.suspended import suspend_one

    figures: Figures = {}
    for gib in (1, 8):
        one = suspend_one(gib)
        if one.refused:
            raise SkippedError(f"the process was not suspended: {one.refused}")
        figures |= {
            f"suspend_s_{gib}": one.out,
            f"resume_s_{gib}": one.back,
            f"suspend_gb_s_{gib}": gib * GIB / one.out / 1e9,
            f"resume_gb_s_{gib}": gib * GIB / one.back / 1e9,
            f"suspended_mib_{gib}": one.left / 2**20,
        }
        if one.changed:
            raise FailedError(f"a process of {gib} GiB that was suspended has changed: {one.changed}", figures)
    return figures


def demo(_file: Path) -> Figures:
    """Run the demo under two of its policies."""
    from examples import demo as example

    with tempfile.TemporaryDirectory() as temp:
        words = ["--kind", "gpu", "--policy", "fifo", "triage", "--run-dir", temp]
        figures = example.main(words)
    return {f"demo_{name}": float(number) for name, number in figures.items()}


def resize(_file: Path) -> Figures:
    """Measure the time from the decision to resize to the first batch."""
    if torch.cuda.device_count() < 2:
        raise SkippedError(f"needs two GPUs, found {torch.cuda.device_count()}")
    from benchmarks.live.resize import Warm

    with tempfile.TemporaryDirectory() as temp, (warm := Warm(Path(temp), "gpu")).cluster:
        timed = warm.run("resized", 4, 10**6)["resizes"]
    return {"resize_s": statistics.median(one.seconds for one in timed)}


PARTS = {part.__name__: part for part in (memory, overhead, turns, suspend, checks, shares, demo, resize)}


def write_outcome(file: Path, figures: Figures, why: str) -> None:
    """Write the figures of a part, and why there are no others."""
    write_whole(file, json.dumps({"figures": figures, "why": why}))


def main(name: str, file: Path) -> None:
    """Measure a part and write its outcome."""
    figures: Figures = {}
    why = ""
    try:
        figures = PARTS[name](file)
    except SkippedError as error:
        why = f"skipped: {error}"
    except FailedError as error:
        figures, why = error.figures, str(error)
    write_outcome(file, figures, why)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
