"""Writing the columns of a task: mapped onto the schemas of their streams, or kept as JSON."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from zlib import crc32

import pyarrow as pa
import pytest

from sbp_core.errors import SchemaError
from sbp_core.limits import MIB, RECORD_BYTES_MAX
from sbp_core.records import StreamSchema, decode_envelope, encode_statistics
from sbp_spark.options.sink import BatchKey
from sbp_spark.options.sink_targets import BadRecordPolicy, ColumnOptions, OnBadRecord
from sbp_spark.options.stream_selection import StreamRef
from sbp_spark.writing.bad_records import ERROR_HEADER, BadRecordError
from sbp_spark.writing.sinks import StagedFor, write_rows
from tests.support.scripted_client import WritingClient, sink_options

TIME = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
DEAD_LETTERS = BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("s99"))
SKIP = BadRecordPolicy(OnBadRecord.SKIP)
STAGED_FOR = StagedFor(BatchKey("query", 3), is_repeatable=True)
PAIRS = StreamSchema.of(pa.schema([pa.field("n", pa.int64()), pa.field("word", pa.string())]))
REQUIRING = StreamSchema.of(
    pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("n", pa.int64())])
)


def pairs(*rows):
    """A batch of (n, word), as Spark gives it: with other columns beside them."""
    numbers, words = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "_metadata": pa.nulls(len(rows)),
            "word": pa.array(words, pa.string()),
        }
    )


def client_with(*schemas):
    """A client whose streams from 1 on have these schemas."""
    client = WritingClient()
    for stream_id, schema in enumerate(schemas, start=1):
        client.register_schema(stream_id, schema, version=1)
    return client


def options(*streams, **changes):
    known = ("routing_column", "timestamp_column", "stats_columns", "is_merging")
    names = [each for each in changes if each in known]
    columns = {each: changes.pop(each) for each in names}
    return sink_options(*streams, columns=ColumnOptions(**columns), **changes)


def append(client, batches, given, schema=PAIRS, **more):
    return write_rows(batches, client, given, schema=schema, **more)


def test_each_stream_gets_its_rows_in_its_own_newest_schema():
    grown = StreamSchema.of(
        pa.schema(
            [pa.field("new", pa.int8()), *[PAIRS.arrow.field(name) for name in ("word", "n")]]
        )
    )
    client = client_with(PAIRS, PAIRS)
    client.register_schema(2, grown, version=2)
    batch = pairs((1, "a"), (2, "b"), (3, "c"), (4, "d"))
    message = append(client, [batch], options("s1", "s2"))
    assert client.published == {
        1: [{"n": 1, "word": "a"}, {"n": 3, "word": "c"}],
        2: [{"new": None, "word": "b", "n": 2}, {"new": None, "word": "d", "n": 4}],
    }
    assert (message.record_count, message.stream_count) == (4, 2)
    assert client.asked_for_schemas == [[1, 2]]


def test_the_column_with_the_times_is_named_in_record_batches():
    schema = StreamSchema.of(pa.schema({"at": pa.timestamp("us", tz="UTC")}))
    client = client_with(schema)
    at = pa.array([0, 1], pa.timestamp("us", tz="Asia/Tokyo"))
    batch = pa.record_batch({"at": at})
    append(client, [batch], options("s1", timestamp_column="at"), schema)
    (item,) = client.appends[0]
    envelope = decode_envelope(item.batch)
    assert (envelope.timestamp_column, envelope.schema_fingerprint) == ("at", schema.fingerprint)
    assert envelope.base_timestamp_ms > 0


def test_columns_with_statistics_may_be_named_in_any_case():
    client = client_with(PAIRS)
    batch = pairs((1, "a"), (2, "b"))
    append(client, [batch], options("s1", stats_columns=("WORD", "N", "n")))
    (item,) = client.appends[0]
    expected = encode_statistics(batch, ["word", "n"])
    assert decode_envelope(item.batch).statistics == expected


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array(["x", "é", ""]), ["x", "é", ""]),
        (pa.array([b"x", b"\xff", b""]), [b"x", b"\xff", b""]),
        (pa.array([1, -5, 2**40]), ["1", "-5", str(2**40)]),
        (pa.array([1, -5, 7], pa.int8()), ["1", "-5", "7"]),
        (pa.array([True, False, True]), ["true", "false", "true"]),
        (
            pa.array([date(2026, 1, 31), date(1969, 1, 1), date(1, 1, 1)]),
            ["2026-01-31", "1969-01-01", "0001-01-01"],
        ),
    ],
)
def test_the_routing_column_tells_the_stream(values, texts):
    schema = StreamSchema.of(pa.schema({"k": values.type, "n": pa.int64()}))
    client = client_with(schema, schema, schema)
    batch = pa.record_batch({"k": values, "n": pa.array([0, 1, 2])})
    append(client, [batch, batch[1:]], options("s1", "s2", "s3", routing_column="k"), schema)
    places = {row["n"]: stream_id for stream_id, rows in client.published.items() for row in rows}
    data = [text.encode() if isinstance(text, str) else text for text in texts]
    assert places == {n: crc32(each) % 3 + 1 for n, each in enumerate(data)}


def test_a_null_that_a_stream_requires_is_a_bad_record():
    batch = pairs((1, "a"), (2, None), (3, None), (None, "d"))
    told = r"column word is null, and 's2' requires a value.*\(row 1 of 4 in a batch; 1 of them"
    with pytest.raises(BadRecordError, match=told):
        append(client_with(PAIRS, REQUIRING), [batch], options("s1", "s2"))
    client = client_with(PAIRS, REQUIRING)
    message = append(client, [batch], options("s1", "s2", bad_records=SKIP))
    assert (message.record_count, message.skipped_count) == (3, 1)
    assert [row["n"] for row in client.published[1]] == [1, 3]
    assert [row["n"] for row in client.published[2]] == [None]
    client = client_with(PAIRS, REQUIRING)
    message = append(client, [batch], options("s1", "s2", bad_records=DEAD_LETTERS))
    assert (message.record_count, message.dead_letter_count) == (4, 1)
    (letter,) = client.published[99]
    assert json.loads(letter["value"]) == {"n": 2, "word": None}
    assert letter["key"] is None
    assert letter["timestamp"] > datetime(2026, 1, 1, tzinfo=UTC)
    ((name, text),) = letter["headers"]
    assert name == ERROR_HEADER
    assert b"column word is null" in text


def test_a_text_that_is_none_is_a_bad_record():
    words = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    batch = pa.record_batch({"n": pa.array([1, 2, 3]), "word": words})
    with pytest.raises(BadRecordError, match=r"column word has a value.*UTF8.*row 1 of 3"):
        append(client_with(PAIRS), [batch], options("s1"))
    client = client_with(PAIRS)
    append(client, [batch], options("s1", bad_records=DEAD_LETTERS))
    assert [row["word"] for row in client.published[1]] == ["a", "c"]
    (letter,) = client.published[99]
    assert json.loads(letter["value"]) == {"n": 2, "word": {"base64": "/w=="}}


def test_a_row_that_is_too_large():
    batch = pairs((1, "a"), (2, "b" * RECORD_BYTES_MAX), (3, "c" * MIB))
    with pytest.raises(BadRecordError, match=r"a record of \d+ bytes.*row 1 of 3"):
        append(client_with(PAIRS), [batch], options("s1"))
    client = client_with(PAIRS)
    append(client, [batch], options("s1", bad_records=DEAD_LETTERS))
    assert [row["n"] for row in client.published[1]] == [1, 3]
    (letter,) = client.published[99]
    assert letter["value"] is None


def test_a_row_that_is_too_large_in_the_types_of_its_stream():
    def schema(kind):
        return StreamSchema.of(pa.schema({"l": pa.list_(kind)}))

    count = RECORD_BYTES_MAX // 8
    batch = pa.record_batch({"l": pa.array([[1], [1] * count], pa.list_(pa.int8()))})
    client = client_with(schema(pa.int64()), schema(pa.int8()))
    given = options("s1", "s2", bad_records=SKIP)
    assert append(client, [batch], given, schema(pa.int8())).skipped_count == 0
    backwards = pa.concat_batches([batch[1:], batch[:1]])
    assert append(client, [backwards], given, schema(pa.int8())).skipped_count == 1


def test_a_stream_that_got_another_schema_since_the_start():
    for names in ({"n": pa.string(), "word": pa.string()}, {"n": pa.int64()}):
        client = client_with(StreamSchema.of(pa.schema(names)))
        with pytest.raises(SchemaError, match="stream 's1' does not accept these columns"):
            append(client, [pairs((1, "a"))], options("s1"))
        assert client.appends == []


def test_a_task_lets_a_schema_grow_that_lost_a_column_since_the_start():
    client = client_with(StreamSchema.of(pa.schema({"n": pa.int64()})))
    append(client, [pairs((1, "precious"))], options("s1", is_merging=True))
    assert client.published[1] == [{"n": 1, "word": "precious"}]


def test_a_null_that_spark_did_not_know_of_is_a_bad_record():
    given = StreamSchema.of(pa.schema([pa.field("word", pa.string(), nullable=False)]))
    batch = pa.record_batch({"word": pa.array(["a", None])})
    client = client_with(REQUIRING)
    message = append(client, [batch], options("s1", bad_records=SKIP), given)
    assert (message.record_count, message.skipped_count) == (1, 1)
    client = client_with(PAIRS)
    append(client, [batch], options("s1"), given)
    assert [row["word"] for row in client.published[1]] == ["a", None]


def test_a_row_whose_small_values_become_large_ones_in_its_stream():
    small = StreamSchema.of(pa.schema({"l": pa.list_(pa.struct({"a": pa.int8()}))}))
    fields = {"a": pa.int8(), **{f"s{number}": pa.string() for number in range(800)}}
    wide = StreamSchema.of(pa.schema({"l": pa.list_(pa.struct(fields))}))
    batch = pa.record_batch({"l": pa.array([[{"a": 1}] * 5_000, []], small.arrow.field("l").type)})
    client = client_with(wide)
    assert append(client, [batch], options("s1", bad_records=SKIP), small).skipped_count == 1
    assert client.published[1] == [{"l": []}]


def null_structs(rows, zone="Europe/Berlin"):
    """Structs, null where a row is None: as Spark gives them, with nulls in required fields."""
    fields = [
        pa.field("at", pa.timestamp("us", tz=zone), nullable=False),
        pa.field("word", pa.string(), nullable=False),
    ]
    values = [(None, None) if row is None else row for row in rows]
    children = [
        pa.array(column, field.type)
        for column, field in zip(zip(*values, strict=True), fields, strict=True)
    ]
    mask = pa.array([row is None for row in rows])
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def in_a_list(structs):
    kind = pa.list_(pa.field("element", structs.type))
    return pa.ListArray.from_arrays([0, 1, 1, len(structs)], structs, type=kind)


def in_a_map(structs):
    kind = pa.map_(pa.string(), structs.type)
    return pa.MapArray.from_arrays([0, 1, 1, len(structs)], list("abc"), structs, type=kind)


def in_a_struct(structs):
    return pa.StructArray.from_arrays([structs], fields=[pa.field("inner", structs.type)])


@pytest.mark.parametrize("wrap", [lambda same: same, in_a_list, in_a_map, in_a_struct])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_null_struct_has_no_fields_that_could_be_missing(wrap, zone):
    rows = [(TIME, "a"), None, (TIME, "c")]
    column = wrap(null_structs(rows, zone))
    schema = StreamSchema.of(pa.schema({"s": wrap(null_structs(rows, "UTC")).type}))
    client = client_with(schema)
    append(client, [pa.record_batch({"s": column})], options("s1"), schema)
    append(client, [pa.record_batch({"s": column.slice(1)})], options("s1"), schema)
    expected = [*column.to_pylist(), *column.to_pylist()[1:]]
    assert [row["s"] for row in client.published[1]] == expected
    write_rows([pa.record_batch({"s": column})], client, options("s1"), STAGED_FOR, schema=schema)


def test_a_dead_letter_shows_a_null_struct_beside_a_text_that_is_none():
    fields = [pa.field("n", pa.int64(), nullable=False)]
    nothing = pa.nulls(1, pa.int64())
    structs = pa.StructArray.from_arrays([nothing], fields=fields, mask=pa.array([True]))
    batch = pa.record_batch({"s": structs, "word": pa.array([b"\xff"]).view(pa.string())})
    schema = StreamSchema.of(batch.schema)
    client = client_with(schema)
    message = append(client, [batch], options("s1", bad_records=DEAD_LETTERS), schema)
    assert message.dead_letter_count == 1
    (letter,) = client.published[99]
    assert json.loads(letter["value"])["s"] is None


def test_dead_letters_show_whatever_there_is():
    schema = StreamSchema.of(
        pa.schema(
            {
                "at": pa.timestamp("us", tz="UTC"),
                "amount": pa.decimal128(10, 2),
                "some": pa.list_(pa.struct({"word": pa.string()})),
                "by_word": pa.map_(pa.string(), pa.string()),
                "word": pa.string(),
            }
        )
    )
    wrong = pa.array([b"\xff", b"\xfe", b"fine"]).view(pa.string())
    kinds = [schema.arrow.field(name).type for name in ("some", "by_word")]
    words = pa.StructArray.from_arrays([wrong[1:]], fields=list(kinds[0].value_type))
    some = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), words, type=kinds[0])
    by_word = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), wrong[2:], wrong[:1])
    columns = [
        pa.array([1], pa.timestamp("us", tz="UTC")),
        pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
        some,
        by_word.cast(kinds[1]),
        pa.array(["\u00e9"]),
    ]
    client = client_with(schema)
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    append(client, [batch], options("s1", bad_records=DEAD_LETTERS), schema)
    (letter,) = client.published[99]
    assert json.loads(letter["value"]) == {
        "at": "1970-01-01T00:00:00.000001+00:00",
        "amount": "1.50",
        "some": [{"word": {"base64": "/g=="}}, {"word": "fine"}],
        "by_word": [["fine", {"base64": "/w=="}]],
        "word": "\u00e9",
    }
