"""Loops of scripts that a pool has launched: they save between two batches, leave, and go on where they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_core
from lightning_core.agent.launched_script import RELEASED_CODE, LaunchedScript, ScriptTerms
from lightning_core.core.answers import End, Grant, JobForecast, Verdict
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import parse_target
from lightning_core.integrations import plain
from lightning_core.storage.job_checkpoints import find
from lightning_core.testing.loop_conformance import NAME, ScriptedScheduler, falling
from tests.waiting import until

Launch = Callable[..., LaunchedScript]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Make the next loop of this process that of a launched script."""

    def begin(client: ScriptedScheduler, *, resume: str | None = None, save_every: float = 1e6) -> LaunchedScript:
        terms = ScriptTerms(
            NAME, 1, parse_target("loss<=0").to_dict(), "", str(tmp_path / "checkpoints"), resume, None, None, [0],
            1, None, "keep", 10, None, save_every,
        )  # fmt: skip
        script = LaunchedScript(terms)
        monkeypatch.setattr(script, "client", lambda: client)
        monkeypatch.setattr(script, "note_release", lambda: None)
        monkeypatch.setattr(plain, "launched_script", lambda: script)
        if resume is not None:
            monkeypatch.setenv("LIGHTNING_CORE_RESUME", resume)
        return script

    return begin


def elsewhere(version: int) -> Grant:
    return Grant(NAME, version, 1.0, (1,), Reason("fixed_share"))


def train(client: ScriptedScheduler, at: int, say: Any, *, saves: bool = True) -> list[float]:
    """Train a model that only counts; return what it has trained on in all, as its checkpoint has it."""
    losses, model = falling(), torch.zeros(1)
    trained: list[float] = []
    with lightning_core.track("other name", "1h", "loss<=5") as run:
        if run.resume_path is not None:
            found = torch.load(run.resume_path, weights_only=True)
            model, trained = found["model"], found["trained"]
            run.load_state_dict(found["run"])
        if saves:
            run.save_with(lambda path: torch.save({"model": model, "trained": trained, "run": run.state_dict()}, path))
        for _ in run.batches(losses[len(trained) :]):
            model += 1
            trained.append(losses[len(trained)])
            run.log(loss=trained[-1])
            if len(trained) == at:
                client.say(say)
                until(lambda: client.delivered == say.version)
    return trained


def test_a_script_that_is_to_leave_saves_and_leaves_and_the_next_goes_on(launch: Launch) -> None:
    first, second = ScriptedScheduler(), ScriptedScheduler()
    script = launch(first)
    with pytest.raises(SystemExit) as left:
        train(first, 20, elsewhere(2))
    assert left.value.code == RELEASED_CODE
    assert not first.exits  # its worker reports the end
    checkpoint = script.last_checkpoint
    assert checkpoint is not None
    assert checkpoint.batches >= 20
    assert first.reports[-1].checkpoint == checkpoint
    found = find(script.folder)
    assert found is not None

    launch(second, resume=str(found.path))
    trained = train(second, -1, None)
    assert trained == falling()
    assert second.reports[0].batches == checkpoint.batches
    assert second.reports[-1].batches == len(falling())
    assert second.cells()[0].batches > checkpoint.batches  # its scheduler knows those before


def test_a_script_is_saved_now_and_then(launch: Launch) -> None:
    client = ScriptedScheduler()
    script = launch(client, save_every=0.0)
    train(client, -1, None)
    assert script.last_checkpoint is not None
    assert client.reports[-1].checkpoint is not None


def test_a_script_that_cannot_save_leaves_nevertheless(launch: Launch) -> None:
    client = ScriptedScheduler()
    script = launch(client)
    with pytest.raises(SystemExit) as left:
        train(client, 20, elsewhere(2), saves=False)
    assert left.value.code == RELEASED_CODE
    assert script.last_checkpoint is None


def test_a_script_whose_disk_is_full_trains_on(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    client = ScriptedScheduler()
    launch(client)
    monkeypatch.setattr(torch, "save", full)
    assert train(client, 20, elsewhere(2)) == falling()


def test_a_script_whose_job_is_over_leaves(launch: Launch) -> None:
    client = ScriptedScheduler()
    launch(client)
    with pytest.raises(SystemExit) as left:
        train(client, 20, End(NAME, 2, Verdict.CANCELLED, Reason("cancelled")))
    assert left.value.code == 0


def test_a_launched_script_knows_its_outcome(launch: Launch) -> None:
    class Telling(ScriptedScheduler):
        def job_forecast(self, job: str) -> JobForecast | None:
            met = bool(self.reports and self.reports[-1].met)
            return JobForecast(Verdict.MET if met else Verdict.AT_RISK, "told", 1.0, None, None)

    client = Telling()
    script = launch(client)
    script.target = parse_target("loss<=0.2")
    with lightning_core.track() as run:
        for loss in run.batches(falling()):
            run.log(loss=loss)
    assert (run.over, run.verdict) == (True, Verdict.MET)


def test_the_bundle_says_the_terms(launch: Launch) -> None:
    client = ScriptedScheduler()
    launch(client)
    run = lightning_core.track("other name", "1h", "loss<=5")
    assert (run.name, run.target) == (NAME, parse_target("loss<=0"))
    assert not client.jobs  # it was submitted before


def test_the_trainer_of_transformers_saves_leaves_and_goes_on(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from lightning_core.integrations.transformers import CoreTrainerCallback
    from lightning_core.testing.loop_conformance import Exercise
    from tests.integrations.test_transformers import TaughtModel, arguments, trainer_of

    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}

    def fit(client: ScriptedScheduler, done: int, resume: str | None) -> int:
        def in_batch(number: int) -> None:
            if number == 20:
                client.say(elsewhere(2))
                until(lambda: client.delivered == 2)

        given = arguments(str(tmp_path / "out"), max_steps=60)
        ours = CoreTrainerCallback()
        made = trainer_of(TaughtModel(Exercise(in_batch=in_batch), done), given, [row] * 60, ours)
        try:
            made.train(resume_from_checkpoint=resume)
        finally:
            ours.run.close()  # as at the end of its process
        return int(made.state.global_step)

    first, second = ScriptedScheduler(), ScriptedScheduler()
    script = launch(first)
    with pytest.raises(SystemExit) as left:
        fit(first, 0, None)
    assert left.value.code == RELEASED_CODE
    checkpoint, found = script.last_checkpoint, find(script.folder)
    assert checkpoint is not None
    assert found is not None
    assert (found.path / "trainer_state.json").is_file()
    launch(second, resume=str(found.path))
    assert fit(second, checkpoint.batches, str(found.path)) == 60
    assert second.reports[0].batches == checkpoint.batches


def test_a_second_training_of_a_script_is_no_part_of_its_job(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedScheduler()
    launch(client)
    assert train(client, -1, None) == falling()
    reported = len(client.reports)
    assert train(client, -1, None) == falling()
    assert len(client.reports) == reported
    assert "a second training of a script is no part of its job" in caplog.text


def test_a_script_of_its_own_is_not_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with lightning_core.track(NAME, "1h", "5 batches", pool="local") as run:
        assert run.resume_path is None
        run.save_with(lambda path: path.write_text("saved"))
        for _ in run.batches(range(20)):
            run.saved(tmp_path)
    assert not list(tmp_path.iterdir())
