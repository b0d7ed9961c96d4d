"""The `rows` encoding: the body is one Arrow record batch message with a fixed schema.

The schema itself is not in the body. Offsets are not stored per row: they follow from the base
offset of the envelope (`offsets_array`).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Final

import numpy as np
import pyarrow as pa

from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import Compression, check_values, decode_body, encode_body
from sbp_core.records.arrow_message import check_sizes, decoded_sizes, read_outline, split_pairs
from sbp_core.records.encodings import Encoding, register
from sbp_core.records.envelope import Envelope, check_offsets, encode_envelope
from sbp_core.records.projection import KeptColumns, maybe_kept_plain

ROWS_ENCODING: Final = "rows"
ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)

_NODES: Final = 7
"""Lengths of: key, value, headers, their entries, names and values, timestamp."""
_BUFFERS: Final = 17
"""Three of each binary or string column, two of a map or timestamp, one of a struct."""
_OFFSET_BYTES: Final = 4
_TIMESTAMP_BYTES: Final = 8


def encode_rows(
    batch: pa.RecordBatch,
    *,
    stream_id: int,
    timestamp_ms: int,
    compression: Compression = "none",
    base_offset: int = 0,
    is_checked: bool = False,
    origin: str | None = None,
) -> bytes:
    """Return rows of ROWS_SCHEMA as a whole record batch, envelope included.

    `timestamp_ms` is the base timestamp, milliseconds since the epoch. A slice of a larger batch is
    written without the rest of it. The result has passed the checks of `decode_rows`, so that
    nothing is written that no reader would accept; `is_checked` says that the caller has checked
    the rows. Raises RecordBatchError.
    """
    if not is_checked:
        check_rows_schema(batch)
        check_values(batch)
    return encode_envelope(
        [encode_body(batch, compression)],
        stream_id=stream_id,
        record_count=batch.num_rows,
        base_timestamp_ms=timestamp_ms,
        encoding=ROWS_ENCODING,
        base_offset=base_offset,
        origin=origin,
    )


class RowsEncoding(Encoding):
    """The body is one Arrow message in ROWS_SCHEMA."""

    name = ROWS_ENCODING
    is_message = True

    def check_count(self, envelope: Envelope) -> None:
        """Compare the count with the lengths of the columns and of their buffers.

        Raises RecordBatchError.
        """
        count, body = envelope.record_count, envelope.body
        outline = read_outline(body, record_count=count, is_for_arrow=False)
        sizes = decoded_sizes(outline, body)
        check_sizes(outline, sizes)
        lengths, _ = split_pairs(outline.nodes)
        if len(lengths) != _NODES or len(sizes) != _BUFFERS:
            raise RecordBatchError(
                f"Arrow message with {len(lengths)} columns and {len(sizes)} buffers, which are not"
                " those of the rows encoding"
            )
        key, value, headers, entries, names, texts, timestamp = lengths
        if not key == value == headers == timestamp == count or not entries == names == texts:
            raise RecordBatchError(
                f"a record batch declares {count} records, and the lengths of its columns key,"
                f" value, headers (entries, names, values) and timestamp are {key}, {value},"
                f" {headers} ({entries}, {names}, {texts}) and {timestamp}"
            )
        if (
            min(sizes[1], sizes[4], sizes[7]) < _OFFSET_BYTES * (count + 1)
            or (entries and min(sizes[10], sizes[13]) < _OFFSET_BYTES * (entries + 1))
            or sizes[16] < _TIMESTAMP_BYTES * count
        ):
            raise RecordBatchError(
                f"a record batch declares {count} records, and the buffers of its Arrow message are"
                " too short for these"
            )

    def decode(self, envelope: Envelope) -> pa.RecordBatch:
        """Return the rows of a record batch; see `decode_body` for what is copied.

        Columns that were left out are null.
        """
        if envelope.projection is None:
            return decode_body(envelope, ROWS_SCHEMA)
        kept = _KEPT.get(envelope.projection)
        if kept is None:
            raise envelope.damage(
                f"it has the columns {envelope.projection!r}, which are not some of"
                f" ({_describe(ROWS_SCHEMA)})"
            )
        rows = decode_body(envelope, kept.schema.arrow)
        columns = [
            rows.column(field.name)
            if field.name in rows.schema.names
            else pa.nulls(rows.num_rows, field.type)
            for field in ROWS_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def offsets_array(base_offset: int, count: int) -> pa.Int64Array:
    """Return the offsets of `count` records as a column: base_offset, base_offset + 1 ...

    Raises RecordBatchError when they do not fit into 63 bits.
    """
    check_offsets(base_offset, count)
    return pa.array(np.arange(base_offset, base_offset + count, dtype=np.int64))


def check_rows_schema(batch: pa.RecordBatch) -> None:
    """Raise RecordBatchError unless the rows have exactly the columns of ROWS_SCHEMA."""
    if not batch.schema.equals(ROWS_SCHEMA):
        raise RecordBatchError(
            f"rows of schema ({_describe(batch.schema)}); expected ({_describe(ROWS_SCHEMA)}):"
            " cast them first"
        )


def _describe(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )


def maybe_kept_rows(names: Collection[str]) -> KeptColumns | None:
    """Return the columns of plain records with these names; None if all four have to be read."""
    return _KEPT_BY_NAMES.get(frozenset(names).intersection(ROWS_SCHEMA.names))


_KEPT_BY_NAMES: Final = {
    frozenset(names): kept
    for count in range(len(ROWS_SCHEMA))
    for names in combinations(ROWS_SCHEMA.names, count)
    if (kept := maybe_kept_plain(ROWS_SCHEMA, names)) is not None
}
_KEPT: Final = {each.projection.kept: each for each in _KEPT_BY_NAMES.values()}

register(RowsEncoding())
