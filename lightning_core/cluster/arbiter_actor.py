"""The device arbiter of a device, hosted in a Ray actor on the device's node."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from lightning_core.node.cgroups import sweep
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.node.device_cores import note_first_core


class ArbiterActor:
    """Hosts the device arbiter of a device on the device's node."""

    def __init__(self, first_core: int = 0) -> None:
        # Readable by its user only; in the folder of a simulated machine, if it is on one, so that it goes with it.
        own = os.environ.get("RAY_TMPDIR", "")
        self._folder = Path(tempfile.mkdtemp(prefix="lc-", dir=own if Path(own).is_dir() and own else None))
        self._arbiter = DeviceArbiter(self._folder / "arbiter")
        note_first_core(self._arbiter.path, first_core)

    def path(self) -> str:
        """Return the path of the arbiter's socket."""
        return str(self._arbiter.path)

    def close(self) -> None:
        """End the arbiter."""
        self._arbiter.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        sweep()  # control groups of workers that were killed
