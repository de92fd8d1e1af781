"""The page of a pool of a thousand jobs: how soon it is there, and what many open pages cost the scheduler.

The scheduler's actor, its journal, its server and the page's server are the real ones; the trainings are simulated
(:mod:`benchmarks.crowd`). While all report at the live period and some are paused and resumed, 0, 10 or 100 pages are
open (:mod:`benchmarks.open_pages`), of which every tenth does not read. Then a headless Chromium opens the page, each
time without a cache.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import Figures, Size, main, table
from benchmarks.crowd import PERIOD
from benchmarks.open_pages import Read
from benchmarks.scale import PROCESSES, Scripts, cpu, decide, delays, percentiles, pool
from lightning_core.server.clients.socket_client import SocketClient

JOBS = 1000
PAGES = (0, 10, 100)
# Seconds of settling, of each measurement, how often each is made, and how often the page is painted.
SECONDS = {"quick": (10.0, 12.0, 1, 5), "default": (15.0, 30.0, 3, 15), "full": (30.0, 60.0, 5, 31)}


class Sample(NamedTuple):
    """What was measured while some pages were open."""

    pages: int
    round_ms: float
    """Mean time of a round."""
    p50_ms: float
    p99_ms: float
    """Time of an answer to a report."""
    grant_p99_ms: float
    """From a decision to the grant at its worker."""
    cores: float
    page_cores: float
    """CPU seconds per second of the scheduler's actor, and of the page's server."""
    read: Read


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of the processes of :mod:`benchmarks.open_pages`."""
    command = [sys.executable, "-m", "benchmarks.open_pages", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.terminate()


def line_of(running: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints.

    Raises:
        RuntimeError: If it has ended.
    """
    assert running.stdout is not None
    line = running.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{running.args!r} has ended with {running.wait()}")
    return line


@contextmanager
def opened(link: str, pages: int) -> Iterator[list[Read]]:
    """Keep pages open; the list has what they have read once that is over."""
    found: list[Read] = []
    if not pages:
        yield found
        found.append(Read(0, 0.0, 0))
        return
    with process("open", link, str(pages)) as running:
        line_of(running)
        yield found
        assert running.stdin is not None
        running.stdin.write("\n")
        running.stdin.flush()
        found.append(Read(*json.loads(line_of(running))))


def sample(socket: Path, scripts: Scripts, pids: tuple[int, int], link: str, pages: int, seconds: float) -> Sample:
    """Measure while some pages are open.

    Args:
        socket: Path of the pool's socket.
        scripts: The trainings.
        pids: Processes of the scheduler and of the page's server.
        link: Link that lets browsers in.
        pages: Number of pages.
        seconds: How long they are open.
    """
    names = [f"job-{k}" for k in range(JOBS)]
    with opened(link, pages) as found, ThreadPoolExecutor(1) as threads, closing(SocketClient(socket)) as client:
        # What they hear in the last seconds is still counted, and what is decided then is not.
        running = threads.submit(scripts.run, seconds, PERIOD)
        before, used, began = client.counters(), [cpu(pid) for pid in pids], time.monotonic()
        made = decide(socket, names, seconds - 3.0)
        after, took = client.counters(), time.monotonic() - began
        own, of_page = ((cpu(pid) - one) / took for pid, one in zip(pids, used, strict=True))
        seen = running.result()
        waited = delays(made, seen, time.monotonic())
    rounds = after["rounds"] - before["rounds"]
    p50, p99 = percentiles([took for one in seen for took in one.answers])
    round_ms = 1e3 * (after["round_seconds"] - before["round_seconds"]) / max(rounds, 1)
    return Sample(pages, round_ms, p50, p99, percentiles(waited)[1], own, of_page, found[0])


def middle(samples: Sequence[Sample]) -> Sample:
    """Return the medians of repeated samples."""
    flat = [(*one[:-1], *one.read) for one in samples]
    pages, round_ms, p50, p99, grant, own, of_page, *read = map(statistics.median, zip(*flat, strict=True))
    return Sample(int(pages), round_ms, p50, p99, grant, own, of_page, Read(*read))


# Notes when the first job is in the table, and when that has been painted.
WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("#jobs tbody tr")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.painted = performance.now(); }));
}).observe(document, {childList: true, subtree: true});
"""


def paints(link: str, times: int) -> list[float]:
    """Open the page in Chromium, each time anew; return the milliseconds until its jobs are painted."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    found: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(times):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.goto(link)
            page.add_init_script(WATCH)
            page.goto(link.partition("/enter")[0], wait_until="commit")
            while (painted := page.evaluate("window.painted")) is None:
                page.wait_for_timeout(20)
            found.append(painted)
            context.close()
        browser.close()
    return found


def measure(size: Size) -> Figures:
    """Measure with each number of pages, then in a browser; print a table."""
    import ray

    from lightning_core.cluster.ray_cluster import start_local_ray

    settle, seconds, repeats, times = SECONDS[size]
    parts = [[f"job-{k}" for k in range(JOBS)][part::PROCESSES] for part in range(PROCESSES)]
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
        start_local_ray(Path(folder))
        within = Path(folder) / "page"
        within.mkdir()
        try:
            with pool(within, JOBS) as (_, socket, actor), process("serve", str(socket)) as server:
                link, scripts = line_of(server), Scripts(socket, parts)
                pids = ray.get(actor.pid.remote()), server.pid
                try:
                    scripts.run(settle, PERIOD)
                    for _ in range(repeats):  # in turn: what the machine does meanwhile is spread over all
                        for pages in PAGES:
                            samples.append(sample(socket, scripts, pids, link, pages, seconds))
                            print(samples[-1], file=sys.stderr, flush=True)
                finally:
                    scripts.close()
                painted = paints(link, times)
        finally:
            ray.shutdown()
    medians = {pages: middle([one for one in samples if one.pages == pages]) for pages in PAGES}
    table(
        ["pages", "a round, ms", "answer p50, ms", "p99", "grant p99, ms", "cores", "of the page's server",
         "changes read", "MB read", "closed"],
        [[*one[:-1], *one.read] for one in medians.values()],
    )  # fmt: skip
    print(f"jobs painted after {statistics.median(painted):.0f} ms (median of {times}, worst {max(painted):.0f})")
    figures: Figures = {"first_paint_ms_1000": statistics.median(painted), "first_paint_worst_ms_1000": max(painted)}
    for pages, one in medians.items():
        figures |= {f"round_ms_pages_{pages}": one.round_ms, f"p99_ms_pages_{pages}": one.p99_ms,
                    f"grant_p99_ms_pages_{pages}": one.grant_p99_ms, f"cores_pages_{pages}": one.cores,
                    f"page_cores_pages_{pages}": one.page_cores}  # fmt: skip
    return figures


if __name__ == "__main__":
    main("page", (__doc__ or "").split("\n")[0], measure)
