"""Record batches of columns as what Spark was promised: versions, metadata, what does not fit."""

import struct
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records import (
    StreamSchema,
    decode_envelope,
    encode_columns,
    encode_envelope,
    encode_rows,
    merge_schemas,
)
from sbp_spark.column_schema import METADATA_FIELD
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.endpoints import Servers
from sbp_spark.reading.input_partitions import decode_chunks
from sbp_spark.reading.layout import ColumnsLayout, RowsLayout
from sbp_spark.reading.losses import DamagedRecordsError
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.schema_versions import SchemaVersions
from sbp_spark.row_schema import source_schema
from tests.support.data.typed import rows_in, schema_of, versions_of
from tests.support.spark import chunk_of, numbered, rows_of

SERVERS = Servers(("nowhere:1",))
TIMESTAMP = pa.timestamp("us", tz="UTC")
METADATA = logical_arrow_schema(StructType([METADATA_FIELD])).field(0)
FIRST = schema_of(id=pa.int32(), name=pa.string())


class FakePlacementDriver:
    """Knows schemas, and counts how often it is asked."""

    def __init__(self, **schemas):
        self.versions = {
            int(name.removeprefix("s")): versions_of(int(name.removeprefix("s")), *each)
            for name, each in schemas.items()
        }
        self.asked = []
        self.known = {}

    def describe_schemas(self, stream_ids, *, newest_only=False):
        self.asked.append(list(stream_ids))
        return {each: self.versions.get(each, ()) for each in stream_ids}


def span(start, end, stream_id=7, range_index=0):
    return StreamSpan(stream_id, f"s{stream_id}", range_index, start, end, ("host:1",))


def batch(rows, schema, start=0, stream_id=7, **options):
    options = {"timestamp_ms": 0, **options}
    return encode_columns(
        rows_in(schema, rows), schema, stream_id=stream_id, base_offset=start, **options
    )


def numbers(start, end):
    return [{"id": n} for n in range(start, end)]


def read(batches, spans, schema, driver, *, has_metadata=False, **limits):
    versions = SchemaVersions(driver, SERVERS, driver.known, **limits)
    layout = ColumnsLayout(schema, versions, has_metadata=has_metadata)
    chunks = [chunk_of(index, memoryview(each)) for index, each in enumerate(batches)]
    return list(decode_chunks(chunks, spans, layout))


def rows(batches):
    return [row for each in batches for row in each.to_pylist()]


def test_a_schema_is_asked_for_once_for_all_tasks_of_a_process():
    driver = FakePlacementDriver(s7=[FIRST], s8=[FIRST])
    for _ in range(2):
        payload = batch(numbers(0, 5), FIRST) + batch(numbers(5, 9), FIRST, 5)
        read([payload], [span(0, 9)], FIRST.arrow, driver)
        read([batch(numbers(0, 5), FIRST, 0, 8)], [span(0, 5, 8)], FIRST.arrow, driver)
    assert driver.asked == [[7], [8]]


def test_a_version_that_is_new_is_asked_for_and_others_are_kept():
    driver = FakePlacementDriver(s7=[FIRST])
    read([batch(numbers(0, 1), FIRST)], [span(0, 1)], FIRST.arrow, driver)
    newer = merge_schemas(FIRST, schema_of(id=pa.int32(), name=pa.string(), city=pa.string()))
    driver.versions = {7: versions_of(7, FIRST, newer)}
    payload = batch([{"id": 1, "city": "x"}], newer) + batch(numbers(2, 3), FIRST, 1)
    found = rows(read([payload], [span(0, 2)], FIRST.arrow, driver))
    assert found == [{"id": 1, "name": None}, {"id": 2, "name": None}]
    assert driver.asked == [[7], [7]]


def test_the_schemas_of_no_more_than_some_streams_are_kept():
    driver = FakePlacementDriver(s1=[FIRST], s2=[FIRST], s3=[FIRST])
    for stream_id in (1, 2, 3, 3, 2, 1):
        payload = batch(numbers(0, 1), FIRST, 0, stream_id)
        read([payload], [span(0, 1, stream_id)], FIRST.arrow, driver, streams_max=2)
    assert driver.asked == [[1], [2], [3], [1]]


def with_metadata(schema, *names):
    kind = pa.struct([each for each in METADATA.type if each.name in names]) if names else None
    return schema.append(METADATA if kind is None else pa.field("_metadata", kind))


