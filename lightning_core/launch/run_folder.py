"""The folder of a run: made anew, with the spec of what is run, so that the run can be gone on with."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from lightning_core.drivers.files import write_whole
from lightning_core.drivers.private import owner_only
from lightning_core.launch.bundle import Bundle
from lightning_core.launch.preflight import check_folder
from lightning_core.launch.problems import BundleError


def new_run_dir(wanted: Path | str | None) -> Path:
    """A folder for a run, made now.

    Raises:
        BundleError: if it is there and not empty: a run is never written over another.
    """
    folder = Path(wanted) if wanted is not None else Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise BundleError([f"{folder}: is not empty; name another folder for this run"])
    check_folder(folder)
    return folder.resolve()


def keep_spec(bundle: Bundle, run_dir: Path) -> None:
    """Notes what is run, whole or not at all: the folder can be gone on with from now on."""
    with owner_only():
        write_whole(run_dir / "bundle.yaml", yaml.dump(bundle.to_dict(), Dumper=_WithoutAliases, sort_keys=False))


class _WithoutAliases(yaml.SafeDumper):
    """Writes what is there twice twice: our own loader takes no more than so many aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
