"""The dashboard and the alert rules that come with the package, and a Prometheus that scrapes a pool."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from prometheus_client import generate_latest

from lightning_core.core.events import Cell, Report
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.owners.tokens import Tokens
from lightning_core.parts.web.metrics import PoolCollector
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.visitors import Visitors
from lightning_core.parts.web.web_app import WebApp
from lightning_core.pool.pool import Pool as PoolClient
from lightning_core.server.access.people import Right
from lightning_core.server.clients.socket_client import SocketClient
from tests.conftest import ROOT, debian
from tests.parts.web.test_metrics import seen, statuses
from tests.socket_servers import socket_pool
from tests.waiting import until

FOLDER = ROOT / "lightning_core" / "parts" / "web" / "monitoring"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = [one for one in json.loads((FOLDER / "dashboard.json").read_text())["panels"] if one["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_dashboard_and_alerts_name_only_metrics_that_exist() -> None:
    owners = {"ann": {"devices": 1, "device_hours": 2.0}}
    shares = [{"owner": "ann", "quota": 1, "device_hours": 0.5, "budget": 2.0}]
    told = seen(statuses(), cloud={"money": 5.0}, owners=owners, shares=shares)
    families = list(PoolCollector(told).collect())
    known = {sample.name for family in families for sample in family.samples} | {family.name for family in families}
    known |= {f"{family.name}_total" for family in families if family.type == "counter"}  # without a sample yet
    asked = [*EXPRESSIONS, *(rule["expr"] for rule in RULES)]
    names = {name for expression in asked for name in re.findall(r"lightning_core_\w+", expression)}
    assert names <= known
    assert len(names) > 25


def test_labels_of_dashboard_and_alerts_exist() -> None:
    text = generate_latest(PoolCollector(seen(statuses()))).decode()
    known = set(re.findall(r'[{,](\w+)="', text)) | {
        "instance",
        "kind",
        "cause",
        "job",
    }  # two of counters without samples
    legends = [target["legendFormat"] for panel in PANELS for target in panel["targets"] if "legendFormat" in target]
    used = {name for legend in legends for name in re.findall(r"{{(\w+)}}", legend)}
    summaries = [rule["annotations"]["summary"] for rule in RULES]
    used |= {name for words in summaries for name in re.findall(r"\$labels\.(\w+)", words)}
    used |= {name for expression in EXPRESSIONS for name in re.findall(r"[{,](\w+)[=!]", expression)}
    assert used <= known


@pytest.mark.debian
def test_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", "rules.yml", cwd=tmp_path)
    assert f"{len(EXPRESSIONS)} rules found" in done


@pytest.mark.debian
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    shutil.copy(ROOT / "tests" / "parts" / "web" / "alerts_test.yml", tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


def test_each_alert_has_a_test_that_it_fires() -> None:
    tested = yaml.safe_load((ROOT / "tests" / "parts" / "web" / "alerts_test.yml").read_text())["tests"]
    fire = {one["alertname"] for test in tested for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fire == {rule["alert"] for rule in RULES}


@pytest.mark.debian
def test_metrics_are_as_prometheus_recommends(tmp_path: Path) -> None:
    text = generate_latest(PoolCollector(seen(statuses(), cloud={"money": 5.0}))).decode()
    promtool("check", "metrics", cwd=tmp_path, given=text)


def promtool(*arguments: str, cwd: Path, given: str = "") -> str:
    """Return what promtool prints; fail if it finds fault."""
    debian("prometheus")  # the package that promtool comes with
    done = subprocess.run(["promtool", *arguments], cwd=cwd, input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[SocketClient, int]]:
    """A pool whose page is served over HTTP, with a token in ``prometheus.token``: a client of it, and the port."""
    with socket_pool(tmp_path / "a pool", {"policy": "triage"}) as pool:
        client, port = SocketClient(pool.path), free_port()
        tokens = Tokens(pool.folder)
        (tmp_path / "prometheus.token").write_text(tokens.make("prometheus", {Right.SEE}))
        watched = PoolClient(client)
        watch = PoolWatch(watched)
        watch.start()
        app = WebApp(watched, watch, Visitors(tokens.person), [f"127.0.0.1:{port}"]).starlette
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        until(lambda: server.started)
        yield client, port
        server.should_exit = True
        thread.join()
        client.close()


@pytest.mark.debian
def test_a_prometheus_scrapes_a_pool(served: tuple[SocketClient, int], tmp_path: Path) -> None:
    client, port = served
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = "1s"
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    client.join(Job("vit", 600.0, BatchTarget(1000), can=frozenset({Capability.TIME_SLICE})), "cpu")
    client.report(Report("vit", 1, 1, 0, 100, 10.0, (Cell(1, 100, 0.5),)))
    own = free_port()
    prometheus = subprocess.Popen(
        [debian("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
         f"--web.listen-address=127.0.0.1:{own}"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        [batches] = until(lambda: ask(own, "lightning_core_job_batches"))
        assert (batches["metric"]["job_name"], batches["metric"]["job"]) == ("vit", "lightning_core")
        assert float(batches["value"][1]) == 100
        [up] = ask(own, "lightning_core_up")
        assert float(up["value"][1]) == 1
        for expression in EXPRESSIONS:  # that of a panel that is not filled yet is empty, and no error
            ask(own, expression.replace("$pool", ".*"))
        assert ask(own, 'lightning_core_device_share_ratio{instance=~".*"}')
    finally:
        prometheus.terminate()
        prometheus.wait(60)


def ask(port: int, expression: str) -> list[Any]:
    """Return what a Prometheus answers to a query; nothing while it is starting."""
    address = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(expression)}"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []
        raise AssertionError(f"{expression}: {error.read().decode()}") from error
    except urllib.error.URLError:
        time.sleep(0.1)
        return []
    found: list[Any] = body["data"]["result"]
    return found
