"""The dependencies of handlers, and the checks that come before FastAPI's own.

FastAPI validates parameters and JSON bodies, and describes both. FastAPI reads no body: a body has
a limit, counts against the memory of all bodies, and may be compressed (`Bodies`). A small JSON
body is received here and handed to FastAPI; records are received by the handler.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Annotated, Any, Final
from weakref import WeakKeyDictionary

import msgspec
from fastapi import Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from sbp_core import limits
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.quantities import is_offset
from sbp_core.records.json_lines import check_names
from sbp_core.records.json_parsing import maybe_whole
from sbp_core.settings.web_settings import BODY_BYTES_MAX, IN_FLIGHT_BYTES_MAX
from sbp_core.web.callers import Callers
from sbp_core.web.problems import ProblemError, bad_request, refusal
from sbp_core.web.records.record_answers import Tails

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_PIECE_BYTES: Final = 64 * limits.KIB
"""Bytes that are decompressed at a time."""
_REFUSAL_SECONDS: Final = 0.1
"""How long the answer to a refused body is held, so that a client that sends many bad bodies takes
little time from the other clients."""
_MEMBERS_MAX: Final = 1024
"""Members of a gzip body. Writers of blocks fill each with some 64 KiB."""


class Bodies:
    """Receives bodies of `body_bytes_max` at most, `in_flight_bytes_max` of all together."""

    def __init__(
        self,
        body_bytes_max: int = BODY_BYTES_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        self.body_bytes_max: Final = body_bytes_max
        self._left_bytes = in_flight_bytes_max

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytearray]:
        """Receive the body of a request; its memory counts until the request is answered.

        Raises ProblemError: 413 if it is too large, 415 for a coding or charset that is not known,
        400 for damaged gzip, 429 if the bodies of other requests leave no room.
        """
        _check_charset(request)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in {"identity", "gzip"}:
            raise refusal(
                *(415, "unsupported-coding"),
                f"Content-Encoding {coding[:40]!a}: expected gzip, or none",
                Accept_Encoding="gzip",
            )
        declared = request.headers.get("content-length", "0")
        if int(declared) > self.body_bytes_max:  # h11 has checked that it is a number
            raise self._too_large()
        body = _Growing(self)
        held_seconds = 0.0
        try:
            inflater = None if coding == "identity" else _Inflater(body)
            async for chunk in request.stream():
                if inflater is None:
                    body.add(chunk)
                else:
                    await inflater.add(chunk)
            if inflater is not None:
                inflater.finish()
            yield body.data
        except ClientDisconnect:
            raise refusal(400, "incomplete-body", "the connection ended in the body") from None
        except (ProblemError, SchemaError, RecordBatchError):
            held_seconds = _REFUSAL_SECONDS
            raise
        finally:
            self._left_bytes += body.reserved_bytes
            await asyncio.sleep(held_seconds)

    def reserve(self, size_bytes: int) -> None:
        """Count bytes of a body. Raises ProblemError if there is no room for them."""
        if size_bytes > self._left_bytes:
            raise refusal(
                *(429, "too-many-bytes-in-flight"),
                "the bodies of other requests fill the memory that there is for them: retry later",
                Retry_After="1",
            )
        self._left_bytes -= size_bytes

    def _too_large(self) -> ProblemError:
        return refusal(
            *(413, "body-too-large"),
            f"the body has more than {self.body_bytes_max} bytes (decompressed): send it in several"
            " requests",
        )

    def check_size(self, size_bytes: int) -> None:
        """Raise ProblemError for a body that is too large."""
        if size_bytes > self.body_bytes_max:
            raise self._too_large()


class _Growing:
    """A body so far, and the memory that was reserved for it."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.data = bytearray()
        self.reserved_bytes = 0

    def check_size(self, size_bytes: int) -> None:
        self._bodies.check_size(size_bytes)

    def add(self, chunk: bytes) -> None:
        self.check_size(len(self.data) + len(chunk))
        self._bodies.reserve(len(chunk))
        self.reserved_bytes += len(chunk)
        self.data += chunk


class _Inflater:
    """Decompresses gzip, a piece at a time, so that a few bytes never fill the memory.

    Other requests have a turn after each piece. Members and bytes that hold nothing take time, too,
    so both are bounded.
    """

    def __init__(self, body: _Growing) -> None:
        self._body = body
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._member_count = 1
        self._received_bytes = 0

    async def add(self, chunk: bytes) -> None:
        self._received_bytes += len(chunk)
        self._body.check_size(self._received_bytes)
        rest = memoryview(chunk)
        while rest:
            if self._member.eof:  # gzip may have several members, one behind the other
                self._member = zlib.decompressobj(_GZIP_WINDOW)
                self._member_count += 1
                if self._member_count > _MEMBERS_MAX:
                    raise _damaged(f"it has more than {_MEMBERS_MAX} members: compress it as one")
            try:
                self._body.add(self._member.decompress(rest[:_PIECE_BYTES], _PIECE_BYTES))
            except zlib.error as error:
                raise _damaged(str(error)) from error
            taken = min(len(rest), _PIECE_BYTES)
            rest = rest[taken - len(self._member.unconsumed_tail or self._member.unused_data) :]
            await asyncio.sleep(0)

    def finish(self) -> None:
        """Raise ProblemError if the end is missing; an empty body is none."""
        if self._received_bytes and not self._member.eof:
            raise _damaged("its end is missing")


def _check_charset(request: Request) -> None:
    """Raise ProblemError, 415, for a body that is not in UTF-8."""
    header = Message()
    header["Content-Type"] = request.headers.get("content-type", "")
    charset = header.get_content_charset("utf-8")
    if charset != "utf-8":
        raise refusal(
            *(415, "unsupported-charset"),
            f"Content-Type: charset {charset[:40]!a}: expected utf-8, or none",
        )


def _damaged(reason: str) -> ProblemError:
    return refusal(400, "damaged-body", f"the body is no gzip: {reason}")


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
