"""The device arbiter of a device and its suspender, hosted in a Ray actor on the device's node."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from lightning_core.node.cgroups import sweep
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.node.device_cores import note_first_core
from lightning_core.node.memory import MemoryKills
from lightning_core.node.processes import started
from lightning_core.node.suspender import Suspender
from lightning_core.node.suspender_client import suspender_of

# Seconds between two looks at the node's memory.
LOOK_INTERVAL = 2.0
# Folder of an arbiter: namespace of process ids, process id and start time, by which its end is known; and random text.
_FOLDER = re.compile(r"lc-arbiter-(\d{1,18})-(\d{1,9})-(\d{1,18})-\w+")


class ArbiterActor:
    """Hosts the device arbiter of a device, and its suspender, on the device's node."""

    def __init__(self, first_core: int = 0) -> None:
        # Inside the folder of a simulated machine, if there is one, so that both are removed together.
        own = os.environ.get("RAY_TMPDIR", "")
        self._folder = new_folder(Path(own if Path(own).is_dir() and own else tempfile.gettempdir()))
        self._arbiter = DeviceArbiter(self._folder / "arbiter")
        note_first_core(self._arbiter.path, first_core)
        self._suspender = Suspender(suspender_of(self._arbiter.path))
        self._kills = MemoryKills()
        threading.Thread(target=self._look, name="memory kills", daemon=True).start()

    def path(self) -> str:
        """Return the path of the arbiter's socket."""
        return str(self._arbiter.path)

    def why_died(self) -> tuple[bool, str]:
        """Return whether a process of this node was just killed for memory, and a text that explains a death."""
        return self._kills.why_died()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_INTERVAL)
            self._kills.look()

    def close(self) -> None:
        """End the arbiter."""
        self._suspender.close()
        self._arbiter.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        remove_abandoned(self._folder.parent)
        sweep()  # control groups of workers that were killed


def new_folder(parent: Path) -> Path:
    """Return a new folder for the socket of this process, readable by its user only; abandoned ones are removed."""
    remove_abandoned(parent)
    process = f"{_namespace()}-{os.getpid()}-{started(os.getpid())}"
    return Path(tempfile.mkdtemp(prefix=f"lc-arbiter-{process}-", dir=parent))


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of our user's arbiters whose process has ended: one that is killed cannot remove its own."""
    for folder in parent.glob("lc-arbiter-*"):
        with suppress(OSError):  # another process has just removed it
            match = _FOLDER.fullmatch(folder.name)
            if match is None or int(match[1]) != _namespace() or started(int(match[2])) == int(match[3]):
                continue
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _namespace() -> int:
    """Return the number of the namespace of process ids: a container may share the folder, and not the ids."""
    return os.stat("/proc/self/ns/pid").st_ino
