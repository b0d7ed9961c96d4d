"""Plain records in, encoded record batches out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sbp_core.app import defaults
from sbp_core.app.delivery import Receipt
from sbp_core.records import ROWS_SCHEMA, Compression, encode_rows

_KEY, _VALUE, _HEADERS, _TIME = (field.type for field in ROWS_SCHEMA)

Headers = Mapping[str, bytes | None]


@dataclass(slots=True, eq=False)
class Collected:
    """Plain records of one batch, column by column; `headers` only of those that have some."""

    stream_id: int
    opened_at: float
    receipt: Receipt = field(default_factory=Receipt)
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    headers: dict[int, Headers] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A record batch that was encoded by the caller."""

    stream_id: int
    batch: bytes
    record_count: int
    receipt: Receipt = field(default_factory=Receipt)

    @property
    def size_bytes(self) -> int:
        """Bytes that it keeps."""
        return len(self.batch)


Outgoing = Collected | Encoded


def record_bytes(
    value: bytes | None, key: bytes | None, headers: Mapping[str, bytes | None] | None
) -> int:
    """Return the bytes of a record. Raises TypeError for parts that are not bytes."""
    size_bytes = defaults.RECORD_OVERHEAD_BYTES
    if value is not None:
        if type(value) is not bytes:
            raise _no_bytes("value", value)
        size_bytes += len(value)
    if key is not None:
        if type(key) is not bytes:
            raise _no_bytes("key", key)
        size_bytes += len(key)
    if headers:
        for name, content in headers.items():
            if type(name) is not str:
                raise TypeError(f"the name of a header is {name!r:.80}; pass a str")
            if content is not None and type(content) is not bytes:
                raise _no_bytes(f"header {name!r}", content)
            size_bytes += len(name.encode()) + len(content or b"")
    return size_bytes


def encoded(batch: Outgoing, compression: Compression = "none") -> bytes:
    """Return records that are sent together as one record batch. Raises RecordBatchError."""
    if isinstance(batch, Encoded):
        return batch.batch
    count = batch.record_count
    keys, headers = pa.nulls(count, _KEY), pa.nulls(count, _HEADERS)
    if batch.keys.count(None) < count:
        keys = pa.array(batch.keys, _KEY)
    if batch.headers:
        pairs: list[list[tuple[str, bytes | None]] | None] = [None] * count
        for index, each in batch.headers.items():
            pairs[index] = list(each.items())
        headers = pa.array(pairs, _HEADERS)
    times_us = pa.py_buffer(np.fromiter(batch.times_us, np.int64, count))
    times = pa.Array.from_buffers(_TIME, count, [None, times_us])  # `pa.array` imports pandas
    rows = pa.RecordBatch.from_arrays(
        [keys, pa.array(batch.values, _VALUE), headers, times], schema=ROWS_SCHEMA
    )
    return encode_rows(
        rows,
        stream_id=batch.stream_id,
        timestamp_ms=batch.times_us[0] // 1000,
        compression=compression,
    )


def _no_bytes(name: str, found: object) -> TypeError:
    return TypeError(
        f"the {name} is a {type(found).__name__}; pass bytes, as text.encode() and"
        " json.dumps(...).encode() return them"
    )
