"""The same bundle under other tools: how their trainings end, and what is counted."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.trained import by_other_tools, tools
from examples import demo
from examples.digits.drawing import DrawnJob
from examples.slurm import local_slurm

EASY = demo.unmanaged(DrawnJob("cnn-quick", 100.0, 60.0, 1.0))
HOPELESS = replace(EASY, target=0.0, deadline=12.0)


def test_what_a_user_writes_for_each_tool_is_counted() -> None:
    few, many = tools.lines(1), tools.lines(10)
    assert {name: many[name] - few[name] for name in many} == {
        tools.POOL: 18, tools.SLURM: 0, tools.TUNE: 0, tools.AT_ONCE: 9,
    }  # fmt: skip
    assert 10 < many[tools.TUNE] < 40


def test_a_job_says_how_it_ended_and_one_that_was_stopped_how_long_it_held_the_device(tmp_path: Path) -> None:
    (tmp_path / by_other_tools.JOBS).write_text(json.dumps([asdict(EASY)]))
    end = by_other_tools.train_one(tmp_path, 0, time.time())
    assert end.finished_at is not None
    told = by_other_tools._ended(tmp_path, 0, EASY)
    assert (told.finished_at, told.best) == (end.finished_at, end.best)
    (tmp_path / "1").mkdir()
    for start, seconds in enumerate(("1.5", "2.25")):
        (tmp_path / "1" / f"busy-{start}").write_text(seconds)
    stopped = by_other_tools._ended(tmp_path, 1, EASY)
    assert (stopped.finished_at, stopped.busy) == (None, 3.75)


@pytest.mark.nightly
def test_ray_tune_trains_all_at_once(tmp_path: Path) -> None:
    ended = by_other_tools.under_tune([EASY, HOPELESS], tmp_path)
    assert [one.finished_at is None for one in ended.jobs] == [False, True]


@pytest.mark.nightly
@pytest.mark.skipif(bool(local_slurm.missing()), reason="needs Slurm and munge")
def test_slurm_trains_one_after_another_and_resumes_one_that_is_requeued() -> None:
    with tempfile.TemporaryDirectory(prefix="s") as short, local_slurm.slurm(Path(short), cpus=1) as slurm:
        (folder := Path(short) / "array").mkdir()
        ended = by_other_tools.under_slurm([HOPELESS, EASY], slurm, folder)
    assert [one.finished_at is None for one in ended.jobs] == [True, False]
    assert ended.jobs[1].finished_at is not None
