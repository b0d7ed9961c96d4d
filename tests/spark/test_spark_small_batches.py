"""Small micro-batches: Spark has their rows with the plan, and no task reads them."""

from __future__ import annotations

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
