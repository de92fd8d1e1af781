"""Measure one part of what the GPU code paths do; :mod:`benchmarks.gpu.gpu_evidence` runs all of them.

``python -m benchmarks.gpu.gpu_parts PART FILE`` writes the figures, and the name of the device, to the file.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Figures
from benchmarks.gpu.turns import Turns, gaps_between_turns
from benchmarks.live.workloads import Stamps, read_stamps
from benchmarks.results import ROOT
from lightning_core.core.jobs import Beside
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
# Seconds of the overhead, and those that compiling a model for it may take: without them it is left out.
OVERHEAD_SECONDS, COMPILE_SECONDS = 50.0, 25.0
# Seconds in which four trainings are measured.
BESIDE_SECONDS = 115.0
# Seconds of a test after which its threads are printed.
STUCK = 60
# Bytes that are left free for them, and how often they change turns.
ROOM, TURNS = int(6.5 * GIB), 6


class SkippedError(Exception):
    """This machine has not what the part needs, or some of it."""

    def __init__(self, why: str, figures: Figures | None = None) -> None:
        super().__init__(why)
        self.figures = figures or {}


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
        self.chosen = self.without_ray = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what needs Ray where it is missing."""
        if not _has_ray():
            needs = [item for item in items if "local_ray" in getattr(item, "fixturenames", ())]
            self.without_ray = len(needs)
            for item in needs:
                item.add_marker("skip")

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
    if outcomes.without_ray:
        raise SkippedError(f"{outcomes.without_ray} tests need the package ray, which is missing", outcomes.figures())
    return outcomes.figures()


class Compiled(pl.LightningModule):
    """A small model whose loss torch.compile makes a CUDA graph of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _layers(256, 4)
        self._loss = torch.compile(self._plain_loss, mode="reduce-overhead")

    def _plain_loss(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch).square().mean()
        return loss

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return self._loss(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(6400, 256)), batch_size=64, drop_last=True)


class Captured(pl.LightningModule):
    """A model whose whole step is one CUDA graph: each replay writes the loss to the same memory."""

    def __init__(self, width: int = 2048, layers: int = 8) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = _layers(width, layers)
        self.width = width

    def on_train_start(self) -> None:
        self.batch = torch.randn(64, self.width, device=self.device)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=1e-4)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._step()

    def _step(self) -> torch.Tensor:
        self.sgd.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.net(self.batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.sgd.step()
        return loss

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.batch.copy_(batch[0])
        self.graph.replay()
        self.optimizers().step()  # type: ignore[union-attr]  # for Lightning's count
        return self.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=self.device))], lr=0.0)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(6400, self.width)), batch_size=64, drop_last=True)


def _layers(width: int, layers: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


class Watch(pl.Callback):
    """Notes when the device has done some batches.

    Args:
        at: Numbers of batches.
    """

    def __init__(self, *at: int) -> None:
        self._at = at
        self._batches = 0
        self.seconds: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self._batches += 1
        if self._batches in self._at:
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter())


class Pair(NamedTuple):
    """What trainings took with our callback and with an empty one in the same loop, round by round.

    Attributes:
        hooks: Seconds of the hooks of each batch with ours, of all rounds.
        empty: The same with the empty one.
        whole: Seconds of each training with ours.
        whole_empty: The same with the empty one.
    """

    hooks: list[float]
    empty: list[float]
    whole: list[float]
    whole_empty: list[float]

    def paid(self, quantile: float = 0.5) -> float:
        """Return the microseconds of a quantile of the batches above the empty callback."""
        return float(np.quantile(self.hooks, quantile) - np.quantile(self.empty, quantile)) * 1e6

    def mean(self) -> float:
        """Return the mean microseconds of a batch above the empty callback."""
        return (statistics.fmean(self.hooks) - statistics.fmean(self.empty)) * 1e6

    def slower(self) -> float:
        """Return by how many percent trainings are slower, the median of the rounds."""
        return statistics.median(100 * (a / b - 1) for a, b in zip(self.whole, self.whole_empty, strict=True))


def pair(
    model: Callable[[], pl.LightningModule], rounds: int, batches: int, data: Any = None, lock: Any = None
) -> Pair:
    """Train with ours and with an empty callback in turn, so that other load affects both.

    Args:
        model: Makes a model.
        rounds: Trainings with each.
        batches: Batches of a training, without those at its start.
        data: Its data, if the model has none.
        lock: Device lock for the training with ours; what it waits for its turn is not counted.
    """
    from benchmarks.live.hooks import WARM, empty, timed
    from lightning_core.callbacks import CoreCallback
    from lightning_core.core.targets import BatchTarget

    found = Pair([], [], [], [])
    for number in range(2 * rounds):
        ours = (number + number // 2) % 2 == 0
        callback: Any = CoreCallback("bench", "1d", BatchTarget(10**9), pool="local") if ours else empty()
        if ours and lock is not None:
            callback._options = replace(callback._options, device_lock=lock)
        spent, watch = timed(callback), Watch(WARM, WARM + batches)
        waits: list[tuple[int, float]] = []
        if lock is not None:
            lock.told = lambda seconds, spent=spent, waits=waits: waits.append((len(spent), seconds))
        fit(model(), [callback, watch], WARM + batches, data)
        turned = {at for at, _ in waits}
        kept = [seconds for at, seconds in enumerate(spent) if at >= WARM and at not in turned]
        (found.hooks if ours else found.empty).extend(kept)
        waited = sum(seconds for at, seconds in waits if at > WARM)
        (found.whole if ours else found.whole_empty).append(watch.seconds[1] - watch.seconds[0] - waited)
    return found


# A process that has a turn of 2 ms on the device whenever it gets one, and waits for the next at once.
OTHER = """
import sys, time
from pathlib import Path
from lightning_core.node.arbiter_client import ArbiterClient
lock = ArbiterClient(Path(sys.argv[1]))
print("waits", flush=True)
while True:
    if lock.acquire(0.5, 1.0):
        time.sleep(0.002)
        lock.release(again=True, share=0.5)
