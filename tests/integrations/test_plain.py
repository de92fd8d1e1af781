"""Plain loops: what the conformance suite does not ask, and how a loop is left."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lightning_core
from lightning_core.core.answers import State, Verdict
from lightning_core.node.arbiter_client import ArbiterClient
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.testing.loop_conformance import NAME, ScriptedScheduler, cells_of, falling, scheduled
from tests.conftest import ROOT
from tests.socket_servers import Pool, found_pool
from tests.waiting import PATIENCE

WITHOUT_TORCH = """
import sys

ABSENT = ("torch", "lightning", "pytorch_lightning", "lightning_utilities", "ray", "filterpy")


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
import lightning_core

x = 0.0
with lightning_core.track("doubling", deadline="1h", target="loss<=0.001", pool="local") as run:
    while not run.over:
        x += 0.1 * (2.0 - x)
        run.step(loss=(2.0 - x) ** 2)
print(run.verdict, run.forecast.reason)
"""


def run_script(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LIGHTNING_CORE_")}
    environment |= {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


def test_a_loop_needs_no_torch(tmp_path: Path) -> None:
    done = run_script(WITHOUT_TORCH, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lightning_core: doubling: met: target met" in done.stdout
    assert "met target met with" in done.stdout


def test_a_loop_that_imports_no_torch_is_not_made_to() -> None:
    code = (
        "import sys, lightning_core\n"
        "with lightning_core.track('a', '1h', '5 batches', pool='local') as run:\n"
        "    for _ in run.batches(range(9)): run.log(loss=1.0)\n"
        "print(sorted({'torch', 'lightning', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"target": None}, "track needs a target, such as 'loss<=0.35'"),
        ({"job": None}, "track needs the name of the job, or LIGHTNING_CORE_JOB, since a target or deadline is given"),
        ({"accumulate_grad_batches": 0}, "accumulate_grad_batches must be a positive whole number, got 0"),
        ({"max_batches": 0}, "max_batches must be a positive whole number, got 0"),
        ({"max_epochs": 2.5}, "max_epochs must be a positive whole number, got 2.5"),
        ({"lr_interval": "week"}, "lr_interval must be 'step' or 'epoch', got 'week'"),
        ({"on_hold": "offload"}, r"on_hold=offload needs state=\[model, optimizer\]"),
        ({"on_nan": "restart"}, "on_nan must be 'continue' or 'stop' in a script"),
        ({"every": 0}, "every must be at least 1 batch, got 0"),
        ({"deadline": "soon"}, "deadline"),
    ],
)
def test_wrong_terms_are_refused_before_anything_begins(terms: dict[str, Any], words: str) -> None:
    given = {"job": "a", "deadline": "1h", "target": "loss<=0.1", **terms}
    with pytest.raises(ValueError, match=words):
        lightning_core.track(**given)


@pytest.mark.parametrize("device", ["nowhere", "cuda:x", 3.5])
def test_a_wrong_device_is_named(device: Any) -> None:
    import torch  # noqa: F401 - a loop without it has one device only

    with (
        pytest.raises(ValueError, match="device must name a device of torch, such as 'cuda:0', got "),
        lightning_core.track("a", "1h", "5 batches", pool="local", device=device) as run,
    ):
        run.begin()


def test_without_a_name_and_a_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LIGHTNING_CORE_")]:
        monkeypatch.delenv(name)
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track() as run:
        seen = list(run.batches(range(5)))
        run.log(loss=1.0)
        run.step(loss=1.0)
        run.evaluate(val_acc=1.0)
        assert (seen, run.over, run.forecast, run.state_dict()) == ([0, 1, 2, 3, 4], False, None, {})
        run.load_state_dict({})
    assert not client.jobs


def test_without_a_name_the_environment_says_the_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = {"JOB": "named", "TARGET": "5 batches", "DEADLINE": "2h", "WEIGHT": "3", "ON_MISS": "stop"}
    for name, value in terms.items():
        monkeypatch.setenv(f"LIGHTNING_CORE_{name}", value)
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track() as run:
        assert sum(1 for _ in run.batches(range(20))) == 5
    [job] = client.jobs
    assert (job.name, job.weight, str(job.on_miss)) == ("named", 3.0, "stop")


def test_a_batch_that_is_left_by_break_counts_once_it_has_said_its_loss() -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0", every=1) as run:
        for number in run.batches(range(20)):
            run.log(loss=falling()[number])
            if number == 6:
                break
        for number in run.batches(range(20)):
            if number == 3:
                break  # before its loss
            run.log(loss=falling()[7 + number])
    assert client.reports[-1].batches == 10
    assert client.cells() == cells_of(falling()[:10], every=1)


def test_epochs_that_are_cut_short_are_counted_as_they_are() -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0", max_epochs=4) as run:
        for _ in range(3):
            for _ in itertools.islice(run.batches(range(100)), 10):
                run.log(loss=1.0)
        assert run.state_dict()["epochs"] == 3
        for _ in itertools.islice(run.batches(range(100)), 10):
            run.log(loss=1.0)
    assert client.reports[-1].batches == 40
    last = client.reports[-1].horizon
    assert last is not None
    assert last.batches == 40
    assert client.exits[-1].detail == "at max_epochs=4"


def test_batches_have_the_length_of_their_loader() -> None:
    run = lightning_core.track(NAME, "1h", "5 batches", pool="local")
    assert len(run.batches([1, 2, 3])) == len(run.validation_batches([1, 2, 3])) == 3  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        len(run.batches(iter([1])))  # type: ignore[arg-type]
    with run:
        assert list(zip(run.batches([1, 2, 3]), "ab", strict=False)) == [(1, "a"), (2, "b")]
        assert list(enumerate(run.batches(iter("xy")))) == [(0, "x"), (1, "y")]


def test_a_loss_that_is_written_again_is_the_one_that_was_logged() -> None:
    import torch

    client, losses = ScriptedScheduler(), falling()
    weight, buffer = torch.ones(1, requires_grad=True), torch.zeros(())
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0") as run:
        for number, loss in enumerate(run.batches(losses)):
            if number < 30:
                buffer.fill_(loss)
                run.log(loss=buffer)
            else:
                run.log(loss=(weight * loss).sum())
    assert client.cells() == cells_of(losses)


def test_a_loss_that_is_changed_in_place_is_left_out_and_the_next_are_read_at_once() -> None:
    import torch

    client = ScriptedScheduler()
    weight, kept = torch.ones((), requires_grad=True), list[torch.Tensor]()
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0") as run:
        for _ in run.batches(range(40)):
            for before in kept[-1:]:
                before.add_(100.0)
            kept.append(weight * 1.0)
            run.log(loss=kept[-1])
    assert {cell.value for cell in client.cells()} == {1.0}


def test_batches_are_only_counted_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of quick batches few are followed by all that may follow a batch, and the cells are the same."""
    from lightning_core.integrations.loop_training import LoopTraining

    whole, end = [0], LoopTraining.end_batch

    def count(training: LoopTraining, *args: Any) -> None:
        whole[0] += 1
        end(training, *args)

    monkeypatch.setattr(LoopTraining, "end_batch", count)
    client, losses = ScriptedScheduler(), falling(600)
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=-1") as run:
        for loss in run.batches(losses):
            run.log(loss=loss)
    assert client.cells() == cells_of(losses)
    assert whole[0] < 300


