"""DataFrames of any columns, written to typed streams."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql.types import LongType, StructType

from sbp_core.client import StreamSpec
from tests.support.data.typed import stored_versions, typed_rows
from tests.support.spark import append_values, forget_commit, numbered, wait_until_over
from tests.support.spark_clusters import COMMITTER, end_python_workers

NUMBERED = "cast(cast(value as string) as int) as n"


def save(sbp, frame, stream, **options):
    sbp.save(frame, stream=stream, encoding="columns", **options)


def test_later_writes_fit_by_name_also_at_least_once(sbp, new_streams, client):
    (stream,) = new_streams(1)
    delivery = "at-least-once"
    frame = sbp.spark.range(10).selectExpr("id", "cast(null as string) as text", "1.5 as rate")
    save(sbp, frame, stream, delivery=delivery)
    narrow = sbp.spark.range(10, 20).selectExpr("cast(1.5 as decimal(2, 1)) as rate", "id")
    save(sbp, narrow, stream, delivery=delivery)
    table = typed_rows(client, stream).sort_by("id")
    assert table.column("id").to_pylist() == list(range(20))
    assert set(table.column("rate").to_pylist()) == {Decimal("1.5")}
    assert table.column("text").null_count == 20


def copy(sbp, frame, stream, checkpoint, **options):
    """Write what is available now of a streaming DataFrame."""
    writer = frame.writeStream.format("sbp").option("checkpointLocation", str(checkpoint))
    writer = writer.options(endpoint=sbp.endpoint, stream=stream, encoding="columns", **options)
    wait_until_over(writer.trigger(availableNow=True).start())


def test_a_routing_column_spreads_as_spark_computes_it(sbp, new_streams, client):
    streams = new_streams(3)
    frame = sbp.spark.range(500).selectExpr(
        "id",
        "cast(id % 40 as int) as account",
        "id % 7 = 0 as flag",
        "date_from_unix_date(id) as day",
    )
    for column in ("account", "flag", "day"):
        options = {"encoding": "columns", "routingColumn": column, "truncate": "true"}
        writer = frame.write.format("sbp").options(endpoint=sbp.endpoint, **options)
        writer.option("streams", ",".join(streams)).mode("overwrite").save()
        expected = frame.selectExpr("id", f"crc32(cast({column} as string)) % 3 as place").collect()
        found = {
            number: place
            for place, name in enumerate(streams)
            for number in typed_rows(client, name).column("id").to_pylist()
        }
        assert found == {row.id: row.place for row in expected}


def test_nulls_are_looked_at_one_by_one_and_kept_as_json(sbp, new_streams, client):
    stream, letters = new_streams(2)
    save(sbp, sbp.spark.range(3), stream)
    frame = sbp.spark.range(3, 7).selectExpr("if(id = 5, null, id) as id").coalesce(1)
    with pytest.raises(PySparkException, match="column id is null"):
        save(sbp, frame, stream)
    save(sbp, frame, stream, onBadRecord=f"deadletter:{letters}")
    assert sorted(typed_rows(client, stream).column("id").to_pylist()) == [0, 1, 2, 3, 4, 6]
    (letter,) = sbp.load(letters, includeHeaders="true").collect()
    assert json.loads(bytes(letter.value)) == {"id": None}
    assert b"column id is null" in letter.headers["sbp.error"]
    assert len(stored_versions(client, stream)) == 1


def test_structs_that_are_null_have_no_fields_that_could_be_missing(sbp, new_streams):
    (stream,) = new_streams(1)
    found = sbp.spark.sql("select id, named_struct('city', 'x', 'zip', id) place from range(2)")
    joined = sbp.spark.range(4).join(found, "id", "left")
    frame = joined.selectExpr(
        "id", "place", "array(place, null) some", "map('k', place) by_name", "struct(place) within"
    )
    schema = StructType().add("id", LongType()).add("features", VectorUDT())
    vectors = [(0, DenseVector([0.5])), (1, None), (2, SparseVector(3, [1], [2.0])), (3, None)]
    frame = frame.join(sbp.spark.createDataFrame(vectors, schema), "id")
    save(sbp, frame, stream)
    read = sbp.load(stream).orderBy("id")
    assert read.drop("features").collect() == frame.orderBy("id").drop("features").collect()
    places = [row.place and tuple(row.place) for row in read.collect()]
    assert places == [("x", 0), ("x", 1), None, None]
    assert [row.features for row in read.collect()] == [vector for _, vector in vectors]


def test_a_query_goes_on_with_a_grown_schema(sbp, new_streams, client, checkpoint):
    source, target = new_streams(2)
    append_values(client, source, numbered(0, 50))
    frame = sbp.load_stream(source, maxRecordsPerTrigger=20)
    copy(sbp, frame.selectExpr(NUMBERED), target, checkpoint)
    append_values(client, source, numbered(50, 80))
    grown = frame.selectExpr("cast(cast(value as string) as bigint) as n", "'x' as word")
    with pytest.raises(PySparkException, match="set mergeSchema=true"):
        copy(sbp, grown, target, checkpoint)
    copy(sbp, grown, target, checkpoint, mergeSchema="true")
    append_values(client, source, numbered(80, 90))
    copy(sbp, frame.selectExpr(NUMBERED), target, checkpoint)
    table = typed_rows(client, target).sort_by("n")
    assert table.column("n").to_pylist() == list(range(90))
    words = [None] * 50 + ["x"] * 30 + [None] * 10
    assert table.column("word").to_pylist() == words
    assert table.schema.field("n").type == pa.int64()


def test_a_stream_made_again_without_a_column_ends_the_query(sbp, new_streams, client, checkpoint):
    """Its schema is another one then: a column that it lacks is never left out silently."""
    source, target = new_streams(2)
    append_values(client, source, numbered(0, 3))
    frame = sbp.load_stream(source).selectExpr(NUMBERED, "'precious' as word")
    copy(sbp, frame, target, checkpoint)
    (old,) = client.describe_streams([target])
    client.delete_streams([old.stream_id])
    client.create_streams([StreamSpec(target)])
    save(sbp, sbp.spark.sql("select cast(7 as int) as n"), target)
    append_values(client, source, numbered(3, 5))
    assert end_python_workers(COMMITTER)  # as Spark ends idle ones: a new worker aborts
    with pytest.raises(PySparkException, match=r"\+ column word string is new"):
        copy(sbp, frame, target, checkpoint)
    assert typed_rows(client, target).to_pylist() == [{"n": 7}]
    copy(sbp, frame, target, checkpoint, mergeSchema="true")
    table = typed_rows(client, target).sort_by("n")
    assert table.to_pylist()[:2] == [{"n": n, "word": "precious"} for n in (3, 4)]


def test_a_replay_is_the_same_in_other_partitions_and_types(sbp, new_streams, client, checkpoint):
    source, target = new_streams(2)
    append_values(client, source, numbered(0, 100))
    frame = sbp.load_stream(source)
    columns = [NUMBERED, "array(offset) as list", "cast(value as string) as text"]
    copy(sbp, frame.selectExpr(*columns), target, checkpoint)
    forget_commit(checkpoint)
    again = sbp.load_stream(source, minPartitions=3).selectExpr(
        "cast(null as string) as new", *columns[::-1]
    )
    again = again.withColumn("n", again.n.cast("bigint")).repartition(5)
    options = {"onReplayMismatch": "fail", "mergeSchema": "true"}
    copy(sbp, again, target, checkpoint, **options)
    table = typed_rows(client, target)
    assert sorted(table.column("n").to_pylist()) == list(range(100))
    forget_commit(checkpoint)
    with pytest.raises(PySparkException, match="was committed before, with 100 records"):
        copy(sbp, again.withColumn("n", again.n + 1), target, checkpoint, **options)
    assert typed_rows(client, target).num_rows == 100


def test_streams_are_created_with_their_schema(sbp, client):
    frame = sbp.spark.range(10)
    options = {"streams": "typed-made-1,typed-made-2", "createStreams": "true"}
    sbp.save(frame.repartition(3), encoding="columns", **options)
    found = [typed_rows(client, name) for name in options["streams"].split(",")]
    ids = pa.concat_tables(found).column("id").to_pylist()
    assert sorted(ids) == list(range(10))
    assert all(table.num_rows for table in found)
