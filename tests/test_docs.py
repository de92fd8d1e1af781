"""The documentation is true: its links, commands, bundles, code and figures are checked."""

from __future__ import annotations

import argparse
import grp
import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate
from typing import Any

import pytest
import yaml

from benchmarks import labels, results
from lightning_core.bundle.bundle_content import BUNDLE_KEYS, supply_keys
from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.config_section import CONFIG_KEYS
from lightning_core.bundle.job_section import JOB_KEYS
from lightning_core.bundle.pool_section import POOL_KEYS, ExistingPool
from lightning_core.callbacks import CoreCallback
from lightning_core.cli import main
from lightning_core.cli.pool_file import read_pool_file
from lightning_core.core.parts import names_of
from lightning_core.core.targets import BatchTarget, LossTarget, as_target, parse_target, target_keys
from lightning_core.estimators import ESTIMATORS
from lightning_core.parts.market.cloud.skypilot_task import check_task
from lightning_core.parts.market.market_section import MARKET_KEYS
from lightning_core.parts.market.study import read_study
from lightning_core.parts.search.search_file import KEYS as SEARCH_KEYS
from lightning_core.parts.search.search_file import SearchSpec
from lightning_core.policies import POLICIES
from lightning_core.pool import Pool
from lightning_core.scheduler.settings import Settings
from lightning_core.variables import KNOWN, PREFIX
from tests.conftest import ROOT
from tests.test_package import sources

DOCS = ROOT / "docs"
TOP = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = [*TOP, *sorted(DOCS.rglob("*.md"))]
# Pages that are made from the code when the site is built (docs/hooks.py).
GENERATED = {DOCS / "reference" / f"{name}.md" for name in ("cli", "environment", "http-api")}
FENCE = re.compile(r"^```(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(language: str) -> list[tuple[str, str]]:
    """Return every code block of a language, with its page and number."""
    return [
        (f"{name_of(path)}[{number}]", match["text"])
        for path in PAGES
        for number, match in enumerate(FENCE.finditer(path.read_text()))
        if match["language"] == language
    ]


def name_of_block(value: str) -> str:
    return value.partition("\n")[0][:60]


def section(page: str, heading: str) -> str:
    return (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]


def first_column(text: str) -> list[str]:
    """Return the words in backquotes in the first column of a table."""
    return [
        word
        for row in re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE)
        for word in re.findall(r"`([^`]+)`", row)
    ]


# ---------------------------------------------------------------------------------------------------- links


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as MkDocs and GitHub make them."""
    text = FENCE.sub("", path.read_text())
    titles = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    slugs = [re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles]
    return set(slugs)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if there in GENERATED:
            continue
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for path in [*DOCS.rglob("*.md"), *GENERATED]:
        assert f": {path.relative_to(DOCS)}\n" in text + "\n", path


def test_nothing_in_the_site_s_sources_loads_from_another_host() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in text
    for path in (DOCS / "assets").iterdir():
        assert not re.search(r"url\(|@import|src=", path.read_text()), path


# ---------------------------------------------------------------------------------------------------- code


JOINS = re.compile(r"Core\w*Callback\(|track\(|lightning_core\.testing\.")


@pytest.mark.parametrize(("where", "text"), blocks("python"), ids=name_of_block)
def test_python_compiles_and_its_imports_exist(where: str, text: str) -> None:
    compile(text, where, "exec")
    imports = "\n".join(line for line in text.splitlines() if line.startswith(("from ", "import ")))
    exec(compile(imports, where, "exec"), {})


@pytest.mark.parametrize(
    ("where", "text"),
    [
        block
        for block in blocks("python")
        if re.search(r"Core\w*Callback\(|track\(|lightning_core\.testing\.", block[1])
    ],
    ids=name_of_block,
)
def test_python_with_a_callback_or_a_suite_runs(
    where: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(text, where, "exec"), {})


@pytest.mark.parametrize(
    ("page", "says", "never"),
    [
        ("README.md", "Forecasts see losses and learning rates only", "losses only"),
        ("docs/forecasts.md", "a training knows which rates are still to come", "losses only"),
        ("README.md", "The number of a job's devices stays the same", "devices are those of one machine"),
        ("docs/how-to/several-gpus.md", "or on more with", "may be on more than one of them"),
        ("ARCHITECTURE.md", "a pool over HTTP", "no web server"),
        ("CONTRIBUTING.md", "at most fifteen minutes", "twenty minutes"),
        ("Makefile", "below 15 minutes", "20 minutes"),
    ],
)
def test_pages_do_not_contradict_each_other(page: str, says: str, never: str) -> None:
    """Forecasts know learning rates, a job's devices may be on several machines, pages are served: tested elsewhere."""
    text = " ".join((ROOT / page).read_text().split())
    assert says in text
    assert never not in text