def test_metadata_say_where_a_record_was():
    spans = [span(5, 8), span(8, 9, range_index=1), span(0, 2, 8)]
    batches = [
        batch(numbers(0, 9), FIRST, timestamp_ms=1_000),
        batch(numbers(8, 10), FIRST, 8, timestamp_ms=2_000),
        batch(numbers(0, 3), FIRST, 0, 8, timestamp_ms=3_000),
    ]
    driver = FakePlacementDriver(s7=[FIRST], s8=[FIRST])
    wanted = with_metadata(FIRST.arrow)
    (found,) = read(batches, spans, wanted, driver, has_metadata=True)
    assert found.schema.equals(wanted)
    assert [row["id"] for row in found.to_pylist()] == [5, 6, 7, 8, 0, 1]
    places = [
        (at["stream"], at["stream_id"], at["range_index"], at["offset"], at["timestamp"].second)
        for at in (row["_metadata"] for row in found.to_pylist())
    ]
    assert places == [
        *(("s7", 7, 0, offset, 1) for offset in (5, 6, 7)),
        ("s7", 7, 1, 8, 2),
        *(("s8", 8, 0, offset, 3) for offset in (0, 1)),
    ]


@pytest.mark.parametrize("kind", [TIMESTAMP, pa.timestamp("us")])
@pytest.mark.parametrize("is_column_read", [True, False])
def test_times_are_those_of_the_column_that_has_them(kind, is_column_read):
    schema = schema_of(id=pa.int32(), at=kind)
    times = [5_000_000, None, -1]
    given_rows = [
        {"id": n, "at": None if time is None else pa.scalar(time, kind).as_py()}
        for n, time in enumerate(times)
    ]
    payload = batch(given_rows, schema, timestamp_ms=7_000, timestamp_column="at")
    wanted = schema.arrow if is_column_read else pa.schema([schema.arrow.field("id")])
    wanted = with_metadata(wanted, "timestamp")
    driver = FakePlacementDriver(s7=[schema])
    (found,) = read([payload], [span(0, 3)], wanted, driver, has_metadata=True)
    assert found.schema.equals(wanted)
    parts = found.column("_metadata").field("timestamp").cast(pa.int64()).to_pylist()
    assert parts == [5_000_000, 7_000_000, -1]


def test_a_column_of_the_stream_may_have_the_name_of_the_metadata():
    schema = schema_of(_metadata=pa.string())
    payload = batch([{"_metadata": "mine"}], schema)
    found = rows(read([payload], [span(0, 1)], schema.arrow, FakePlacementDriver(s7=[schema])))
    assert found == [{"_metadata": "mine"}]


def test_a_time_that_no_timestamp_can_be_is_not_known():
    payload = batch(numbers(0, 1), FIRST, timestamp_ms=2**62)
    wanted = with_metadata(FIRST.arrow, "timestamp")
    driver = FakePlacementDriver(s7=[FIRST])
    (row,) = rows(read([payload], [span(0, 1)], wanted, driver, has_metadata=True))
    assert row["_metadata"] == {"timestamp": None}


@pytest.mark.parametrize("column", [None, "at"])
def test_each_of_some_small_batches_has_its_time(column):
    schema = schema_of(id=pa.int32(), at=TIMESTAMP)
    at = pa.scalar(9_000_000, TIMESTAMP).as_py()
    payload = b"".join(
        batch(
            [{"id": 0, "at": None}, {"id": 1, "at": at if number == 1 else None}],
            schema,
            2 * number,
            timestamp_ms=time_ms,
            timestamp_column=column,
        )
        for number, time_ms in enumerate([1_000, 2_000, 2**62, 4_000])
    )
    wanted = with_metadata(pa.schema([schema.arrow.field("id")]), "timestamp")
    driver = FakePlacementDriver(s7=[schema])
    (found,) = read([payload], [span(1, 7)], wanted, driver, has_metadata=True)
    times = found.column("_metadata").field("timestamp").cast(pa.int64()).to_pylist()
    of_record_3 = 2_000_000 if column is None else 9_000_000
    assert times == [1_000_000, 2_000_000, of_record_3, None, None, 4_000_000]


