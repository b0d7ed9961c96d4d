"""The inputs of `sbp produce` in each format, as rows of a stream."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.app.encoding import Target
from sbp_core.cli.formats import maybe_format_of
from sbp_core.cli.produce.inputs import Defaults, Parsing, opened, reader_of
from sbp_core.errors import ConfigurationError, RecordBatchError, SchemaError
from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.stream_decoder import describe_rows

PLAIN = Target("plain", 1, None, 1_000)
COLUMNS = StreamSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            ("name", pa.string()),
            ("price", pa.decimal128(9, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
        ]
    )
)
TYPED = Target("typed", 1, COLUMNS, 1_000)
NOW = Defaults(timestamp_us=5)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Returns the rows of an input as mappings; `found` gets them, also those before an error."""
    path = tmp_path_factory.mktemp("inputs") / "input"

    def rows_of(form, data, target=PLAIN, found=None, defaults=NOW):
        path.write_bytes(data)
        found = [] if found is None else found
        with opened(str(path)) as source:
            for piece in reader_of(form)(source, Parsing(target, defaults)):
                found += [] if piece is None else piece.to_pylist()
        return found

    return rows_of


def plain(value, key=None, headers=None, timestamp_us=5):
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([each], kind)
            for each, kind in zip(
                (key, value, headers, timestamp_us), ROWS_SCHEMA.types, strict=True
            )
        ],
        schema=ROWS_SCHEMA,
    )
    return rows.to_pylist()[0]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", None),
        ("a.txt", "lines"),
        ("csv", None),
        ("a.NDJSON", "json"),
        ("a.csv", "csv"),
        ("b.c/a.parquet", "parquet"),
        ("a.feather", "arrow"),
    ],
)
def test_the_suffix_of_a_file_chooses_the_format(path, expected):
    assert maybe_format_of(path) == expected


BYTES = st.none() | st.binary(max_size=8)
RECORDS = st.lists(
    st.tuples(
        BYTES,
        BYTES,
        st.none() | st.lists(st.tuples(st.text(max_size=4), BYTES), max_size=3),
        st.none() | st.integers(0, 2**47),
    ),
    max_size=6,
)


@given(RECORDS)
def test_what_consume_prints_is_read_again(read, records):
    columns = zip(*records, strict=True) if records else [()] * 4
    rows = pa.RecordBatch.from_arrays(
        [pa.array([*each], kind) for each, kind in zip(columns, ROWS_SCHEMA.types, strict=True)],
        schema=ROWS_SCHEMA,
    )
    printed = "\n".join(map(json.dumps, describe_rows("orders", 7, rows)))
    assert read("json", printed.encode()) == rows.to_pylist()


TEXTS = st.none() | st.text(max_size=5)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=8))
def test_csv_keeps_nulls_and_texts_apart(read, records):
    text = io.StringIO()
    text.write("value,key,header.h\n")
    for record in records:
        quoted = ["" if each is None else '"' + each.replace('"', '""') + '"' for each in record]
        text.write(",".join(quoted) + "\n")
    expected = [
        plain(
            *(None if each is None else each.encode() for each in record[:2]),
            None if record[2] is None else [("h", record[2].encode())],
        )
        for record in records
    ]
    assert read("csv", text.getvalue().encode()) == expected


def test_columns_of_csv_have_the_types_of_the_schema(read):
    text = b'\xef\xbb\xbfname,id,at,price\r\n"a\r\nb",1,2025-01-31T09:30:00Z,1.5\r\n\r\n,2,,\r\n'
    first, second = read("csv", text, TYPED)
    assert (first["id"], first["name"], str(first["price"])) == (1, "a\r\nb", "1.50")
    assert first["at"].isoformat() == "2025-01-31T09:30:00+00:00"
    assert second == {"id": 2, "name": None, "price": None, "at": None}


