"""Tests that need a GPU: ``make gpu-check``. They are skipped where there is none."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from lightning_core.agent.reporting.inbox import Inbox
from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.agent.steering.busy_timer import MAX_INTERVAL, GpuTimer
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Grant
from lightning_core.core.events import Cell
from lightning_core.core.jobs import Beside
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.storage.journals.journal import Journal
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.conftest import ROOT
from tests.tiny import QUIET

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.gpu

# Calls in which the host waits for the device. Reading a value of the device is one of a stream.
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize")
BATCHES = 200


class Wide(pl.LightningModule):
    """Keeps a GPU busy for a millisecond or so a batch."""

    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)), torch.nn.Linear(width, 1))
        self.width = width

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).square().mean() + 0.1
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(25600, self.width)), batch_size=256, pin_memory=True)


def fit(callbacks: list[pl.Callback], batches: int = BATCHES) -> None:
    options: dict[str, Any] = {**QUIET, "accelerator": "gpu", "devices": 1}
    pl.Trainer(max_steps=batches, max_epochs=-1, callbacks=callbacks, **options).fit(Wide())


def waits(callbacks: list[pl.Callback]) -> dict[str, int]:
    """Return how often the host waited for the device, by the profiler."""
    fit(callbacks, 20)  # one-time set-up
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        fit(callbacks)
    found = {event.key: event.count for event in profiled.key_averages() if event.key in WAITS}
    print(profiled.key_averages().table(sort_by="cpu_time_total", row_limit=25))
    return {name: found.get(name, 0) for name in WAITS}


def test_the_callback_does_not_wait_for_the_device_every_batch() -> None:
    """Compared with the same training without it; it waits only for events of batches that were submitted long ago."""
    without = waits([])
    ours = waits([ConnectedScript("job", BatchTarget(10**9), client=Script(grant(1, 1.0)))])
    extra = {name: ours[name] - without[name] for name in WAITS}
    assert all(count < BATCHES / 10 for count in extra.values()), (without, ours)


def test_losses_arrive_and_busy_seconds_are_the_device_s() -> None:
    script = Script(grant(1, 1.0))
    fit([ConnectedScript("job", BatchTarget(10**9), client=script)])
    last = script.reports[-1]
    assert last.batches == BATCHES
    assert 0 < last.busy < 60
    cells = {cell.number: cell.value for report in script.reports for cell in report.cells}
    assert len(cells) >= BATCHES // 10 - 1
    assert all(loss > 0 for loss in cells.values())


def test_the_loss_of_a_cuda_graph_is_that_of_its_batch() -> None:
    """Each replay writes it to the same memory."""
    step, graph = torch.zeros((), device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1.0)
        loss = step * 2.0
    step.zero_()
    cells: list[Cell] = []
    meter = LossMeter(cells.append, every=10, growth=0.0)
    for batch in range(1, 101):
        graph.replay()
        meter.add_tensor(loss, 0.5, batch)
    meter.flush()
    assert [cell.value for cell in cells] == [10 * number + 5.5 for number in range(10)]


def test_a_training_whose_default_device_is_the_gpu_is_watched() -> None:
    script = Script(grant(1, 1.0))
    torch.set_default_device("cuda")
    try:
        fit([ConnectedScript("job", BatchTarget(10**9), client=script)])
    finally:
        torch.set_default_device(None)
    assert script.reports[-1].batches == BATCHES
    assert sum(len(report.cells) for report in script.reports) >= BATCHES // 10 - 1


def test_the_host_is_a_few_milliseconds_ahead_of_a_graph_that_it_replays() -> None:
    """Replays of a millisecond each, submitted in microseconds."""
    data, graph = torch.randn(4096, 4096, device="cuda"), torch.cuda.CUDAGraph()
    data @ data
    with torch.cuda.graph(graph):
        for _ in range(4):
            data @ data
    timer = GpuTimer(torch.device("cuda", torch.cuda.current_device()))
    timer.begin()
    for _ in range(500):
        graph.replay()
        timer.batch()
    submitted = time.perf_counter()
    timer.end()
    assert time.perf_counter() - submitted < 4 * MAX_INTERVAL


def test_memory_is_freed_on_release(tmp_path: Path) -> None:
    """A job that is granted no device saves and leaves, and its memory on the device is freed."""
    from lightning_core.agent.steering.fit_signals import JobReleased

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    script = Script(grant(1, 1.0))

    class Tell(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 50:
                script.say(Grant("job", 2, 0.0, (), Reason("makes_room")))

    core = LaunchedCallback("job", BatchTarget(10**9), client=script, devices=(0,), folder=tmp_path)
    with pytest.raises(JobReleased):
        fit([core, Tell()], batches=10**6)
    assert (tmp_path / "last.ckpt").exists()
    del core
    gc.collect()
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] < 64 * 2**20


class Heavy(Wide):
    """Has hundreds of megabytes of parameters, gradients and moments."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


