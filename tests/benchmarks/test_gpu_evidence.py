"""The figures of a GPU are collected part by part, whatever becomes of a part. The parts here are none of a GPU."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil
import pytest
import torch

from benchmarks import results
from benchmarks.common import Figures
from benchmarks.gpu import gpu_evidence, gpu_parts, suspended
from benchmarks.gpu.gpu_evidence import NO_GPU, PARTS, SECONDS, Part, collect
from benchmarks.gpu.gpu_parts import Outcomes
from benchmarks.gpu.suspended import GIB
from benchmarks.gpu.turns import Turns
from benchmarks.labels import HEADINGS, LABELS
from benchmarks.live import hooks
from benchmarks.live.workloads import Noise, Regression
from lightning_core.core.answers import End, Grant
from lightning_core.core.events import Report
from lightning_core.node import cuda_driver
from tests.conftest import ROOT
from tests.tiny import QUIET

# What each fake part does; FILE is where its outcome goes.
CODE = {
    "fine": "write(figures={'share_error': 0.5, 'peak_in_torch': None}, why='')",
    "also": "write(figures={'resize_s': 2.0}, why='')",
    "skips": "write(figures={}, why='skipped: needs two GPUs, found 1')",
    "lacks": "import a_package_that_is_missing",
    "wrong": "print('a test says why'); write(figures={'checks_failed': 1}, why='failed: test_this')",
    "slow": "write(figures={'checks_passed': 3}, why='4 of 7 tests not run'); import time; time.sleep(600)",
    "crashes": "write(figures={'checks_passed': 3}, why='4 of 7 tests not run'); import os; os.abort()",
    "path": "import os; write(figures={'mine': float('of-the-user' in os.environ['PYTHONPATH'])}, why='')",
    "imports": """