def test_plain_records_have_times_and_headers_in_csv(read):
    text = b"timestamp,value,header.a,header.b\n1970-01-01T00:00:01,v,1,2\n,,,3\n"
    assert read("csv", text) == [
        plain(b"v", headers=[("a", b"1"), ("b", b"2")], timestamp_us=1_000_000),
        plain(None, headers=[("b", b"3")]),
    ]


@pytest.mark.parametrize(
    ("form", "target", "data", "ids", "fault"),
    [
        ("csv", TYPED, b"id\n1\n2\nx\n4\ny\n", [1, 2], "line 4: column id: CSV conversion"),
        ("csv", TYPED, b'id,name\n1,a\n\n2,"b\n"\n3\n', [1, 2], "line 6: Expected 2 columns"),
        ("csv", TYPED, b"id,name\n1,a\n,b\n", [1], "line 3: column id is required"),
        ("csv", TYPED, b'id,name\n1,a\n2,"b\n3,c\n', [1], "line 3: a quote is never closed"),
        ("csv", TYPED, b"id,price\n1,1.5\n2,1.555\n", [1], "line 3: column price: Rescaling"),
        ("json", TYPED, b'{"id": 1}\n\n{"id": 2}\n{"id": "x"}\n', [1, 2], "line 4: id: expected"),
        ("json", TYPED, b'{"id": 1}\n{"i": 2}\n{', [1], "line 2: unknown column"),
        ("json", TYPED, b'{"id": 1}\n{"id": 2\n', [1], "line 2: it is no JSON"),
    ],
)
def test_rows_before_the_first_fault_are_read(read, form, target, data, ids, fault):
    found = []
    with pytest.raises(RecordBatchError, match=fault):
        read(form, data, target, found)
    assert [each["id"] for each in found] == ids


@pytest.mark.parametrize(
    ("target", "names", "fault"),
    [
        (TYPED, b"id,other", "column other is none of the stream"),
        (TYPED, b"id,id", "column id occurs twice"),
        (PLAIN, b"key", "there is no column value"),
        (PLAIN, b"value,other", "column other is no part of a record"),
        (PLAIN, b"value,\xff", "no UTF-8"),
        (
            Target("nested", 1, StreamSchema.of(pa.schema([("a", pa.list_(pa.int8()))])), 1_000),
            b"a",
            "which CSV does not have",
        ),
    ],
)
def test_columns_of_csv_that_the_stream_does_not_have(read, target, names, fault):
    with pytest.raises(SchemaError, match=fault):
        read("csv", names + b"\n", target)


def written(table, form):
    sink = pa.BufferOutputStream()
    if form == "parquet":
        pq.write_table(table, sink)
    else:
        new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
        with new(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_columns_of_tables_are_found_by_name(read, kind):
    form = "parquet" if kind == "parquet" else "arrow"
    table = pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int16())})
    rows = read(form, written(table, kind), TYPED)
    assert [(each["id"], each["name"]) for each in rows] == [(1, "a"), (2, None)]
    assert rows[0].keys() == set(COLUMNS.arrow.names)
    assert read(form, written(pa.table({"value": ["v"]}), kind)) == [plain(b"v")]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("data", [b"", b"no table", b"ARROW1 is not all of it", b"PAR1"])
def test_what_is_no_table_is_refused(read, form, data):
    with pytest.raises(ConfigurationError, match="cannot be read as "):
        read(form, data)


def test_records_that_bring_none_get_key_headers_and_time(read):
    defaults = Defaults(b"k", (("h", b"1"), ("h", b"2")), 9)
    lines = b'{"value": "a"}\n{"value": "b", "key": "", "headers": [], "timestamp": null}\n'
    assert read("json", lines, defaults=defaults) == [
        plain(b"a", b"k", [("h", b"1"), ("h", b"2")], 9),
        plain(b"b", b"", [], None),
    ]
    assert read("lines", b"c\n", defaults=defaults) == [
        plain(b"c", b"k", [("h", b"1"), ("h", b"2")], 9)
    ]
