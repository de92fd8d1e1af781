"""Four small trainings on one device are measured in a pool without Ray; MPS is run only where that is safe."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.common import Figures
from benchmarks.gpu import four_trainings, gpu_parts, mps
from benchmarks.gpu.four_trainings import Lengths, Perceptron, Together, Workers, measure
from benchmarks.gpu.mps import NoMpsError, variables
from benchmarks.gpu.served import Served
from benchmarks.labels import LABELS

# Stands for the daemon: in the foreground it serves until it is told to quit, and has a server of its own.
DAEMON = """
import os, subprocess, sys, time
from pathlib import Path
pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    if MODE == "refuses":
        sys.exit("no rights")
    server = subprocess.Popen(["sleep", "600"])
    (pipe / "pids").write_text(f"{os.getpid()} {server.pid}")
    while not (pipe / "quit").exists() or MODE == "hangs":
        time.sleep(0.02)
    server.kill()
elif not (pipe / "pids").exists():
    print("Cannot find MPS control daemon process")
else:
    words = sys.stdin.read().strip()
    with (pipe / "told").open("a") as told:
        told.write(words + "\\n")
    if words == "quit":
        (pipe / "quit").touch()
"""


def daemon(mode: str) -> list[str]:
    return [sys.executable, "-c", DAEMON.replace("MODE", repr(mode))]


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("mode", ["serves", "hangs"])
def test_a_private_daemon_serves_meanwhile_and_ends_with_its_server(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "ENDS", 1.0)
    pipe = tmp_path / "pipe"
    with mps.mps(tmp_path, daemon(mode), tmp_path / "proc"):
        pids = [int(pid) for pid in (pipe / "pids").read_text().split()]
        assert all(map(runs, pids))
    assert (pipe / "told").read_text().splitlines() == ["get_server_list", "quit"]
    until = time.monotonic() + 5.0
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(runs, pids))
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (daemon("refuses"), "the MPS daemon ended with exit code 1: no rights"),
        (["/no/such-program"], "/no/such-program cannot be started: No such file or directory"),
    ],
)
def test_a_daemon_that_cannot_be_started_is_no_mps(command: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(NoMpsError, match=re.escape(why)), mps.mps(tmp_path, command, tmp_path / "proc"):
        pass


def test_a_daemon_that_was_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "proc" / "12").mkdir(parents=True)
    (tmp_path / "proc" / "12" / "comm").write_text("nvidia-cuda-mps-control\n"[:15] + "\n")
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(NoMpsError, match="an MPS daemon runs already, process 12"),
        mps.mps(tmp_path, daemon("serves"), tmp_path / "proc"),
    ):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_processes_find_the_daemon_of_their_folder() -> None:
    found = variables(Path("/x"))
    assert found == {"CUDA_MPS_PIPE_DIRECTORY": "/x/pipe", "CUDA_MPS_LOG_DIRECTORY": "/x/log"}


def test_throughputs_are_those_of_the_end_and_deadlines_count_from_the_start() -> None:
    found = Together(100.0, [np.arange(101.0, 111.0), np.arange(101.0, 111.0, 0.5)])
    assert found.throughputs(4.0) == pytest.approx([1.0, 2.0])
    assert found.met([5, 5], deadline=3.0) == 1  # at 105 and 103
    assert found.met([5, 50], deadline=60.0) == 1


def test_the_environment_of_processes_is_theirs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ONE", "before")
    with four_trainings._environment({"LC_ONE": "1", "LC_TWO": "2"}):
        assert (os.environ["LC_ONE"], os.environ["LC_TWO"]) == ("1", "2")
    assert os.environ["LC_ONE"] == "before"
    assert "LC_TWO" not in os.environ


@pytest.mark.nightly
def test_a_training_that_does_not_join_its_pool_is_said() -> None:
    with Workers([Perceptron], gpu=False) as workers, Served("GPU-1", four_trainings.settings("GPU-1")) as pool:
        workers.warm_up(0.2)
        with pytest.raises(RuntimeError, match="all trainings must join the pool; alone-0 did not"):
            workers.together("alone", 2.0, pool)


@pytest.mark.nightly
def test_a_process_that_dies_is_said() -> None:
    with Workers([Perceptron], gpu=False) as workers:
        workers.device()
        workers._processes[0].kill()
        with pytest.raises(RuntimeError, match="training 0 ended with exit code -9"):
            workers.warm_up(0.2)


@pytest.mark.nightly
def test_scripts_in_a_pool_without_ray_have_their_shares() -> None:
    found = gpu_parts.shares_without_ray(gpu=False, seconds=6.0, model=Perceptron)
    assert 0 <= found["share_error"] < 0.15  # type: ignore[operator]


@pytest.mark.nightly
def test_four_trainings_are_measured_and_all_figures_are_on_the_page() -> None:
    kept: list[Figures] = []
    lengths = Lengths(settle=0.5, alone=0.5, together=1.5, forming=4.0, work=0.8)
    figures, why = measure(False, lambda found: kept.append(dict(found)), lengths, control=daemon("serves"))
    assert why == ""
    assert kept[-1] == figures
    assert len(kept) == 7
    assert kept[0].keys() == {"four_turns", "four_unmanaged"}
    assert all(0 < figures[name] < 20 for name in ("four_turns", "four_unmanaged", "four_beside", "four_mps"))  # type: ignore[operator]
    assert all(figures[f"four_met_{how}"] in range(5) for how in ("turns", "unmanaged", "beside"))
    assert figures["four_share_error"] < 1  # type: ignore[operator]
    labels = LABELS["gpu_evidence"]
    shown = {*labels, *re.findall(r"{(\w+):", " ".join(form for _, form in labels.values()))}
    assert figures.keys() <= shown
