"""What stands around the package: workflows, citation, and the versions that they name."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return found


def allowed(package: str) -> SpecifierSet:
    extras = [Requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines]
    return next(one.specifier for one in extras if one.name == package and one.specifier)


def test_the_matrix_names_both_ends_of_what_is_allowed_and_nothing_else() -> None:
    rows = workflow("ci.yml")["jobs"]["versions"]["strategy"]["matrix"]["include"]
    named = {row["python"] for row in rows}
    python = "Programming Language :: Python :: "
    assert {f"{python}{version}" for version in named | {"3", "3 :: Only"}} == {
        line for line in PROJECT["classifiers"] if line.startswith(python)
    }
    lowest = min(named, key=Version)
    assert all(version in SpecifierSet(PROJECT["requires-python"]) for version in named)
    assert f"3.{Version(lowest).minor - 1}" not in SpecifierSet(PROJECT["requires-python"])
    for package, ends in (("lightning", {"2.5.*", "2.6.*"}), ("ray", {"2.54.*", "2.60.*"})):
        assert {row[package] for row in rows} == ends
        # An end is allowed, and what lies beyond it is not.
        for end in ends:
            assert end.replace("*", "99") in allowed(package)
        low, high = sorted(Version(end.replace("*", "0")) for end in ends)
        assert f"{low.major}.{low.minor - 1}.99" not in allowed(package)
        assert f"{high.major}.{high.minor + 1}.0" not in allowed(package)
    assert "2.6.2" not in allowed("lightning")
    assert "2.6.3" not in allowed("lightning")


def test_the_readme_names_what_the_core_and_a_pool_depend_on() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    section = text.split("## Installation")[1].split("\n## ")[0].lower()
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *extras["lightning"], *extras["ray"], *extras["kalman"]]
    assert [name for line in needed if (name := Requirement(line).name) not in section] == []


@pytest.mark.parametrize("name", [path.name for path in WORKFLOWS])
def test_workflows_have_the_least_rights_and_names_come_by_the_environment(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert job.get("permissions", {}) in ({}, {"id-token": "write"})
        assert job["timeout-minutes"] > 0
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_what_contributors_read_names_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z%.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / ".github" / "pull_request_template.md").read_text()
    named = set(re.findall(r"make ([a-z-]+)", text))
    assert {name for name in named if not name.startswith("bench-")} <= targets
    assert "bench-%" in targets
