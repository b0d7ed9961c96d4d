"""Each row is stored once, whatever is retried."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
from pyspark.errors import PySparkException

from tests.support.programs import program
from tests.support.queries import make_forgetful_sink
from tests.support.spark import append_values, forget_commit, numbered, wait_until_over

RETRYING_SECONDS = 300


@pytest.fixture
def streams(new_streams, client):
    """A stream with a hundred records, and an empty one."""
    source, target = new_streams(2)
    append_values(client, source, numbered(0, 100))
    return source, target


def start(sbp, sink, frame, target, checkpoint):
    sbp.spark.dataSource.register(sink)
    writer = frame.writeStream.format(sink.name()).options(endpoint=sbp.endpoint, stream=target)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


@pytest.mark.spark_feature("exactly once, after a crash too")
def test_a_replay_in_other_partitions_writes_nothing(sbp, streams, checkpoint):
    source, target = streams
    sbp.copy(sbp.load_stream(source).select("value"), target, checkpoint)
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))
    forget_commit(checkpoint)
    again = sbp.load_stream(source, minPartitions=3).select("value").repartition(5)
    query = sbp.copy(again, target, checkpoint)
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [100]
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))


def test_a_commit_that_fails_after_it_took_effect(sbp, streams, checkpoint, tmp_path):
    source, target = streams
    sink = make_forgetful_sink(tmp_path / "marker")
    frame = sbp.load_stream(source).select("value")
    with pytest.raises(PySparkException, match="the answer was lost"):
        wait_until_over(start(sbp, sink, frame, target, checkpoint))
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))
    wait_until_over(start(sbp, sink, frame, target, checkpoint))
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))


@pytest.mark.spark_feature("`foreachBatch`")
def test_for_each_batch(sbp, streams, checkpoint):
    source, target = streams
    seen = []

    def write(frame, batch_id):
        numbers = {"txnAppId": f"to-{target}", "txnVersion": batch_id}
        sbp.save(frame.select("value"), stream=target, **numbers)
        seen.append(batch_id)

    def run():
        writer = sbp.load_stream(source).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(checkpoint))
        wait_until_over(writer.trigger(availableNow=True).start())

    run()
    batch_id = forget_commit(checkpoint)
    run()
    assert Counter(seen)[batch_id] == 2
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))


@pytest.mark.spark_feature("tasks that fail and are tried again")
def test_tasks_that_fail_after_all_their_rows_are_tried_again(sbp, streams, tmp_path):
    source, target = streams
    order = {"endpoint": sbp.endpoint, "source": source, "target": target}
    subprocess.run(
        program("retrying", json.dumps({**order, "folder": str(tmp_path)})),
        stdin=subprocess.DEVNULL,
        check=True,
        capture_output=True,
        timeout=RETRYING_SECONDS,
    )
    assert len((tmp_path / "failures").read_text().split()) >= 3
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))
