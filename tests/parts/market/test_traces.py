"""Recordings of markets: values by interval, and refused files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from lightning_core.parts.market.traces import (
    read_events,
    read_intervals,
    read_spot_traces,
    read_spotlake,
    read_trace,
    resample,
    shipped_trace,
)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_shipped_market_is_valid() -> None:
    market = shipped_trace()
    assert (len(market), market.seconds, market.on_demand) == (1316, 1800.0, 1.0)
    assert (market.available.min(), market.available.max()) == (0, 16)
    assert market.available.mean() == pytest.approx(8.8, abs=0.1)
    assert 0.6 < market.price.mean() < 0.75


def test_longer_intervals_have_the_minimum_count_of_their_parts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "hour,avail,price\n0,0,0.3\n0.5,8,0.4\n1,8,0.5\n1.5,7,0.6\n")
    market = read_intervals(path, interval=3600.0)
    assert (market.available.tolist(), market.price.tolist(), market.seconds) == ([0, 7], [0.4, 0.6], 3600.0)
    assert read_intervals(path, interval=1800.0).available.tolist() == [0, 8, 8, 7]


def test_compressed_files_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    text = "available,price\n3,0.5\n"
    (tmp_path / "a.csv").write_text(text, encoding="utf-8-sig")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write(text)
    assert [read_trace(tmp_path / name).available.tolist() for name in ("a.csv", "b.csv.gz")] == [[3], [3]]


def test_the_shipped_market_in_another_currency() -> None:
    market, dear = shipped_trace(), shipped_trace(on_demand=3.0, interval=3600.0)
    assert (dear.on_demand, dear.seconds, len(dear)) == (3.0, 3600.0, len(market) // 2)
    assert dear.price.max() == pytest.approx(3 * market.price.max())
    assert set(shipped_trace(price=0.2).price.tolist()) == {0.2}


def test_traces_by_interval_are_read(tmp_path: Path) -> None:
    market = read_intervals(written(tmp_path / "a.csv", "hour,avail,price_p10\n0,3,0.5\n0.25,0,0.6\n0.5,7,0.7\n"))
    assert (market.available.tolist(), market.price.tolist()) == ([3, 0, 7], [0.5, 0.6, 0.7])
    assert (market.seconds, market.name) == (900.0, "a")
    flat = read_intervals(written(tmp_path / "b.csv", "available\n3\n4\n"), price=0.3, on_demand=2.0)
    assert (flat.price.tolist(), flat.on_demand, flat.seconds) == ([0.3, 0.3], 2.0, 1800.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("available,price\n", "must have at least one interval, got none"),
        ("hour,price\n0,1\n", "must have a column available or avail or count"),
        ("available\n1\n", "give the price of a spot node"),
        ("available,price\nx,1\n", "every available must be a number"),
        ("available,price\n1\n", "every price must be a number"),
        ("available,price\n1.5,1\n", "every count must be whole"),
    ],
)
def test_invalid_intervals_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_intervals(written(tmp_path / "a.csv", text))


def test_spot_traces_have_the_minimum_count_of_each_interval(tmp_path: Path) -> None:
    body = {"metadata": {"gap_seconds": 600}, "data": [1, 1, 1, 4, 0, 4, 2, 3, 2, 1]}
    market = read_spot_traces(written(tmp_path / "zone.json", json.dumps(body)), price=0.33)
    assert market.available.tolist() == [1, 0, 2]  # the rest does not fill an interval
    assert market.price.tolist() == [0.33] * 3
    for wrong in ("[]", "{", '{"metadata": {}, "data": []}', '{"metadata": {"gap_seconds": 1}, "data": ["x"]}'):
        with pytest.raises(ValueError, match=r"must be an object of metadata.gap_seconds and data"):
            read_spot_traces(written(tmp_path / "bad.json", wrong), price=0.3)


def test_event_traces_are_read(tmp_path: Path) -> None:
    text = "time,change\n100,4\n1000,-3\n1200,2\n2500,5\n3700,0\n"
    market = read_events(written(tmp_path / "a.csv", text), price=0.4)
    assert market.available.tolist() == [1, 3]
    for wrong, words in (("time,change\n0,1\n", "at least two rows"), ("time,change\n0,1\n5,-2\n", "become negative")):
        with pytest.raises(ValueError, match=words):
            read_events(written(tmp_path / "b.csv", wrong), price=0.4)


def test_snapshots_of_spotlake_are_read(tmp_path: Path) -> None:
    head = "Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings"
    lines = {
        0: "3,10,20,3.0,4.0,1.0,75",
        10: "3,5,20,3.0,4.0,1.2,70",
        20: ",,,3.0,4.0,0.8,80",  # no score: missing
        30: "1,0,5,3.0,4.0,-1,",  # no price: missing
        40: "3,20,50,3.0,4.0,1.0,75",
        180: "3,30,50,3.0,4.0,2.0,50",
        190: "1,0,50,3.0,4.0,2.0,50",  # none is a valid count
    }
    paths = []
    for minutes, line in lines.items():
        time = f"2025-01-01 {minutes // 60:02}:{minutes % 60:02}:00"
        other = f"{time},p4d.24xlarge,us-east-1,use1-az2,3,50,50,3.0,4.0,0.1,97"
        twice = f"{time},p4d.24xlarge,us-east-1,use1-az1,3,10,20,3.0,4.0,1.5,62" if not minutes else ""
        text = "\n".join([head, other, twice, f"{time},p4d.24xlarge,us-east-1,use1-az1,{line}"])
        paths.append(tmp_path / f"{minutes:03}.csv.gz")
        paths[-1].write_bytes(gzip.compress(text.encode()))
    market = read_spotlake(reversed(paths), "p4d.24xlarge", "use1-az1")
    assert market.available.tolist() == [5, 5, 20, 0, 0, 0]  # after 40 minutes there is nothing for two hours
    assert market.price[:2].tolist() == [0.375, 0.3]  # the higher of two
    with pytest.raises(ValueError, match="no snapshot has a count and prices of p5 in use1-az1"):
        read_spotlake(paths, "p5", "use1-az1")
    with pytest.raises(ValueError, match="must have a column 'T3'"):
        read_spotlake([written(tmp_path / "x.csv", "Time,InstanceType,AZ\n2025-01-01 00:00:00,p5,z\n")], "p5", "z")


def test_a_value_holds_for_a_gap_and_no_longer() -> None:
    times, counts = np.array([0.0, 4.0, 9.0]), np.array([3, 2, 5])
    for gap, expected in ((5.0, [2, 2, 5]), (4.5, [2, 0, 5])):
        lowest, none = resample(times, counts, None, 4.5, 13.5, gap)
        assert (lowest.tolist(), none) == (expected, None)
        assert lowest.dtype == np.int64


def test_a_value_holds_until_the_next_one() -> None:
    min_nodes, highest = resample(np.array([0.0, 5.0, 12.0]), np.array([4, 1, 6]), np.array([0.1, 0.4, 0.2]), 4.0, 16.0)
    assert min_nodes.tolist() == [4, 1, 1, 6]
    assert highest is not None
    assert highest.tolist() == [0.1, 0.4, 0.4, 0.2]
    with pytest.raises(ValueError, match="interval must be positive"):
        resample(np.zeros(1), np.zeros(1, np.int64), None, 0.0, 1.0)
    with pytest.raises(ValueError, match="must last an interval of 4 s, got 3 s"):
        resample(np.zeros(1), np.zeros(1, np.int64), None, 4.0, 3.0)
