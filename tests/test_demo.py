"""The demo: the draws of its seeds, the recordings from which its targets are read, and its output."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from examples import demo, unmanaged
from examples.digits.drawing import LOAD, SECONDS, WINDOW, DrawnJob, ceiling, draw
from examples.digits.trainings import CURVES, TRAININGS, record
from examples.digits.virtual import PERIOD, play, play_seeds
from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.core.answers import Verdict
from lightning_core.core.events import Cell, Report
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import Curve, load_curves

RECORDED = {curve.name: curve for curve in load_curves(CURVES)}
SPEEDS = dict.fromkeys(RECORDED, 50.0)


def smooth(curve: Curve) -> np.ndarray:
    """Means over the scheduler's window."""
    return np.convolve(curve.loss, np.ones(WINDOW) / WINDOW, "valid")


def test_a_seed_draws_each_training_once_and_more_work_than_fits() -> None:
    hopeless = 0
    for seed in range(200):
        jobs = draw(RECORDED, SPEEDS, seed)
        assert sorted(job.name for job in jobs) == sorted(TRAININGS)
        assert all(0.08 * SECONDS <= job.deadline <= SECONDS for job in jobs)
        work = sum(job.work for job in jobs if job.work < np.inf)
        # Recordings end, cells are whole, and a flat curve has its lowest loss earlier.
        assert work <= 1.05 * LOAD * SECONDS
        hopeless += sum(job.work == np.inf for job in jobs)
        assert 0 <= ceiling(jobs) <= sum(job.work <= job.deadline for job in jobs)
    assert hopeless == pytest.approx(200 * 10 / 6, rel=0.3)
    assert draw(RECORDED, SPEEDS, 7) == draw(dict(reversed(RECORDED.items())), SPEEDS, 7)
    assert draw(RECORDED, SPEEDS, 7) != draw(RECORDED, SPEEDS, 8)


def test_deadlines_depend_neither_on_work_nor_on_arrival() -> None:
    drawn = [job for seed in range(300) for job in draw(RECORDED, SPEEDS, seed)]
    deadlines = np.array([job.deadline for job in drawn])
    work = np.array([min(job.work, 2 * SECONDS) for job in drawn])
    number = np.tile(np.arange(10), 300)
    assert abs(np.corrcoef(deadlines, work)[0, 1]) < 0.06
    assert abs(np.corrcoef(deadlines, number)[0, 1]) < 0.06
    assert abs(np.corrcoef(work, number)[0, 1]) < 0.06


def test_targets_are_reached_after_the_stated_work() -> None:
    for seed in range(20):
        for job in draw(RECORDED, SPEEDS, seed):
            curve = RECORDED[job.name]
            met = np.flatnonzero(smooth(curve) <= job.target)
            at = curve.position[met[0] + WINDOW - 1] if len(met) else np.inf
            assert at / 50.0 == pytest.approx(job.work)


def test_a_faster_machine_gets_more_work() -> None:
    slow, fast = (draw(RECORDED, dict.fromkeys(RECORDED, speed), 3) for speed in (30.0, 60.0))
    for one, other in zip(slow, fast, strict=True):
        assert (one.name, one.deadline) == (other.name, other.deadline)
        if max(one.work, other.work) < np.inf:
            assert other.target <= one.target


def test_the_recordings_agree_with_their_index() -> None:
    with (CURVES / "index.csv").open(newline="") as opened:
        index = {row["file"].removesuffix(".csv"): row for row in csv.DictReader(opened)}
    assert set(index) == set(TRAININGS) == {path.stem for path in CURVES.glob("*.csv")} - {"index"}
    assert sum(path.stat().st_size for path in CURVES.iterdir()) < 100_000
    for name, training in TRAININGS.items():
        cells: list[Cell] = []
        meter = LossMeter(cells.append, training.cell)
        for batch in range(1, training.batches + 1):
            meter.add(1.0, batch)
        curve = RECORDED[name]
        assert curve.position.tolist() == [cell.batches for cell in cells]
        assert (int(index[name]["rows"]), int(index[name]["last_step"])) == (len(cells), cells[-1].batches)
        assert curve.loss[-20:].mean() < 0.1 * curve.loss[:20].mean()
        assert 0.001 < float(index[name]["sec_per_step"]) < 0.2


def test_a_recorded_training_is_reproduced() -> None:
    torch.set_num_threads(1)
    cells, seconds = record(replace(TRAININGS["cnn-quick"], batches=60))
    recorded = RECORDED["cnn-quick"]
    assert [batches for batches, _ in cells] == recorded.position[: len(cells)].tolist()
    assert [loss for _, loss in cells] == pytest.approx(recorded.loss[: len(cells)].tolist(), rel=0.05)
    assert seconds > 0


