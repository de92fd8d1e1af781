"""Scripts that a pool does not take: those that it never can train alone at once, and others wait and are listed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import lightning.pytorch as pl
import pytest

from lightning_core.callbacks import CoreCallback
from lightning_core.cli.main import main
from lightning_core.core.codec import job_to_dict
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import NameTakenError
from lightning_core.server.clients import socket_client
from tests.callbacks.test_callback import fit
from tests.matrix.forks import Forks
from tests.socket_servers import Pool, found_pool
from tests.tiny import QUIET, Line, Points
from tests.waiting import join, until


@pytest.fixture
def pool() -> Iterator[Pool]:
    with found_pool() as made:
        yield made


def joined(pool: Pool, target: str = "1000000 batches") -> CoreCallback:
    return CoreCallback("job", "1h", target, pool=str(pool.path.parent))


def alone(pool: Pool, core: CoreCallback, caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Train, and check that it was without the pool, for a reason that is told once."""
    trainer = fit(core, max_epochs=2)
    assert trainer.global_step == 32
    told = [line for line in caplog.messages if "training without it" in line]
    assert len(told) == 1
    assert words in told[0]
    assert pool.do(pool.actor.status())[1] == []


def test_a_script_of_another_version_trains_alone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket_client, "PROTOCOL", socket_client.PROTOCOL - 1)
    alone(pool, joined(pool), caplog, "upgrade the older one")


def test_a_script_on_another_kind_of_device_trains_alone(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.do(pool.actor.register_devices([("GPU-1", "/turn")]))
    alone(pool, joined(pool), caplog, "this process trains on cpu, but the pool manages GPU-1")


def test_a_target_that_the_policy_cannot_pursue_is_no_reason_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with found_pool(policy="lara") as pool:
        alone(pool, joined(pool, "loss<=-5"), caplog, "so the target must be above 0, got -5")


def test_a_script_with_more_ranks_than_the_pool_has_devices_trains_alone(pool: Pool, forks: Forks) -> None:
    ended = forks.run("tests.callbacks.test_refusals:train_as_a_rank", str(pool.path.parent), ranks=2)
    assert [(one.code, one.value) for one in ended] == [(0, 32), (0, 32)]
    assert ended[0].output.count("job trains on 2 devices, the pool has 1") == 1
    assert pool.do(pool.actor.status())[1] == []


def train_as_a_rank(pool: str) -> int:
    """Train as one of two ranks; return the steps."""
    core = CoreCallback("job", "1h", "1000000 batches", pool=pool)
    trainer = pl.Trainer(max_epochs=4, callbacks=[core], strategy="ddp", devices=2, **QUIET)
    trainer.fit(Line(), datamodule=Points())
    return trainer.global_step


def test_a_script_that_waits_for_its_name_is_listed_until_it_has_it(
    pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()

    class Stops(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
            trainer.should_stop = stop.is_set()

    def train(core: CoreCallback) -> None:
        pl.Trainer(max_epochs=-1, callbacks=[core, Stops()], **QUIET).fit(Line(pause=0.005), datamodule=Points())

    # In a process of its own, for jobs of one process have one grant: as if its client were another's.
    first = threading.Thread(target=train, args=(joined(pool),), daemon=True)
    first.start()
    until(lambda: [job.name for job in pool.do(pool.actor.status())[1]] == ["job"])
    other = socket_client.SocketClient(pool.path)
    job = pool.do(pool.actor.job("job"))
    with pytest.raises(NameTakenError):
        other.call("join", job=job_to_dict(job), device="cpu", incarnation=None)
    shown = ["status", "--pool", str(pool.path.parent)]
    assert main(shown) == 0
    assert "job: another script holds until this name is free" in capsys.readouterr().out
    assert main([*shown, "--json"]) == 0
    [waiting] = json.loads(capsys.readouterr().out)["waiting"]
    assert waiting["job"] == "job"
    stop.set()
    join(first)
    until(lambda: not pool.do(pool.actor.about())["waiting"] or _joins(other, job))
    assert main(shown) == 0
    assert "another script holds" not in capsys.readouterr().out


def _joins(client: socket_client.SocketClient, job: Job) -> bool:
    client.call("join", job=job_to_dict(job), device="cpu", incarnation=None)
    return True