"""


@contextmanager
def other_waits(folder: Path) -> Iterator[Any]:
    """Yield the lock of a device for which another process waits all the time."""
    from lightning_core.node.arbiter_client import ArbiterClient
    from lightning_core.node.device_arbiter import DeviceArbiter

    class Told(ArbiterClient):
        """Says how long it was away from the device."""

        told: Callable[[float], None] = staticmethod(lambda seconds: None)

        def acquire(self, share: float, timeout: float, beside: int = 0) -> bool:
            began = time.perf_counter()
            try:
                return super().acquire(share, timeout, beside)
            finally:
                self.told(time.perf_counter() - began)

    arbiter = DeviceArbiter(folder / "arbiter")
    command = [sys.executable, "-c", OTHER, str(arbiter.path)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    lock = Told(arbiter.path)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        yield lock
    finally:
        other.kill()
        other.wait()
        lock.close()
        arbiter.close()


def overhead(file: Path) -> Figures:
    """Measure what the hooks of the callback cost above an empty one, and by how much they slow a training down."""
    from benchmarks.live.workloads import Noise, Regression

    until = time.monotonic() + OVERHEAD_SECONDS
    alone = pair(Regression, 3, 1000, Noise())
    figures: Figures = {
        "hooks_alone_us": alone.paid(),
        "hooks_alone_mean_us": alone.mean(),
        "hooks_alone_p99_us": alone.paid(0.99),
        "slower_alone_pct": alone.slower(),
    }
    write_outcome(file, figures, "")
    with tempfile.TemporaryDirectory(prefix="lc-") as temp, other_waits(Path(temp)) as lock:
        in_turns = pair(Regression, 2, 1000, Noise(), lock)
    figures |= {
        "hooks_turns_us": in_turns.paid(),
        "hooks_turns_mean_us": in_turns.mean(),
        "hooks_turns_p99_us": in_turns.paid(0.99),
    }
    write_outcome(file, figures, "")
    captured = pair(Captured, 2, 600)
    figures |= {"hooks_graph_us": captured.paid(), "slower_graph_pct": captured.slower()}
    write_outcome(file, figures, "")
    if time.monotonic() < until - COMPILE_SECONDS:
        compiled = pair(Compiled, 1, 600)
        figures |= {"hooks_compiled_us": compiled.paid(), "slower_compiled_pct": compiled.slower()}
    return figures


def shares(_file: Path) -> Figures:
    """Measure the progress of two jobs with equal work per batch that share the GPU 70 to 30."""
    if not _has_ray():
        return shares_without_ray()
    from lightning_core.cluster.bundle import Bundle
    from lightning_core.cluster.cluster import Cluster

    job = {"model": {"class_path": "benchmarks.gpu.gpu_parts.Wide"}, "trainer": {"logger": False},
           "deadline": "20s", "target": {"batches": 10**9}, "on_miss": "stop"}  # fmt: skip
    content = {"pool": {"kind": "gpu"}, "policy": {"name": "fixed", "shares": [0.7, 0.3]},
               "jobs": {"more": job, "less": job}}  # fmt: skip
    with tempfile.TemporaryDirectory() as temp, Cluster(workers=2, kind="gpu") as cluster:
        bundle = Bundle.from_dict(content, ROOT)
        bundle = replace(bundle, settings=replace(bundle.settings, beside=Beside.NEVER))
        summary = bundle.run(run_dir=Path(temp) / "run", cluster=cluster)
    if idle := [f"{job.name}: {job.reason}" for job in summary.jobs if not job.batches]:
        raise RuntimeError(f"both jobs must train: {', '.join(idle)}")
    more, less = (status.batches for status in summary.jobs)
    return {"share_error": abs(more / (more + less) / 0.7 - 1)}


def shares_without_ray(gpu: bool = True, seconds: float = 15.0, model: type[pl.LightningModule] = Wide) -> Figures:
    """Measure the same of scripts that have joined a pool without Ray."""
    from benchmarks.gpu.four_trainings import START, Workers, settings
    from benchmarks.gpu.served import Served

    with Workers((model, model), gpu) as workers:
        device = workers.device()
        workers.warm_up(1.0)
        fixed = settings(device, policy="fixed", policy_args={"shares": [0.7, 0.3]}, beside=Beside.NEVER)
        with Served(device, fixed) as pool:
            # Without a deadline they would share alike, whatever the policy.
            found = workers.together("shares", START + seconds, pool, deadline=86_400.0).throughputs(seconds)
            first, _ = sorted(pool.status(), key=lambda job: job.submitted_at)
    more, less = found if first.name == "shares-0" else reversed(found)  # shares go by the order of joining
    return {"share_error": abs(more / (more + less) / 0.7 - 1)}


def _has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


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


def suspend(file: Path) -> Figures:
    """Suspend a process with 1 and 8 GiB and a captured graph, and bring it back."""
    figures: Figures = {}
    for gib in (1, 8):
        figures |= _suspended(gib)
        write_outcome(file, figures, "")
    return figures


def suspend_40(_file: Path) -> Figures:
    """Do the same with 40 GiB where both memories have room for it."""
    from benchmarks.gpu.suspended import lacks_memory

    if why := lacks_memory(40):
        raise SkippedError(why)
    return _suspended(40)


def _suspended(gib: int) -> Figures:
    from benchmarks.gpu.suspended import suspend_one

    one = suspend_one(gib)
    if one.refused:
        raise SkippedError(f"the process was not suspended: {one.refused}")
    figures: Figures = {
        f"suspend_s_{gib}": one.out,
        f"resume_s_{gib}": one.back,
        f"suspend_gb_s_{gib}": gib * GIB / one.out / 1e9,
        f"resume_gb_s_{gib}": gib * GIB / one.back / 1e9,
        f"suspended_mib_{gib}": one.left / 2**20,
    }
    if one.changed:
        raise FailedError(f"a process of {gib} GiB that was suspended has changed: {one.changed}", figures)
    return figures


def beside(file: Path) -> Figures:
    """Train four small models by turns, beside each other, unmanaged, and under MPS."""
    from benchmarks.gpu.four_trainings import measure

    until = time.monotonic() + BESIDE_SECONDS
    figures, why = measure(gpu=True, keep=lambda found: write_outcome(file, found, ""), until=until)
    if why:
        raise SkippedError(why, figures)
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


PARTS = {
    part.__name__: part for part in (overhead, beside, suspend, checks, shares, demo, memory, turns, resize, suspend_40)
}


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
        figures, why = error.figures, f"skipped: {error}"
    except FailedError as error:
        figures, why = error.figures, str(error)
    write_outcome(file, figures, why)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
