"""Record what the GPU code paths do on this machine's GPU, in at most nine minutes and without a network.

Each part runs in a process of its own (:mod:`benchmarks.gpu.gpu_parts`) and is ended at its limit. A part that needs
what is not here, such as a package or a second GPU, is recorded as left out, and so is one for which no time is left.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks import results
from benchmarks.common import Figures
from lightning_core.node.signals import descendants, kill_all
from lightning_core.storage.atomic_files import write_whole

# Seconds that the whole takes at most.
SECONDS = 535.0
# Exit code where there is no GPU.
NO_GPU = 2
# The command in the record.
COMMAND = "python -m benchmarks.gpu.gpu_evidence"
# Lines of a part's output that are shown if it fails.
SHOWN = 25


class Part(NamedTuple):
    """A part with the seconds after which it is ended."""

    name: str
    limit: float
    spare: bool = False
    """Whether it is run only if those behind it have their time none the less."""


# First what has never been measured, at the very last what takes the most memory. With one GPU the part of two ends at
# once; with more, it has the time that others did not need.
PARTS = (
    Part("overhead", 55.0),
    Part("beside", 120.0),
    Part("suspend", 30.0),
    Part("checks", 110.0),
    Part("shares", 45.0),
    Part("demo", 70.0),
    Part("memory", 25.0),
    Part("turns", 30.0),
    Part("resize", 50.0, spare=True),
    Part("suspend_40", 50.0),
)


class Outcome(NamedTuple):
    """Figures of a part, and the reason why some or all of them are missing."""

    figures: Figures
    why: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether it was measured, or lacks something that this machine does not have."""
        return not self.why or self.why.startswith("skipped: ")


def program(part: Part, file: Path) -> list[str]:
    """Return the command that runs a part and writes its outcome to a file."""
    return [sys.executable, "-m", "benchmarks.gpu.gpu_parts", part.name, str(file)]


def run(part: Part, command: Sequence[str], file: Path, limit: float, project: Path) -> Outcome:
    """Run a part for at most ``limit`` seconds; ``command`` contains the path of ``file``, by which it is ended.

    The part runs in the folder ``project``, and finds there first what it imports.
    """
    paths = [str(project), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not _is_compiled("torch"):
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(file.parent / "bytecode")
    log = file.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=project, start_new_session=True
        )
    why = ""
    try:
        if code := process.wait(limit):
            why = f"failed with exit code {code}"
    except subprocess.TimeoutExpired:
        why = f"ended after {limit:.0f} s"
    finally:
        kill_all(descendants(str(file)))
        with suppress(ProcessLookupError):  # those of a part that has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # A part may write what it has found before its end.
    outcome = Outcome(**json.loads(file.read_text())) if file.exists() else Outcome({})
    lines = log.read_text(errors="replace").splitlines()[-SHOWN:]
    if why:
        last = lines[-1] if lines else ""
        if missing := re.match(r"ModuleNotFoundError: No module named '([\w.]+)'", last):
            return Outcome({}, f"skipped: the package {missing[1]} is missing")
        outcome = Outcome(outcome.figures, ": ".join(filter(None, [why, outcome.why or last[:200]])))
    if not outcome.is_fine:
        print("\n".join(f"    {line}" for line in lines), flush=True)
    return outcome


def collect(
    parts: Sequence[Part],
    keep: Callable[[Figures, dict[str, str]], object],
    seconds: float = SECONDS,
    command: Callable[[Part, Path], Sequence[str]] = program,
    logs: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run the parts one after the other.

    Args:
        parts: Parts in their order.
        keep: Called after each part with all figures so far, and why parts are left out, by their names.
        seconds: Seconds that all of them may take.
        command: Returns the command of a part, given the file for its outcome.
        logs: Folder in which what the parts print is kept, by their names; none keeps nothing.
        clock: Monotonic clock, in seconds.

    Returns:
        Whether each part was measured, or lacks something that this machine does not have.
    """
    began, fine = clock(), True
    figures: Figures = {}
    left_out = dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="lc-gpu-") as temp:
        project = _as_installed(Path(temp) / "project")
        due = 0.0
        for place, part in enumerate(parts):
            passed = clock() - began
            left, behind = seconds - passed, sum(other.limit for other in parts[place + 1 :] if not other.spare)
            mine = left - behind if part.spare else left
            # What the parts before it have not used is its own.
            due += 0.0 if part.spare else part.limit
            limit = max(part.limit, min(due - passed, left - behind))
            print(f"{part.name}, of {limit:.0f} s ...", flush=True)
            if mine < part.limit:
                words = f"not run: it may take {part.limit:.0f} s, and {max(mine, 0):.0f} s were left"
                outcome = Outcome({}, f"skipped: {words}" if part.spare else words)
            else:
                file = Path(temp) / f"{part.name}.json"
                outcome = run(part, command(part, file), file, limit, project)
                if logs is not None:
                    shutil.copy(file.with_suffix(".log"), logs)
            fine &= outcome.is_fine
            figures |= outcome.figures
            if outcome.why:
                left_out[part.name] = outcome.why
                print(f"    {outcome.why}", flush=True)
            for name, number in outcome.figures.items():
                print(f"    {name}: {'not measured' if number is None else f'{number:.4g}'}", flush=True)
            keep(figures, left_out)
    return fine


def _as_installed(folder: Path) -> Path:
    """Make a folder of links to the project, in which its callbacks are where an installed package has them."""
    for source, links in ((results.ROOT, folder), (results.ROOT / "lightning_core", folder / "lightning_core")):
        links.mkdir()
        for entry in source.iterdir():
            if entry.name != "lightning_core" and not entry.name.startswith("."):
                (links / entry.name).symlink_to(entry)
    (folder / "lightning_core" / "callbacks").symlink_to(results.ROOT / "callbacks")
    return folder


def _is_compiled(package: str) -> bool:
    """Return whether there is bytecode of a package: without it, each process compiles it anew for many seconds."""
    found = importlib.util.find_spec(package)
    return found is None or found.origin is None or Path(importlib.util.cache_from_source(found.origin)).exists()


def device_name() -> str:
    """Return the name of the GPU, empty if there is none; asked in another process, which holds nothing there after."""
    code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main(words: Sequence[str] | None = None) -> int:
    """Run all parts, or some, and record them; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    every = {part.name: part for part in PARTS}
    parser.add_argument("--only", nargs="+", default=list(every), metavar="PART",
                        help=f"some of {', '.join(every)}; separated by commas or spaces")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds in all (default: %(default)g)")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="merge the figures into this record; write the page beside it anew"
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what each part prints in this folder")
    arguments = parser.parse_args(words)
    only = [name for word in arguments.only for name in re.split(r"[,\s]+", word) if name]
    if unknown := [name for name in only if name not in every]:
        parser.error(f"a part is one of {', '.join(every)}, got {', '.join(unknown)}")
    device = device_name()
    if not device:
        print("needs a GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return NO_GPU

    def keep(figures: Figures, left_out: dict[str, str]) -> None:
        if arguments.results:
            results.merge("gpu_evidence", "default", COMMAND, figures, arguments.results, device, left_out)
            write_whole(arguments.results.with_suffix(".md"), results.page(results.read(arguments.results)))

    chosen = [part for name, part in every.items() if name in only]
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    return 0 if collect(chosen, keep, arguments.seconds, logs=arguments.logs) else 1


if __name__ == "__main__":
    sys.exit(main())
