"""Measure how long a user waits: for a pool to start, for a submission, and for the first line of a run.

Each is a command in a shell, compared with what every training script waits for: ``import lightning.pytorch``. A
submission is timed twice: checked by the pool's process, which has torch imported, and checked in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import common
from benchmarks.common import Figures, Size
from lightning_core.cluster.config_checker import SOCKET_NAME
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = {"quick": 1, "default": 3, "full": 7}
# Maximum seconds until a worker is warm.
WARM_TIMEOUT = 180.0


class Shell:
    """A terminal with a pool of one CPU device and two workers.

    Args:
        home: Folder of the pool and of bundles.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._jobs = 0
        hidden = ("RAY_", "LIGHTNING_CORE_")
        self._env = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        self._env |= {"LIGHTNING_CORE_HOME": str(home), "PYTHONPATH": str(ROOT)}

    def seconds(self, *words: str) -> float:
        """Return the seconds that a Python command takes."""
        start = time.monotonic()
        done = subprocess.run([sys.executable, *words], env=self._env, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return time.monotonic() - start

    def command(self, *words: str) -> float:
        """Return the seconds that a lightning-core command takes."""
        return self.seconds("-m", "lightning_core", *words)

    def first_line(self, *words: str) -> float:
        """Return the seconds until a lightning-core command prints its first line, and end it."""
        line = [sys.executable, "-m", "lightning_core", *words]
        start = time.monotonic()
        process = subprocess.Popen(line, env=self._env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        process.stdout.readline()
        took = time.monotonic() - start
        process.terminate()
        process.communicate()
        return took

    def bundle(self) -> Path:
        """Write a bundle of one new job, which begins in eight hours, so it never starts here."""
        self._jobs += 1
        job = {
            "model": {"class_path": "tests.tiny.Line"}, "data": {"class_path": "tests.tiny.Points"},
            "trainer": {"logger": False}, "deadline": "9h", "begin": "8h", "target": {"batches": 5},
        }  # fmt: skip
        path = self.home / f"bundle-{self._jobs}.yaml"
        path.write_text(json.dumps({"jobs": {f"job-{self._jobs}": job}}))
        return path

    def run_first_job(self) -> None:
        """Submit a job of five batches and wait until it has met its target."""
        path = self.bundle()
        content = json.loads(path.read_text())
        for job in content["jobs"].values():
            job |= {"begin": "0.001s"}
        path.write_text(json.dumps(content))
        self.command("submit", str(path))
        [name] = content["jobs"]
        until = time.monotonic() + WARM_TIMEOUT
        while not any(job.name == name and job.verdict == "met" for job in self.client().status()[1]):
            if time.monotonic() > until:
                raise RuntimeError(f"the first job must meet its target within {WARM_TIMEOUT:.0f} s, and did not")
            time.sleep(0.1)

    def client(self) -> SocketClient:
        """Return a client of the pool."""
        head = read_head(self.home / "pool")
        if head is None:
            raise RuntimeError("no pool is up")
        return SocketClient(Path(head["socket"]))

    @contextmanager
    def without_checker(self) -> Iterator[None]:
        """Hide the pool's checker, so that submissions are checked in their own process."""
        socket = self.client().path.with_name(SOCKET_NAME)
        aside = socket.rename(socket.with_name(f"{SOCKET_NAME}-aside"))
        try:
            yield
        finally:
            aside.rename(socket)


def measure(size: Size) -> Figures:
    """Print and return medians in seconds."""
    taken: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        taken.setdefault(name, []).append(seconds)

    for _ in range(ROUNDS[size]):
        with tempfile.TemporaryDirectory(prefix="lc-") as folder:
            shell = Shell(Path(folder))
            shell.command("policies")  # files are in the page cache from here on
            note("import lightning", shell.seconds("-c", "import lightning.pytorch"))
            note("first line of run", shell.first_line("run", str(shell.bundle()), "--own"))
            start = time.monotonic()
            note("up", shell.command("up", "--devices", "1"))
            try:
                shell.run_first_job()
                note("up, submit, and met by its first job", time.monotonic() - start)
                for _ in range(3):
                    note("submit", shell.command("submit", str(shell.bundle())))
                with shell.without_checker():
                    note("submit, checked on the spot", shell.command("submit", str(shell.bundle())))
                note("status", shell.command("status"))
            finally:
                note("down", shell.command("down", "--now"))
    medians = {name: median(seconds) for name, seconds in taken.items()}
    imports = medians["import lightning"]
    rows = [(name, value, min(taken[name]), max(taken[name]), value / imports) for name, value in medians.items()]
    common.table(("", "median, s", "min", "max", "multiple of the import"), rows)
    return {name.replace(" ", "_").replace(",", ""): value for name, value in medians.items()}


if __name__ == "__main__":
    common.main("live.waiting", (__doc__ or "").splitlines()[0], measure)
