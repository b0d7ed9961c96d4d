"""The application: its routes, their description, and the requests that no route gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from sbp_core import __version__
from sbp_core.errors import PermissionDeniedError
from sbp_core.web.browsers import is_foreign
from sbp_core.web.callers import Callers
from sbp_core.web.problems import HANDLERS, MEDIA_TYPE, Problem, problem_of
from sbp_core.web.records import get_records, post_records, stream_routes
from sbp_core.web.records.record_answers import Tails
from sbp_core.web.records.requests import IS_HEAD, Bodies, Service

PARSING_THREADS: Final = 2
DESCRIPTION_PATH: Final = "/v1/openapi.json"
_ROUTERS: Final = (stream_routes.router, post_records.router, get_records.router)


class ProblemDetails(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    outcome: Literal["not applied", "applied", "unknown"]
    retriable: bool
    code: int = 0
    line: int = 0


class _Api(FastAPI):
    """FastAPI, whose description has the problems and the token."""

    def openapi(self) -> dict[str, Any]:
        """Return the description of the API."""
        described = super().openapi()
        parts = described["components"]
        parts["schemas"]["Problem"] = ProblemDetails.model_json_schema()
        parts["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
        }
        described["security"] = [{}, {"token": []}]  # on a loopback address it is optional
        return described


def records_app(callers: Callers, bodies: Bodies, tails: Tails) -> ASGIApp:
    """Return the application."""
    problem = {
        "description": "The request failed.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    api = _Api(
        title="Records of the Streaming Batch Protocol over HTTP",
        version=__version__,
        openapi_url=DESCRIPTION_PATH,
        docs_url=None,
        redoc_url=None,
        responses={"default": problem},
        exception_handlers={**HANDLERS, 404: _no_path, 405: _no_method},
    )
    for each in _ROUTERS:
        api.include_router(each)
    parsing = ThreadPoolExecutor(PARSING_THREADS, "sbp-parsing")
    api.state.service = Service(callers, bodies, tails, parsing)
    return _with_checks(api)


async def _no_path(request: Request, error: Exception) -> Response:
    """Answer a request whose path is of no operation."""
    del error
    detail = (
        f"{request.method} {request.url.path}: no such path; GET {DESCRIPTION_PATH} describes all"
        " requests that there are"
    )
    return Problem(404, "not-found", detail).response()


async def _no_method(request: Request, error: Exception) -> Response:
    """Answer a request with the methods of all routes of its path: a route knows its own only."""
    routes = [route for router in _ROUTERS for route in router.routes]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = {method for route in found for method in getattr(route, "methods", ())} or {"GET"}
    if "GET" in allowed:
        allowed.add("HEAD")
    headers = {"Allow": ", ".join(sorted(allowed))}
    return await HANDLERS[HTTPException](request, HTTPException(405, headers=headers))


def _with_checks(app: ASGIApp) -> ASGIApp:
    """Return an application that refuses pages of other sites, and handles HEAD as GET.

    A browser sends no token by itself, so a page that has one was given it.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if is_foreign(request) and "authorization" not in request.headers:
            error = PermissionDeniedError.of(
                "a page of another site sends this request: it needs a token, in the header"
                " Authorization"
            )
            await problem_of(error).response()(scope, receive, send)
            return
        if request.method == "HEAD":
            scope = {**scope, "method": "GET", IS_HEAD: True}
        await app(scope, receive, send)

    return checked
