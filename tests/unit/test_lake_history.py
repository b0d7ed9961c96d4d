"""A table as a reader of the log gets it: each offset once, in order, only what is wanted."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from test_lake_table import NESTED, STREAM, append, open_table, plain, typed

from sbp_core.errors import (
    ConfigurationError,
    DamagedBatchError,
    OffsetOutOfRangeError,
    RecordBatchError,
)
from sbp_core.lake.columns import PLAIN, rows_of, table_schema
from sbp_core.lake.history import TableHistory, Wanted
from sbp_core.records import (
    ColumnBounds,
    StreamSchema,
    batch_filter,
    decode_batch,
    decode_columns,
    maybe_kept_columns,
    order_key,
)

EVERYTHING = Wanted()
DAY_US = 86_400_000_000
NUMBERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("text", pa.string()),
    ]
)


@pytest.fixture
def catalog(tmp_path):
    return SqlCatalog("sbp", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())


def read(history, start=0, end=None, bytes_max=1 << 20, wanted=EVERYTHING):
    """Return the envelopes from an offset on, which are checked to follow on one another."""
    end = history.end if end is None else end
    found = []
    while start < end:
        batches, upto = history.read(start, end, bytes_max, wanted)
        for each in batches:
            assert each.base_offset == start
            start = each.end_offset
            found.append(each)
        assert start == upto
    return found


def numbers(count, start, days, *, text="x"):
    rows = [
        {"id": start + at, "small": at % 100, "at": None, "text": text * (at % 7)}
        for at in range(count)
    ]
    times = pa.array([each * DAY_US for each in days], pa.int64())
    batch = typed(rows, start, NUMBERS)
    return type(batch)(*("orders", start, batch.rows, times.cast(batch.times.type), True))


def test_files_whose_offsets_overlap_are_read_in_the_order_of_the_offsets(catalog):
    rolls = random.Random(1)
    table = open_table(catalog, table_schema(NUMBERS))
    for start in range(0, 300, 100):
        days = [rolls.randrange(5) for _ in range(100)]
        append(table, numbers(100, start, days), columns=NUMBERS, expected=start or None)
    history = TableHistory(table, 7, StreamSchema(NUMBERS))
    for start, end, bytes_max in ((0, 300, 1 << 20), (150, 300, 1), (7, 299, 100)):
        ids = []
        for each in read(history, start, end, bytes_max):
            rows = decode_columns(each, StreamSchema(NUMBERS))
            assert each.timestamp_column is None or rows["at"].null_count == 0
            ids += rows["id"].to_pylist()
        assert [each for each in ids if each < end] == [*range(start, end)]


def test_types_that_iceberg_lacks_come_back_and_nulls_stay_nulls(catalog):
    from test_lake_table import EMPTY, FULL, NULLS

    table = open_table(catalog, table_schema(NESTED))
    append(table, typed([FULL, EMPTY, NULLS]))
    history = TableHistory(table, 7, StreamSchema(NESTED))
    found = [decode_columns(each, StreamSchema(NESTED)) for each in read(history)]
    assert pa.Table.from_batches(found).to_pylist() == [FULL, EMPTY, NULLS]


def test_plain_records_come_with_their_own_times(catalog):
    table = open_table(catalog)
    append(table, plain([b"a", None, b"c"]))
    (envelope,) = read(TableHistory(table, 7, None))
    rows = decode_batch(envelope)
    assert rows["value"].to_pylist() == [b"a", None, b"c"]
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [0, 1_000_000, 2_000_000]


def test_rows_of_a_table_are_checked_as_those_of_the_log_are(catalog):
    nullable, required = (pa.schema([pa.field("id", pa.int64(), each)]) for each in (True, False))
    table = open_table(catalog, table_schema(nullable))
    append(table, typed([{"id": 1}, {"id": None}], 0, nullable), columns=nullable)
    first, second = read(TableHistory(table, 7, StreamSchema(nullable)))
    assert decode_columns(second, StreamSchema(nullable), ["id"])["id"].to_pylist() == [None]
    with pytest.raises(RecordBatchError, match="columns"):
        decode_batch(first)
    _, second = read(TableHistory(table, 7, StreamSchema(required)))
    with pytest.raises(DamagedBatchError, match="id"):
        decode_columns(second, StreamSchema(required))


def test_unwanted_columns_and_groups_are_not_read(catalog):
    table = open_table(catalog, table_schema(NUMBERS))
    append(table, numbers(2000, 0, [1] * 2000, text="first"), columns=NUMBERS)
    append(table, numbers(2000, 2000, [2] * 2000), columns=NUMBERS, expected=2000)
    schema = StreamSchema(NUMBERS)
    history = TableHistory(table, 7, schema)
    kept = maybe_kept_columns(schema, pa.schema([NUMBERS.field("id")]))
    (first, *_) = read(history, wanted=Wanted((kept.projection,)))
    rows = decode_columns(first, schema)
    assert rows["small"].null_count == len(rows)
    assert first.timestamp_column == "at"
    assert rows["at"].cast(pa.int64()).to_pylist()[0] == DAY_US
    least = ColumnBounds("id", order_key(2100, pa.int64()), None, takes_null=False)
    wanted = Wanted((), (batch_filter(schema.fingerprint, [least]),))
    found = read(history, wanted=wanted)
    assert [each.is_skipped for each in found] == [True, *[False] * (len(found) - 1)]
    assert found[0].end_offset == 2000
    none = ColumnBounds("at", None, None, takes_null=False)
    wanted = Wanted((), (batch_filter(schema.fingerprint, [none]),))
    assert all(each.is_skipped for each in read(history, wanted=wanted))


def test_records_that_the_table_lacks_are_named(catalog):
    table = open_table(catalog)
    append(table, plain([b"a"] * 5))
    behind_gap = table.append(PLAIN, 8, 5)
    assert behind_gap.add([rows_of(plain([b"b"] * 2, 8), None)])
    behind_gap.commit(None)
    history = TableHistory(open_table(catalog), 7, None)
    assert [*history.parts(100)] == [(0, 5), (8, 10)]
    assert [*history.parts(9)] == [(0, 5), (8, 9)]
    assert [*history.parts(3)] == [(0, 3)]
    with pytest.raises(OffsetOutOfRangeError) as caught:
        history.read(5, 10, 100, Wanted())
    assert caught.value.bounds == (8, 10)


def test_the_first_record_of_a_time_is_found_in_whichever_file_it_is(catalog):
    table = open_table(catalog, table_schema(NUMBERS))
    append(table, numbers(6, 0, [5, 1, 1, 7, 2, 9]), columns=NUMBERS)
    history = TableHistory(table, 7, StreamSchema(NUMBERS))
    assert history.find_time(1, 0, 6) == 0
    assert history.find_time(6 * DAY_US, 0, 6) == 3
    assert history.find_time(6 * DAY_US, 4, 6) == 5
    assert history.find_time(10 * DAY_US, 0, 6) is None


def test_a_typed_stream_with_plain_records_in_its_table_is_refused(catalog):
    table = open_table(catalog, PLAIN)
    append(table, plain([b"a"]))
    with pytest.raises(ConfigurationError, match="history=off"):
        TableHistory(open_table(catalog), STREAM.stream_id, StreamSchema(NUMBERS))
