"""Typed streams as DataFrames: columns, versions of schemas, metadata, and what is refused."""

from __future__ import annotations

import pyarrow as pa
from chispa import assert_df_equality
from typed_streams import append_columns, rows_in, schema_of

PERSON = schema_of(id=pa.int32(), name=pa.string())


def people(first, stop):
    return rows_in(PERSON, [{"id": n, "name": f"name {n}"} for n in range(first, stop)])


def test_a_typed_stream_is_read_as_its_columns(sbp, new_streams, client):
    (stream,) = new_streams(1)
    append_columns(client, stream, people(0, 5))
    expected = sbp.spark.createDataFrame(
        [(n, f"name {n}") for n in range(5)], "id int, name string"
    )
    assert_df_equality(sbp.load(stream), expected)


def test_a_typed_stream_is_read_by_a_streaming_query(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    append_columns(client, stream, people(0, 5))
    for stop in (5, 8):
        frame = sbp.load_stream(stream).selectExpr("concat(id, ' ', name) as value")
        sbp.copy(frame, copy, checkpoint)
        assert sbp.values(copy) == [b"%d name %d" % (n, n) for n in range(stop)]
        append_columns(client, stream, people(5, 8))
