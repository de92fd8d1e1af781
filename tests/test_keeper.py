"""What the Keeper does when a worker, a spec, a disk or it itself fails; what Ray does is in test_cluster.py."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError, RayError

from lightning_core.codec import job_to_dict
from lightning_core.launch import keeper as keepers
from lightning_core.launch.keeper import Keeper
from lightning_core.launch.worker import Assignment, modules_from
from lightning_core.types import BatchTarget, Cause, Job, Placement, WorkerLeft

SPEC = {"job": job_to_dict(Job("x", 9.0, BatchTarget(5))), "config": {}, "cell": 1, "paths": []}


class Method:
    """Of a handle: calls are kept, and answered by a function."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answer = answer

    def remote(self, *args: Any) -> Any:
        self.calls.append(args)
        answer = self._answer(*args)
        return answer if asyncio.isfuture(answer) else _after(answer)


async def _after(answer: Any) -> Any:
    return answer


class Stage:
    """A Keeper whose workers and scheduler are stand-ins for Ray's handles."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, devices: int = 1, slots: int = 1) -> None:
        self.folder = folder
        self.keeper = Keeper("pool", devices, slots, "cpu", str(folder / "keeper.json"))
        self.keeper._turnstiles = ["/turn"] * devices
        self.runs: list[asyncio.Future[None]] = []
        self.killed: list[Any] = []
        self.told = Method(lambda left: None)
        self.over = Method(lambda lives: [False] * len(lives))
        self.scheduler = SimpleNamespace(
            event=self.told,
            over=self.over,
            shares=Method(lambda devices: None),
            placements=Method(self._placements),
        )
        monkeypatch.setattr(ray, "get_actor", lambda name, namespace: self.scheduler)
        monkeypatch.setattr(ray, "kill", self.killed.append)
        for place in self.keeper._places:
            place.worker = self.worker()

    def worker(self) -> SimpleNamespace:
        return SimpleNamespace(run=Method(self._run))

    def _run(self, assignment: Assignment) -> asyncio.Future[None]:
        self.runs.append(asyncio.get_running_loop().create_future())
        return self.runs[-1]

    def _placements(self, known: list[Placement] | None, timeout: float) -> Any:
        """No news after the first time."""
        return [Placement("x", 1, (0,))] if known is None else asyncio.get_running_loop().create_future()

    def spec(self, text: str | None = None) -> Path:
        home = self.folder / "jobs" / "x"
        home.mkdir(parents=True, exist_ok=True)
        (home / "spec.json").write_text(json.dumps(SPEC) if text is None else text)
        return home

    async def launch(self, incarnation: int = 1, devices: tuple[int, ...] = (0,)) -> bool:
        done = await self.keeper._launch(Placement("x", incarnation, devices), "scheduler", self.folder)
        await asyncio.sleep(0.01)
        return done

    @property
    def heard(self) -> list[WorkerLeft]:
        return [left for (left,) in self.told.calls]


def dead() -> RayActorError:
    return RayActorError()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_a_job_is_launched_once_and_its_place_is_free_when_it_is_done(stage: Stage) -> None:
    async def story() -> None:
        stage.spec()
        assert await stage.launch()
        assert await stage.launch()
        assert (len(stage.runs), await busy()) == (1, ["x"])
        stage.runs[0].set_result(None)
        await asyncio.sleep(0.01)
        assert await busy() == []
        assert stage.heard == []

    async def busy() -> list[str]:
        stage.keeper._is_open = True
        return await stage.keeper.busy()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError: 'job'"),
        (json.dumps({"job": SPEC["job"]}), "KeyError: 'config'"),
        (json.dumps(SPEC | {"paths": 5}), "TypeError"),
        (json.dumps(SPEC | {"job": {"name": "x"}}), "KeyError"),
    ],
)
def test_a_spec_that_cannot_be_read_crashes_its_job_alone(stage: Stage, text: str, words: str) -> None:
    async def story() -> None:
        stage.spec(text)
        assert await stage.launch()

    asyncio.run(story())
    [left] = stage.heard
    assert (left.job, left.incarnation, left.cause) == ("x", 1, Cause.LOST)
    assert left.detail.startswith("its spec cannot be read: ")
    assert words in left.detail
    assert not stage.runs


def test_a_job_that_was_launched_and_that_nobody_has_comes_back(stage: Stage) -> None:
    """A Keeper was killed between its note and its word to the worker: that is no fault of the job's."""

    async def story() -> None:
        (stage.spec() / "launched").write_text("1")
        assert await stage.launch(1)
        assert stage.heard == [WorkerLeft("x", 1, Cause.RELEASED)]
        assert not stage.runs
        assert await stage.launch(2)
        assert len(stage.runs) == 1

    asyncio.run(story())


