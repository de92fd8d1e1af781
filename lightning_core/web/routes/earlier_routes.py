"""The earlier times of a pool, for who may see all its jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.web.drawing import Drawing
from lightning_core.web.entrance import Entrance
from lightning_core.web.pages import earlier_page
from lightning_core.web.pages.document_frame import Frame
from lightning_core.web.refusals import REFUSALS, refusal
from lightning_core.web.routes.archive import Archive, Earlier


class EarlierRoutes:
    """The pages of earlier times.

    Args:
        entrance: Says who asks, and what that person may see.
        drawing: Draws in threads.
        frame: The frame of every page.
        folder: Folder of the pool.
    """

    def __init__(self, entrance: Entrance, drawing: Drawing, frame: Frame, folder: Path) -> None:
        self._entrance, self._drawing, self._frame, self._archive = entrance, drawing, frame, Archive(folder)

    def routes(self) -> list[Route]:
        return [
            Route("/earlier", self._index),
            Route("/earlier/{stamp}", self._overview),
            Route("/earlier/{stamp}/{key:int}", self._job),
        ]

    async def _index(self, request: Request) -> Response:
        return await self._page(request, "Earlier", lambda: earlier_page.index(self._archive.all()))

    async def _overview(self, request: Request) -> Response:
        stamp = request.path_params["stamp"]

        def draw() -> str:
            return earlier_page.overview(self._archive.history(stamp), stamp, self._of(stamp).ended)

        return await self._page(request, "Earlier", draw)

    async def _job(self, request: Request) -> Response:
        stamp, key = request.path_params["stamp"], request.path_params["key"]

        def draw() -> str:
            history = self._archive.history(stamp)
            if not 0 <= key < len(history.jobs):
                raise HTTPException(404, "There is no such job of that time.")
            return earlier_page.job(history, stamp, key)

        return await self._page(request, "Earlier", draw)

    def _of(self, stamp: str) -> Earlier:
        return next(one for one in self._archive.all() if one.stamp == stamp)

    async def _page(self, request: Request, name: str, draw: Callable[[], str]) -> Response:
        person = self._entrance.who_sees_all(request)
        try:
            body = await self._drawing.draw(draw)
        except JournalError as error:
            raise HTTPException(409, str(error)) from None
        except REFUSALS as error:
            raise refusal(error) from None
        return HTMLResponse(self._frame.page(name, body, person, "/timeline"))
