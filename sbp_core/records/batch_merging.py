"""Merging small record batches for good, as a server does in the full segments of its log.

To find and decode a batch takes a reader as long as to copy ten KiB, however few records it has
(small_batches.py). So adjacent batches of plain rows become one that has the same records at the
same offsets. Record sequences stay as their clients wrote them, and so do columns, for a server
knows no schemas. A batch stays as well if it is damaged, or if this version would have written any
byte of its envelope otherwise.

To a reader a record without a time of its own has that of its batch. Where the batches differ in
that, the merged one has these times in its column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import Compression, compression_of
from sbp_core.records.arrow_message import read_outline
from sbp_core.records.batch_meta import BatchMeta
from sbp_core.records.encodings.rows_encoding import ROWS_ENCODING, encode_rows
from sbp_core.records.envelope import Envelope, decode_envelope, encode_head
from sbp_core.records.small_batches import Run, Small, maybe_rows_together, maybe_small
from sbp_core.wire.checksum import Buffer

MERGED_BYTES: Final = limits.MIB
MERGED_RECORDS_MAX: Final = 32_768
"""Decoded bytes after which a merged batch is large enough, and records that it has at most."""
assert MERGED_RECORDS_MAX <= limits.BATCH_RECORDS_MAX

_TIME: Final = pa.timestamp("us", tz="UTC")


class _Part(NamedTuple):
    envelope: Envelope
    small: Small
    compression: Compression


def merge_batches(
    batches: Iterable[Buffer], *, records_max: int = MERGED_RECORDS_MAX
) -> tuple[int, bytes | None]:
    """Return how many of the first batches belong together, at least one, and these as one batch.

    None in its place if these stay as they are. No batch is read behind the first that does not
    belong to those before it. `batches` are whole and adjacent, one of them at least.
    """
    parts: list[_Part] = []
    row_count = decoded_bytes = 0
    for batch in batches:
        part = _maybe_part(batch)
        if part is None or (parts and not _belongs(parts[-1], part)):
            break
        row_count += part.envelope.record_count
        if row_count > records_max and parts:
            break
        parts.append(part)
        decoded_bytes += part.small.decoded_bytes
        if decoded_bytes >= MERGED_BYTES:
            break
    if len(parts) < 2:
        return 1, None
    run = Run.of([each.envelope for each in parts], [each.small for each in parts])
    return len(parts), _maybe_merged(run, parts[0].compression)


def _maybe_part(batch: Buffer) -> _Part | None:
    """Return a batch, if it is a small one of rows and nothing else."""
    try:
        envelope = decode_envelope(batch)
        head_bytes = envelope.length_bytes - len(envelope.body)
        if envelope.encoding != ROWS_ENCODING or batch[:head_bytes] != _head(envelope):
            return None
        small = maybe_small(envelope)
        if small is None or small.unchecked is not None:
            return None if small is None else _Part(envelope, small, "none")
        outline = read_outline(envelope.body, record_count=envelope.record_count)
    except RecordBatchError:
        return None
    return _Part(envelope, small, compression_of(outline.compression))


def _head(envelope: Envelope) -> bytes:
    """Return what this version writes in front of the body of a batch of rows."""
    meta = BatchMeta(
        envelope.stream_id,
        envelope.record_count,
        envelope.base_timestamp_ms,
        ROWS_ENCODING,
        str(len(envelope.body)),
    )
    return encode_head(meta, envelope.base_offset)


def _belongs(last: _Part, part: _Part) -> bool:
    """Whether a batch may be merged with the batch before it."""
    before, envelope = last.envelope, part.envelope
    return (
        part.compression == last.compression
        and part.small.shape == last.small.shape
        and (envelope.stream_id, envelope.base_offset) == (before.stream_id, before.end_offset)
    )


def _maybe_merged(run: Run, compression: Compression) -> bytes | None:
    rows = maybe_rows_together(run)
    if rows is None:
        return None
    first = run.envelopes[0]
    try:
        return encode_rows(
            _with_times(rows, run.envelopes),
            stream_id=first.stream_id,
            timestamp_ms=first.base_timestamp_ms,
            compression=compression,
            base_offset=first.base_offset,
        )
    except RecordBatchError:
        return None


def _with_times(rows: pa.RecordBatch, envelopes: Sequence[Envelope]) -> pa.RecordBatch:
    """Return rows that have, in a batch with the time of the first one, the times they had.

    Raises RecordBatchError if any cannot be written.
    """
    times = rows.column("timestamp")
    counts = [each.record_count for each in envelopes]
    bases_ms = [each.base_timestamp_ms for each in envelopes]
    if not times.null_count or len(set(bases_ms)) == 1:
        return rows
    if max(map(abs, bases_ms)) > limits.RECORD_TIME_MS_MAX:
        raise RecordBatchError("the time of a batch is beyond what a record can have")
    own = pa.array(np.repeat(np.array(bases_ms, np.int64) * 1000, counts)).cast(_TIME)
    return rows.set_column(
        rows.schema.get_field_index("timestamp"), "timestamp", pc.coalesce(times, own)
    )
