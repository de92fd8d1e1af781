"""Two processes of one training over gloo: rank 0 gets the directives, and both act after the same batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil
import pytest
import torch
from torch.distributed.distributed_c10d import _set_pg_timeout, default_pg_timeout

from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.steering.ranks import AGREEMENT_PERIOD, MAX_AGREEMENT_COST, batches_between
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Directive, End, Grant, Verdict
from lightning_core.core.events import ExitCause
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.node.memory import proportional_set_size
from lightning_core.worker.process_group import Rank, free_port, trainer_arguments
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.conftest import ROOT
from tests.faults import parted
from tests.tiny import QUIET, Line, Net, NoisyPoints, Points, ValidatedPoints
from tests.waiting import until

SCENARIOS = ("hold", "over", "whole", "release", "return", "alone", "loss", "slow loss", "metric", "memory", "long")
# Of the process group in the story of a long hold, and how long that is, seconds.
TIMEOUT, LONG = 4.0, 6.0
# Bytes that rank 1 has more than rank 0 in the story of memory.
HEAVY = 200 * 2**20
Stories = dict[str, list[dict[str, Any]]]


@pytest.mark.parametrize(("broadcast", "batch"), [(2e-4, 1e-4), (2e-4, 1e-2), (1e-2, 1e-2), (2e-4, 3.0)])
def test_agreement_of_ranks_is_cheap_and_prompt(broadcast: float, batch: float) -> None:
    between = batches_between(broadcast, batch)
    assert broadcast <= MAX_AGREEMENT_COST * between * batch * 1.001 or between == 1
    assert between * batch <= max(AGREEMENT_PERIOD, batch, 1.001 * broadcast / MAX_AGREEMENT_COST + batch)


@pytest.mark.promise("R13")
@pytest.mark.nightly
def test_ranks_hold_and_continue_together(stories: Stories) -> None:
    first, second = stories["hold"]
    assert first["steps"] == second["steps"] > 0
    assert min(first["pause"], second["pause"]) > 1.0
    assert first["stopped"]
    assert second["stopped"]


@pytest.mark.promise("R13")
def test_ranks_held_for_longer_than_the_group_s_time_out_survive_and_do_not_spin(
    stories: Stories, record_property: Callable[[str, object], None]
) -> None:
    for rank in stories["long"]:
        assert rank["stopped"]
        assert rank["pause"] > LONG > TIMEOUT
        assert rank["burnt"] < 0.1 * rank["pause"]
    burnt = max(rank["burnt"] / rank["pause"] for rank in stories["long"])
    record_property("figure", f"time-out {TIMEOUT:.0f} s, held {LONG:.0f} s: {100 * burnt:.1f} % of a core")


def test_ranks_of_a_launched_job_leave_together_when_it_is_over(stories: Stories) -> None:
    first, second = stories["over"]
    assert first["steps"] == second["steps"] > 0
    assert (first["left"], second["left"]) == ("JobEnded", "JobEnded")


@pytest.mark.promise("R8", "R13")
def test_released_ranks_resume_bit_for_bit(stories: Stories) -> None:
    whole, away, back = (stories[scenario] for scenario in ("whole", "release", "return"))
    assert [rank["left"] for rank in away] == ["JobReleased", "JobReleased"]
    assert away[0]["steps"] == away[1]["steps"] < 30
    for rank in (0, 1):
        assert away[rank]["seen"] + back[rank]["seen"] == whole[rank]["seen"]
        assert back[rank]["weights"] == whole[rank]["weights"]
        assert back[rank]["random"] == whole[rank]["random"]
    assert whole[0]["random"] != whole[1]["random"]


def test_the_rank_with_most_memory_counts(stories: Stories) -> None:
    """Rank 0 has started rank 1, which is heavier, and whose memory is not its own."""
    first, second = stories["memory"]
    assert second["has"] > first["has"] + 0.8 * HEAVY
    assert first["told"][0] > first["has"] + 0.8 * HEAVY
    assert first["told"][-1] < second["has"] + 0.5 * HEAVY


def test_a_script_with_two_processes_has_a_scheduler_of_its_own(stories: Stories) -> None:
    first, second = stories["alone"]
    assert first["steps"] == second["steps"] == 40
    assert (first["has_box"], second["has_box"]) == (True, False)


def test_ranks_stop_after_the_same_batch_in_every_run(stories: Stories) -> None:
    """By the loss of rank 0, however fast they are; and by a metric of rank 0, whose validation is the last one."""
    steps = {(rank["steps"], str(rank["weights"])) for story in ("loss", "slow loss") for rank in stories[story]}
    assert len(steps) == 1
    assert next(iter(steps))[0] % 10 == 0
    assert [rank["steps"] for rank in stories["metric"]] == [24, 24]
    assert [rank["validations"] for rank in stories["metric"]] == [3, 3]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Stories:
    """The records of each rank in each scenario; one pair of processes runs all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.faults.test_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return {scenario: [rank[scenario] for rank in ranks] for scenario in SCENARIOS}


