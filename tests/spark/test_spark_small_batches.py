"""Small micro-batches: Spark has their rows with the plan, and no task reads them."""

from __future__ import annotations

import pytest

from sbp_spark.spark_internals import CHAR_VARCHAR_KEY
from tests.support.spark import append_values, batch_sizes, numbered, wait_until_over


def run(frame, checkpoint, process):
    writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    wait_until_over(query)
    return query


def rows_after_trimming(client, frame, stream, checkpoint):
    """The rows that each action finds if the records of its micro-batch are trimmed first."""
    (info,) = client.describe_streams([stream])
    found = []

    def process(batch, _):
        client.trim_streams({info.stream_id: 10})
        found.extend(sorted(bytes(row.value) for row in batch.collect()) for _ in range(2))

    query = run(frame, checkpoint, process)
    return found, query


def test_every_action_has_the_rows_whatever_happens_to_the_stream(
    sbp, new_streams, client, checkpoint
):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 10))
    frame = sbp.load_stream(stream)
    found, query = rows_after_trimming(client, frame, stream, checkpoint)
    assert found == [numbered(0, 10)] * 2
    assert batch_sizes(query) == [20]  # each action counts
    (source,) = query.recentProgress[0]["sources"]
    assert source["latestOffset"] is not None


def test_tasks_read_what_is_not_small(sbp, new_streams, client, checkpoint):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 10))
    frame = sbp.load_stream(stream, minPartitions="2", failOnDataLoss="false")
    found, _ = rows_after_trimming(client, frame, stream, checkpoint)
    assert found == [[], []]


def test_small_and_large_micro_batches_follow_each_other(sbp, new_streams, client, checkpoint):
    stream, copy = new_streams(2)
    stop = 0
    for count in (5, 15_000, 1, 12_000, 7):
        append_values(client, stream, numbered(stop, stop + count))
        stop += count
        sbp.copy(sbp.load_stream(stream).select("value"), copy, checkpoint)
    assert sbp.values(copy) == numbered(0, stop)


@pytest.mark.parametrize("partitions", ["1", "2"])
def test_columns_with_metadata_are_the_same_on_every_path(
    sbp, new_streams, client, checkpoint, partitions
):
    """Comments, and the lengths of `char` and `varchar`, which Spark notes in the schema."""
    (stream,) = new_streams(1)
    columns = sbp.spark.sql(
        "select 'ab' fixed, 'b' bounded, named_struct('y', 'c') deep, 'd' collate UNICODE other"
    )
    kinds = {"fixed": "char(2)", "bounded": "varchar(5)", "deep": "struct<y:char(1)>"}
    for name, kind in kinds.items():
        columns = columns.withMetadata(name, {CHAR_VARCHAR_KEY: kind})
    sbp.save(columns.union(columns), stream=stream, encoding="columns")
    schema = "fixed string comment 'two', bounded string, deep struct<y:string comment 'deep'>"
    found = []
    for given in (None, schema):
        reader = sbp.spark.readStream if given is None else sbp.spark.readStream.schema(given)
        options = {"startingOffsets": "earliest", "minPartitions": partitions}
        frame = reader.format("sbp").options(endpoint=sbp.endpoint, **options).load(stream)
        run(frame, checkpoint / str(given), lambda batch, _: found.append(batch.collect()))
    batch = sbp.load(stream).collect()
    assert found[0] == batch
    assert [row.asDict() for row in found[1]] == [
        row.asDict() for row in sbp.load(stream).select("fixed", "bounded", "deep").collect()
    ]
