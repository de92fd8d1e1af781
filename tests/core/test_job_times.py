"""Times of a job may be written as a user writes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lightning_core.core.jobs import Job


@pytest.mark.parametrize("name", ["deadline", "begin", "work", "save_every", "resize_seconds"])
def test_times_of_a_job_may_be_text(name: str) -> None:
    terms: dict[str, Any] = {"deadline": "2h", "target": "loss<=0.1"}
    assert getattr(Job("a", **terms | {name: "1h30m"}), name) == 5400.0
    assert getattr(Job("a", **terms | {name: timedelta(minutes=1)}), name) == 60.0
    with pytest.raises(ValueError, match=f"{name}: duration must be such as '90s'.*, got 'soon'"):
        Job("a", **terms | {name: "soon"})
