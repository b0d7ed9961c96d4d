"""The head that answers a skipped batch: what it has, and where it is refused."""

import pyarrow as pa
import pytest

from sbp_core import filter_limits, limits
from sbp_core.errors import RecordBatchError
from sbp_core.operating.batch_copies import copied_batches
from sbp_core.records import (
    ColumnBounds,
    ColumnsBuilder,
    StreamSchema,
    accept_batch,
    batch_filter,
    decode_columns,
    decode_envelope,
    encode_columns,
    order_key,
    write_base_offset,
)
from sbp_core.records.envelope import encode_head, read_head
from sbp_core.records.skipping import maybe_skipped

ROWS = 1_000
SCHEMA = StreamSchema.of(pa.schema([("n", pa.int64()), ("text", pa.string())]))
BATCH = pa.record_batch([range(ROWS), ["text"] * ROWS], schema=SCHEMA.arrow)
ABOVE = ColumnBounds("n", order_key(ROWS, pa.int64()), None, takes_null=True)
NOTHING = batch_filter(SCHEMA.fingerprint, [ABOVE])


def stored(*columns):
    return encode_columns(BATCH, SCHEMA, stream_id=7, timestamp_ms=5, stats_columns=columns)


def skipped(batch, *filters, base_offset=70):
    return maybe_skipped(memoryview(batch), len(batch), filters, base_offset)


def test_the_head_has_all_but_the_body():
    batch = bytearray(stored("n"))
    head = decode_envelope(skipped(batch, NOTHING))
    write_base_offset(batch, 70)
    whole = decode_envelope(batch)
    assert (head.base_offset, head.end_offset) == (70, 70 + ROWS)
    assert (head.skipped_bytes, len(head.body)) == (len(whole.body), 0)
    assert not whole.is_skipped
    for name in ("stream_id", "base_timestamp_ms", "schema_fingerprint", "statistics"):
        assert getattr(head, name) == getattr(whole, name)
    assert decode_columns(head, SCHEMA).num_rows == 0
    assert decode_columns(head, SCHEMA).schema == SCHEMA.arrow


def test_what_may_match_is_not_skipped():
    within = batch_filter(
        SCHEMA.fingerprint, [ColumnBounds("n", order_key(ROWS - 1, pa.int64()), None, False)]
    )
    assert skipped(stored("n"), within) is None
    assert skipped(stored("text"), NOTHING) is None
    assert skipped(stored(), NOTHING) is None
    assert skipped(stored("n"), batch_filter("0" * 32, [ABOVE])) is None
    assert skipped(stored("n")) is None


def test_long_keys_are_shortened_so_that_nothing_is_lost():
    size = filter_limits.KEY_BYTES_MAX
    key = b"k" * 100
    (bounds,) = batch_filter("s", [ColumnBounds("c", key, key, takes_null=False)]).bounds
    assert bounds.least == key[:size] <= key <= bounds.most
    assert len(bounds.most) == size
    (bounds,) = batch_filter("s", [ColumnBounds("c", None, b"\xff" * 100, takes_null=False)]).bounds
    assert (bounds.least, bounds.most, bounds.has_most) == (b"", b"", False)
    many = [ColumnBounds(str(at), key, key, takes_null=False) for at in range(100)]
    assert len(batch_filter("s", many).bounds) == filter_limits.BOUNDS_PER_FILTER_MAX


def test_a_skipped_batch_is_not_appended():
    with pytest.raises(RecordBatchError, match="records were left out"):
        accept_batch(skipped(stored("n"), NOTHING))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"skipped": "5"}, "was skipped, and has a body of"),
        ({"skipped": "many", "body_bytes": "0"}, "announces a body of 'many'"),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(change, reason):
    batch = memoryview(stored("n"))
    meta, _, body_start = read_head(batch, 0)
    changed = encode_head(meta._replace(**change), 0) + batch[body_start:]
    with pytest.raises(RecordBatchError, match=reason):
        decode_envelope(changed)


def test_a_head_without_room_for_another_property_is_no_error():
    batch = memoryview(stored("n"))
    meta, _, body_start = read_head(batch, 0)
    spare = limits.BATCH_METADATA_BYTES_MAX - body_start
    full = encode_head(meta._replace(timestamp_column="t" * (spare - 60)), 0) + batch[body_start:]
    assert skipped(full, NOTHING) is None


def test_builders_and_copies_keep_statistics():
    builder = ColumnsBuilder(7, SCHEMA, stats_columns=["n"])
    (built,) = builder.add(BATCH, timestamp_ms=5) + builder.flush()
    assert built == stored("n")
    assert copied_batches(built, 7, 0, ROWS, [SCHEMA]) == ([built], ROWS)
