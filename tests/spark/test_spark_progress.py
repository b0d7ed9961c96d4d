"""Cursors that follow a query, and streams that are trimmed behind it."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from sbp_core.cli.main import main
from tests.support.spark import append_values, numbered, wait_until_over


@pytest.fixture
def lags(cluster, capfd):
    """The lag of each stream by name, as printed by `sbp lag GROUP`."""

    def ask(group):
        capfd.readouterr()
        assert main(["lag", group, "--json", "--endpoint", cluster.endpoint]) == 0
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        return {
            each["stream"]: (each["next_offset"], each["lag_records"], each["lost_records"])
            for each in found
        }

    return ask


def test_sbp_lag_shows_where_a_query_is(sbp, new_streams, client, checkpoint, lags):
    first, second, copy = new_streams(3)
    append_values(client, first, numbered(0, 5))
    append_values(client, second, numbered(5, 12))
    group = f"group-of-{copy}"
    frame = sbp.load_stream(first, second, group=group).select("value")
    query = sbp.start_copy(frame, copy, checkpoint, processingTime="0 seconds")
    query.processAllAvailable()
    assert lags(group) == {first: (5, 0, 0), second: (7, 0, 0)}
    query.stop()
    append_values(client, first, numbered(12, 15))
    assert lags(group)[first] == (5, 3, 0)
    rest = sbp.load(first, second, startingOffsets=f"group:{group}")
    assert sorted(row.offset for row in rest.collect()) == [5, 6, 7]
    sbp.copy(frame, copy, checkpoint)
    assert lags(group) == {first: (8, 0, 0), second: (7, 0, 0)}


def test_another_query_goes_on_where_a_group_is(sbp, new_streams, client, tmp_path):
    stream, copy = new_streams(2)
    group = f"group-of-{copy}"
    options = {"startingOffsets": f"group:{group}", "group": group}
    for run, (start, stop) in enumerate([(0, 5), (5, 12), (12, 13)]):
        append_values(client, stream, numbered(start, stop))
        frame = sbp.load_stream(stream, **options).select("value")
        sbp.copy(frame, copy, tmp_path / f"checkpoint-{run}")
    assert sbp.values(copy) == numbered(0, 13)


def test_committed_records_are_trimmed_and_others_are_read_again(
    sbp, new_streams, client, checkpoint
):
    (stream,) = new_streams(1)
    (info,) = client.describe_streams([stream])
    append_values(client, stream, numbered(0, 20))
    batches = []

    def run(*, failing_batch=None):
        def process(frame, batch_id):
            rows = frame.orderBy("offset").collect()
            if batch_id == failing_batch:
                raise RuntimeError("this batch fails")
            batches.append((batch_id, [row.offset for row in rows]))

        batches.clear()
        frame = sbp.load_stream(stream, maxRecordsPerTrigger="5", trimOnCommit="true")
        writer = frame.writeStream.foreachBatch(process)
        writer = writer.option("checkpointLocation", str(checkpoint))
        wait_until_over(writer.trigger(availableNow=True).start())

    def first_offset():
        (bounds,) = client.stream_bounds([info.stream_id])
        return bounds.start_offset

    with pytest.raises(PySparkException, match="this batch fails"):
        run(failing_batch=2)
    assert batches == [(0, list(range(5))), (1, list(range(5, 10)))]
    assert 0 < first_offset() <= 10
    run()
    assert batches == [(2, list(range(10, 15))), (3, list(range(15, 20)))]
    assert 5 <= first_offset() <= 15
    # A crash after the last batch was logged and processed, before it was committed.
    for path in (checkpoint / "commits").iterdir():
        if path.name.lstrip(".").split(".")[0] == "3":
            path.unlink()
    append_values(client, stream, numbered(20, 22))
    run()
    assert batches == [(3, list(range(15, 20))), (4, [20, 21])]
    assert 10 <= first_offset() <= 20
