"""``lightning-core market``: its output, pictures and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.bundle.problems import BundleError
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.parts.market.market_terms import terms_of
from lightning_core.parts.market.traces import read_trace
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.cli.test_cli import Said

CALM = "available,price\n" + "8,0.5\n" * 60
JOB = ("--work", "80", "--deadline", "10")


@pytest.fixture
def calm(tmp_path: Path) -> str:
    path = tmp_path / "calm.csv"
    path.write_text(CALM)
    return str(path)


def test_a_plan_is_printed(calm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    said = Said(capsys, "market", "plan", "--trace", calm, *JOB, "--picture", str(picture))
    assert said.code == 0
    assert "recorded: 0.5 to 0.5" in said.out
    assert "80 of work in 10 intervals (5h) on 1 to 12 nodes; worth 121.4" in said.out
    intervals = re.findall(r"^(\d) +8 +0\.500 +(\d+) +(\d+) ", said.out, re.MULTILINE)
    assert [interval for interval, _, _ in intervals] == list("0123456789")
    now = re.search(r"now: hold (\d+) spot and (\d+) on-demand nodes", said.out)
    assert now is not None
    assert now.groups() == intervals[0][1:]
    cost = re.search(r"completes in time and costs ([\d.]+); on-demand only 80.9", said.out)
    assert cost is not None
    assert 40 < float(cost[1]) < 50  # eight at half the price do nearly all of it
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_job_that_cannot_end_in_time_is_warned_about(calm: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "market", "plan", "--trace", calm, "--work", "130", "--deadline", "10")
    assert said.code == 3
    assert (
        "warning: it cannot complete in time: 12 on-demand nodes do 118.8 of work by then, and 130 is left" in said.out
    )


@pytest.mark.nightly
def test_a_backtest_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, table = tmp_path / "back.png", tmp_path / "back.json"
    (study := tmp_path / "study.yaml").write_text("{job: {work: 80, deadline: 10}, starts: 12}")
    said = Said(capsys, "market", "backtest", "--config", str(study), "--picture", str(picture), "--json", str(table))
    assert said.code == 0
    body = json.loads(table.read_text())
    assert list(body["policies"]) == ["on-demand", "max-spot", "uniform-progress", "all-or-nothing", "ahanp", "ahap",
                                      "semi-markov"]  # fmt: skip
    assert all(one["on_time"] == 1.0 for one in body["policies"].values())
    assert body["policies"]["on-demand"]["gap_closed"] == pytest.approx(0.0)
    ours = body["policies"]["semi-markov"]
    assert 80 < ours["gap_closed"] <= 100
    assert body["optimum"] < ours["cost"] < body["policies"]["on-demand"]["cost"] == pytest.approx(80.9)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_arguments_of_policies_and_an_assumed_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spot.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [4, 4, 3, 0, 0, 4] * 40}))
    (study := tmp_path / "study.yaml").write_text("""
