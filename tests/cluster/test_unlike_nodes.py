"""A pool on old and new nodes: jobs land on their kind, rates are learnt, and an urgent job has the fast one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_joined_pool import Joined
from tests.tiny import SLOWER
from tests.waiting import until

# Seconds of a batch on the new node, and how many times as long it takes on the old one.
PAUSE, TIMES = 0.05, 5.0
DEVICES = {"old": 1, "new": 1}


@pytest.fixture
def unlike() -> Iterator[Joined]:
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        made = Joined(Path(folder), {"old": {SLOWER: str(TIMES)}, "new": {}})
        try:
            yield made
        finally:
            made.close()


def job(batches: int, deadline: str, **terms: Any) -> dict[str, Any]:
    model = {"class_path": "tests.tiny.SlowerLine", "init_args": {"pause": PAUSE}}
    return {"model": model, "data": "tests.tiny.Points", "deadline": deadline, "target": {"batches": batches}, **terms}


@pytest.mark.nightly
@pytest.mark.cluster
def test_an_urgent_job_ends_on_the_fast_node_from_which_one_with_time_has_moved(
    unlike: Joined, record_property: Callable[[str, object], None]
) -> None:
    pool, config = unlike.folder / "pool", unlike.folder / "pool.yaml"
    config.write_text(json.dumps({"pool": {"devices": DEVICES}}))
    said = unlike.command("up", "--ray", unlike.address, "--config", config, "--folder", pool)
    assert said.returncode == 0, said.stderr

    def submit(**jobs: dict[str, Any]) -> None:
        (bundle := unlike.folder / "bundle.yaml").write_text(json.dumps({"pool": {"devices": DEVICES}, "jobs": jobs}))
        said = unlike.command("submit", bundle, "--pool", pool)
        assert said.returncode == 0, said.stdout + said.stderr

    def seen(name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = until(lambda: one if holds(one := unlike.jobs(pool)[name]) else None)
        return found

    # Each is where it asks to be, and tells how fast its kind of training is there.
    submit(slow=job(60, "1h", kinds=["old"]), fast=job(60, "1h", kinds=["new"]))
    for name, kind in (("slow", "old"), ("fast", "new")):
        assert seen(name, lambda one: one["batches"] > 0)["kind"] == kind
    for name in ("slow", "fast"):
        seen(name, lambda one: one["verdict"] == "met")

    # Alone, a job that has time trains on the device that is faster.
    submit(patient=job(100_000, "10h"))
    begun = seen("patient", lambda one: one["batches"] > 200)  # longer than it stays in any case
    assert begun["kind"] == "new"
    words = f"batches per second on the nodes: {begun['rates']['new']:.3g} and {begun['rates']['old']:.3g}"
    record_property("figure", words)
    print(words)
    assert 0.5 * TIMES < begun["rates"]["new"] / begun["rates"]["old"] < 2 * TIMES
    told = unlike.command("status", "--pool", pool).stdout
    assert "new:1" in told
    assert "old 0: idle" in told

    # An urgent one would be late on the old node: the other is saved, moves there, and loses nothing.
    submit(urgent=job(400, "60s"))
    ended = seen("urgent", lambda one: one["finished_at"] is not None)
    assert (ended["verdict"], ended["kind"]) == ("met", "new")
    moved = next(one for one in unlike.command("why", "patient", "--pool", pool).stdout.splitlines() if "old:0" in one)
    assert "grant" in moved
    patient = unlike.jobs(pool)["patient"]
    assert patient["incarnation"] > 1
    assert patient["batches"] >= begun["batches"]
    assert (patient["restarts"], patient["lost_batches"]) == (0, 0)

    # What was learnt is known to a plan, too: it names the kind on which a job is in time.
    (bundle := unlike.folder / "bundle.yaml").write_text(
        json.dumps({"pool": {"devices": DEVICES}, "jobs": {"next": job(400, "60s")}})
    )
    planned = unlike.command("plan", bundle, "--pool", pool).stdout
    assert "on new: next" in planned
    assert unlike.command("down", "--now", "--folder", pool).returncode == 0
