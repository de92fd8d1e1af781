"""Routes of the earlier times of a pool, for users who may see all its jobs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.history.forecasts import fill_in, seconds_again
from lightning_core.history.history import History
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.web.drawing import Drawing
from lightning_core.web.entrance import Entrance
from lightning_core.web.pages import earlier_page
from lightning_core.web.pages.document_frame import Frame
from lightning_core.web.refusals import REFUSALS, refusal

# Histories that are kept, and seconds that their forecasts may take to be computed again.
MAX_KEPT, AGAIN_SECONDS = 2, 2.0
_NAME = re.compile(r"journal-(\d{8}-\d{6}-\d{6})\.db")


class Earlier(NamedTuple):
    """An earlier time of a pool."""

    stamp: str
    """Name of its journal: the time at which it was put aside, in this machine's time zone."""
    ended: datetime
    """Time at which it was put aside."""


class Archive:
    """The journals that a pool has put aside.

    Args:
        folder: Folder of the pool.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder / "old", threading.Lock()
        self._read = lru_cache(MAX_KEPT)(self._read_one)

    def all(self) -> list[Earlier]:
        """Return the earlier times, the newest first."""
        if not self._folder.is_dir():
            return []
        found = [named for path in self._folder.iterdir() if (named := _named(path.name)) is not None]
        return sorted(found, reverse=True)

    def history(self, stamp: str) -> History:
        """Return the history of an earlier time. It is shared, and must not be modified.

        Raises:
            FileNotFoundError: If there is none of that name.
            JournalError: If its journal is damaged.
        """
        if not any(one.stamp == stamp for one in self.all()):
            raise FileNotFoundError("There is no such earlier time of this pool.")
        with self._lock:  # one is read at a time: it may be long
            return self._read(stamp)

    def _read_one(self, stamp: str) -> History:
        with Journal.open(self._folder / f"journal-{stamp}.db", read_only=True) as journal:
            history = History.read(journal)
            if seconds_again(history) <= AGAIN_SECONDS:
                fill_in(journal, history)
            return history


def _named(name: str) -> Earlier | None:
    if (found := _NAME.fullmatch(name)) is None:
        return None
    try:
        return Earlier(found[1], datetime.strptime(found[1], "%Y%m%d-%H%M%S-%f"))
    except ValueError:
        return None


class EarlierRoutes:
    """The pages of earlier times.

    Args:
        entrance: Identifies users and applies their rights.
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
