"""The pool manager when a worker, a spec, a disk or itself fails; test_cluster.py has the same with Ray."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from lightning_core.cluster import device_groups, launcher, monitor, node_slots, pool_manager, worker_slots
from lightning_core.cluster.device_groups import ACCELERATOR_LABEL, LOCATION_LABEL
from lightning_core.cluster.launcher import Launcher
from lightning_core.cluster.monitor import classify_exit
from lightning_core.cluster.pool_manager import PoolManager
from lightning_core.cluster.worker_slot import WorkerSlot
from lightning_core.core.answers import Placement
from lightning_core.core.codec import job_to_dict
from lightning_core.core.events import Checkpoint, ExitCause, LaunchTimedOut, WorkerExited
from lightning_core.core.jobs import Job, OnHold
from lightning_core.core.targets import BatchTarget
from lightning_core.run import ageing
from lightning_core.scheduler.settings import Settings
from lightning_core.server import clocks
from lightning_core.storage import atomic_files, job_specs
from lightning_core.storage.generations import Generations
from lightning_core.storage.job_checkpoints import checkpoint_folder, find
from lightning_core.worker.assignment import Assignment, Incarnation
from lightning_core.worker.script_run import FINISH_WITHIN
from lightning_core.worker.worker import modules_from
from tests.waiting import PATIENCE, until_async

SPEC = {"job": job_to_dict(Job("x", 9.0, BatchTarget(5))), "config": {}, "cell": 1, "save_every": 300.0,
        "keep_best": False, "hang": None, "paths": []}  # fmt: skip
X1 = Incarnation("x", 1, "scheduler")


class ImportedNowhere(RayTaskError):
    """What Ray raises where a worker cannot import what it is called with."""

    def __init__(self) -> None:
        """Have no cause."""

    def __str__(self) -> str:
        return "No module named 'lightning_core.worker'"


class Method:
    """Method of a handle: records its calls and answers them by a function."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer = answer

    def remote(self, *args: Any) -> Any:
        self.calls.append(args)
        answer = self.answer(*args)
        return answer if asyncio.isfuture(answer) else _after(answer)


