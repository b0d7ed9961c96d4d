"""The tests' own decoder of record sequences takes what data nodes take, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cluster import rows_batch
from tests.support.data.batches import (
    TIME_MS,
    NoRecordSequenceError,
    Record,
    check_record_sequence,
    sequence_batch,
)

BATCH = sequence_batch([b"a", b"", b"ccc"], base_offset=40)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=9), st.booleans())
def test_every_record_is_read(bodies: list[bytes], is_count: bool) -> None:
    delta = len(bodies) - (not is_count)
    found = check_record_sequence(sequence_batch(bodies, delta=delta, base_offset=5))
    assert found.stream_id == 7
    assert found.last_offset_delta == delta
    assert found.records == tuple(
        Record(5 + index, TIME_MS + index, body) for index, body in enumerate(bodies)
    )


@given(st.integers(0, len(BATCH) - 1))
def test_a_truncated_sequence_is_refused(size: int) -> None:
    with pytest.raises(NoRecordSequenceError):
        check_record_sequence(BATCH[:size])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (rows_batch([b"a", b"b"]), "metadata"),
        (sequence_batch([b"a"], delta=3), "last_offset_delta 3"),
        (sequence_batch([]), "no record"),
        (b"\x21" + BATCH[1:], "magic"),
        (BATCH + BATCH, "metadata"),
        (b"", "cut off"),
    ],
    ids=["rows", "delta", "empty", "magic", "two batches", "nothing"],
)
def test_other_batches_are_refused(batch: bytes, message: str) -> None:
    with pytest.raises(NoRecordSequenceError, match=message):
        check_record_sequence(batch)
