"""The application: the routes of all operations, and what is refused before any of them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sbp_core.errors import PermissionDeniedError
from sbp_core.web.callers import Callers
from sbp_core.web.origins import is_foreign
from sbp_core.web.problems import HANDLERS, Problem, problem_of
from sbp_core.web.records.appending import Appending
from sbp_core.web.records.bodies import Bodies
from sbp_core.web.records.declaring import Operation, json_answer
from sbp_core.web.records.openapi import describe
from sbp_core.web.records.operations import operations
from sbp_core.web.records.reading import Reading
from sbp_core.web.records.streams import Streams
from sbp_core.web.records.tailing import Tails

PARSING_THREADS: Final = 2
DESCRIPTION_PATH: Final = "/v1/openapi.json"


def records_app(callers: Callers, bodies: Bodies, tails: Tails) -> ASGIApp:
    """Return the application."""
    parsing = ThreadPoolExecutor(PARSING_THREADS, "sbp-parsing")
    declared = operations(
        Appending(callers, bodies, parsing), Reading(callers, tails), Streams(callers, bodies)
    )
    description = describe(declared)

    async def describe_api(request: Request) -> Response:
        del request
        return json_answer(description)

    by_path: dict[str, dict[str, Operation]] = {}
    for each in declared:
        by_path.setdefault(each.path, {})[each.method] = each
    routes = [Route(path, _Path(found)) for path, found in by_path.items()]
    routes.append(Route(DESCRIPTION_PATH, describe_api, methods=["GET"]))
    handlers = {**HANDLERS, 404: _no_path}
    return _of_no_page(Starlette(routes=routes, exception_handlers=handlers))


def _no_path(request: Request, error: Exception) -> Response:
    """Answer a request whose path is of no operation."""
    del error
    detail = (
        f"{request.method} {request.url.path}: no such path; GET {DESCRIPTION_PATH} describes all"
        " requests that there are"
    )
    return Problem(404, "not-found", detail).response()


class _Path:
    """The operations of one path, by method."""

    def __init__(self, by_method: Mapping[str, Operation]) -> None:
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        is_head = request.method == "HEAD"
        operation = self._by_method.get("GET" if is_head else request.method)
        if operation is None:
            allowed = [*self._by_method, *(["HEAD"] if "GET" in self._by_method else [])]
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        answer = await operation.handle(request)
        if is_head:  # the records are not read, and a tail is not followed
            bare = Response(status_code=answer.status_code)
            bare.raw_headers = answer.raw_headers
            answer = bare
        await answer(scope, receive, send)


def _of_no_page(app: ASGIApp) -> ASGIApp:
    """Return an application that refuses pages of other sites, unless they have a token.

    A browser sends no token by itself, so a page that has one was given it.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPConnection(scope)
        if is_foreign(request) and "authorization" not in request.headers:
            error = PermissionDeniedError.of(
                "a page of another site sends this request: it needs a token, in the header"
                " Authorization"
            )
            await problem_of(error).response()(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked
