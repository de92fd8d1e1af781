"""A job whose ranks are on several machines: a rank is killed, a machine is cut off and back, the head's is slow."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.site import Site
from tests.machines import Machine, network, why_not
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

# Each machine has two devices, which are CPUs here.
POOL = "pool: {devices: 6}"
TERMS = {"target": {"batches": 100_000}, "deadline": "10h", "save_every": 2}
LINE = {
    "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.02}},
    "data": {"class_path": "tests.tiny.Points"},
}
# It takes all devices of two machines, or those of one.
WIDE = {
    "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.02}},
    "data": {"class_path": "tests.tiny.ElasticPoints"},
    "min_devices": 2,
    "max_devices": 4,
    "spread": "pool",
    **TERMS,
}
PAIR = {**LINE, **TERMS, "devices": 2}


@pytest.fixture
def site() -> Iterator[Site]:
    if why := why_not():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="lc-") as name, network(Path(name), 3) as machines:
        made = Site(Path(name), machines, devices=2)
        made.start_ray()
        yield made


def machines_of(site: Site, job: dict[str, Any]) -> list[Machine]:
    """Return the machines of a job's devices."""
    return list({machine.address: machine for machine in map(site.machine_of, job["devices"])}.values())


def trains(job: dict[str, Any], *, devices: int, after: int) -> bool:
    """Return whether an incarnation of a job after another one trains on a number of devices."""
    return bool(
        job["state"] == "running" and len(job["devices"]) == devices and job["incarnation"] > after and job["share"]
    )


@pytest.mark.promise("R5", "F21")
def test_a_job_over_two_machines_outlives_a_killed_rank_a_cut_off_machine_and_a_slow_head(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    def say(words: str) -> None:
        record_property("figure", words)
        print(words)

    site.up(POOL)
    site.submit(pair=PAIR)
    pair = site.until_job(lambda job: (job["checkpoint_batches"] or 0) > 20)
    assert len(machines_of(site, pair)) == 1, "it may not spread"
    site.submit(wide=WIDE)
    wide = site.until_job(lambda job: (job["checkpoint_batches"] or 0) > 20 and len(job["devices"]) == 4, "wide")
    assert len(machines_of(site, wide)) == 2

    # A rank is killed: the others end too, and the job goes on from what it had saved.
    away = next(device for device in wide["devices"] if site.machine_of(device) is not site.head)
    began = time.monotonic()
    os.kill(site.pid_of("wide", away), signal.SIGKILL)
    back = site.until_job(lambda job: trains(job, devices=4, after=wide["incarnation"]), "wide")
    say(f"a rank of four was killed: all trained again after {time.monotonic() - began:.0f} s")
    assert back["batches"] >= wide["checkpoint_batches"]

    # A machine is cut off, its processes go on: the job comes back on what is left, and later on all again.
    saved = site.until_job(lambda job: (job["checkpoint_batches"] or 0) > back["batches"], "wide")
    machine = next(one for one in machines_of(site, saved) if one is not site.head)
    began = time.monotonic()
    machine.disconnect()
    less = site.until_job(lambda job: trains(job, devices=2, after=saved["incarnation"]), "wide")
    say(f"a machine of three was cut off: its job trained on two devices after {time.monotonic() - began:.0f} s")
    assert len(machines_of(site, less)) == 1
    assert less["batches"] >= saved["checkpoint_batches"]
    began = time.monotonic()
    machine.switch_off()  # Ray's processes do not come back by themselves
    machine.switch_on()
    site.start_node(machine)
    until(lambda: site.status()["unavailable"] == [])
    again = site.until_job(lambda job: trains(job, devices=4, after=less["incarnation"]), "wide")
    say(f"the machine was back: its job trained on four devices after {time.monotonic() - began:.0f} s")
    assert again["restarts"] == less["restarts"], "a resize is no fault"

    # The machine of the head stands still for seconds, again and again: no job is lost for it.
    for _ in range(3):
        processes = site.head.processes()
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.0)
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        time.sleep(2.0)
    went_on = site.until_job(lambda job: (job["batches"] or 0) > again["batches"] + 20, "wide")
    assert went_on["incarnation"] == again["incarnation"]

    # Nothing else was disturbed.
    jobs = site.jobs()
    assert (jobs["pair"]["incarnation"], jobs["pair"]["restarts"]) == (pair["incarnation"], 0)
    assert jobs["pair"]["batches"] > pair["batches"]
    site.command("down", "--now", "--folder", site.pool)