def test_small_batches_are_decoded_together():
    payload = b"".join(batch(numbers(n, n + 2), FIRST, n) for n in range(0, 8, 2))
    for names in ([], ["name"], ["name", "id"]):
        schema = pa.schema([FIRST.arrow.field(name) for name in names])
        wanted = with_metadata(schema, "offset")
        driver = FakePlacementDriver(s7=[FIRST])
        (found,) = read([payload], [span(1, 7)], wanted, driver, has_metadata=True)
        assert found.schema.equals(wanted)
        given = [{"id": n, "name": None} for n in range(1, 7)]
        assert found.drop_columns("_metadata").to_pylist() == [
            {name: row[name] for name in names} for row in given
        ]
        assert [at["offset"] for at in found.column("_metadata").to_pylist()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("is_required", [False, True])
def test_the_damaged_one_of_some_small_batches_is_named(is_required):
    strict = StreamSchema.of(pa.schema([FIRST.arrow.field("id").with_nullable(not is_required)]))
    loose = schema_of(id=pa.int32())
    body = decode_envelope(batch([{"id": None}], loose)).body
    if not is_required:  # an array that is longer than its values
        body = bytes(decode_envelope(batch(numbers(0, 1), loose)).body).replace(
            struct.pack("<qq", 0, 4), struct.pack("<qq", 0, 2)
        )
    damaged = encode_envelope(
        [body],
        stream_id=7,
        record_count=1,
        base_timestamp_ms=0,
        encoding="columns",
        base_offset=2,
        schema_fingerprint=strict.fingerprint,
    )
    payload = batch(numbers(0, 2), strict) + damaged + batch(numbers(3, 4), strict, 3)
    with pytest.raises(DamagedRecordsError, match=r"damaged: stream 7 \(s7\): \[2, 3\): "):
        read([payload], [span(0, 4)], strict.arrow, FakePlacementDriver(s7=[strict]))


def test_small_batches_that_do_not_fit_are_all_named():
    wide = merge_schemas(schema_of(id=pa.int32()), schema_of(id=pa.int64()))
    payload = batch(numbers(0, 2), wide) + batch(numbers(2, 4), wide, 2)
    driver = FakePlacementDriver(s7=[schema_of(id=pa.int32()), wide])
    with pytest.raises(SchemaError, match="one of the record batches at offsets 0 to 2 of stream"):
        read([payload], [span(0, 4)], pa.schema({"id": pa.int32()}), driver)


@pytest.mark.parametrize("column", ["id", "nowhere"])
def test_times_in_a_column_that_is_no_timestamp(column):
    written = decode_envelope(batch(numbers(0, 2), FIRST))
    payload = encode_envelope(
        [written.body],
        stream_id=7,
        record_count=2,
        base_timestamp_ms=0,
        encoding=written.encoding,
        schema_fingerprint=written.schema_fingerprint,
        timestamp_column=column,
    )
    driver = FakePlacementDriver(s7=[FIRST])
    assert rows(read([payload], [span(0, 1)], FIRST.arrow, driver)) == [{"id": 0, "name": None}]
    with pytest.raises(
        DamagedRecordsError, match=f"times in column {column}, which is no timestamp"
    ):
        read([payload], [span(0, 2)], with_metadata(FIRST.arrow), driver, has_metadata=True)


def test_rows_in_a_typed_read_are_an_error_that_says_where():
    payload = batch(numbers(0, 2), FIRST)
    payload += encode_rows(rows_of(numbered(0, 3)), stream_id=7, timestamp_ms=0, base_offset=2)
    with pytest.raises(SchemaError, match=r"offset 2 of stream s7 \(id 7\) is not typed") as raised:
        read([payload], [span(0, 5)], FIRST.arrow, FakePlacementDriver(s7=[FIRST]))
    assert "encoding=rows" in str(raised.value)


def test_columns_in_a_read_of_rows_are_an_error_that_says_where():
    layout = RowsLayout(logical_arrow_schema(source_schema(include_headers=False)))
    chunks = [chunk_of(0, memoryview(batch(numbers(0, 2), FIRST, 4)))]
    with pytest.raises(RecordBatchError, match=r"offset 4 of stream 7 is typed.*encoding=columns"):
        list(decode_chunks(chunks, [span(4, 6)], layout))


def test_a_schema_that_the_placement_driver_does_not_know():
    said = rf"stream 7 \(s7\): \[0, 1\): .*{FIRST.fingerprint}"
    with pytest.raises(DamagedRecordsError, match=said):
        read([batch(numbers(0, 1), FIRST)], [span(0, 1)], FIRST.arrow, FakePlacementDriver())


def test_a_column_that_was_widened_since_the_query_started():
    more = merge_schemas(FIRST, schema_of(id=pa.int32(), name=pa.string(), city=pa.string()))
    wide = merge_schemas(more, schema_of(id=pa.int64(), name=pa.string()))
    most = merge_schemas(wide, schema_of(id=pa.int64(), name=pa.string(), zip=pa.string()))
    payload = batch(numbers(0, 2), FIRST) + batch(numbers(2, 4), most, 2)
    driver = FakePlacementDriver(s7=[FIRST, more, wide, most])
    with pytest.raises(SchemaError) as raised:
        read([payload], [span(0, 4)], FIRST.arrow, driver)
    for told in ("offset 2 of stream s7", "column id is int64", "version 3", "start the query"):
        assert told in str(raised.value)
    found = read([payload], [span(0, 4)], most.arrow, driver)
    assert [row["id"] for row in rows(found)] == [0, 1, 2, 3]


def grown_schema(old):
    return merge_schemas(old, schema_of(**{f"added{n}": pa.string() for n in range(200)}))


NARROW = schema_of(flag=pa.int8())
WIDE = grown_schema(NARROW)
OLD_COUNT = 500_000


@pytest.fixture(scope="module")
def old_batch():
    """Many records in few bytes."""
    rows = pa.record_batch([pa.array([1] * OLD_COUNT, pa.int8())], schema=NARROW.arrow)
    return encode_columns(rows, NARROW, stream_id=7, timestamp_ms=0, compression="zstd")


def test_an_old_batch_in_a_schema_that_has_grown_takes_bounded_memory(old_batch):
    assert len(old_batch) < 10_000
    layout = ColumnsLayout(
        with_metadata(WIDE.arrow),
        SchemaVersions(FakePlacementDriver(s7=[NARROW, WIDE]), SERVERS, {}),
        has_metadata=True,
    )
    next_offset = 0
    for found in decode_chunks([chunk_of(0, memoryview(old_batch))], [span(0, OLD_COUNT)], layout):
        assert found.get_total_buffer_size() < 8 * limits.BATCH_TARGET_BYTES
        offsets = found.column("_metadata").field("offset")
        assert offsets[0].as_py() == next_offset
        next_offset += found.num_rows
        assert offsets[-1].as_py() == next_offset - 1
    assert next_offset == OLD_COUNT


TYPES = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=5),
    pa.list_(pa.field("element", pa.int32())): st.lists(st.integers(0, 9), max_size=3),
    pa.struct([pa.field("x", pa.int8())]): st.fixed_dictionaries({"x": st.integers(0, 9)}),
}
WIDER = {
    pa.int8(): [pa.int32(), pa.int64()],
    pa.int32(): [pa.int64()],
    pa.float32(): [pa.float64()],
    pa.struct([pa.field("x", pa.int8())]): [pa.struct([pa.field("x", pa.int8())])],
}


