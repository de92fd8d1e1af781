"""DECOR-NN's controller as printed, live: a real training on whole devices, stepped every 5 s."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Grant, Verdict
from lightning_core.core.codec import decode_answers
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import launched
from tests.conftest import ROOT

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

# Nightly: benchmarks.live.decor --tables plays the same in virtual time.
pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

DEADLINE = 52.0


def documented() -> dict[str, Any]:
    """Return the policy that the page on deadlines shows for the paper's controller."""
    page = (ROOT / "docs/how-to/deadlines.md").read_text()
    [block] = [part.split("```")[0] for part in page.split("```yaml\n")[1:] if "mode: paper" in part.split("```")[0]]
    policy = yaml.safe_load(block)["policy"]
    assert isinstance(policy, dict)
    return policy


def test_the_printed_controller_holds_a_real_training_to_its_deadline(three: Cluster, tmp_path: Path) -> None:
    policy = documented()
    assert (policy["mode"], policy["period"]) == ("paper", 5)
    # Two micro-batches a step: more than 30 s on two devices and 60 s on one, so the deadline lies between.
    job = launched({"batches": 300}, f"{DEADLINE}s", data="tests.sharded.ElasticPoints", init={"pause": 0.1},
                   model="tests.sharded.LiveNet", min_devices=1, max_devices=2)  # fmt: skip
    bundle = Bundle.from_dict({"pool": {"devices": 3}, "policy": policy, "jobs": {"job": job}}, ROOT)
    [status] = bundle.run(run_dir=tmp_path, cluster=three).jobs
    assert status.finished_at is not None
    took = status.finished_at - status.submitted_at

    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert replay(journal).digest == journal.digest
        grants = [(e.now, a) for e in journal.entries() for a in decode_answers(e.answers) if isinstance(a, Grant)]
    sizes = [(now, len(grant.devices)) for now, grant in grants if grant.share]
    resized = [now for (_, before), (now, after) in pairwise(sizes) if before != after]
    print(f"ended after {took:.1f} of {DEADLINE:g} s; devices {sizes}")
    assert len(resized) >= 2, "the controller has taken a device and given it back"
    assert all(later - before >= policy["period"] * 0.99 for before, later in pairwise(resized))
    assert "on_ramp" in {grant.reason.code for _, grant in grants}
    # Not at full speed: it ends near its deadline, which a busy machine may make it miss.
    assert took >= 0.75 * DEADLINE
    assert status.verdict is Verdict.MET or took <= 1.1 * DEADLINE
