"""Each row is stored once, whatever is retried."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
from pyspark.errors import PySparkException

from sbp_core.errors import InvalidRequestError
from tests.support.programs import program
from tests.support.queries import make_doubling_sink, make_forgetful_sink
from tests.support.spark import (
    QUERY_SECONDS,
    append_values,
    forget_commit,
    numbered,
    wait_until_over,
)

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


def test_a_replay_of_other_rows_fails_if_that_is_wanted(sbp, streams, checkpoint):
    source, target = streams
    frame = sbp.load_stream(source)
    sbp.copy(frame.select("value"), target, checkpoint)
    forget_commit(checkpoint)
    other = frame.selectExpr("concat(value, cast('x' as binary)) as value")
    writer = other.writeStream.format("sbp").options(endpoint=sbp.endpoint, stream=target)
    writer = writer.options(checkpointLocation=str(checkpoint), onReplayMismatch="fail")
    with pytest.raises(PySparkException, match="was committed before, with 100 records"):
        wait_until_over(writer.trigger(availableNow=True).start())
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))


def test_a_batch_that_comes_too_late_fails_the_query(sbp, streams, checkpoint, client):
    """Another writer has committed a later batch as this query: its own would be lost."""
    source, target = streams
    frame = sbp.load_stream(source).select("value")
    query = sbp.copy(frame, target, checkpoint)
    last = query.lastProgress["batchId"]
    with pytest.raises(InvalidRequestError, match="was not committed: the last batch is"):
        client.commit_txn(query.id, 2**63 - 1, (), record_count=0, digest=b"12345678")
    client.commit_txn(query.id, last + 9, (), record_count=0, digest=b"12345678")
    append_values(client, source, numbered(100, 130))
    writer = frame.writeStream.format("sbp").options(endpoint=sbp.endpoint, stream=target)
    writer = writer.options(checkpointLocation=str(checkpoint), onReplayMismatch="warn")
    with pytest.raises(
        PySparkException, match=r"comes too late.*Nothing was written of its 30 records"
    ):
        wait_until_over(writer.trigger(availableNow=True).start())
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))


def test_only_rows_of_named_stagings_are_visible_and_only_after_the_commit(
    sbp, streams, checkpoint
):
    source, target = streams
    frame = sbp.load_stream(source).select("value")
    query = start(sbp, make_doubling_sink(), frame, target, checkpoint)
    wait_until_over(query)
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


def test_a_query_goes_on_after_its_replay(sbp, streams, checkpoint, client):
    source, target = streams
    frame = sbp.load_stream(source, maxRecordsPerTrigger=40).select("value")
    sbp.copy(frame, target, checkpoint)
    forget_commit(checkpoint)
    append_values(client, source, numbered(100, 130))
    sbp.copy(frame, target, checkpoint)
    assert sorted(sbp.values(target)) == sorted(numbered(0, 130))


@pytest.mark.spark_feature("`foreachBatch`")
@pytest.mark.parametrize("is_numbered", [True, False])
def test_for_each_batch(sbp, streams, checkpoint, is_numbered):
    source, target = streams
    seen = []

    def write(frame, batch_id):
        options = {"txnAppId": f"to-{target}", "txnVersion": batch_id} if is_numbered else {}
        sbp.save(frame.select("value"), stream=target, **options)
        seen.append(batch_id)

    def run():
        writer = sbp.load_stream(source).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(checkpoint))
        wait_until_over(writer.trigger(availableNow=True).start())

    run()
    batch_id = forget_commit(checkpoint)
    run()
    assert Counter(seen)[batch_id] == 2
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100) * (1 if is_numbered else 2))


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


def test_at_least_once_needs_no_commit(sbp, streams, checkpoint):
    source, target = streams
    writer = sbp.load_stream(source).select("value").writeStream.format("sbp")
    writer = writer.options(endpoint=sbp.endpoint, stream=target, delivery="at-least-once")
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_SECONDS)
    assert sorted(sbp.values(target)) == sorted(numbered(0, 100))
