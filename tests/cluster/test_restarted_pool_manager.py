"""A pool manager that Ray has restarted, and workers that die before, while and after it finds them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from lightning_core.cluster import monitor, pool_manager, worker_slots
from lightning_core.cluster.pool_manager import PoolManager
from lightning_core.cluster.worker_slots import WorkerSlots
from lightning_core.core.answers import Placement
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.worker.assignment import Incarnation
from tests.cluster.test_pool_manager import X1, Method, Stage, saved, slot_of
from tests.waiting import until_async

LOST_UNSEEN = "its worker died while no pool manager was running"
LOST = "the worker's process died"


def died() -> ActorDiedError:
    return ActorDiedError()


def unavailable() -> ActorUnavailableError:
    return ActorUnavailableError("cut off", None)


class Restarted(Stage):
    """A pool manager that was restarted while its job was trained by the worker of its only slot.

    Attributes:
        named: The worker of that slot, by its name, as long as Ray knows it.
        arbiter: Answer of the arbiter of the device.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        monkeypatch.undo()  # the slots are filled as they are
        monkeypatch.setattr(ray, "get_actor", self._find)
        monkeypatch.setattr(ray, "kill", self._kill)
        for module, name, seconds in (
            (worker_slots, "RETRY_INTERVAL", 0.01),
            (worker_slots, "MAX_SILENCE", 0.5),
            (monitor, "ASK_INTERVAL", 0.01),
            (pool_manager, "AWAY_PAUSE", 0.01),
        ):
            monkeypatch.setattr(module, name, seconds)
        monkeypatch.setattr(self.slots, "_detached", self._detached)
        groups = SimpleNamespace(has=lambda _: True, problem=lambda _: "", draining={})
        monkeypatch.setattr(self.slots, "_groups", groups)
        monkeypatch.setattr(self.slots, "open", self._open)
        self.pool_manager._folder = None
        self.home = self.spec()
        (self.home / "launched").write_text("1")
        (folder / "manager.json").write_text(json.dumps(["scheduler", str(folder)]))
        self.newest = saved(self.home, 1, "unseen", 30)
        self.named: Any = self.worker()
        self.named.job.answer = lambda: X1
        self.arbiter: Any = Method(lambda: "socket")
        slot_of(self).assign(None)

    async def _open(self) -> None:
        if not slot_of(self).settled:
            self.slots.spawn(self.slots._fill(slot_of(self)))

    def _find(self, name: str, namespace: str) -> Any:
        found = self.scheduler if name == "scheduler" else self.named
        if found is None:
            raise ValueError(name)
        return found

    def _kill(self, actor: Any) -> None:
        self.killed.append(actor)
        self.named = None

    def _detached(self, kind: type[Any], name: str, device: int, **options: Any) -> Any:
        if name == "arbiter-0":
            return SimpleNamespace(remote=lambda *_: SimpleNamespace(path=self.arbiter))
        self.named = self.named or self.worker()
        return SimpleNamespace(remote=lambda *_: self.named)

    async def resume(self) -> None:
        """Resume the work, as a restarted pool manager does by itself."""
        await self.pool_manager._open()

    async def end(self) -> None:
        following = [*self.pool_manager._following, self.pool_manager._monitoring, *self.slots._tasks]
        self.pool_manager._stop_following()
        for task in following:
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)


@pytest.fixture
def restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restarted:
    return Restarted(tmp_path, monkeypatch)