PARTING = [("elsewhere", "raises", "whole"), ("hangs", "whole")]


@pytest.mark.nightly
@pytest.mark.promise("R10", "R13", "F26")
@pytest.mark.parametrize("ways", PARTING, ids="-".join)
def test_diverging_ranks_are_detected_and_the_first_cause_is_reported(
    tmp_path: Path, record_property: Callable[[str, object], None], ways: tuple[str, ...]
) -> None:
    """One rank hangs, waits in another collective, or raises; afterwards the processes can train the next job."""
    (tmp_path / "ways").write_text(json.dumps({way: free_port() for way in ways}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.faults.parted", str(tmp_path)]
    pair = [subprocess.Popen([*command, str(rank)], cwd=ROOT, env=environment) for rank in (0, 1)]
    try:
        assert [process.wait(120) for process in pair] == [0, 0]
    finally:
        for process in pair:
            process.kill()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for way in ways:
        causes, seconds = (first[way]["cause"], second[way]["cause"]), first[way]["seconds"]
        match way:
            case "hangs" | "elsewhere":
                assert causes == (ExitCause.LOST, ExitCause.LOST)
                assert first[way]["words"].startswith("its process group broke, reported by rank 0 of 2: ")
                assert seconds < parted.TIMEOUT + 5
                record_property("figure", f"time-out {parted.TIMEOUT:.0f} s; rank 1 {way}: told after {seconds:.1f} s")
            case "raises":
                assert causes == (ExitCause.LOST, ExitCause.RAISED)
                assert second[way]["words"] == "ValueError: rank 1 has had enough"
                assert seconds < parted.TIMEOUT
            case _:
                assert causes == (ExitCause.DONE, ExitCause.DONE)
        assert (first[way]["stuck"], second[way]["stuck"]) == (False, False)


def test_no_collective_of_a_launched_job_waits_for_longer_than_two_minutes(tmp_path: Path) -> None:
    arguments = trainer_arguments(Rank(0, 2, port=1), "cpu")
    assert 0 < arguments["strategy"]["init_args"]["timeout"].total_seconds() <= 120
    assert trainer_arguments(Rank(), "cpu") == {}


# ---------------------------------------------------------------------------------------------- in each of the ranks


class Clock(pl.Callback):
    """The longest time between two batches, and the CPU time used in it."""

    def __init__(self) -> None:
        self.pause, self.last, self.has_box = 0.0, 0.0, False
        self.burnt, self.used = 0.0, 0.0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.has_box = trainer.callbacks[0]._fit.mailbox is not None
        now, used = time.monotonic(), time.process_time()
        if self.last and now - self.last > self.pause:
            self.pause, self.burnt = now - self.last, used - self.used
        self.last, self.used = now, used


class Own(Line):
    """Validates to numbers of a list, which differ from rank to rank."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values, self.validations = values, 0

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("own", self.values[self.validations])
            self.validations += 1


class Impatient(pl.Callback):
    """From the first batch of a training on, and until it ends, no collective may take longer than :data:`TIMEOUT`.

    That of the process group itself would also limit how long the ranks may take to find each other.
    """

    def on_train_start(self, *_: Any) -> None:
        _set_pg_timeout(timedelta(seconds=TIMEOUT))

    def on_train_end(self, *_: Any) -> None:
        _set_pg_timeout(default_pg_timeout)


def told(script: Script, batches: int, *said: tuple[float, Directive]) -> None:
    """Set each directive after some seconds, once some batches are done."""

    def say() -> None:
        until(lambda: script.reports and script.reports[-1].batches >= batches)
        for seconds, directive in said:
            time.sleep(seconds)
            script.say(directive)

    threading.Thread(target=say, daemon=True).start()


def stop_once_told(script: Script, met: End) -> None:
    """End the training once its memory has been reported."""
    until(lambda: any(report.memory for report in script.reports))
    script.say(met)


def live(scenario: str, folder: Path, rank: int) -> dict[str, Any]:
    """Train once; return what was recorded."""
    pl.seed_everything(7 + rank, verbose=False)
    script = Script(grant(1, 1.0))
    met = End("job", 9, Verdict.MET, Reason("target_met", (1.0,)))
    launched: dict[str, Any] = {"job": "job", "target": BatchTarget(10**9), "client": script, "folder": folder}
    options: dict[str, Any] = {**QUIET, "devices": 2, "strategy": "ddp", "max_epochs": -1}
    model: Any = Line(pause=0.004)
    data: Any = Points()
    ckpt = None
    match scenario:
        case "hold":
            core = ConnectedScript("job", BatchTarget(10**9), client=script)
            told(script, 20, (0.0, grant(2, 0.0)), (3.0, grant(3, 1.0)), (0.5, met))
        case "long":
            core = ConnectedScript("job", BatchTarget(10**9), client=script)
            told(script, 20, (0.0, grant(2, 0.0)), (LONG + 3.0, grant(3, 1.0)), (0.5, met))
        case "over":
            core = LaunchedCallback(**launched)
            told(script, 20, (0.0, End("job", 2, Verdict.MISSED, Reason("deadline_passed"))))
        case "memory":
            core = LaunchedCallback(**launched)
            model.more = torch.ones(rank * HEAVY, dtype=torch.uint8)
            threading.Thread(target=stop_once_told, args=(script, met), daemon=True).start()
        case "alone":
            core = CoreCallback("job", deadline="10m", target=BatchTarget(40), pool="local")
        case "loss" | "slow loss":
            pl.seed_everything(7, verbose=False)
            core = CoreCallback("job", deadline="10m", target="loss<=0.2", pool="local")
            model = Line(lr=0.02, pause=0.004 if scenario == "slow loss" else 0.0)
        case "metric":
            core = CoreCallback("job", deadline="10m", target="own<=0.4", pool="local")
            model, data = Own([[0.9, 0.5, 0.3, 0.6], [0.1, 0.9, 0.9, 0.9]][rank]), ValidatedPoints()
            options["val_check_interval"] = 8
        case _:
            core = LaunchedCallback(**launched)
            model, data = Net(), NoisyPoints()
            options["max_epochs"] = 3
            if scenario == "release":
                model.pause = 0.2  # it takes six seconds, and is released in the first two: also on a busy machine
                told(script, 5, (0.0, Grant("job", 2, 0.0, (), Reason("fixed_share"))))
            elif scenario == "return":
                pl.seed_everything(1000 + rank, verbose=False)
                ckpt = folder / "last.ckpt"
    clock = Clock()
    trainer = pl.Trainer(**options, callbacks=[core, clock, *([Impatient()] if scenario == "long" else [])])
    left = ""
    try:
        trainer.fit(model, datamodule=data, ckpt_path=ckpt)
    except (JobEnded, JobReleased) as error:
        left = type(error).__name__
    return {
        "steps": trainer.global_step,
        "left": left,
        "told": [report.memory.peak for report in script.reports if report.memory],
        "has": proportional_set_size(os.getpid(), without=[child.pid for child in psutil.Process().children()]),
        "pause": clock.pause,
        "burnt": clock.burnt,
        "has_box": clock.has_box,
        "stopped": trainer.should_stop,
        "seen": getattr(model, "seen", []),
        "validations": getattr(model, "validations", 0),
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "random": torch.rand(3).tolist(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, own_rank = Path(sys.argv[1]), int(os.environ.get("LOCAL_RANK", 0))
    told_of: dict[str, dict[str, Any]] = {}
    for scenario in SCENARIOS:
        told_of[scenario] = live(scenario, place, own_rank)
    (place / f"{own_rank}.json").write_text(json.dumps(told_of))