async def _after(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class Stage:
    """A pool manager whose workers and scheduler are fakes of Ray's handles."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, devices: int = 1, workers_per_device: int = 1
    ) -> None:
        self.folder = folder
        self.pool_manager = PoolManager("pool", devices, workers_per_device, "cpu", 1, str(folder / "manager.json"))
        self.slots, self.watch = self.pool_manager._slots, self.pool_manager._monitor
        self.pool_manager._folder = folder
        self.runs: list[asyncio.Future[None]] = []
        self.assignments: list[Assignment] = []
        self.killed: list[Any] = []
        self.refilled: list[WorkerSlot] = []
        self.told = Method(lambda left: None)
        self.ended = Method(lambda incarnations: [False] * len(incarnations))
        self.checkpoints = Method(lambda job: ())
        self.digest = ""
        self.met: list[tuple[str, int]] = []
        self.scheduler = SimpleNamespace(
            event=self.told,
            have_ended=self.ended,
            checkpoints=self.checkpoints,
            spec_sha256=Method(lambda job: self.digest),
            register_devices=Method(lambda devices: None),
            set_unavailable=Method(lambda devices: None),
            set_found=Method(lambda kinds, machines: None),
            placements=Method(self._placements),
        )
        self.launcher = self.new_launcher()
        monkeypatch.setattr(ray, "get_actor", lambda name, namespace: self.scheduler)
        monkeypatch.setattr(ray, "kill", self.killed.append)
        monkeypatch.setattr(launcher, "RETRY_INTERVAL", 0.01)
        monkeypatch.setattr(self.slots, "_fill", self._fill)
        for slot in self.slots:
            slot.assign(self.worker())

    def new_launcher(self, ready_within: float = 60.0) -> Launcher:
        return Launcher(self.slots, self.watch, "scheduler", self.folder, ready_within)

    async def _fill(self, slot: WorkerSlot) -> None:
        self.refilled.append(slot)

    def worker(self) -> SimpleNamespace:
        meeting = Method(lambda: self.met.pop(0) if self.met else ("10.0.0.1", 12345))
        return SimpleNamespace(run=Method(self._run), job=Method(lambda: None), meeting=meeting)

    def _run(self, assignment: Assignment) -> asyncio.Future[None]:
        self.assignments.append(assignment)
        self.runs.append(asyncio.get_running_loop().create_future())
        return self.runs[-1]

    def _placements(self, known: list[Placement] | None, timeout: float) -> Any:
        """Return the placements once, and nothing new afterwards."""
        return [Placement("x", 1, (0,))] if known is None else asyncio.get_running_loop().create_future()

    def spec(self, text: str | None = None) -> Path:
        home = self.folder / "jobs" / "x"
        home.mkdir(parents=True, exist_ok=True)
        text = json.dumps(SPEC) if text is None else text
        (home / "spec.json").write_text(text)
        self.digest = job_specs.sha256(text)
        return home

    def noted(self) -> str:
        """Return the incarnation that was launched last."""
        note = self.folder / "jobs" / "x" / "launched"
        return note.read_text() if note.exists() else ""

    async def launch(self, incarnation: int = 1, devices: tuple[int, ...] = (0,)) -> None:
        """Place the job, and wait until nothing is left to do about that."""
        self.launcher.want([Placement("x", incarnation, devices)])
        await until_async(lambda: not self.launcher._admissions)

    async def try_to_launch(self, times: int) -> None:
        """Place the job, and wait until that many attempts to launch it have ended."""
        tried, ended = self.launcher._try, 0

        async def counted(placement: Placement, incarnation: Incarnation) -> str | None:
            nonlocal ended
            missing = await tried(placement, incarnation)
            ended += 1
            return missing

        self.launcher._try = counted  # type: ignore[method-assign]
        self.launcher.want([Placement("x", 1, (0,))])
        await until_async(lambda: ended >= times)

    @property
    def heard(self) -> list[Any]:
        return [left for (left,) in self.told.calls]


def slot_of(stage: Stage, number: int = 0) -> WorkerSlot:
    return list(stage.slots)[number]


def dead() -> RayActorError:
    return RayActorError()


def saved(home: Path, incarnation: int, text: str, batches: int) -> Checkpoint:
    """Write a checkpoint as an incarnation leaves it."""
    folder = checkpoint_folder(home, incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    Generations(2).save(folder / "last.ckpt", lambda file: file.write(text.encode()), batches=batches)
    found = find(folder)
    assert found is not None
    return found.checkpoint


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch, devices=3)


# ---------------------------------------------------------------------------------------------------- launching


@pytest.mark.parametrize(
    ("spec", "hangs", "limit"),
    [(SPEC, 2, None), (SPEC | {"hang": 60.0}, 0, 60.0), (SPEC | {"hang": 60.0}, 2, 240.0)],
)
def test_each_hang_doubles_the_time_that_a_step_may_take(
    stage: Stage, spec: dict[str, Any], hangs: int, limit: float | None
) -> None:
    stage.spec(json.dumps(spec))
    assert stage.launcher._assignment(Placement("x", 3, (0,), hangs), stage.digest).hang == limit


def test_a_job_that_offloads_is_launched_as_one(stage: Stage) -> None:
    for on_hold in OnHold:
        job = Job("x", 9.0, BatchTarget(5), on_hold=on_hold)
        stage.spec(json.dumps(SPEC | {"job": job_to_dict(job)}))
        assert stage.launcher._assignment(Placement("x", 1, (0,)), stage.digest).on_hold is on_hold


def test_a_job_is_launched_once_and_its_slot_is_free_afterwards(stage: Stage) -> None:
    async def story() -> None:
        stage.spec()
        await stage.launch()
        await stage.launch()
        assert (len(stage.runs), slot_of(stage).incarnation) == (1, X1)
        stage.runs[0].set_result(None)
        await until_async(lambda: not stage.slots.busy())
        assert stage.heard == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSONDecodeError"),
        ("[]", "spec.json has no job, config"),
        ("{}", "spec.json has no job, config"),
        (
            json.dumps({"job": SPEC["job"]}),
            "has no config, cell, save_every, keep_best, hang, paths; submit the job again",
        ),
        (json.dumps(SPEC | {"paths": 5}), "TypeError"),
        (json.dumps(SPEC | {"job": {"name": "x"}}), "missing required field deadline"),
    ],
)
def test_a_spec_that_cannot_be_read_crashes_its_job_alone(stage: Stage, text: str, words: str) -> None:
    async def story() -> None:
        stage.spec(text)
        await stage.launch()

    asyncio.run(story())
    [left] = stage.heard
    assert (left.job, left.incarnation, left.cause) == ("x", 1, ExitCause.UNUSABLE)
    assert left.detail.startswith("its spec cannot be read: ")
    assert words in left.detail
    assert not stage.runs


def test_files_of_jobs_that_ended_long_ago_go_while_the_pool_is_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ageing, "FIRST_SWEEP", 0.0)
    home, other = stage.spec(), stage.folder / "jobs" / "y"
    for folder in (home, other):
        folder.mkdir(exist_ok=True)
        for name in ("spec.json", "log.txt"):
            (folder / name).touch()
        os.utime(folder / "spec.json", (0.0, 0.0))
    stage.scheduler.about = Method(lambda: {"settings": Settings(keep_ended=7200.0).to_dict()})
    stage.scheduler.ends = Method(lambda: {"x": 7201.0, "y": 7100.0})

    async def story() -> None:
        stage.pool_manager._follow("scheduler", stage.folder)
        await until_async(lambda: not home.exists() and (other / "ended").exists())
        stage.pool_manager._stop_following()

    asyncio.run(story())
    assert sorted(path.name for path in other.iterdir()) == ["ended", "log.txt", "spec.json"]


@pytest.mark.parametrize("note", ["1", "1 begun"])
def test_a_launched_job_without_a_worker_comes_back(stage: Stage, note: str) -> None:
    """A pool manager was killed between recording a launch and sending it: that is no fault of the job.

    Or the worker died while there was no pool manager: that is reported like any other death.
    """

    async def story() -> None:
        (stage.spec() / "launched").write_text(note)
        newest = saved(stage.folder / "jobs" / "x", 1, "unseen", 30)
        await stage.launch(1)
        unseen = WorkerExited("x", 1, ExitCause.LOST, "its worker died while no pool manager was running", newest)
        assert stage.heard == [unseen if note == "1" else WorkerExited("x", 1, ExitCause.RELEASED)]
        assert not stage.runs
        await stage.launch(2)
        assert len(stage.runs) == 1
        assert stage.noted() == "2"

    asyncio.run(story())


@pytest.mark.promise("R12")
def test_an_incomplete_launch_is_repeated_after_a_restart(three: Stage) -> None:
    """Otherwise one rank would wait for the other in vain."""

    async def story() -> None:
        (three.spec() / "launched").write_text("1 begun")
        first = slot_of(three).worker
        slot_of(three).assign(first, X1)
        await three.launch(devices=(0, 1))
        assert (three.killed, three.heard) == ([first], [WorkerExited("x", 1, ExitCause.RELEASED)])

    asyncio.run(story())


def test_a_complete_launch_is_not_repeated_after_a_restart(three: Stage) -> None:
    async def story() -> None:
        (three.spec() / "launched").write_text("1")
        for number in (0, 1):
            slot_of(three, number).assign(three.worker(), X1)
        await three.launch(devices=(0, 1))
        assert (three.killed, three.heard, three.runs) == ([], [], [])

    asyncio.run(story())


@pytest.mark.promise("R12")
def test_a_launch_waits_for_busy_workers(stage: Stage) -> None:
    """A job that leaves may have to train to the end of its epoch first; the launch of another job waits for it."""

    async def story() -> None:
        stage.launcher = stage.new_launcher(ready_within=0.0)
        stage.spec()
        slot_of(stage).assign(slot_of(stage).worker, Incarnation("other", 1, "scheduler"))
        await stage.try_to_launch(3)
        assert (stage.runs, stage.heard, stage.noted()) == ([], [], "")
        stage.slots.release(slot_of(stage))
        await until_async(lambda: stage.runs)

    asyncio.run(story())


@pytest.mark.promise("R12", "F18")
def test_all_ranks_are_launched_or_none(three: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a device without a worker, or whose worker does not answer, the scheduler gets the reason; the other devices
    stay available."""
    monkeypatch.setattr(launcher, "MAX_SILENCE", 0.05)

    async def story() -> None:
        three.launcher = three.new_launcher(ready_within=0.15)
        three.spec()
        slot_of(three, 1).assign(None)
        slot_of(three, 1).problem = "its node is gone"
        await three.launch(devices=(0, 1))
        assert three.heard == [LaunchTimedOut("x", 1, "device 1: its node is gone")]
        hanging = slot_of(three, 2).worker
        hanging.job.answer = lambda: asyncio.get_running_loop().create_future()  # type: ignore[union-attr]
        three.launcher.want([])
        await three.launch(devices=(0, 2))
        assert three.heard[1] == LaunchTimedOut("x", 1, "device 2: its worker has not answered for 0 s")
        assert (three.killed, three.refilled) == ([hanging], [slot_of(three, 2)])
        assert (three.runs, slot_of(three).reserved, three.noted()) == ([], False, "")

    asyncio.run(story())


@pytest.mark.promise("S13")
@pytest.mark.parametrize("there", ["another", "a link", "a pipe", "the same"])
def test_a_spec_that_is_not_the_one_in_the_journal_is_not_launched(stage: Stage, there: str) -> None:
    """As after `pause --release`, when another one was put into its place."""

    async def story() -> None:
        path = stage.spec() / "spec.json"
        stage.digest = job_specs.sha256(text := path.read_text())
        path.unlink()
        if there == "a link":
            path.with_name("other").write_text(text)
            path.symlink_to("other")
        elif there == "a pipe":
            os.mkfifo(path)
        else:
            path.write_text(text if there == "the same" else text.replace("{", "{ ", 1))
        await stage.launch()
        if there == "the same":
            assert len(stage.runs) == 1
            return
        [left] = stage.heard
        assert (left.job, left.cause, stage.runs) == ("x", ExitCause.UNUSABLE, [])
        expected = {"another": "is not the spec that was submitted", "a link": "it is a link", "a pipe": "it is a pipe"}
        assert expected[there] in left.detail

    asyncio.run(story())


@pytest.mark.promise("F19")
def test_two_jobs_of_two_devices_on_three_do_not_deadlock(three: Stage) -> None:
    async def story() -> None:
        three.spec()
        (three.folder / "jobs" / "y").mkdir()
        (three.folder / "jobs" / "y" / "spec.json").write_text(json.dumps(SPEC))
        three.launcher.want([Placement("x", 1, (0, 1)), Placement("y", 1, (1, 2))])
        await until_async(lambda: len(three.runs) >= 2)
        assert {a.job for a in three.assignments} == {"x"} or {a.job for a in three.assignments} == {"y"}
        assert len(three.runs) == 2
        for run in three.runs:
            run.set_result(None)
        await until_async(lambda: len(three.runs) >= 4)
        assert sorted(a.job for a in three.assignments) == ["x", "x", "y", "y"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("met", "address"),
    [
        ([("10.0.0.1", 4001), ("10.0.0.1", 4002)], "127.0.0.1"),
        ([("10.0.0.1", 4001), ("10.0.0.2", 4002)], "10.0.0.1"),
    ],
)
def test_ranks_meet_at_an_address_that_all_can_reach(three: Stage, met: list[tuple[str, int]], address: str) -> None:
    async def story() -> None:
        three.spec()
        three.met = met
        await three.launch(devices=(0, 1))
        assert [(a.rank.address, a.rank.port, a.rank.number) for a in three.assignments] == [
            (address, 4001, 0),
            (address, 4001, 1),
        ]

    asyncio.run(story())


def test_a_withdrawn_placement_is_not_launched(stage: Stage) -> None:
    async def story() -> None:
        stage.spec()
        slot_of(stage).assign(slot_of(stage).worker, Incarnation("other", 1, "scheduler"))
        await stage.try_to_launch(1)
        stage.launcher.want([])
        stage.slots.release(slot_of(stage))
        await asyncio.sleep(0.05)
        assert not stage.runs

    asyncio.run(story())


def test_a_withdrawn_placement_is_not_launched_when_its_slot_becomes_free(stage: Stage) -> None:
    """It begins to wait for news, is cancelled, and there are news, in one step."""
    tried = stage.launcher._try

    async def tried_and_over(placement: Placement, incarnation: Incarnation) -> str | None:
        answer = await tried(placement, incarnation)
        asyncio.get_running_loop().call_soon(over)
        return answer

    def over() -> None:
        stage.launcher.want([])
        stage.slots.release(slot_of(stage))

    async def story() -> None:
        stage.spec()
        slot_of(stage).assign(slot_of(stage).worker, Incarnation("other", 1, "scheduler"))
        stage.launcher._try = tried_and_over  # type: ignore[method-assign]
        await stage.launch()
        assert not stage.runs

    asyncio.run(story())


@pytest.mark.promise("R5")
def test_an_incarnation_starts_from_an_accepted_checkpoint_only(stage: Stage) -> None:
    """The first incarnation was given up, and saved once more before it died."""

    async def story() -> None:
        home = stage.spec()
        accepted = saved(home, 1, "accepted", 40)
        stage.checkpoints.answer = lambda job: (accepted,)
        saved(home, 1, "too late", 50)
        await stage.launch(2)
        own = find(checkpoint_folder(home, 2))
        assert own is not None
        assert (own.path.read_text(), own.checkpoint) == ("accepted", accepted)
        saved(home, 1, "much too late", 60)
        assert own.path.read_text() == "accepted"

    asyncio.run(story())


def full_disk(path: Path, text: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.mark.promise("F7")
def test_a_full_disk_delays_only_the_launch_that_it_hits(three: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    write = atomic_files.write_whole
    full = True

    def now_and_then(path: Path, text: str) -> None:
        (full_disk if full and path.parent.name == "x" else write)(path, text)

    monkeypatch.setattr(launcher, "write_whole", now_and_then)

    async def story() -> None:
        nonlocal full
        three.launcher = three.new_launcher(ready_within=0.15)
        three.spec()
        (three.folder / "jobs" / "y").mkdir()
        (three.folder / "jobs" / "y" / "spec.json").write_text(json.dumps(SPEC))
        wanted = [Placement("x", 1, (0,)), Placement("y", 1, (1,))]
        three.launcher.want(wanted)
        await until_async(lambda: not three.launcher._admissions)
        assert [a.job for a in three.assignments] == ["y"]
        [timed_out] = three.heard
        assert "No space left on device" in timed_out.detail
        full = False
        three.launcher.want(wanted)
        await until_async(lambda: not three.launcher._admissions)
        assert [a.job for a in three.assignments] == ["y", "x"]

    asyncio.run(story())


# ---------------------------------------------------------------------------------------------------- watching


@pytest.mark.promise("R10", "F5")
def test_a_dead_rank_ends_its_own_job_only(three: Stage) -> None:
    async def story() -> None:
        home = three.spec()
        other = slot_of(three, 2)
        other.assign(other.worker, Incarnation("other", 1, "scheduler"))
        workers = [slot.worker for slot in three.slots]
        await three.launch(devices=(0, 1))
        newest = saved(home, 1, "in the last moment", 70)
        three.runs[0].set_exception(dead())
        await until_async(lambda: three.heard and len(three.refilled) >= 2)
        assert three.killed == workers[:2]
        assert three.refilled == [slot_of(three), slot_of(three, 1)]
        # The place is another worker's by the time that the one which was ended is heard of.
        heir, theirs = three.worker(), Incarnation("y", 1, "scheduler")
        slot_of(three, 1).assign(heir, theirs)
        three.runs[1].set_exception(dead())
        await asyncio.sleep(0.01)
        assert (slot_of(three, 1).worker, slot_of(three, 1).incarnation) == (heir, theirs)
        assert (other.worker, other.incarnation) == (workers[2], Incarnation("other", 1, "scheduler"))
        assert three.heard == [WorkerExited("x", 1, ExitCause.LOST, "the worker's process died", newest)]

    asyncio.run(story())


@pytest.mark.promise("R10")
@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (RayActorError(), ExitCause.LOST, "the worker's process died"),
        (ActorDiedError(), ExitCause.LOST, "the worker's process died"),
        (OutOfMemoryError("the node is low on memory"), ExitCause.OUT_OF_MEMORY, "OOM: "),  # type: ignore[no-untyped-call]
        (ImportedNowhere(), ExitCause.BROKEN, "No module"),
        (RayError("something else"), ExitCause.LOST, "something else"),
    ],
)
def test_exit_causes_of_workers(error: RayError, cause: ExitCause, words: str) -> None:
    found, detail = classify_exit(error)
    assert found is cause
    assert detail.startswith(words)


@pytest.mark.promise("R10", "F28")
@pytest.mark.parametrize(
    ("answer", "cause", "detail"),
    [
        ((True, "the kernel killed its process for memory"), ExitCause.OUT_OF_MEMORY,
         "OOM: the kernel killed its process for memory"),
        ((False, "suspected: out of memory"), ExitCause.LOST, "the worker's process died (suspected: out of memory)"),
        ((False, ""), ExitCause.LOST, "the worker's process died"),
        (ActorDiedError(), ExitCause.LOST, "the worker's process died"),
        (None, ExitCause.LOST, "the worker's process died"),
    ],
)  # fmt: skip
def test_the_node_of_a_worker_that_died_is_asked_why(
    answer: Any, cause: ExitCause, detail: str, three: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rank that ran out of memory the others are ended, before they can report a broken connection."""
    monkeypatch.setattr(worker_slots, "EXPLAIN_TIMEOUT", 0.05)

    async def story() -> None:
        three.spec()
        workers = [slot.worker for slot in three.slots]
        await three.launch(devices=(0, 1))
        asked = Method(lambda: asyncio.get_running_loop().create_future() if answer is None else answer)
        actors = {"pool-arbiter-1": SimpleNamespace(why_died=asked), "scheduler": three.scheduler}
        monkeypatch.setattr(ray, "get_actor", lambda name, namespace: actors[name])
        three.runs[1].set_exception(dead())
        await until_async(lambda: three.heard)
        [left] = three.heard
        assert (left.cause, left.detail) == (cause, detail)
        assert len(asked.calls) == 1
        assert three.killed == [workers[1], workers[0]] or three.killed == workers[:2]

    asyncio.run(story())


@pytest.mark.promise("R10", "F28")
def test_while_the_node_is_asked_why_its_worker_died_nothing_else_is_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler still lists the job then: it would be told of a loss, and not that memory ran out."""

    async def story() -> None:
        stage.spec()
        await stage.launch()
        why = asyncio.get_running_loop().create_future()
        actors = {"pool-arbiter-0": SimpleNamespace(why_died=Method(lambda: why)), "scheduler": stage.scheduler}
        monkeypatch.setattr(ray, "get_actor", lambda name, namespace: actors[name])
        stage.runs[0].set_exception(dead())
        await until_async(lambda: stage.killed)
        await stage.launch()
        assert stage.heard == []
        why.set_result((True, "the kernel killed its process for memory"))
        await until_async(lambda: stage.heard)
        assert [left.cause for left in stage.heard] == [ExitCause.OUT_OF_MEMORY]
        await stage.launch()  # an older list: that the job has left is told again, which changes nothing
        assert [left.incarnation for left in stage.heard] == [1, 1]

    asyncio.run(story())


@pytest.mark.promise("R10", "F20")
def test_a_preemption_does_not_count_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActorDiedError, "preempted", True)
    assert classify_exit(ActorDiedError()) == (ExitCause.PREEMPTED, "its node was preempted")


async def looked(stage: Stage, times: int, gone: float | None = 1.0) -> None:
    for _ in range(times):
        stage.watch.check(gone)
        await asyncio.sleep(0.01)


@pytest.mark.promise("R11", "F27")
def test_a_worker_that_hangs_is_given_up_before_ten_seconds(stage: Stage) -> None:
    async def story() -> None:
        stage.spec()
        await stage.launch()
        worker = slot_of(stage).worker
        assert worker is not None
        worker.job.answer = lambda: X1
        await looked(stage, 30)
        assert stage.killed == []
        worker.job.answer = lambda: asyncio.get_running_loop().create_future()
        await looked(stage, 1)  # its last answer was one look ago
        await looked(stage, 7)
        assert stage.killed == []
        assert len(worker.job.calls) == 1 + 30 + 1  # one question at a time; one before it was launched
        await looked(stage, 2)
        assert stage.killed == [worker]
        await until_async(lambda: stage.heard)
        [left] = stage.heard
        assert (left.cause, left.detail) == (ExitCause.LOST, "its worker on device 0 has not answered for 9 s")
        assert stage.slots.unavailable() == {0: left.detail}  # its node may be lost: the job goes elsewhere

    asyncio.run(story())


@pytest.mark.promise("R11", "F27")
def test_a_hung_gang_is_given_up_once_and_other_workers_stay_monitored(
    three: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        three.spec()
        await three.launch(devices=(0, 1))
        workers = [slot.worker for slot in three.slots]
        other = slot_of(three, 2)
        other.assign(other.worker, Incarnation("other", 1, "scheduler"))
        for worker in workers:
            assert worker is not None
            worker.job.answer = lambda: asyncio.get_running_loop().create_future()
        await looked(three, 8)
        other.silent_for = 0.0
        await looked(three, 2)
        assert three.killed == workers[:2]
        await until_async(lambda: three.heard)
        assert [left.job for left in three.heard] == ["x"]
        monkeypatch.setattr(three.slots, "is_draining", lambda device: True)
        await looked(three, 8)
        assert three.killed == workers
        await until_async(lambda: len(three.heard) >= 2)
        assert [(left.job, left.cause) for left in three.heard[1:]] == [("other", ExitCause.PREEMPTED)]

    asyncio.run(story())


@pytest.mark.promise("F21", "R11")
def test_of_a_gang_all_silent_ranks_are_taken_off_their_devices_at_once_and_the_others_are_not(three: Stage) -> None:
    """The machine of two ranks is lost: a job that came back on the device of the second would wait a minute there."""

    async def story() -> None:
        three.spec()
        await three.launch(devices=(0, 1, 2))
        workers: list[Any] = [slot.worker for slot in three.slots]
        for worker in workers[:2]:
            worker.job.answer = lambda: asyncio.get_running_loop().create_future()
        workers[2].job.answer = lambda: X1
        await looked(three, 10)
        assert three.killed == workers
        assert set(three.slots.unavailable()) == {0, 1}

    asyncio.run(story())


@pytest.mark.promise("F21", "R11")
def test_a_device_is_unavailable_while_another_worker_is_being_started_where_one_is_silent() -> None:
    made = worker_slots.WorkerSlots("pool", 2, 2, "cpu")
    on_it, being_started, *elsewhere = made
    for slot in (on_it, *elsewhere):
        slot.assign(object())
    being_started.unavailable = False  # as while it may still come
    on_it.assign(None)
    made.suspect(on_it)
    assert set(made.unavailable()) == {0}
    being_started.assign(object())
    assert made.unavailable() == {}


@pytest.mark.promise("F21", "R11")
@pytest.mark.parametrize("how", ["died", "silent"])
def test_an_idle_worker_whose_node_is_lost_is_replaced(three: Stage, how: str) -> None:
    """Its device would else be planned on until a job had failed to start there."""

    async def story() -> None:
        lost, *others = three.slots
        worker: Any = lost.worker
        worker.job.answer = dead if how == "died" else lambda: asyncio.get_running_loop().create_future()
        await looked(three, 12)
        assert three.killed == [worker]
        assert [slot.worker is None for slot in three.slots] == [True, False, False]
        await until_async(lambda: three.refilled == [lost])
        lost.problem, lost.unavailable = "its node is lost", True  # as where it cannot be filled
        assert three.slots.unavailable() == {0: "its node is lost"}
        assert three.told.calls == []  # it had no job
        assert others[0].worker.job.calls  # type: ignore[union-attr]

    asyncio.run(story())


def test_an_answer_of_an_idle_worker_does_not_end_the_job_that_it_got_meanwhile(stage: Stage) -> None:
    async def story() -> None:
        slot, answer = slot_of(stage), asyncio.get_running_loop().create_future()
        worker: Any = slot.worker
        worker.job.answer = lambda: answer
        await looked(stage, 1)
        slot.assign(worker, X1)
        answer.set_result(None)
        await asyncio.sleep(0.01)
        assert slot.incarnation == X1

    asyncio.run(story())


@pytest.mark.promise("R11", "F23")
def test_a_worker_behind_a_broken_connection_is_given_up(stage: Stage) -> None:
    """Ray says for a minute that it is unavailable, which may be so."""

    async def story() -> None:
        stage.spec()
        await stage.launch()
        worker = slot_of(stage).worker
        assert worker is not None
        worker.job.answer = lambda: ActorUnavailableError("cut off", None)
        await looked(stage, 10)
        await until_async(lambda: stage.heard)
        assert (stage.killed, [left.cause for left in stage.heard]) == ([worker], [ExitCause.LOST])

    asyncio.run(story())


@pytest.mark.promise("F3", "R11")
def test_a_stalled_pool_manager_gives_no_worker_up_for_its_own_stall(stage: Stage) -> None:
    async def story() -> None:
        stage.spec()
        await stage.launch()
        worker = slot_of(stage).worker
        assert worker is not None
        worker.job.answer = lambda: asyncio.get_running_loop().create_future()
        await looked(stage, 8)
        await looked(stage, 1, gone=None)
        await looked(stage, 8)
        assert stage.killed == []
        await looked(stage, 2)
        assert stage.killed == [worker]

    asyncio.run(story())


def test_the_stall_aware_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = clocks.StallAwareClock(3.0)
    now += 2.0
    assert clock.since() == 2.0
    now += 30.0
    assert clock.since() is None
    now += 1.0
    assert clock.since() == 1.0


@pytest.mark.promise("R11", "F5")
def test_a_worker_of_an_earlier_pool_manager_is_monitored_by_asking(stage: Stage) -> None:
    async def story() -> None:
        slot = slot_of(stage)
        worker: Any = slot.worker
        worker.job.answer = lambda: X1
        slot.assign(worker, X1)
        await looked(stage, 2)
        assert slot.incarnation == X1
        worker.job.answer = lambda: None
        await looked(stage, 1)
        assert slot.holds(worker)
        assert slot.incarnation is None
        slot.assign(worker, X1)
        worker.job.answer = dead
        await looked(stage, 1)
        await until_async(lambda: stage.heard)
        assert (stage.killed, stage.heard) == (
            [worker],
            [WorkerExited("x", 1, ExitCause.LOST, "the worker's process died")],
        )

    asyncio.run(story())


def test_a_worker_that_continues_an_ended_job_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        stage.ended.answer = lambda incarnations: [True] * len(incarnations)
        stage.spec()
        await stage.launch()
        worker = slot_of(stage).worker
        await stage.watch.kill_overdue(stage.scheduler, "scheduler")
        assert stage.killed == []
        monkeypatch.setattr(monitor, "OVERDUE_GRACE", -1.0)
        await stage.watch.kill_overdue(stage.scheduler, "scheduler")
        await until_async(lambda: stage.refilled)
        assert (stage.killed, stage.refilled) == ([worker], [slot_of(stage)])

    asyncio.run(story())


def test_a_script_whose_job_has_ended_may_finish(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test or an upload after its training; the worker itself ends one whose job was cancelled."""

    async def story() -> None:
        stage.ended.answer = lambda incarnations: [True] * len(incarnations)
        stage.spec(json.dumps({**SPEC, "config": {"script": "train.py"}}))
        await stage.launch()
        monkeypatch.setattr(monitor, "OVERDUE_GRACE", -1.0)
        for _ in range(2):
            await stage.watch.kill_overdue(stage.scheduler, "scheduler")
        assert stage.killed == []
        monkeypatch.setattr(monitor, "OVERDUE_GRACE", -1.0 - FINISH_WITHIN)
        await stage.watch.kill_overdue(stage.scheduler, "scheduler")
        await until_async(lambda: stage.killed)

    asyncio.run(story())


# ---------------------------------------------------------------------------------------------------- the pool manager


def test_an_unexpected_error_does_not_end_the_monitoring(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_manager, "ERROR_PAUSE", 0.01)
    monkeypatch.setattr(pool_manager, "AWAY_PAUSE", 0.01)
    failures = iter([KeyError("unforeseen"), RayError("away"), TimeoutError()])
    stage.scheduler.register_devices.answer = lambda devices: next(failures, None)

    async def story() -> None:
        stage.spec()
        following = asyncio.create_task(stage.pool_manager._keep_launched("scheduler", stage.launcher))
        await until_async(lambda: stage.runs)
        following.cancel()

    asyncio.run(story())
    assert len(stage.runs) == 1
    assert "unforeseen" in caplog.text


def test_a_failed_start_of_a_worker_is_retried_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_slots, "RETRY_INTERVAL", 0.01)
    made = worker_slots.WorkerSlots("pool", 2, 1, "cpu")
    first, second = made
    failures = iter([RayError("no"), RuntimeError("no")])

    async def tries(slot: WorkerSlot) -> None:
        if slot is first:
            await asyncio.get_running_loop().create_future()  # its node is gone: Ray never says so
        for error in failures:
            raise error
        slot.assign(SimpleNamespace())

    monkeypatch.setattr(made, "_try_to_fill", tries)
    monkeypatch.setattr(made, "_groups", SimpleNamespace(has=lambda device: True, problem=lambda device: ""))

    async def story() -> None:
        filling = [asyncio.create_task(made._fill(slot)) for slot in made]
        await until_async(lambda: second.worker)
        assert first.worker is None
        assert (made.find_free(0), made.find_free(1)) == ("its worker is starting", second)
        filling[0].cancel()

    asyncio.run(story())


@pytest.mark.parametrize(("kind", "needs_worker"), [("cpu", False), ("gpu", True)])
def test_a_device_can_be_shared_before_its_workers_have_imported_what_they_need(
    monkeypatch: pytest.MonkeyPatch, kind: str, needs_worker: bool
) -> None:
    """A GPU's name is known from its first worker."""
    made = worker_slots.WorkerSlots("pool", 2, 2, kind)

    async def story() -> None:
        wait_until_shared = asyncio.create_task(made.wait_until_shared())
        for device in (0, 1):
            await asyncio.sleep(0.01)
            assert not wait_until_shared.done()
            made.arbiters[device] = f"/turn{device}"
            made.changed.set()
        await asyncio.sleep(0.01)
        assert wait_until_shared.done() is not needs_worker
        for slot in made:
            if slot.number == 0:
                slot.assign(SimpleNamespace())
        made.changed.set()
        await asyncio.wait_for(wait_until_shared, PATIENCE)
        wait_until_warm = asyncio.create_task(made.wait_until_warm())
        await asyncio.sleep(0.01)
        assert not wait_until_warm.done()
        wait_until_warm.cancel()

    asyncio.run(story())


def test_opening_fails_if_no_worker_can_start_on_a_device() -> None:
    made = worker_slots.WorkerSlots("pool", 1, 1, "cpu")
    [slot] = made
    slot.failures, slot.problem = worker_slots.MAX_START_FAILURES, "its worker could not be started: no"
    with pytest.raises(RuntimeError, match="could not be started: no"):
        asyncio.run(made.wait_until_shared())


@pytest.mark.promise("F21", "R12")
def test_a_device_is_unavailable_until_its_worker_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while one is being started, nor while another slot of the device has one."""
    monkeypatch.setattr(worker_slots, "RETRY_INTERVAL", 0.01)
    made = worker_slots.WorkerSlots("pool", 2, 2, "cpu")
    states = {0: "", 1: ""}
    monkeypatch.setattr(made, "_groups", SimpleNamespace(has=lambda device: True, problem=states.get, draining={}))
    there: list[asyncio.Future[Any]] = []

    async def tries(slot: WorkerSlot) -> None:
        there.append(asyncio.get_running_loop().create_future())
        slot.assign(await made._await_start(slot, there[-1]))

    monkeypatch.setattr(made, "_try_to_fill", tries)

    async def story() -> None:
        [filling] = [asyncio.create_task(made._fill(slot)) for slot in list(made)[2:3]]
        list(made)[3].unavailable = True
        await until_async(lambda: made.unavailable() == {0: "its worker is starting"})  # where nothing is known yet
        for slot in list(made)[:2]:
            slot.unavailable = False
        states[1] = "its node is gone"
        await until_async(lambda: made.unavailable() == {1: "its node is gone"})
        states[1] = ""
        await until_async(lambda: made.unavailable() == {})
        monkeypatch.setattr(worker_slots, "START_TIMEOUT", 0.0)
        await until_async(lambda: made.unavailable() == {1: "its worker is starting"})
        # One that has failed is not believed to be back before it is.
        list(made)[2].failures = 1
        monkeypatch.setattr(worker_slots, "START_TIMEOUT", 1e9)
        await asyncio.sleep(0.05)
        assert made.unavailable() == {1: "its worker is starting"}
        there[0].set_result(SimpleNamespace())
        await filling
        assert made.unavailable() == {}

    asyncio.run(story())


def test_a_new_node_gives_no_device_before_a_worker_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose worker is replaced stays available; one that goes meanwhile is gone, and has not failed."""
    monkeypatch.setattr(worker_slots, "RETRY_INTERVAL", 0.01)
    made = node_slots.NodeSlots("pool", 3, 1, "cpu")
    there = {0, 1, 2}
    groups = SimpleNamespace(has=there.__contains__, problem=lambda _: "", draining={})
    monkeypatch.setattr(made, "_groups", groups)
    asked = list[int]()

    async def story() -> None:
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def tries(slot: WorkerSlot) -> None:
            asked.append(slot.device)
            slot.assign(await made._await_start(slot, asyncio.shield(started)))

        monkeypatch.setattr(made, "_try_to_fill", tries)
        new, other, gone = made
        other.unavailable = False
        made._begin(0)
        made._begin(2)
        made.spawn(made._fill(other))
        await until_async(lambda: len(asked) == 3)
        await asyncio.sleep(0.1)
        assert made.unavailable() == dict.fromkeys((0, 2), "its worker is starting")
        there.remove(2)
        gone.problem = node_slots.NO_NODE
        await until_async(lambda: not gone.filling)
        started.set_result(SimpleNamespace())
        await until_async(lambda: new.worker is not None and other.worker is not None)
        assert (made.unavailable(), gone.failures) == ({2: node_slots.NO_NODE}, 0)

    asyncio.run(story())


def test_a_pool_manager_retries_to_resume_its_work(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once() -> None:
        pass

    monkeypatch.setattr(stage.slots, "open", at_once)
    monkeypatch.setattr(stage.slots, "wait_until_settled", at_once)
    memory = stage.folder / "manager.json"
    memory.write_text("")

    async def story() -> None:
        with pytest.raises(json.JSONDecodeError):
            await stage.pool_manager.busy()
        memory.write_text(json.dumps(["scheduler", str(stage.folder)]))
        assert await stage.pool_manager.busy() == []
        following = stage.pool_manager._following
        assert following
        await stage.pool_manager.busy()
        assert stage.pool_manager._following is following  # once
        for task in [*following, stage.pool_manager._monitoring]:
            assert task is not None
            task.cancel()

    asyncio.run(story())


@pytest.mark.promise("F20")
def test_devices_of_a_draining_node_are_unavailable_until_placed_elsewhere(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told once for each change, also to a scheduler that could not be told at first; so is what the devices are."""
    monkeypatch.setattr(pool_manager, "ASK_INTERVAL", 0.01)
    draining: dict[str, int] = {}
    table: dict[str, Any] = {"state": "CREATED", "bundles_to_node_id": {0: "old"}}
    looks = 0

    def get_draining_nodes() -> dict[str, int]:
        nonlocal looks
        looks += 1
        return draining

    look = "lightning_core.cluster.device_groups.ray_state.get_draining_nodes"
    monkeypatch.setattr(look, get_draining_nodes)
    monkeypatch.setattr(device_groups, "placement_group_table", lambda group: table)
    nodes = [{"NodeID": node, "Labels": {ACCELERATOR_LABEL: kind}} for node, kind in (("old", "A100"), ("new", "T4"))]
    monkeypatch.setattr("lightning_core.cluster.device_groups.ray.nodes", lambda: nodes)
    stage.slots._groups._groups = [object()]
    failures = iter([RayError("away")])

    def answer(devices: object) -> None:
        for error in failures:
            raise error

    stage.scheduler.set_unavailable.answer = answer

    async def story() -> None:
        looking = asyncio.create_task(stage.pool_manager._report_devices("scheduler"))
        changes: tuple[Callable[[], None], ...] = (
            lambda: None,
            lambda: draining.update(old=1),
            draining.clear,
            lambda: table.update(state="RESCHEDULING"),
            lambda: table.update(state="CREATED", bundles_to_node_id={0: "new"}),
        )
        for change in changes:
            change()
            # A report that fails is repeated after the next look, and is there before the one after that.
            enough = looks + 3
            await until_async(lambda: looks >= enough)  # noqa: B023
        looking.cancel()

    asyncio.run(story())
    none: list[Any] = []
    away = [(0, "its node is draining")]
    assert [devices for (devices,) in stage.scheduler.set_unavailable.calls] == [none, none, away, none]
    assert stage.scheduler.set_found.calls == [(("a100",), ()), (("t4",), ())]


def test_two_jobs_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
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


def test_modules_imported_before_a_job_stay(tmp_path: Path) -> None:
    before = dict(sys.modules)
    root = str(Path(launcher.__file__).parents[2])
    with modules_from([root]):
        import lightning_core.report.svg
    assert {name: module for name, module in sys.modules.items() if name in before} == before
    assert sys.modules["lightning_core.report.svg"] is lightning_core.report.svg


@pytest.mark.parametrize(
    ("locations", "selectors"),
    [
        ((), [None, None]),
        (("edge", "cloud"), [[{LOCATION_LABEL: "edge"}], [{LOCATION_LABEL: "cloud"}]]),
    ],
)
def test_each_placement_group_asks_for_its_location(
    monkeypatch: pytest.MonkeyPatch, locations: tuple[str, ...], selectors: list[Any]
) -> None:
    asked: list[tuple[Any, ...]] = []

    def group(bundles: Any, strategy: str, name: str, lifetime: str, bundle_label_selector: Any) -> str:
        asked.append((bundles, name, lifetime, bundle_label_selector))
        return name

    def nowhere(name: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr(device_groups, "placement_group", group)
    monkeypatch.setattr(ray.util, "get_placement_group", nowhere)
    device_groups.DeviceGroups("pool", 2, "device", locations).create()
    assert [line[1] for line in asked] == ["pool-device-0", "pool-device-1"]
    assert [line[3] for line in asked] == selectors
    assert all(line[0] == [{"device": 1}] and line[2] == "detached" for line in asked)
