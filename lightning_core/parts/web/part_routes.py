"""Routes of the pages that parts bring, for users who may see all jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.core.parts import all_parts
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.web.drawing import Drawing
from lightning_core.parts.web.entrance import Entrance
from lightning_core.parts.web.live_history import LiveHistory
from lightning_core.parts.web.pages.document_frame import Frame, PageLink
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.query_values import whole_number
from lightning_core.report.part_panels import drawn
from lightning_core.report.svg import escape
from lightning_core.server.access.people import Right

# Widths of a page in pixels: the usual one, the least and the largest.
WIDTH, MIN_WIDTH, MAX_WIDTH = 900, 340, 2000


class FoundPage(NamedTuple):
    """A page that a part brings."""

    title: str
    address: str
    package: str
    draw: Callable[[PoolScene], Any]


def found_pages(about: Mapping[str, Any]) -> Iterator[FoundPage]:
    """Yield the pages that parts bring for a pool, by its description."""
    for one in all_parts():
        for title, page in one.part.pages.items():
            with suppress(Exception):  # code from outside may raise anything, and the pool may not have answered yet
                if page.fits(about):
                    slug = re.sub(r"\W+", "-", title.lower()).strip("-")
                    yield FoundPage(title, f"/pages/{quote(slug)}", one.package, page.draw)


def links(about: Mapping[str, Any]) -> list[PageLink]:
    """Return the links to the pages that parts bring for a pool, by its description."""
    return [PageLink(page.address, escape(page.title), Right.SEE) for page in found_pages(about)]


class PartRoutes:
    """The pages that parts bring.

    Args:
        entrance: Identifies users and applies their rights.
        watch: Watcher of the pool.
        history: History of the pool.
        drawing: Draws in threads.
        frame: The frame of every page.
    """

    def __init__(
        self, entrance: Entrance, watch: PoolWatch, history: LiveHistory, drawing: Drawing, frame: Frame
    ) -> None:
        self._entrance, self._watch, self._history = entrance, watch, history
        self._drawing, self._frame = drawing, frame

    def routes(self) -> Sequence[Route]:
        return [Route("/pages/{name}", self._page), Route("/pages/{name}/body", self._body)]

    async def _page(self, request: Request) -> Response:
        person, page = self._entrance.who_sees_all(request), self._found(request)
        body = f'<h1>{escape(page.title)}</h1><div id="part" aria-live="off">{await self._draw(request, page)}</div>'
        return HTMLResponse(self._frame.page(page.title, body, person, page.address, "part.js"))

    async def _body(self, request: Request) -> Response:
        self._entrance.who_sees_all(request)
        return HTMLResponse(await self._draw(request, self._found(request)))

    def _found(self, request: Request) -> FoundPage:
        """Return the page that a request is about.

        Raises:
            HTTPException: If the pool has no such page.
        """
        address = f"/pages/{quote(request.path_params['name'])}"
        for page in found_pages(self._watch.view.about):
            if page.address == address:
                return page
        raise HTTPException(404, "There is no such page.")

    async def _draw(self, request: Request, page: FoundPage) -> str:
        view = self._watch.view
        width = min(max(whole_number(request, "width") or WIDTH, MIN_WIDTH), MAX_WIDTH)

        def draw() -> str:
            with self._history.reading() as history:
                scene = PoolScene(history, view.now, view.about, list(view.statuses()), width)
                return drawn(f"the page of {page.package}", page.draw, scene)

        return await self._drawing.draw(draw)
