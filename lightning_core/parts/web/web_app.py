"""The web application of a pool: its pages, the stream of changes, and the actions on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from lightning_core.parts.web.api.api_routes import ApiRoutes
from lightning_core.parts.web.api.endpoints import Sources
from lightning_core.parts.web.api.error_answers import error_answer, is_api
from lightning_core.parts.web.drawing import Drawing
from lightning_core.parts.web.entrance import Entrance
from lightning_core.parts.web.event_stream import MAX_PAGES, changes, first_state
from lightning_core.parts.web.job_controls import JobControls
from lightning_core.parts.web.job_routes import JobRoutes
from lightning_core.parts.web.live_history import LiveHistory
from lightning_core.parts.web.metrics import metrics
from lightning_core.parts.web.pages import overview_page, submit_page, timeline_page
from lightning_core.parts.web.pages.document_frame import Frame, PageLink, read_assets
from lightning_core.parts.web.part_routes import PartRoutes, links
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.query_values import seconds
from lightning_core.parts.web.request_guard import RequestGuard
from lightning_core.parts.web.submission import Submission
from lightning_core.parts.web.visitors import Visitors
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Right

DAY, YEAR = 86400, 365 * 86400


class WebApp:
    """The pages of a pool.

    Args:
        pool: The pool, for requests of users.
        watch: Watcher of the pool.
        visitors: Links and sessions that are accepted.
        hosts: Hosts under which it is served.
        https: Whether users reach it by https, through a proxy.
        cookie: Name of its cookie: browsers send those of all ports of a host.
        allow_submit: Whether those with the right to may submit bundles, which are code.
    """

    def __init__(
        self, pool: Pool, watch: PoolWatch, visitors: Visitors, hosts: Collection[str], *, https: bool = False,
        cookie: str = "lightning_core", allow_submit: bool = False,
    ) -> None:  # fmt: skip
        self.watch, self.visitors, self.folder, self.drawing = watch, visitors, pool.folder, Drawing()
        self.history = LiveHistory(self.folder / "journal.db", watch)
        self._assets, self._takes_bundles = read_assets(), allow_submit
        self.frame = Frame(self._assets, self.folder.name, self._links)
        self.entrance = Entrance(visitors, watch, self.frame, https=https, cookie=cookie)
        steering = JobControls(watch)
        self.submission = Submission(pool, watch, allowed=allow_submit)
        jobs = JobRoutes(self.entrance, watch, self.history, steering, self.drawing, self.frame, self.folder)
        api = ApiRoutes(self.entrance, pool, Sources(self.folder, self.history, steering, self.submission))
        routes = [
            Route("/", self._overview),
            *self.entrance.routes(),
            Route("/events", self._events),
            Route("/static/{digest}/{name}", self._static),
            Route("/favicon.ico", self._icon),
            Route("/metrics", self._metrics),
            Route("/timeline", self._timeline),
            Route("/timeline/lanes", self._lanes),
            *jobs.routes(),
            *api.routes(),
            *PartRoutes(self.entrance, watch, self.history, self.drawing, self.frame).routes(),
            Route("/submit", self._submit),
        ]
        self.starlette = Starlette(
            routes=routes,
            middleware=[Middleware(RequestGuard, hosts=hosts), Middleware(GZipMiddleware, minimum_size=2000)],
            exception_handlers={HTTPException: self._trouble},
            lifespan=self._lifespan,
        )
        self.starlette.state.client = pool.client

    def _links(self) -> list[PageLink]:
        """Return the pages of the navigation."""
        found = [PageLink("/", "Jobs"), PageLink("/timeline", "Timeline", Right.SEE), *links(self.watch.view.about)]
        return [*found, PageLink("/submit", "Submit", Right.SUBMIT)] if self._takes_bundles else found

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.history.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.history.close)
            await asyncio.to_thread(self.watch.close)

    async def _trouble(self, request: Request, error: Exception) -> Response:
        """Return the refusal of a request: as JSON in the API, and otherwise as a page."""
        if isinstance(error, HTTPException) and is_api(request.url.path):
            return error_answer(
                error.status_code, "a token or a session is needed" if error.status_code == 401 else error.detail
            )
        return await self.entrance.trouble(request, error)

    async def _overview(self, request: Request) -> Response:
        person, view = self.entrance.person(request), self.watch.view
        state = first_state(view, overview_page.describe(view, person), self.entrance.visible(person))
        body = overview_page.body(state)
        return HTMLResponse(self.frame.page("Jobs", body, person, "/", "jobs.js"))

    async def _events(self, request: Request) -> Response:
        person = self.entrance.person(request)
        if self.watch.viewers >= MAX_PAGES:
            raise HTTPException(503, f"{MAX_PAGES} pages are open, which is the limit")
        stream = changes(
            self.watch, partial(overview_page.describe, person=person), self.entrance.visible(person),
            lambda: self.entrance.find(request) == person,
        )  # fmt: skip
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _static(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None or request.path_params["digest"] != self.frame.digest:
            raise HTTPException(404, "There is no such file.")
        headers = {"Cache-Control": f"public, max-age={YEAR}, immutable"}
        return Response(asset.content, media_type=asset.kind, headers=headers)

    async def _icon(self, _: Request) -> Response:
        icon = self._assets["icon.svg"]
        return Response(icon.content, media_type=icon.kind, headers={"Cache-Control": f"public, max-age={DAY}"})

    async def _metrics(self, request: Request) -> Response:
        self.entrance.who_sees_all(request)
        return await self.drawing.draw(partial(metrics, request))

    async def _timeline(self, request: Request) -> Response:
        person = self.entrance.who_sees_all(request)
        return HTMLResponse(self.frame.page("Timeline", timeline_page.body(), person, "/timeline", "timeline.js"))

    async def _submit(self, request: Request) -> Response:
        person = self.entrance.person(request)
        if not self.submission.allows(person):
            raise HTTPException(403, "Submitting takes the right submit, and a server with --allow-submit.")
        return HTMLResponse(self.frame.page("Submit", submit_page.body(), person, "/submit", "submit.js"))

    async def _lanes(self, request: Request) -> Response:
        self.entrance.who_sees_all(request)
        last = seconds(request, "last")

        def draw() -> str:
            with self.history.reading() as history:
                return timeline_page.lanes(history, self.watch.view, last)

        return HTMLResponse(await self.drawing.draw(draw))
