"""``lightning-core place apply``, ``demand`` and ``end``: a pool takes a plan, and says what moves and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.core.codec import encode_event
from lightning_core.core.control import Ask, WallClock
from lightning_core.core.events import PartEvent
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.edge_cloud import plan_commands
from lightning_core.parts.edge_cloud.day_plan import PlanGiven
from lightning_core.parts.edge_cloud.placement_controller import PLAN
from lightning_core.parts.edge_cloud.plan_commands import read_begin, read_rates
from lightning_core.server.clients.socket_client import SocketClient
from tests.cli.test_cli import Said, note
from tests.parts.edge_cloud.test_placement_controller import CAN, NAMES, SETTINGS, given
from tests.socket_servers import Pool, socket_pool

DEMANDS: dict[str, Any] = {
    "periods": ["night", "day"],
    "gpus": {"device": 4.0},
    "levels": {"fp32": {"accuracy": 0.9, "throughput": {"device": 1600}}},
    "nodes": {name: {"gpus": {"device": 1}} for name in ("a", "b", "c")},
    "jobs": {
        "cars": {"tasks": [1, 2], "rate": 15, "sample": 0.4},
        "bus": {"tasks": [1, 1], "rate": 15, "sample": 0.4, "moves": False},
    },
    "cloud": {"delay": 40},
    "edge": {"gpu": 0.8},
}
CHEAP = ("--cost", "0.9", "--accuracy", "0.1")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LIGHTNING_CORE_POOL", raising=False)
    monkeypatch.chdir(tmp_path)


def up(tmp_path: Path, **settings: Any) -> Iterator[Pool]:
    """Bring up a pool that the command line finds, without Ray."""
    with socket_pool(tmp_path / "home" / "pool", settings) as made:
        note(made.folder, socket=str(made.path))
        yield made


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    yield from up(tmp_path, **SETTINGS.to_dict())


@pytest.fixture
def day(tmp_path: Path) -> str:
    """The path of a file of demands."""
    path = tmp_path / "day.yaml"
    path.write_text(yaml.safe_dump(DEMANDS))
    return str(path)


def submit(pool: Pool, *names: str) -> None:
    jobs = [Job(name, 1e6, BatchTarget(1000), can=CAN, max_devices=2, sizes=(1, 2)) for name in names]
    pool.do(pool.actor.submit(tuple(jobs)))


def rows(out: str) -> dict[str, list[str]]:
    """The cells of a table by the first one of each row."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return {name: more for name, *more in cells if more}


