"""The `columns` encoding: the body is one Arrow record batch message in the stream's own schema.

The schema itself is not in the body: the envelope's property `schema` has its fingerprint, by which
the placement driver knows it. The property `timestamp_column` may name the column with the times
of the records; without it they have the time of the batch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa

from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records.arrow_body import Compression, check_values, decode_body, encode_body
from sbp_core.records.arrow_message import check_outline, read_outline, split_pairs
from sbp_core.records.encodings import Encoding, register
from sbp_core.records.envelope import Envelope, encode_envelope
from sbp_core.records.statistics import encode_statistics
from sbp_core.records.stream_schema import StreamSchema, check_required, name_text, schema_text

COLUMNS_ENCODING: Final = "columns"
_BITS: Final = 8
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class ColumnsEncoding(Encoding):
    """The body is one Arrow message in the schema that the envelope names."""

    name = COLUMNS_ENCODING
    is_message = True
    is_typed = True

    def check_count(self, envelope: Envelope) -> None:
        """Compare the count with the length of the first column, and a bit for each row at least.

        Raises RecordBatchError.
        """
        count, body = envelope.record_count, envelope.body
        fingerprint = envelope.schema_fingerprint
        if fingerprint is None or _FINGERPRINT.fullmatch(fingerprint) is None:
            raise RecordBatchError(
                "a record batch of columns that does not name its schema by 32 hexadecimal digits"
            )
        outline = read_outline(body, record_count=count, is_for_arrow=False)
        size = check_outline(outline, body)
        first = next(iter(split_pairs(outline.nodes)[0]), 0)
        if first != count or _BITS * size.decoded_bytes < count:
            raise RecordBatchError(
                f"a record batch declares {count} records, and its Arrow message has {first} values"
                f" in the first column and {size.decoded_bytes} bytes in all"
            )

    def decode(self, envelope: Envelope) -> pa.RecordBatch:
        """Raise RecordBatchError: columns are no rows of ROWS_SCHEMA."""
        raise RecordBatchError(
            f"{envelope.place} is typed, it has columns and not rows: read it with"
            " encoding=columns. Where a stream has both, read each stretch by its offsets, or"
            " trim what is before"
        )


def encode_columns(
    batch: pa.RecordBatch,
    schema: StreamSchema,
    *,
    stream_id: int,
    timestamp_ms: int,
    timestamp_column: str | None = None,
    compression: Compression = "none",
    base_offset: int = 0,
    stats_columns: Sequence[str] = (),
    is_checked: bool = False,
    origin: str | None = None,
) -> bytes:
    """Return rows of a schema as a whole record batch, envelope included.

    `timestamp_ms` is the base timestamp, milliseconds since the epoch. The batch has statistics of
    `stats_columns`, which are paths, as far as these can have any. Raises SchemaError for rows
    of another schema or with a null in a required column, and for a `timestamp_column` that is no
    timestamp of the schema; RecordBatchError for other rows that no reader would accept.
    `is_checked` says that the caller has checked all of that.
    """
    if not is_checked:
        check_columns_schema(batch, schema)
        check_timestamp_column(timestamp_column, schema)
        check_values(batch)
        check_required(batch)
    return encode_envelope(
        [encode_body(batch, compression)],
        stream_id=stream_id,
        record_count=batch.num_rows,
        base_timestamp_ms=timestamp_ms,
        encoding=COLUMNS_ENCODING,
        base_offset=base_offset,
        schema_fingerprint=schema.fingerprint,
        timestamp_column=timestamp_column,
        statistics=encode_statistics(batch, stats_columns),
        origin=origin,
    )


def decode_columns(
    envelope: Envelope, schema: StreamSchema, names: Collection[str] | None = None
) -> pa.RecordBatch:
    """Return the rows of a record batch, in the order of its schema, fully validated.

    `schema` is the schema that the batch names, or its kept columns if columns were left out;
    with `names` only those columns of it are decoded. A batch that was skipped has no rows.
    Raises DamagedBatchError, and RecordBatchError for a batch of another encoding or schema.
    """
    found = (envelope.encoding, envelope.columns_fingerprint)
    if found != (COLUMNS_ENCODING, schema.fingerprint):
        raise RecordBatchError(
            f"{envelope.place} has encoding {found[0]!r}, columns {found[1]!r}; expected"
            f" {COLUMNS_ENCODING!r}, {schema.fingerprint!r}"
        )
    if envelope.is_skipped:
        kept = [each for each in schema.arrow if names is None or each.name in names]
        return pa.RecordBatch.from_pylist([], schema=pa.schema(kept))
    batch = decode_body(envelope, schema.arrow, names, schema_message=schema.encode())
    try:
        check_required(batch)
    except SchemaError as error:
        raise envelope.damage(error) from error
    return batch


def check_columns_schema(batch: pa.RecordBatch, schema: StreamSchema) -> None:
    """Raise SchemaError unless the rows have exactly the columns of the schema."""
    if not batch.schema.equals(schema.arrow):
        raise SchemaError(
            f"rows of schema ({schema_text(batch.schema)}); expected"
            f" ({schema_text(schema.arrow)}): map them first"
        )


def check_timestamp_column(name: str | None, schema: StreamSchema) -> None:
    """Raise SchemaError unless the times are in a timestamp column of the schema, or in none."""
    if name is None:
        return
    index = schema.arrow.get_field_index(name)
    if index < 0 or not pa.types.is_timestamp(schema.arrow.field(index).type):
        raise SchemaError(
            f"column {name_text(name)} is to have the times of the records, and is no"
            f" timestamp in ({schema_text(schema.arrow)})"
        )


register(ColumnsEncoding())
