"""A consumer makes records in a row of the answers of servers, or an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.app.aio.assignment import AsyncWholeSelection
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.blocking import Consumer, RecordIterator
from sbp_core.app.positions import Selection, Span
from sbp_core.client import FetchOutcome, ReceivedBatches, SchemaVersion, StreamInfo
from sbp_core.errors import DamagedBatchError, DeadlineExceededError, RecordBatchError, SbpError
from sbp_core.records import ROWS_SCHEMA, StreamSchema, encode_columns, encode_rows


class ScriptedClient:
    """Answers fetches with prepared payloads; has one more of `schemas` at each question."""

    def __init__(self, *answers: bytes | SbpError, schemas: tuple[StreamSchema, ...] = ()):
        self.answers = list(answers)
        self.schemas = schemas
        self.asked = []
        self.schemas_asked = 0

    async def describe_streams(self, stream_ids):
        return [StreamInfo(each, f"s{each}", 1, 0, 0) for each in stream_ids]

    async def describe_schemas(self, stream_ids):
        self.schemas_asked += 1
        known = enumerate(self.schemas[: self.schemas_asked], 1)
        return {1: tuple(SchemaVersion(1, number, schema, 9) for number, schema in known)}

    async def fetch(self, items, *, max_wait_ms):
        (item,) = items
        self.asked.append((item.fetch_offset, item.end_offset))
        answer = self.answers.pop(0)
        error = answer if isinstance(answer, SbpError) else None
        batches = ReceivedBatches(memoryview(b"" if error else answer), 0)
        yield FetchOutcome(0, item.stream_id, batches, error)


def read(client: ScriptedClient, start: int, end: int | None):
    consumer = AsyncConsumer(
        client,
        Selection(frozenset(), frozenset(), frozenset({1})),
        spans={1: Span(start, end)},
        follow=end is None,
        assignment=AsyncWholeSelection(client, None),
        hand=RecordIterator,
    )
    return Consumer(consumer).batches()


def batch(base_offset: int, count: int) -> bytes:
    numbers = range(base_offset, base_offset + count)
    values = pa.array([b"%d" % number for number in numbers], pa.binary())
    columns = [
        values if each.name == "value" else pa.nulls(count, each.type) for each in ROWS_SCHEMA
    ]
    rows = pa.record_batch(columns, schema=ROWS_SCHEMA)
    return encode_rows(rows, stream_id=1, timestamp_ms=7, base_offset=base_offset)


def values(batches) -> list[int]:
    found = []
    for each in batches:
        numbers = [int(value) for value in each.rows.column("value").to_pylist()]
        assert numbers == each.offsets.to_pylist()
        assert each.times.cast(pa.int64()).to_pylist() == [7000] * len(numbers)
        found += numbers
    return found


def test_rows_are_cut_to_what_was_asked_for():
    client = ScriptedClient(batch(0, 4) + batch(4, 2), batch(6, 4))
    assert values(read(client, 3, 8)) == [3, 4, 5, 6, 7]
    assert client.asked == [(3, 8), (6, 8)]


def test_nothing_is_asked_when_nothing_is_wanted():
    assert values(read(ScriptedClient(), 5, 5)) == []


def test_following_goes_on_after_silence():
    client = ScriptedClient(b"", batch(0, 1), b"", batch(1, 1), SbpError("enough"))
    batches = read(client, 0, None)
    assert values([next(batches), next(batches)]) == [0, 1]
    with pytest.raises(SbpError, match="enough"):
        next(batches)


@pytest.mark.parametrize("answer", [batch(1, 1), batch(0, 1)[:-1], b"x"])
def test_gaps_and_damage_are_errors(answer):
    with pytest.raises(RecordBatchError):
        list(read(ScriptedClient(answer), 0, 2))


def test_records_before_the_offset_are_no_answer():
    with pytest.raises(RecordBatchError, match="expected offset 3, found records 0 to 1"):
        list(read(ScriptedClient(batch(0, 2)), 3, 5))


def test_silence_before_the_tail_is_an_error():
    with pytest.raises(DeadlineExceededError, match="offset 2"):
        list(read(ScriptedClient(batch(0, 2), b""), 0, 4))


def one_column_batches(*schemas: StreamSchema) -> bytes:
    """Return a batch of one record in each schema."""
    batches = []
    for offset, schema in enumerate(schemas):
        rows = pa.RecordBatch.from_arrays([pa.array([5], pa.int32())], schema=schema.arrow)
        options = {"stream_id": 1, "timestamp_ms": 1, "base_offset": offset}
        batches.append(encode_columns(rows, schema, **options))
    return b"".join(batches)


def test_versions_are_asked_for_when_one_is_unknown():
    a, b = (StreamSchema.of(pa.schema([(name, pa.int32())])) for name in "ab")
    answers = one_column_batches(a), one_column_batches(a, b, a, b)[len(one_column_batches(a)) :]
    client = ScriptedClient(*answers, schemas=(a, b))
    found = list(read(client, 0, 4))
    assert [each.rows.schema.names for each in found] == [["a"], ["b"], ["a"], ["b"]]
    assert client.schemas_asked == 2


def test_the_batches_before_a_damaged_one_are_handed_out():
    a, b = (StreamSchema.of(pa.schema([(name, pa.int32())])) for name in "ab")
    batches = read(ScriptedClient(one_column_batches(a, b), schemas=(a,)), 0, 2)
    assert len(next(batches)) == 1
    with pytest.raises(DamagedBatchError, match="the placement driver does not know"):
        next(batches)
