"""Nodes by Ray's autoscaler, on Ray's own simulated cloud."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.test_nodes import run_story

STORY = "tests.faults.autoscaled"


@pytest.mark.nightly
@pytest.mark.cluster
def test_ray_s_autoscaler_brings_the_requested_nodes_and_removes_them(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A pool with more worker slots than requested nodes does not rent more."""
    found = run_story(STORY, tmp_path)
    assert found["with room for four"] == 1
    assert found["at last"] == [1, 0]
    words = (
        "nodes of both kinds after {more:.0f} s; left {fewer:.0f} s after they were given back, gone after {all:.0f}"
    )
    record_property("figure", words.format(**found, all=found["fewer"] + found["given back"]))


@pytest.mark.nightly
@pytest.mark.cluster
def test_two_pools_of_one_cluster_take_no_node_from_each_other(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = run_story(STORY, tmp_path, story="two")
    assert found["at last"] == [2, 0]
    record_property("figure", f"the nodes of two pools came after {found['both came']:.0f} s")


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_run_whose_command_is_killed_ends_its_jobs_and_gives_its_nodes_back(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The pool decides on, also after its provisioner and its scheduler were killed."""
    found = run_story(STORY, tmp_path, story="killed", seconds=400.0)
    assert found["lost"] == 0
    assert found["given back"] < 30
    record_property("figure", f"command killed: nodes gone {found['given back']:.0f} s after the last job ended")
