"""Bundles in the kind of the papers' tables: what is drawn for them, and how their trainings are built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.curves.bundles import draw_at, recordings
from benchmarks.recording import RUNS
from benchmarks.recording.models import Learner, QLearner
from benchmarks.trained import paper_tables
from benchmarks.trained.paper_tables import FIVE, POLICIES, TABLES, TEN
from benchmarks.trained.recorded_training import Recorded, RecordedData, RecordedQ, keep_data, module_of
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
    assert [(len(runs), kind) for runs, kind in TABLES.values()] == [(5, "sequence"), (10, "sequence"), (10, "terms")]


def test_every_policy_plays_a_bundle_in_virtual_time(tmp_path: Path) -> None:
    rates = [1.0 / (POOL[name].curve.seconds_per_batch or np.nan) for name in FIVE]
    bundle = draw_at([POOL[name] for name in FIVE], rates, kind="sequence", seed=1, seconds=10.0)
    for row, policy in POLICIES.items():
        came = paper_tables.simulated(bundle, policy, tmp_path / row)
        assert 0 <= came.met <= bundle.ceiling, row
        assert came.starts >= came.met, row


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
