"""Trainings within a training, beside it in its process, or in processes that it starts: none waits for itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import pytest

from lightning_core.agent.participant import WITHIN
from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import BatchTarget
from tests.callbacks.test_callback import AlwaysFree, ConnectedScript, Script, fit, grant
from tests.conftest import ROOT
from tests.socket_servers import Pool, found_pool
from tests.tiny import Line
from tests.waiting import join, until

pytestmark = pytest.mark.promise("F38")


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool of one device that one job has at a time: the first holds until the second has ended, or the reverse."""
    with found_pool(policy="fifo") as made:
        yield made


def joined(pool: Pool, job: str, target: Any = "1000000 batches") -> CoreCallback:
    return CoreCallback(job, "1h", target, pool=str(pool.path.parent))


def jobs(pool: Pool) -> list[str]:
    return [job.name for job in pool.do(pool.actor.status())[1]]


class Probe(pl.Callback):
    """Fits another Trainer after each epoch, as a linear probe does.

    Args:
        make: Makes its callback.
    """

    def __init__(self, make: Callable[[int], CoreCallback]) -> None:
        self.make, self.steps = make, list[int]()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.steps.append(fit(self.make(trainer.current_epoch), max_epochs=1).global_step)


@pytest.mark.parametrize("name", ["probe", "outer"])
def test_a_training_within_a_training_has_part_in_its_grant(pool: Pool, name: str) -> None:
    probe = Probe(lambda epoch: joined(pool, name))
    trainer = fit(joined(pool, "outer"), max_epochs=2, callbacks=[probe, joined(pool, "outer")])
    assert (probe.steps, trainer.global_step) == ([16, 16], 32)
    assert jobs(pool) == ["outer"]


def test_the_callback_of_a_training_may_be_that_of_the_one_within_it(pool: Pool) -> None:
    core = joined(pool, "outer")
    probe = Probe(lambda epoch: core)
    trainer = fit(core, max_epochs=2, callbacks=[core, probe])
    assert (probe.steps, trainer.global_step) == ([16, 16], 32)
    assert core.verdict is not None


def test_the_one_within_reports_and_stops_by_itself(pool: Pool) -> None:
    """It has a scheduler of its own, which knows its target."""
    inner: list[CoreCallback] = []

    def make(epoch: int) -> CoreCallback:
        inner.append(joined(pool, f"inner-{epoch}", "20 batches"))
        return inner[-1]

    class Long(Probe):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
            done = fit(self.make(trainer.current_epoch), Line(pause=0.002), max_epochs=-1)
            self.steps.append(done.global_step)

    probe = Long(make)
    fit(joined(pool, "outer"), max_epochs=1, callbacks=[probe, joined(pool, "outer")])
    assert probe.steps[0] >= 20
    assert str(inner[0].verdict) == "met"


def test_two_trainings_of_one_process_that_meet_wait_for_nothing_else(pool: Pool) -> None:
    """Under a policy that would hold one of them until the other has ended."""
    meeting = threading.Barrier(2)
    steps: dict[str, int] = {}

    class Meets(pl.Callback):
        def on_train_start(self, *_: Any) -> None:
            meeting.wait(60.0)  # they begin at the same moment

        def on_train_batch_end(self, *_: Any) -> None:
            meeting.wait(60.0)

    def train(name: str) -> None:
        steps[name] = fit(joined(pool, name), max_epochs=2, callbacks=[Meets(), joined(pool, name)]).global_step

    threads = [threading.Thread(target=train, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert steps == {"a": 32, "b": 32}
    assert len(jobs(pool)) == 1


def test_one_that_lasts_longer_than_the_first_joins_the_pool(pool: Pool) -> None:
    core = joined(pool, "guest")
    begun, first_is_over = threading.Event(), threading.Event()

    class Lasts(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            begun.set()
            trainer.should_stop = first_is_over.is_set() and "guest" in jobs(pool)

    def train() -> None:
        fit(core, Line(pause=0.002), max_epochs=-1, callbacks=[core, Lasts()])

    guest = threading.Thread(target=train, daemon=True)

    class Starts(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 1:
                guest.start()
                assert begun.wait(60.0)

    fit(joined(pool, "host"), max_epochs=1, callbacks=[joined(pool, "host"), Starts()])
    assert jobs(pool) == ["host"]
    first_is_over.set()
    join(guest)
    assert jobs(pool) == ["host", "guest"]


def test_while_the_first_is_held_the_others_of_its_process_hold_too() -> None:
    script, progress = Script(grant(1, 1.0)), list[float]()
    host = ConnectedScript("host", BatchTarget(10**9), client=script)

    class Ticks(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            progress.append(time.monotonic())

    guest = threading.Thread(
        target=lambda: fit(CoreCallback("guest", target="1000000 batches"), Line(pause=0.002), max_epochs=-1,
                           max_steps=400, callbacks=[CoreCallback("guest", target="1000000 batches"), Ticks()]),
        daemon=True,
    )  # fmt: skip

    def steer() -> None:
        until(lambda: len(progress) > 20)
        script.say(grant(2, 0.0))
        until(lambda: time.monotonic() - progress[-1] > 1.0)
        held = len(progress)
        script.say(grant(3, 1.0))
        until(lambda: len(progress) > held + 20)
        host_is_over.set()

    host_is_over = threading.Event()

    class Ends(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 1:
                guest.start()
                threading.Thread(target=steer, daemon=True).start()
            trainer.should_stop = host_is_over.is_set()

    fit(host, Line(pause=0.002), max_epochs=-1, callbacks=[host, Ends()])
    join(guest)
    assert len(progress) == 400


def test_one_within_takes_the_turns_of_the_first() -> None:
    """Its batches end the quantum that the first has begun."""
    script, lock = Script(grant(1, 0.5)), AlwaysFree()
    lock.expired = lambda: True  # type: ignore[method-assign]
    host = ConnectedScript("host", BatchTarget(10**9), client=script, device_lock=lock)
    turns: list[int] = []

    class Within(Probe):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
            before = len(lock.log)
            super().on_train_epoch_end(trainer, pl_module)
            turns.append(len(lock.log) - before)

    fit(host, max_epochs=1, callbacks=[host, Within(lambda epoch: CoreCallback("inner", target="9999 batches"))])
    assert turns == [32]  # each of its batches gives the device up, and takes it again


CHILD = """
from lightning_core.callbacks import CoreCallback
from tests.callbacks.test_callback import fit
print("steps", fit(CoreCallback("child", "1h", "1000000 batches"), max_epochs=1).global_step)
"""


@pytest.mark.parametrize("how", ["started", "forked"])
def test_a_process_that_a_training_starts_and_waits_for_has_part_in_its_grant(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_POOL", str(pool.path.parent))
    said: list[str] = []

    class Evaluates(pl.Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            if how == "started":
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
                command = [sys.executable, "-c", CHILD]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
                said.append(done.stdout)
                assert done.returncode == 0, done.stderr
            elif (child := os.fork()) == 0:
                trained = fit(CoreCallback("child", "1h", "1000000 batches"), max_epochs=1).global_step
                os._exit(trained)
            else:
                said.append(f"steps {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

    core = CoreCallback("parent", "1h", "1000000 batches")
    fit(core, max_epochs=1, callbacks=[core, Evaluates()])
    assert "steps 16" in said[0]
    assert jobs(pool) == ["parent"]
    assert WITHIN not in os.environ
