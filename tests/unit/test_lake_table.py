"""Tables of streams: what they hold, who may commit to them, and which files they leave."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import index_by_id

from sbp_core.app.record import Batch
from sbp_core.client.types import StreamInfo
from sbp_core.errors import ConfigurationError, SchemaError
from sbp_core.lake.catalog import describe_error
from sbp_core.lake.columns import PLAIN, rows_of, table_schema
from sbp_core.lake.files import read_file
from sbp_core.lake.table import LakeConflictError, LakeTable

STREAM = StreamInfo(7, "orders", 1, 0, created_at_ms=5)
NESTED = pa.schema(
    [
        pa.field("small", pa.int8()),
        pa.field("short", pa.int16()),
        pa.field("at", pa.time64("ns")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("counts", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int8())))),
        pa.field(
            "place", pa.struct([pa.field("x", pa.float64()), pa.field("at", pa.time64("ns"))])
        ),
    ]
)
FULL = {
    "small": 1,
    "short": 2,
    "at": time(1, 2, 3, 4),
    "price": Decimal("1.50"),
    "local": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - a local time
    "tags": ["a", None],
    "counts": [("k", [1, None]), ("n", None)],
    "place": {"x": 0.5, "at": time(4, 3, 2, 1)},
}
EMPTY = {**FULL, "tags": [], "counts": [], "place": {"x": None, "at": None}}
NULLS = dict.fromkeys(FULL)


@pytest.fixture
def catalog(tmp_path):
    return SqlCatalog("sbp", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())


def typed(rows, start=0, schema=NESTED, second=0):
    times = pa.array([(second + each) * 1_000_000 for each in range(len(rows))], pa.int64())
    batch = pa.RecordBatch.from_pylist(rows, schema)
    return Batch("orders", start, batch, times.cast(pa.timestamp("us", tz="UTC")), True)


def plain(values, start=0):
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.map_(pa.string(), pa.binary())),
        ]
    )
    rows = [{"key": None, "value": each, "headers": None} for each in values]
    return replace(typed(rows, start, schema), is_typed=False)


def append(table, *batches, columns=NESTED, expected=None):
    rows = [rows_of(each, columns) for each in batches]
    appended = table.append(rows[0].schema, batches[0].base_offset, expected)
    assert appended.add(rows)
    appended.commit(None)


def open_table(catalog, schema=PLAIN):
    return LakeTable.open(catalog, "lake.orders", STREAM, schema)


def files_of(catalog):
    return catalog.load_table("lake.orders").inspect.files()["file_path"].to_pylist()


def stored(catalog):
    io = catalog.load_table("lake.orders").io
    tables = [read_file(io, each) for each in files_of(catalog)]
    return pa.concat_tables(tables, promote_options="default").sort_by("_offset")


def test_nulls_and_empty_values_of_every_type_are_told_apart_after_compaction_too(catalog):
    table = open_table(catalog, table_schema(NESTED))
    for at in range(20):
        rows = typed([FULL, EMPTY, NULLS], 3 * at)
        append(table, rows, expected=3 * at or None)
    assert len(files_of(catalog)) == 20
    table.compact(1 << 20)
    assert len(files_of(catalog)) == 1
    found = stored(catalog)
    assert found["_offset"].to_pylist() == [*range(60)]
    assert found.drop_columns(["_offset", "_timestamp"]).to_pylist() == 20 * [FULL, EMPTY, NULLS]
    assert table.landed().end_offset == 60


def test_every_column_of_a_file_has_the_id_of_the_table(catalog):
    append(open_table(catalog, table_schema(NESTED)), typed([FULL]))
    (path,) = files_of(catalog)
    table = catalog.load_table("lake.orders")
    with table.io.new_input(path).open() as file:
        text = str(pq.ParquetFile(file).schema)
    assert {int(each) for each in re.findall(r"field_id=(\d+)", text)} == set(
        index_by_id(table.schema())
    )


def test_a_file_is_of_one_day(catalog):
    append(open_table(catalog), plain([b"a"]), plain([b"b"], 1))
    append(open_table(catalog), replace_times(plain([b"c", b"d"], 2)), expected=2)
    days = catalog.load_table("lake.orders").inspect.files()["partition"].to_pylist()
    assert len(days) == 3
    assert stored(catalog)["value"].to_pylist() == [b"a", b"b", b"c", b"d"]


def replace_times(batch):
    times = pa.array([-1, 86_400_000_000], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return replace(batch, times=times)


def test_records_from_before_the_schema_keep_their_own_columns(catalog):
    schema = pa.schema([("id", pa.int64())])
    table = open_table(catalog, table_schema(schema))
    rows = [rows_of(each, schema) for each in (plain([b"old"]), typed([{"id": 3}], 1, schema))]
    first = table.append(rows[0].schema, 0, None)
    assert not first.add(rows)
    assert first.end_offset == 1
    first.commit(None)
    append(table, typed([{"id": 3}], 1, schema), columns=schema, expected=1)
    found = stored(catalog)
    assert found["value"].to_pylist() == [b"old", None]
    assert found["id"].to_pylist() == [None, 3]
    conflict = pa.schema([("value", pa.int64())])
    with pytest.raises(SchemaError, match="value"):
        append(table, typed([{"value": 3}], 2, conflict), columns=conflict, expected=2)


def test_what_was_begun_and_given_up_leaves_no_file(catalog, tmp_path):
    table = open_table(catalog)
    append(table, plain([b"a"]))
    begun = table.append(PLAIN, 1, 1)
    assert begun.add([rows_of(plain([b"b"] * 10, 1), None)])
    begun.discard()
    assert len([*tmp_path.rglob("*.parquet")]) == 1
    append(table, plain([b"c"], 1), expected=1)
    assert stored(catalog)["value"].to_pylist() == [b"a", b"c"]


def test_a_commit_for_another_offset_is_refused(catalog):
    first, second = open_table(catalog), open_table(catalog)
    append(first, plain([b"a", b"b"]))
    with pytest.raises(LakeConflictError):  # the catalog refuses it
        append(second, plain([b"a", b"b"]))
    assert len(files_of(catalog)) == 1
    second = open_table(catalog)
    append(first, plain([b"c"], 2), expected=2)
    second.expire(datetime.now(UTC) - timedelta(days=1))  # it knows the newest snapshot now
    with pytest.raises(LakeConflictError):
        append(second, plain([b"c"], 2), expected=2)
    assert stored(catalog)["_offset"].to_pylist() == [0, 1, 2]


def test_two_processes_make_one_table(tmp_path, catalog):
    class SlowCatalog(SqlCatalog):
        def create_namespace_if_not_exists(self, namespace, properties=None):
            append(open_table(catalog), plain([b"a"]))  # the other process is faster
            super().create_namespace_if_not_exists(namespace)

    slow = SlowCatalog("sbp", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    assert open_table(slow).landed().end_offset == 1


def test_two_processes_remove_snapshots(catalog):
    first = open_table(catalog)
    for at in range(3):
        append(first, plain([b"a"], at), expected=at or None)
    second, soon = open_table(catalog), datetime.now(UTC) + timedelta(hours=1)
    first.expire(soon)
    second.expire(soon)
    assert stored(catalog)["_offset"].to_pylist() == [0, 1, 2]


def test_small_commits_are_compacted_only_together(catalog):
    table = open_table(catalog)
    for at in range(40):
        append(table, plain([b"%d" % at], at), expected=at or None)
        table.compact(1 << 20)
    assert len(files_of(catalog)) <= 16
    table.compact(100)  # larger than this
    assert stored(catalog)["value"].to_pylist() == [b"%d" % each for each in range(40)]


def test_of_old_files_the_table_keeps_what_it_refers_to_and_no_others(catalog, tmp_path):
    table = open_table(catalog)
    for at in range(3):
        append(table, plain([b"%d" % at], at), expected=at or None)
    folder = tmp_path / "lake" / "orders"
    metadata, data = folder / "metadata", folder / "data"
    old = [metadata / "00009-x.metadata.json", metadata / "snap-1-x.avro", metadata / "x-m0.avro"]
    old += [data / "y.parquet", metadata / "of-others.puffin"]
    young = [metadata / "00010-x.metadata.json", data / "x.parquet"]
    for each in (*old, *young):
        each.write_bytes(b"")
    for each in {*tmp_path.rglob("*.*")} - {*young}:
        os.utime(each, (0, 0))
    table.expire(datetime.now(UTC) - timedelta(days=1))
    assert [each.exists() for each in old] == [False] * 4 + [True]
    assert all(each.exists() for each in young)
    loaded = catalog.load_table("lake.orders")
    log = [each.metadata_file for each in loaded.metadata.metadata_log]
    assert len(log) > 1
    assert all(Path(each.removeprefix("file://")).exists() for each in log)
    assert stored(catalog).num_rows == 3


def test_a_table_of_something_else_is_refused(catalog):
    append(open_table(catalog), plain([b"a"]))
    with pytest.raises(ConfigurationError, match="created again"):
        LakeTable.open(catalog, "lake.orders", replace(STREAM, created_at_ms=6), PLAIN)
    other = catalog.create_table("lake.other", PLAIN)
    other.append(PLAIN.empty_table())
    with pytest.raises(ConfigurationError, match="another table"):
        LakeTable.open(catalog, "lake.other", STREAM, PLAIN)


def test_errors_do_not_show_secrets():
    properties = {"uri": "postgresql://me:pass-w@host/db", "s3.secret-access-key": "abc-secret"}
    catalog = SqlCatalog("sbp", uri="sqlite://", warehouse="/w")
    catalog.properties = {**properties, "warehouse": "/w"}
    error = OSError("403 for abc-secret at postgresql://me:pass-w@host/db below /w\n[SQL: ...]")
    assert describe_error(error, catalog) == (
        "OSError: 403 for *** at postgresql://me:***@host/db below /w"
    )
