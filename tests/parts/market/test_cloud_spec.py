"""What the provisioner of a pool knows: its cloud, from a file of the pool, and its lease."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.parts.market.cloud.cloud_spec import SIMULATED, CloudSpec
from lightning_core.parts.market.cloud.lease import Lease, lease_seconds

RECORDED = CloudSpec("pool", "device", SIMULATED, 20.0, {"interval": 20.0, "policies": ["max-spot"]})
QUOTED = CloudSpec("pool-1", "GPU", "sh up --key s3cret", 1800.0, None, "prices --key s3cret", 0.0, 30.0, 6.0)


@pytest.mark.parametrize("cloud", [RECORDED, QUOTED])
def test_a_cloud_is_read_again_as_it_was_written(cloud: CloudSpec, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    replace(cloud, notice=1.0).save(tmp_path)
    cloud.save(tmp_path)
    assert CloudSpec.load(tmp_path) == cloud


def test_only_its_user_can_read_a_cloud(tmp_path: Path) -> None:
    """Its commands may contain keys."""
    QUOTED.save(tmp_path)
    assert (tmp_path / "cloud.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quotes": "prices"}, "a market is either recorded or quoted by a command"),
        ({"terms": None}, "a market is either recorded or quoted by a command"),
        ({"notice": -0.1}, "notice must be at least 0 seconds and finite, got -0.1"),
        ({"notice": math.nan}, "notice must be at least 0 seconds and finite, got nan"),
        ({"leave": math.inf}, "leave must be at least 0 seconds and finite, got inf"),
        ({"lease": 0.0}, "lease must be positive and finite, got 0.0"),
        ({"lease": math.nan}, "lease must be positive and finite, got nan"),
        ({"terms": {"policies": ["chian"]}}, "spot policy must be one of"),
        ({"provision": "sh 'up"}, "No closing quotation"),
    ],
)
def test_what_does_not_go_together_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(RECORDED, **changed)


@pytest.mark.parametrize("text", ["", "3", "[]", "{", '{"pool": "pool"}', '{"pool": "p", "zone": "a"}'])
def test_a_damaged_cloud_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "cloud.json").write_text(text)
    with pytest.raises(ValueError, match=r"\S"):
        CloudSpec.load(tmp_path)


def test_a_value_of_another_kind_is_refused(tmp_path: Path) -> None:
    RECORDED.save(tmp_path)
    body = json.loads((tmp_path / "cloud.json").read_text())
    (tmp_path / "cloud.json").write_text(json.dumps(body | {"lease": "soon"}))
    with pytest.raises(ValueError, match="is not the cloud of a pool"):
        CloudSpec.load(tmp_path)


def test_no_cloud_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CloudSpec.load(tmp_path)


def test_a_lease_lasts_two_minutes_or_a_quarter_of_an_interval() -> None:
    assert [lease_seconds(interval) for interval in (20.0, 480.0, 1800.0, 7200.0)] == [120.0, 120.0, 450.0, 1800.0]
    assert (RECORDED.lease_seconds, QUOTED.lease_seconds) == (120.0, 6.0)


def test_a_lease_is_over_once_the_pool_has_not_answered_for_as_long_as_it_lasts() -> None:
    lease = Lease(6.0)
    assert lease.is_over(-1e9)  # without a first answer
    lease.renew(10.0)
    assert [lease.is_over(now) for now in (10.0, 16.0, 16.001)] == [False, False, True]
    lease.renew(20.0)  # the pool is back
    assert [lease.is_over(now) for now in (20.0, 26.0, 26.001)] == [False, False, True]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_lease_without_an_end_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="a lease must last a positive and finite time"):
        Lease(seconds)
