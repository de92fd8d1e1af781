"""Makes the picture of the live board, docs/board.png: the example of ``init``, simulated.

    python docs/board_picture.py [FILE] [--seconds N]

Needs Debian's chromium. Its jobs play their own recordings, under the default policy, in the order that seed 0 draws.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from lightning_core.simulation.bundle_curves import read_bundle
from lightning_core.simulation.recorded_curves import SHIPPED
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.view.board import Board

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / "lightning_core" / "template" / "bundle.yaml"
SECONDS = 25
WIDTH = 116


def board(seconds: float) -> tuple[Board, str]:
    """Return the board of the example after some seconds, and its title."""
    bundle = read_bundle(BUNDLE, SHIPPED, shuffle=True)
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        path = Path(folder) / "journal.db"
        Simulation(bundle.settings, [job.given for job in bundle.jobs], journal=path).run(until=seconds)
        with Journal.open(path, read_only=True) as journal:
            scheduler = replay(journal).scheduler
    policy = bundle.settings.policy
    shown = Board(scheduler.now, scheduler.status(), policy, bundle.settings.devices)
    return shown, f"the example of lightning-core init, simulated, after {seconds:g} seconds"


def take(svg: str, path: Path) -> None:
    """Write a drawing as a PNG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.set_content(f"<body style='margin:0'>{svg}</body>")
        tab.locator("svg").screenshot(path=path, omit_background=True)
        browser.close()


def main() -> None:
    """Simulate, draw, and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=ROOT / "docs" / "board.png", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds after which (default %(default)s)")
    arguments = parser.parse_args()
    shown, title = board(arguments.seconds)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(shown)
    take(console.export_svg(title=title), arguments.file)


if __name__ == "__main__":
    main()
