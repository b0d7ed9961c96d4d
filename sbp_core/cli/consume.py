"""`sbp consume`: print the records of a stream, one per line."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

from sbp_core import limits
from sbp_core.cli.connect import PATIENT, connect, find_reach, find_stream
from sbp_core.cli.output import flush, write_notice, write_records, write_values
from sbp_core.cli.parsing import add_client_options, parse_positive, parse_start, parse_timestamp
from sbp_core.client import Client, FetchItem
from sbp_core.errors import (
    DamagedBatchError,
    DeadlineExceededError,
    OffsetOutOfRangeError,
    RecordBatchError,
)
from sbp_core.records.json_values import describe_columns
from sbp_core.records.stream_decoder import Records, StreamDecoder

_WAIT_MS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def add_consume(parser: ArgumentParser) -> None:
    """Declare `sbp consume`."""
    parser.description = (
        "Print the value of each record and a newline, up to the current end of the stream; for a"
        " stream with a schema, the columns of each record as a JSON object. With --json one object"
        " per record, with its offset; bytes that are not UTF-8 are written in objects as"
        ' {"base64": ...}. A terminal shows control characters in values as escapes such as'
        " \\x1b; in a pipe or file values are as they were written."
    )
    add_client_options(parser)
    parser.add_argument("stream", metavar="NAME_OR_ID")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from",
        dest="start",
        type=parse_start,
        default="earliest",
        metavar="OFFSET",
        help="earliest, latest or a number (default: earliest)",
    )
    start.add_argument(
        "--from-timestamp",
        dest="start",
        type=parse_timestamp,
        default=SUPPRESS,
        metavar="TIME",
        help="start at the first record appended at this time or later, such as 2025-01-31T09:30"
        " (UTC) or 2025-01-31T09:30:00+01:00",
    )
    parser.add_argument(
        "--max", type=parse_positive, metavar="N", help="end after this many records"
    )
    parser.add_argument("--follow", action="store_true", help="wait for more records at the end")
    parser.set_defaults(run=consume)


def consume(options: Namespace) -> int:
    """Print records from an offset to the tail, or for ever."""
    left = options.max if options.max is not None else sys.maxsize
    with connect(options, PATIENT) as client:
        info = find_stream(client, options.stream)
        start, end, is_complete = _resolve(client, info.stream_id, options.start)
        records = read_records(client, info.stream_id, start, None if options.follow else end)
        if not is_complete and not options.follow:
            records = chain(records, _read_rest(client, info.stream_id, max(start, end)))
        for found in records:
            wanted = found.first(left)
            _write(info.label, wanted, is_json=options.json)
            left -= wanted.rows.num_rows
            if left == 0:
                break
    return 0


def read_records(client: Client, stream_id: int, start: int, end: int | None) -> Iterator[Records]:
    """Yield the records from `start` to `end`, exclusive.

    Without `end` it waits for more for ever. Raises SbpError; a gap between batches is one.
    """
    decoder = StreamDecoder(stream_id, start, end)
    while not decoder.is_done:
        item = FetchItem(stream_id, decoder.next_offset, end, limits.FETCH_BATCH_BYTES_DEFAULT)
        (outcome,) = client.fetch([item], max_wait_ms=_WAIT_MS)
        if outcome.error is not None:
            raise outcome.error
        if not outcome.payload and end is not None:
            raise DeadlineExceededError(
                f"no records at offset {decoder.next_offset} within {_WAIT_MS} ms, although the"
                f" stream ended at {end}; try again, then run `sbp log check` on its range server"
            )
        for envelope in decoder.wanted(outcome.payload):
            if decoder.lacks_schema(envelope):
                versions = client.describe_schemas([stream_id])[stream_id]
                decoder.learn(each.schema for each in versions)
            try:
                found = decoder.decode(envelope)
            except DamagedBatchError as error:
                raise RecordBatchError(
                    f"{error}; --from {error.end_offset} continues after them"
                ) from error
            yield found


def _write(stream: str, records: Records, *, is_json: bool) -> None:
    """Print the columns of typed records, the values of plain ones."""
    if is_json:
        write_records(records.describe(stream))
    elif records.is_typed:
        write_records(describe_columns(records.rows))
    else:
        write_values(value or b"" for value in records.rows.column("value").to_pylist())


def _read_rest(client: Client, stream_id: int, start: int) -> Iterator[Records]:
    """Yield the records behind those that could be read, once the stream's end is known again."""
    flush()
    write_notice(f"the end of the stream from offset {start} on is unavailable: waiting for it")
    (bounds,) = client.stream_bounds([stream_id])
    yield from read_records(client, stream_id, start, bounds.next_offset)


def _resolve(client: Client, stream_id: int, start: str | int | datetime) -> tuple[int, int, bool]:
    """Return the first offset to read, how far that is possible now, and if that is the tail.

    Raises OffsetOutOfRangeError.
    """
    if isinstance(start, datetime):
        timestamp_us = (start - _EPOCH) // timedelta(microseconds=1)
        start = client.lookup_offsets({stream_id: timestamp_us})[stream_id]
    at = find_reach(client, [stream_id])[stream_id]
    first, end, is_complete = at.start_offset, at.readable_end, at.next_offset is not None
    is_beyond = start == "latest" or (isinstance(start, int) and start > end)
    if is_beyond and not is_complete:
        (bounds,) = client.stream_bounds([stream_id])
        first, end, is_complete = bounds.start_offset, bounds.next_offset, True
    if start == "earliest":
        return first, end, is_complete
    if start == "latest":
        return end, end, is_complete
    assert isinstance(start, int)
    if not first <= start <= end:
        raise OffsetOutOfRangeError.of(
            f"--from {start}: the stream has offsets {first} to {end}, exclusive"
        )
    return start, end, is_complete
