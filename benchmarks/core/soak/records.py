"""The streams of a soak, and the records in them: each has the number of its writer, and its own.

A writer numbers its records from 0, in each stream that it writes to. So a reader finds what is
lost, and what is there twice.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.client import StreamSpec
from sbp_core.records import (
    ROWS_SCHEMA,
    Envelope,
    StreamSchema,
    decode_batch,
    decode_columns,
    encode_columns,
    encode_rows,
    encoding_of,
)

ORDERS: Final = "orders"
CLICKS: Final = "clicks"
ALONE: Final = "alone"
COPIES: Final = "copies"
GROUP: Final = "soak"
"""The consumer group of the reader."""

_KEPT_BYTES: Final = 256 * limits.MIB
REPLICATED: Final = (
    StreamSpec(ORDERS, replica_count=3, retention_bytes=_KEPT_BYTES),
    StreamSpec(CLICKS, replica_count=3, retention_period_ms=120_000, retention_bytes=_KEPT_BYTES),
    StreamSpec(COPIES, replica_count=3, retention_bytes=_KEPT_BYTES),
)
"""A server believes its clock, and keeps to a period, ten minutes after its start only."""
UNREPLICATED: Final = StreamSpec(ALONE, retention_bytes=_KEPT_BYTES)

WRITERS: Final[Sequence[tuple[str, ...]]] = ((ORDERS,), (CLICKS,), (ORDERS, ALONE))
"""The streams of each writer; it appends the same records to all of its streams."""
COPIED: Final = tuple(number for number, names in enumerate(WRITERS) if ORDERS in names)
"""Writers whose records a query copies from ORDERS to COPIES."""
READ: Final = (
    *((name, number) for number, names in enumerate(WRITERS) for name in names),
    *((COPIES, number) for number in COPIED),
)
"""Streams that the reader checks, each with a writer whose records are there."""

CLICKS_SCHEMA: Final = StreamSchema.of(
    pa.schema(
        [
            pa.field("writer", pa.int64(), nullable=False),
            pa.field("number", pa.int64(), nullable=False),
            pa.field("payload", pa.binary()),
            pa.field("at", pa.timestamp("us", tz="UTC")),
        ]
    )
)

_KEY: Final = struct.Struct(">QQ")
_VALUE_BYTES: Final = (64, 512, 4096, 65536)
_VALUE_WEIGHTS: Final = (500, 400, 95, 5)
_RANDOM_BYTES: Final = os.urandom(limits.MIB)
_AHEAD_MAX: Final = 200_000
"""Numbers in a stream of copies may come in another order, within a micro-batch; not this many."""


def new_values(size_bytes: int) -> list[bytes]:
    """Return values of mixed sizes, of about `size_bytes` together."""
    values = []
    while size_bytes > 0:
        (length,) = random.choices(_VALUE_BYTES, _VALUE_WEIGHTS)
        start = random.randrange(len(_RANDOM_BYTES) - length)
        values.append(_RANDOM_BYTES[start : start + length])
        size_bytes -= length
    return values


def encode(name: str, stream_id: int, writer: int, first: int, values: Sequence[bytes]) -> bytes:
    """Return a record batch for the stream of that name; its records have numbers from `first`."""
    now_us = time.time_ns() // 1000
    numbers = range(first, first + len(values))
    times = pa.array([now_us] * len(values), pa.timestamp("us", tz="UTC"))
    payloads = pa.array(values, pa.binary())
    if name == CLICKS:
        ids = pa.array([writer] * len(values), pa.int64())
        columns = [ids, pa.array(numbers, pa.int64()), payloads, times]
        rows = pa.record_batch(columns, schema=CLICKS_SCHEMA.arrow)
        return encode_columns(rows, CLICKS_SCHEMA, stream_id=stream_id, timestamp_ms=now_us // 1000)
    keys = pa.array([_KEY.pack(writer, number) for number in numbers], pa.binary())
    headers = pa.nulls(len(values), ROWS_SCHEMA.field("headers").type)
    rows = pa.record_batch([keys, payloads, headers, times], schema=ROWS_SCHEMA)
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=now_us // 1000)


def decode(envelope: Envelope) -> Iterable[tuple[int, int]]:
    """Return writer and number of the records of a batch."""
    if encoding_of(envelope).is_typed:
        columns = decode_columns(envelope, CLICKS_SCHEMA, ("writer", "number"))
        return zip(*(column.to_pylist() for column in columns.columns), strict=True)
    return map(_KEY.unpack, decode_batch(envelope).column("key").to_pylist())


@dataclass(slots=True)
class Received:
    """The numbers of one writer in one stream that were read, in any order."""

    end: int = 0
    """Each number below it was read, or is lost."""
    ahead: set[int] = field(default_factory=set)
    """Numbers above it that were read."""
    ahead_max: int = _AHEAD_MAX

    def add(self, number: int) -> bool:
        """Return whether a number is new."""
        if number == self.end:
            self.end += 1
            self._advance()
            return True
        if number < self.end or number in self.ahead:
            return False
        self.ahead.add(number)
        if len(self.ahead) > self.ahead_max:  # those between are lost
            self.end = min(self.ahead)
            self._advance()
        return True

    def _advance(self) -> None:
        while self.end in self.ahead:
            self.ahead.remove(self.end)
            self.end += 1