import os
import benchmarks.gpu.gpu_parts, lightning_core, tests.conftest
from lightning_core.agent.steering import offload  # from the same folder, whether the project is installed or not
modules = (lightning_core, offload, tests.conftest)
write(figures={'found': float(all(module.__file__.startswith(os.getcwd()) for module in modules))}, why='')
""",
    "fails": "print('on the way'); raise RuntimeError('no luck')",
    "leaves": "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); import os; os.abort()",
    "hangs": "import subprocess; one = subprocess.Popen(['sleep', '600']); print(one.pid, flush=True); one.wait()",
}


def command(part: Part, file: Path) -> Sequence[str]:
    write = "import json, sys; write = lambda **outcome: open(sys.argv[1], 'w').write(json.dumps(outcome))"
    return [sys.executable, "-c", f"{write}\n{CODE[part.name]}", str(file)]


class Kept:
    """What has been kept after each part."""

    def __init__(self) -> None:
        self.figures: list[Figures] = []
        self.left_out: list[dict[str, str]] = []

    def __call__(self, figures: Figures, left_out: dict[str, str]) -> None:
        self.figures.append(dict(figures))
        self.left_out.append(dict(left_out))


def collected(*names: str, limit: float = 60.0, seconds: float = 1000.0, **more: Any) -> tuple[bool, Kept]:
    kept = Kept()
    return collect([Part(name, limit) for name in names], kept, seconds, command, **more), kept


def test_figures_are_kept_after_each_part_and_what_is_missing_is_said() -> None:
    fine, kept = collected("fine", "skips", "lacks", "also")
    assert fine
    assert kept.figures[0] == {"share_error": 0.5, "peak_in_torch": None}
    assert kept.figures[-1] == {"share_error": 0.5, "peak_in_torch": None, "resize_s": 2.0}
    assert kept.left_out[-1] == {
        "skips": "skipped: needs two GPUs, found 1",
        "lacks": "skipped: the package a_package_that_is_missing is missing",
    }


def test_a_part_that_fails_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    fine, kept = collected("fails", "fine")
    assert not fine
    assert kept.left_out[-1] == {"fails": "failed with exit code 1: RuntimeError: no luck"}
    assert kept.figures[-1] == {"share_error": 0.5, "peak_in_torch": None}
    assert "on the way" in capsys.readouterr().out


def test_checks_that_fail_are_told_with_their_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fine, kept = collected("wrong", "fine", logs=tmp_path)
    assert not fine
    assert kept.figures[-1]["checks_failed"] == 1
    assert kept.left_out[-1] == {"wrong": "failed: test_this"}
    assert "a test says why" in capsys.readouterr().out
    assert (tmp_path / "wrong.log").read_text() == "a test says why\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU cannot suspend")
def test_a_process_that_cannot_be_suspended_is_left_out_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(gpu_parts.SkippedError, match=r"the process was not suspended: .+"):
        gpu_parts.suspend(tmp_path)


def test_packages_on_the_user_s_path_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "of-the-user")
    _, kept = collected("path")
    assert kept.figures[-1] == {"mine": 1.0}


@pytest.mark.nightly
def test_parts_find_the_project_where_it_is_not_installed() -> None:
    fine, kept = collected("imports")
    assert fine
    assert kept.figures[-1] == {"found": 1.0}


def test_what_a_part_had_found_is_kept_when_it_is_ended_or_crashes() -> None:
    fine, kept = collected("slow", limit=5.0)
    assert not fine
    assert kept.figures[-1] == {"checks_passed": 3.0}
    assert kept.left_out[-1] == {"slow": "ended after 5 s: 4 of 7 tests not run"}
    fine, kept = collected("crashes")
    assert not fine
    assert kept.figures[-1] == {"checks_passed": 3.0}
    assert kept.left_out[-1] == {"crashes": "failed with exit code -6: 4 of 7 tests not run"}


def test_the_outcomes_of_tests_are_written_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "@pytest.mark.skip\n"
        "def test_left_out(): pass\n"
        "def test_bad(): assert False\n"
        "def test_last(): raise KeyboardInterrupt\n"
    )
    outcomes = Outcomes(tmp_path / "part.json")
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)], plugins=[outcomes])
    figures = {"checks_passed": 1, "checks_failed": 1, "checks_skipped": 1}
    why = "failed: test_bad; 1 of 4 tests not run"
    assert json.loads((tmp_path / "part.json").read_text()) == {"figures": figures, "why": why}
    assert (outcomes.figures(), outcomes.why()) == (figures, why)


def test_why_parts_were_left_out_is_said_by_the_last_run(tmp_path: Path) -> None:
    record = tmp_path / "results.json"
    for figures, left_out in (({"share_error": 0.5}, {"demo": "failed"}), ({"demo_ceiling": 7.0}, {})):
        results.merge("gpu_evidence", "default", "c", figures, record, "NVIDIA Fake", left_out)
    assert [(run["figures"], run.get("left_out")) for run in results.read(record)] == [
        ({"share_error": 0.5}, None),
        ({"demo_ceiling": 7.0}, None),
    ]


@pytest.mark.nightly
def test_a_part_that_hangs_is_ended_at_its_limit_with_all_that_it_has_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fine, kept = collected("hangs", limit=3.0)
    assert not fine
    assert kept.left_out[-1]["hangs"].startswith("ended after 3 s")
    started = re.search(r"^ +(\d+)$", capsys.readouterr().out, re.M)
    assert started is not None
    assert not psutil.pid_exists(int(started[1])) or psutil.Process(int(started[1])).status() == psutil.STATUS_ZOMBIE


def test_what_does_not_fit_the_time_is_not_run() -> None:
    clock = iter([0.0, 0.0, 35.0])
    fine, kept = collected("fine", "also", seconds=90.0, clock=lambda: next(clock))
    assert not fine
    assert kept.left_out[-1] == {"also": "not run: it may take 60 s, and 55 s were left"}


def test_all_parts_fit_the_time_and_have_their_figures_on_the_page() -> None:
    assert sum(part.limit for part in PARTS if not part.spare) <= SECONDS < 9 * 60
    assert {part.name for part in PARTS} == gpu_parts.PARTS.keys()
    assert "gpu_evidence" in HEADINGS


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command, with parts that are none of a GPU."""
    monkeypatch.setattr(gpu_evidence, "PARTS", [Part("fine", 60.0), Part("skips", 60.0)])
    monkeypatch.setattr(collect, "__defaults__", (SECONDS, command, *(collect.__defaults__ or ())[2:]))
    return gpu_evidence.main


def test_the_record_and_its_page_name_the_device_and_what_is_left_out(
    main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_evidence, "device_name", lambda: "NVIDIA Fake")
    record = tmp_path / "results.json"
    assert main(["--results", str(record)]) == 0
    [run] = results.read(record)
    assert run["device"] == "NVIDIA Fake"
    assert run["figures"] == {"share_error": 0.5}
    assert run["left_out"] == {"skips": "skipped: needs two GPUs, found 1"}
    page = (tmp_path / "results.md").read_text()
    assert "## On a GPU" in page
    assert f"GiB, {run['device']}:" in page
    assert "| Error of a share over 20 s, two jobs | 0.5 of the share |" in page
    assert "Not measured: skips, skipped: needs two GPUs, found 1." in page


