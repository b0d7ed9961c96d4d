"""Records in the console: which fit a filter, how they look, and what files have of them."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from sbp_core.client import SchemaVersion, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.records import ROWS_SCHEMA, StreamSchema
from sbp_core.records.envelope import decode_envelope
from sbp_core.records.stream_decoder import Records, StreamDecoder
from sbp_core.web.console.record_search import Found, Piece, RecordFilter, check_column
from sbp_core.web.console.records import (
    HEX_BYTES_MAX,
    SHOWN_CHARACTERS,
    describe_field,
    make_batch,
    make_table,
    to_arrow,
    to_csv,
    to_json_lines,
)

PLAIN = {
    "stream": "s",
    "offset": 7,
    "timestamp": "2026-01-31T09:30:00.000000+00:00",
    "key": "user-3",
    "value": '{"city": "Bern"}',
    "headers": [["trace", "t1"], ["empty", None]],
}
TYPED = {
    "stream": "s",
    "offset": 8,
    "columns": {"id": 3, "place": {"city": "Oslo", "at": None}, "a.b": True},
}


@pytest.mark.parametrize(
    ("wanted", "fitting"),
    [
        (RecordFilter(), [7, 8]),
        (RecordFilter(text="BERN"), [7]),
        (RecordFilter(text="oslo"), [8]),
        (RecordFilter(text="offset"), []),
        (RecordFilter(text='{"city": "bern"}'), [7]),
        (RecordFilter(text='"city": "oslo"'), [8]),
        (RecordFilter(text="t1"), [7]),
        (RecordFilter(key="user-3"), [7]),
        (RecordFilter(key="user"), []),
        (RecordFilter(header="trace"), [7]),
        (RecordFilter(header="trace=t1"), [7]),
        (RecordFilter(header="trace=t"), []),
        (RecordFilter(header="empty"), [7]),
        (RecordFilter(column="id=3"), [8]),
        (RecordFilter(column="place.city=Oslo"), [8]),
        (RecordFilter(column="place.at"), []),
        (RecordFilter(column="a.b=true"), [8]),
        (RecordFilter(column="id=3", text="bern"), []),
    ],
)
def test_a_record_fits_if_all_conditions_hold(wanted, fitting):
    assert [each["offset"] for each in (PLAIN, TYPED) if wanted.fits(each)] == fitting


def test_a_column_that_no_version_has_is_named_with_those_that_there_are():
    def version(*names):
        schema = pa.schema([(name, pa.int64()) for name in names])
        return SchemaVersion(1, 1, StreamSchema.of(schema), 0)

    versions = [version("id"), version("id", "at")]
    for condition in ("id", "at=3", "at.year=2026"):
        check_column(condition, versions)
    with pytest.raises(ConfigurationError, match=r"no column 'price': the stream has id, at$"):
        check_column("price=3", versions)
    with pytest.raises(ConfigurationError, match=r"c19, and 5 more$"):
        check_column("price", [version(*(f"c{each}" for each in range(25)))])
    with pytest.raises(ConfigurationError, match="the records of the stream have none"):
        check_column("price", [])


def plain_rows(*values):
    count = len(values)
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(count, ROWS_SCHEMA.field("headers").type),
        pa.array([0] * count, ROWS_SCHEMA.field("timestamp").type),
    ]
    return pa.record_batch(columns, schema=ROWS_SCHEMA)


def found_of(*batches):
    found, offset = Found(0, 0), 0
    for rows, is_typed in batches:
        described = tuple(Records(offset, rows, is_typed).describe("s"))
        found.pieces.append(Piece(described, rows))
        offset += rows.num_rows
    found.end = offset
    return found


def shown(found, name):
    """Return a field of the first record as its page shows it."""
    return describe_field(name, found.records[0][name])


MIXED = found_of(
    (plain_rows(b"a,b", None, b"\xff\xfe"), False),
    (pa.record_batch({"id": [1], "offset": ["x"]}), True),
)


def test_a_table_has_the_fields_of_all_its_records():
    headings, rows = make_table(MIXED)
    assert headings == ["timestamp", "key", "value", "headers", "id", "offset"]
    assert [cells[2] for _, cells in rows] == ["a,b", None, "0xfffe", None]
    assert rows[-1] == (3, [None, None, None, None, "1", "x"])


def test_times_are_elements_with_utc():
    at = datetime(2026, 1, 31, 9, 30, 0, 120_000, UTC)
    kinds = {"at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "text": pa.string()}
    data = [pa.array([at]).cast(kinds["at"]), pa.array([at]).cast(kinds["at"]).cast(kinds["local"])]
    rows = pa.record_batch([*data, pa.array(["2026-01-31T09:30Z"])], names=[*kinds])
    ((_, cells),) = make_table(found_of((rows, True)))[1]
    text = "2026-01-31 09:30:00.12 UTC"
    assert cells[0] == f'<time datetime="2026-01-31T09:30:00.12Z" title="{text}">{text}</time>'
    assert not any("<time" in each for each in cells[1:])


def test_a_long_value_is_cut_in_the_table_and_whole_on_its_page():
    value = "x" * (SHOWN_CHARACTERS + 1)
    found = found_of((plain_rows(value.encode()), False))
    assert make_table(found)[1][0][1][2] == f"{'x' * SHOWN_CHARACTERS}..."
    assert shown(found, "value")[2] == value


def test_characters_that_are_not_seen_are_shown_as_escapes():
    value = "\0a\r\n\tb\u202e"
    found = found_of((plain_rows(value.encode()), False))
    assert make_table(found)[1][0][1][2] == r"\x00a\r\n\tb\u202e"
    assert shown(found, "value")[2] == "\\x00a\\r\n\tb\\u202e"
    assert value in to_csv(found).decode()


def test_json_is_laid_out_and_bytes_are_shown_in_hexadecimal():
    assert describe_field("value", PLAIN["value"])[2] == '{\n  "city": "Bern"\n}'
    data = bytes(range(256)) * 20
    _, kind, dump = shown(found_of((plain_rows(data), False)), "value")
    assert kind == f"{len(data)} bytes"
    first, *_, last = dump.split("\n")
    assert first.startswith("00000000  00 01 02")
    assert last == f"... and {len(data) - HEX_BYTES_MAX} more bytes"


def test_text_that_only_looks_like_json_stays_as_it_is():
    deep = "[" * 100_000
    assert describe_field("value", deep)[2] == deep


def test_files_have_what_the_table_shows():
    lines = [json.loads(line) for line in to_json_lines(MIXED).splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 2, 3]
    heading, *rows = csv.reader(io.StringIO(to_csv(MIXED).decode(), newline=""))
    assert heading == ["offset", "timestamp", "key", "value", "headers", "id", "offset"]
    assert [row[3] for row in rows] == ["a,b", "", "0xfffe", ""]
    table = pa.ipc.open_stream(to_arrow(found_of((plain_rows(b"a", b"b"), False)))).read_all()
    assert table.column("offset").to_pylist() == [0, 1]
    assert table.column("value").to_pylist() == [b"a", b"b"]


def test_a_column_called_offset_keeps_its_name_in_an_arrow_file():
    rows = pa.record_batch({"offset": ["x"]})
    table = pa.ipc.open_stream(to_arrow(found_of((rows, True)))).read_all()
    assert table.to_pylist() == [{"_offset": 0, "offset": "x"}]


def test_a_record_of_a_form_is_one_batch_and_its_faults_are_named():
    info = StreamInfo(1, "s", 1, 0, 0)
    batch = make_batch(info, None, {"key": "", "value": "x"})
    (plain,) = StreamDecoder(1, 0).decode(decode_envelope(batch)).rows.to_pylist()
    assert (plain["key"], plain["value"]) == (None, b"x")
    batch = make_batch(info, None, {"key": "k", "value": "x", "headers": "a=1=2\r\nb=\r\n"})
    (plain,) = StreamDecoder(1, 0).decode(decode_envelope(batch)).rows.to_pylist()
    assert (plain["key"], plain["headers"]) == (b"k", [("a", b"1=2"), ("b", b"")])
    with pytest.raises(ConfigurationError, match="headers: write each as name=value"):
        make_batch(info, None, {"headers": "a"})
    schema = StreamSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    assert make_batch(info, schema, {"columns": '{"id": 3}'})
    for wrong, fault in (("{", "it is no JSON"), ('{"di": 3}', "'di'"), ("{}", "id")):
        with pytest.raises(ConfigurationError, match=f"the record: .*{fault}"):
            make_batch(info, schema, {"columns": wrong})
