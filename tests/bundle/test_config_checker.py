"""The pool's config checker: it agrees with a check in the same process, and requests do not affect each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.config_check import ConfigProblem, ConfigsToCheck, check_configs
from lightning_core.bundle.problems import BundleError
from lightning_core.cluster import config_checker
from lightning_core.cluster.bundle import Bundle
from tests.conftest import ROOT
from tests.waiting import until


@pytest.fixture(scope="module")
def checker() -> Iterator[Path]:
    """The socket of a checker."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        path = Path(folder) / config_checker.SOCKET_NAME
        process = config_checker.start(path)
        until(path.exists)
        yield path
        process.kill()
        process.wait()


def config(model: str, **arguments: Any) -> dict[str, Any]:
    return {"model": {"class_path": model, "init_args": arguments}, "data": {"class_path": "tests.tiny.Points"}}


WRONG = ConfigsToCheck(
    [
        config("tests.tiny.Line"),
        config("tests.tiny.Lnie"),
        config("tests.tiny.Line", puase=1),
        {**config("tests.tiny.Line"), "trainer": {"max_epochs": "many"}},
        config("subprocess.Popen"),
    ],
    [str(ROOT)],
)


@pytest.mark.nightly
def test_the_checker_agrees_with_a_check_in_process(checker: Path) -> None:
    found = config_checker.ask(checker, WRONG)
    assert found == check_configs(WRONG)
    assert {problem.job for problem in found} == {1, 2, 3, 4}
    assert found[0] == ConfigProblem(1, ("model", "class_path"), found[0].message)
    assert "did you mean 'Line'" in found[0].message


def test_a_bundle_s_problems_keep_their_lines(checker: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    job = "{model: {class_path: tests.tiny.Line, init_args: {puase: 1}}, deadline: 9s, target: {batches: 1}}"
    path.write_text(f"jobs:\n  a: {job}\n")
    with pytest.raises(BundleError, match=r"b\.yaml:2:56: jobs\.a\.model\.init_args\.puase: unknown argument 'puase'"):
        Bundle.from_file(path).check(local=False, check=partial(config_checker.ask, checker))


def test_each_request_imports_the_modules_anew(checker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "mine_checked.py"
    asked = ConfigsToCheck([config("mine_checked.Model")], [str(tmp_path)])
    for base, problems in (("Line", 0), ("Points", 1), ("Line", 0)):
        module.write_text(f"import tests.tiny\nclass Model(tests.tiny.{base}):\n    '''Of {base}.'''\n")
        found = config_checker.ask(checker, asked)
        assert len(found) == problems, found
    assert "mine_checked" not in sys.modules


def test_a_module_that_exits_on_import_does_not_end_the_checker(checker: Path, tmp_path: Path) -> None:
    (tmp_path / "hostile_checked.py").write_text("import os\nif os.environ.get('SPARE') is None: os._exit(7)\n")
    os.environ["SPARE"] = "me"  # the check falls back to this process, which is to live
    try:
        found = config_checker.ask(checker, ConfigsToCheck([config("hostile_checked.Model")], [str(tmp_path)]))
    finally:
        del os.environ["SPARE"]
    assert "has no 'Model'" in found[0].message
    assert config_checker.ask(checker, ConfigsToCheck([config("tests.tiny.Line")], [str(ROOT)])) == []


def test_without_a_checker_the_check_is_done_in_process(tmp_path: Path) -> None:
    assert config_checker.ask(tmp_path / "nothing", WRONG) == check_configs(WRONG)


@pytest.mark.nightly
def test_the_checker_ends_with_the_process_that_started_it() -> None:
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        path = Path(folder) / "checker"
        code = (
            "import sys; from pathlib import Path; from lightning_core.cluster.config_checker import start;"
            "print(start(Path(sys.argv[1])).pid)"
        )
        note = Path(folder) / "pid"  # a pipe would be held open by the checker
        with note.open("w") as file:
            subprocess.run([sys.executable, "-c", code, str(path)], stdout=file, timeout=300, check=True)
        checker = Path(f"/proc/{note.read_text().strip()}/cmdline")
        until(lambda: not checker.exists())
