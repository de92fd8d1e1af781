"""Recordings are read as they are written, and problems are reported with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.recording import RUNS
from lightning_core.core.jobs import Job
from lightning_core.core.reported import LearningRates
from lightning_core.core.targets import LossTarget
from lightning_core.simulation.bundle_curves import read_bundle
from lightning_core.simulation.recorded_curves import SHIPPED, Curve, family, load_curve, load_curves
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.virtual_workers import VirtualWorker

INDEX = "file,domain,task,sec_per_step,jumps_back,rows\n"


def recording(folder: Path, name: str, *rows: str) -> Path:
    path = folder / name
    path.write_text("\n".join(("step,loss", *rows)) + "\n")
    return path


def test_a_folder_without_an_index_is_read_by_name(tmp_path: Path) -> None:
    recording(tmp_path, "b__adam.csv", "5,0.5", "10,0.25")
    recording(tmp_path, "a.csv", "1,2.0", "2,1.0")
    first, second = load_curves(tmp_path)
    assert (first.name, first.domain, first.task, first.family, first.seconds_per_batch) == ("a", "a", "a", "a", None)
    assert (second.name, second.domain, second.task) == ("b__adam", "b", "b")
    assert second.position.tolist() == [5.0, 10.0]
    assert second.loss.tolist() == [0.5, 0.25]


def test_an_index_adds_what_a_file_lacks(tmp_path: Path) -> None:
    recording(tmp_path, "b.csv", "1,2.0", "2,1.0")
    recording(tmp_path, "a.csv", "1,2.0", "2,1.0")
    recording(tmp_path, "unlisted.csv", "1,2.0", "2,1.0")
    (tmp_path / "index.csv").write_text(INDEX + "b.csv,nlp,wmt_glu_tanh_jax,0.25,1,2\na.csv,,,,,\n")
    first, second = load_curves(tmp_path)
    assert (first.name, first.domain, first.task, first.family) == ("b", "nlp", "wmt_glu_tanh_jax", "wmt")
    assert (first.seconds_per_batch, first.restarts) == (0.25, 1)
    assert (second.name, second.domain, second.task, second.family) == ("a", "a", "a", "a")
    assert (second.seconds_per_batch, second.restarts) == (None, 0)


def test_an_index_of_one_column_is_enough(tmp_path: Path) -> None:
    recording(tmp_path, "a.csv", "1,2.0", "2,1.0")
    (tmp_path / "index.csv").write_text("file\na.csv\n")
    assert [curve.name for curve in load_curves(tmp_path)] == ["a"]


def test_steps_that_count_from_0_are_shifted(tmp_path: Path) -> None:
    assert load_curve(recording(tmp_path, "a.csv", "0,2.0", "64,1.0")).position.tolist() == [1.0, 65.0]


def test_unusable_losses_are_left_out(tmp_path: Path) -> None:
    curve = load_curve(recording(tmp_path, "a.csv", "1,2.0", "2,0.0", "3,-1.0", "4,1.0"))
    assert curve.position.tolist() == [1.0, 4.0]
    assert curve.loss.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (("1,2.0", "2,nan"), "a.csv:3: step and loss must be finite, got 2,nan"),
        (("1,2.0", "2,inf"), "a.csv:3: step and loss must be finite, got 2,inf"),
        (("1,2.0", "3,1.0", "3,0.9"), "a.csv:4: steps must grow, got 3 after 3"),
        (("1,2.0", "3,1.0", "2,0.9"), "a.csv:4: steps must grow, got 2 after 3"),
        (("-1,2.0", "1,1.0"), "a.csv:2: steps must be at least 0, got -1"),
        (("1,2.0", "two,1.0"), "a.csv:3: expected step,loss, got 'two,1.0'"),
        (("1,2.0", "2,1.0,0.5"), "a.csv:3: expected step,loss, got '2,1.0,0.5'"),
        (("1,2.0", "", "2,1.0"), "a.csv:3: expected step,loss, got ''"),
        (("1,2.0",), "a.csv: needs at least 2 rows, got 1"),
        (("1,2.0", "2,-1.0"), "a.csv: needs at least 2 positive losses, got 1"),
    ],
)
def test_a_wrong_recording_is_refused(tmp_path: Path, rows: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        load_curve(recording(tmp_path, "a.csv", *rows))


@pytest.mark.parametrize("header", ["", "loss,step", "step;loss", "1,2.0"])
def test_a_wrong_header_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n1,2.0\n2,1.0\n")
    words = r"a.csv:1: not a recording: its first line must be step,loss or step,loss,lr$"
    with pytest.raises(ValueError, match=words):
        load_curves(tmp_path)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none: is not a folder of recordings"):
        load_curves(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no recordings here: no CSV with the columns step,loss"):
        load_curves(tmp_path)
    with pytest.raises(ValueError, match=r"none\.csv: not found"):
        load_curve(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"step,loss\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match=r"bytes\.csv: cannot be read: .*utf-8"):
        load_curve(tmp_path / "bytes.csv")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("name,task\na.csv,a\n", "index.csv:1: needs a column 'file', got name,task"),
        ("", "index.csv:1: needs a column 'file', got nothing"),
        ("file\n", "index.csv: lists no recordings"),
        ("file\na.csv\nb.csv\n", "b.csv: not found"),
        ("file,sec_per_step\na.csv,fast\n", "index.csv:2: sec_per_step must be a number, got 'fast'"),
        ("file,sec_per_step\na.csv,inf\n", "index.csv:2: sec_per_step must be a number, got 'inf'"),
        ("file,sec_per_step\na.csv,0\n", "index.csv:2: sec_per_step must be positive, got 0"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, index: str, words: str) -> None:
    recording(tmp_path, "a.csv", "1,2.0", "2,1.0")
    (tmp_path / "index.csv").write_text(index)
    with pytest.raises(ValueError, match=re.escape(words)):
        load_curves(tmp_path)


@pytest.mark.parametrize(
    ("max_blocks", "position", "loss"),
    [
        (7, [1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]),
        (1000, [1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]),
        (4, [2, 4, 6], [6.5, 4.5, 2.5]),
        (3, [3, 6], [6.0, 3.0]),
        (1, [7], [4.0]),
    ],
)
def test_reports_are_equal_blocks(max_blocks: int, position: list[float], loss: list[float]) -> None:
    curve = Curve("a", "a", "a", "a", np.arange(1.0, 8.0), np.arange(7.0, 0.0, -1.0))
    at, means = curve.reports(max_blocks)
    assert at.tolist() == position
    assert means.tolist() == loss


def test_an_invalid_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="max_blocks must be at least 1, got 0"):
        Curve("a", "a", "a", "a", np.ones(1), np.ones(1)).reports(0)


def test_variants_of_a_task_are_one_family() -> None:
    tasks = {
        "imagenet_resnet": ("imagenet_resnet_pytorch", "imagenet_resnet_large_bn_init_pytorch", "imagenet_resnet"),
        "criteo1tb": ("criteo1tb_layernorm_jax", "criteo1tb_embed_init_pytorch", "criteo1tb_pytorch"),
        "fastmri": ("fastmri_model_size_jax", "fastmri_tanh_jax", "fastmri_pytorch"),
        "wmt": ("wmt_jax", "wmt_glu_tanh_jax"),
        "librispeech_conformer": ("librispeech_conformer_jax", "librispeech_conformer_layernorm_pytorch"),
        "halfcheetah": ("halfcheetah-random-v0", "halfcheetah-medium-expert-v0", "halfcheetah"),
        "ant": ("ant-medium-replay-v2", "ant-medium-v0"),
        "atari-pong": ("atari-pong",),
        "LM pretraining": ("LM pretraining 25M parameters", "LM pretraining 100M parameters"),
    }
    assert {name: {family(task) for task in many} for name, many in tasks.items()} == {name: {name} for name in tasks}


def test_a_third_column_has_the_learning_rates(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss,lr\n10,3.0,0.01\n20,2.0,0.02\n30,-1.0,0.02\n40,1.0,0.0\n")
    curve = load_curve(path)
    assert curve.lr is not None
    assert curve.lr.tolist() == [0.5, 1.0, 0.0]
    assert curve.learning_rates() == LearningRates((10, 20, 40), (0.5, 1.0, 0.0))
    assert curve.learning_rates(0.04) == LearningRates((1, 2), (1.0, 0.0))
    assert load_curve(recording(tmp_path, "b.csv", "10,3.0", "20,2.0")).learning_rates() is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1,2.0,0.1\n2,1.0,nan", "a.csv:3: step, loss and lr must be finite, got 2,1.0,nan"),
        ("1,2.0,0.1\n2,1.0,-1", "a.csv:3: lr must be at least 0 and below"),
        ("1,2.0,0\n2,1.0,0", "a.csv: lr must be above 0 somewhere"),
        ("1,2.0,0.1\n2,1.0", "a.csv:3: expected step,loss,lr, got '2,1.0'"),
        ("1,2.0,0.1\n2,1.0,x", "a.csv:3: expected step,loss,lr, got '2,1.0,x'"),
    ],
)
def test_wrong_learning_rates_are_refused(tmp_path: Path, rows: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(f"step,loss,lr\n{rows}\n")
    with pytest.raises(ValueError, match=re.escape(words)):
        load_curve(tmp_path / "a.csv")


@pytest.mark.parametrize("curve", load_curves(SHIPPED), ids=lambda curve: curve.name)
def test_the_recordings_of_runs_with_a_schedule_have_their_learning_rates(curve: Curve) -> None:
    """As the schedulers of the recorded trainings would set them, step by step."""
    run = RUNS[curve.name]
    if run.schedule == "constant":
        assert curve.lr is None
        return
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=run.lr)
    real = {}
    scheduler: torch.optim.lr_scheduler.LRScheduler
    if run.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.batches)
    else:
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [run.batches // 2, run.batches * 3 // 4])
    for batch in range(1, run.batches + 1):
        real[batch] = optimizer.param_groups[0]["lr"] / run.lr
        optimizer.step()
        scheduler.step()
    assert curve.lr is not None
    rows = np.array([real[int(position)] for position in curve.position])
    np.testing.assert_allclose(curve.lr, rows / rows.max(), atol=1e-4)
    rates = curve.learning_rates()
    assert rates is not None
    assert rates.are_valid
    np.testing.assert_allclose(np.interp(curve.position, *rates), curve.lr, atol=2e-3)


def test_a_worker_reports_the_learning_rates_of_its_job_once_each_time_it_begins() -> None:
    rates = LearningRates((1, 40), (1.0, 0.0))
    job = Job("a", 60.0, LossTarget("loss", 0.1))
    worker = VirtualWorker(SimulatedJob(job, [10, 20, 30], [3.0, 2.0, 1.0], 10.0, learning_rates=rates))
    worker.begin(0.0)
    assert [worker.report(1.0, seen).learning_rates for seen in (1, 2)] == [rates, None]
    worker.begin(2.0)
    assert [worker.report(3.0, 3).learning_rates for _ in range(2)] == [rates, None]
    with pytest.raises(ValueError, match="a: learning rates must be in"):
        SimulatedJob(job, [10], [3.0], 10.0, learning_rates=LearningRates((1, 1), (1.0, 0.5)))


def test_a_simulated_bundle_reports_the_learning_rates_of_its_recordings(tmp_path: Path) -> None:
    rows = "".join(f"{10 * k},{3.0 / k**0.5},{1.0 if k < 60 else 0.1}\n" for k in range(1, 101))
    (tmp_path / "a.csv").write_text(f"step,loss,lr\n{rows}")
    named = "{deadline: 60, target: {loss: 0.5}, curve: a.csv}"
    drawn = "{deadline: 60, target: {batches: 500}, work: 9}"
    (tmp_path / "bundle.yaml").write_text(f"policy: edf\njobs:\n  a: {named}\n  b: {drawn}\n")
    first, second = read_bundle(tmp_path / "bundle.yaml", tmp_path).jobs
    assert first.given.learning_rates == LearningRates((10, 590, 600, 1000), (1.0, 1.0, 0.1, 0.1))
    assert second.given.learning_rates == LearningRates((5, 295, 300, 500), (1.0, 1.0, 0.1, 0.1))
