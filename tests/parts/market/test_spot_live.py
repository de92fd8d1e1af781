"""A live market interval by interval: the decisions equal those on a recording, given the progress really made."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.bundle.problems import BundleError
from lightning_core.cluster.bundle import Bundle
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud import command_provisioner
from lightning_core.parts.market.cloud.command_provisioner import CommandProvisioner
from lightning_core.parts.market.cloud.rented_nodes import RentedNodes
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.market_section import read_market, rented
from lightning_core.parts.market.market_terms import terms_of
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.online.online_plan import OnlinePlan
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.run.differences import differences
from lightning_core.scheduler.settings import Settings
from tests.cli.test_cli import Said
from tests.examples import examples
from tests.waiting import until

PAPER = SpotJob(work=80.0, deadline=10)


def market(counts: list[int], price: float = 0.4, seconds: float = 10.0) -> Market:
    return Market(np.full(len(counts), price), np.array(counts), seconds=seconds)


def part_left(job: SpotJob, before: NodeCounts, held: NodeCounts) -> float:
    """Return the fraction of an interval that is left for training."""
    if held.spot > before.spot or held.on_demand > before.on_demand:
        return job.growth_fraction
    return job.shrink_fraction if held.all < before.all else 1.0


@pytest.mark.promise("R28")
@given(
    st.sampled_from(sorted(SPOT_POLICIES)), st.lists(st.integers(0, 16), min_size=12, max_size=12),
    st.lists(st.floats(0.1, 1.2), min_size=12, max_size=12), st.integers(20, 100), st.sampled_from([0.0, 0.6]),
)  # fmt: skip
@settings(max_examples=examples(40), deadline=None)
@pytest.mark.nightly
def test_live_decisions_equal_those_on_the_recording(
    name: str, counts: list[int], prices: list[float], work: int, preemption_cost: float
) -> None:
    trace = Market(np.array(prices), np.array(counts))
    job = replace(PAPER, work=float(work), preemption_cost=preemption_cost)
    [ledger] = backtest([SPOT_POLICIES[name]()], JobBatch([job], trace, [1]), MarketForecaster(LastValue()))
    plan, held, done = OnlinePlan(SPOT_POLICIES[name](), MarketForecaster(LastValue())), NodeCounts(), 0.0
    for interval in range(job.deadline):
        before = held
        held = plan.decide(job, trace, 1, interval, done, held)
        if done < job.work - 1e-6:
            assert (held.spot, held.on_demand) == (ledger.spot[0, interval], ledger.on_demand[0, interval])
        done = min(done + part_left(job, before, held) * job.throughput[held.all], job.work)
        assert done == pytest.approx(ledger.progress[0, interval])


def test_after_the_deadline_a_job_gets_all_nodes_that_it_can_use() -> None:
    plan = OnlinePlan(SPOT_POLICIES["max-spot"](), MarketForecaster(LastValue()))
    assert plan.decide(PAPER, market([9] * 12), 0, 10, 70.0, NodeCounts(9, 0)) == NodeCounts(0, 12)
    assert plan.decide(PAPER, market([9] * 12), 0, 11, 80.0, NodeCounts(0, 12)) == NodeCounts()


def test_nodes_lost_within_an_interval_are_replaced_only_without_slack() -> None:
    plan, trace = OnlinePlan(SPOT_POLICIES["max-spot"](), MarketForecaster(LastValue())), market([9] * 12)
    early = plan.must_have(PAPER, trace, 0, 2, 30.0, NodeCounts(0, 0), elapsed=0.5)
    assert early == NodeCounts(0, 0)  # 50 in 7 intervals: on-demand ones can still do it
    late = plan.must_have(PAPER, trace, 0, 5, 30.0, NodeCounts(1, 0), elapsed=0.5)
    assert late == NodeCounts(1, 11)  # 49.5 left for 4 intervals of 12, the first at 0.9
    # The next interval is not known.
    none = market([9] * 6 + [0] * 6)
    lossy = replace(PAPER, preemption_cost=0.5)
    for known in (trace, none):
        assert plan.must_have(lossy, known, 0, 5, 48.5, NodeCounts(2, 0), elapsed=0.5) == NodeCounts(
            2, 0
        )  # 32.5 and two of 6
        assert plan.must_have(lossy, known, 0, 5, 43.0, NodeCounts(2, 0), elapsed=0.5) == NodeCounts(2, 10)
    assert plan.must_have(PAPER, trace, 0, 9, 79.0, NodeCounts(1, 0), elapsed=0.5) == NodeCounts(1, 11)
    assert plan.must_have(PAPER, trace, 0, 5, 80.0, NodeCounts(1, 0), elapsed=0.5) == NodeCounts(1, 0)


def test_nodes_taken_by_other_jobs_are_not_offered() -> None:
    plan = OnlinePlan(SPOT_POLICIES["max-spot"](), MarketForecaster(LastValue()))
    assert plan.decide(PAPER, market([9] * 12), 0, 0, 0.0, NodeCounts(), reserved=6).spot == 3


def test_a_market_of_a_file_is_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("available,price\n4,0.3\n")
    recorded = {"trace": "m.csv", "interval": "20s", "policies": ["chain"], "provision": "sh up --key s3cret"}
    quoted = {"quotes": "./now.sh --key s3cret", "interval": "20s", "minimum_charge": "60s"}
    for market in (recorded, quoted):
        bundle = Bundle.from_dict({**BUNDLE, "market": market}, tmp_path)
        assert "s3cret" not in str(bundle.settings)  # which are journalled
        assert Bundle.from_dict(bundle.to_dict(), tmp_path) == bundle
        assert bundle.supply is not None
        terms = terms_of(bundle.supplied().settings)
        assert terms is not None
        assert terms.quoted is (market is quoted)


def test_a_quoted_market_has_terms_and_no_recording(tmp_path: Path) -> None:
    (tmp_path / "before.csv").write_text("available,price\n" + "3,0.4\n" * 12)
    market = {"quotes": "q", "interval": "20s", "history": "before.csv", "policies": ["max-spot", "ahap"]}
    bundle = Bundle.from_dict({**BUNDLE, "market": market}, tmp_path).supplied()
    assert bundle.settings.controllers["market"]["terms"] == {
        "interval": 20.0, "history": str(tmp_path / "before.csv"), "policies": ["max-spot", "ahap"], "quoted": True,
    }  # fmt: skip
    controller = bundle.settings.controllers["market"]
    assert (controller["policy"], controller["interval"]) == ("", 20.0)
    assert bundle.supply is not None
    cloud = bundle.supply.nodes(bundle.settings, "pool", "cpu", local=True)
    assert isinstance(cloud, RentedNodes)
    assert (cloud.spec.terms, cloud.spec.quotes, cloud.spec.interval) == (None, "q", 20.0)


def test_nodes_given_to_another_job_are_not_preempted() -> None:
    plan, job = (
        OnlinePlan(SPOT_POLICIES["max-spot"](), MarketForecaster(LastValue())),
        SpotJob(40.0, 12, max_nodes=4, preemption_cost=1.0),
    )
    assert plan.decide(job, market([8] * 12), 0, 2, 7.0, NodeCounts(4, 0), reserved=5) == NodeCounts(3, 0)
    assert plan.decide(job, market([3] * 12), 0, 2, 7.0, NodeCounts(4, 0)) == NodeCounts(
        0, 4
    )  # one has, without notice maybe


@pytest.mark.promise("R26")
@given(
    st.sampled_from(sorted(SPOT_POLICIES)), st.lists(st.integers(0, 4), min_size=12, max_size=12), st.floats(0.0, 1.5),
    st.floats(0.3, 1.0), st.integers(1, 46),
    st.lists(st.sampled_from(["stay", "go within", "go at the end", "crash at the end"]), min_size=13, max_size=13),
)  # fmt: skip
@settings(max_examples=examples(75), deadline=None)
@pytest.mark.nightly
def test_on_demand_nodes_meet_the_deadline_after_any_preemptions(
    name: str, counts: list[int], preemption_cost: float, growth_fraction: float, work: int, fates: list[str]
) -> None:
    """Spot nodes may be preempted once an interval: within it, or at the start of the next one, observed or not."""
    trace = market(counts)
    job = SpotJob(
        float(work),
        12,
        max_nodes=4,
        growth_fraction=growth_fraction,
        shrink_fraction=growth_fraction,
        preemption_cost=preemption_cost,
    )
    if not job.feasible:
        return
    plan, held, done, fate = OnlinePlan(SPOT_POLICIES[name](), MarketForecaster(LastValue())), NodeCounts(), 0.0, "stay"
    for interval in range(job.deadline):
        before, gone = held, fate == "crash at the end" and held.spot > 0
        fewer = fate == "go at the end" and before.spot > counts[interval]
        held = plan.decide(job, trace, 0, interval, done, held, preempted=gone)
        if done == job.work:
            break
        fate = fates[interval]
        within = fate == "go within" and held.spot > 0
        part = part_left(job, before, held)
        done = min(
            done + part * job.throughput[held.all] - (gone + fewer + within) * preemption_cost * job.throughput[-1],
            job.work,
        )
    assert done == pytest.approx(job.work)


def test_spot_nodes_are_given_up_without_time_for_a_preemption() -> None:
    plan, trace = OnlinePlan(SPOT_POLICIES["max-spot"](), MarketForecaster(LastValue())), market([4] * 12)
    job = SpotJob(40.0, 12, max_nodes=4, preemption_cost=1.0)  # 47.6 can be done
    assert plan.decide(job, trace, 0, 0, 0.0, NodeCounts()) == NodeCounts(4, 0)
    # Of ten intervals of 4, a loss takes one, and the launch of on-demand nodes 0.4.
    assert plan.decide(job, trace, 0, 2, 4.5, NodeCounts(4, 0)) == NodeCounts(4, 0)
    assert plan.decide(job, trace, 0, 2, 4.3, NodeCounts(4, 0)) == NodeCounts(0, 4)
    assert plan.decide(replace(job, overhead="total"), trace, 0, 2, 4.1, NodeCounts(4, 0)) == NodeCounts(4, 0)
    assert plan.decide(replace(job, preemption_cost=0.0), trace, 0, 2, 3.9, NodeCounts(4, 0)) == NodeCounts(4, 0)
    assert plan.decide(job, trace, 0, 2, -2.0, NodeCounts(4, 0)) == NodeCounts(0, 4)  # late, but not by a whole loss
    assert plan.decide(job, trace, 0, 2, -5.0, NodeCounts(4, 0)) == NodeCounts(4, 0)
    # One node would complete it in this interval, but must not be preempted.
    assert plan.decide(job, trace, 0, 11, 39.0, NodeCounts(4, 0)) == NodeCounts(0, 2)


def test_a_command_gets_each_requested_count(tmp_path: Any) -> None:
    path = tmp_path / "requests"
    script = f"echo $LIGHTNING_CORE_SPOT $LIGHTNING_CORE_ON_DEMAND >> {path}"
    command = CommandProvisioner(["sh", "-c", script])
    for number in (1, 2):  # the same again is told again: nodes may have gone meanwhile
        command.scale_to(NodeCounts(3, 1))
        until(lambda: path.is_file() and path.read_text().split("\n") == ["3 1"] * number + [""])  # noqa: B023
    command.close()
    assert path.read_text().split("\n") == ["3 1", "3 1", "0 0", ""]
    with pytest.raises(ValueError, match="the command must not be empty"):
        CommandProvisioner("")


def test_a_failed_command_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command_provisioner, "RETRY_SECONDS", 0.02)
    path = tmp_path / "requests"
    script = f"test -e {path} || exit 7; echo $LIGHTNING_CORE_SPOT >> {path}"
    command = CommandProvisioner(["sh", "-c", script, "s3cret"])
    command.scale_to(NodeCounts(3, 1))
    until(lambda: "cannot request 3 spot and 1 on-demand nodes: sh: exit code 7" in caplog.text)
    path.touch()
    until(lambda: path.read_text() == "3\n")
    path.unlink()
    command.close()  # the failure is logged
    assert "sh failed to return the nodes" in caplog.text
    assert "s3cret" not in caplog.text


BUNDLE: dict[str, Any] = {
    "jobs": {
        "a": {"model": "tests.tiny.Line", "deadline": "10m", "target": {"batches": 100}, "max_devices": 3},
        "b": {"model": "tests.tiny.Line", "deadline": "10m", "target": {"batches": 100}},
    }
}


def on_market(folder: Path, content: dict[str, Any], **market: Any) -> Bundle:
    """Return a bundle on a market."""
    made: Bundle = Bundle.from_dict({**content, "market": market}, folder).supplied()
    return made


def test_a_bundle_on_a_market_has_twice_the_devices_that_its_jobs_can_use(tmp_path: Path) -> None:
    """New nodes are warm before old ones leave."""
    (tmp_path / "market.csv").write_text("available,price\n4,0.3\n")
    content = {**BUNDLE, "pool": {"devices": 3}}
    assert Bundle.from_dict(content).supplied() == Bundle.from_dict(content)  # it is on none
    placed = on_market(tmp_path, content, trace="market.csv", interval="20s", minimum_charge="60s")
    assert placed.settings.devices == 8
    assert placed.settings.controllers["market"]["minimum_charge"] == 60.0  # longer than an interval
    assert Bundle.from_dict(placed.to_dict(), tmp_path).supplied() == placed


def test_jobs_without_preemption_notices_save_several_times_an_interval(tmp_path: Path) -> None:
    (tmp_path / "market.csv").write_text("available,price\n" + "2,0.5\n" * 50)
    told = {**BUNDLE["jobs"]["b"], "save_every": "5m"}
    content = {"jobs": {**BUNDLE["jobs"], "b": told}, "pool": {"devices": 3}}
    placed = on_market(tmp_path, content, trace="market.csv", interval="20s")
    assert [spec.save_interval for spec in placed.jobs] == [2.0, 300.0]
    long = on_market(tmp_path, content, trace="market.csv", interval="2h")
    assert [spec.save_interval for spec in long.jobs] == [300.0, 300.0]
    # A resumed run has the same figure.
    assert not differences(Bundle.from_dict(placed.to_dict()), placed)


@pytest.mark.parametrize(
    ("market", "pool", "words"),
    [
        ("no.csv", {}, "market: trace .*no.csv: No such file or directory"),
        ({"trace": "m.csv"}, {"kind": "gpu"}, "pool.kind: simulated nodes have no GPUs: name a Ray cluster"),
        ({"quotes": "q", "price": 1}, {}, "market: price is of a recorded market, and quotes names a command"),
        ({"trace": "m.csv", "policies": ["chain:wins=3"]}, {}, "spot policy chain: unknown argument 'wins'"),
        (
            {"quotes": "q", "forecaster": "perfect"},
            {},
            "forecaster must be one of last, .* where the future is not recorded, got 'perfect', which knows it",
        ),
        ({"quotes": "q", "forecaster": "noisy:by=0.5"}, {}, "where the future is not recorded, got 'noisy:by=0.5'"),
        ({"trace": "m.csv", "forecaster": "noisy"}, {}, "forecaster noisy: by must be given"),
        ({"trace": "m.csv", "forecaster": "noisy:by=-1"}, {}, r"by must be 0 to 1e\+09, got -1"),
        (
            {"trace": "m.csv", "forecaster": "noisy:by=1,tails=long"},
            {},
            "forecaster noisy: tails: expected one of uniform, heavy, got .long.",
        ),
        ({"trace": "long.csv", "forecaster": "perfect"}, {}, "the recording, .* at most 20,000, got 20001"),
        ({"trace": "m.csv", "provision": "up"}, {}, "provision brings up nodes of a Ray cluster: it needs --ray"),
    ],
)
def test_unsupported_bundles_on_a_market_are_refused_before_the_start(
    market: Any, pool: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.csv").write_text("available,price\n4,0.3\n")
    (tmp_path / "long.csv").write_text("available,price\n" + "4,0.3\n" * 20_001)
    path = tmp_path / "b.yaml"
    path.write_text(yaml.safe_dump({"jobs": {"a": BUNDLE["jobs"]["b"]}, "pool": pool, "market": market}))
    said = Said(capsys, "run", str(path), "--run-dir", str(tmp_path / "run"))
    assert said.code == 2
    assert re.search(words, said.err)
    assert not (tmp_path / "run").exists()


def test_the_published_step_knows_the_number_of_jobs_of_a_bundle(tmp_path: Path) -> None:
    def jobs(**market: Any) -> int | None:
        terms = terms_of(on_market(tmp_path, BUNDLE, **market).settings)
        assert terms is not None
        return terms.jobs

    assert jobs(step="paper") == 2
    assert jobs(step="paper", jobs=40) == 40
    assert jobs() is None
    with pytest.raises(ValueError, match="needs to know the number of jobs to come: add `jobs: 40`"):
        rented(Settings(), read_market({"step": "paper"}, tmp_path))  # of a pool


def test_a_market_among_the_controllers_of_a_pool_is_refused() -> None:
    """It would choose a spot policy for each job, and nothing would bring a node."""
    content = {**BUNDLE, "pool": {"controllers": {"market": {"terms": {"policies": ["on-demand"]}}}}}
    words = "pool.controllers.market: would decide about nodes that nothing brings: .* a section 'market' beside 'pool'"
    with pytest.raises(BundleError, match=words):
        Bundle.from_dict(content)


def test_a_market_that_nothing_brings_nodes_for_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "check", lambda *_, **__: pytest.fail("it goes on to start"))
    (tmp_path / "market.csv").write_text("available,price\n4,0.3\n")
    bundle: Bundle = Bundle.from_dict({**BUNDLE, "market": "market.csv"}, tmp_path)
    fixed: Any = SimpleNamespace(comes_and_goes=False)  # a cluster of devices that stay
    with pytest.raises(BundleError, match=r"cluster: its devices stay, .*Cluster.of\(bundle.supplied\(\)\)"):
        bundle.run(run_dir=tmp_path / "run", cluster=fixed)
    selector_alone = replace(bundle.supplied(), supply=None)
    for cluster in (None, fixed):
        with pytest.raises(BundleError, match=r"pool.controllers.market: .* give the bundle a supply"):
            selector_alone.run(run_dir=tmp_path / "run", cluster=cluster)
    assert not (tmp_path / "run").exists()
