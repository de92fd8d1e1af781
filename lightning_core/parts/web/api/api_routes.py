"""The routes of the API, made from the declarations of its endpoints."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from lightning_core.bundle.problems import BundleError
from lightning_core.core.limits import shown
from lightning_core.core.names import check_program, is_name
from lightning_core.core.validation import check_bounds, converted
from lightning_core.parts.web.api.endpoints import ENDPOINTS, VERSION, CheckedRequest, Endpoint, Sources
from lightning_core.parts.web.api.error_answers import PREFIX, error_answer
from lightning_core.parts.web.api.openapi import document
from lightning_core.parts.web.api.repeats import HEADER, Repeats
from lightning_core.parts.web.drawing import Drawing
from lightning_core.parts.web.entrance import Entrance
from lightning_core.parts.web.refusals import REFUSALS, refusal
from lightning_core.parts.web.submission import problems_of
from lightning_core.pool.api_connection import THROUGH
from lightning_core.pool.pool import Pool
from lightning_core.pool.shapes import BundleText
from lightning_core.server import json_limits
from lightning_core.server.access.people import Person

log = logging.getLogger(__name__)

VERSIONS = {"versions": [{"version": VERSION, "openapi": f"{PREFIX}/{VERSION}/openapi.json"}]}


class ApiRoutes:
    """The API of a pool.

    Args:
        entrance: Identifies the user.
        pool: The pool.
        sources: Data sources of the endpoints.
    """

    def __init__(self, entrance: Entrance, pool: Pool, sources: Sources) -> None:
        self._entrance, self._pool, self._sources = entrance, pool, sources
        # Programs that read much keep no page waiting, and no command.
        self._reading, self._changing = Drawing(), Drawing()
        self._repeats = Repeats()
        self._document = document()
        base = f"{PREFIX}/{VERSION}"
        self._known = [
            Route(f"{base}/openapi.json", self._guarded(self._openapi)),
            *(
                Route(base + one.path, self._guarded(partial(self._answer, one)), methods=[one.method])
                for one in ENDPOINTS
            ),
        ]

    def routes(self) -> list[Route]:
        return [
            Route(PREFIX, self._guarded(self._versions)),
            *self._known,
            Route(f"{PREFIX}/{{rest:path}}", self._guarded(self._no_such), methods=["GET", "POST"]),
        ]

    def _guarded(self, answer: Callable[[Request, Person], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        """Return an answer as JSON, errors included; only signed-in users get one."""

        async def respond(request: Request) -> Response:
            try:
                return JSONResponse(await answer(request, self._entrance.person(request)))
            except BundleError as error:
                problems = [problem._asdict() for problem in problems_of(error)]
                return error_answer(422, str(error), problems=problems)
            except REFUSALS as error:
                raise refusal(error) from None

        return respond

    async def _versions(self, _: Request, __: Person) -> dict[str, Any]:
        return VERSIONS

    async def _openapi(self, _: Request, __: Person) -> dict[str, Any]:
        return self._document

    async def _no_such(self, request: Request, _: Person) -> Any:
        if any(route.matches(request.scope)[0] is Match.PARTIAL for route in self._known):
            raise HTTPException(405, f"{request.method} is not allowed here")
        version = request.path_params["rest"].partition("/")[0][:20]
        if version != VERSION:
            raise HTTPException(404, f"there is no version {version!r} of this API; there is {VERSION}")
        raise HTTPException(404, f"there is nothing at this path; {PREFIX}/{VERSION}/openapi.json lists all paths")

    async def _answer(self, endpoint: Endpoint, request: Request, person: Person) -> Any:
        name = request.path_params.get("name", "")
        if "{name}" in endpoint.path and not is_name(name):
            raise HTTPException(404, "there is no job of that name")
        query = converted(dict(request.query_params), endpoint.query, texts=True)
        through = check_program(program) if (program := request.headers.get(THROUGH)) is not None else ""
        body = read_body(endpoint.body, await _json_of(request))

        def run() -> Any:
            with self._pool.acting_for(person, through) as acting:
                return endpoint.run(self._sources, CheckedRequest(person, acting, name, query, body))

        if endpoint.method == "GET":
            return await self._reading.draw(run)
        content = json.dumps([endpoint.path, name, body])
        do = partial(self._changing.draw, run)
        return await self._repeats.once(person.name, request.headers.get(HEADER), content, do)


def read_body(kind: type, given: Any) -> dict[str, Any]:
    """Return the body of a request.

    Args:
        kind: Dataclass whose fields it must or may give.
        given: The body, read from JSON; None if it is empty.

    Raises:
        ValueError: If it is no object, a key is unknown or missing, or a value is of another type.
    """
    body = {} if given is None else given
    if not isinstance(body, dict):
        raise ValueError(f"a request must be a JSON object, got {shown(body)}")
    if kind is not BundleText:  # it may be longer than other texts, and the request is bounded
        check_bounds(body)
    converted(body, kind)
    return body


async def _json_of(request: Request) -> Any:
    """Return the body of a request, read from JSON; None if it is empty.

    Raises:
        HTTPException: If it is not said to be JSON.
        ValueError: If it is not JSON, or too deep or too long.
    """
    content = await request.body()
    if not content:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "a request must be JSON, with Content-Type: application/json")
    try:
        return await asyncio.to_thread(json_limits.loads, content)
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("a request must be JSON in UTF-8") from None
