"""POST of records: a request is one record batch, so it is appended as a whole or not at all.

A request with an Idempotency-Key is the first and only batch of a writer whose id follows from the
key. So the log of the stream recognises a repeat, wherever it comes from: its range servers know
the last WRITERS_PER_STREAM_MAX writers of a stream, and a digest of what each sent; the next range
has them from the one before. Nothing else is stored. The batch of a repeat has to have the same
bytes, so such a record has only the time that it brings.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pyarrow as pa
from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel

from sbp_core import limits
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.operations.numbering import Writer
from sbp_core.client.types import AppendItem, StreamInfo
from sbp_core.errors import InvalidRequestError
from sbp_core.records import (
    StreamSchema,
    encode_columns,
    encode_rows,
    record_sizes,
    record_too_large,
)
from sbp_core.web.problems import Problem, ProblemError, bad_request, refusal
from sbp_core.web.records.contents import (
    ARROW,
    DESCRIBED,
    PARSERS,
    Target,
    batch_too_large,
    check_rows,
    media_type,
)
from sbp_core.web.records.requests import ApiRoute, Client, Service, Stream
from sbp_core.web.records.stream_routes import Line, maybe_schema

KEY_HEADER: Final = "Idempotency-Key"
KEY_LENGTH_MAX: Final = 255
REPLAY_HEADER: Final = "Idempotent-Replay"
_UNKNOWN_TIME_MS: Final = 2**63 - 1
"""Time of a batch whose records have no time of their own: no time that readers know."""
_RIGHT_KEPT_SECONDS: Final = 10.0
_RIGHTS_KEPT_MAX: Final = 1024
_LOOP_BYTES_MAX: Final = 16 * limits.KIB
"""Bodies up to here are parsed at once, where a thread would take longer to begin. Arrow's may be
compressed."""


class Appended(BaseModel):
    """The offsets of the records that were appended."""

    stream: str
    first_offset: int
    next_offset: int
    record_count: int


router: Final = APIRouter(route_class=ApiRoute, default_response_class=Line)


@router.post(
    "/v1/streams/{stream}/records",
    operation_id="appendRecords",
    response_description="The records are durable, at these offsets.",
    responses={
        200: {
            "headers": {
                REPLAY_HEADER: {
                    "description": "true if an earlier request with the key appended them",
                    "schema": {"type": "string"},
                }
            }
        }
    },
    openapi_extra={"requestBody": {"required": True, "content": DESCRIBED}},
)
async def append_records(
    request: Request,
    response: Response,
    client: Client,
    info: Stream,
    key: Annotated[
        str | None,
        Header(
            alias=KEY_HEADER,
            min_length=1,
            max_length=KEY_LENGTH_MAX,
            pattern="^[ -~]*$",
            description="A retry with the same key, and the same body, appends nothing and gets"
            " the same answer.",
        ),
    ] = None,
) -> Appended:
    """Append records: all of them, or none. Answers when they are durable."""
    kind = media_type(request.headers.get("content-type", ""))
    parse = PARSERS.get(kind)
    if parse is None:
        raise refusal(
            *(415, "unsupported-content"),
            f"Content-Type: expected one of {', '.join(PARSERS)}",
            Accept_Post=", ".join(PARSERS),
        )
    service = Service.of(request)
    await _check_right(service, client, info)
    schema = await maybe_schema(client, info)
    now_ms = time.time_ns() // 1_000_000
    target = Target(schema, None if key is not None else now_ms * 1000)
    async with service.bodies.received(request) as body:

        def encode() -> _Encoded:
            time_ms = now_ms if key is None else _UNKNOWN_TIME_MS
            target.check_wanted()
            return _encoded(parse(body, target), info, schema, time_ms)

        if len(body) <= _LOOP_BYTES_MAX and kind != ARROW:
            encoded = encode()
        else:
            encoded = await _parsed(service, request, encode, target)
        await _check_sizes(client, info, encoded)
        first_offset, is_replay = await _append(client, info, encoded, key)
    if is_replay:
        response.headers[REPLAY_HEADER] = "true"
    return Appended(
        stream=info.label,
        first_offset=first_offset,
        next_offset=first_offset + encoded.count,
        record_count=encoded.count,
    )


async def _check_right(service: Service, client: AsyncClient, info: StreamInfo) -> None:
    """Raise PermissionDeniedError for a caller that may not append, before its body is read.

    No operation tells a caller its rights, so a batch of one byte is sent: the server checks
    rights first, and then refuses the batch. The append itself is checked again, so the answer
    may be kept for a while.
    """
    if not service.callers.has_identities:
        return
    checked = service.rights.setdefault(client, {})
    now = time.monotonic()
    if now < checked.get(info.stream_id, 0.0) + _RIGHT_KEPT_SECONDS:
        return
    with contextlib.suppress(InvalidRequestError):
        await client.append([AppendItem(info.stream_id, b"\0")])
    if len(checked) >= _RIGHTS_KEPT_MAX:
        checked.clear()
    checked[info.stream_id] = now


async def _parsed(
    service: Service, request: Request, encode: Callable[[], _Encoded], target: Target
) -> _Encoded:
    """Call `encode` on a thread, which stops soon after the client leaves.

    Its memory counts until then, so it is waited for.
    """
    work = asyncio.get_running_loop().run_in_executor(service.parsing, encode)
    leaving = asyncio.ensure_future(request.receive())  # the body is whole: the end comes next
    try:
        awaited: set[asyncio.Future[Any]] = {work, leaving}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            target.has_left.set()
        return await work
    finally:
        leaving.cancel()


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The records of a request as one record batch, and the largest of them by its index."""

    batch: bytes
    count: int
    largest_index: int
    largest_bytes: int


