"""Scripted answers, and the requests, that the tests of the client share."""

from __future__ import annotations

from scripted_peer import (
    Exchange,
    Handler,
    status,
)

from sbp_core.client import (
    FetchItem,
    RetryPolicy,
)
from sbp_core.errors import (
    StatusCode,
)
from sbp_core.wire.headers import (
    AppendResponse,
    AppendResult,
    FetchResponse,
    FetchResult,
    Status,
)

NO_RETRY = RetryPolicy(budget_ms=0)


def appended(exchange: Exchange, **failures: StatusCode) -> None:
    """Answer an APPEND: item n fails if `failures` has "n<index>", in reverse order otherwise."""
    results = []
    for item in exchange.header.append_requests:
        code = failures.get(f"n{item.request_index}", StatusCode.NONE)
        results.append(
            AppendResult(
                item.stream_id, item.request_index, 100 + item.request_index, 7, Status(code)
            )
        )
    exchange.answer(AppendResponse(append_responses=tuple(reversed(results))))


def append_handler(**failures: StatusCode) -> Handler:
    return lambda exchange: appended(exchange, **failures)


def fetched(exchange: Exchange, data: bytes = b"data", next_offset: int = 5) -> None:
    results = tuple(
        FetchResult(item.stream_id, item.request_index, 1, Status(), len(data), next_offset)
        for item in exchange.header.fetch_requests
    )
    exchange.answer(FetchResponse(fetch_responses=results), [data] * len(results))


def fetch_empty(exchange: Exchange) -> None:
    results = tuple(
        FetchResult(item.stream_id, item.request_index, 0, Status(), 0, item.fetch_offset)
        for item in exchange.header.fetch_requests
    )
    exchange.answer(FetchResponse(fetch_responses=results))


def fetch_refused(code: StatusCode, detail: bytes = b"") -> Handler:
    def handle(exchange: Exchange) -> None:
        results = tuple(
            FetchResult(item.stream_id, item.request_index, status=status(code, detail=detail))
            for item in exchange.header.fetch_requests
        )
        exchange.answer(FetchResponse(fetch_responses=results))

    return handle


def item(stream_id: int, offset: int = 0, end: int | None = None) -> FetchItem:
    return FetchItem(stream_id, offset, end, 1 << 20)


def batches(exchange: Exchange) -> list[bytes]:
    """The payloads of an APPEND frame, cut as its header says."""
    cut, position = [], 0
    for info in exchange.header.append_requests:
        cut.append(bytes(exchange.frame.payload[position : position + info.batch_length]))
        position += info.batch_length
    assert position == len(exchange.frame.payload)
    return cut