@pytest.mark.parametrize(("where", "text"), blocks("yaml"), ids=name_of_block)
def test_yaml_is_a_bundle_that_can_be_read(where: str, text: str, tmp_path: Path) -> None:
    content = yaml.safe_load(text)
    if where.startswith("docs/how-to/kubernetes.md") and "jobs" not in content:
        assert set(content) & {"apiVersion", "env", "rayStartParams"}
        return
    if text.startswith("# node.yaml"):  # of SkyPilot
        check_task(content)
        return
    if "trainer" in content:  # of a LightningCLI
        [callback] = content["trainer"]["callbacks"]
        assert locate(callback["class_path"]) == CoreCallback
        CoreCallback(**callback["init_args"])
        return
    if text.startswith("# study.yaml"):
        (tmp_path / "study.yaml").write_text(text)
        assert read_study(argparse.Namespace(config=tmp_path / "study.yaml", trace=None)).job["work"] in (80, 96)
        return
    if "search" in content:
        (tmp_path / "night.yaml").write_text(text)
        assert SearchSpec.from_file(tmp_path / "night.yaml", ExistingPool(4)).epochs == 30
        return
    (tmp_path / "vit.yaml").write_text("model: {class_path: tests.tiny.Line}")
    (tmp_path / "market.csv").write_text("available,price\n4,0.3\n")
    if text.startswith("# pool.yaml"):
        content = read_as_a_pool(content, tmp_path)
    job = {"config": "vit.yaml", "deadline": "1h", "target": "20 batches"}
    read = BundleSpec.from_dict({"jobs": {"a": job}} | content, tmp_path)
    assert BundleSpec.from_dict(read.to_dict(), tmp_path) == read


