"""A terminal that is closed, or a disk that is full, costs lines and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.promise("F37")
BUNDLE = """
pool: {devices: 1, kind: cpu}
jobs:
  a:
    model: {class_path: examples.digits.Lstm}
    data: {class_path: examples.digits.Digits}
    trainer: {logger: false}
    deadline: 60s
    target: {batches: 20}
"""
# Tells on descriptor 3 how it went: each of them prints more than fits into a buffer.
ACTS = """
import os, sys
from lightning_core.view.lossy_output import fill_streams, lossy_output
fill_streams()
lossy = lossy_output()
lossy.__enter__()
files = [open(os.devnull) for _ in range(4)]
for _ in range(200):
    print("\\N{CROSS MARK} a line" * 100)
    print("an error" * 10, file=sys.stderr, flush=True)
sys.stdout.flush()
assert min(file.fileno() for file in files) > 2
assert all(os.get_inheritable(number) for number in (0, 1, 2))
os.write(3, b"done")
"""


@pytest.mark.parametrize("where", ["<&- >&- 2>&-", ">&-", ">/dev/full 2>/dev/full", "| true", "2>/dev/full | head -1"])
def test_what_acts_goes_on_whatever_becomes_of_its_output(where: str, tmp_path: Path) -> None:
    script = tmp_path / "acts.py"
    script.write_text(ACTS)
    told = tmp_path / "told"
    line = f"set -o pipefail; {sys.executable} {script} 3>{told} {where}"
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    assert subprocess.run(["bash", "-c", line], env=ascii_only, check=False, capture_output=True).returncode == 0
    assert told.read_text() == "done"


def test_a_stream_that_is_replaced_keeps_its_file() -> None:
    """The number of a file that was closed too early is that of the next socket, into which lines would go."""
    code = (
        "import gc, os\n"
        "from lightning_core.view.lossy_output import fill_streams, lossy_output\n"
        "fill_streams()\nlossy = lossy_output()\nlossy.__enter__()\ngc.collect()\n"
        "read, write = os.pipe()\n"
        "for _ in range(100): print('x' * 1000, flush=True)\n"
        "os.write(write, b'mine')\n"
        "raise SystemExit(os.read(read, 9) != b'mine')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    line = f'{sys.executable} -c "$CODE" >&-'
    assert subprocess.run(["bash", "-c", line], env=environment | {"CODE": code}, check=False).returncode == 0


@pytest.mark.parametrize("where", ["/dev/full", "log.txt"])
def test_a_job_whose_log_cannot_be_written_trains(where: str, tmp_path: Path) -> None:
    code = (
        "import sys, warnings\n"
        "from pathlib import Path\n"
        "from lightning_core.worker.worker import _output_to\n"
        f"with _output_to(Path({where!r})):\n"
        "    for _ in range(100): print('x' * 1000, flush=True)\n"
        "    sys.stderr.write('y' * 10_000)\n"
        "    warnings.warn('z')\n"
        "print('after')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "after\n", "")
    if where == "log.txt":
        assert len((tmp_path / where).read_text()) > 110_000


@pytest.mark.nightly
def test_a_run_goes_on_without_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(BUNDLE)
    command = "-m lightning_core.cli.main run --own --allow-import examples b.yaml --json out.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LIGHTNING_CORE_HOME": str(tmp_path)}
    line = f"exec {sys.executable} {command} <&- >&- 2>/dev/full"
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, check=False).returncode == 0
    assert '"verdict": "met"' in (tmp_path / "out.json").read_text()


def test_what_only_shows_something_fails_if_it_cannot() -> None:
    command = f"{sys.executable} -m lightning_core.cli.main policies"
    for where, code in ((">/dev/full", 2), ("| true", 0), (">&-", 0)):
        line = f"set -o pipefail; {command} {where}"
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
