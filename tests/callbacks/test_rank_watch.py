"""Ranks that wait for each other are noticed within the time scale of their own steps, with where each of them is."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed

from lightning_core.agent.reporting import rank_watch
from lightning_core.agent.reporting.hang_watch import HangWatch, Phase
from lightning_core.agent.reporting.rank_watch import MIN_MOVES, MIN_STILL, RankWatch
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.targets import BatchTarget
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.matrix.forks import Forks
from tests.tiny import QUIET, Batch, Line, Points
from tests.waiting import until

pytestmark = pytest.mark.promise("R13", "F26", "F27")


class Store:
    """A store of a process group, in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def clone(self) -> Store:
        return self

    def set_timeout(self, timeout: Any) -> None:
        """Take any."""

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)

    def get(self, key: str) -> str:
        return self.kept[key]


class Watched:
    """Two ranks whose training threads stand at places that the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, store = 0.0, Store()
        self.hangs = [HangWatch(None), HangWatch(None)]
        for rank, hangs in enumerate(self.hangs):
            hangs.thread = rank
        self.watches = [
            RankWatch("job", rank, 2, hangs, lambda: store, lambda: self.now) for rank, hangs in enumerate(self.hangs)
        ]
        self.places = [
            rank_watch.StalledPlace("all_reduce (a.py:1)", True, "a"),
            rank_watch.StalledPlace("b (b.py:2)", False, "b"),
        ]
        monkeypatch.setattr(rank_watch, "_place_of", lambda thread: self.places[thread])

    def step(self, seconds: float = 1.0, ranks: tuple[int, ...] = (0, 1)) -> None:
        """Let time pass; some ranks do a step at its end."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for watch in reversed(self.watches):
                watch.look()
        for rank in ranks:
            self.hangs[rank].begin(Phase.TRAINING)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched(monkeypatch)
    for _ in range(MIN_MOVES + 5):
        made.step()
    return made


def test_ranks_that_move_are_not_compared(watched: Watched) -> None:
    for _ in range(100):
        watched.step(5.0)
        assert watched.watches[0].look() is None


def test_ranks_in_different_places_are_reported_with_where_they_are(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.step(MIN_STILL + 5.0, ranks=())
    hang = watched.watches[0].look()
    assert hang is not None
    assert hang.ranks == 2
    assert "rank 0 waits in all_reduce (a.py:1); rank 1 is in b (b.py:2)" in caplog.text
    watched.step(1e4, ranks=())
    assert caplog.text.count("no rank has moved") == 1
    assert not watched.watches[0].is_over  # rank 1 may just take long
    watched.step()
    watched.step()
    assert watched.watches[0].look() is None


def test_ranks_that_wait_in_different_collectives_will_wait_for_ever(watched: Watched) -> None:
    watched.places[1] = rank_watch.StalledPlace("broadcast (b.py:2)", True, "b")
    watched.step(MIN_STILL + 3.0, ranks=())
    assert not watched.watches[0].is_over
    watched.step(MIN_STILL + 3.0, ranks=())
    assert watched.watches[0].is_over
    assert watched.watches[0].story().endswith("and they are not all in the same place")


def test_ranks_in_one_collective_may_take_any_time(watched: Watched) -> None:
    watched.places[1] = watched.places[0]
    watched.step(1e4, ranks=())
    assert watched.watches[0].look() is None


def test_a_rank_that_moves_is_none_that_others_wait_for(watched: Watched) -> None:
    """It may be in a loop of its own, that ends."""
    for _ in range(100):
        watched.step(1.0, ranks=(1,))
    assert watched.watches[0].look() is None


def test_a_training_that_often_stands_still_may_do_so_for_longer(watched: Watched) -> None:
    watched.step(10.0)
    watched.step(10.0)
    watched.step(100.0, ranks=())
    assert watched.watches[0].look() is None
    watched.step(150.0, ranks=())
    assert watched.watches[0].look() is not None


def test_while_a_rank_saves_the_others_wait_for_longer(watched: Watched) -> None:
    for hangs in watched.hangs:
        hangs.excuse(saves=True)
    watched.step(10 * MIN_STILL, ranks=())
    assert watched.watches[0].look() is None


def test_before_the_first_steps_anything_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.step()
    watched.step(1e4, ranks=())
    assert watched.watches[0].look() is None


# ---------------------------------------------------------------------------------------------------- in real ranks


class Parts(Line):
    """Rank 1 parts from rank 0 after some batches.

    Args:
        how: It waits ``"elsewhere"``, in another collective, or ``"sleeps"``.
        log: Where it says that it goes on.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        if self.steps == 12:
            if self.global_rank == 1 and self.how == "sleeps":
                time.sleep(6.0)
            if self.global_rank == 1 and self.how == "elsewhere":
                torch.distributed.all_reduce(torch.ones(3))
            if self.global_rank == 0 and self.how == "elsewhere":
                torch.distributed.broadcast(torch.ones(7), 1)
        return super().training_step(batch, batch_idx)


def train(how: str, launched: bool) -> list[str]:
    """Train two ranks that part; return what rank 0 has said of it, and given up for."""
    rank_watch.MIN_STILL = 1.5
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    rank_watch.log.logger.addHandler(listener)
    script = Script(grant(1, 1.0)._replace(devices=(0, 1)))
    given_up = threading.Event()

    def give_up(story: str) -> None:
        said.append(story)
        given_up.set()

    core: Any = ConnectedScript("job", BatchTarget(10**9), client=script)
    if launched:
        core = LaunchedCallback("job", BatchTarget(10**9), client=script, devices=(0, 1), give_up=give_up)
    trainer = pl.Trainer(max_epochs=2, strategy="ddp", devices=2, callbacks=[core], **QUIET)
    thread = threading.Thread(target=trainer.fit, args=(Parts(how), Points().train_dataloader()), daemon=True)
    thread.start()
    if how == "elsewhere" and launched and trainer.global_rank == 0:
        assert given_up.wait(60.0)
    elif how == "elsewhere":
        until(lambda: said or trainer.global_rank == 1, 60.0)
        time.sleep(8.0 if trainer.global_rank == 1 else 0.0)
    else:
        thread.join(60.0)
    said += [str(report.hang.reason) for report in script.reports if report.hang is not None][:1]
    return said


def test_a_rank_that_another_waits_for_is_reported_with_where_it_is(forks: Forks) -> None:
    first, _ = forks.run("tests.callbacks.test_rank_watch:train", "sleeps", False, ranks=2)
    assert first.value is not None, first.output[-3000:]
    line, reason = first.value
    assert "rank 1 is in training_step (test_rank_watch.py:" in line
    assert "rank 0 waits in " in line
    assert "time.sleep(6.0)" in line  # of its stack
    assert reason.startswith("none of its 2 ranks has moved for")


def test_a_launched_job_whose_ranks_wait_in_different_collectives_is_given_up(forks: Forks) -> None:
    first, _ = forks.run("tests.callbacks.test_rank_watch:train", "elsewhere", True, ranks=2, limit=40.0)
    assert first.value is not None, first.output[-3000:]
    line, story, _ = first.value
    assert "rank 0 waits in training_step (test_rank_watch.py:" in line
    assert "rank 1 waits in training_step (test_rank_watch.py:" in line
    assert "rank 0:" in story
    assert "rank 1:" in story
