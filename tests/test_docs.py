"""The README's bundle is read as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lightning_core.cli import main
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.scheduler.settings import Settings
from lightning_core.variables import KNOWN
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_the_readme_s_bundles_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "vit.yaml").write_text("model: {class_path: tests.tiny.Line}")
    texts = re.findall(r"```yaml\n(.*?)```", README, re.S)
    market = next(text for text in texts if text.startswith("market:"))
    texts.remove(market)
    mixed, resized, placed = (Bundle.from_dict(yaml.safe_load(text), tmp_path) for text in texts)
    assert [spec.job.target for spec in mixed.jobs] == [LossTarget("loss", 0.35), BatchTarget(2000)]
    assert [spec.job.sizes for spec in resized.jobs] == [(1, 2, 4)]
    assert [(spec.job.location, spec.job.sizes) for spec in placed.jobs] == [("harbour", (1, 2))]
    assert placed.settings.locations == ("harbour", "harbour", "station", *["cloud"] * 4)
    assert Bundle.from_dict(placed.to_dict(), tmp_path) == placed
    (tmp_path / "market.csv").write_text("available,price\n4,0.3\n")
    terms = Bundle.from_dict(yaml.safe_load(texts[0] + market), tmp_path).settings.market_terms()
    assert terms is not None
    assert (terms.interval, terms.policies[0]) == (1800.0, "chain")


def test_the_example_s_bundle_is_sound() -> None:
    Bundle.from_file(ROOT / "examples" / "digits" / "bundle.yaml").check()


def test_the_readme_s_simulation_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On three seeds: the form, and those who meet the same on every seed, are as printed."""
    [(command, printed)] = re.findall(r"```bash\nlightning-core (simulate [^`]*)\n```\n\n```\n([^`]*)\n```", README)
    monkeypatch.chdir(ROOT)
    words = command.split()
    assert words[-4:] == ["--policy", "fifo,edf,lara,laira,triage", "--seeds", "20"]
    assert main.main([*words[:-4], "--policy", "fifo,edf,triage", "--seeds", "3"]) == 3
    head, columns, *rows = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    shown = printed.splitlines()
    assert head == shown[0].replace("20 seeds", "3 seeds")
    assert columns.split() == shown[1].split()
    assert [row.split("%")[0].split() for row in rows[:2]] == [row.split("%")[0].split() for row in shown[2:4]]
    assert [row.split()[0] for row in shown[2:]] == ["fifo", "edf", "lara", "laira", "triage"]


def test_the_readme_s_backtest_is_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [printed] = re.findall(r"```\n(100 starts[^`]*)\n```", README)
    assert main.main(["market", "backtest", "--work", "80", "--deadline", "10"]) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said[-len(printed.splitlines()) :] == printed.splitlines()


def test_the_readme_s_day_is_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [printed] = re.findall(r"```\n(foreseen by[^`]*)\n```", README)
    assert main.main(["place", "simulate", str(ROOT / "examples" / "day.yaml")]) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said[-len(printed.splitlines()) :] == printed.splitlines()


def test_the_readme_names_every_policy_and_every_estimator() -> None:
    section = README.partition("## Policies and estimators")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)`", section))
    assert set(POLICIES) | set(ESTIMATORS) <= named
    assert f"`{Settings().policy}` (the default)" in section


def test_the_environment_variables_that_people_set_are_in_the_readme() -> None:
    section = README.split("| variable | what it says |")[1].split("\n## ")[0]
    told = {name.removeprefix("LIGHTNING_CORE") for name in re.findall(r"`((?:LIGHTNING_CORE)?_[A-Z_]+)`", section)}
    set_for_processes = {"EVENT", "VERDICT", "REASON", "SLOTS", "SPOT", "ON_DEMAND"}
    assert {name.removeprefix("_") for name in told} == KNOWN.keys() - set_for_processes