def test_the_seed_that_is_trained_is_the_first_in_which_the_order_matters() -> None:
    speeds = {name: 1.0 / (curve.seconds_per_batch or np.nan) for name, curve in RECORDED.items()}
    simplest = [Settings(policy=name, period=PERIOD) for name in ("fifo", "edf")]
    matters = [
        2 * max(met) <= most
        for most, *met in (play(RECORDED, speeds, simplest, SECONDS, seed) for seed in range(1, demo.SEED + 1))
    ]
    assert matters == [False] * (demo.SEED - 1) + [True]


@pytest.mark.nightly
def test_the_ten_seeds_show_a_difference_in_virtual_time() -> None:
    """The expected result of a live run on any machine, in the mean of the demo's seeds."""
    speeds = {name: 1.0 / (curve.seconds_per_batch or np.nan) for name, curve in RECORDED.items()}
    settings = [Settings(policy=name, period=PERIOD) for name in ("fifo", "edf", "triage")]
    played = play_seeds(RECORDED, speeds, settings, demo.SIMULATED)
    for most, *met in played:
        assert max(met) <= most <= 10
    _, fifo, edf, triage = np.sum(played, axis=0)
    assert triage >= 1.2 * max(fifo, edf) > 0


@pytest.mark.parametrize(
    ("met", "words"),
    [
        (
            {"fifo": 10, "triage": 20},
            "triage, which does not know it, met 20, 2.0 times as many as fifo (10). No other policy",
        ),
        ({"fifo": 10, "edf": 9, "triage": 10}, "met 10, 1.0 times as many as fifo (10). fifo met as many."),
        ({"fifo": 12, "edf": 9, "triage": 10}, "0.8 times as many as fifo (12). Here fifo met more: 12."),
        ({"fifo": 0, "edf": 3, "triage": 3}, "triage, which does not know it, met 3. edf met as many."),
        ({"triage": 5}, "which does not know it, met 5."),
        ({"edf": 3, "laira": 4}, "known in advance; laira met 4."),
        (
            {"all at once": 12, "fifo": 10, "triage": 20},
            "policy met as many.\nWithout a pool, all at once on ",
        ),
        ({"all at once": 12, "triage": 20}, "12 met their targets in time: you would have lost 8 of these 20."),
        ({"all at once": 20, "triage": 20}, "20 met their targets in time: no fewer."),
    ],
)
def test_the_demo_prints_what_its_figures_show(met: dict[str, int], words: str) -> None:
    told = demo.meaning({"ceiling": 25, **{f"met_{name}": number for name, number in met.items()}})
    assert told.startswith("25 could be met if the work")
    assert words in told


def clock() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


def test_a_training_that_nothing_manages_ends_by_its_target_or_at_its_deadline() -> None:
    reached, never = float(smooth(RECORDED["cnn-quick"])[10]), 0.0
    first, missed = (
        unmanaged.train(demo.unmanaged(DrawnJob("cnn-quick", target, 3.0, 1.0)), clock(), accelerator="cpu")
        for target in (reached, never)
    )
    assert first.verdict is Verdict.MET
    assert first.finished_at is not None
    assert 0 < first.finished_at <= 3.0
    assert first.best <= reached
    assert 0 < first.building < first.finished_at
    assert missed.verdict is Verdict.MISSED
    assert 0 < missed.best < first.best, "it trains on until its deadline"
    assert 0 < first.busy < missed.busy
    late = unmanaged.train(demo.unmanaged(DrawnJob("cnn-quick", reached, 1.0, 1.0)), lambda: 2.0)
    assert (late.verdict, late.busy) == (Verdict.MISSED, 0.0)


@pytest.mark.nightly
def test_trainings_that_nothing_manages_share_devices_or_take_turns_in_their_order() -> None:
    drawn = [DrawnJob("cnn-quick", 100.0, 20.0, 1.0), DrawnJob("vit-slow", 0.0, 1.0, float("inf"))]
    jobs = [demo.unmanaged(job) for job in drawn]
    for train in (unmanaged.all_at_once, unmanaged.one_after_another):
        ended = train(jobs)
        assert ended.met == 1
        assert [one.finished_at is None for one in ended.jobs] == [False, True]
    after = unmanaged.one_after_another(jobs[::-1])
    assert after.jobs[1].finished_at is not None
    assert after.jobs[1].finished_at > 1.0, "after the deadline of the one before it"
    with pytest.raises(RuntimeError, match="a process of trainings that nothing manages ended with 1"):
        unmanaged.all_at_once([replace(jobs[0], config={"model": {"class_path": "examples.no_such"}})])


def test_the_first_batches_do_not_count_towards_throughput() -> None:
    def report(batches: int, busy: float) -> Report:
        return Report("a", 1, 1, 1, batches, busy, ())

    assert demo.throughput([report(0, 0.0), report(10, 2.0), report(20, 2.5), report(30, 3.0)]) == pytest.approx(20.0)
    assert demo.throughput([report(30, 3.0)]) == pytest.approx(10.0)