def read_as_a_pool(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read the file of a pool, and return what is in a bundle too."""
    group = grp.getgrgid(os.getgid()).gr_name
    if "group" in content:
        content["group"] |= {"name": group, "folder": str(folder / "team")}
    if "secret_file" in content.get("on_verdict", {}):
        (secret := folder / "hook.secret").write_text("s" * 32)
        secret.chmod(0o600)
    (folder / "pool.yaml").write_text(yaml.safe_dump(content))
    read_pool_file(folder / "pool.yaml", None, None)
    return {key: value for key, value in content.items() if key != "group"}


def test_the_readme_s_bundle_is_read_as_intended() -> None:
    [(_, text)] = [block for block in blocks("yaml") if block[0].startswith("README.md")]
    job = yaml.safe_load(text)["jobs"]
    assert [as_target(job[name]["target"]) for name in ("vit", "cnn")] == [LossTarget("loss", 0.35), BatchTarget(2000)]


def test_the_example_s_bundle_is_valid() -> None:
    from lightning_core.cluster.bundle import Bundle

    Bundle.from_file(ROOT / "examples" / "digits" / "bundle.yaml").check()


def test_every_conformance_suite_is_in_the_guide() -> None:
    text = (DOCS / "how-to" / "plug-in.md").read_text()
    # The one of pruners is in the guide of searches.
    suites = [name for name in sources() if name.endswith("_conformance") and "pruner" not in name]
    assert len(suites) == 8
    assert [name for name in suites if f"from {name} import" not in text] == []


# ---------------------------------------------------------------------------------------------------- commands


def commands() -> Iterator[tuple[str, str]]:
    """Return every shell command in the documentation, with its page."""
    for where, text in blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield where, line


LINES = list(commands())


@pytest.mark.parametrize(("where", "line"), [pair for pair in LINES if "lightning-core " in pair[1]])
def test_commands_are_valid(where: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)
    arguments: argparse.Namespace = main.make_parser(with_parts=True).parse_args(
        words[words.index("lightning-core") + 1 :]
    )
    assert callable(arguments.run)


def test_nothing_says_to_install_from_an_index_on_which_the_package_is_not() -> None:
    code = [*(ROOT / "lightning_core").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")]
    for path in {*PAGES, *code} - {ROOT / "CHANGELOG.md"}:
        assert not re.search(r"pip\s+install\s+\S*lightning-core", path.read_text()), path


@pytest.mark.parametrize(("where", "line"), [pair for pair in LINES if re.search(r"\b(make|python) ", pair[1])])
def test_targets_modules_and_files_that_commands_name_are_there(where: str, line: str) -> None:
    for target in re.findall(r"(?:^|\s)make ([a-z-]+)", line):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for module in re.findall(r"python -m ([\w.]+)", line):
        assert importlib.util.find_spec(module) is not None, module
    for file in re.findall(r"\b(examples/[\w/.]+)", line):
        assert (ROOT / file).exists(), file


def test_commands_in_running_text_exist() -> None:
    known = set(main.make_parser(with_parts=True)._subparsers._group_actions[0].choices)  # type: ignore[union-attr,arg-type]
    for path in PAGES:
        for command in re.findall(r"`lightning-core ([a-z]+)", path.read_text()):
            assert command in known, (path, command)


# ---------------------------------------------------------------------------------------------------- printed output


@pytest.mark.nightly
def test_the_simulation_runs_as_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On three seeds the layout, and the results of policies that are the same on every seed, are as printed."""
    text = (DOCS / "policies.md").read_text()
    [(command, printed)] = re.findall(r"```bash\nlightning-core (simulate [^`]*)\n```\n\n```text\n([^`]*)\n```", text)
    monkeypatch.chdir(ROOT)
    words = command.split()
    assert words[-5:] == ["--policy", "fifo,edf,lara,laira,triage", "--seeds", "20", "--shuffle"]
    assert main.main([*words[:-5], "--policy", "fifo,edf,triage", "--seeds", "3", "--shuffle"]) == 3
    head, columns, *rows = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    shown = printed.splitlines()
    assert head == shown[0].replace("20 seeds", "3 seeds")
    assert columns.split() == shown[1].split()
    assert rows[1].split("%")[0].split() == shown[3].split("%")[0].split()  # edf, whatever the order
    assert [row.split()[0] for row in shown[2:]] == ["fifo", "edf", "lara", "laira", "triage"]


@pytest.mark.nightly
def test_the_backtest_is_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [printed] = re.findall(r"```text\n(40 starts[^`]*)\n```", (DOCS / "parts" / "spot.md").read_text())
    assert main.main(["market", "backtest", "--work", "80", "--deadline", "10"]) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said[-len(printed.splitlines()) :] == printed.splitlines()


def test_the_day_is_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [printed] = re.findall(r"```text\n(forecast +served[^`]*)\n```", (DOCS / "parts" / "edge-and-cloud.md").read_text())
    assert main.main(["place", "simulate", str(ROOT / "examples" / "day.yaml")]) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert said[-len(printed.splitlines()) :] == printed.splitlines()


# ---------------------------------------------------------------------------------------------------- tables


def test_every_policy_and_every_estimator_is_named() -> None:
    policies = (DOCS / "policies.md").read_text().split("\n## ")[0]
    assert set(first_column(policies)) == set(POLICIES)
    assert f"`{Settings().policy}` (the default)" in policies
    assert set(first_column(section("forecasts.md", "Estimators"))) == set(ESTIMATORS)


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("The file", (*BUNDLE_KEYS, *supply_keys())),
        ("pool", (*POOL_KEYS, *names_of("dividers"))),
        ("A job", set(JOB_KEYS) - set(CONFIG_KEYS)),
        ("target", target_keys()),
        ("market", MARKET_KEYS),
    ],
)
def test_every_key_of_a_bundle_is_in_the_reference(heading: str, keys: set[str]) -> None:
    assert set(first_column(section("reference/bundle.md", heading))) == set(keys)


def test_every_key_of_a_search_is_on_its_page() -> None:
    assert set(first_column(section("parts/search.md", "The file of a search"))) == set(SEARCH_KEYS)


def test_the_config_s_keys_are_in_the_reference() -> None:
    text = section("reference/bundle.md", "A job")
    assert all(f"`{key}`" in text for key in CONFIG_KEYS)


def test_targets_are_as_the_guide_says() -> None:
    for text in first_column(
        (DOCS / "how-to" / "script.md").read_text().split("**Deadlines**")[0].split("| target |")[1]
    ):
        parse_target(text)