def test_a_step_within_batches_is_no_batch_of_its_own() -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0") as run:
        for number in run.batches(range(20)):
            run.step(loss=falling()[number])
    assert client.reports[-1].batches == 20
    assert client.cells() == cells_of(falling()[:20])


def test_the_state_that_a_loop_names_leaves_its_gpu_on_hold() -> None:
    import torch

    from lightning_core.agent.steering.offload import Offload
    from lightning_core.integrations.loop_training import ModelSaid, _offload_of

    run = lightning_core.track("a", "1h", "5 batches", pool="local", on_hold="offload", state=[object()])
    options = run._options
    assert options is not None
    assert isinstance(_offload_of(options, torch.device("cuda", 0), ModelSaid()), Offload)
    assert _offload_of(options, torch.device("cpu"), ModelSaid()) is None


def test_a_loader_in_place_of_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"job must be the name of the job, got list; a loader is for run.batches"):
        lightning_core.track([1, 2])  # type: ignore[arg-type]


def test_accumulated_batches_are_one_batch_with_the_mean_of_their_losses() -> None:
    client, losses = ScriptedScheduler(), falling()
    with scheduled(client), lightning_core.track(
        NAME, "1h", "loss<=0", every=1, accumulate_grad_batches=4, max_epochs=2
    ) as run:  # fmt: skip
        for _ in range(2):
            for loss in run.batches(losses[:10]):
                run.log(loss=loss)
    means = [sum(part) / len(part) for part in (losses[:4], losses[4:8], losses[8:10])] * 2
    assert [cell.value for cell in client.cells()] == means
    assert client.reports[-1].batches == 6
    assert client.exits[-1].detail == "at max_epochs=2"


