"""The folder of a run: a new one, with the spec of the bundle, so that the run can be resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.bundle.preflight import check_folder
from lightning_core.bundle.problems import BundleError
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import owner_only, read_own

# Maximum size of the notes in the folder.
MAX_BYTES = 2**16
# Where the folders of runs are that have no name.
RUNS = Path("runs")
# Its note of the options of the command line.
SAID = "said.json"


def new_run_dir(wanted: Path | str | None) -> Path:
    """Make a folder for a run.

    Args:
        wanted: Path of the folder; None for one in ``runs`` that is named after the time, and numbered if two runs
            begin in the same second.

    Raises:
        BundleError: If it exists and is not empty: a run never overwrites another.
    """
    if wanted is None:
        return _dated(datetime.now())
    folder = Path(wanted)
    if folder.exists() and any(folder.iterdir()):
        raise BundleError([f"{folder}: is not empty; name another folder for this run"])
    check_folder(folder)
    return folder.resolve()


def _dated(now: datetime) -> Path:
    try:
        # A umask that lets the group write must not apply here: files that steer this process would then be refused.
        RUNS.mkdir(exist_ok=True, mode=0o755)
        for number in count(1):
            folder = RUNS / (f"{now:%Y%m%d-%H%M%S}" + (f"-{number}" if number > 1 else ""))
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                break
    except OSError as error:
        raise BundleError([f"{RUNS}: cannot be written to: {error.strerror}"]) from None
    check_folder(folder)
    return folder.resolve()


def write_spec(bundle: BundleSpec, run_dir: Path) -> None:
    """Write the spec of a bundle atomically; from then on the run can be resumed."""
    with owner_only():
        write_whole(run_dir / "bundle.yaml", yaml.dump(bundle.to_dict(), Dumper=_WithoutAliases, sort_keys=False))


def write_origin(
    run_dir: Path, source: Path, policy: str | None, allow_import: Sequence[str], ray: str | None = None
) -> None:
    """Write where the bundle of a run comes from, and the options of the command line."""
    said = {"policy": policy, "allow_import": list(allow_import), "ray": ray}
    with owner_only():
        write_whole(run_dir / "origin", str(source.resolve()))
        if any(said.values()):
            write_whole(run_dir / SAID, json.dumps(said))


def read_said(run_dir: Path) -> dict[str, Any]:
    """Return the options with which a run was started: ``policy``, ``allow_import`` and ``ray``; empty without any."""
    said: dict[str, Any] = json.loads(read_own(run_dir, SAID, MAX_BYTES)) if (run_dir / SAID).exists() else {}
    return said


def read_origin(run_dir: Path, before: BundleSpec, existing: ExistingPool | None = None) -> BundleSpec:
    """Return the bundle of a run as its file is now, or as it was if the file no longer exists.

    Args:
        run_dir: Folder of the run.
        before: Bundle as it was.
        existing: Pool that takes the jobs, if it was running already.

    Raises:
        BundleError: With every problem found.
    """
    origin = run_dir / "origin"
    if not origin.exists() or not (source := Path(read_own(run_dir, origin.name, MAX_BYTES).decode())).exists():
        return before
    bundle = before.read_again(source, existing)
    options = read_said(run_dir)
    if options.get("allow_import"):
        bundle = bundle.importing_only(options["allow_import"])
    return bundle.with_policy(options["policy"]) if options.get("policy") else bundle


class _WithoutAliases(yaml.SafeDumper):
    """Dumper that repeats values in place of aliases, since our loader accepts only a limited number of them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
