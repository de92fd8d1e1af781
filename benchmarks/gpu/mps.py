"""A private MPS daemon for a while: it lets the kernels of several processes run on a GPU at once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning_core.node.cgroups import process_tree
from lightning_core.node.checks.gpu_checks import mps_process
from lightning_core.node.processes import started
from lightning_core.node.signals import kill_all

CONTROL = "nvidia-cuda-mps-control"
# Seconds that the daemon may take to answer, and to end.
BEGINS, ENDS = 10.0, 8.0


class NoMpsError(Exception):
    """MPS cannot be used here; the message says why."""


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables that lead processes to the daemon of a folder."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}


@contextmanager
def mps(folder: Path, command: Sequence[str] = (CONTROL,), proc: Path = Path("/proc")) -> Iterator[None]:
    """Run a daemon whose files are in a folder; one that was there before is left alone.

    It runs in the foreground, so that it ends with this process's descendants, and changes nothing of the GPU.

    Args:
        folder: Folder with a short path.
        command: Program that is the daemon, and that speaks to it.
        proc: Folder in which the kernel shows processes.

    Raises:
        NoMpsError: If there is one already, or none can be started.
    """
    if (pid := mps_process(proc)) is not None:
        raise NoMpsError(f"an MPS daemon runs already, process {pid}")
    environment = {**os.environ, **variables(folder)}
    for path in variables(folder).values():
        Path(path).mkdir(parents=True, exist_ok=True)
    output = folder / "output"
    try:
        with output.open("w") as file:
            daemon = subprocess.Popen(
                [*command, "-f"], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
    except OSError as error:
        raise NoMpsError(f"{command[0]} cannot be started: {error.strerror}") from None
    try:
        until = time.monotonic() + BEGINS
        while not _tell(command, "get_server_list", environment):
            if daemon.poll() is not None or time.monotonic() > until:
                said = output.read_text(errors="replace").strip().rpartition("\n")[2]
                how = "does not answer" if daemon.poll() is None else f"ended with exit code {daemon.returncode}"
                raise NoMpsError(": ".join(filter(None, [f"the MPS daemon {how}", said[:120]])))
            time.sleep(0.1)
        yield
    finally:
        # The server is a child of the daemon, and is gone with it unless it hangs.
        tree = {pid: when for pid in process_tree(Path("/"), daemon.pid) if (when := started(pid)) is not None}
        if daemon.poll() is None:
            _tell(command, "quit", environment)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(ENDS)
        kill_all(tree)
        daemon.wait()


def _tell(command: Sequence[str], words: str, environment: dict[str, str]) -> bool:
    """Return whether the daemon has understood a command."""
    with suppress(subprocess.TimeoutExpired, OSError):
        done = subprocess.run(
            command, input=f"{words}\n", text=True, capture_output=True, env=environment, timeout=ENDS, check=False
        )
        return done.returncode == 0 and "Cannot" not in done.stdout + done.stderr
    return False
