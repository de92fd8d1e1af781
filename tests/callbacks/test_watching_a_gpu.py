"""What the hooks ask of a GPU, with a stand-in of CUDA: hardly anything, and what they measure is right."""

from __future__ import annotations

import ast
import gc
import math
import random
import weakref
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import lightning_core
from lightning_core.agent import participant
from lightning_core.agent.reporting.loss_meter import MAX_KEPT, READ_AFTER, LossMeter
from lightning_core.agent.reporting.losses import Losses
from lightning_core.agent.reporting.target_reader import as_number
from lightning_core.agent.steering import ranks
from lightning_core.agent.steering.busy_timer import (
    MAX_BETWEEN,
    MAX_INTERVAL,
    MIN_INTERVAL,
    BusyTimer,
    GpuTimer,
    HostTimer,
)
from lightning_core.core.events import BadLosses, Cell
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.node.arbiter_client import ArbiterClient
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.conftest import ROOT
from tests.fake_cuda import FakeCuda, OnGpu, cuda
from tests.tiny import QUIET, Line, Points

__all__ = ["cuda"]
GPU = torch.device("cuda", 0)
# Seconds of the device, and of the host, for a batch: the host is slower, as fast, much faster (a CUDA graph).
KINDS = {"the host": (0.0002, 0.001), "both": (0.001, 0.001), "the device": (0.001, 0.0002), "graphs": (0.001, 1e-5)}


def train(cuda: FakeCuda, timer: BusyTimer, seconds: float, batch: tuple[float, float]) -> tuple[int, float]:
    """Train until so many seconds have passed; return the batches, and how far the host was ahead at most."""
    until, batches, lead = cuda.now + seconds, 0, 0.0
    while cuda.now < until:
        cuda.submit(*batch)
        lead, batches = max(lead, cuda.lead), batches + 1
        timer.batch()
    return batches, lead


# ------------------------------------------------------------------------------------------ busy seconds


@pytest.mark.parametrize("kind", KINDS)
def test_alone_the_hooks_hardly_touch_the_device_and_the_host_is_not_far_ahead(cuda: FakeCuda, kind: str) -> None:
    timer = GpuTimer(GPU, cuda.clock, cuda)
    timer.begin()
    train(cuda, timer, 0.5, KINDS[kind])
    cuda.calls.clear()
    batches, lead = train(cuda, timer, 2.0, KINDS[kind])
    assert cuda.calls.count("record") <= 2.0 / MAX_INTERVAL + 2
    assert cuda.calls.count("record") <= batches / 20
    assert set(cuda.calls) == {"record", "event synchronize", "elapsed"}
    assert len(cuda.calls) == pytest.approx(3 * cuda.calls.count("record"), abs=3)
    assert lead <= 2 * MAX_INTERVAL + 0.001
    if kind == "the host":
        assert cuda.waited == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_in_turns_a_quantum_ends_on_time(cuda: FakeCuda, kind: str) -> None:
    quantum = ArbiterClient.__init__.__defaults__[0]  # type: ignore[index]
    timer = GpuTimer(GPU, cuda.clock, cuda)
    for turn in range(20):
        timer.begin()
        cuda.calls.clear()
        began = cuda.now
        _, lead = train(cuda, timer, quantum, KINDS[kind])
        assert cuda.calls.count("record") <= (cuda.now - began) / MIN_INTERVAL + (12 if turn == 0 else 2)
        timer.end()
        assert cuda.lead == 0.0
        assert cuda.now - began <= quantum + 2 * 1.25 * MIN_INTERVAL + 0.001
        assert lead <= 2 * 1.25 * MIN_INTERVAL + 0.001
        cuda.now += 0.1  # the turns of others


def test_long_batches_are_at_most_two_ahead(cuda: FakeCuda) -> None:
    timer = GpuTimer(GPU, cuda.clock, cuda)
    timer.begin()
    _, lead = train(cuda, timer, 10.0, (0.1, 1e-3))
    assert lead <= 2 * 0.1 + 1e-3


