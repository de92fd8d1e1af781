"""The benchmark of several zones: its plans are comparable, and its figures are there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.labels import LABELS
from benchmarks.market import zones
from benchmarks.market.late.node_play import SPOT_PRICE
from benchmarks.market.late.recordings import Recording
from lightning_core.parts.market.spot_policies import MaxSpot


def test_a_zone_that_is_always_up_is_as_good_as_all_and_the_figures_have_labels() -> None:
    ticks, flickers = 900, np.arange(900) % 18 < 12
    recordings = [Recording("", zone, 600.0, up) for zone, up in (("us-west-2a", flickers), ("us-west-2b", ~flickers),
                  ("us-west-2c", np.ones(ticks, np.bool_)))]  # fmt: skip
    offers = [zones.offer(recording) for recording in recordings]
    assert zones.mean_up(offers, each=True) == zones.mean_up(offers) == 1.0
    rows = zones.play(MaxSpot, 52, offers, offers[:2], starts=3, seed=0)
    spot = 48.5 / 0.5 * SPOT_PRICE / math.ceil(48.2 / 0.5)  # no launch but one
    named = dict(zip(zones.NAMES, rows.values(), strict=True))
    assert named["best"].cost == pytest.approx(spot)
    assert named["own_best"].cost == pytest.approx(spot)
    assert named["free"].cost == pytest.approx(spot)
    assert named["all"].cost == pytest.approx(spot, abs=0.01)
    assert (named["three"].cost > spot + 0.05).all()
    figures = zones.figures_of(52, rows)
    assert figures["all_moves_52"] is not None
    assert figures["all_moves_52"] <= 1
    assert not [name for name in figures if name not in LABELS["zones"] and "_se_" not in name and "egress" not in name]
