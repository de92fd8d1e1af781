"""Routes of the comparison of jobs, for users who may see them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lightning_core.history.history import History
from lightning_core.report.comparison_chart import Axis
from lightning_core.server.access.people import Person
from lightning_core.web.drawing import Drawing
from lightning_core.web.entrance import Entrance
from lightning_core.web.live_history import LiveHistory
from lightning_core.web.pages import compare_page
from lightning_core.web.pages.compare_page import MAX_JOBS, ComparedJob
from lightning_core.web.pages.document_frame import Frame
from lightning_core.web.pages.job_pages import trained_with
from lightning_core.web.query_values import whole_number

# A number, or seconds of scheduler time in their JSON form.
_RUN = re.compile(r"[0-9]{1,9}|[0-9.e+-]{1,30}")


class CompareRoutes:
    """The page that compares jobs.

    Args:
        entrance: Identifies users and applies their rights.
        history: History of the pool.
        drawing: Draws in threads.
        frame: The frame of every page.
        folder: Folder of the pool.
    """

    def __init__(self, entrance: Entrance, history: LiveHistory, drawing: Drawing, frame: Frame, folder: Path) -> None:
        self._entrance, self._history, self._drawing = entrance, history, drawing
        self._frame, self._folder = frame, folder

    def routes(self) -> list[Route]:
        return [Route("/compare", self._page), Route("/compare/charts", self._charts)]

    async def _page(self, request: Request) -> Response:
        person, axis, width = self._entrance.person(request), _axis(request), _width(request)
        body = await self._draw(
            request, person, lambda history, jobs: compare_page.body(jobs, history.last, axis, width)
        )
        return HTMLResponse(self._frame.page("Compare", body, person, "", "compare.js"))

    async def _charts(self, request: Request) -> Response:
        person, axis, width = self._entrance.person(request), _axis(request), _width(request)
        drawn = await self._draw(request, person, lambda _, jobs: compare_page.charts(jobs, axis, width))
        return HTMLResponse(drawn)

    async def _draw(self, request: Request, person: Person, draw: Callable[[History, list[ComparedJob]], str]) -> str:
        asked = list(dict.fromkeys(request.query_params.getlist("job")))
        if len(asked) > MAX_JOBS:
            raise HTTPException(400, f"at most {MAX_JOBS} jobs can be compared, got {len(asked)}")
        known = [self._known(name, person) for name in asked]

        def find() -> str:
            with self._history.reading() as history:
                jobs = []
                for (name, run), words in zip(known, asked, strict=True):
                    found = self._history.job(history, name, _number_of(history, name, run), person.sees)
                    if found is None:
                        raise HTTPException(404, f"There is no job {words}.")
                    _, job = found
                    values = trained_with(self._folder, job, is_newest=history.label(job) == job.name)
                    jobs.append(ComparedJob(history.label(job), job, words, dict(values)))
                return draw(history, jobs)

        return await self._drawing.draw(find)

    def _known(self, asked: str, person: Person) -> tuple[str, str]:
        """Return the name and the run that are asked for as ``name`` or ``name@run``, the run empty for the newest."""
        name, at, run = asked.partition("@")
        if at and not _RUN.fullmatch(run):
            raise HTTPException(400, "job must be the name of a job, or name@run: its number, or when it was submitted")
        return self._entrance.known_name(name, person), run


def _number_of(history: History, name: str, run: str) -> int | None:
    """Return the number of a run of a name, 0 for none; None for the newest."""
    if not run or run.isdigit():
        return int(run) if run else None
    numbers = (job.run_number for job in history.jobs if job.name == name and repr(job.submitted) == run)
    return next(numbers, 0)


def _axis(request: Request) -> Axis:
    asked = request.query_params.get("axis", Axis.TIME)
    if asked not in list(Axis):
        raise HTTPException(400, f"axis must be one of {', '.join(Axis)}")
    return Axis(asked)


def _width(request: Request) -> int:
    return min(max(whole_number(request, "width") or 900, 340), 2000)
