"""What a pool and its jobs say of training beside others is done."""

from __future__ import annotations

import pytest

from lightning_core.core.jobs import Beside
from tests.pairs import play, simulated


@pytest.mark.parametrize(
    ("pool", "one", "other", "together"),
    [
        ("auto", "auto", "auto", True),
        ("auto", "never", "auto", False),
        ("auto", "auto", "never", False),
        ("never", "always", "always", False),
        ("always", "never", "always", False),
        ("always", "auto", "auto", True),
    ],
)
def test_never_stands_above_always_whichever_of_them_says_it(pool: str, one: str, other: str, together: bool) -> None:
    jobs = [
        simulated("resnet", 500.0, 1500, beside=Beside(one)),
        simulated("bert", 700.0, 1000, beside=Beside(other)),
    ]
    outcome, seen = play(jobs, beside=pool)
    assert [job.beside for job in seen] == ([("bert",), ("resnet",)] if together else [(), ()])
    assert (sum(job.busy for job in outcome.jobs) > 1.1 * outcome.summary.wall) == together
