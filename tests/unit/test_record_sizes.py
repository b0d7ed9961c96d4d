"""Limits derived from the largest record: unchanged by default, larger for larger records."""

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import ConfigurationError, FrameError, RecordBatchError
from sbp_core.record_sizes import DEFAULT, LARGEST, RecordSizes
from sbp_core.records import ROWS_SCHEMA, RowsBuilder, accept_batch, decode_envelope, record_sizes
from sbp_core.server.budget import Budget, Intake
from sbp_core.server.listener import _OWN_BYTES
from sbp_core.settings.server_settings import RangeServerSettings
from sbp_core.wire.frame import FrameDecoder

MIB = limits.MIB
ALLOWED = st.integers(limits.RECORD_BYTES_MAX, limits.RECORD_BYTES_LARGEST)
FRAME_SPARE_BYTES = limits.FRAME_BYTES_MIN + limits.HEADER_BYTES_MAX + limits.FETCH_FRAME_BYTES


def settings(**values):
    return RangeServerSettings(data_dir=Path("data"), placement_driver="pd:1", **values)


def test_the_default_is_what_it_was():
    found = {
        name: getattr(DEFAULT, name) // MIB
        for name, kind in vars(RecordSizes).items()
        if isinstance(kind, property) and not name.startswith("_")
    }
    assert found == {
        "batch_bytes": 10,
        "frame_bytes": 16,
        "segment_bytes_min": 17,
        "group_commit_bytes": 32,
        "pending_append_bytes": 80,
        "connection_in_flight_bytes": 32,
        "server_in_flight_bytes": 192,
        "server_unread_bytes": 48,
    }
    assert settings().sizes == DEFAULT


@given(ALLOWED)
@example(limits.RECORD_BYTES_MAX)
@example(limits.RECORD_BYTES_LARGEST)
def test_bounds_for_the_largest_record_hold_its_framing(record_bytes):
    sizes = RecordSizes(record_bytes)
    around_columns = limits.ARROW_METADATA_BYTES_MAX + 64 * limits.SCHEMA_FIELDS_MAX
    assert record_bytes + around_columns + limits.BATCH_METADATA_BYTES_MAX < sizes.batch_bytes
    assert sizes.batch_bytes <= limits.DECODED_BATCH_BYTES_MAX
    assert sizes.batch_bytes + FRAME_SPARE_BYTES <= sizes.frame_bytes
    assert sizes.frame_bytes < sizes.segment_bytes_min <= limits.SEGMENT_BYTES
    assert sizes.frame_bytes < sizes.group_commit_bytes < sizes.segment_bytes_min * 2
    assert sizes.frame_bytes < sizes.pending_append_bytes <= sizes.server_in_flight_bytes // 2
    assert sizes.frame_bytes <= sizes.connection_in_flight_bytes < sizes.server_in_flight_bytes
    assert sizes.frame_bytes <= sizes.server_unread_bytes // 2, "a PING of that size is echoed"
    pool_bytes = sizes.server_in_flight_bytes - _OWN_BYTES
    assert 2 * sizes.batch_bytes < 3 * pool_bytes // 4, "two of them are received side by side"


@given(st.integers(0, 2**32 - 1))
def test_other_sizes_count_as_the_nearest(record_bytes):
    assert DEFAULT.record_bytes <= RecordSizes(record_bytes).record_bytes <= LARGEST.record_bytes


@pytest.mark.parametrize("wrong", [8 * MIB - 1, 64 * MIB + 1, 0, "64m"])
def test_a_setting_out_of_bounds(wrong):
    with pytest.raises(ConfigurationError, match="record_bytes_max"):
        settings(record_bytes_max=wrong)


@given(ALLOWED)
def test_a_segment_holds_the_largest_record(record_bytes):
    least = RecordSizes(record_bytes).segment_bytes_min
    settings(record_bytes_max=record_bytes, segment_bytes=least)
    if least > limits.SEGMENT_BYTES_MIN:
        with pytest.raises(ConfigurationError, match=f"set it to {least} or more, or lower"):
            settings(record_bytes_max=record_bytes, segment_bytes=least - 1)


@given(ALLOWED, st.integers(-2, 2))
def test_a_decoder_refuses_a_longer_frame_from_its_length(record_bytes, off_by):
    sizes = RecordSizes(record_bytes)
    decoder = FrameDecoder(sizes.frame_bytes)
    decoder.receive_data(struct.pack(">I", sizes.frame_bytes + off_by))
    if off_by > 0:
        with pytest.raises(FrameError, match=f"16..{sizes.frame_bytes}: "):
            list(decoder.frames())
    else:
        assert list(decoder.frames()) == []


@pytest.mark.parametrize("bound", [8 * MIB, 9 * MIB + 1])
@pytest.mark.parametrize("off_by", [-1, 0, 1])
def test_records_and_batches_around_the_edge(bound, off_by):
    def rows(value):
        return pa.RecordBatch.from_pylist([{"value": value}], schema=ROWS_SCHEMA)

    value = bytes(bound + off_by - int(record_sizes(rows(b""))[0]))
    builder = RowsBuilder(1, record_bytes_max=bound)
    if off_by > 0:
        with pytest.raises(RecordBatchError, match=f"{bound + 1} bytes; at most {bound} are"):
            builder.add(rows(value), timestamp_ms=1)
        return
    (batch,) = builder.add(rows(value), timestamp_ms=1)
    assert decode_envelope(batch).length_bytes == len(batch)
    accept_batch(batch, len(batch))
    with pytest.raises(RecordBatchError, match=f"at most {len(batch) - 1} are allowed"):
        accept_batch(batch, len(batch) - 1)


def test_a_connection_holds_one_large_frame_before_it_waits():
    intake = Intake(Budget(LARGEST.server_in_flight_bytes), lambda: None, sizes=LARGEST)
    held = intake.begin(LARGEST.frame_bytes)
    assert intake.may_read
    intake.begin(LARGEST.connection_in_flight_bytes - LARGEST.frame_bytes + 1)
    assert not intake.may_read
    held.end()
    assert intake.may_read