async def _append(
    client: AsyncClient, info: StreamInfo, encoded: _Encoded, key: str | None
) -> tuple[int, bool]:
    """Return the offset of the first record, and whether an earlier request appended it."""
    item = AppendItem(info.stream_id, encoded.batch)
    if key is None:
        (outcome,) = await client.append([item])
        return outcome.base_offset, False
    (bounds,) = await client.stream_bounds([info.stream_id])
    writer = Writer(_writer_id(key))
    try:
        (outcome,) = await client.append([item], writer=writer)
    except InvalidRequestError as error:
        if writer.writer_id in error.message:  # it is about another batch of this writer
            raise ProblemError(_OTHER_CONTENT) from error
        raise
    return outcome.base_offset, outcome.base_offset < bounds.next_offset


def _encoded(
    rows: pa.RecordBatch, info: StreamInfo, schema: StreamSchema | None, time_ms: int
) -> _Encoded:
    check_rows(rows.num_rows)
    if not rows.num_rows:
        raise bad_request("the body has no records")
    if schema is None:
        batch = encode_rows(rows, stream_id=info.stream_id, timestamp_ms=time_ms)
    else:
        batch = encode_columns(rows, schema, stream_id=info.stream_id, timestamp_ms=time_ms)
    sizes = record_sizes(rows)
    largest = int(sizes.argmax())
    return _Encoded(batch, rows.num_rows, largest, int(sizes[largest]))


async def _check_sizes(client: AsyncClient, info: StreamInfo, encoded: _Encoded) -> None:
    """Raise ProblemError for a record, or a batch, that is too large: 413.

    The servers of the stream are asked only about a record that not all of them accept.
    """
    size_bytes = encoded.largest_bytes
    if size_bytes > limits.RECORD_BYTES_MAX:
        bytes_max = (await client.record_bytes_max([info.stream_id]))[info.stream_id]
        if size_bytes > bytes_max:
            raise refusal(
                *(413, "record-too-large"),
                f"record {encoded.largest_index + 1} of {encoded.count} has"
                f" {record_too_large(size_bytes, bytes_max)}",
            )
    if len(encoded.batch) > limits.BATCH_BYTES_MAX:
        raise batch_too_large(f"{len(encoded.batch)}")


def _writer_id(key: str) -> str:
    return f"http-{hashlib.sha256(key.encode('ascii')).hexdigest()}"


_OTHER_CONTENT: Final = Problem(
    422,
    "key-used-before",
    f"the {KEY_HEADER} came before with other records, which were appended then, and these were"
    " not: use a new key for each request that is no retry",
)
