"""Routes of the pages that parts bring, for users who may see all jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.core.parts import LivePage, all_parts
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


def links(about: Mapping[str, Any]) -> list[PageLink]:
    """Return the pages that parts bring for a pool, by title.

    Args:
        about: Description of the pool.
    """
    found = []
    for one in all_parts():
        for title, page in one.part.pages.items():
            if _fits(page, about):
                found.append(PageLink(f"/pages/{quote(_slug(title))}", escape(title), Right.SEE))
    return found


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
        person = self._entrance.who_sees_all(request)
        title, html = await self._draw(request)
        body = f'<h1>{escape(title)}</h1><div id="part" aria-live="off">{html}</div>'
        return HTMLResponse(self._frame.page(title, body, person, f"/pages/{quote(_slug(title))}", "part.js"))

    async def _body(self, request: Request) -> Response:
        self._entrance.who_sees_all(request)
        return HTMLResponse((await self._draw(request))[1])

    async def _draw(self, request: Request) -> tuple[str, str]:
        """Return the title of a page and what its part draws.

        Raises:
            HTTPException: If the pool has no such page.
        """
        view, name = self._watch.view, request.path_params["name"]
        width = min(max(whole_number(request, "width") or WIDTH, MIN_WIDTH), MAX_WIDTH)
        for one in all_parts():
            for title, page in one.part.pages.items():
                if _slug(title) == name and _fits(page, view.about):
                    what = f"the page of {one.package}"

                    def draw(page: LivePage = page, what: str = what) -> str:
                        with self._history.reading() as history:
                            scene = PoolScene(history, view.now, view.about, list(view.statuses()), width)
                            return drawn(what, page.draw, scene)

                    return title, await self._drawing.draw(draw)
        raise HTTPException(404, "There is no such page.")


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _fits(page: LivePage, about: Mapping[str, Any]) -> bool:
    try:
        return page.fits(about)
    except Exception:  # code from outside may raise anything; the pool may not have answered yet
        return False