def test_a_loop_that_logs_and_ends_no_batch_is_told_how(caplog: pytest.LogCaptureFixture) -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", "loss<=0.5") as run:
        for _ in range(50):
            run.log(loss=1.0)
        for _ in range(3):
            run.evaluate(val_loss=1.0)
    assert caplog.text.count("logs losses, and none of its batches is known: iterate over run.batches(loader)") == 1
    assert caplog.text.count("is evaluated, and has done no batch: iterate over run.batches(loader)") == 1


def test_values_may_be_given_as_a_mapping() -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "acc>=0.5", every=1) as run:
        for _ in run.batches(range(3)):
            run.log({"loss": 1.0, "acc": 0.25})
    assert [cell.value for cell in client.cells()] == [0.25] * 3


@pytest.mark.parametrize(
    ("target", "logged", "words"),
    [
        ("vall_loss<=0.1", {"val_loss": 1.0}, "target metric 'vall_loss' was never logged; logged so far: val_loss"),
        ("loss<=0.1", {"loss_d": 1.0, "loss_g": 2.0}, "logged so far: loss_d, loss_g"),
        ("grads<=0.1", {"grads": [1.0]}, "target metric 'grads' must be a number, got list"),
    ],
)
def test_what_a_target_misses_is_said_at_the_end(
    target: str, logged: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", target) as run:
        for _ in run.batches(range(30)):
            run.log(**logged)
    assert words in caplog.text


def test_a_target_in_epochs_needs_passes(caplog: pytest.LogCaptureFixture) -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", "2 epochs") as run:
        for _ in range(20):
            run.step(loss=1.0)
    assert "its target counts epochs, which run.step() does not know" in caplog.text


def test_a_target_that_its_first_value_meets_may_point_the_wrong_way(caplog: pytest.LogCaptureFixture) -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", "val_acc<=0.9") as run:
        for _ in run.batches(range(5)):
            run.log(loss=1.0)
        run.evaluate(val_acc=0.3)
        assert run.over
    assert "was met by the first value, 0.3: is the direction what you want?" in caplog.text


def test_a_loop_that_trains_beyond_its_own_limit_is_not_said_to_end_by_it() -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0", max_epochs=2) as run:
        for _ in range(5):
            for _ in run.batches(range(5)):
                run.log(loss=1.0)
    assert client.exits[-1].detail == ""
    last = client.reports[-1].horizon
    assert last is not None
    assert last.batches is None


def test_the_pass_that_ends_the_run_counts_if_it_is_whole() -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", "2 epochs") as run:
        while not run.over:
            for _ in zip(run.batches(range(10)), range(10), strict=False):
                run.log(loss=1.0)
    assert run.state_dict()["epochs"] == 2


def test_without_a_handler_messages_are_printed(tmp_path: Path) -> None:
    text = (
        "import lightning_core\n"
        "for part in range(2):\n"
        "    with lightning_core.track('a', '1h', '20 batches', pool='local') as run:\n"
        "        if part: run.load_state_dict(state)\n"
        "        for _ in run.batches(range(10)): run.log(loss=1.0)\n"
        "        state = run.state_dict()\n"
    )
    done = run_script(text, tmp_path)
    assert "lightning_core: a: resumed with its deadline: " in done.stdout, done.stdout + done.stderr


def test_a_loop_that_goes_on_once_it_is_over_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", "5 batches") as run:
        done = [sum(1 for _ in run.batches(range(10))) for _ in range(4)]
    assert done == [5, 0, 0, 0]
    assert caplog.text.count("its loop goes on: end that too, with `if run.over: break`") == 1


def test_an_evaluation_before_the_first_batch_is_none() -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "val_acc>=0.5") as run:
        run.evaluate(val_acc=0.9)
        assert not run.over
        for _ in run.batches(range(5)):
            run.log(loss=1.0)
        run.evaluate(val_acc=0.4)
        assert not run.over
    assert [(cell.batches, cell.value) for cell in client.cells()] == [(5, 0.4)]


def test_a_target_that_is_never_given_a_value_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with scheduled(ScriptedScheduler()), lightning_core.track(NAME, "1h", "loss<=0.5") as run:
        for _ in range(3):
            for _ in run.batches(range(5)):
                pass
    assert "the loop has given no loss: call run.log(loss=...)" in caplog.text


