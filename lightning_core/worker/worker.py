"""A worker: a warm process on a device, with torch and Lightning imported, that trains one job after another."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_core.core.answers import JobForecast, Verdict
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.targets import Target
from lightning_core.node.cgroups import sweep
from lightning_core.storage.job_checkpoints import checkpoint_folder, find
from lightning_core.storage.job_specs import SAVE_EVERY
from lightning_core.worker.exit_causes import cause_of, origin, story
from lightning_core.worker.process_group import ALONE, Rank, free_port, is_stuck, joined_ranks, trainer_arguments

if TYPE_CHECKING:
    from lightning_core.callbacks import CoreCallback

log = logging.getLogger(__name__)

# How long a scheduler that does not answer is told of a worker's end, seconds.
PATIENCE = 60.0
CHECKPOINT = "last.ckpt"
# A rank that has lost the others says so this much later, seconds: one of them may know why, and its word comes first.
AFTER_OTHERS = 3.0


class Incarnation(NamedTuple):
    """One life of a job, and the scheduler's name that it is a job of."""

    job: str
    incarnation: int
    scheduler: str


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to train a job.

    Args:
        job: its name.
        incarnation: which life of the job this is.
        target: when it is met.
        config: of LightningCLI.
        cell: least batches in a loss cell.
        save_every: least seconds between two saves for fear of what cannot be foreseen.
        keep_best: whether the best model is kept in the job's folder.
        scheduler: name of the scheduler's actor.
        folder: where the job saves, and what it printed.
        paths: where class paths are looked up.
        kind: of the devices.
        devices: that the job is on.
        rank: of this worker.
    """

    job: str
    incarnation: int
    target: Target
    config: Mapping[str, Any]
    cell: int
    scheduler: str
    folder: str
    paths: tuple[str, ...]
    kind: str
    devices: tuple[int, ...] = (0,)
    rank: Rank = ALONE
    save_every: float = SAVE_EVERY
    keep_best: bool = False


class Worker:
    """A Ray actor with two threads: one trains, one answers.

    Args:
        arbiter: path of the socket of the device's turnstile.
        kind: of the device.
        cores: of the device, if it is a CPU.
    """

    def __init__(self, arbiter: str, kind: str, cores: int = 1) -> None:
        if cores > 1:
            # Threads that wait long must not burn the cores that the job was granted, or those of the one whose turn it
            # is. But if they are asleep at once, two are no faster than one: for some 100 us they stay awake.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        # Imported once and kept: most of what a cold start costs.
        import torch

        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        torch.set_num_threads(cores)
        for name in [name for name in os.environ if name.startswith("LIGHTNING_CORE_")]:
            del os.environ[name]  # meant for the shell that started the pool, not for the jobs in it
        if kind == "gpu" and torch.cuda.device_count() != 1:
            raise RuntimeError(f"a worker must see one GPU, sees {torch.cuda.device_count()}")
        gc.collect()
        gc.freeze()  # what was imported stays: looking for garbage among it costs 0.1 to 0.4 s after every job
        sweep()  # the worker that was here before may have been killed
        self._arbiter = Path(arbiter)
        self._cores = cores
        self._lock = threading.Lock()
        self._assignment: Assignment | None = None

    def run(self, assignment: Assignment) -> None:
        """Builds the job, trains it, and tells the scheduler how it ended."""
        with self._lock:
            if self._assignment is not None:
                raise RuntimeError(f"the worker still trains {self._assignment.job}")
            self._assignment = assignment
        try:
            left = self._train(assignment)
            if left.cause is ExitCause.LOST and assignment.rank.of > 1:
                time.sleep(AFTER_OTHERS)
            if assignment.rank.number == 0 or left.cause not in (ExitCause.DONE, ExitCause.RELEASED):
                self._tell(assignment, left)
            _give_memory_back()
            if is_stuck():
                os._exit(1)  # in a process group that cannot be left: this process is of no use to other jobs
        finally:
            self._assignment = None

    def job(self) -> Incarnation | None:
        """The life of a job that it has; None while idle."""
        assignment = self._assignment
        return None if assignment is None else Incarnation(assignment.job, assignment.incarnation, assignment.scheduler)

    def meeting(self) -> tuple[str, int]:
        """Where the ranks of a job could meet here: address of this machine, and a port that is free."""
        import ray.util

        address: Any = ray.util.get_node_ip_address  # it has no types
        return str(address()), free_port()

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def device(self) -> str:
        """What it trains on: ``"cpu"``, or the UUID of the GPU."""
        import torch

        return f"GPU-{torch.cuda.get_device_properties(0).uuid}" if torch.cuda.is_available() else "cpu"

    def _train(self, assignment: Assignment) -> WorkerExited:
        """Trains a job to its end, or to where it leaves; never raises."""
        from lightning_core.callbacks.launched import LaunchedCallback
        from lightning_core.node.arbiter_client import ArbiterClient
        from lightning_core.node.device_cores import cores_of
        from lightning_core.server.ray_actor import RayClient

        rank, home = assignment.rank, Path(assignment.folder)
        on_host, device = assignment.kind == "cpu", assignment.devices[rank.number]
        bound = cores_of(device, self._cores, self._arbiter) if on_host else None
        device_lock = ArbiterClient(self._arbiter, cores=bound)
        log_file = home / (f"log-{rank.number}.txt" if rank.number else "log.txt")
        try:
            with _printing_to(log_file), modules_from(assignment.paths), joined_ranks(rank):
                callback = LaunchedCallback(
                    assignment.job,
                    assignment.target,
                    client=RayClient(assignment.scheduler),
                    device_lock=device_lock,
                    incarnation=assignment.incarnation,
                    devices=assignment.devices,
                    cores=self._cores,
                    folder=checkpoint_folder(home, assignment.incarnation),
                    every=assignment.cell,
                    save_every=assignment.save_every,
                    keep_best=home if assignment.keep_best else False,
                )
                return fit(assignment, callback)
        except Exception as error:  # of what lies around a training: a disk in trouble, say
            return WorkerExited(assignment.job, assignment.incarnation, ExitCause.LOST, story(error))
        finally:
            device_lock.close()

    def _tell(self, assignment: Assignment, left: WorkerExited) -> None:
        from lightning_core.server.ray_actor import RayClient

        client = RayClient(assignment.scheduler)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:  # calls to an actor that is being restarted fail at once
            try:
                client.left(left)
                if left.cause in (ExitCause.DONE, ExitCause.RAISED, ExitCause.UNUSABLE):
                    _say_last(assignment, client.job_forecast(assignment.job))
                return
            except ConnectionError as error:
                log.warning("%s: %s", assignment.job, error)
                time.sleep(0.5)


def _say_last(assignment: Assignment, word: JobForecast | None) -> None:
    """Adds to the log of a job that is over what became of it."""
    from lightning_core.callbacks.metric_logging import summary_line

    if word is not None and word.verdict in (Verdict.MET, Verdict.MISSED, Verdict.CANCELLED, Verdict.CRASHED):
        with suppress(OSError), (Path(assignment.folder) / "log.txt").open("a") as file:
            print(summary_line(assignment.job, word), file=file)


def fit(assignment: Assignment, callback: CoreCallback) -> WorkerExited:
    """Builds a job, and trains it from where the life before it was saved; why it ended.

    Args:
        assignment: what to train.
        callback: that joins its Trainer to the scheduler.
    """
    from lightning_core.bundle.lightning_config import build
    from lightning_core.callbacks.checkpointing.job_writer import CheckpointNotSavedError, write
    from lightning_core.callbacks.control.fit_signals import JobEnded, JobFenced, JobReleased
    from lightning_core.callbacks.reporting.horizon import ended_by

    rank, home = assignment.rank, Path(assignment.folder)
    folder = checkpoint_folder(home, assignment.incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    left = WorkerExited(assignment.job, assignment.incarnation)
    building, fenced = True, False
    try:
        ranks = trainer_arguments(rank, assignment.kind)
        cli = build(assignment.config, assignment.kind, home, callback, ranks)
        building = False
        found = find(folder)  # what the Keeper has put there, and nothing else
        start = assignment.config.get("ckpt_path") if found is None else str(found.path)
        try:
            cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=start)
        except JobReleased:
            return replace(left, cause=ExitCause.RELEASED, saved=callback.saved)
        except JobFenced as word:  # nothing is saved, and nobody waits for its own word
            fenced = True
            return replace(left, cause=ExitCause.LOST, detail=str(word))
        except JobEnded:
            pass
        else:
            left = replace(left, detail=ended_by(cli.trainer)[1])
        try:
            left = replace(left, saved=write(cli.trainer, folder / CHECKPOINT))
        except CheckpointNotSavedError as error:  # the training has come to its end all the same
            log.warning("%s: its last state is not saved: %s", assignment.job, error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a person's class may raise anything
        cause = cause_of(error, building=building)
        return replace(left, cause=cause, detail=story(origin(error) if building else error, rank.number, rank.of))
    finally:
        if rank.number == 0 and not fenced:
            _link(home / CHECKPOINT, folder / CHECKPOINT)
    return left


def _link(link: Path, to: Path) -> None:
    """For people: the last state of a job, whichever incarnation saved it."""
    if not to.exists():
        return
    beside = link.with_name(f"{link.name}.new")
    try:
        beside.unlink(missing_ok=True)
        beside.symlink_to(to.relative_to(link.parent))
        os.replace(beside, link)
    except OSError as error:
        log.warning("%s does not point to the last checkpoint: %s", link, error)


def _give_memory_back() -> None:
    """What a job held on a GPU is for the next one, which another process may train."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """What the job prints, from Python or from below, goes to a file of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def modules_from(folders: Sequence[str]) -> Iterator[None]:
    """Class paths are looked up in these folders too, meanwhile.

    What was imported from them is forgotten afterwards: the next job's ``model.py`` is another one, or was edited.
    """
    path, before = list(sys.path), set(sys.modules)
    sys.path += [folder for folder in folders if folder not in path]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        new = set(sys.modules) - before
        theirs = {name for name in new if "." not in name and _folder_of(sys.modules[name]) in folders}
        for name in new:
            if name.partition(".")[0] in theirs:
                del sys.modules[name]


def _folder_of(module: ModuleType) -> str | None:
    """In which a top-level module or package lies."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))).parent)
    return None if spec.origin is None else str(Path(spec.origin).parent)
