"""Records in, encoded record batches out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sbp_core.app.outbox import Collected
from sbp_core.records import ROWS_SCHEMA, Compression, encode_rows

_KEY, _VALUE, _HEADERS, _TIME = (field.type for field in ROWS_SCHEMA)


def encode_collected(batch: Collected, stream_id: int, compression: Compression) -> bytes:
    """Return collected records as one record batch. Raises RecordBatchError."""
    count = batch.record_count
    keys, headers = pa.nulls(count, _KEY), pa.nulls(count, _HEADERS)
    if batch.keys.count(None) < count:
        keys = pa.array(batch.keys, _KEY)
    if batch.headers:
        pairs: list[list[tuple[str, bytes | None]] | None] = [None] * count
        for index, each in batch.headers.items():
            pairs[index] = list(each.items())
        headers = pa.array(pairs, _HEADERS)
    times = pa.array(np.fromiter(batch.times_us, np.int64, count)).view(_TIME)
    rows = pa.RecordBatch.from_arrays(
        [keys, pa.array(batch.values, _VALUE), headers, times], schema=ROWS_SCHEMA
    )
    return encode_rows(
        rows,
        stream_id=stream_id,
        timestamp_ms=batch.times_us[0] // 1000,
        compression=compression,
    )


def no_bytes(name: str, found: object) -> TypeError:
    """Return the error of a part of a record that is not bytes."""
    return TypeError(
        f"the {name} is a {type(found).__name__}; pass bytes, as text.encode() and json.dumps(...)"
        ".encode() give them"
    )
