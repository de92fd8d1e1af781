"""A real Slurm on this machine: munged, slurmctld and two slurmd in a folder of their own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
# Where Debian keeps daemons; the path of an ordinary user leaves it out.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
KillWait=5
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs={cpus}
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs={cpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Name the programs of Slurm that are not installed; empty if all are."""
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path=PATH) is None)


class Slurm:
    """What is asked of the Slurm that runs.

    Args:
        environment: Environment with which its commands are called, and jobs are submitted.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def ask(self, *command: str, folder: Path | None = None, **variables: str) -> str:
        """Call a command of Slurm, and return what it says.

        Args:
            command: Command with its arguments.
            folder: Folder in which it is called; None for this process's own.
            variables: Environment variables set in addition.

        Raises:
            subprocess.CalledProcessError: If the command fails.
        """
        environment = self.environment | variables
        done = subprocess.run(
            command, cwd=folder, env=environment, text=True, check=True, stdout=subprocess.PIPE, timeout=60
        )
        return done.stdout.strip()

    def is_over(self, job: str) -> bool:
        """Return whether all tasks of a job have ended; a requeued one starts now, not 2 minutes later."""
        tasks = [line.split() for line in self.ask("squeue", "-h", "-r", "-j", job, "-o", "%i %r").splitlines()]
        for task, reason in tasks:
            if reason == "BeginTime":
                with suppress(subprocess.CalledProcessError):  # it has started meanwhile
                    self.ask("scontrol", "update", f"JobId={task}", "StartTime=now")
        return not tasks


@contextmanager
def slurm(folder: Path, cpus: int = 2) -> Iterator[Slurm]:
    """Run Slurm with two nodes, ``one`` and ``two``, which are both this machine.

    Args:
        folder: An empty folder, whose path is short: munge's socket is in it.
        cpus: CPUs of each node.
    """
    folder.chmod(0o755)
    one, two, controller = _free_ports(3)
    text = CONF.format(
        host=socket.gethostname(), user=getpass.getuser(), folder=folder, cpus=cpus, one=one, two=two,
        controller=controller,
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    running = Slurm({**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")})
    with ExitStack() as stack:
        munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        _start(stack, running, folder, "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge)
        _wait((folder / "munge.socket").exists, 30)
        _start(stack, running, folder, "slurmctld", "-D", "-c")
        for node in ("one", "two"):
            _start(stack, running, folder, "slurmd", "-D", "-N", node)
        _wait(lambda: _idle(running) == 2, 60)
        try:
            yield running
        finally:
            with suppress(subprocess.SubprocessError):
                running.ask("scancel", "--user", getpass.getuser())
                _wait(lambda: not running.ask("squeue", "-h"), 30)


def _wait(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"Slurm: not within {seconds:g} s; its logs are in the folder of slurm.conf")
        time.sleep(0.1)


def _start(stack: ExitStack, running: Slurm, folder: Path, *command: str) -> None:
    with (folder / f"{command[0]}-{Path(command[-1]).name}.log").open("w") as log:
        process = subprocess.Popen(command, env=running.environment, stdout=log, stderr=log)
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _idle(running: Slurm) -> int:
    try:
        return len(running.ask("sinfo", "-h", "-N", "-t", "idle").splitlines())
    except subprocess.SubprocessError:  # it is not there yet
        return 0


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
