"""From any record batch that this version reads to rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import pyarrow as pa

from sbp_core.errors import SchemaError
from sbp_core.records.envelope import Envelope
from sbp_core.records.required import check_required
from sbp_core.records.rows import ROWS_ENCODING, ROWS_SCHEMA, decode_rows
from sbp_core.records.sequence_rows import decode_sequence
from sbp_core.records.small_batches import Run, small_runs
from sbp_core.records.stream_schema import StreamSchema

_ROWS_MESSAGE: Final = bytes(ROWS_SCHEMA.serialize())


def decode_batch(envelope: Envelope) -> pa.RecordBatch:
    """Return the rows of a record batch in ROWS_SCHEMA, as many as its record_count.

    Batches of rows are decoded without a copy, record sequences one by one. Raises
    DamagedBatchError when the batch is damaged or in an encoding that this version cannot read, and
    RecordBatchError when it has columns.
    """
    return decode_sequence(envelope) if envelope.encoding is None else decode_rows(envelope)


def decode_batches(
    envelopes: Iterable[Envelope], *, rows_enough: int, bytes_enough: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all record batches in their order, those of small ones together.

    Small batches are joined until they have `rows_enough` rows or decode to `bytes_enough` octets.
    Any other is decoded alone, as by `decode_batch`. Raises RecordBatchError.
    """
    for run in small_runs(envelopes, rows_enough=rows_enough, bytes_enough=bytes_enough):
        together = None
        if run.envelopes[0].encoding == ROWS_ENCODING:
            together = run.maybe_joined(ROWS_SCHEMA, _ROWS_MESSAGE)
        if together is None:
            yield from map(decode_batch, run.envelopes)
        else:
            yield together


def maybe_columns_together(
    run: Run, schema: StreamSchema, names: Collection[str]
) -> pa.RecordBatch | None:
    """Return the columns of small batches of columns, which are all of `schema`.

    They are those of `names`, in the order of the schema; no others are looked at. None for what
    has to be decoded batch by batch, as by `decode_columns`: one alone, and where one is damaged.
    """
    wanted = [index for index, name in enumerate(schema.arrow.names) if name in names]
    batch = run.maybe_joined(schema.arrow, schema.encode(), wanted or None)
    if batch is None:
        return None
    batch = batch if wanted else batch.select(wanted)
    try:
        check_required(batch)
    except SchemaError:
        return None
    return batch
