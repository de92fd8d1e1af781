"""Recordings are read as they are written, and problems are reported with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lightning_core.simulation.recorded_curves import Curve, family, load_curve, load_curves

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
    with pytest.raises(ValueError, match=r"a.csv:1: not a recording: its first line must be step,loss$"):
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
