"""The two evenings: what is drawn, what the first one leaves to the second, and what the demo prints of it."""

from __future__ import annotations

import csv
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.policies import again as virtual
from examples import again, demo
from examples.digits.drawing import DrawnJob, ceiling
from examples.digits.evenings import FIRST, JOBS, SECOND, draw_evenings, model_of, recorded
from examples.digits.trainings import AGAIN, CURVES_AGAIN, FASTER, TRAININGS
from examples.digits.virtual import DELAYS
from lightning_core.core.answers import Verdict
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.private_files import private_folder
from lightning_core.storage.runs.run_store import FILE, RunStore
from tests.storage.test_run_store import run

CURVES = recorded()
SPEEDS = {name: 1.0 / (curve.seconds_per_batch or np.nan) for name, curve in CURVES.items()}


def test_each_evening_has_its_own_trainings_and_the_second_more_than_fits() -> None:
    loads: tuple[list[float], list[float]] = ([], [])
    for seed in range(100):
        evenings = draw_evenings(CURVES, SPEEDS, seed)
        for drawn, trainings, (seconds, _), load in zip(
            evenings, (TRAININGS, AGAIN), (FIRST, SECOND), loads, strict=True
        ):
            assert len({job.name for job in drawn} & set(trainings)) == len(drawn) == JOBS
            assert max(job.deadline for job in drawn) <= seconds
            load.append(sum(job.work for job in drawn if job.work < np.inf) / seconds)
    # Cells are whole, and recordings end.
    assert max(loads[0]) <= 1.1 * FIRST[1]
    assert max(loads[1]) <= 1.1 * SECOND[1]
    assert np.median(loads[0]) < 1.0 < np.median(loads[1])
    assert draw_evenings(CURVES, SPEEDS, 3) == draw_evenings(CURVES, SPEEDS, 3) != draw_evenings(CURVES, SPEEDS, 4)


def test_the_second_evening_trains_the_same_models_otherwise() -> None:
    for name, training in AGAIN.items():
        before = TRAININGS[name.removesuffix("-2")]
        assert model_of(name) == f"examples.digits.{before.model}"
        assert (training.lr, training.cell) == (FASTER * before.lr, before.cell)
        assert training.seed != before.seed
        assert training.config()["seed_everything"] == training.seed
        bundle = demo.bundle_of({name: {"deadline": "9s", "target": {"loss": 0.1}}}, again.POLICY)
        assert bundle.jobs[0].identified.model == model_of(name)


def test_the_recordings_of_the_second_evening_agree_with_their_index() -> None:
    with (CURVES_AGAIN / "index.csv").open(newline="") as opened:
        index = {row["file"].removesuffix(".csv"): row for row in csv.DictReader(opened)}
    assert set(index) == set(AGAIN) == {path.stem for path in CURVES_AGAIN.glob("*.csv")} - {"index"}
    assert sum(path.stat().st_size for path in CURVES_AGAIN.iterdir()) < 100_000
    for name, training in AGAIN.items():
        curve, before = CURVES[name], CURVES[name.removesuffix("-2")]
        assert (int(index[name]["rows"]), int(index[name]["last_step"])) == (len(curve.loss), curve.position[-1])
        assert curve.position.tolist() == before.position[: len(curve.position)].tolist()
        assert f"lr={training.lr:g} " in index[name]["method"]
        assert not np.allclose(curve.loss, before.loss[: len(curve.loss)], rtol=0.02)
        assert curve.seconds_per_batch == before.seconds_per_batch


def test_a_job_is_given_the_runs_of_its_model(tmp_path: Path) -> None:
    first, second = draw_evenings(CURVES, SPEEDS, 1)
    tmp_path.chmod(0o700)
    journal = tmp_path / "journal.db"
    Simulation(virtual.settings(), virtual.simulated(first, CURVES, SPEEDS), DELAYS, journal).run()
    given = virtual.remembering(virtual.simulated(second, CURVES, SPEEDS), journal)
    left = {job.name for job in first}
    found = {one.job.name: {earlier.name for earlier in one.earlier} for one in given}
    assert found == {
        job.name: {name for name in left if model_of(name) == model_of(job.name)} for job in second
    }  # fmt: skip
    assert any(found.values())
    assert all(earlier.throughputs for one in given for earlier in one.earlier)


@pytest.mark.nightly
def test_the_runs_of_the_first_evening_help_the_second_in_virtual_time() -> None:
    """The expected result of a live run on any machine."""
    played = [virtual.play(seed) for seed in range(1, 7)]
    for pair in played:
        assert max(pair.without.met, pair.with_runs.met) <= pair.ceiling <= JOBS
    assert sum(pair.with_runs.met for pair in played) > sum(pair.without.met for pair in played) > 0
    assert sum(pair.with_runs.wasted for pair in played) < sum(pair.without.wasted for pair in played)


def test_a_run_begins_with_a_copy_of_the_store(tmp_path: Path) -> None:
    private_folder(tmp_path / "first")
    with closing(RunStore(tmp_path / "first" / FILE)) as store:
        store.add([run("vit-quick"), run("vit-slow")])
    demo.copy_runs(tmp_path / "first", tmp_path / "second")
    with closing(RunStore(tmp_path / "second" / FILE)) as copied:
        assert sorted(one.name for one in copied.runs()) == ["vit-quick", "vit-slow"]
        copied.add([run("cnn-quick-2")])
    with closing(RunStore(tmp_path / "first" / FILE)) as store:
        assert len(store) == 2


def _evening(*met: bool, busy: float = 2.0) -> again.Evening:
    jobs: Any = tuple(
        SimpleNamespace(verdict=Verdict.MET if one else Verdict.MISSED, finished_at=5.0, submitted_at=1.0, busy=busy)
        for one in met
    )
    return again.Evening(jobs, (None, *(0.5 for _ in met[1:])))


def test_the_table_marks_what_was_gained_and_lost() -> None:
    drawn = [
        DrawnJob("vit-quick-2", 0.1, 6.0, 2.0),
        DrawnJob("cnn-slow-2", 0.1, 9.0, np.inf),
        DrawnJob("b", 1, 9.0, 1.0),
    ]
    without, knowing = _evening(False, False, True), _evening(True, False, False)
    console = Console(width=120, record=True, force_terminal=False, quiet=False)
    again.show(drawn, without, knowing, console)
    vit, cnn, last, met, misses = [line.split() for line in console.export_text().splitlines() if line.strip()][2:]
    assert vit == ["vit-quick-2", "2.0s", "6.0s", "·", "-", "✓", "4.0s", "-", "gained"]
    assert cnn == ["cnn-slow-2", "never", "9.0s", "·", "0.5s", "·", "0.5s"]
    assert last[-1] == "lost"
    assert met == ["met", "of", str(ceiling(drawn)), "1", "1"]
    assert misses[-2:] == ["4.0s", "4.0s"]


@pytest.mark.parametrize(
    ("without", "knowing", "words"),
    [
        (3, 5, "Without the first evening's runs 3 were met, with them 5: the first evening was worth 2."),
        (4, 3, "with them 3: here they did not help."),
        (4, 4, "with them 4, as many, with 3 s less of the device on misses."),
    ],
)
def test_the_demo_prints_what_its_figures_show(without: int, knowing: int, words: str) -> None:
    figures = {"ceiling": 6, "met_without": without, "met_with": knowing, "wasted_s_without": 9, "wasted_s_with": 6}
    told = again.meaning(figures)
    assert told.startswith("6 targets could be met if the work")
    assert words in told
