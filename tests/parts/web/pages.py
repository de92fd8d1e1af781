"""A pool without Ray, and its page as a browser sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from lightning_core.core.events import Cell, Report
from lightning_core.core.jobs import Job
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.visitors import Visitors
from lightning_core.parts.web.web_app import WebApp
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Person
from lightning_core.server.clients.socket_client import SocketClient
from tests.socket_servers import Pool as Server

HOST = "127.0.0.1:8710"
ORIGIN = {"origin": f"http://{HOST}"}


class Page:
    """The page of a pool, and the pool behind it."""

    def __init__(self, server: Server, web_app: WebApp, watch: PoolWatch, people: dict[str, Person]) -> None:
        self.server, self.web_app, self.watch, self.people = server, web_app, watch, people

    def browser(self) -> TestClient:
        """Return a browser in which no person has come in."""
        return TestClient(self.web_app.starlette, base_url=f"http://{HOST}", follow_redirects=False)

    def of(self, person: Person) -> TestClient:
        """Return a browser in which a person has come in."""
        browser = self.browser()
        assert browser.get("/enter", params={"key": self.web_app.visitors.link(person)}).status_code == 200
        return browser

    def submit(self, *jobs: Job) -> None:
        self.server.do(self.server.actor.submit(jobs))
        self.look()

    def report(self, name: str, number: int, losses: list[float], batches: int = 10) -> None:
        """Report losses, one every ``batches`` batches; ``number`` counts the reports of the job."""
        before = (number - 1) * len(losses)
        cells = tuple(Cell(before + k, (before + k) * batches, loss) for k, loss in enumerate(losses, 1))
        done = (before + len(losses)) * batches
        report = Report(name, 1, number=number, version=10**6, batches=done, busy=done / 100, cells=cells)
        self.server.do(self.server.actor.report(report))
        self.look()

    def look(self) -> None:
        """Look at the pool now, as the page's own thread does every second."""
        self.watch.look()
        self.web_app.history.catch_up()


@contextmanager
def page_of(folder: Path, devices: int = 2, *, allow_submit: bool = False, host: str = HOST) -> Iterator[Page]:
    """A page of a pool whose looks the test takes itself."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder, folder / "s", {"policy": "edf", "devices": devices})
    try:
        pool = Pool(SocketClient(folder / "s"), patience=0.1)
        watch, people = PoolWatch(pool), dict[str, Person]()
        watch.look()
        web_app = WebApp(pool, watch, Visitors(people.get), [host], allow_submit=allow_submit)
        yield Page(server, web_app, watch, people)
        pool.close()
    finally:
        server.close()


def state_of(html: str) -> str:
    """Return the JSON that a page has for its script."""
    found = re.search(r'<script type="application/json" id="state">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return found[1]
