"""`sbp checkpoint` on what Spark has written, and what Spark makes of the result."""

from __future__ import annotations

import json

import pytest

from sbp_spark.command import main
from tests.support.spark import append_values, numbered, wait_until_over


@pytest.fixture
def run(capsys):
    """Run the command, which is to succeed; what it printed."""

    def call(*words):
        assert main(["checkpoint", *map(str, words)]) == 0
        return capsys.readouterr().out

    return call


def read(frame, checkpoint):
    """Read what is available now; the values of each micro-batch that was not empty, in order."""
    batches = {}

    def keep(batch, number):
        rows = batch.orderBy("stream_id", "offset").collect()
        if rows:
            batches[number] = [bytes(row.value) for row in rows]

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    wait_until_over(writer.trigger(availableNow=True).start())
    return batches


def test_a_query_reads_again_what_came_after_the_batch_it_is_taken_back_to(
    sbp, new_streams, client, checkpoint, run
):
    (stream,) = new_streams(1)
    append_values(client, stream, numbered(0, 50))
    frame = sbp.load_stream(stream, maxRecordsPerTrigger="10")
    first = read(frame, checkpoint)
    assert sorted(first) == [0, 1, 2, 3, 4]
    printed = run("rewind", checkpoint, "--to-batch", "1", "--yes")
    assert "is read again from offset 20 (it was at 50)" in printed
    append_values(client, stream, numbered(50, 55))
    again = {each: first[each] for each in (2, 3, 4)}
    assert read(frame, checkpoint) == {**again, 5: numbered(50, 55)}
    run("rewind", checkpoint, "--batches", "3", "--yes")
    other = sbp.load_stream(stream, maxRecordsPerTrigger="100", minPartitions="3")
    assert read(other, checkpoint) == {3: numbered(30, 55)}


def test_how_far_a_query_is_behind(sbp, new_streams, client, checkpoint, run):
    first, second = new_streams(2)
    append_values(client, first, numbered(0, 5))
    read(sbp.load_stream(first, second), checkpoint)
    append_values(client, first, numbered(5, 12))
    shown = json.loads(run("show", checkpoint, "--json", "--endpoint", sbp.endpoint))
    found = [
        (each["stream"], each["next_offset"], each["tail_offset"], each["lag_records"])
        for each in shown["streams"]
    ]
    assert found == [(first, 5, 12, 7), (second, 0, 0, 0)]
    client.trim_streams({client.describe_streams([first])[0].stream_id: 8})
    client.delete_streams([second])
    printed = run("show", checkpoint, "--endpoint", sbp.endpoint)
    assert "3 records trimmed before the query read them" in printed
    assert "deleted" in printed


def test_a_new_checkpoint_goes_on_where_another_one_ended(
    sbp, new_streams, client, checkpoint, tmp_path, run
):
    """Also one of a query that keeps state, and that reads from elsewhere, too."""
    first, second = new_streams(2)
    append_values(client, first, numbered(0, 10))
    append_values(client, second, numbered(10, 30))
    rate = sbp.spark.readStream.format("rate").load().selectExpr("string(value) as value")
    frame = sbp.load_stream(first, second).selectExpr("string(value) as value")
    counts = rate.union(frame).dropDuplicates(["value"])
    writer = counts.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    wait_until_over(writer.trigger(once=True).start())
    assert json.loads(run("show", checkpoint, "--json"))["source"] == 1
    assert main(["checkpoint", "rewind", str(checkpoint), "--batches", "1", "--yes"]) == 2
    append_values(client, second, numbered(30, 35))
    starts = run("to-starting-offsets", checkpoint).strip()
    frame = sbp.load_stream(first, second, startingOffsets=starts)
    assert read(frame, tmp_path / "new") == {0: numbered(30, 35)}