@pytest.mark.promise("R11", "F5")
def test_a_restarted_pool_manager_resumes_its_work_without_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray refuses calls to an actor that it restarts until the restart is known everywhere: its own ones as well."""

    async def at_once(slots: WorkerSlots) -> None:
        pass

    def nowhere(name: str, namespace: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr(ray, "get_actor", nowhere)
    monkeypatch.setattr(WorkerSlots, "open", at_once)
    monkeypatch.setattr(WorkerSlots, "wait_until_settled", at_once)
    memory = tmp_path / "manager.json"
    memory.write_text(json.dumps(["scheduler", str(tmp_path)]))

    async def story() -> None:
        made = PoolManager("pool", 1, 1, "cpu", 1, str(memory))
        await until_async(lambda: made._following)
        made._stop_following()
        assert made._monitoring is not None
        made._monitoring.cancel()

    asyncio.run(story())


@pytest.mark.promise("R11", "F5")
@pytest.mark.parametrize("how", ["gone", "dead", "dying", "hanging"])
def test_a_worker_that_died_before_it_was_found_is_reported_and_replaced(restarted: Restarted, how: str) -> None:
    async def story() -> None:
        before = restarted.named
        if how == "gone":
            restarted.named = None
        else:
            hanging = asyncio.get_running_loop().create_future()
            before.job.answer = lambda: {"dead": died(), "dying": unavailable(), "hanging": hanging}[how]
        await restarted.resume()
        await until_async(lambda: restarted.heard and slot_of(restarted).worker)
        assert restarted.heard[0] == WorkerExited("x", 1, ExitCause.LOST, LOST_UNSEEN, restarted.newest)
        assert slot_of(restarted).worker not in (None, before)
        await restarted.end()

    asyncio.run(story())


@pytest.mark.promise("R11", "F5")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("error", [died, unavailable])
def test_a_worker_that_dies_after_it_was_found_is_reported_with_its_checkpoint_and_replaced(
    restarted: Restarted, settled: bool, error: Any
) -> None:
    """Also while another slot is still asked what its worker is doing: the jobs' folder is known by then."""
    restarted.watch._max_silence = 0.5

    async def story() -> None:
        before, arbiter = restarted.named, asyncio.get_running_loop().create_future()
        restarted.arbiter.answer = lambda: arbiter
        settling = asyncio.get_running_loop().create_future()
        wait_until_settled = restarted.slots.wait_until_settled

        async def wait_for_another_slot() -> None:
            await wait_until_settled()
            await settling

        restarted.slots.wait_until_settled = wait_for_another_slot  # type: ignore[method-assign]
        resuming = asyncio.create_task(restarted.resume())
        await until_async(lambda: slot_of(restarted).incarnation == X1)
        if settled:
            settling.set_result(None)
            await resuming
        before.job.answer = error
        await until_async(lambda: restarted.heard)
        [left] = restarted.heard
        assert (left.job, left.cause, left.checkpoint) == ("x", ExitCause.LOST, restarted.newest)
        arbiter.set_result("socket")
        await until_async(lambda: slot_of(restarted).worker not in (None, before))
        if not settled:
            settling.set_result(None)
        await resuming
        await restarted.end()

    asyncio.run(story())


@pytest.mark.promise("R11", "F5")
def test_a_worker_that_lives_trains_on(restarted: Restarted) -> None:
    async def story() -> None:
        before = restarted.named
        await restarted.resume()
        await until_async(lambda: len(before.job.calls) > 3 and len(restarted.scheduler.placements.calls) > 1)
        assert (slot_of(restarted).incarnation, restarted.heard, restarted.killed) == (X1, [], [])
        await restarted.end()

    asyncio.run(story())


def test_a_slot_is_not_asked_again_what_its_worker_is_doing_when_only_its_arbiter_failed(restarted: Restarted) -> None:
    """An answer from before a launch would hide the launched job, which would count as lost."""

    async def story() -> None:
        slot, before = slot_of(restarted), restarted.named
        before.job.answer = lambda: None
        failures = iter([unavailable()])
        restarted.arbiter.answer = lambda: next(failures, "socket")
        await restarted.slots._fill(slot)
        assert (slot.worker, len(before.job.calls)) == (before, 1)

    asyncio.run(story())


def test_a_run_of_an_earlier_worker_says_nothing_about_its_heir(stage: Stage) -> None:
    """Otherwise the heir would count as idle before it has begun with the job that it was given."""

    async def story() -> None:
        stage.spec()
        await stage.launch()
        slot, heir = slot_of(stage), stage.worker()
        slot.assign(heir, Incarnation("y", 1, "scheduler"), exit_awaited=True)
        stage.runs[0].set_exception(unavailable())
        await until_async(lambda: not stage.slots._tasks)
        stage.watch.check(1.0)
        await until_async(lambda: heir.job.calls and not stage.watch._asked)
        assert slot.incarnation == Incarnation("y", 1, "scheduler")

    asyncio.run(story())


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_a_launch_that_began_again_is_not_reported_twice(restarted: Restarted) -> None:
    """Placements are levels: until the scheduler has taken in the death, it goes on placing the job."""

    async def story() -> None:
        restarted.named = None
        await restarted.resume()
        await until_async(lambda: restarted.heard)
        restarted.pool_manager._launcher.want([Placement("x", 2, (0,))])  # type: ignore[union-attr]
        await until_async(lambda: restarted.runs)
        assert [left.incarnation for left in restarted.heard] == [1]
        await restarted.end()

    asyncio.run(story())