def test_batches_that_do_nothing_do_not_make_the_host_run_away(cuda: FakeCuda) -> None:
    timer, draw = GpuTimer(GPU, cuda.clock, cuda), random.Random(2)
    timer.begin()
    for _ in range(300):
        for _ in range(draw.randrange(4)):
            train(cuda, timer, 1e-6, (1e-6, 1e-6))
        _, lead = train(cuda, timer, 0.03, (0.01, 1e-5))
        assert lead < 0.15
    train(cuda, timer, 1.0, (1e-6, 1e-6))
    _, lead = train(cuda, timer, 0.1, (0.01, 1e-5))
    assert lead <= 2 * MAX_BETWEEN * 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_busy_seconds_are_those_in_which_the_process_has_the_device(cuda: FakeCuda, kind: str) -> None:
    timer, draw = GpuTimer(GPU, cuda.clock, cuda), random.Random(1)
    held, last = 0.0, 0.0
    for _ in range(30):
        began = cuda.now
        timer.begin()
        for _ in range(draw.randrange(1, 300)):
            cuda.submit(*KINDS[kind])
            if draw.random() < 0.02:
                cuda.now += 0.05  # it saves, or waits for data
            assert timer.batch() >= last
            last = timer.batch()
        timer.end()
        held += cuda.now - began
        assert timer.busy() == pytest.approx(held)
        assert timer.busy() >= last
        last = timer.busy()
        cuda.now += 1.0
        assert timer.batch() == last  # an epoch may end while it is held
    assert held * 3 > 30 * 0.001


def test_batches_per_busy_second_average_out(cuda: FakeCuda) -> None:
    """However far the host is ahead, as many batches are counted as the device does, but for that lead."""
    timer = GpuTimer(GPU, cuda.clock, cuda)
    timer.begin()
    batches, _ = train(cuda, timer, 5.0, KINDS["graphs"])
    assert batches * 0.001 == pytest.approx(timer.batch(), abs=2 * MAX_INTERVAL)
    timer.end()
    assert batches * 0.001 == pytest.approx(timer.busy(), abs=0.002)


def test_work_between_two_quanta_counts_nothing_on_the_host_either() -> None:
    now = [0.0]
    timer = HostTimer(lambda: now[0])
    timer.begin()
    now[0] = 2.0
    timer.end()
    now[0] = 5.0
    assert (timer.batch(), timer.busy()) == (2.0, 2.0)
    timer.end()
    assert timer.busy() == 2.0


def test_a_device_that_fails_at_the_end_of_a_quantum_ends_the_count(cuda: FakeCuda) -> None:
    class Broken(FakeCuda):
        def synchronize(self, device: Any) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

    broken = Broken()
    timer = GpuTimer(GPU, broken.clock, broken)
    timer.begin()
    broken.now = 1.0
    with pytest.raises(RuntimeError, match="device-side"):
        timer.end()
    broken.now = 9.0
    assert timer.busy() == 1.0


# ------------------------------------------------------------------------------------------ losses


class Cells:
    """A meter of a GPU's losses, with when its cells arrived."""

    def __init__(self, every: int = 3, growth: float = 0.0, exact: bool = True) -> None:
        self.arrived: list[tuple[int, Cell]] = []
        self.batch = 0
        self.meter = LossMeter(lambda cell: self.arrived.append((self.batch, cell)), every, growth)
        self.meter.exact = exact

    def add(self, loss: torch.Tensor, private: bool = True) -> None:
        self.batch += 1
        self.meter.add_tensor(loss, 1.0, self.batch, private=private)


def on_gpu(loss: float) -> torch.Tensor:
    return torch.tensor(loss).as_subclass(OnGpu)


@pytest.mark.parametrize("private", [True, False])
def test_a_cell_of_a_gpu_arrives_two_batches_later_however_fast_the_copy_is(cuda: FakeCuda, private: bool) -> None:
    """So a training that stops by it does so after the same batch in every run."""
    cells = Cells()
    for batch in range(1, 9):
        before = cells.meter.next_cell
        cuda.submit(0.001 * (batch % 3), host=0.0001)
        cells.add(on_gpu(float(batch)), private)
        assert (before == batch) == (bool(cells.arrived) and cells.arrived[-1][0] == batch)
    assert cells.arrived == [(3 + READ_AFTER, Cell(1, 3, 2.0)), (6 + READ_AFTER, Cell(2, 6, 5.0))]
    cells.meter.flush()
    assert len(cells.arrived) == 2  # no cell has closed since