def test_methods_of_a_pool_are_as_the_guide_says() -> None:
    cells = first_column((DOCS / "how-to" / "python.md").read_text())
    methods = [cell.partition("(")[0] for cell in cells if "(" in cell]
    assert len(methods) > 10
    assert all(callable(getattr(Pool, method)) for method in methods)


def test_variables_in_running_text_exist() -> None:
    for path in PAGES:
        for name in re.findall(rf"\b{PREFIX}([A-Z_]+)\b", path.read_text()):
            assert name in KNOWN, (path, name)


def test_the_architecture_names_every_room_and_no_other() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text().split("## Rooms")[1].split("Beside them:")[0]
    named = {name.rstrip("/") for name in first_column(table)}
    rooms = {name.split(".")[1] for name in sources() if name.count(".") > 1}
    assert rooms <= named
    for name in named:
        assert (ROOT / "lightning_core" / name).exists() or (ROOT / name).exists(), name


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= 150


def test_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## Where to add what")[1].split("\n## ")[0]
    for name in re.findall(r"`([\w/]+(?:/|\.\w+))`", text):
        places = (ROOT, ROOT / "lightning_core")
        assert any((place / name).exists() for place in places), name


# ---------------------------------------------------------------------------------------------------- figures


def test_the_results_are_what_the_record_says() -> None:
    runs = results.read()
    assert results.PAGE.read_text() == results.page(runs), "make results"
    assert results.README.read_text() == results.in_readme(results.README.read_text(), runs), "make results"


def test_every_result_names_its_command_size_day_and_machine() -> None:
    for run in results.read():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["day"])
        assert run["size"] in ("quick", "default", "full")
        assert run["cores"] >= 1
        assert {"memory_gib", "command", "figures"} <= run.keys()
        module = run["command"].split()[2] if " -m " in run["command"] else None
        assert module is None or importlib.util.find_spec(module) is not None
        assert (module is None) == run["command"].startswith("python examples/")


def test_a_run_replaces_the_same_figures_of_the_same_command(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.merge("decide", "quick", "a --quick", {"x": 1.23456789, "y": None}, path)
    results.merge("core", "full", "b --full", {"z": 2.0}, path)
    results.merge("decide", "quick", "a --quick", {"x": 2.0}, path)
    runs = results.read(path)
    assert [(run["benchmark"], run["command"], run["figures"]) for run in runs] == [
        ("decide", "a --quick", {"x": 2.0}),
        ("core", "b --full", {"z": 2.0}),
    ]
    assert runs[0]["cores"] >= 1


def test_a_quick_run_keeps_the_figures_of_a_full_run(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.merge("spot", "full", "a --full", {"x": 1.0}, path)
    told = results.merge("spot", "quick", "a --quick", {"x": 2.0}, path)
    assert "kept 1 of `a --full` (full" in told
    assert [(run["size"], run["figures"]) for run in results.read(path)] == [
        ("quick", {"x": 2.0}),
        ("full", {"x": 1.0}),
    ]
    assert "1 of them replaced" in results.merge("spot", "quick", "a --quick", {"x": 3.0}, path)


def test_figures_that_a_rerun_does_not_measure_keep_their_day(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.merge("decor", "default", "a", {"x": 1.0}, path)
    [run] = results.read(path)
    results.write([{**run, "day": "2026-01-02", "figures": {"x": 1.0, "in words": "1 to 2 %"}}], path)
    results.merge("decor", "default", "a", {"x": 2.0, "in words": None}, path)
    old, new = results.read(path)
    assert (old["day"], old["figures"]) == ("2026-01-02", {"in words": "1 to 2 %"})
    assert new["figures"] == {"x": 2.0}


def test_the_readme_prefers_the_larger_run_to_the_newer_one() -> None:
    row = labels.QUOTED[0]
    runs = [
        {
            "benchmark": row.benchmark,
            "size": size,
            "command": size,
            "day": day,
            "figures": dict.fromkeys(row.figures, 1.0),
        }
        for size, day in (("full", "2026-01-01"), ("quick", "2026-02-02"))
    ]
    assert "`full`" in results.five(runs)


def test_the_readme_is_short_and_shows_five_figures() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    table = text.split(results.BEGIN)[1].split(results.END)[0]
    assert len(table.strip().splitlines()) == 2 + 5
    assert len(re.findall(r"^- \*\*", text.split("## Limits")[1].split("\n## ")[0], re.MULTILINE)) == 5
