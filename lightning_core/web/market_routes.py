"""Routes of the market of a pool, for users who may see all its jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.web.drawing import Drawing
from lightning_core.web.entrance import Entrance
from lightning_core.web.live_history import LiveHistory
from lightning_core.web.pages import market_page
from lightning_core.web.pages.document_frame import Frame
from lightning_core.web.pool_watch import PoolWatch
from lightning_core.web.query_values import whole_number


class MarketRoutes:
    """The page of a pool's market.

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

    def routes(self) -> list[Route]:
        return [Route("/market", self._page), Route("/market/parts", self._parts)]

    async def _page(self, request: Request) -> Response:
        person = self._entrance.who_sees_all(request)

        def draw() -> str:
            with self._history.reading() as history:
                return market_page.body(history, self._watch.view)

        body = await self._drawing.draw(draw)
        return HTMLResponse(self._frame.page("Market", body, person, "/market", "market.js"))

    async def _parts(self, request: Request) -> Response:
        self._entrance.who_sees_all(request)
        width = min(max(whole_number(request, "width") or 900, 340), 2000)

        def draw() -> str:
            with self._history.reading() as history:
                return market_page.parts(history, self._watch.view, width)

        return HTMLResponse(await self._drawing.draw(draw))
