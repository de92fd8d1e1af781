"""A training, and machines on which folders, descriptors, memory, the clock or the terminal are not as usual."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import pwd
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from lightning_core.callbacks import CoreCallback
from tests.matrix.training import digest, ours_left

# Of Linux: unshare(2).
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
Terms = dict[str, Any]


def usual(folder: Path) -> Terms:
    """A machine like any other."""
    return {}


def home_missing(folder: Path) -> Terms:
    os.environ["HOME"] = str(folder / "no" / "home")
    os.environ.pop("LIGHTNING_CORE_HOME", None)
    return {}


def account_missing(folder: Path) -> Terms:
    """A container in which the user has a number and no name."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "USER", "LOGNAME", "LIGHTNING_CORE_HOME"):
        os.environ.pop(name, None)
    pwd.getpwuid = unknown
    return {}


def temporary_folder_missing(folder: Path) -> Terms:
    os.environ["TMPDIR"] = str(folder / "no" / "tmp")
    tempfile.tempdir = str(folder / "no" / "tmp")
    return {}


def nothing_can_be_written(folder: Path) -> Terms:
    """All that the callback is told to write to is on a disk that is read-only."""
    _own_mounts()
    locked = folder / "locked"
    locked.mkdir()
    _mount("tmpfs", "tmpfs", str(locked), "ro")
    os.environ["LIGHTNING_CORE_HOME"] = str(locked)
    return {"keep_best": locked, "history": locked / "history"}


def no_folder_there(folder: Path) -> Terms:
    """All that the callback is told to write to is below something that is no folder."""
    (folder / "file").touch()
    return {"keep_best": folder / "file" / "x", "history": "/proc/x"}


def disk_full(folder: Path) -> Terms:
    _own_mounts()
    full = folder / "full"
    full.mkdir()
    _mount("tmpfs", "tmpfs", str(full), "size=4k")
    (full / "all").write_bytes(b"x" * 4096)
    return {"keep_best": full, "history": full}


def shared_memory_full(folder: Path) -> Terms:
    _own_mounts()
    _mount("tmpfs", "tmpfs", "/dev/shm", "size=4k")
    Path("/dev/shm/all").write_bytes(b"x" * 4096)
    return {"keep_best": folder / "best"}


def no_proc(folder: Path) -> Terms:
    _own_mounts()
    _mount("tmpfs", "tmpfs", "/proc", "ro")
    return {"keep_best": folder / "best"}


def no_network(folder: Path) -> Terms:
    _unshare(CLONE_NEWNET)
    return {}


def folder_removed(folder: Path) -> Terms:
    """The working folder of the script is removed while it runs."""
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    return {"keep_best": "best", "history": "history"}


def umask_closes_all(folder: Path) -> Terms:
    os.umask(0o777)
    return {"keep_best": folder / "best"}


def umask_opens_all(folder: Path) -> Terms:
    os.umask(0)
    return {"keep_best": folder / "best", "history": folder / "history"}


def long_paths(folder: Path) -> Terms:
    """No socket can have such a path."""
    place = folder / ("a" * 120) / ("b" * 120)
    place.mkdir(parents=True)
    os.environ |= {"TMPDIR": str(place), "LIGHTNING_CORE_HOME": str(place)}
    tempfile.tempdir = str(place)
    return {"keep_best": place / ("c" * 200), "history": place / "history"}


def paths_too_long(folder: Path) -> Terms:
    name = "a" * 300
    os.environ["LIGHTNING_CORE_HOME"] = f"/tmp/{name}"
    return {"keep_best": folder / name, "history": folder / name}


def few_descriptors(folder: Path) -> Terms:
    """There are a dozen more than the training has."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 12, highest + 12))
    return {"keep_best": folder / "best", "history": folder / "history"}


def many_descriptors(folder: Path) -> Terms:
    """More than select() can tell apart."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    assert opened[-1] > 1024
    return {}


def clock_set_forward(folder: Path) -> Terms:
    _set_clock(folder, 1e9)
    return {}


def clock_set_back(folder: Path) -> Terms:
    _set_clock(folder, 60.0 - time.time())  # a machine without a battery begins in 1970
    return {}


def terminal_closed(folder: Path) -> Terms:
    for number in range(3):
        os.close(number)
    sys.stdout = sys.stderr = None
    return {}


