"""Authentication by link, token or session, and the responses to requests without one."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from lightning_core.core.answers import JobStatus
from lightning_core.core.names import is_name
from lightning_core.parts.web.pages import entrance_page
from lightning_core.parts.web.pages.document_frame import Frame
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.visitors import SESSION_SECONDS, Visitors
from lightning_core.report.svg import escape
from lightning_core.server.access.people import Person, Right


class Entrance:
    """Authenticates users, and applies their rights.

    Args:
        visitors: Links and sessions that are accepted.
        watch: Watcher of the pool.
        frame: The frame of every page.
        https: Whether users reach the page by https, through a proxy.
        cookie: Name of the page's cookie: browsers send those of all ports of a host.
    """

    def __init__(self, visitors: Visitors, watch: PoolWatch, frame: Frame, *, https: bool, cookie: str) -> None:
        self._visitors, self._watch, self._frame = visitors, watch, frame
        self._https, self._cookie = https, cookie

    def routes(self) -> list[Route]:
        return [
            Route("/enter", self._enter, methods=["GET", "POST"]),
            Route("/leave", self._leave, methods=["POST"]),
        ]

    def person(self, request: Request) -> Person:
        """Return the user of a request.

        Raises:
            HTTPException: If it has none.
        """
        person = self.find(request)
        if person is None:
            raise HTTPException(401)
        return person

    def find(self, request: Request) -> Person | None:
        """Return the user of a request; None if it has none."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._visitors.of_token(token.strip())
        return self._visitors.of_cookie(request.cookies.get(self._cookie, ""))

    def visible(self, person: Person) -> Callable[[JobStatus], bool]:
        """Return the predicate of the jobs that a user may see."""
        return lambda job: person.sees(job.owner)

    def known(self, request: Request, person: Person) -> str:
        """Return the name of the job that a request is about, if its user may see that.

        Raises:
            HTTPException: If there is no such job, or the user may not see it.
        """
        name = str(request.path_params["name"])
        if not is_name(name):
            raise HTTPException(404, "There is no job of that name.")
        owners = {job.owner for job in self._watch.view.statuses() if job.name == name}
        if not person.may(Right.SEE) and not (owners and all(map(person.sees, owners))):
            raise HTTPException(404, f"There is no job {name}.")
        return name

    def who_sees_all(self, request: Request) -> Person:
        """Return the user of a request, who must be allowed to see every job.

        Raises:
            HTTPException: If there is none, or the user may not see every job.
        """
        person = self.person(request)
        if not person.may(Right.SEE):
            raise HTTPException(403, "This page shows everybody's jobs; your token is for your own.")
        return person

    async def _enter(self, request: Request) -> Response:
        if request.method == "POST":
            secret = parse_qs((await request.body()).decode(errors="replace")).get("token", [""])[0].strip()
        else:
            secret = request.query_params.get("key", "")
        entered = self._visitors.enter(secret)
        if entered is None:
            words = "That link or token does not work: it may have been used, have expired, or have been revoked."
            return HTMLResponse(self._door(words), 401)
        # Not a redirect: a browser that comes from another site would not send the cookie with it.
        response = HTMLResponse(
            '<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content="0;url=/">'
            '<title>lightning_core</title><p><a href="/">Continue</a></p></html>'
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
        self._visitors.leave(request.cookies.get(self._cookie, ""))
        response = HTMLResponse(self._door("You have signed out."))
        response.delete_cookie(self._cookie, path="/")
        return response

    def _door(self, words: str) -> str:
        return self._frame.page("", entrance_page.body(words), None)

    async def trouble(self, request: Request, error: Exception) -> Response:
        """Return the refusal of a request, as a page for a browser and as text for a program."""
        assert isinstance(error, HTTPException)
        wants_page = "text/html" in request.headers.get("accept", "") and request.method == "GET"
        if error.status_code == 401 and wants_page:
            return HTMLResponse(self._door("Open this page by a link, or enter a token."), 401)
        words = error.detail if error.status_code != 401 else "a session or a token is needed"
        if wants_page:
            body = f'<h1>{escape(words)}</h1><p><a href="/">All jobs</a></p>'
            return HTMLResponse(self._frame.page("", body, self.find(request)), error.status_code)
        headers = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else None
        return PlainTextResponse(f"{words}\n", error.status_code, headers)
