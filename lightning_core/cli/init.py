"""``lightning-core init``: an example that runs anywhere, or a package with parts of your own, as a starting point."""

from __future__ import annotations

import argparse
import keyword
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from lightning_core.bundle.preflight import check_folder
from lightning_core.scheduler.summary import EXIT_MET

TEMPLATE = Path(__file__).parents[1] / "template"
PART = TEMPLATE / "part"
DEFAULT = Path("lightning-core-example")


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``init``."""
    made = command("init", _init, "write an example: a bundle of five trainings with deadlines, and a script")
    made.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help=f"new or empty folder (default {DEFAULT}, or NAME)",
    )
    made.add_argument("--part", metavar="NAME", help="write a package with a policy, a target and a controller instead")


def _init(arguments: argparse.Namespace) -> int:
    if arguments.part is not None:
        return _init_part(arguments.part, arguments.folder or Path(arguments.part))
    folder: Path = arguments.folder or DEFAULT
    _check_empty(folder)
    for source in sorted(TEMPLATE.rglob("*")):
        if source.suffix in (".py", ".yaml", ".csv") and PART not in source.parents:
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


def _init_part(name: str, folder: Path) -> int:
    """Write a package with parts of its own."""
    if not name.isidentifier() or name != name.lower() or keyword.iskeyword(name):
        raise ValueError(f"--part must be a name of a Python module in small letters, got {name!r}")
    if find_spec(name) is not None:
        raise ValueError(f"--part: there is a module {name} already; choose another name")
    _check_empty(folder)
    for source in sorted(PART.rglob("*")):
        if source.suffix in (".py", ".toml", ".yaml"):
            copy = folder / str(source.relative_to(PART)).replace("my_part", name)
            copy.parent.mkdir(exist_ok=True)
            text = source.read_text(encoding="utf-8")
            copy.write_text(text.replace("my_part", name).replace("my-part", name.replace("_", "-")), encoding="utf-8")
    print(f"{folder}: a package with a policy, a target, and a controller with an event of its own; next:\n")
    print("  # install it beside lightning_core, and run the conformance suites on it")
    print(f"  pip install -e {shlex.quote(str(folder))} pytest && python -m pytest {shlex.quote(str(folder))}")
    print("  # write a bundle, and compare its policy with another one")
    print("  lightning-core init && lightning-core simulate lightning-core-example/bundle.yaml --policy heaviest,edf")
    print("  # start a pool with both")
    print(f"  lightning-core up --config {shlex.quote(str(folder / 'pool.yaml'))}")
    return EXIT_MET


def _check_empty(folder: Path) -> None:
    """Check that a folder is new or empty, and can be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is not an empty folder, and nothing is overwritten; name a new one")
    check_folder(folder)