def test_where_no_stop_depends_on_a_cell_the_host_does_not_wait_for_it(cuda: FakeCuda) -> None:
    cells = Cells(exact=False)
    for batch in range(1, 31):
        cuda.submit(0.001, host=0.00015)
        cells.add(on_gpu(float(batch)))
    assert cuda.waited == 0.0
    assert "event synchronize" in cuda.calls  # of what is there, which takes no time
    assert len(cells.arrived) == 1
    cells.meter.flush()
    assert [cell for _, cell in cells.arrived] == [Cell(n, 3 * n, 3.0 * n - 1) for n in range(1, 11)]


def test_between_two_cells_a_private_loss_costs_no_call_of_the_device(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = Cells(every=1000)
    stacked: list[int] = []
    stack = torch.stack

    def counted(losses: list[torch.Tensor]) -> torch.Tensor:
        stacked.append(len(losses))
        return stack(losses)

    monkeypatch.setattr(torch, "stack", counted)
    losses = [on_gpu(1.0) for _ in range(1000)]
    for loss in losses[: MAX_KEPT - 1]:
        cells.add(loss)
    assert (cuda.calls, stacked) == ([], [])
    for loss in losses[MAX_KEPT - 1 :]:
        cells.add(loss)
        assert cells.meter.next_cell == 1000 + READ_AFTER
    assert max(stacked) == MAX_KEPT  # memory is bounded
    assert cuda.calls.count("record") == math.ceil(1000 / MAX_KEPT)
    cells.meter.flush()
    assert [cell for _, cell in cells.arrived] == [Cell(1, 1000, 1.0)]


def test_the_output_of_a_graph_is_read_before_its_next_replay(cuda: FakeCuda) -> None:
    """Each replay writes the same memory, and leaves no trace in the tensor."""
    output, cells = on_gpu(0.0), Cells()
    memory = output.as_subclass(torch.Tensor).untyped_storage()
    for batch in range(1, 9):
        before = output._version
        memory.copy_(torch.tensor(float(batch)).untyped_storage())
        assert output._version == before
        cells.add(output, private=False)
    assert [cell.value for _, cell in cells.arrived] == [2.0, 5.0]


def test_a_loss_that_a_hook_changes_afterwards_is_left_out_and_later_ones_are_copied(cuda: FakeCuda) -> None:
    cells, total = Cells(), None
    for batch in range(1, 12):
        loss = on_gpu(float(batch))
        cells.add(loss)
        if total is None:
            total = loss  # as many a module sums up its losses
        else:
            total += loss
    assert [cell.value for _, cell in cells.arrived] == [2.5, 5.0, 8.0]
    changed = Cells(every=2)
    for batch in range(1, 8):
        loss = on_gpu(float(batch))
        changed.add(loss)
        loss.zero_()
    assert [cell.value for _, cell in changed.arrived] == [2.0, 3.5]


def test_what_is_kept_holds_no_graph_and_no_large_memory(cuda: FakeCuda) -> None:
    cells = Cells(every=100)
    weight = torch.ones(1000, requires_grad=True)
    large = (weight * torch.arange(1000.0)).as_subclass(OnGpu)
    gone = weakref.ref(large)
    for view in (large[3], large[5:6], large[7].reshape(1, 1, 1)):
        cells.add(view, private=False)
    del large, view
    gc.collect()
    assert gone() is None
    kept = cells.meter._on_device._kept  # type: ignore[union-attr]
    assert [each.loss.item() for each in kept] == [3.0, 5.0, 7.0]
    assert not any(each.loss.requires_grad for each in kept)
    assert {each.loss.untyped_storage().nbytes() for each in kept} == {4 * MAX_KEPT}
    assert len({each.loss.untyped_storage().data_ptr() for each in kept}) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_losses_of_any_type_shape_and_factor_are_read(cuda: FakeCuda, dtype: torch.dtype) -> None:
    cells = Cells(every=4)
    one = torch.tensor(2, dtype=dtype)
    for loss, scale in ((one, 0.5), (one.reshape(1), 1.0), (one.reshape(1, 1), 2.0), (one, 4.0)):
        cells.batch += 1
        cells.meter.add_tensor(loss.as_subclass(OnGpu), scale, cells.batch)
    cells.meter.flush()
    assert cells.arrived == [(4, Cell(1, 4, (1.0 + 2.0 + 4.0 + 8.0) / 4))]


def test_losses_on_the_host_and_numbers_may_come_among_those_of_a_gpu(cuda: FakeCuda) -> None:
    """A number waits for no loss of the device: those that come later are of a later cell."""
    cells = Cells(every=2)
    for batch in range(1, 13):
        cells.batch = batch
        if batch % 4 == 3:
            cells.meter.add(float(batch), batch)
        elif batch % 4 == 0:
            cells.meter.add_tensor(torch.tensor(float(batch)), 1.0, batch)
        else:
            cells.meter.add_tensor(on_gpu(float(batch)), 1.0, batch)
    cells.meter.flush()
    found = [cell for _, cell in cells.arrived]
    assert [cell.number for cell in found] == list(range(1, len(found) + 1))
    assert [cell.batches for cell in found] == sorted({cell.batches for cell in found})
    assert len(found) >= 3


def test_a_bad_loss_of_a_gpu_is_left_out_and_told_with_its_batch(cuda: FakeCuda) -> None:
    cells = Cells(every=4)
    for batch in range(1, 15):
        cells.add(on_gpu(math.nan if batch in (2, 5, 6, 7, 8) else float(batch)))
    assert cells.arrived == [(6, Cell(1, 4, 8 / 3)), (14, Cell(2, 12, 10.5))]
    assert cells.meter.rejected == 5
    assert cells.meter.bad == BadLosses(5, 1, over=True)


def test_losses_are_the_same_on_both_kinds_of_devices(cuda: FakeCuda) -> None:
    draw, on_host, on_device = random.Random(3), list[Cell](), list[Cell]()
    host, device = LossMeter(on_host.append, 5), LossMeter(on_device.append, 5)
    for meter in (host, device):
        meter.start_at(300, 4)
    for batch in range(301, 5000):
        loss = math.inf if draw.random() < 0.01 else draw.randrange(64) / 64
        if draw.random() < 0.1:
            continue  # a batch without a loss
        host.add(loss, batch)
        device.add_tensor(on_gpu(loss), 1.0, batch, private=draw.random() < 0.5)
    device.flush()
    assert on_device == on_host
    assert len(on_host) > 50
    assert host.rejected >= device.rejected > 20  # the last cell is open


# ------------------------------------------------------------------------------------------ in a training


def test_a_training_asks_the_device_hardly_anything(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training on a CPU whose timer and meter take it for a GPU; each batch takes the device a millisecond."""
    monkeypatch.setattr(participant, "HostTimer", lambda: GpuTimer(GPU, cuda.clock, cuda))
    monkeypatch.setattr("lightning_core.agent.reporting.target_reader.as_number", lambda loss: loss.as_subclass(OnGpu))
    kept: list[bool] = []
    add = LossMeter.add_tensor

    def noted(meter: LossMeter, loss: torch.Tensor, scale: float, batches: int, *, private: bool) -> None:
        kept.append(private)
        add(meter, loss, scale, batches, private=private)

    monkeypatch.setattr(LossMeter, "add_tensor", noted)
    batches = 1000

    class Device(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            cuda.submit(0.001, host=0.0005)

    script = Script(grant(1, 1.0))
    core = ConnectedScript("job", BatchTarget(10**9), client=script)
    pl.Trainer(max_steps=batches, max_epochs=-1, callbacks=[core, Device()], **QUIET).fit(Line(lr=1e-4), Points())
    last = script.reports[-1]
    cells = {cell.number: cell for report in script.reports for cell in report.cells}
    assert kept == [True] * batches
    assert len(cells) >= batches // 10 - 1
    assert cuda.calls.count("record") <= batches * 0.001 / MAX_INTERVAL + 30 + len(cells)
    assert cuda.calls.count("synchronize") == 1  # at the end
    assert last.busy == pytest.approx(batches * 0.001, rel=0.01)
    assert [report.busy for report in script.reports] == sorted(report.busy for report in script.reports)


def test_what_is_queued_for_the_device_is_no_cost_of_an_agreement(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or ranks whose hosts are far ahead would agree rarely."""
    monkeypatch.setattr("lightning_core.agent.steering.ranks.time.perf_counter", cuda.clock)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, first: cuda.wait_until(cuda.free_at + 1e-4))
    both = ranks.Ranks(0, torch.device("cpu"))
    both._tensor = both._tensor.as_subclass(OnGpu)
    for _ in range(5):
        for _ in range(20):
            cuda.submit(0.001, host=0.0001)
        both.agree(ranks.Action.GO, 0)
    assert both._cost == pytest.approx(1e-4)


# ------------------------------------------------------------------------------------------ what is leaned on


def test_lightning_gives_each_loss_in_memory_of_its_own_if_it_optimizes() -> None:
    """Then nothing that the training step captured or compiled can write to it."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Static(Line):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.returned: torch.Tensor = super().training_step(batch, batch_idx)
            return self.returned

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
            seen.append((module.returned, outputs["loss"]))

    pl.Trainer(max_steps=3, callbacks=[Look()], **QUIET).fit(Static(), Points())
    assert len({given.data_ptr() for _, given in seen}) == 3
    for returned, given in seen:
        assert given.untyped_storage().data_ptr() != returned.untyped_storage().data_ptr()
        assert (type(given), given.dim(), given.requires_grad) == (torch.Tensor, 0, False)
        assert given.untyped_storage().nbytes() == given.element_size()


@pytest.mark.parametrize("target", [BatchTarget(10), LossTarget("loss", 0.1), LossTarget("score", 0.1)])
def test_only_the_loss_that_lightning_has_copied_is_private(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    monkeypatch.setattr(LossMeter, "add_tensor", lambda self, loss, scale, batches, *, private: found.append(private))

    class Metrics:
        has_validation, without_loss = False, ""

        def computed(self) -> dict[str, Any]:
            return {}

        def of_batch(self, name: str) -> torch.Tensor:
            return on_gpu(1.0)

    def read(private: bool, loss: torch.Tensor) -> list[bool]:
        found.clear()
        losses = Losses(target, lambda cell: None, 10, Metrics(), "", private=private)
        losses.read_batch({"loss": loss}, 1, 1)
        return list(found)

    by_metric = [False] if target.observed == "score" else []
    monkeypatch.setattr("lightning_core.agent.reporting.target_reader.as_number", lambda value: value)
    assert read(True, torch.tensor(1.0)) == [*by_metric, True]
    assert read(False, torch.tensor(1.0)) == [*by_metric, False]
    assert read(True, on_gpu(1.0)) == [*by_metric, False]  # of another class


def test_cells_are_exact_where_a_stop_or_the_best_model_depends_on_them() -> None:
    def exact(target: Any) -> tuple[bool, bool]:
        losses = Losses(target, lambda cell: None, 10, None, "", private=True)  # type: ignore[arg-type]
        return losses._meter.exact, losses._step_meter.exact

    assert exact(BatchTarget(10)) == (False, False)
    assert exact(LossTarget("score", 0.1)) == (True, False)
    losses = Losses(BatchTarget(10), lambda cell: None, 10, None, "", private=True)  # type: ignore[arg-type]
    losses.aim(LossTarget("loss", 0.1))
    assert losses._meter.exact
    assert losses._step_meter is losses._meter


# ------------------------------------------------------------------------------------------ devices are named


@pytest.fixture
def default_device() -> Iterator[None]:
    """As after ``torch.set_default_device("cuda")``: a tensor that names no device has no values."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_device")
