"""Several machines on this one: network namespaces with addresses of their own on one bridge, so only for root.

Processes of two machines share the disk, but not the folder ``own`` of the network's folder, which each machine has to
itself. All ends with the process that made it: no namespace has a name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.waiting import until

PROGRAMS = ("ip", "unshare", "nsenter", "mount")
# Where Debian keeps `ip`; the path of an ordinary user leaves it out.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
# Beginning of the addresses, of a range that is kept for tests (RFC 2544).
NETWORK = "198.18.77."


def why_not() -> str:
    """Return why machines cannot be made here; empty if they can."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        return f"not installed: {', '.join(missing)}"
    try:
        _run("unshare --net --mount ip link add bridge type bridge")
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here, as by root: {error.stderr.strip()}"
    return ""


class Machine:
    """A machine: processes that are started on it have its address, and see the others over the network.

    Args:
        number: Number, from 1.
        own: Folder that each machine has to itself.
        hub: Process whose namespace has the bridge.
    """

    def __init__(self, number: int, own: Path, hub: subprocess.Popen[bytes]) -> None:
        self.address = f"{NETWORK}{number}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._holder = _namespace("--net", "--mount")
        self._run(f"mount -t tmpfs own {own}")
        _run(f"{_inside(hub, '--net')} ip link add to{number} type veth peer name eth netns {self._holder.pid}")
        _run(f"{_inside(hub, '--net')} ip link set to{number} master bridge up")
        self._run("ip link set lo up")
        self._run(f"ip addr add {self.address}/24 dev eth")
        self._run("ip link set eth up")

    def start(self, words: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process on this machine."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*self.inside, *words], env=environment, start_new_session=True, stdout=file, stderr=file
            )
        self._started.append(process)
        return process

    @property
    def inside(self) -> list[str]:
        """Prefix of a command that runs on this machine."""
        return _inside(self._holder, "--net", "--mount").split()

    def change_address(self, address: str) -> None:
        """Give this machine another address, as a new lease of a router does."""
        self._run(f"ip addr del {self.address}/24 dev eth")
        self._run(f"ip addr add {address}/24 dev eth")
        self.address = address

    def switch_off(self) -> None:
        """Kill every process of this machine; it answers no other machine from now on."""
        self._run("ip link set eth down")
        for _ in range(2):  # some are started while others are killed
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._started.clear()

    def disconnect(self) -> None:
        """Cut this machine off from the others; its processes go on."""
        self._run("ip link set eth down")

    def switch_on(self) -> None:
        """Connect this machine again; nothing runs on it."""
        self._run("ip link set eth up")

    def processes(self) -> list[int]:
        """Return the ids of the processes that run on this machine."""
        here = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/net") == here and int(entry.name) != self._holder.pid:
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        """Kill all that runs on this machine, and let it go."""
        self.switch_off()
        self._holder.kill()
        self._holder.wait()

    def _run(self, command: str) -> None:
        _run(" ".join([*self.inside, command]))


@contextlib.contextmanager
def network(folder: Path, machines: int) -> Iterator[list[Machine]]:
    """Make machines that reach each other and nothing else.

    Args:
        folder: Folder that all machines see; each has the folder ``own`` in it to itself.
        machines: Number of machines.
    """
    own = folder / "own"
    own.mkdir()
    hub = _namespace("--net")
    made: list[Machine] = []
    try:
        _run(f"{_inside(hub, '--net')} ip link add bridge type bridge")
        _run(f"{_inside(hub, '--net')} ip link set bridge up")
        for number in range(1, machines + 1):
            made.append(Machine(number, own, hub))
        yield made
    finally:
        for machine in made:
            machine.end()
        hub.kill()
        hub.wait()


def _namespace(*kinds: str) -> subprocess.Popen[bytes]:
    """Start a process that keeps new namespaces until it is killed, and dies with this one."""
    command = ["unshare", *kinds, "setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
    process = subprocess.Popen(command, env=os.environ | {"PATH": PATH})
    ours = os.readlink("/proc/self/ns/net")
    until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != ours)
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text().strip() == "sleep")
    return process


def _inside(process: subprocess.Popen[bytes], *kinds: str) -> str:
    return f"nsenter --target {process.pid} {' '.join(kinds)}"


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True, env=os.environ | {"PATH": PATH})