def test_without_a_gpu_nothing_is_written(
    main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_evidence, "device_name", str)
    assert main(["--results", str(tmp_path / "results.json")]) == NO_GPU
    assert "needs a GPU: torch.cuda.is_available() is false" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_part_s_figures_have_a_label() -> None:
    """A figure that no label shows or names would be recorded and never seen."""
    labels = LABELS["gpu_evidence"]
    shown = {*labels, *re.findall(r"{(\w+):", " ".join(form for _, form in labels.values()))}
    tree = ast.parse(Path(gpu_parts.__file__).read_text())
    measured = {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in gpu_parts.PARTS and node.name != "demo"
        for end in ast.walk(node)
        if isinstance(end, ast.Return) or (isinstance(end, ast.AnnAssign) and ast.unparse(end.annotation) == "Figures")
        for figures in ast.walk(end)
        if isinstance(figures, ast.Dict)
        for key in figures.keys
        if isinstance(key, ast.Constant)
    }
    assert len(measured) > 12
    checked = {f"checks_{outcome}" for outcome in ("passed", "failed", "skipped")}
    assert measured | checked | {"demo_met_triage", "demo_met_fifo", "demo_ceiling"} <= shown


def test_what_is_paid_is_above_an_empty_callback_and_by_the_rounds() -> None:
    pair = gpu_parts.Pair([3e-5] * 98 + [5e-4] * 2, [1e-5] * 100, [1.02, 1.0, 1.5], [1.0, 1.0, 1.0])
    assert pair.paid() == pytest.approx(20.0)
    assert pair.paid(0.99) == pytest.approx(490.0)
    assert pair.mean() == pytest.approx(0.98 * 20 + 0.02 * 490)
    assert pair.slower() == pytest.approx(2.0)


@pytest.mark.nightly
def test_hooks_are_measured_alone_and_in_turns_but_for_the_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def on_cpu(model: Any, callbacks: list[Any], batches: int, data: Any = None) -> None:
        pl.Trainer(max_steps=batches, max_epochs=-1, callbacks=callbacks, **QUIET).fit(model, datamodule=data)

    monkeypatch.setattr(gpu_parts, "fit", on_cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(hooks, "WARM", 5)
    alone = gpu_parts.pair(Regression, 2, 30, Noise())
    assert [len(part) for part in alone] == [60, 60, 2, 2]
    assert min(min(part) for part in alone) > 0
    with gpu_parts.other_waits(tmp_path) as lock:
        in_turns = gpu_parts.pair(Regression, 1, 600, Noise(), lock)
    assert len(in_turns.empty) == 600
    assert 300 < len(in_turns.hooks) < 600  # without those in which a turn ended


def test_two_trainings_take_turns(tmp_path: Path) -> None:
    def report(number: int, version: int, batches: int) -> Report:
        return Report("job", 1, number, version, batches, 0.0)

    first, second = (Turns(number, tmp_path / "turn", last=2, batches=10) for number in (0, 1))
    one, other = first.report(report(1, 0, 0)), second.report(report(1, 0, 0))
    assert isinstance(one, Grant)
    assert isinstance(other, Grant)
    assert (one.share, other.share) == (1.0, 0.0)
    assert first.report(report(2, 1, 9)) is None
    held, goes_on = first.report(report(3, 1, 10)), second.wait("job", 1, 5.0)
    assert isinstance(held, Grant)
    assert isinstance(goes_on, Grant)
    assert (held.share, goes_on.share) == (0.0, 1.0)
    assert second.report(report(2, 2, 3)) is None  # its turn begins with its first report in it
    assert isinstance(second.report(report(3, 2, 13)), End)
    assert isinstance(first.wait("job", 2, 5.0), End)
    assert json.loads((tmp_path / "turn").read_text()) == 2


def test_parts_stand_in_the_order_of_what_is_wanted_first() -> None:
    names = [part.name for part in PARTS]
    assert names[:6] == ["overhead", "beside", "suspend", "checks", "shares", "demo"]
    assert names[-1] == "suspend_40"
    assert [part.name for part in PARTS if part.spare] == ["resize"]


def test_time_that_is_not_needed_is_the_next_part_s_and_a_spare_part_takes_none_of_those_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = [Part("fine", 30.0), Part("also", 40.0), Part("skips", 20.0, spare=True), Part("path", 30.0)]
    clock = iter([0.0, 0.0, 10.0, 62.0, 63.0])
    kept = Kept()
    assert collect(parts, kept, 100.0, command, clock=lambda: next(clock))
    assert re.findall(r"^(\w+), of (\d+) s", capsys.readouterr().out, re.M) == [
        ("fine", "30"), ("also", "60"), ("skips", "20"), ("path", "37"),
    ]  # fmt: skip
    assert kept.left_out[-1] == {"skips": "skipped: not run: it may take 20 s, and 8 s were left"}
    assert kept.figures[-1].keys() == {"share_error", "peak_in_torch", "resize_s", "mine"}


@pytest.mark.parametrize("words", [["also,fine"], ["also", "fine"], ["also, fine"]])
def test_parts_are_chosen_by_commas_or_spaces_and_run_in_their_order(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(gpu_evidence, "device_name", lambda: "NVIDIA Fake")
    monkeypatch.setattr(gpu_evidence, "PARTS", [Part("fine", 1.0), Part("skips", 1.0), Part("also", 1.0)])
    monkeypatch.setattr(gpu_evidence, "collect", lambda parts, *_, **__: chosen.extend(part.name for part in parts))
    gpu_evidence.main(["--only", *words])
    assert chosen == ["fine", "also"]


def test_an_unknown_part_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_evidence.main(["--only", "overhead,sharse"])
    assert "a part is one of overhead, beside, suspend, checks" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "expected"), [("", ""), ("PARTS=overhead,beside", "--only overhead,beside ")])
