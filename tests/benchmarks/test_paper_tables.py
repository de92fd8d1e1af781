"""Bundles in the kind of the papers' tables: what is drawn for them, and how their trainings are built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.curves.bundles import draw_at, recordings
from benchmarks.papers.trained_page import tables_section
from benchmarks.recording import RUNS
from benchmarks.recording.models import Learner, QLearner
from benchmarks.trained import paper_tables
from benchmarks.trained.paper_tables import MAIN, OTHERS, ROWS, wanted
from benchmarks.trained.plays import FIVE, KINDS, TABLES, TEN, JobPlayed, Play, Plays, ceiling
from benchmarks.trained.recorded_training import Recorded, RecordedData, RecordedQ, keep_data, module_of
from lightning_core.planning.moore_hodgson import largest_feasible_set
from lightning_core.simulation.recorded_curves import SHIPPED, load_curves

POOL = {one.curve.name: one for one in recordings(load_curves(SHIPPED)) if one.curve.name in TEN}


@pytest.mark.parametrize("kind", ["sequence", "terms"])
def test_a_bundle_follows_the_throughputs_of_a_machine(kind: str) -> None:
    pool = [POOL[name] for name in TEN]
    slow, fast = (draw_at(pool, [rate] * len(pool), kind=kind, seed=3, seconds=60.0) for rate in (50.0, 5000.0))
    assert [one.job.name for one in slow.jobs] == list(TEN)
    assert [one.throughput for one in slow.jobs] == [50.0] * len(pool)
    for bundle in (slow, fast):
        assert 0 < bundle.ceiling <= len(pool)
        for one, recording, work in zip(bundle.jobs, pool, bundle.work.tolist(), strict=True):
            reached = np.flatnonzero(recording.smooth <= one.job.target.goal)
            assert work == (recording.position[reached[0]] / one.throughput if len(reached) else np.inf)
    # The same work is more batches on a faster machine, as far as the recordings go.
    assert sum(one.job.target.goal for one in fast.jobs) < sum(one.job.target.goal for one in slow.jobs)


def test_the_tables_hold_models_of_several_domains_that_there_are_recordings_of() -> None:
    assert set(POOL) == set(TEN) > set(FIVE)
    assert {POOL[name].curve.domain for name in FIVE} == {"cv", "nlp", "audio", "rl"}
    assert [(len(one.runs), one.devices) for one in TABLES.values()] == [(5, 1), (10, 1), (5, 2), (10, 2)]


def rates() -> dict[str, float]:
    return {name: 1.0 / (POOL[name].curve.seconds_per_batch or np.nan) for name in TEN}


@pytest.mark.parametrize("name", TABLES)
def test_the_bound_is_never_passed_in_virtual_time(name: str, tmp_path: Path) -> None:
    table, met = TABLES[name], 0
    for seed in (1, 2):
        drawn = table.draw(rates(), seed, 3.0)
        assert sorted(one.job.name for one in drawn.jobs) == sorted(table.runs)
        assert drawn.kind == KINDS[seed % 2]
        bound = ceiling(drawn, table.devices)
        assert bound >= largest_feasible_set(
            drawn.work, np.array([one.job.deadline for one in drawn.jobs]), 0.0, devices=table.devices
        ).sum()  # fmt: skip
        jobs, begun = paper_tables.simulated(drawn, "triage", table.devices, 1.0, tmp_path / str(seed))
        play = Play(name, seed, "triage", tuple(jobs), begun)
        assert play.met <= bound
        assert 0.0 <= play.wasted <= 1.0
        assert play.met / len(jobs) <= play.way(drawn) <= 1.0, "a job that met its target has come all the way"
        met += play.met
    assert met > 0


def test_the_bound_of_two_devices_counts_what_does_not_fit_after_a_deadline() -> None:
    drawn = TABLES["five_on_two"].draw(rates(), 1, 3.0)
    for work, due, bound in (
        ([4.0, 4.0, 4.0], [4.0, 4.0, 8.0], 3),
        ([4.0, 4.0, 4.0], [4.0, 4.0, 7.0], 2),  # a second of the third must be done while both devices are taken
        ([4.0, 4.0, 9.0], [4.0, 4.0, 8.0], 2),  # it alone takes too long
        ([np.inf, 1.0, 1.0], [9.0, 1.0, 1.0], 2),
    ):
        jobs = [replace(one, job=replace(one.job, deadline=end)) for one, end in zip(drawn.jobs, due, strict=False)]
        assert ceiling(replace(drawn, jobs=tuple(jobs), work=np.array(work)), 2) == bound


def test_every_row_plays_a_bundle_in_virtual_time(tmp_path: Path) -> None:
    drawn = TABLES["five"].draw(rates(), 1, 2.0)
    for row in ROWS:
        jobs, begun = paper_tables.simulated(drawn, row, 1, 0.5, tmp_path / row)
        assert begun >= sum(one.met for one in jobs), row


def test_plays_are_kept_and_not_missing_any_more(tmp_path: Path) -> None:
    plays = Plays(tmp_path / "plays.jsonl")
    missing = wanted(["five", "ten"], plays, 2, 1)
    assert len(missing) == len(set(missing)) == 2 * (2 * len(MAIN) + len(OTHERS))
    assert {row for _, _, row in missing[: 4 * len(MAIN)]} == set(MAIN), "the rows that matter most come first"
    assert missing[0][2] != missing[len(MAIN)][2], "no row is always the first of a seed"
    play = Play("five", 1, "LaiRA", (JobPlayed(met=True, best=0.5, busy=1.25), JobPlayed(False, float("inf"), 0.0)), 3)
    plays.drawn_at("five", 1, dict.fromkeys(FIVE, 50.0))
    plays.add(play)
    again = Plays(tmp_path / "plays.jsonl")
    assert again.rates == {("five", 1): dict.fromkeys(FIVE, 50.0)}
    kept = again.played["five", 1, "LaiRA"]
    assert (kept.met, kept.wasted, kept.starts, kept.jobs[0]) == (1, 0.0, 3, play.jobs[0])
    assert kept.jobs[1].best > 1e299
    assert ("five", 1, "LaiRA") not in wanted(["five", "ten"], again, 2, 1)


@pytest.mark.parametrize(("faster", "said"), [(1.9, ""), (2.1, "2.10 times"), (0.4, "0.40 times")])
def test_a_table_is_not_continued_on_another_machine(faster: float, said: str) -> None:
    drawn = TABLES["five"].draw(rates(), 1, 2.0)
    play = Play("five", 1, "triage", tuple(JobPlayed(True, 0.1, 1.0, round(faster * one.throughput))
                                           for one in drawn.jobs))  # fmt: skip
    if said:
        with pytest.raises(SystemExit, match=f"five, seed 1: this machine trains {said}"):
            paper_tables.check_machine(play, drawn)
    else:
        paper_tables.check_machine(play, drawn)
        unmeasured = replace(play, jobs=(JobPlayed(True, 0.1, 1.0),) * len(drawn.jobs))
        paper_tables.check_machine(unmeasured, drawn)


def test_tables_of_what_was_played_are_in_the_results(tmp_path: Path) -> None:
    plays = Plays(tmp_path / "plays.jsonl")
    plays.drawn_at("five", 1, rates())
    for row, met in (("triage", True), ("all at once", False)):
        plays.add(Play("five", 1, row, (JobPlayed(met, 0.1, 1.0),) * 5, 5 * met))
    figures = paper_tables.summed("five", TABLES["five"], plays, 3)
    assert (figures["five_triage_met"], figures["five_all_at_once_met"]) == (5.0, 0.0)
    assert (figures["five_all_at_once_ours_ahead"], figures["five_all_at_once_wasted"]) == (5.0, 1.0)
    ours, theirs = (float(figures[f"five_{row}_fresh_met"] or 0.0) for row in ("triage", "all_at_once"))
    fresh = ours - theirs
    assert 0 < ours <= 5
    assert figures["five_all_at_once_fresh_ahead"] == pytest.approx(fresh)
    run = {"benchmark": "paper_tables", "size": "full", "command": "c", "day": "2026-01-01", "figures": figures}
    both = figures | {key.replace("five_", "five_on_two_", 1): value for key, value in figures.items()}
    found = [line.split(" | ")[0] for line in tables_section([run | {"figures": both}]) if line.startswith("| ")]
    assert found == ["| row", "| triage", "| all at once"] * 2
    lines = tables_section([run])
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")] == ["| row", "| triage", "| all at once"]
    last = [line for line in lines if line.startswith("| all at once")][-1]
    assert "+5.00 ± 0.00" in last
    assert f"| {theirs:.2f} | {fresh:+.2f} ± " in last
    apart = figures | {
        f"five_{row}_live_minus_simulated{what}": number
        for row, numbers in {"triage": (-0.3, 0.4), "all_at_once": (0.3, 0.2)}.items()
        for what, number in zip(("", "_se"), numbers, strict=True)
    }
    assert "Of these 2 differences of live and simulated, 1 are within one standard error, and 2 within two." in (
        " ".join(tables_section([run | {"figures": apart}]))
    )
    assert tables_section([]) == []


def test_trainings_are_those_of_the_recordings() -> None:
    for name in FIVE:
        made = {"Recorded": Recorded, "RecordedQ": RecordedQ}[module_of(name).rpartition(".")[2]]
        torch.manual_seed(1)
        module, run = made(name), RUNS[name]
        torch.manual_seed(1)
        before = run.learner()
        assert isinstance(module, type(before) if type(before) is QLearner else Learner)
        assert (module.optimizer, module.lr, module.schedule) == (run.optimizer, run.lr, run.schedule)
        for one, other in zip(module.parameters(), before.parameters(), strict=True):
            assert torch.equal(one, other)


def test_the_data_of_a_task_is_kept_in_a_file(tmp_path: Path) -> None:
    keep_data("digits", tmp_path / "packages", tmp_path / "kept")
    data = RecordedData("digits", str(tmp_path / "kept"))
    data.setup("fit")
    inputs, targets = next(iter(data.train_dataloader()))
    assert inputs.shape == (32, 8, 8)
    assert targets.shape == (32,)
    (tmp_path / "kept" / "digits.pt").write_bytes(b"kept")
    keep_data("digits", tmp_path / "packages", tmp_path / "kept")
    assert (tmp_path / "kept" / "digits.pt").read_bytes() == b"kept"
