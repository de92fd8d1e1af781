"""A pool on a market whose command, scheduler, provisioner and pool manager are killed at any moment."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightning_core.parts.market.cloud.simulated_provisioner import HEAD_TIMEOUT
from tests.faults.rented import ALL, LEASE, LEAVE, MOMENTS, MOST, SAVE_EVERY, Look
from tests.faults.test_nodes import run_story

# Seconds, on a machine that is busy: from a kill until it is noticed, for a node and its worker to start, and from a
# kill until all is well again.
DETECTED, STARTED, RECOVERED = 10.0, 40.0, 75.0
# Seconds for which what was wanted before may still be there: an answer of the scheduler is on its way.
ON_ITS_WAY = 3.0
# Batches that a job trains in a second on one device, at most: each waits for 0.05 s.
FASTEST = 20.0


class Level(NamedTuple):
    """What the journal says, from a time on."""

    at: float
    number: int


class Story:
    """What a story found, with all times on the monotonic clock."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.kills = found["kills"]
        self.looks = [Look(*look) for look in found["looks"]]
        self.wanted = [Level(at + found["offset"], number) for at, number in found["wanted"]]
        self.granted = [Level(at + found["offset"], number) for at, number in found["granted"]]
        self.invoice = found["invoice"]

    def unused(self) -> Iterator[tuple[float, float]]:
        """Yield each stretch of time in which more nodes were there than jobs had devices, from invoice and journal."""
        times = sorted(
            {row[end] for row in self.invoice for end in ("since", "until")} | {level.at for level in self.granted}
        )
        began = None
        for at in times:
            there = sum(row["since"] <= at < row["until"] for row in self.invoice)
            is_unused = there > _level(self.granted, at)
            if is_unused and began is None:
                began = at
            elif not is_unused and began is not None:
                yield began, at
                began = None

    def check(self) -> None:
        """Check what must hold whatever was killed."""
        assert self.found["left behind"] == 0
        assert self.looks[-1].nodes == self.looks[-1].wanted == 0
        # Each node is in the invoice once, and none is there for long without a job.
        assert len({row["node"] for row in self.invoice}) == len(self.invoice)
        longest = max((until - since for since, until in self.unused()), default=0.0)
        assert longest < STARTED + LEASE + LEAVE + DETECTED
        # Never are more nodes asked for than were wanted at that time.
        for before, look in pairwise(self.looks):
            if look.staying <= before.staying:
                continue
            since = look.at - ON_ITS_WAY
            levels = [_level(self.wanted, since)]
            levels += [level.number for level in self.wanted if since < level.at <= look.at]
            assert look.staying <= max(levels), look
        for kill in self.kills:
            assert kill["recovered"] < RECOVERED, kill
            assert kill["repeated"] <= MOST * FASTEST * (SAVE_EVERY + DETECTED), kill

    def table(self) -> str:
        """Return the kills as Markdown."""
        rows = ["| killed | when | node-seconds paid without a job | batches repeated | seconds to recovery |",
                "|---|---|---|---|---|"]  # fmt: skip
        rows += [
            f"| {kill['what'] or 'nothing'} | {kill['when']} | {kill['paid']:.0f} | {kill['repeated']} "
            f"| {kill['recovered']:.0f} |"
            for kill in self.kills
        ]
        return "\n".join(rows)


def _level(levels: list[Level], at: float) -> int:
    place = bisect_right(levels, at, key=lambda level: level.at)
    return levels[max(place - 1, 0)].number


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t") as made:  # Ray's sockets want short paths
        yield Path(made)


def told(name: str, folder: Path, seconds: float = 600.0) -> Story:
    story = Story(run_story("tests.faults.rented", folder, story=name, seconds=seconds))
    print(story.table())
    return story


@pytest.mark.promise("R24")
@pytest.mark.cluster
@pytest.mark.nightly
def test_all_actors_killed_at_once_cost_no_batch_and_leave_no_node(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """Together with the command that submitted the job: before a node came, in training, and while nodes go."""
    story = told("quick", folder)
    story.check()
    assert [kill["what"] for kill in story.kills] == [" and ".join(ALL)] * 3
    assert sum(kill["repeated"] for kill in story.kills) == 0
    worst = max(kill["recovered"] for kill in story.kills)
    record_property(
        "figure", f"scheduler, provisioner and pool manager killed at once: well after {worst:.0f} s at most"
    )


@pytest.mark.promise("R24")
@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["nothing", *ALL, "scheduler and provisioner", "all three"])
def test_actors_killed_at_any_moment_leave_what_is_wanted(
    name: str, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    story = told(name, folder)
    story.check()
    assert [kill["when"] for kill in story.kills] == list(MOMENTS)
    paid = max(kill["paid"] for kill in story.kills)
    worst = max(kill["recovered"] for kill in story.kills)
    record_property("figure", f"{name} killed: well after {worst:.0f} s, {paid:.0f} s of nodes without a job at most")


@pytest.mark.promise("R25")
@pytest.mark.nightly
@pytest.mark.cluster
def test_a_scheduler_that_stands_still_for_longer_than_the_lease_has_its_nodes_given_back(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    story = told("stopped", folder)
    story.check()
    gone, back = story.found["given back after"], story.found["back after"]
    assert LEASE < gone < LEASE + LEAVE + DETECTED
    record_property(
        "figure", f"lease of {LEASE:g} s: nodes gone after {gone:.0f} s, trains {back:.0f} s after it is back"
    )


@pytest.mark.promise("R7", "F21")
@pytest.mark.nightly
@pytest.mark.cluster
def test_a_node_that_is_lost_costs_what_was_not_saved(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    story = told("lost", folder)
    story.check()
    repeated = max(kill["repeated"] for kill in story.kills)
    record_property("figure", f"a node killed, or stopped: {repeated} batches done again at most")


@pytest.mark.promise("R24")
@pytest.mark.nightly
@pytest.mark.cluster
def test_a_provisioner_that_crashes_again_and_again_neither_keeps_nor_rents_too_many(folder: Path) -> None:
    told("failpoints", folder).check()


@pytest.mark.promise("R24")
@pytest.mark.nightly
@pytest.mark.cluster
def test_a_pool_whose_command_was_killed_on_its_way_up_ends_and_begins_anew(folder: Path) -> None:
    found = run_story("tests.faults.rented", folder, story="half up")
    assert found["left behind"] == 0


@pytest.mark.promise("R25")
@pytest.mark.nightly
@pytest.mark.cluster
def test_nodes_end_by_themselves_when_the_control_process_of_ray_is_killed(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    found = run_story("tests.faults.rented", folder, story="headless")
    assert found["left behind"] == 0
    assert found["ended after"] < HEAD_TIMEOUT + STARTED
    record_property("figure", f"Ray's control process killed: each node ended within {found['ended after']:.0f} s, "
                    f"the last of its processes within {found['all ended after']:.0f} s")  # fmt: skip


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_job_whose_zone_has_no_nodes_any_more_comes_back_in_another(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    story = told("zones", folder)
    story.check()
    assert story.found["labels before"] == [["us-east-1a", "small"]]
    assert story.found["labels after"] == [["us-west-2b", "small"]]
    spot = [row["zone"] for row in story.invoice if row["market_type"] == "spot"]
    assert spot == ["us-east-1a", "us-west-2b"]
    [kill] = story.kills
    record_property("figure", f"a zone without nodes: trains in the other one after {kill['recovered']:.0f} s")
