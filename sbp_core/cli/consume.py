"""`sbp consume`: records become lines."""

from __future__ import annotations

import base64
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.cli.connect import PATIENT, connect, find_stream, label
from sbp_core.client import Client, FetchItem
from sbp_core.errors import DeadlineExceededError, RecordBatchError, StatusCode, error_for_code
from sbp_core.records import decode_batch, split_envelopes

_WAIT_MS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def consume(options: Namespace) -> int:
    """Print records from an offset to the tail, or for ever."""
    with connect(options, PATIENT) as client:
        info = find_stream(client, options.stream)
        start, tail = _resolve(client, info.stream_id, options.start)
        left = options.max if options.max is not None else sys.maxsize
        end = None if options.follow else tail
        for base_offset, rows in read_rows(client, info.stream_id, start, end):
            wanted = rows.slice(0, left)
            if options.json:
                lines = [
                    _encode_json(each) for each in describe_rows(label(info), base_offset, wanted)
                ]
            else:
                lines = [value or b"" for value in wanted.column("value").to_pylist()]
            sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
            left -= wanted.num_rows
            if left == 0:
                break
    return 0


def read_rows(
    client: Client, stream_id: int, start: int, end: int | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows with the offset of the first one, from `start` to `end`, exclusive.

    Without `end` it waits for more for ever. Raises SbpError; a gap between batches is one.
    """
    offset = start
    while end is None or offset < end:
        item = FetchItem(stream_id, offset, end, limits.FETCH_BATCH_BYTES_DEFAULT)
        (outcome,) = client.fetch([item], max_wait_ms=_WAIT_MS)
        if outcome.error is not None:
            raise outcome.error
        if not outcome.payload and end is not None:
            raise DeadlineExceededError(
                f"nothing at offset {offset} within {_WAIT_MS} ms, though the tail was at {end}"
            )
        for envelope in split_envelopes(outcome.payload):
            batch_end = envelope.base_offset + envelope.record_count
            if not envelope.base_offset <= offset < batch_end:
                raise RecordBatchError(
                    f"expected offset {offset}, found records"
                    f" {envelope.base_offset} to {batch_end - 1}"
                )
            skipped = offset - envelope.base_offset
            wanted_end = batch_end if end is None else min(batch_end, end)
            yield offset, decode_batch(envelope).slice(skipped, wanted_end - offset)
            offset = wanted_end
            if offset == end:
                return


def describe_rows(
    stream: str, base_offset: int, rows: pa.RecordBatch
) -> Iterator[dict[str, object]]:
    """Yield each row as the object that --json prints."""
    timestamps = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [rows.column(name).to_pylist() for name in ("key", "value", "headers")]
    records = zip(timestamps, *columns, strict=True)
    for offset, (timestamp, key, value, headers) in enumerate(records, base_offset):
        yield {
            "stream": stream,
            "offset": offset,
            "timestamp": _describe_time(timestamp),
            "key": _describe_octets(key),
            "value": _describe_octets(value),
            "headers": None
            if headers is None
            else [[name, _describe_octets(content)] for name, content in headers],
        }


def _resolve(client: Client, stream_id: int, start: str | int | datetime) -> tuple[int, int]:
    """Return the first offset to read, and the tail. Raises OffsetOutOfRangeError."""
    if isinstance(start, datetime):
        timestamp_us = (start - _EPOCH) // timedelta(microseconds=1)
        start = client.lookup_offsets({stream_id: timestamp_us})[stream_id]
    (bounds,) = client.stream_bounds([stream_id])
    if start == "earliest":
        return bounds.start_offset, bounds.next_offset
    if start == "latest":
        return bounds.next_offset, bounds.next_offset
    assert isinstance(start, int)
    if not bounds.start_offset <= start <= bounds.next_offset:
        raise error_for_code(
            StatusCode.OFFSET_OUT_OF_RANGE,
            f"--from {start}: the stream has offsets {bounds.start_offset} to"
            f" {bounds.next_offset}, exclusive",
        )
    return start, bounds.next_offset


def _encode_json(value: dict[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _describe_octets(octets: bytes | None) -> Any:
    if octets is None:
        return None
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(octets).decode("ascii")}


def _describe_time(timestamp_us: int | None) -> str | int | None:
    """Return ISO 8601, or microseconds since the epoch for a time that no calendar has."""
    if timestamp_us is None:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return timestamp_us
    return moment.isoformat(timespec="microseconds")