def test_losses_are_read_whatever_the_default_device(cuda: FakeCuda) -> None:
    cells = Cells()
    for batch in range(1, 9):
        cells.add(torch.tensor(float(batch), device="cpu").as_subclass(OnGpu), private=bool(batch % 2))
    assert [cell.value for _, cell in cells.arrived] == [2.0, 5.0]
    assert as_number(torch.tensor([0.5], device="cpu")) == 0.5


@pytest.mark.usefixtures("default_device")
def test_a_checkpoint_is_copied_to_the_host_whatever_the_default_device() -> None:
    from lightning_core.callbacks.checkpointing.async_writer import to_host

    weight = torch.arange(4.0, device="cpu")
    assert to_host({"weight": weight, "tail": weight[2:]})["tail"].tolist() == [2.0, 3.0]


def constructors(path: Any) -> Iterator[str]:
    """Yield the calls of a file that make a tensor on a device which they do not name."""
    from torch.utils._device import _device_constructors

    names = {made.__name__ for made in _device_constructors()}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            owner = ast.unparse(node.func.value)
            if owner in ("torch", "self._torch") and not any(word.arg == "device" for word in node.keywords):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_every_tensor_of_ours_names_its_device() -> None:
    package = ROOT / "lightning_core"
    paths = [*(ROOT / "callbacks").rglob("*.py"), *package.rglob("*.py")]
    # `template` is what users begin with.
    found = [call for path in paths if package / "template" not in path.parents for call in constructors(path)]
    assert found == []
    assert lightning_core.__file__ == str(package / "__init__.py")
