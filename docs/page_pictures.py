"""Makes the pictures of the page of a pool, docs/page-*.png, from a pool that trains the example of `init`.

    python docs/page_pictures.py [FOLDER]

Needs Debian's chromium. It takes about two minutes on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

COMMAND = [sys.executable, "-m", "lightning_core"]
# Seconds of training before the pictures are taken.
TRAINS = 8.0
# Name, path, width, height and colours of each picture.
PICTURES = (
    ("page-jobs", "/", 1280, 640, "light"),
    ("page-job", "/jobs/{job}", 1280, 900, "dark"),
)


def lightning_core(*words: str, folder: Path) -> str:
    """Run a command in a folder, and return what it prints."""
    done = subprocess.run([*COMMAND, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def take(link: str, job: str, folder: Path) -> None:
    """Take the pictures of the page behind a link."""
    base, _, _ = link.partition("/enter")
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(device_scale_factor=1)
        tab = context.new_page()
        tab.goto(link)
        for name, where, width, height, scheme in PICTURES:
            tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            tab.set_viewport_size({"width": width, "height": height})
            tab.goto(base + where.format(job=job))
            tab.wait_for_timeout(3000)  # what it shows comes with the stream
            tab.screenshot(path=folder / f"{name}.png")
        browser.close()


def main(to: Path) -> None:
    """Bring a pool up, let it train, and take the pictures."""
    with tempfile.TemporaryDirectory(prefix="lc-") as name:
        here = Path(name)
        os.environ["LIGHTNING_CORE_HOME"] = str(here / "home")
        lightning_core("init", "example", folder=here)
        example = here / "example"
        lightning_core("up", "--devices", "1", folder=example)
        try:
            lightning_core("submit", "bundle.yaml", folder=example)
            time.sleep(TRAINS)
            serve = [*COMMAND, "serve", "--port", "0", "--read-only-links", "0"]
            with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=example) as server:
                assert server.stdout is not None
                link = next(line.strip() for line in server.stdout if "/enter?key=" in line)
                take(link, "cnn", to)
                server.terminate()
        finally:
            lightning_core("down", "--now", folder=example)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