@st.composite
def histories(draw):
    """Versions of a schema, and record batches of them, as (version, rows)."""
    columns = {"a": draw(st.sampled_from(list(TYPES)))}
    versions = [schema_of(**columns)]
    for step in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from([*columns, f"added{step}"]))
        kinds = WIDER.get(columns[name], []) if name in columns else list(TYPES)
        if kinds:
            columns[name] = draw(st.sampled_from(kinds))
            versions.append(merge_schemas(versions[-1], schema_of(**columns)))
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        schema = draw(st.sampled_from(versions))
        values = {each.name: st.none() | TYPES[each.type] for each in schema.arrow}
        batches.append((schema, draw(st.lists(st.fixed_dictionaries(values), min_size=1))))
    return list(dict.fromkeys(versions)), batches


@given(histories(), st.data())
def test_every_version_is_read_in_the_newest_one_from_anywhere_to_anywhere(history, data):
    versions, batches = history
    payload, written = b"", []
    for schema, values in batches:
        payload += batch(values, schema, len(written))
        written += values
    start = data.draw(st.integers(0, len(batches[0][1]) - 1))
    end = data.draw(st.integers(start + 1, len(written)))
    names = data.draw(st.permutations(versions[-1].arrow.names))
    names = names[: data.draw(st.integers(1, len(names)))]
    wanted = pa.schema([versions[-1].arrow.field(name) for name in names])
    found = read(
        [payload],
        [span(start, end)],
        with_metadata(wanted, "offset"),
        FakePlacementDriver(s7=versions),
        has_metadata=True,
    )
    assert all(each.schema.equals(with_metadata(wanted, "offset")) for each in found)
    expected = [
        {name: values.get(name) for name in names} | {"_metadata": {"offset": offset}}
        for offset, values in enumerate(written)
    ]
    assert rows(found) == expected[start:end]


def test_columns_that_are_not_requested_are_not_decoded():
    """The only damage is in the column of the times, which cannot be decompressed."""
    schema = StreamSchema.of(FIRST.arrow.append(pa.field("at", TIMESTAMP)))
    given = [{"id": n, "at": datetime.fromtimestamp(n, UTC)} for n in range(1_000)]
    sound = batch(given, schema, timestamp_column="at", compression="zstd")
    payload = sound[:-64] + bytes(64)
    driver = FakePlacementDriver(s7=[schema])
    wanted = pa.schema([("id", pa.int32())])
    for columns, options in (
        (wanted, {}),
        (with_metadata(wanted, "offset"), {"has_metadata": True}),
    ):
        (found,) = read([payload], [span(0, 1_000)], columns, driver, **options)
        assert found.column("id").to_pylist() == list(range(1_000))
    with_time = with_metadata(wanted, "timestamp")
    with pytest.raises(DamagedRecordsError):
        read([payload], [span(0, 1_000)], with_time, driver, has_metadata=True)