def terminal_full(folder: Path) -> Terms:
    full = os.open("/dev/full", os.O_WRONLY)
    for number in (1, 2):
        os.dup2(full, number)
    return {}


def terminal_hung_up(folder: Path) -> Terms:
    """No process reads the pipe any more."""
    reads, writes = os.pipe()
    for number in (1, 2):
        os.dup2(writes, number)
    os.close(reads)
    return {}


def terminal_stopped(folder: Path) -> Terms:
    """No process reads the pipe, which is full."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with open(writes, "wb", buffering=0, closefd=False) as pipe:
        while pipe.write(b"x" * 4096):
            pass
    os.set_blocking(writes, True)
    os.dup2(writes, 1)
    os.environ["KEPT"] = str(reads)
    return {}


def terminal_of_ascii(folder: Path) -> Terms:
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, "ascii", "strict")
    return {}


def in_a_notebook(folder: Path) -> Terms:
    """Output goes to no file, and an event loop runs in the thread that trains."""
    sys.stdout = sys.stderr = io.StringIO()
    loop = asyncio.new_event_loop()
    asyncio.events._set_running_loop(loop)
    return {}


def threads_forbidden(folder: Path) -> Terms:
    """The account has as many processes as it may have: no thread can be started."""

    def start(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start  # type: ignore[assignment]
    return {"keep_best": folder / "best", "history": folder / "history"}


MACHINES: dict[str, Callable[[Path], Terms]] = {
    made.__name__: made
    for made in (
        usual, home_missing, account_missing, temporary_folder_missing, nothing_can_be_written, no_folder_there,
        disk_full, shared_memory_full, no_proc, no_network, folder_removed, umask_closes_all, umask_opens_all,
        long_paths, paths_too_long, few_descriptors, many_descriptors, clock_set_forward, clock_set_back,
        terminal_closed, terminal_full, terminal_hung_up, terminal_stopped, terminal_of_ascii, in_a_notebook,
        threads_forbidden,
    )
}  # fmt: skip


class Model(pl.LightningModule):
    """A line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.line(batch[0]), batch[1])
        self.log("loss", loss.detach())
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.line(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


def train(machine: str, folder: str, with_core: bool, pool: str = "auto") -> dict[str, Any]:
    """Train on such a machine, and return what must be equal with the callback and without it.

    Of two ranks, the last one is on this machine, and the other on a usual one.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = Path(folder)
    (place / "logs").mkdir(parents=True, exist_ok=True)
    options: Terms = {"logger": CSVLogger(place / "logs", version=0), "default_root_dir": place, "max_epochs": 4,
                      "devices": ranks, "strategy": "ddp" if ranks > 1 else "auto"}  # fmt: skip
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    loader, model = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True), Model()
    terms: Terms = {name: place / name for name in ("keep_best", "history")}
    if rank == ranks - 1:
        terms |= MACHINES[machine](place)
    os.environ["LIGHTNING_CORE_HISTORY"] = str(terms.pop("history"))
    core = (
        [CoreCallback(f"job-{os.getpgid(os.getppid())}", "1h", "val_loss<=1e-9", pool=pool, **terms)]
        if with_core
        else []
    )
    trainer = pl.Trainer(accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
                         enable_checkpointing=False, log_every_n_steps=2, callbacks=core, **options)  # fmt: skip
    trainer.fit(model, loader, loader)
    os.umask(0o022)
    best = core[0].best_model_path if core else ""
    return {
        "weights": digest(model.state_dict()),
        "steps": trainer.global_step,
        "random": float(torch.rand(())),
        "ours": ours_left(),
        "best": bool(best) and digest(torch.load(best, weights_only=True)["state_dict"]),
        "verdict": bool(core) and None if core and core[0].forecast is None else str(core and core[0].forecast.verdict),
    }


def _set_clock(folder: Path, by: float) -> None:
    """Set the clock of this process within a second, amid the training."""
    real, until = time.time, time.monotonic() + 0.1
    time.time = lambda: real() + (by if time.monotonic() > until else 0.0)


def _own_mounts() -> None:
    _unshare(CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def _mount(kind: str, what: str, where: str, options: str) -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, what, where], check=True)
