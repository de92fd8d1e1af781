"""Routes of the pages of a job; their scripts change it through the API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.parts.web.drawing import Drawing
from lightning_core.parts.web.entrance import Entrance
from lightning_core.parts.web.event_stream import first_state
from lightning_core.parts.web.job_controls import JobControls
from lightning_core.parts.web.live_history import LiveHistory
from lightning_core.parts.web.pages import job_pages, overview_page
from lightning_core.parts.web.pages.document_frame import Frame
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.query_values import seconds, whole_number

DrawJob = Callable[[History, tuple[int, JobHistory]], str]
"""Draws something of a job, from the history and from the index and the history of the job."""


class JobRoutes:
    """The pages of a job.

    Args:
        entrance: Identifies users and applies their rights.
        watch: Watcher of the pool.
        history: History of the pool.
        steering: Says whom a job may be steered by.
        drawing: Draws in threads.
        frame: The frame of every page.
        folder: Folder of the pool, with the logs of its jobs.
    """

    def __init__(
        self, entrance: Entrance, watch: PoolWatch, history: LiveHistory, steering: JobControls, drawing: Drawing,
        frame: Frame, folder: Path,
    ) -> None:  # fmt: skip
        self._entrance, self._watch, self._history, self._steering = entrance, watch, history, steering
        self._drawing, self._frame, self._folder = drawing, frame, folder

    def routes(self) -> list[Route]:
        return [
            Route("/jobs/{name}", self._page),
            Route("/jobs/{name}/chart", self._chart),
            Route("/jobs/{name}/story", self._story),
            Route("/jobs/{name}/facts", self._facts),
            Route("/jobs/{name}/log", self._log),
        ]

    async def _page(self, request: Request) -> Response:
        person = self._entrance.person(request)
        name, view = self._entrance.known(request, person), self._watch.view
        status = None if whole_number(request, "run") is not None else view.newest(name)
        rights, sees = self._steering.allowed(person, status), self._entrance.visible(person)
        state = first_state(view, overview_page.describe(view, person), lambda job: job.name == name and sees(job))
        body = await self._draw(
            request, lambda history, job: job_pages.body(history, job, status, rights, state, self._folder)
        )
        return HTMLResponse(self._frame.page(name, body, person, "", "job.js"))

    async def _chart(self, request: Request) -> Response:
        width = min(max(whole_number(request, "width") or 400, 400), 2000)
        low, high = seconds(request, "from"), seconds(request, "to")
        span = None if low is None or high is None or not low < high else (low, high)
        return await self._part(request, lambda history, job: job_pages.chart_of(history, job, width, span))

    async def _story(self, request: Request) -> Response:
        return await self._part(request, lambda _, job: job_pages.story(job[1]))

    async def _facts(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await self._part(request, lambda _, job: job_pages.facts(job[1], self._watch.view.newest(name)))

    async def _log(self, request: Request) -> Response:
        name = self._entrance.known(request, self._entrance.person(request))
        try:
            text = await self._drawing.draw(partial(job_pages.log_tail, self._folder, name))
        except OSError as error:
            text = str(error)
        return PlainTextResponse(text)

    async def _part(self, request: Request, draw: DrawJob) -> Response:
        return HTMLResponse(await self._draw(request, draw))

    async def _draw(self, request: Request, draw: DrawJob) -> str:
        """Draw something of the job that a request is about.

        Raises:
            HTTPException: If the user sees no such job.
        """
        person = self._entrance.person(request)
        name, run = self._entrance.known(request, person), whole_number(request, "run")

        def find() -> str | None:
            with self._history.reading() as history:
                found = self._history.job(history, name, run, person.sees)
                return None if found is None else draw(history, found)

        drawn = await self._drawing.draw(find)
        if drawn is None:
            raise HTTPException(404, f"There is no job {name}.")
        return drawn
