"""A worker: a warm process on a device, with torch and Lightning imported, that trains one job after another."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning_core.core.answers import JobForecast, Verdict
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.node.cgroups import sweep
from lightning_core.storage.job_checkpoints import checkpoint_folder
from lightning_core.view.lossy_output import lossy_output
from lightning_core.worker.assignment import Assignment, Incarnation
from lightning_core.worker.exit_causes import is_out_of_memory, origin, story
from lightning_core.worker.process_group import free_port, is_stuck, joined_ranks
from lightning_core.worker.training import fit

log = logging.getLogger(__name__)

# Seconds for which the end of a training is reported to a scheduler that does not answer.
REPORT_TIMEOUT = 60.0
# Modules that every training needs.
NEEDED = (
    "lightning_core.callbacks.launched", "lightning_core.bundle.lightning_config",
    "lightning_core.server.clients.ray_client",
)  # fmt: skip
# Seconds by which a rank that has lost the others delays its report: one of them may know the cause and report first.
LOST_REPORT_DELAY = 3.0


class Worker:
    """A Ray actor with two threads: one trains, one answers.

    Args:
        arbiter: Path of the socket of the device's arbiter.
        kind: Kind of the device.
        cores: Cores of the device, if it is a CPU.
    """

    def __init__(self, arbiter: str, kind: str, cores: int = 1) -> None:
        if cores > 1:
            # Threads that wait for long must not burn cores that the job, or another one, was granted. If they slept at
            # once, two would be no faster than one, so they spin for some 100 us.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        # Imported once and kept: this is most of a cold start, and a device is warm only after it.
        import torch

        with suppress(ImportError):  # reported when a job is placed here, as a fault of this node
            for module in NEEDED:
                importlib.import_module(module)
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        self._threads = _threads_of_user(Path("/proc/self/environ").read_bytes()) or cores
        torch.set_num_threads(self._threads)
        for name in [name for name in os.environ if name.startswith("LIGHTNING_CORE_")]:
            del os.environ[name]  # set for the shell that started the pool, not for its jobs
        if kind == "gpu" and torch.cuda.device_count() != 1:
            raise RuntimeError(f"a worker must see one GPU, sees {torch.cuda.device_count()}")
        gc.collect()
        gc.freeze()  # imports stay: collecting garbage among them would take 0.1 to 0.4 s after every job
        sweep()  # control groups of a worker that was killed
        self._arbiter = Path(arbiter)
        self._cores = cores
        self._lock = threading.Lock()
        self._assignment: Assignment | None = None

    def run(self, assignment: Assignment) -> None:
        """Train a job, and report to the scheduler how it ended."""
        with self._lock:
            if self._assignment is not None:
                raise RuntimeError(f"the worker still trains {self._assignment.job}")
            self._assignment = assignment
        try:
            left = self._train(assignment)
            if left.cause is ExitCause.LOST and assignment.rank.of > 1:
                time.sleep(LOST_REPORT_DELAY)
            if assignment.rank.number == 0 or left.cause not in (ExitCause.DONE, ExitCause.RELEASED):
                self._report(assignment, left)
            if not assignment.script:
                _leave_nothing(well=left.cause in (ExitCause.DONE, ExitCause.RELEASED))
            if is_stuck():
                os._exit(1)  # stuck in a process group, this process can train no other job
        finally:
            self._assignment = None

    def job(self) -> Incarnation | None:
        """Return the incarnation of a job that the worker has; None while it is idle."""
        assignment = self._assignment
        return None if assignment is None else Incarnation(assignment.job, assignment.incarnation, assignment.scheduler)

    def meeting(self) -> tuple[str, int]:
        """Return where ranks can meet on this machine: its address, and a free port."""
        import ray.util

        address: Any = ray.util.get_node_ip_address  # it has no types
        return str(address()), free_port()

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def device(self) -> str:
        """Return the name of the device: ``"cpu"``, or the UUID of the GPU."""
        import torch

        from lightning_core.agent.user_code.torch_here import gpu_of

        return gpu_of(torch.device("cuda", 0)) if torch.cuda.is_available() else "cpu"

    def _train(self, assignment: Assignment) -> WorkerExited:
        """Train a job until it ends or is released; never raises."""
        try:
            return self._train_here(assignment)
        except ImportError as error:  # of a module that every training needs: this node's installation differs
            return WorkerExited(assignment.job, assignment.incarnation, ExitCause.BROKEN, story(error))
        except Exception as error:  # outside the training, such as a disk error
            cause = ExitCause.OUT_OF_MEMORY if is_out_of_memory(origin(error)) else ExitCause.LOST
            return WorkerExited(assignment.job, assignment.incarnation, cause, story(error))

    def _train_here(self, assignment: Assignment) -> WorkerExited:
        if assignment.script:
            return self._run_script(assignment)
        import torch

        from lightning_core.bundle.strategies import strategy_of
        from lightning_core.callbacks.launched import LaunchedCallback
        from lightning_core.node.arbiter_client import ArbiterClient
        from lightning_core.node.device_cores import cores_of
        from lightning_core.node.suspender_client import suspender_of
        from lightning_core.server.clients.ray_client import RayClient

        torch.set_num_threads(self._threads)  # the job before may have set its own
        rank, home = assignment.rank, Path(assignment.folder)
        on_host, device = assignment.kind == "cpu", assignment.devices[rank.number]
        bound = cores_of(device, self._cores, self._arbiter) if on_host else None
        device_lock = ArbiterClient(self._arbiter, cores=bound)
        log_file = home / (f"log-{rank.number}.txt" if rank.number else "log.txt")
        try:
            with (
                _output_to(log_file),
                modules_from(assignment.paths),
                joined_ranks(rank, strategy_of(assignment.config)),
            ):
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
                    hang=assignment.hang,
                    on_hold=assignment.on_hold,
                    give_up=partial(self._give_up, assignment),
                    suspender=suspender_of(self._arbiter),
                )
                return fit(assignment, callback)
        finally:
            device_lock.close()

    def _run_script(self, assignment: Assignment) -> WorkerExited:
        from lightning_core.node.device_cores import CORES, cores_of
        from lightning_core.node.suspender_client import suspender_of
        from lightning_core.worker.relay import to_actor
        from lightning_core.worker.script_run import WorkerDevice, run_script

        bound = None
        if assignment.kind == "cpu":
            bound = sorted(cores_of(assignment.devices[0], self._cores, self._arbiter))
            os.sched_setaffinity(0, CORES)  # a script begins as in a shell, whatever this thread trained before
        device = WorkerDevice(self._arbiter, bound, self._cores, self._threads, suspender_of(self._arbiter))
        return run_script(assignment, device, to_actor(assignment.scheduler))

    def _give_up(self, assignment: Assignment, story: str, cause: ExitCause = ExitCause.HUNG) -> None:
        """Report that a training hangs, or is lost, and end this process: nothing else ends a thread.

        Args:
            assignment: The job and its incarnation.
            story: Place of its thread, and the duration in the last line; or why it is lost.
            cause: Cause of the end.
        """
        self._report(assignment, WorkerExited(assignment.job, assignment.incarnation, cause, story))
        os._exit(1)

    def _report(self, assignment: Assignment, left: WorkerExited) -> None:
        from lightning_core.server.clients.ray_client import RayClient

        client = RayClient(assignment.scheduler)
        until = time.monotonic() + REPORT_TIMEOUT
        while time.monotonic() < until:  # calls to an actor that is being restarted fail immediately
            try:
                client.left(left)
                if left.cause not in (ExitCause.RELEASED, ExitCause.LOST, ExitCause.BROKEN):
                    _log_result(assignment, client.job_forecast(assignment.job))
                return
            except ConnectionError as error:
                log.warning("%s: %s", assignment.job, error)
                time.sleep(0.5)


def _threads_of_user(environment: bytes) -> int | None:
    """Return how many threads a user wants for each process; None if that is not said.

    Args:
        environment: Environment with which the process was started, as in ``/proc``: Ray sets the variable later.
    """
    variables = dict(line.partition(b"=")[::2] for line in environment.split(b"\0"))
    for name in (b"OMP_NUM_THREADS", b"MKL_NUM_THREADS"):  # in torch's order
        first = variables.get(name, b"").split(b",")[0].strip()
        if first.isdigit() and int(first):
            return int(first)
    return None


def _log_result(assignment: Assignment, forecast: JobForecast | None) -> None:
    """Add the result of a job that is over to its log."""
    from lightning_core.agent.outcome import summary_line

    if forecast is not None and forecast.verdict in (Verdict.MET, Verdict.MISSED, Verdict.CANCELLED, Verdict.CRASHED):
        with suppress(OSError), (Path(assignment.folder) / "log.txt").open("a") as file:
            print(summary_line(assignment.job, forecast), file=file)


def _leave_nothing(*, well: bool) -> None:
    """Finish the runs of a job's loggers, and free its GPU memory for the next one, which another process may train.

    Args:
        well: Whether the job ended or left without a fault.
    """
    import torch

    with suppress(ImportError):  # of a module that every training needs, which the job's exit says
        from lightning_core.callbacks.logger_runs import finish_run

        finish_run(well=well)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect the output of the job, from Python and from C libraries, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        with lossy_output():  # the disk may be full
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def modules_from(folders: Sequence[str]) -> Iterator[None]:
    """Look up class paths in these folders too.

    Modules imported from them are removed at the end: the next job's ``model.py`` is another one, or was edited.
    """
    path, before = list(sys.path), set(sys.modules)
    sys.path += [folder for folder in folders if folder not in path]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        new = set(sys.modules) - before
        imported = {name for name in new if "." not in name and _folder_of(sys.modules[name]) in folders}
        for name in new:
            if name.partition(".")[0] in imported:
                del sys.modules[name]


def _folder_of(module: ModuleType) -> str | None:
    """Return the folder of a top-level module or package."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))).parent)
    return None if spec.origin is None else str(Path(spec.origin).parent)
