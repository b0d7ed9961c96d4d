"""The dependencies of handlers, and the checks that come before FastAPI's own.

FastAPI validates parameters and JSON bodies, and describes both. It reads no body: a body has a
limit, counts against the memory of all bodies, and may be compressed (bodies.py). A small JSON body
is received here and handed to FastAPI; records are received by the handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from weakref import WeakKeyDictionary

import msgspec
from fastapi import Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from sbp_core import limits
from sbp_core.client.aio import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.quantities import is_offset
from sbp_core.records.json_lines import check_names
from sbp_core.records.json_parsing import maybe_whole
from sbp_core.web.callers import Callers
from sbp_core.web.problems import bad_request, refusal
from sbp_core.web.records.bodies import Bodies
from sbp_core.web.records.tailing import Tails

IS_HEAD: Final = "sbp.is_head"
"""In the scope of a request that is handled as GET, and answered without a body."""
_WHOLE_NUMBERS: Final = msgspec.json.Decoder(float_hook=lambda text: maybe_whole(float(text)))
"""Returns 2 for the number 2.0."""
Described = Mapping[str, Any]
"""A part of an OpenAPI document."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of this process that handlers use. `parsing` runs the parsers of large bodies."""

    callers: Callers
    bodies: Bodies
    tails: Tails
    parsing: Executor
    rights: WeakKeyDictionary[AsyncClient, dict[int, float]] = field(
        default_factory=WeakKeyDictionary
    )
    """By client and stream id: when the right to append was last checked."""

    @staticmethod
    def of(request: Request) -> Service:
        """Return the service that a request was sent to."""
        service = request.app.state.service
        assert isinstance(service, Service)
        return service


async def _find_client(request: Request) -> AsyncClient:
    return await Service.of(request).callers.client(request)


Client = Annotated[AsyncClient, Depends(_find_client)]
"""The client with the identity of the caller."""
_NAME: Final = rf"^[A-Za-z0-9._-]{{1,{limits.STREAM_NAME_LENGTH_MAX}}}$"
StreamName = Annotated[
    str, Path(alias="stream", pattern=_NAME, description="Name of the stream, or its id.")
]
GroupName = Annotated[
    str, Path(alias="group", pattern=_NAME, description="Name of the consumer group.")
]


def stream_ref(text: str) -> int | str:
    """Return the id that a text of digits is; any other text is the name of a stream."""
    return int(text) if is_offset(text) else text


async def _find_stream(client: Client, name: StreamName) -> StreamInfo:
    (info,) = await client.describe_streams([stream_ref(name)])
    return info


Stream = Annotated[StreamInfo, Depends(_find_stream)]
"""The stream that the path names."""


class ApiRoute(APIRoute):
    """A route with the checks of this API: names of parameters, JSON bodies, HEAD."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of FastAPI within these checks."""
        handle = super().get_route_handler()
        known = sorted(each.alias for each in self.dependant.query_params)
        has_body = self.body_field is not None

        async def handle_checked(request: Request) -> Response:
            _check_query(request, known)
            if has_body:
                async with Service.of(request).bodies.received(request) as body:
                    answer = await _validated(handle, _JsonRequest(request, body))
            else:
                answer = await _validated(handle, request)
            if request.scope.get(IS_HEAD):  # records are not read, and a tail is not followed
                bare = Response(status_code=answer.status_code)
                bare.raw_headers = answer.raw_headers
                return bare
            return answer

        return handle_checked


class _JsonRequest(Request):
    """A request with a JSON body that was received. Raises ProblemError for a body that is not."""

    def __init__(self, request: Request, body: bytearray) -> None:
        # FastAPI takes a body for JSON by its type, and `curl -d` sends the type of a form.
        headers = [each for each in request.scope["headers"] if each[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._content = bytes(body) or b"{}"
        try:
            self._value = _WHOLE_NUMBERS.decode(self._content)
            check_names(self._content)
        except (ValueError, RecursionError) as error:
            raise refusal(422, "wrong-body", f"the body: {error}") from error

    async def body(self) -> bytes:
        """Return the body."""
        return self._content

    async def json(self) -> Any:
        """Return the value of the body."""
        return self._value


def _check_query(request: Request, known: list[str]) -> None:
    """Raise ProblemError for a parameter that is unknown, or given twice: FastAPI ignores both."""
    given = [name for name, _ in request.query_params.multi_items()]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise bad_request(
            f"unknown parameter {unknown[0]!a}; there are {', '.join(known) or 'none'}"
        )
    if len(set(given)) < len(given):
        raise bad_request("a parameter is given twice")


async def _validated(
    handle: Callable[[Request], Awaitable[Response]], request: Request
) -> Response:
    """Handle a request. Raises ProblemError for the first fault that FastAPI finds in it."""
    try:
        return await handle(request)
    except RequestValidationError as error:
        fault = error.errors()[0]
        place, *path = fault["loc"]
        text = f"{'.'.join(map(str, path)) or place}: {fault['msg']}"
        if place == "body":
            raise refusal(422, "wrong-body", f"the body: {text}") from error
        raise bad_request(text) from error
