"""GET of records: from a position up to an end that is known before the answer begins.

So the headers say where to read on, and an answer that is cut off is seen as such: its chunked
body, or its Arrow stream, has no end. Batches are fetched as the caller accepts them.
"""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sbp_core.client.async_client import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.operating.stream_position import check_order, parse_position
from sbp_core.records import ROWS_SCHEMA
from sbp_core.web.problems import bad_request, refusal
from sbp_core.web.records.contents import ARROW, BINARY, LINE, NDJSON, media_type
from sbp_core.web.records.record_answers import (
    EVENTS,
    RECORD_HEADERS,
    Span,
    arrow_stream,
    behind,
    find_reach,
    json_lines,
    read_span,
    resolve,
    tail_of,
    wait_for_records,
)
from sbp_core.web.records.requests import ApiRoute, Client, Described, Service, Stream
from sbp_core.web.records.stream_routes import maybe_schema

_LOG: Final = logging.getLogger(__name__)

FIRST_HEADER: Final = "Sbp-First-Offset"
NEXT_HEADER: Final = "Sbp-Next-Offset"
LAST_EVENT_HEADER: Final = "Last-Event-ID"
WAIT_MS_MAX: Final = 30_000
"""How long a request may wait for its first record."""
COUNT_MAX: Final = 2**63 - 1
FORMS: Final = (NDJSON, ARROW, EVENTS)
"""The media types of answers; the first one is the default."""
_POSITION: Final = (
    "earliest, latest, an offset, -N for N records before the tail, a time such as"
    " 2025-01-31T09:30 (UTC), or one before now such as -10m: the first record that was"
    " appended then or later."
)
_OFFSET: Final[Described] = {"type": "integer", "minimum": 0}
_ANSWER: Final = {
    "description": "The records; an answer that was cut off has no end.",
    "content": {
        NDJSON: {"schema": LINE},
        ARROW: {"schema": BINARY},
        EVENTS: {"schema": {"type": "string"}},
    },
    "headers": {
        FIRST_HEADER: {"description": "offset of the first record", "schema": _OFFSET},
        NEXT_HEADER: {
            "description": "where to read on, once the whole answer has arrived",
            "schema": _OFFSET,
        },
    },
}

router: Final = APIRouter(route_class=ApiRoute)


@router.get(
    "/v1/streams/{stream}/records",
    operation_id="readRecords",
    response_class=StreamingResponse,
    responses={200: _ANSWER},
)
async def read_records(
    request: Request,
    client: Client,
    info: Stream,
    *,
    first: Annotated[
        str | None, Query(alias="from", description=f"The first record: {_POSITION}")
    ] = None,
    last: Annotated[
        str | None, Query(alias="to", description=f"The end, exclusive: {_POSITION}")
    ] = None,
    count_max: Annotated[
        int, Query(alias="max", ge=0, le=COUNT_MAX, description="How many records at most.")
    ] = COUNT_MAX,
    wait_ms: Annotated[
        int,
        Query(
            ge=0,
            le=WAIT_MS_MAX,
            description="How long to wait for a record, if there is none; milliseconds.",
        ),
    ] = 0,
    last_event: Annotated[
        int | None,
        Header(
            alias=LAST_EVENT_HEADER,
            ge=0,
            lt=COUNT_MAX,
            description=f"Go on behind the event with this id ({EVENTS}).",
        ),
    ] = None,
) -> Response:
    """Read records up to the tail of the stream, or follow it."""
    form = _form(request.headers.get("accept", "*/*"))
    if form == EVENTS:
        refused = {"to", "max", "wait_ms"} & request.query_params.keys()
        if refused:
            raise bad_request(f"{min(refused)} is not for {EVENTS}, which has no end")
        text = first or "latest" if last_event is None else str(last_event + 1)
        start = await resolve(client, await find_reach(client, info.stream_id), text)
        return Service.of(request).tails.follow(client, info, start)
    if last_event is not None:
        raise bad_request(f"{LAST_EVENT_HEADER} is only for {EVENTS}; use `from` instead")
    span = await _find_span(client, info, first or "earliest", last, wait_ms)
    span = Span(span.start, min(span.end, span.start + count_max))
    found = read_span(client, info.stream_id, span)
    if form == ARROW:
        schema = await maybe_schema(client, info)
        body = arrow_stream(found, ROWS_SCHEMA if schema is None else schema.arrow)
    else:
        body = json_lines(found, info.label)
    begun = await anext(body, b"")  # an error before the answer begins is a problem
    headers = {**RECORD_HEADERS, FIRST_HEADER: str(span.start), NEXT_HEADER: str(span.end)}
    return _Whole(behind(begun, body), headers=headers, media_type=form)


class _Whole(StreamingResponse):
    """An answer that ends in good order only if all of it was sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SbpError as error:
            # Without the end of the body, the connection is closed behind what was sent.
            _LOG.warning("answer cut off path=%s: %s", scope["path"], error)


async def _find_span(
    client: AsyncClient, info: StreamInfo, first: str, last: str | None, wait_ms: int
) -> Span:
    if last is not None:
        try:
            check_order(parse_position(first), parse_position(last))
        except ConfigurationError as error:
            raise bad_request(str(error)) from None
    at = await find_reach(client, info.stream_id)
    start = await resolve(client, at, first)
    if start == tail_of(at) and wait_ms:
        await wait_for_records(client, info.stream_id, start, wait_ms)
        at = await find_reach(client, info.stream_id)
    end = tail_of(at)
    if last is not None:
        end = min(end, await resolve(client, at, last, is_end=True))
        if start > end:
            raise bad_request(
                f"from={first} is offset {start}, behind to={last}, which is offset {end}: exchange"
                " them"
            )
    return Span(start, max(start, end))


def _form(accept: str) -> str:
    """Return the form that a caller accepts, the first one it names. Raises ProblemError: 406."""
    for each in accept.split(","):
        wanted = media_type(each)
        for form in FORMS:
            if wanted in {form, "*/*", f"{form.partition('/')[0]}/*"}:
                return form
    raise refusal(406, "not-acceptable", f"Accept: expected one of {', '.join(FORMS)}")
