"""The web application of a pool: its pages, the stream of changes, and what they are asked to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lightning_core.core.answers import JobStatus
from lightning_core.core.names import is_name
from lightning_core.pool.pool import Pool
from lightning_core.report.svg import escape
from lightning_core.server.access.people import Person, Right
from lightning_core.web import entrance_page, job_pages, overview_page, timeline_page
from lightning_core.web.document_frame import Frame, read_assets
from lightning_core.web.event_stream import MAX_PAGES, changes, first_state
from lightning_core.web.live_history import LiveHistory
from lightning_core.web.metrics import metrics
from lightning_core.web.pool_watch import PoolWatch
from lightning_core.web.query_values import seconds, whole_number
from lightning_core.web.request_guard import RequestGuard
from lightning_core.web.steering import Steering
from lightning_core.web.visitors import SESSION_SECONDS, Visitors

T = TypeVar("T")
DAY, YEAR = 86400, 365 * 86400
# Pages that are drawn at the same time: drawing takes the processor, not the network.
MAX_DRAWN = 4


class WebApp:
    """The pages of a pool.

    Args:
        pool: The pool, for what people ask of it.
        watch: Where the pool is looked at.
        visitors: Who may come in.
        hosts: Hosts under which it is served.
        https: Whether people reach it by https, through a proxy.
        cookie: Name of its cookie: browsers send those of all ports of a host.
    """

    def __init__(
        self, pool: Pool, watch: PoolWatch, visitors: Visitors, hosts: Collection[str], *, https: bool = False,
        cookie: str = "lightning_core",
    ) -> None:  # fmt: skip
        self.watch, self.visitors = watch, visitors
        self.folder: Path = pool.folder
        self.history = LiveHistory(self.folder / "journal.db", watch)
        self.steering = Steering(pool, watch)
        self._https, self._cookie = https, cookie
        self._assets = read_assets()
        pages = [("/", "Jobs"), ("/timeline", "Timeline")]
        self.frame = Frame(self._assets, self.folder.name, pages)
        self._drawing = asyncio.Semaphore(MAX_DRAWN)
        routes = [
            Route("/", self._overview),
            Route("/enter", self._enter, methods=["GET", "POST"]),
            Route("/leave", self._leave, methods=["POST"]),
            Route("/events", self._events),
            Route("/static/{digest}/{name}", self._static),
            Route("/favicon.ico", self._icon),
            Route("/metrics", self._metrics),
            Route("/timeline", self._timeline),
            Route("/timeline/lanes", self._lanes),
            Route("/jobs/{name}", self._job),
            Route("/jobs/{name}/chart", self._chart),
            Route("/jobs/{name}/story", self._story),
            Route("/jobs/{name}/facts", self._facts),
            Route("/jobs/{name}/log", self._log),
            Route("/jobs/{name}/{action}", self._act, methods=["POST"]),
        ]
        self.starlette = Starlette(
            routes=routes,
            middleware=[Middleware(RequestGuard, hosts=hosts), Middleware(GZipMiddleware, minimum_size=2000)],
            exception_handlers={HTTPException: self._trouble},
            lifespan=self._lifespan,
        )
        self.starlette.state.client = pool.client

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.history.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.history.close)
            await asyncio.to_thread(self.watch.close)

    # ------------------------------------------------------------------------------------------------ who

    def person(self, request: Request) -> Person:
        """Return who asks.

        Raises:
            HTTPException: If no person does.
        """
        person = self._person(request)
        if person is None:
            raise HTTPException(401)
        return person

    def _person(self, request: Request) -> Person | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.visitors.of_token(token.strip())
        return self.visitors.of_cookie(request.cookies.get(self._cookie, ""))

    def _visible(self, person: Person) -> Callable[[JobStatus], bool]:
        """Return the rule of which jobs a person may see."""
        return lambda job: person.sees(job.owner)

    def _known(self, request: Request, person: Person) -> str:
        """Return the name of the job that a request is about, if its person may see that.

        Raises:
            HTTPException: If there is no such job, for this person.
        """
        name, view = request.path_params["name"], self.watch.view
        if not is_name(name):
            raise HTTPException(404, "There is no job of that name.")
        owners = {job.owner for job in view.statuses() if job.name == name}
        if not person.may(Right.SEE) and not (owners and all(map(person.sees, owners))):
            raise HTTPException(404, f"There is no job {name}.")
        return str(name)

    async def _enter(self, request: Request) -> Response:
        if request.method == "POST":
            secret = parse_qs((await request.body()).decode(errors="replace")).get("token", [""])[0].strip()
        else:
            secret = request.query_params.get("key", "")
        entered = self.visitors.enter(secret)
        if entered is None:
            words = "That link or token does not work: it may have been used, have expired, or have been revoked."
            return HTMLResponse(self._door(words), 401)
        # Not a redirect: a browser that comes from another site would not send the cookie with it.
        response = HTMLResponse(
            '<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content="0;url=/">'
            '<title>lightning_core</title><p><a href="/">Go on</a></p></html>'
        )
        response.set_cookie(
            self._cookie,
            entered[0],
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=self._https,
            path="/",
        )
        return response

    async def _leave(self, request: Request) -> Response:
        self.visitors.leave(request.cookies.get(self._cookie, ""))
        response = HTMLResponse(self._door("You have left."))
        response.delete_cookie(self._cookie, path="/")
        return response

    def _door(self, words: str) -> str:
        return self.frame.page("", entrance_page.body(words), None)

    async def _trouble(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        wants_page = "text/html" in request.headers.get("accept", "") and request.method == "GET"
        if error.status_code == 401 and wants_page:
            return HTMLResponse(self._door("This page is for those who have a link or a token."), 401)
        words = error.detail if error.status_code != 401 else "a session or a token is needed"
        if wants_page:
            body = f'<h1>{escape(words)}</h1><p><a href="/">All jobs</a></p>'
            return HTMLResponse(self.frame.page("", body, self._person(request)), error.status_code)
        headers = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else None
        return PlainTextResponse(f"{words}\n", error.status_code, headers)

    # ------------------------------------------------------------------------------------------------ what is shown

    async def _overview(self, request: Request) -> Response:
        person, view = self.person(request), self.watch.view
        state = first_state(view, overview_page.describe(view, person), self._visible(person))
        return HTMLResponse(self.frame.page("Jobs", overview_page.body(state), person, "/", "jobs.js"))

    async def _events(self, request: Request) -> Response:
        person = self.person(request)
        if self.watch.viewers >= MAX_PAGES:
            raise HTTPException(503, f"{MAX_PAGES} pages are open, which is the limit")
        stream = changes(
            self.watch, partial(overview_page.describe, person=person), self._visible(person),
            lambda: self._person(request) == person,
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
        self._who_sees_all(request)
        return await self._drawn(partial(metrics, request))

    async def _timeline(self, request: Request) -> Response:
        person = self._who_sees_all(request)
        return HTMLResponse(self.frame.page("Timeline", timeline_page.body(), person, "/timeline", "timeline.js"))

    async def _lanes(self, request: Request) -> Response:
        self._who_sees_all(request)
        last = seconds(request, "last")

        def draw() -> str:
            with self.history.reading() as history:
                return timeline_page.lanes(history, self.watch.view, last)

        return HTMLResponse(await self._drawn(draw))

    async def _job(self, request: Request) -> Response:
        person = self.person(request)
        name, view = self._known(request, person), self.watch.view
        status, run = view.newest(name), whole_number(request, "run")
        if run is not None:
            status = None
        rights = self.steering.allowed(person, status)
        allowed = self._visible(person)
        state = first_state(view, overview_page.describe(view, person), lambda job: job.name == name and allowed(job))

        def draw() -> str | None:
            with self.history.reading() as history:
                found = self.history.job(history, name, run, person.sees)
                return None if found is None else job_pages.body(history, found, status, rights, state, self.folder)

        body = await self._drawn(draw)
        if body is None:
            raise HTTPException(404, f"There is no job {name}.")
        return HTMLResponse(self.frame.page(name, body, person, "", "job.js"))

    async def _chart(self, request: Request) -> Response:
        person = self.person(request)
        name = self._known(request, person)
        run, width = whole_number(request, "run"), min(max(whole_number(request, "width") or 400, 400), 2000)
        low, high = seconds(request, "from"), seconds(request, "to")
        span = None if low is None or high is None or not low < high else (low, high)

        def draw() -> str | None:
            with self.history.reading() as history:
                found = self.history.job(history, name, run, person.sees)
                return None if found is None else job_pages.chart_of(history, found, width, span)

        return await self._part(draw)

    async def _story(self, request: Request) -> Response:
        person = self.person(request)
        name, run = self._known(request, person), whole_number(request, "run")

        def draw() -> str | None:
            with self.history.reading() as history:
                found = self.history.job(history, name, run, person.sees)
                return None if found is None else job_pages.story(found[1])

        return await self._part(draw)

    async def _facts(self, request: Request) -> Response:
        person = self.person(request)
        name = self._known(request, person)

        def draw() -> str | None:
            with self.history.reading() as history:
                found = self.history.job(history, name, None, person.sees)
                return None if found is None else job_pages.facts(found[1], self.watch.view.newest(name))

        return await self._part(draw)

    async def _log(self, request: Request) -> Response:
        name = self._known(request, self.person(request))
        try:
            text = await self._drawn(partial(job_pages.log_tail, self.folder, name))
        except OSError as error:
            text = str(error)
        return PlainTextResponse(text)

    async def _act(self, request: Request) -> Response:
        person = self.person(request)
        name = self._known(request, person)
        try:
            body = await request.json()
        except ValueError:
            raise HTTPException(400, "a request must be JSON") from None
        return PlainTextResponse(await self.steering.act(person, name, request.path_params["action"], body))

    def _who_sees_all(self, request: Request) -> Person:
        person = self.person(request)
        if not person.may(Right.SEE):
            raise HTTPException(403, "This page shows everybody's jobs; your token is for your own.")
        return person

    async def _part(self, draw: Callable[[], str | None]) -> Response:
        found = await self._drawn(draw)
        if found is None:
            raise HTTPException(404, "There is no such job.")
        return HTMLResponse(found)

    async def _drawn(self, draw: Callable[[], T]) -> T:
        """Draw in a thread: the stream of changes goes on meanwhile."""
        async with self._drawing:
            try:
                return await asyncio.to_thread(draw)
            except TimeoutError as error:
                raise HTTPException(503, str(error)) from None
