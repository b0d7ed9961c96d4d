"""`python -m benchmarks.core.headers`: processor time per frame header.

That is writing it, and reading it with all its checks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.tables import table
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    FetchResult,
    Status,
    StreamRange,
    decode_header,
    encode_header,
)

ITEM_COUNTS: Final = (1, 10, 1000)


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often a call is timed: rounds of at least `seconds_min`, of which the fastest counts."""

    count: int = 30
    seconds_min: float = 0.005


@dataclass(frozen=True, slots=True)
class HeaderCost:
    """Processor time to encode a header with `items` items, and to decode it."""

    header: str
    items: int
    length_bytes: int
    encode_us: float
    decode_us: float


def measure(rounds: Rounds | None = None) -> list[HeaderCost]:
    """Time the headers of APPEND and FETCH with few and many items."""
    rounds = rounds or Rounds()
    return [_cost(header, count, rounds) for count in ITEM_COUNTS for header in headers(count)]


def headers(count: int) -> Iterator[object]:
    """Yield requests and answers of `count` items, with the fields that client and server set."""
    now_ms = 1_700_000_000_000
    indexes = range(count)
    ranges = [StreamRange(stream_id=1000 + index, range_index=3) for index in indexes]
    yield AppendRequest(
        timeout_ms=30_000,
        append_requests=tuple(
            AppendInfo(ranges[index], index, 1_000_000, ranges[index].stream_id)
            for index in indexes
        ),
    )
    yield AppendResponse(
        append_responses=tuple(
            AppendResult(1000 + index, index, 10_000_000 + index, now_ms, Status())
            for index in indexes
        ),
        status=Status(),
    )
    yield FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        fetch_requests=tuple(
            FetchInfo(ranges[index], index, 10_000_000, 1_000_000, 1000 + index, 20_000_000)
            for index in indexes
        ),
        timeout_ms=30_000,
    )
    yield FetchResponse(
        fetch_responses=tuple(
            FetchResult(1000 + index, index, 2, Status(), 1_000_000, 10_000_000)
            for index in indexes
        ),
        status=Status(),
    )


def _cost(header: object, item_count: int, rounds: Rounds) -> HeaderCost:
    encoded = encode_header(header)
    if decode_header(type(header), encoded) != header:
        raise RuntimeError(f"{type(header).__name__} is read as another one")
    return HeaderCost(
        header=type(header).__name__,
        items=item_count,
        length_bytes=len(encoded),
        encode_us=_microseconds(lambda: encode_header(header), rounds),
        decode_us=_microseconds(lambda: decode_header(type(header), encoded), rounds),
    )


def _microseconds(work: Callable[[], object], rounds: Rounds) -> float:
    """Return the processor time of one call, in the least disturbed of many rounds."""
    calls = 1
    while _seconds(work, calls) < rounds.seconds_min:
        calls *= 2
    return min(_seconds(work, calls) for _ in range(rounds.count)) / calls * 1e6


def _seconds(work: Callable[[], object], calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        work()
    return time.process_time() - started


def show(costs: Sequence[HeaderCost]) -> str:
    """Return the costs of headers as a table for the terminal."""
    header = ("header", "items", "bytes", "encode us", "decode us", "both us")
    lines = [
        (
            each.header,
            f"{each.items:,}",
            f"{each.length_bytes:,}",
            f"{each.encode_us:,.0f}",
            f"{each.decode_us:,.0f}",
            f"{each.encode_us + each.decode_us:,.0f}",
        )
        for each in costs
    ]
    return table(header, lines, text_columns={0})


def main(arguments: Sequence[str]) -> int:
    """Measure; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core.headers", description=__doc__)
    parser.parse_args(arguments)
    print(f"processor time of one header\n\n{show(measure())}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