market: {trace: spot.json, price: 0.3, policies: ["ahap:omega=1", chain]}
job: {work: 20, deadline: 10, max_nodes: 4}
starts: 5
""")
    said = Said(capsys, "market", "backtest", "--config", str(study))
    assert said.code == 0
    assert "price assumed: 0.3" in said.out
    assert "ahap:omega=1" in said.out
    assert "5 starts" in said.out
    said = Said(capsys, "market", "backtest", "--trace", str(path), *JOB)
    assert said.err == f"error: {path}: has no prices: give the price of a spot node (price)\n"


def test_forecasts_are_printed(calm: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "market", "forecast", "--trace", calm)
    assert said.code == 0
    assert "spot nodes: always 8\nprice: always 0.5\n" in said.out
    said = Said(capsys, "market", "forecast", "--horizon", "3")
    assert len(re.findall(r"^last .*\(1\.00\)", said.out, re.MULTILINE)) == 2
    assert len(re.findall(r"^(autoregressive|seasonal) ", said.out, re.MULTILINE)) == 4


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("plan", "--deadline", "10"), "a job needs its deadline, and its work or the run that has it"),
        (("plan", *JOB, "--policy", "chains"), "must be one of ahanp, .*, got 'chains'; did you mean 'chain'"),
        (("plan", *JOB, "--policy", "ahap:colour=1"), "spot policy ahap: unknown argument 'colour'"),
        (("plan", *JOB, "--policy", "ahap:omega=2.5"), "spot policy ahap: omega: expected int, got 2.5"),
        (("plan", *JOB, "--policy", "ahap:windows=1"), "spot policy ahap: unknown argument 'windows'"),
        (("plan", *JOB, "--policy", "ahap:mode=Paper"), "ahap: mode: expected one of default, paper, got 'Paper'"),
        (("plan", *JOB, "--policy", "ahap", "--policy", "chain"), "a plan has one policy, got ahap and chain"),
        (("plan", *JOB, "--policy", "ahap:omega=0"), "omega must be at least 1 interval, got 0"),
        (("plan", *JOB, "--trace", "/nowhere.csv"), "No such file"),
        (("backtest", "--work", "80", "--deadline", "2000"), "at most the 1316 intervals of a100, got 2000"),
        (("forecast", "--horizon", "0"), "--horizon must be at least 1 interval, got 0"),
        (("forecast", "--horizon", "2000"), "--horizon must be below the 1316 intervals of a100, got 2000"),
    ],
)
def test_wrong_options_of_market_are_refused(
    asked: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Said(capsys, "market", *asked)
    assert said.code == 2
    assert re.search(words, said.err)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[market]", "expected a mapping of market, job, moves, starts, seed, got list"),
        ("{jobs: {}}", "unknown key 'jobs'; did you mean 'job'"),
        ("{market: {quotes: ./now.sh}}", "market: quotes is of a market that goes on, and this one is recorded"),
        ("{market: {forecaster: lst}}", "market.forecaster: forecaster must be one of .*, got 'lst'"),
        ("{job: {wrk: 3}}", "job.wrk: unknown key 'wrk'; did you mean 'work'"),
        ("{job: {max_nodes: 99999}}", "job.max_nodes: must be a whole number from 1 to 10000, got 99999"),
        ("{job: {overhead: none}}", "job.overhead: must be one of launches, total, got 'none'"),
        ("{job: {throughput: 3}}", "job.throughput: must be a list of the work in an interval on 1, 2, .. nodes, got"),
        ("{job: {throughput: [1, .nan, 3]}}", "throughput must be finite"),
        ("{job: {hand_over_time: 0.2}}", "hand_over_time must be at least 0 and at most 0.1 intervals, got 0.2"),
        ("{job: {run: runs/x}}", "job: run and name go together"),
        ("{market: {minimum_charge: 60s}, job: {overhead: total}}", "need no overhead, got overhead: total"),
        ("{moves: {egress: -1}}", "moves.egress: must be at least 0 and finite, got -1"),
        ("{starts: 0}", "starts: must be a whole number from 1 to 100000, got 0"),
    ],
)
def test_a_wrong_file_is_refused(content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study := tmp_path / "study.yaml").write_text(content)
    said = Said(capsys, "market", "plan", "--config", str(study), *JOB)
    assert said.code == 2
    assert re.search(words, said.err)


def test_the_throughput_of_a_job_of_a_run(calm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    can = frozenset({Capability.RELEASE, Capability.RESIZE})
    known = Job("vit", 3600.0, BatchTarget(90_000), can=can, max_devices=2, sizes=(1, 2), throughputs=(10.0, 18.0))
    jobs = [SimulatedJob(known, [10], [0.9], 10.0, throughputs=(10.0, 18.0)),
            SimulatedJob(Job("bert", 3600.0, LossTarget("loss", 0.1)), [10], [0.9], 10.0)]  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    Simulation(Settings(policy="edf", devices=2), jobs, journal=run / "journal.db").run(until=20.0)
    said = Said(capsys, "market", "plan", "--trace", calm, "--job", str(run), "vit", "--deadline", "4")
    assert "batches in an interval by number of nodes: 1: 1.8e+04, 2: 3.24e+04" in said.out
    assert said.code == 0
    said = Said(capsys, "market", "plan", "--trace", calm, "--job", str(run), "bart", "--deadline", "4")
    assert "has no job 'bart'; did you mean 'bert'" in said.err
    said = Said(capsys, "market", "plan", "--trace", calm, "--job", str(run), "bert", "--deadline", "4")
    assert said.code == 2


def test_an_interval_is_as_long_as_in_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    can = frozenset({Capability.RELEASE, Capability.RESIZE})
    known = Job("vit", 3600.0, BatchTarget(90_000), can=can, max_devices=2, sizes=(1, 2), throughputs=(10.0, 18.0))
    (tmp_path / "run").mkdir()
    given = SimulatedJob(known, [10], [0.9], 10.0, throughputs=(10.0, 18.0))
    Simulation(Settings(policy="edf", devices=2), [given], journal=tmp_path / "run" / "journal.db").run(until=20.0)
    hourly = tmp_path / "hourly.csv"
    hourly.write_text("hour,avail,price\n" + "".join(f"{hour},8,0.5\n" for hour in range(20)))
    asked = ("market", "plan", "--job", str(tmp_path / "run"), "vit", "--deadline", "4", "--trace", str(hourly))
    assert "by number of nodes: 1: 3.6e+04, 2: 6.48e+04" in Said(capsys, *asked).out


def test_formats_of_recordings_are_recognised(tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text("time,change\n0,4\n3600,-2\n7200,1\n")
    assert read_trace(events, price=0.3).available.tolist() == [4, 4, 2, 2]
    with pytest.raises(ValueError, match="has no prices"):
        read_trace(events)
    lake = tmp_path / "lake.csv"
    lake.write_text(
        "Time,InstanceType,AZ,T3,SpotPrice,OndemandPrice\n2025-01-01 00:00:00,p4d.24xlarge,use1-az1,5,1,4\n"
    )
    with pytest.raises(ValueError, match="pool must be INSTANCE@ZONE, got ''"):
        read_trace(lake)


# --------------------------------------------------------------------------------------------------- in a bundle

CONTENT = {"jobs": {"a": {"deadline": "1h", "target": {"batches": 10}, "config": "a.yaml"}}}


def test_a_bundle_with_a_market(calm: str, tmp_path: Path) -> None:
    market = {"trace": "calm.csv", "interval": "10m", "policies": ["chain", "max-spot"], "seed": 4}
    bundle = _bundle(tmp_path, market)
    terms = terms_of(bundle.supplied().settings)
    assert terms is not None
    assert (terms.trace, terms.interval, terms.policies, terms.seed) == (calm, 600.0, ("chain", "max-spot"), 4)
    assert Bundle.from_dict(bundle.to_dict(), tmp_path).settings == bundle.settings
    short = terms_of(_bundle(tmp_path, "calm.csv").supplied().settings)
    assert short is not None
    assert short.trace == calm


@pytest.mark.parametrize(
    ("market", "words"),
    [
        ("nowhere.csv", "market: trace .*nowhere.csv: No such file"),
        ({"trase": "calm.csv"}, "market: unknown key 'trase'; did you mean 'trace'"),
        ({"interval": -30}, "market: duration must be positive, got -30"),
        ({"policies": ["chains"]}, "market: spot policy must be one of ahanp"),
        (3, "market: expected a recording or a mapping of trace, "),
    ],
)
def test_wrong_markets_of_bundles_are_refused(market: object, words: str, calm: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=words):
        _bundle(tmp_path, market)


def _bundle(folder: Path, market: object) -> Bundle:
    (folder / "a.yaml").write_text("model:\n  class_path: tests.tiny.Tiny\n")
    return Bundle.from_dict({**CONTENT, "market": market}, folder)


def test_several_recordings_are_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up = {"us-east-1a_v100": [1] * 5 + [0] * 5, "us-west-2b_v100": [0] * 5 + [1] * 5}
    market: dict[str, Any] = {"trace": [f"{name}.json" for name in up], "price": 0.25}
    job = {"work": 12, "deadline": 20, "max_nodes": 1, "launch_time": 0.5}
    for name, data in up.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"metadata": {"gap_seconds": 1800}, "data": data * 6}))
    study, table = tmp_path / "study.yaml", tmp_path / "back.json"

    def said(command: str, *words: str, **sections: Any) -> Said:
        study.write_text(yaml.safe_dump({"market": market, "job": job, "starts": 3, **sections}))
        return Said(capsys, "market", command, "--config", str(study), *words)

    moves = {"checkpoint": 10, "egress": 0.02, "transfer": 0.25}
    back = said("backtest", "--policy", "max-spot", "--json", str(table), moves=moves)
    assert back.code == 0
    assert re.search(r"any of them +100% +0.25 +1", back.out)
    body = json.loads(table.read_text())["policies"]["max-spot"]
    assert body["on_time"] == 1.0
    assert body["moves"] >= 2
    assert body["egress"] == pytest.approx(0.2 * body["moves"])
    assert body["free_moves_cost"] < body["cost"]
    plan = said("plan")
    assert re.search(r"us-east-1a +0 +0.250 +0 +0\n *us-west-2b +1 +0.250 +[\d.]+ +1 +0\n", plan.out)
    assert said("forecast").err == "error: trace must be a single recording, got 2\n"
    twice = {"trace": [*market["trace"], market["trace"][0]], "price": 0.25}
    assert "that of another zone, got 'us-east-1a' twice" in said("backtest", market=twice).err
    assert "--picture draws one" in said("backtest", "--picture", str(tmp_path / "a.png")).err
