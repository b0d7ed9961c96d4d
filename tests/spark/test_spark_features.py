"""Features of Spark that no other test tries; Spark itself refuses most of them."""

from __future__ import annotations

import json

import pytest

from tests.support.spark import append_values, numbered


@pytest.fixture
def stream(new_streams, client):
    (name,) = new_streams(1)
    append_values(client, name, numbered(0, 3))
    return name


@pytest.fixture
def view(sbp):
    """A name for a view, which is dropped after the test."""
    yield "view_of_features"
    sbp.spark.catalog.dropTempView("view_of_features")


@pytest.fixture
def table(sbp):
    """A table without options."""
    sbp.spark.sql("CREATE TABLE table_of_features (value BINARY) USING sbp")
    yield "table_of_features"
    sbp.spark.sql("DROP TABLE table_of_features")


@pytest.mark.spark_feature("a schema that does not fit is refused at `load()`", works=False)
def test_a_schema_is_not_shown_to_the_source_by_load(sbp):
    """A source that is asked has more to refuse: it has no endpoint and no streams."""
    for reader in (sbp.spark.read, sbp.spark.readStream):
        assert reader.format("sbp").schema("price int").load().columns == ["price"]


@pytest.mark.spark_feature("limit push-down", works=False)
def test_a_limit_is_not_pushed_down(sbp, stream):
    plan = sbp.load(stream).limit(1)._jdf.queryExecution().optimizedPlan().toString()
    assert plan.splitlines()[0] == "GlobalLimit 1"


@pytest.mark.spark_feature("modes `errorifexists` (the default) and `ignore`", works=False)
@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_modes_that_ask_whether_there_is_something(sbp, stream, mode, refused):
    writer = sbp.load(stream).select("value").write.format("sbp").mode(mode)
    with refused("UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.options(endpoint=sbp.endpoint, stream=stream).save()


@pytest.mark.spark_feature("`partitionBy`", works=False)
def test_columns_that_partition_a_write(sbp, stream, refused):
    writer = sbp.load(stream).select("key", "value").write.format("sbp").mode("append")
    writer = writer.options(endpoint=sbp.endpoint, stream=stream).partitionBy("key")
    with refused("do not match the existing table's"):
        writer.save()


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [
        pytest.param(
            {"continuous": "1 second"},
            "sbp does not support continuous processing",
            marks=pytest.mark.spark_feature("trigger `continuous`", works=False),
        ),
        pytest.param(
            {"realTime": "5 seconds"},
            "REAL_TIME_MODE",
            marks=pytest.mark.spark_feature("trigger `realTime`", works=False),
        ),
    ],
)
def test_triggers_without_micro_batches(sbp, stream, checkpoint, trigger, reason, refused):
    frame = sbp.load_stream(stream).select("value")
    with refused(reason):
        sbp.start_copy(frame, stream, checkpoint, **trigger)


@pytest.mark.spark_feature("output mode `update`", works=False)
def test_update_mode(sbp, stream, checkpoint, refused):
    writer = sbp.load_stream(stream).select("value").writeStream.format("sbp")
    writer = writer.options(endpoint=sbp.endpoint, stream=stream).outputMode("update")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    with refused("sbp does not support Update mode"):
        query.awaitTermination(60)


@pytest.mark.spark_feature("offsets in `lastProgress`")
@pytest.mark.spark_feature("a readable `description` in `lastProgress`", works=False)
@pytest.mark.spark_feature("`metrics` of a source in `lastProgress`", works=False)
def test_what_the_progress_shows(sbp, stream, new_streams, client, checkpoint):
    (copy,) = new_streams(1)
    (info,) = client.describe_streams([stream])
    query = sbp.copy(sbp.load_stream(stream).select("value"), copy, checkpoint)
    (source,) = query.lastProgress["sources"]
    for offset in (source["endOffset"], source["latestOffset"]):
        assert json.loads(offset)["streams"].startswith(f"{info.stream_id}=3@")
    assert "PythonMicroBatchStream" in source["description"]
    assert source["metrics"] == {}


@pytest.mark.spark_feature("`INSERT INTO` a temporary view")
def test_a_view_to_insert_into(sbp, view, new_streams):
    (stream,) = new_streams(1)
    options = f"endpoint '{sbp.endpoint}', stream '{stream}'"
    sbp.spark.sql(f"CREATE TEMPORARY VIEW {view} (value STRING) USING sbp OPTIONS ({options})")
    sbp.spark.sql(f"INSERT INTO {view} VALUES ('a')")
    assert sbp.values(stream) == [b"a"]


@pytest.mark.spark_feature("`insertInto`", works=False)
def test_insert_into_drops_options(sbp, stream, table, refused):
    writer = sbp.load(stream).select("value").write
    with refused("endpoint is missing"):
        writer.options(endpoint=sbp.endpoint, stream=stream).insertInto(table)


@pytest.mark.spark_feature("``SELECT * FROM sbp.`orders` ``", works=False)
def test_a_stream_is_no_file(sbp, stream, refused):
    with refused("UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"):
        sbp.spark.sql(f"SELECT * FROM sbp.`{stream}`")


@pytest.mark.spark_feature("`DELETE`, `UPDATE`", works=False)
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM {} WHERE value IS NULL", "does not support deletes"),
        ("UPDATE {} SET value = NULL", "does not support UPDATE TABLE"),
    ],
)
def test_rows_are_not_changed(sbp, table, statement, reason, refused):
    with refused(reason):
        sbp.spark.sql(statement.format(table))
