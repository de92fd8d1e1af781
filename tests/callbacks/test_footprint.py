"""What a training opens, starts and leaves, without a pool and in one; and in the folders to which Hydra takes scripts.

Hydra itself is not installed for the tests: they change the directory before anything of ours is made, as it does with
``hydra.job.chdir=true``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.loggers import CSVLogger

from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import JobStatus
from lightning_core.node.processes import started
from tests.matrix.forks import Forks
from tests.socket_servers import Pool, socket_pool
from tests.tiny import QUIET, Line, ValidatedPoints

# Events of Python's audit hooks (PEP 578) by which a process reaches another one, or starts one.
REACHES = ("socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.fork", "os.posix_spawn")
TARGET = "val_loss<=1e-9"


def train(where: str, name: str, epochs: int, of_hydra: bool, resume: str | None) -> list[str]:
    """Train in a folder.

    Args:
        where: The folder.
        name: Name of the job.
        epochs: Number of its epochs.
        of_hydra: Whether to write logs, checkpoints and the best model there.
        resume: Checkpoint to resume from.

    Returns:
        What was reached or started meanwhile.
    """
    os.chdir(where)
    reached: list[str] = []

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event in REACHES:
            reached.append(str(args[1] if event.startswith("socket.") else args[0]))

    core = CoreCallback(name, "1h", TARGET, keep_best=of_hydra)
    more = {"enable_checkpointing": True, "logger": CSVLogger(".")} if of_hydra else {}
    trainer = pl.Trainer(**{**QUIET, "max_epochs": epochs, **more}, callbacks=[core])
    sys.addaudithook(note)
    trainer.fit(Line(), datamodule=ValidatedPoints(), ckpt_path=resume)
    if of_hydra:
        trainer.save_checkpoint("last.ckpt")
        assert core.best_model_path == str(Path(where) / "lightning-core" / f"{name}-best.ckpt")
    return reached


def sweep(where: str, names: list[str]) -> None:
    """Train one job after the other in this process, each in a folder of its own, as a sweep of Hydra does."""
    for name in names:
        (place := Path(where) / name).mkdir()
        train(str(place), name, 1, True, None)


class Machine:
    """Folders of a user, and scripts in them.

    Args:
        forks: Runs the scripts.
        folder: Folder for the user's home, temporary files, and the script's own folder.
    """

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks = forks
        self.home, self.temporary, self.here = (folder / name for name in ("home", "tmp", "here"))
        for made in (self.home, self.temporary, self.here):
            made.mkdir()

    def run(self, function: str, *args: Any, **environment: str) -> Any:
        """Run a function of this module, and return what it returns."""
        told = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "LIGHTNING_CORE_HOME": "", **environment}
        [ended] = self._forks.run(f"{__name__}:{function}", *args, environment=told)
        assert ended.code == 0, ended.output[-3000:]
        return ended.value

    def train(
        self, name: str = "vit", epochs: int = 1, *, of_hydra: bool = False, resume: str = "", **environment: str
    ) -> list[str]:
        """Train in a new folder below the script's own, and return what was reached."""
        (place := self.here / f"{len(list(self.here.iterdir()))}").mkdir()
        reached: list[str] = self.run("train", str(place), name, epochs, of_hydra, resume or None, **environment)
        return reached

    def left(self) -> list[str]:
        """Return the files that there are."""
        found = (path for folder in (self.home, self.temporary, self.here) for path in folder.rglob("*"))
        return sorted(str(path.relative_to(self.home.parent)) for path in found if path.is_file())


@pytest.fixture
def machine(forks: Forks, tmp_path: Path) -> Machine:
    return Machine(forks, tmp_path)


@pytest.fixture
def pool(machine: Machine) -> Iterator[Pool]:
    """The pool that scripts find in the user's home."""
    with socket_pool(machine.home / ".lightning_core" / "pool") as made:
        body = {"pid": os.getpid(), "started": started(os.getpid()), "temp": "/nowhere", "socket": str(made.path)}
        (made.folder / "head.json").write_text(json.dumps(body | {"token": "/nowhere/token"}))
        yield made


def job(pool: Pool, name: str) -> JobStatus:
    """Return the newest job of a name."""
    found: list[JobStatus] = [one for one in pool.do(pool.actor.status())[1] if one.name == name]
    return found[-1]


def test_without_a_pool_a_training_reaches_nothing_and_leaves_nothing(machine: Machine) -> None:
    assert machine.train() == []
    assert machine.left() == []


def test_in_a_pool_a_training_reaches_the_sockets_of_the_pool_alone(machine: Machine, pool: Pool) -> None:
    before = machine.left()
    assert set(machine.train()) == {str(pool.path), "/turn"}  # of scheduler and device arbiter: none has a port
    assert set(machine.left()) - set(before) <= {
        f"home/.lightning_core/pool/history.db{more}" for more in ("", "-wal", "-shm")
    }


def test_runs_are_kept_in_the_folder_that_is_named_and_in_no_other(machine: Machine) -> None:
    machine.train(LIGHTNING_CORE_HISTORY=str(machine.home / "runs"))
    assert {name.partition("-")[0] for name in machine.left()} == {"home/runs/history.db"}


def test_a_script_that_hydra_takes_elsewhere_finds_its_pool_and_what_it_saves_is_there(
    machine: Machine, pool: Pool
) -> None:
    machine.train(of_hydra=True)
    first = job(pool, "vit")
    assert first.batches == 16
    assert {
        "here/0/last.ckpt",
        "here/0/lightning-core/vit-best.ckpt",
        "here/0/lightning_logs/version_0/metrics.csv",
    } <= {*machine.left()}
    machine.train(epochs=2, of_hydra=True, resume=str(machine.here / "0" / "last.ckpt"))
    second = job(pool, "vit")
    assert second.batches == 32
    assert second.deadline == pytest.approx(first.deadline, abs=0.5)
    assert "here/1/lightning-core/vit-best.ckpt" in machine.left()
    assert {name.split("/")[0] for name in machine.left()} == {"home", "here"}  # nothing in the temporary folder
    assert not [name for name in machine.left() if name.startswith("home/") and "/.lightning_core/pool/" not in name]


def test_the_jobs_of_a_sweep_in_one_process_are_jobs_of_their_own(machine: Machine, pool: Pool) -> None:
    machine.run("sweep", str(machine.here), ["lr-0.1", "lr-0.2"])
    assert [job(pool, name).batches for name in ("lr-0.1", "lr-0.2")] == [16, 16]
    assert {f"here/{name}/lightning-core/{name}-best.ckpt" for name in ("lr-0.1", "lr-0.2")} <= {*machine.left()}


def test_a_home_that_is_relative_is_looked_for_where_the_script_is(machine: Machine, pool: Pool) -> None:
    relative = os.path.relpath(machine.home / ".lightning_core", machine.here)
    assert machine.train(LIGHTNING_CORE_HOME=relative) == []  # from a folder below: there is no pool
    assert machine.train(LIGHTNING_CORE_HOME=f"../{relative}") != []
