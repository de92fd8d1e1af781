"""The store of earlier runs: what it finds, what it survives, and what it refuses."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.storage.runs import run_store
from lightning_core.storage.runs.past_run import PastRun, metric_of, new_id
from lightning_core.storage.runs.run_store import FILE, RunStore, RunStoreError

ME = os.geteuid()
JOB = Job("new", 600.0, LossTarget("val_loss", 0.3), model="mine.Vit", batch_size=32)


def run(name: str = "vit-1", **more: Any) -> PastRun:
    terms: dict[str, Any] = {
        "id": new_id(name), "name": name, "owner": ME, "like": "", "model": "mine.Vit", "metric": "val_loss",
        "batch_size": 32, "target": "val_loss <= 0.3", "verdict": "met", "batches": (10, 20, 40),
        "losses": (2.0, 1.0, 0.25), "met_at": 38, "throughputs": ((1, "gpu", 50.0), (2, "cpu", 9.0)),
        "trained": 60.0, "took": 80.0, "ended_at": 1e9,
    }  # fmt: skip
    return PastRun(**terms | more)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    tmp_path.chmod(0o700)
    return RunStore(tmp_path / FILE)


def similar(store: RunStore, job: Job = JOB, owner: int | None = ME) -> list[str]:
    return [one.name for one in store.similar(job, owner)]


def test_a_run_comes_back_as_it_was_and_once(store: RunStore) -> None:
    assert store.add([run(), run()]) == 1
    assert store.add([run()]) == 0
    assert list(store.runs()) == [run()]
    store.close()
    again = RunStore(store.path)
    assert list(again.runs("vit-1")) == [run()]
    assert len(again) == 1


def test_only_its_user_can_read_it(store: RunStore) -> None:
    store.add([run()])
    files = [path for path in store.path.parent.iterdir() if path.name.startswith(FILE)]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_runs_of_the_same_model_and_metric_are_found_the_same_batch_size_and_met_ones_first(store: RunStore) -> None:
    store.add([
        run("other-batch", batch_size=64, ended_at=9e8), run("missed", met_at=None, ended_at=8e8),
        run("old", ended_at=1e8), run("new", ended_at=2e8), run("older", ended_at=5e7),
        run("other-model", model="mine.Cnn"), run("other-metric", metric="val_acc"),
    ])  # fmt: skip
    assert similar(store) == ["new", "old", "older"]
    store.forget(name="older")
    assert similar(store) == ["new", "old", "missed"]
    store.forget(name="old")
    assert similar(store) == ["new", "missed", "other-batch"]


def test_like_names_a_tag_or_a_job_whatever_the_model(store: RunStore) -> None:
    store.add([run("a", like="vision", model="x"), run("vision", model="y"), run("b"), run("c", like="other")])
    tagged = Job("new", 600.0, LossTarget("val_loss", 0.3), like="vision", model="mine.Vit")
    assert sorted(similar(store, tagged)) == ["a", "vision"]


def test_a_job_that_nothing_identifies_finds_nothing(store: RunStore) -> None:
    store.add([run(model="", like="")])
    assert similar(store, Job("new", 600.0, LossTarget("val_loss", 0.3))) == []


def test_a_target_in_batches_finds_runs_of_any_metric(store: RunStore) -> None:
    store.add([run()])
    assert similar(store, Job("new", 600.0, BatchTarget(9), model="mine.Vit")) == ["vit-1"]


def test_runs_of_another_user_are_found_only_if_shared(store: RunStore) -> None:
    store.add([run(owner=ME + 1)])
    assert similar(store) == []
    assert similar(store, owner=None) == ["vit-1"]


def test_positions_of_another_batch_size_are_scaled_to_samples() -> None:
    same, scaled = run().for_job(32, "gpu"), run().for_job(64, "gpu")
    assert (same.batches, same.met_at, same.throughputs) == ((10, 20, 40), 38, ((1, 50.0),))
    assert (scaled.batches, scaled.losses, scaled.met_at) == ((5, 10, 20), (2.0, 1.0, 0.25), 19)
    assert scaled.throughputs == ()
    assert run().for_job(None, "cpu").throughputs == ((2, 9.0),)
    assert run(batches=(1, 2, 3)).for_job(96, "cpu").batches == (1,)


def test_metrics_of_another_scale_are_others() -> None:
    targets = LossTarget("acc", 0.3), LossTarget("acc", at_least=0.3), LossTarget("acc", at_least=3.0, best=100.0)
    assert len({metric_of(target) for target in targets}) == 3


def test_runs_are_forgotten_by_name_tag_or_date(store: RunStore) -> None:
    store.add([run("a"), run("b", like="tag"), run("c", ended_at=1.0), run("d", ended_at=2e9)])
    assert store.forget(name="a") == 1
    assert store.forget(like="tag") == 1
    assert store.forget(before=1e9) == 1
    assert [one.name for one in store.runs()] == ["d"]
    with pytest.raises(ValueError, match="not all runs"):
        store.forget()


def test_a_run_that_is_forgotten_comes_back_only_if_asked_for(store: RunStore) -> None:
    store.add([run("a"), run("b")])
    store.forget(name="a")
    assert store.add([run("a"), run("b")]) == 0
    assert store.add([run("a"), run("b")], forgotten=True) == 1
    assert store.forget(name="a") == 1


def test_what_is_forgotten_leaves_the_files(store: RunStore) -> None:
    store.add([run("secret-name"), run("b")])
    store.forget(name="secret-name")
    assert not any(b"secret-name" in path.read_bytes() for path in store.path.parent.iterdir())


@pytest.mark.parametrize("damage", [b"not a database, but long enough to look like one" * 9, b""])
def test_a_damaged_store_is_moved_aside_and_begun_anew(
    store: RunStore, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store.add([run()])
    store.close()
    if damage:
        store.path.write_bytes(damage)
    else:
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("CREATE TABLE stranger (a)")
    with caplog.at_level(logging.WARNING):
        again = RunStore(store.path)
    assert len(again) == 0
    assert again.add([run()]) == 1
    [aside] = store.path.parent.glob("history-damaged-*.db")
    assert aside.name in caplog.text


def test_a_store_of_another_version_is_left_alone(store: RunStore) -> None:
    store.add([run()])
    store.close()
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    before = store.path.read_bytes()
    with pytest.raises(RunStoreError, match=r"its version is 99, and this release of lightning_core reads version 3"):
        RunStore(store.path)
    assert store.path.read_bytes() == before


def test_a_store_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (folder := tmp_path / "open").mkdir()
    folder.chmod(0o777)
    with pytest.raises(RunStoreError, match="everyone can write"):
        RunStore(folder / FILE)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "curve", ["nonsense", "[[10, 5], [1.0, 2.0]]", "[[1], []]", '[["a"], [1.0]]', "[[1e999], [1]]"]
)
def test_a_damaged_run_is_left_out(store: RunStore, curve: str, caplog: pytest.LogCaptureFixture) -> None:
    store.add([run("good"), run("bad")])
    store._connection.execute("UPDATE runs SET curve = ? WHERE name = 'bad'", (curve,))
    with caplog.at_level(logging.WARNING):
        assert similar(store) == ["good"]
    assert new_id("bad") in caplog.text


def test_a_thousand_curves_are_looked_through_in_ten_milliseconds(store: RunStore) -> None:
    draw = np.random.default_rng(0)
    batches = tuple(range(1, 129))
    store.add(
        run(f"r{k}", ended_at=float(draw.uniform()), batches=batches, losses=tuple(draw.uniform(size=128).tolist()))
        for k in range(1000)
    )
    took = []
    for _ in range(20):
        began = time.perf_counter()
        assert len(store.similar(JOB, ME)) == 3
        took.append(time.perf_counter() - began)
    assert min(took) < 0.010


def test_a_run_tells_its_memory_to_a_job_on_such_devices_with_as_large_a_batch() -> None:
    one = run(memory=7, batch_size=8, throughputs=((1, "cpu", 5.0),))
    assert one.for_job(8, "cpu").memory == 7
    assert one.for_job(8, "gpu").memory is one.for_job(16, "cpu").memory is None


def test_the_constants_are_those_of_the_documentation() -> None:
    assert (run_store.SCHEMA, FILE) == (3, "history.db")
