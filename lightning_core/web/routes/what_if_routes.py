"""Routes of what-if questions, which are simulated in a process of their own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.core.names import is_name
from lightning_core.simulation.what_if import Assumption
from lightning_core.web.entrance import Entrance
from lightning_core.web.pages import what_if_panel
from lightning_core.web.pool_watch import PoolWatch
from lightning_core.web.query_values import seconds, whole_number
from lightning_core.web.refusals import REFUSALS, refusal
from lightning_core.web.routes.what_if_process import WhatIf

# Maximum simulations at a time, and maximum questions including the waiting ones; beyond it users are asked to try
# again.
MAX_PROCESSES, MAX_WAITING = 2, 8


class WhatIfRoutes:
    """What-if questions about a pool, for users who may see all its jobs.

    Args:
        entrance: Identifies users and applies their rights.
        watch: Watcher of the pool.
        folder: Folder of the pool, with its journal.
    """

    def __init__(self, entrance: Entrance, watch: PoolWatch, folder: Path) -> None:
        self._entrance, self._watch, self._what_if = entrance, watch, WhatIf(folder / "journal.db")
        self._places = asyncio.Semaphore(MAX_PROCESSES)
        self.waiting = 0
        """Questions that are asked now."""

    def routes(self) -> list[Route]:
        return [Route("/what-if", self._answer)]

    async def _answer(self, request: Request) -> Response:
        self._entrance.who_sees_all(request)
        job, left = request.query_params.get("job", ""), seconds(request, "left")
        if job and not is_name(job):
            raise HTTPException(400, "job must be the name of a job")
        deadline = None if left is None else self._watch.view.now + left
        change = Assumption(job, deadline, whole_number(request, "devices"), whole_number(request, "own"))
        if self.waiting >= MAX_WAITING:
            raise HTTPException(503, "others are asking as well; try again in some seconds")
        self.waiting += 1
        try:
            async with self._places:  # waiting requests hold no thread: other pages are drawn in them
                found = await asyncio.to_thread(partial(self._what_if.ask, change))
        except REFUSALS as error:
            raise refusal(error) from None
        finally:
            self.waiting -= 1
        return HTMLResponse(what_if_panel.answer(found, change))