def test_make_passes_the_parts_on(words: str, expected: str) -> None:
    dry = subprocess.run(["make", "-n", "gpu-evidence", *filter(None, [words])], cwd=ROOT, capture_output=True,
                         text=True, check=True)  # fmt: skip
    assert f"-m benchmarks.gpu.gpu_evidence {expected}--results docs/results.json" in " ".join(dry.stdout.split())


@pytest.mark.nightly
def test_what_a_crashed_part_has_started_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    collected("leaves")
    started = re.search(r"^ +(\d+)$", capsys.readouterr().out, re.M)
    assert started is not None
    assert not psutil.pid_exists(int(started[1])) or psutil.Process(int(started[1])).status() == psutil.STATUS_ZOMBIE


def test_tests_that_need_ray_are_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parts, "_has_ray", lambda: False)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_pools_here.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.gpu\n"
        "@pytest.fixture\n"
        "def local_ray(): raise ModuleNotFoundError('ray')\n"
        "@pytest.fixture\n"
        "def gpu_cluster(local_ray): pass\n"
        "def test_good(): pass\n"
        "def test_pool(gpu_cluster): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gpu_parts.SkippedError, match=r"^1 tests need the package ray, which is missing$") as skipped:
        gpu_parts.checks(tmp_path / "part.json")
    assert skipped.value.figures == {"checks_passed": 1, "checks_failed": 0, "checks_skipped": 1}


@pytest.mark.nightly
def test_without_ray_parts_that_need_it_are_skipped_and_overhead_imports(tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'ray':\n"
        "            raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')\n"
        "sys.meta_path.insert(0, Without())\n"
        "from benchmarks.gpu import four_trainings, gpu_parts\n"
        "from benchmarks.live import hooks\n"
        "gpu_parts.main('demo', sys.argv[1])\n"
    )
    kept = Kept()
    words = [sys.executable, str(tmp_path / "without.py")]
    assert collect([Part("demo", 60.0)], kept, 100.0, lambda part, file: [*words, str(file)])
    assert kept.left_out[-1] == {"demo": "skipped: the package ray is missing"}


def test_memory_that_is_missing_to_suspend_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Driver:
        def free(self, device: str) -> int:
            return 60 * GIB

    monkeypatch.setattr(cuda_driver, "CudaDriver", Driver)
    monkeypatch.setattr(suspended, "_uuid_without_context", lambda: "1")
    monkeypatch.setattr(suspended, "free_on_host", lambda: 55.0 * GIB)
    assert suspended.lacks_memory(40) == ""
    assert suspended.lacks_memory(50) == "needs 62 GiB of free memory on the host, found 55 GiB"
    monkeypatch.setattr(suspended, "BESIDE", 43 * GIB)
    with pytest.raises(gpu_parts.SkippedError, match=r"needs 83 GiB of free memory on the GPU, found 60 GiB"):
        gpu_parts.suspend_40(tmp_path)
