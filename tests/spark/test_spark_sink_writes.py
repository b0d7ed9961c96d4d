"""The options of the sink, from a DataFrame to streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from sbp_spark import register
from tests.support.spark import append_values, numbered, wait_until_over


def test_streams_are_created_by_tasks_that_race(sbp, client):
    frame = sbp.spark.range(200).selectExpr(
        "concat('made-', id % 5) as stream", "cast(id as string) as value"
    )
    options = {"createStreams": "true", "createRetentionPeriod": "7d"}
    sbp.save(frame.repartition(4), **options)
    infos = client.describe_streams([f"made-{number}" for number in range(5)])
    assert {info.retention_period_ms for info in infos} == {7 * 86_400_000}
    assert sum(len(sbp.values(info.name)) for info in infos) == 200
    sbp.save(frame.selectExpr("value"), stream="made-by-option", **options)
    assert len(sbp.values("made-by-option")) == 200


@pytest.mark.spark_feature("modes `append` and `overwrite`")
def test_overwriting_trims_what_was_there_before(sbp, new_streams, client):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 10))
    writer = sbp.spark.createDataFrame([("new",)], "value string").write.format("sbp")
    writer = writer.options(endpoint=sbp.endpoint, stream=stream, truncate="true")
    writer.mode("overwrite").save()
    rows = sbp.load(stream).select("offset", "value").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(10, b"new")]


def test_threads_of_a_micro_batch_write_to_several_streams(sbp, new_streams, client, checkpoint):
    origin, *targets = new_streams(3)
    append_values(client, origin, numbered(0, 5))

    def write_all(frame, batch_id):
        started = {"initializer": register, "initargs": (frame.sparkSession,)}
        with ThreadPoolExecutor(len(targets), **started) as threads:
            list(
                threads.map(lambda target: sbp.save(frame.select("value"), stream=target), targets)
            )

    writer = sbp.load_stream(origin).writeStream.foreachBatch(write_all)
    writer = writer.option("checkpointLocation", str(checkpoint))
    wait_until_over(writer.trigger(availableNow=True).start())
    for target in targets:
        assert sorted(sbp.values(target)) == numbered(0, 5)


def test_a_thread_keeps_the_session_that_it_has(sbp):
    other = sbp.spark.newSession()
    other.conf.set("test.session", "other")
    register(other)
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active.conf.get("test.session", "first") == "first"
