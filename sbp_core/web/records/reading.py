"""GET of records: from a position up to an end that is known before the answer begins.

So the headers say where to read on, and an answer that is cut off is seen as such: its chunked
body, or its Arrow stream, has no end. Batches are fetched as the caller accepts them.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sbp_core.client.aio import AsyncClient
from sbp_core.client.stream_position import check_order, parse_position
from sbp_core.client.types import StreamInfo
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.records import ROWS_SCHEMA
from sbp_core.web.callers import Callers
from sbp_core.web.records.contents import ARROW, NDJSON
from sbp_core.web.records.declaring import bad_request, media_type, parse_count, refusal
from sbp_core.web.records.fetching import (
    Span,
    find_reach,
    read_span,
    resolve,
    tail_of,
    wait_for_records,
)
from sbp_core.web.records.forms import RECORD_HEADERS, arrow_stream, behind, json_lines
from sbp_core.web.records.streams import find_stream, maybe_schema
from sbp_core.web.records.tailing import EVENTS, Tails

_LOG: Final = logging.getLogger(__name__)

FIRST_HEADER: Final = "Sbp-First-Offset"
NEXT_HEADER: Final = "Sbp-Next-Offset"
LAST_EVENT_HEADER: Final = "Last-Event-ID"
WAIT_MS_MAX: Final = 30_000
"""How long a request may wait for its first record."""
COUNT_MAX: Final = 2**63 - 1
FORMS: Final = (NDJSON, ARROW, EVENTS)
"""The media types of answers; the first one is the default."""


class Reading:
    """Answers with the records of streams."""

    def __init__(self, callers: Callers, tails: Tails) -> None:
        self._callers = callers
        self._tails = tails

    async def read(self, request: Request) -> Response:
        """Answer with the records of a span, or with all that come from now on, as Accept asks."""
        form = _form(request.headers.get("accept", "*/*"))
        client = await self._callers.client(request)
        info = await find_stream(client, request)
        if form == EVENTS:
            return self._tails.follow(client, info, await _find_start(request, client, info))
        span = await _find_span(request, client, info)
        found = read_span(client, info.stream_id, span)
        if form == ARROW:
            schema = await maybe_schema(client, info)
            body = arrow_stream(found, ROWS_SCHEMA if schema is None else schema.arrow)
        else:
            body = json_lines(found, info.label)
        first = await anext(body, b"")  # an error before the answer begins is a problem
        headers = {
            **RECORD_HEADERS,
            FIRST_HEADER: str(span.start),
            NEXT_HEADER: str(span.end),
        }
        return _Whole(behind(first, body), headers=headers, media_type=form)


class _Whole(StreamingResponse):
    """An answer that ends in good order only if all of it was sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SbpError as error:
            # Without the end of the body, the connection is closed behind what was sent.
            _LOG.warning("answer cut off path=%s: %s", scope["path"], error)


async def _find_span(request: Request, client: AsyncClient, info: StreamInfo) -> Span:
    if LAST_EVENT_HEADER in request.headers:
        raise bad_request(f"{LAST_EVENT_HEADER} is only for {EVENTS}; use `from` instead")
    wait_ms = parse_count(request, "wait_ms", 0, WAIT_MS_MAX)
    count_max = parse_count(request, "max", COUNT_MAX, COUNT_MAX)
    first = request.query_params.get("from", "earliest")
    last = request.query_params.get("to")
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
    return Span(start, max(start, min(end, start + count_max)))


async def _find_start(request: Request, client: AsyncClient, info: StreamInfo) -> int:
    """Return where the tail begins: behind the last event that the caller has, or where it says."""
    refused = {"to", "max", "wait_ms"} & request.query_params.keys()
    if refused:
        raise bad_request(f"{min(refused)} is not for {EVENTS}, which has no end")
    last_id = request.headers.get(LAST_EVENT_HEADER)
    if last_id is not None:
        if not (last_id.isascii() and last_id.isdigit() and len(last_id) <= len(str(COUNT_MAX))):
            raise bad_request(f"{LAST_EVENT_HEADER}: expected an offset, got {last_id[:40]!a}")
        text = str(int(last_id) + 1)
    else:
        text = request.query_params.get("from", "latest")
    return await resolve(client, await find_reach(client, info.stream_id), text)


def _form(accept: str) -> str:
    """Return the form that a caller accepts, the first one it names. Raises ProblemError: 406."""
    for each in accept.split(","):
        wanted = media_type(each)
        for form in FORMS:
            if wanted in {form, "*/*", f"{form.partition('/')[0]}/*"}:
                return form
    raise refusal(406, "not-acceptable", f"Accept: expected one of {', '.join(FORMS)}")