def test_a_plan_is_applied_and_demand_moves_a_job_and_the_end_lets_go_of_them(
    pool: Pool, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(pool, *NAMES[1:])
    said = Said(capsys, "place", "apply", day, "--period", "8h", *CHEAP, "--max-extra-cost", "5")
    assert (said.code, said.err) == (0, "")
    assert "the plan stands: night, for another 8h" in said.out or "for another 7h59m" in said.out
    told = rows(said.out)
    assert told["cars-0"][0] == "not submitted"
    assert told["cars-1"][1:] == ["held", "not planned for night"]
    assert re.fullmatch("[abc], 1", told["bus"][1])
    assert told["bus"][2] == "planned for night"
    submit(pool, "cars-0")
    said = Said(capsys, "place", "demand", "cars=18")
    assert (said.code, said.err) == (0, "")
    assert rows(said.out)["cars-0"][1:] == ["cloud, 2", f"{told['cars-0'][1][0]} has 1 device and would need 2; "
                                            "cloud has room"]  # fmt: skip
    said = Said(capsys, "place", "demand", "cars=18")
    assert "nothing moves" in said.out
    said = Said(capsys, "place", "end")
    assert said.out == "the plan has ended: 3 jobs are left to the policy, 1 of them were held\n"
    assert Said(capsys, "place", "end").out == "no plan stood\n"
    _, jobs = pool.do(pool.actor.status())
    assert [job.paused for job in jobs] == [False] * 3


def test_a_job_that_lacks_devices_is_shown_with_the_reason(
    pool: Pool, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(pool, *NAMES)
    Said(capsys, "place", "apply", day, "--period", "8h", *CHEAP, "--max-moves", "0")
    said = Said(capsys, "place", "demand", "cars=18")
    assert rows(said.out)["cars-0"][1] == "no more"
    assert "0 tasks have moved already, the limit" in said.out


def test_a_plan_says_how_it_is_changed_and_forecast(
    pool: Pool, day: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    how: list[tuple[str, str, float]] = []

    def given(plan: Any) -> Any:
        how.append((plan.terms.reconfigure, plan.terms.forecast, plan.terms.step))
        return PlanGiven(plan)

    monkeypatch.setattr(plan_commands, "PlanGiven", given)
    for words in ((), ("--reconfigure", "heuristic"), ("--forecast", "trend", "--step", "5m")):
        said = Said(capsys, "place", "apply", day, "--period", "8h", *CHEAP, *words)
        assert (said.code, said.err) == (0, "")
    assert how == [("replan", "", 900.0), ("heuristic", "", 900.0), ("replan", "trend", 300.0)]


def test_a_plan_for_a_pool_is_made_at_the_precision_at_which_its_jobs_train(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fast level would plan fewer devices than a job needs that trains at the precise one."""
    path = tmp_path / "several.yaml"
    fast = {"accuracy": 0.7, "throughput": {"device": 16000}}
    precise = {"accuracy": 0.9, "throughput": {"device": 800}}
    path.write_text(yaml.safe_dump(DEMANDS | {"levels": {"fp32": precise, "mixed": fast}, "nodes": {}}))
    submit(pool, "bus")
    said = Said(capsys, "place", "apply", str(path), "--period", "8h", *CHEAP)
    assert said.code == 2
    assert "--level must be the level at which the jobs train, one of fp32, mixed: a plan does not set it" in said.err
    said = Said(capsys, "place", "apply", str(path), "--period", "8h", "--level", "int4", *CHEAP)
    assert "--level must be one of fp32, mixed, got 'int4'" in said.err
    assert pool.do(pool.actor.about())["controllers"]["plan"] is None
    for level, devices in (("mixed", 1), ("fp32", 2)):
        said = Said(capsys, "place", "apply", str(path), "--period", "8h", "--level", level, *CHEAP)
        assert (said.code, said.err) == (0, "")
        assert f"note: planned at {level}, at which the configs of all jobs must train" in said.out
        assert rows(said.out)["bus"][1] == f"cloud, {devices}"


def test_a_plan_that_begins_later_says_when(pool: Pool, day: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "place", "apply", day, "--period", "8h", "--begins", "2h", *CHEAP)
    assert "the plan begins in 2h" in said.out or "the plan begins in 1h59m" in said.out
    assert "nothing moves" in said.out
    said = Said(capsys, "place", "apply", day, "--period", "1h", "--begins", "2020-01-01T00:00", *CHEAP)
    assert "the plan is over" in said.out


def test_what_a_plan_counts_on_and_the_pool_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = SETTINGS.to_dict() | {"devices": 4, "locations": ("a", "b", "c", "cloud")}
    path = tmp_path / "day.yaml"
    path.write_text(yaml.safe_dump(DEMANDS | {"nodes": {"a": {"gpus": {"device": 3}}, "b": {"gpus": {}}}}))
    for _ in up(tmp_path, **few):
        said = Said(capsys, "place", "apply", str(path), "--period", "8h", *CHEAP)
        assert "note: the plan counts on 3 devices at a, the pool has 1" in said.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["apply", "DAY"], "the following arguments are required: --period"),
        (["apply", "DAY", "--period", "soon"], "--period: duration must be such as"),
        (["apply", "DAY", "--period", "0.2s"], "length must be 1 to 3155760000 seconds, got 0.2"),
        (["apply", "DAY", "--period", "8h", "--step", "soon"], "--step: duration must be such as"),
        (["apply", "DAY", "--period", "8h", "--step", "0.5s"], "step must be 1 to 3155760000 seconds, got 0.5"),
        (["apply", "DAY", "--period", "8h", "--begins", "soon"], "--begins: must be a duration"),
        (["apply", "DAY", "--period", "8h", "--max-extra-cost", "-1"], "cost must be at least 0, got -1.0"),
        (["apply", "nowhere.yaml", "--period", "8h"], "nowhere.yaml"),
        (["demand", "cars"], "expected JOB=RATE, with the rate in samples a second, got 'cars'"),
        (["demand", "cars=much"], "got 'cars=much'"),
        (["demand", "cars=-1"], "job 'cars': rate must be 1e-09 to 1e+09, got -1.0"),
        (["demand", "cars=nan"], "job 'cars': rate must be 1e-09 to 1e+09, got nan"),
        (["demand", "cars=1", "cars=2"], "'cars' must have one rate, got two"),
        (["demand", "cars=1"], "there is no plan in which 'cars' could be"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(
    words: list[str], told: str, pool: Pool, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(pool, *NAMES)
    said = Said(capsys, "place", *(day if word == "DAY" else word for word in words))
    assert said.code == 2
    assert told in said.err
    assert pool.do(pool.actor.about())["controllers"]["plan"] is None


def test_a_plan_for_other_locations_or_a_pool_without_any_is_refused(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "day.yaml"
    path.write_text(yaml.safe_dump(DEMANDS | {"nodes": {"d": {"gpus": {"device": 3}}}}))
    said = Said(capsys, "place", "apply", str(path), "--period", "8h", *CHEAP)
    assert said.code == 2
    assert "nodes of a plan must be locations of the pool, a, b, c, cloud, got 'd'" in said.err


def test_a_pool_without_locations_refuses_a_plan(
    tmp_path: Path, day: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_core.pool.pool.RESTART_SECONDS", 0.5)  # what a pool that is gone has to come back
    for _ in up(tmp_path, policy="fifo"):
        said = Said(capsys, "place", "apply", day, "--period", "8h", *CHEAP)
        assert "the pool takes no plan: its section must have controllers: {plan: {}}" in said.err
        assert said.code == 2
    assert Said(capsys, "place", "demand", "cars=18").code == 2


def test_a_plan_outlives_a_scheduler_that_is_restarted(
    pool: Pool, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(pool, *NAMES)
    Said(capsys, "place", "apply", day, "--period", "8h", *CHEAP)
    before = pool.do(pool.actor.about())["controllers"]["plan"]["asked"]
    pool.restart()
    assert pool.do(pool.actor.about())["controllers"]["plan"]["asked"] == before


def test_clients_may_give_plans_and_not_what_controllers_ask(pool: Pool) -> None:
    client = SocketClient(pool.path)
    assert client.event(PartEvent.of(PlanGiven(given()))) is None
    with pytest.raises(JoinRefusedError, match="Ask is not for clients to send"):
        client._ask("event", event=encode_event(Ask("bus", PLAN, hold=True)))
    client.close()


def test_the_beginning_is_read_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 11, 23, 12, 0, tzinfo=UTC).timestamp()
    monkeypatch.setattr(plan_commands, "wall_clock", lambda: WallClock(now, 3600.0))
    assert read_begin(None) == now + 3600.0
    assert read_begin("2h") == now + 3600.0 + 7200.0
    assert read_begin("2026-11-01T06:30") == datetime(2026, 11, 1, 6, 30, tzinfo=UTC).timestamp()
    assert read_rates(["a=b=2"]) == {"a=b": 2.0}