def test_without_room_it_waits(stage: Stage) -> None:
    async def story() -> None:
        stage.spec()
        stage.keeper._places[0].job = ("other", 1, "scheduler")
        assert not await stage.launch()
        assert not (stage.folder / "jobs" / "x" / "launched").exists()

    asyncio.run(story())


def test_a_rank_that_dies_takes_its_own_with_it_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch, devices=3)
    reopened = []

    async def reopen() -> None:
        reopened.append(True)

    monkeypatch.setattr(stage.keeper, "_reopen", reopen)

    async def story() -> None:
        stage.spec()
        other = stage.keeper._places[2]
        other.job = ("other", 1, "scheduler")
        workers = [place.worker for place in stage.keeper._places]
        assert await stage.launch(devices=(0, 1))
        stage.runs[0].set_exception(dead())
        await asyncio.sleep(0.01)
        assert stage.killed == [workers[1]]
        # The place is another worker's by the time that the one which was ended is heard of.
        heir = stage.keeper._places[1].worker = stage.worker()
        stage.keeper._places[1].job = ("y", 1, "scheduler")
        stage.runs[1].set_exception(dead())
        await asyncio.sleep(0.01)
        assert (stage.keeper._places[1].worker, stage.keeper._places[1].job) == (heir, ("y", 1, "scheduler"))
        assert (other.worker, other.job) == (workers[2], ("other", 1, "scheduler"))

    asyncio.run(story())
    assert stage.heard == [WorkerLeft("x", 1, Cause.LOST, detail="the worker's process died")]
    assert reopened == [True]


def test_what_nobody_foresaw_does_not_end_its_watch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keepers, "RETRY", 0.01)
    write, failures = keepers._write, iter([OSError(28, "No space left on device"), RayError("away")])

    def full(path: Path, text: str) -> None:
        for error in failures:
            raise error
        write(path, text)

    monkeypatch.setattr(keepers, "_write", full)

    async def story() -> None:
        stage.spec()
        following = asyncio.create_task(stage.keeper._follow("scheduler", stage.folder))
        for _ in range(200):
            await asyncio.sleep(0.01)
            if stage.runs:
                break
        following.cancel()

    asyncio.run(story())
    assert len(stage.runs) == 1
    assert "No space left on device" in caplog.text


def test_a_worker_that_cannot_be_replaced_is_tried_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers, "RETRY", 0.01)
    answers = iter([RuntimeError("no"), RayError("no"), TimeoutError("no"), None])

    async def fails_at_first() -> None:
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(stage.keeper, "open", fails_at_first)
    asyncio.run(stage.keeper.wake())
    assert next(answers, "none left") == "none left"


def test_a_job_that_is_over_and_goes_on_is_ended_in_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.over._answer = lambda lives: [True] * len(lives)
    reopened = []

    async def reopen() -> None:
        reopened.append(True)

    monkeypatch.setattr(stage.keeper, "_reopen", reopen)

    async def story() -> None:
        stage.spec()
        await stage.launch()
        worker = stage.keeper._places[0].worker
        await stage.keeper._reclaim(stage.scheduler, "scheduler")
        assert stage.killed == []
        monkeypatch.setattr(keepers, "GRACE", -1.0)
        await stage.keeper._reclaim(stage.scheduler, "scheduler")
        await asyncio.sleep(0.01)
        assert stage.killed == [worker]

    asyncio.run(story())
    assert reopened == [True]


def test_the_next_job_s_module_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        package = folder / "lc_nets"
        package.mkdir(parents=True)
        (folder / "lc_model.py").write_text(f"WHO = {number}")
        (package / "__init__.py").touch()
        (package / "deep.py").write_text(f"WHO = {number}")
        with modules_from([str(folder)]):
            import lc_model  # type: ignore[import-not-found]
            import lc_nets.deep  # type: ignore[import-not-found]

            found.append((lc_model.WHO, lc_nets.deep.WHO))
        assert str(folder) not in sys.path
    assert found == [(1, 1), (2, 2)]


def test_what_was_there_before_a_job_stays(tmp_path: Path) -> None:
    before = dict(sys.modules)
    root = str(Path(keepers.__file__).parents[2])
    with modules_from([root]):
        import lightning_core.view.svg
    assert {name: module for name, module in sys.modules.items() if name in before} == before
    assert sys.modules["lightning_core.view.svg"] is lightning_core.view.svg
