"""The options of the sink, from a DataFrame to streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from sbp_core.client import StreamSpec
from sbp_spark import register
from tests.support.spark import append_values, numbered, wait_until_over


def test_keys_are_spread_as_spark_computes_it(sbp, new_streams):
    streams = new_streams(3)
    frame = sbp.spark.range(3_000).selectExpr(
        "cast(id % 100 as string) as key", "cast(id as string) as value"
    )
    sbp.save(frame.repartition(2), streams=",".join(streams))
    places = {f"'{name}'": place for place, name in enumerate(streams)}
    cases = " ".join(f"when {place} then {name}" for name, place in places.items())
    read = sbp.load(*streams).selectExpr(
        "stream", f"case crc32(key) % 3 {cases} end as place", "value"
    )
    assert read.where("stream != place").count() == 0
    assert read.select("value").distinct().count() == 3_000
    assert read.select("stream").distinct().count() == 3


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


def test_dead_letters_are_part_of_the_write(sbp, new_streams):
    good, bad = new_streams(2)
    frame = sbp.spark.createDataFrame(
        [(good, "a"), ("nowhere", "b"), (None, "c"), (good, "d")], "stream string, value string"
    )
    sbp.save(frame.coalesce(1), onBadRecord=f"deadletter:{bad}")
    assert sbp.values(good) == [b"a", b"d"]
    letters = sbp.load(bad, includeHeaders="true").orderBy("offset").collect()
    assert [bytes(row.value) for row in letters] == [b"b", b"c"]
    assert [row.headers.get("sbp.stream") for row in letters] == [b"nowhere", None]
    assert all(b"stream" in row.headers["sbp.error"] for row in letters)


@pytest.mark.spark_feature("modes `append` and `overwrite`")
def test_overwriting_trims_what_was_there_before(sbp, new_streams, client):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 10))
    writer = sbp.spark.createDataFrame([("new",)], "value string").write.format("sbp")
    writer = writer.options(endpoint=sbp.endpoint, stream=stream, truncate="true")
    writer.mode("overwrite").save()
    rows = sbp.load(stream).select("offset", "value").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(10, b"new")]


def test_compressed_batches_are_read_as_others_are(sbp, client):
    client.create_streams([StreamSpec("compressed")])
    for word in ("lz4", "zstd", "none"):
        frame = sbp.spark.range(1_000).selectExpr("repeat('compress me ', 50) as value")
        sbp.save(frame, stream="compressed", batchCompression=word, batchRecords="100")
    values = sbp.values("compressed")
    assert len(values) == 3_000
    assert set(values) == {b"compress me " * 50}


def test_threads_of_python_write_at_the_same_time(sbp, new_streams, checkpoint):
    origin, batched, streamed = new_streams(3)
    frame = sbp.spark.createDataFrame([("a",), ("b",)], "value string")

    def write() -> None:
        sbp.save(frame, stream=batched)

    def copy() -> None:
        sbp.copy(sbp.load_stream(origin), streamed, checkpoint)

    sbp.save(frame, stream=origin)
    with ThreadPoolExecutor(2, initializer=register, initargs=(sbp.spark,)) as threads:
        for done in (threads.submit(write), threads.submit(copy)):
            done.result()
    assert sorted(sbp.values(batched)) == [b"a", b"b"]
    assert sorted(sbp.values(streamed)) == [b"a", b"b"]


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
