"""What a pool says to Prometheus: names, labels, and how much of it there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.web.metrics import MAX_JOBS, MAX_OWNERS, PoolCollector, Seen, metrics
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.counters import Counters
from tests.socket_servers import Pool, socket_pool
from tests.waiting import until

CAN = frozenset({Capability.TIME_SLICE, Capability.HOLD})
CLOUD = MarketController(policy="max-spot").describe()


def seen(
    jobs: list[JobStatus],
    now: float = 10.0,
    cloud: dict[str, Any] | None = None,
    owners: dict[str, Any] | None = None,
    shares: Sequence[Any] = (),
) -> Seen:
    """What a pool of two devices says that has these jobs."""
    settings = Settings(devices=2, divider={} if owners is None else {"owners": owners})
    about = {"devices": ["cpu0", "cpu1"], "settings": settings.to_dict(),
             "controllers": {} if cloud is None else {"market": CLOUD | cloud}, "shares": shares}  # fmt: skip
    counters = Counters().to_dict() | {"journal_bytes": 4096, "connections": 3, "refused": 1}
    return Seen(now, jobs, about, counters)


def statuses(count: int = 1) -> list[JobStatus]:
    scheduler = Scheduler(Settings(devices=2))
    scheduler.handle(Submit(tuple(Job(f"job-{k}", 600.0, BatchTarget(100), can=CAN) for k in range(count))), 0.0)
    return scheduler.status()


def samples(collector: PoolCollector) -> dict[tuple[str, ...], float]:
    return read(generate_latest(collector).decode())


def read(text: str) -> dict[tuple[str, ...], float]:
    """Each sample of what Prometheus reads: name and values of labels, and the value."""
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with socket_pool(tmp_path / "a pool", {"policy": "triage"}) as made:
        yield made


@pytest.fixture
def web(pool: Pool) -> Iterator[TestClient]:
    app = Starlette(routes=[Route("/metrics", metrics)])
    app.state.client = SocketClient(pool.path)
    with TestClient(app) as client:
        yield client
    app.state.client.close()


def test_a_pool_is_scraped(pool: Pool, web: TestClient) -> None:
    script = SocketClient(pool.path)
    script.join(Job("vit", 600.0, BatchTarget(1000), can=CAN), "cpu")
    script.report(Report("vit", 1, 1, 0, 100, 10.0, (Cell(1, 100, 0.5),)))
    until(lambda: "lightning_core_job_spare_seconds{" in web.get("/metrics").text)  # a round has planned it
    answer = web.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = read(answer.text)
    assert found["lightning_core_up",] == 1
    assert found["lightning_core_job_batches", "vit"] == 100
    assert found["lightning_core_job_throughput_batches_per_second", "vit"] == 10.0
    assert 500 < found["lightning_core_job_spare_seconds", "vit"] < 510
    assert 595 < found["lightning_core_job_deadline_seconds", "vit"] < 600
    assert found["lightning_core_job_verdict", "vit"] == Verdict.FEASIBLE.number
    assert found["lightning_core_device_share_ratio", "cpu0"] == 1.0
    assert found["lightning_core_job_alert", "vit"] == 0
    assert found["lightning_core_jobs", "running"] == 1
    assert found["lightning_core_jobs_judged", "feasible"] == 1
    assert found["lightning_core_events_total", "report"] == 1
    assert found["lightning_core_decision_seconds_count",] >= 2
    assert found["lightning_core_journal_bytes",] > 0
    assert not any(name == "lightning_core_budget" for name, *_ in found)
    script.close()


def test_openmetrics_is_spoken_to_who_asks_for_it(web: TestClient) -> None:
    answer = web.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = list(parse_openmetrics(answer.text))  # type: ignore[no-untyped-call]
    assert {family.name for family in families} >= {"lightning_core_up", "lightning_core_decision_seconds"}


def test_a_pool_that_does_not_answer_is_down(pool: Pool, web: TestClient) -> None:
    pool.do(pool.actor.close())
    answer = web.get("/metrics")
    assert answer.status_code == 200
    assert [line for line in answer.text.splitlines() if line[0] != "#"] == ["lightning_core_up 0.0"]
    pool.actor = pool._make_actor()


def collected(given: Seen) -> list[Metric]:
    return list(PoolCollector(given).collect())


def test_names_follow_the_conventions() -> None:
    """As `promtool check metrics` demands them, and base units."""
    families = collected(seen(statuses(), cloud={"money": 5.0}))
    assert len({family.name for family in families}) == len(families) > 30
    for family in families:
        assert re.fullmatch(r"lightning_core_[a-z_]+", family.name)
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"(_total|_count|_sum|_ms|_milliseconds|_minutes|_percent|_mb)$", family.name), family.name
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        for sample in family.samples:
            assert set(sample.labels) <= {"job_name", "owner", "device", "state", "verdict", "target", "kind", "cause",
                                          "le", "policy", "estimator"}  # fmt: skip


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "new\nline", 'x"} 1\nlightning_core_up 7', "\u2028 é {}", ""])
def test_whatever_a_name_is_made_of_stays_a_label(name: str) -> None:
    """Names are checked where jobs are submitted; what is told does not rest on that."""
    [job] = statuses()
    found = samples(PoolCollector(seen([replace(job, name=name)])))
    assert found["lightning_core_job_share_ratio", name] == job.share
    assert found["lightning_core_up",] == 1


def test_series_are_bounded_and_jobs_in_trouble_come_first() -> None:
    jobs = statuses(300)
    jobs[250] = replace(jobs[250], verdict=Verdict.INFEASIBLE)
    jobs[260] = replace(jobs[260], alert=Reason("stalled", (60.0,)))
    jobs[270] = replace(jobs[270], state=State.RECOVERING)
    jobs[280] = replace(jobs[280], verdict=Verdict.AT_RISK)
    jobs[0] = replace(jobs[0], state=State.ENDED, verdict=Verdict.MET, finished_at=9.0)
    found = samples(PoolCollector(seen(jobs)))
    told = {labels[0] for name, *labels in found if name == "lightning_core_job_batches"}
    assert len(told) == MAX_JOBS
    assert {f"job-{k}" for k in (250, 260, 270, 280)} <= told
    assert "job-0" not in told
    assert found["lightning_core_jobs_left_out",] == 299 - MAX_JOBS
    assert (found["lightning_core_jobs", "ended"], found["lightning_core_jobs_judged", "met"]) == (1, 1)
    few = samples(PoolCollector(seen(jobs), max_jobs=3))
    assert {labels[0] for name, *labels in few if name == "lightning_core_job_batches"} == {
        "job-250", "job-260", "job-270"
    }  # fmt: skip
    most = {name: sum(1 for other, *_ in found if other == name) for name, *_ in found}
    assert max(most.values()) == MAX_JOBS


def test_what_is_not_known_has_no_sample() -> None:
    [job] = statuses()
    found = samples(PoolCollector(seen([replace(job, deadline=float("inf"), loss=None, finish=None)])))
    names = {name for name, *_ in found}
    assert not names & {"lightning_core_job_spare_seconds", "lightning_core_job_deadline_seconds",
                        "lightning_core_job_loss", "lightning_core_job_verdict"}  # fmt: skip
    assert found["lightning_core_jobs_judged", "too early"] == 1


def test_a_trial_of_a_search_has_no_verdict_that_would_raise_an_alarm() -> None:
    trial = replace(
        statuses()[0],
        parts={"search": {"trial_of": "night"}},
        verdict=Verdict.INFEASIBLE,
        alert=Reason("stalled", (60.0, 1.0)),
    )
    found = samples(PoolCollector(seen([trial])))
    names = {name for name, *labels in found if trial.name in labels}
    assert "lightning_core_job_batches" in names
    assert not {"lightning_core_job_verdict", "lightning_core_job_alert"} & names
    others = samples(PoolCollector(seen([replace(trial, parts={})])))
    assert {"lightning_core_job_verdict", "lightning_core_job_alert"} <= {name for name, *_ in others}


def test_the_money_of_a_market() -> None:
    cloud = {"spent": 12.5, "money": 7.5, "spot": 2, "wanted_spot": 3, "trouble": {"nodes": "none came"}}
    found = samples(PoolCollector(seen([], cloud=cloud)))
    assert found["lightning_core_spent_total",] == 12.5
    assert found["lightning_core_budget",] == 20.0
    assert found["lightning_core_nodes", "spot"] == 2
    assert found["lightning_core_nodes_wanted", "spot"] == 3
    assert found["lightning_core_cloud_trouble",] == 1


def test_shares_on_a_device_add_up() -> None:
    first, second = statuses(2)
    jobs = [replace(first, share=0.25, devices=(0, 1)), replace(second, share=0.5, devices=(1,))]
    found = samples(PoolCollector(seen(jobs)))
    assert found["lightning_core_device_share_ratio", "cpu0"] == 0.25
    assert found["lightning_core_device_share_ratio", "cpu1"] == 0.75


def test_a_device_on_which_two_train_at_once_is_used_once() -> None:
    first, second = statuses(2)
    one = replace(first, share=1.0, held_share=0.6, beside=("job-1",), pace=0.9, devices=(0,), owner="ann")
    other = replace(second, share=0.0, held_share=0.4, beside=("job-0",), pace=0.6, devices=(0,), owner="bob")
    found = samples(PoolCollector(seen([one, other])))
    assert found["lightning_core_device_share_ratio", "cpu0"] == 1.0
    assert [found["lightning_core_owner_devices", owner] for owner in ("ann", "bob")] == [0.6, 0.4]
    assert [found["lightning_core_job_pace_ratio", name] for name in ("job-0", "job-1")] == [0.9, 0.6]


def test_owners_have_their_jobs_and_devices_and_are_bounded() -> None:
    jobs = [
        replace(job, owner=f"person-{k % 60}", held_share=0.5, devices=(0, 1)) for k, job in enumerate(statuses(70))
    ]
    jobs[0] = replace(jobs[0], state=State.ENDED, verdict=Verdict.MET)
    found = samples(PoolCollector(seen(jobs)))
    assert len([1 for name, *_ in found if name == "lightning_core_owner_jobs"]) == MAX_OWNERS
    assert found["lightning_core_owners_left_out",] == 60 - MAX_OWNERS
    assert (found["lightning_core_owner_jobs", "person-1"], found["lightning_core_owner_devices", "person-1"]) == (2, 2)


def test_quotas_and_budgets_of_owners() -> None:
    """As a scheduler that tells owners apart describes them."""
    owners = {"ann": {"devices": 1, "device_hours": 2.0}, "bob": {"weight": 2.0}}
    scheduler = Scheduler(Settings(devices=2, divider={"owners": owners}))
    scheduler.handle(Submit((Job("vit", 600.0, BatchTarget(100), can=CAN, owner="ann"),)), 0.0)
    scheduler.handle(Tick(), 1800.0)
    found = samples(PoolCollector(seen(scheduler.status(), owners=owners, shares=scheduler.shares())))
    assert found["lightning_core_owner_quota_devices", "ann"] == 1
    assert found["lightning_core_owner_budget_device_seconds", "ann"] == 7200.0
    assert found["lightning_core_owner_used_device_seconds", "ann"] == pytest.approx(1800.0)
    assert ("lightning_core_owner_budget_device_seconds", "bob") not in found