def test_a_state_of_something_else_is_refused() -> None:
    run = lightning_core.track(NAME, "1h", "5 batches", pool="local")
    for wrong in (
        {"weights": 1},
        {"format": 1, "batches": -1, "epochs": 0},
        {"format": 99, "batches": 1, "epochs": 0},
        7,
    ):
        with pytest.raises(ValueError, match="state must be what state_dict"):
            run.load_state_dict(wrong)  # type: ignore[arg-type]
    with scheduled(ScriptedScheduler()), run:
        run.begin()
        with pytest.raises(RuntimeError, match="load_state_dict must be called before the first batch"):
            run.load_state_dict({})


def test_a_validation_takes_turns(tmp_path: Path) -> None:
    arbiter = DeviceArbiter(tmp_path / "arbiter")
    client = ScriptedScheduler(share=0.5, arbiter=str(arbiter.path))
    rival = ArbiterClient(arbiter.path)
    within, had = threading.Event(), list[bool]()

    def compete() -> None:
        assert rival.acquire(1.0, PATIENCE)
        had.append(within.is_set())
        rival.release(again=False, share=1.0)

    thread = threading.Thread(target=compete)
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0") as run:
        for _ in run.batches(range(2)):
            run.log(loss=1.0)
        for number in run.validation_batches(range(10**6)):
            within.set()
            if number == 0:
                thread.start()
            time.sleep(0.005)
            if had:
                break
        within.clear()
    thread.join(PATIENCE)
    assert had == [True]
    rival.close()
    arbiter.close()


def loader_that_waits(at: int, seconds: float) -> Iterator[int]:
    for number in range(60):
        if number == at:
            time.sleep(seconds)
        yield number


@pytest.mark.parametrize(
    ("where", "is_a_hang"), [("loader", True), ("batch", True), ("between epochs", False), ("after break", False)]
)
def test_what_hangs_is_a_wait_for_the_loader_or_a_batch(where: str, is_a_hang: bool) -> None:
    client = ScriptedScheduler()
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0", hang=0.05) as run:
        for number in run.batches(loader_that_waits(40 if where == "loader" else -1, 1.5)):
            run.log(loss=1.0)
            if number == 40 and where == "batch":
                time.sleep(1.5)
            if number == 40 and where == "after break":
                break
        if where in ("between epochs", "after break"):
            time.sleep(1.5)
        for _ in run.batches(range(20)):
            run.log(loss=1.0)
    assert any(report.hang is not None for report in client.reports) == is_a_hang


def test_losses_may_be_of_any_kind_of_number() -> None:
    import numpy as np
    import torch

    client = ScriptedScheduler()
    values = [1.0, np.float32(0.5), np.array(0.25), torch.tensor(0.125), torch.tensor([0.0625], requires_grad=True), 2]
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0", every=1) as run:
        for value in run.batches(values):
            run.log(loss=value)
    assert [cell.value for cell in client.cells()] == [1.0, 0.5, 0.25, 0.125, 0.0625, 2.0]


def test_a_run_shows_itself_in_a_notebook() -> None:
    run = lightning_core.track(NAME, "1h", "loss<=0.2", pool="local")
    assert NAME in run._repr_html_()
    with run:
        for loss in run.batches(falling()):
            run.log(loss=loss)
    assert "met" in run._repr_html_()


def test_messages_do_not_need_lightning(caplog: pytest.LogCaptureFixture) -> None:
    from lightning_core.view import console_lines

    with caplog.at_level(logging.INFO):
        console_lines.inform("said")
    assert "said" in caplog.text


# ---------------------------------------------------------------------------------------------------- in a pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool with a device, in a folder by which scripts find it."""
    with found_pool(devices=1) as made:
        yield made


LEFT = """
import lightning_core
run = lightning_core.track("left", "1h", "loss<=0")
for number in run.batches(range(50)):
    run.log(loss=1.0 / (1 + number))
    if number == 30:
        raise ValueError("this loop fails")
"""


def test_a_loop_without_with_says_what_ended_it(pool: Pool, tmp_path: Path) -> None:
    done = run_script(LEFT, tmp_path, LIGHTNING_CORE_POOL=str(pool.path.parent))
    assert done.returncode == 1
    assert "lightning_core: left: crashed: " in done.stdout, done.stdout + done.stderr
    assert "ValueError: this loop fails" in done.stdout
    [job] = pool.do(pool.actor.status())[1]
    assert (job.name, job.state, job.verdict, job.batches) == ("left", State.ENDED, Verdict.CRASHED, 31)
