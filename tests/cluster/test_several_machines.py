"""A pool on machines with addresses of their own: ranks meet, a machine is lost, and the head gets another address."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.site import Site
from tests.machines import NETWORK, network, why_not
from tests.waiting import until

# Bytes that the second rank has more than the first.
MORE = 2**30
JOB = {
    "model": {"class_path": "tests.tiny.HeavyLine", "init_args": {"more": MORE, "pause": 0.02}},
    "data": {"class_path": "tests.tiny.Points"},
    "deadline": "1h",
    "target": {"batches": 100_000},
    "devices": 2,
    "save_every": 2,
    "spread": "pool",
}
POOL = "pool: {devices: 3}"


@pytest.fixture
def site() -> Iterator[Site]:
    if why := why_not():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="lc-") as name, network(Path(name), 3) as machines:
        made = Site(Path(name), machines)
        made.start_ray()
        yield made


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R5", "R11", "R20", "F5", "F21")
def test_a_pool_on_several_machines_outlives_a_lost_machine_and_another_address_of_its_head(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    site.up(POOL)
    site.submit(pair=JOB)
    begun = site.until_job(lambda job: (job["checkpoint_batches"] or 0) > 20)
    assert len(begun["devices"]) == 2
    assert len({site.machine_of(device).address for device in begun["devices"]}) == 2
    assert begun["restarts"] == 0
    # The rank on the other machine has more memory: what it has counts on both.
    assert MORE < site.until_job(lambda job: (job["memory"] or 0) > MORE)["memory"] < 2 * MORE

    # A machine is switched off under the job: it goes on elsewhere, from what it had saved.
    lost = next(device for device in begun["devices"] if site.machine_of(device) is not site.head)
    machine = site.machine_of(lost)
    machine.switch_off()
    off = site.status()["now"]
    job = site.until_job(lambda job: job["state"] == "running" and job["incarnation"] > 1)
    words = f"a machine of two switched off: its job trained elsewhere after {site.status()['now'] - off:.0f} s"
    record_property("figure", words)
    print(words)
    assert lost not in job["devices"]
    assert job["batches"] >= begun["checkpoint_batches"]
    assert lost in [one["device"] for one in site.status()["unavailable"]]
    why = site.command("why", "pair", "--pool", site.pool)
    assert f"its worker on device {lost} has not answered" in why
    machine.switch_on()
    site.start_node(machine)
    until(lambda: site.status()["unavailable"] == [])

    # The head gets another address: it is told, and the pool begins again with what was saved.
    saved = site.until_job(lambda job: job["checkpoint_batches"] > begun["checkpoint_batches"])
    site.head.change_address(f"{NETWORK}91")
    said = until(lambda: (text := site.command("status", "--pool", site.pool)) * ("has not called" in text))
    assert "end Ray on all nodes, start it again" in said
    assert "does not answer" in site.command("down", "--now", "--folder", site.pool)
    for one in site.machines:
        one.switch_off()
        one.switch_on()
    site.start_ray()
    site.up(POOL)
    job = site.until_job(lambda job: job["state"] == "running" and job["incarnation"] > saved["incarnation"])
    assert job["batches"] >= saved["checkpoint_batches"]
    assert job["deadline"] == saved["deadline"]
    site.command("down", "--now", "--folder", site.pool)
