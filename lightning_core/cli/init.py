"""``lightning-core init``: an example that runs anywhere, as a starting point."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from lightning_core.bundle.preflight import check_folder
from lightning_core.scheduler.summary import EXIT_MET

TEMPLATE = Path(__file__).parents[1] / "template"
DEFAULT = Path("lightning-core-example")


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``init``."""
    made = command("init", _init, "write an example: a bundle of five trainings with deadlines, and a script")
    made.add_argument(
        "folder", type=Path, nargs="?", default=DEFAULT, metavar="DIR", help=f"new or empty folder (default {DEFAULT})"
    )


def _init(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is not an empty folder, and nothing is overwritten; name a new one")
    check_folder(folder)
    for source in sorted(TEMPLATE.rglob("*")):
        if source.suffix in (".py", ".yaml", ".csv"):
            copy = folder / source.relative_to(TEMPLATE)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(source.read_bytes())
    bundle, script = shlex.quote(str(folder / "bundle.yaml")), shlex.quote(str(folder / "training.py"))
    print(f"{folder}: a bundle of five trainings with deadlines, their models, and a script with the callback; next:\n")
    print("  # simulate them on recorded loss curves, in seconds")
    print(f"  lightning-core simulate {bundle} --policy fifo,edf,triage")
    print("  # train them on one core, in a minute or two")
    print(f"  lightning-core run {bundle}")
    print("  # train one of them by a script with the callback")
    print(f"  python {script}")
    if missing := [name for name in ("torch", "lightning", "ray", "jsonargparse") if find_spec(name) is None]:
        are = "is" if len(missing) == 1 else "are"
        print(f"\nThe last two need {', '.join(missing)}, which {are} not installed; run\n"
              "  pip install -c constraints.txt '.[launch,view]' in the clone")  # fmt: skip
    return EXIT_MET