def test_a_held_job_leaves_the_memory_of_its_gpu_and_goes_on_as_if_it_had_stayed() -> None:
    def train(held: tuple[int, ...]) -> tuple[Heavy, Any, list[int]]:
        pl.seed_everything(1)
        script, kept = Script(grant(1, 1.0)), list[int]()

        class Hold(pl.Callback):
            def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
                if trainer.global_step in held:
                    current: Any = core._fit
                    current.mailbox.inbox.directive = grant(100 + trainer.global_step, 0.0)

        def wait(inbox: Any, known: Any, timeout: float) -> None:
            kept.append(torch.cuda.memory_reserved())
            inbox.take(grant(known.version + 1, 1.0))

        with pytest.MonkeyPatch.context() as patch:
            core = ConnectedScript("job", BatchTarget(10**9), client=script, on_hold="offload")
            patch.setattr(Inbox, "wait", wait)
            options: dict[str, Any] = {**QUIET, "accelerator": "gpu", "devices": 1, "precision": "16-mixed"}
            trainer = pl.Trainer(max_steps=30, max_epochs=-1, callbacks=[core, Hold()], **options)
            trainer.fit(model := Heavy())
        return model, trainer.optimizers[0].state_dict(), kept

    gc.collect()
    torch.cuda.empty_cache()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole, whole_state, _ = train(())
        moved, moved_state, kept = train((3, 4, 20))
    finally:
        torch.use_deterministic_algorithms(False)
    state = 4 * sum(parameter.numel() * parameter.element_size() for parameter in whole.parameters())
    assert len(kept) == 3
    assert max(kept) < state / 4, (kept, state)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), moved.parameters(), strict=True))
    for number, parts in whole_state["state"].items():
        assert all(torch.equal(part, moved_state["state"][number][name]) for name, part in parts.items())


def test_a_suspended_process_is_back_to_the_bit_with_its_captured_graph() -> None:
    from benchmarks.gpu.suspended import suspend_one

    one = suspend_one(1)
    if "not installed" in one.refused:
        pytest.skip(one.refused)
    assert (one.refused, one.changed) == ("", "")
    assert one.left < 2**28  # its context has left, too


def test_two_jobs_take_turns_on_one_gpu(gpu_cluster: Cluster, tmp_path: Path) -> None:
    """With equal work per batch, progress is proportional to the shares."""
    job = {
        "model": {"class_path": "tests.test_gpu.Wide"},
        "trainer": {"logger": False},
        "deadline": "20s",
        "target": {"batches": 10**9},
        "on_miss": "stop",
    }
    content = {
        "pool": {"kind": "gpu"},
        "policy": {"name": "fixed", "shares": [0.7, 0.3]},
        "jobs": {"more": job, "less": job},
    }
    bundle = Bundle.from_dict(content, ROOT)
    bundle = replace(bundle, settings=replace(bundle.settings, beside=Beside.NEVER))
    summary = bundle.run(run_dir=tmp_path, cluster=gpu_cluster)
    more, less = (status.batches for status in summary.jobs)
    assert more / (more + less) == pytest.approx(0.7, abs=0.07)
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert len(History.read(journal).jobs) == 2


def test_a_share_of_a_gpu_is_kept_by_pausing() -> None:
    """Even without other jobs it uses no more than its grant."""
    script = Script(Grant("job", 1, 0.4, (0,), Reason("on_ramp", (0.4, 60.0)), True))
    core = LaunchedCallback("job", BatchTarget(10**9), client=script, devices=(0,))
    began = time.monotonic()
    fit([core], batches=400)
    took = time.monotonic() - began
    assert script.reports[-1].busy / took < 0.55


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_training_is_resized_over_nccl(local_ray: None, tmp_path: Path) -> None:
    """One GPU, two, and one again: each sample of each epoch once."""
    from benchmarks.live.numbered_training import SAMPLES
    from benchmarks.live.resize import Warm

    (tmp_path / "bench").mkdir()
    with (warm := Warm(tmp_path / "bench", "gpu")).cluster:
        seen = warm.run("resized", 4, 10**6)["seen"]
    epochs: dict[int, list[int]] = {}
    for (epoch, _), numbers in sorted(seen.items()):
        epochs.setdefault(epoch, []).extend(numbers)
    for epoch in sorted(epochs)[:-1]:
        assert sorted(epochs[epoch]) == list(range(SAMPLES))
