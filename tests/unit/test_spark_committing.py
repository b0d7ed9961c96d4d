"""Spark's commit or abort is one decision for everything that the tasks staged."""

import logging
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from sbp_core.client import TxnDecision
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    HeaderError,
    SchemaError,
    StatusCode,
    TxnAbortedError,
    UnsupportedError,
)
from sbp_core.limits import RECORD_BYTES_MAX
from sbp_core.records import StreamSchema
from sbp_core.wire.txn_id import ONE_SHOT_PREFIX
from sbp_spark.options.sink import (
    BatchKey,
    Delivery,
    DeliveryOptions,
    OnReplayMismatch,
    SinkOptions,
)
from sbp_spark.options.sink_targets import BadRecordPolicy, OnBadRecord
from sbp_spark.options.stream_selection import StreamRef
from sbp_spark.writing import batch_commit
from sbp_spark.writing.batch_commit import (
    IncompleteWriteError,
    LateCommitError,
    NotTrimmedError,
    ReplayMismatchError,
    commit_staged,
)
from sbp_spark.writing.sinks import SbpBatchWriter, SbpStreamWriter, StagedFor, write_rows
from tests.support.fake_streams import use_client
from tests.support.scripted_client import SERVERS, WritingClient, sink_options
from tests.support.spark import running_task

QUERY = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "7"}
KEY = BatchKey("query", 7)
AT_LEAST_ONCE = DeliveryOptions(Delivery.AT_LEAST_ONCE)
SPARK_CALL_S = 120
"""The default of spark.network.timeout."""


@pytest.fixture
def client(monkeypatch):
    """The client of all workers."""
    client = WritingClient()
    use_client(monkeypatch, client)
    return client


def rows(*values):
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def written(writer, *partitions):
    """The messages of tasks, of partitions 0, 1 ..., after the way that messages go in Spark."""
    messages = []
    for partition_id, values in enumerate(partitions):
        batches = iter([rows(*values)] if values else [])
        with running_task(QUERY, partition_id):
            message = pickle.loads(pickle.dumps(writer)).write(batches)
        messages.append(pickle.loads(pickle.dumps(message)))
    return messages


def stream_sink(**changes):
    return SbpStreamWriter(sink_options("s1", **changes))


def test_a_micro_batch_is_readable_in_the_order_of_its_partitions(client):
    messages = written(stream_sink(), [b"a", b"b"], [], [b"c"])
    assert client.values() == {}
    stream_sink().commit(messages[::-1], 7)
    assert client.values() == {1: [b"a", b"b", b"c"]}
    assert client.decisions["query"][7].record_count == 3


def test_parts_that_no_commit_message_names_are_never_visible(client):
    sink = stream_sink()
    written(sink, [b"of a loser"])
    sink.commit(written(sink, [b"a"]), 7)
    assert client.values() == {1: [b"a"]}
    assert client.staged_values() == {1: [b"of a loser"]}


def test_a_replay_in_other_partitions_writes_nothing_and_is_silent(client, caplog):
    sink = stream_sink()
    sink.commit(written(sink, [b"a", b"b"], [b"c"]), 7)
    sink.commit(written(sink, [b"c"], [b"b"], [b"a"]), 7)
    assert client.values() == {1: [b"a", b"b", b"c"]}
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_replay_of_other_rows_fails_unless_the_first_commit_is_to_count(client, caplog):
    sink = stream_sink()
    sink.commit(written(sink, [b"a", b"b"]), 7)
    other = written(sink, [b"a", b"x"], [b"y"])
    with pytest.raises(ReplayMismatchError, match=r"with 2 records; now it has 3 .*a writerGen"):
        sink.commit(other, 7)
    warning = stream_sink(delivery=DeliveryOptions(on_replay_mismatch=OnReplayMismatch.WARN))
    warning.commit(other, 7)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert "batch 7 of query was committed before, with 2 records; now it has 3 records" in told
    assert client.values() == {1: [b"a", b"b"]}


def test_the_same_rows_for_another_stream_are_no_replay(client):
    sink, branch = stream_sink(), SbpStreamWriter(sink_options("s2"))
    sink.commit(written(sink, [b"a"]), 7)
    with pytest.raises(ReplayMismatchError, match="the rows or their streams differ"):
        branch.commit(written(branch, [b"a"]), 7)


def test_a_new_generation_commits_a_batch_number_again(client):
    sink, again = stream_sink(), stream_sink(delivery=DeliveryOptions(generation=1))
    sink.commit(written(sink, [b"a"]), 7)
    for _ in range(2):
        again.commit(written(again, [b"a", b"b"]), 7)
    assert client.values() == {1: [b"a", b"a", b"b"]}
    assert client.decisions.keys() == {"query", "query.1"}


@pytest.mark.parametrize(
    "other_version", [lambda digest: digest[1:], lambda digest: b"\xff" + digest[1:]]
)
def test_rows_whose_digests_cannot_be_compared_are_reported(client, caplog, other_version):
    sink = stream_sink()
    sink.commit(written(sink, [b"a", b"b"]), 7)
    known = client.decisions["query"]
    known[7] = replace(known[7], digest=other_version(known[7].digest))
    replay = written(sink, [b"b"], [b"a"])
    with pytest.raises(ReplayMismatchError, match=r"Finish the batch with the version of sbp-sp"):
        sink.commit(replay, 7)
    with pytest.raises(ReplayMismatchError, match="with 2 records; now it has 1 record"):
        sink.commit(written(sink, [b"a"]), 7)
    warning = stream_sink(delivery=DeliveryOptions(on_replay_mismatch=OnReplayMismatch.WARN))
    warning.commit(replay, 7)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert "whether the rows are the same is not known" in told
    assert client.values() == {1: [b"a", b"b"]}


@pytest.mark.parametrize("count", [None, -1])
@pytest.mark.parametrize("on_mismatch", OnReplayMismatch)
def test_rows_that_come_too_late_fail_the_query(client, caplog, count, on_mismatch):
    sink = stream_sink(delivery=DeliveryOptions(on_replay_mismatch=on_mismatch))
    messages = written(sink, [b"a"])
    empty = written(sink, [], [])
    client.decisions["query"] = {7: TxnDecision(True, True, count, b"")}
    told = "batch 7 of query comes too late.*written of its 1 record.*writerGeneration"
    with pytest.raises(LateCommitError, match=told):
        sink.commit(messages, 7)
    sink.commit(empty, 7)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert client.values() == {}


def test_an_empty_batch_is_a_decision_and_one_without_tasks_is_none(client):
    sink = stream_sink()
    sink.commit(written(sink, [], []), 7)
    assert client.decisions["query"][7].record_count == 0
    sink.commit([], 8)
    assert 8 not in client.decisions["query"]


def test_plain_rows_are_not_committed_to_a_stream_that_got_a_schema(client):
    micro_batch = written(stream_sink(), [b"a"])
    numbered = SbpBatchWriter(sink_options("s1"))
    batch = [numbered.write(iter([rows(b"b")]))]
    client.register_schema(1, StreamSchema.of(pa.schema({"n": pa.int64()})), version=1)
    with pytest.raises(SchemaError, match="has got a schema since plain records were staged"):
        stream_sink().commit(micro_batch, 7)
    with pytest.raises(SchemaError, match="so nothing is committed"):
        numbered.commit(batch)
    assert client.decisions == {}


def test_nothing_is_committed_without_the_message_of_a_task(client, monkeypatch):
    held = []
    monkeypatch.setattr("time.sleep", held.append)
    for sink in (stream_sink(), stream_sink(delivery=AT_LEAST_ONCE)):
        messages = written(sink, [b"a"], [b"b"])
        with pytest.raises(IncompleteWriteError, match="1 of 2 tasks did not report"):
            sink.commit([messages[0], None], 7)
        assert held == []
        # So it is with a continuous trigger; Spark has to notice that the commit does not end.
        with pytest.raises(IncompleteWriteError, match=r"nothing is committed.*processingTime"):
            sink.commit([None, None], 7)
        assert held.pop() > SPARK_CALL_S
    once = batch_sink("s1")
    with pytest.raises(IncompleteWriteError, match="1 of 2 tasks"):
        once.commit([*written(once, [b"a"]), None])
    assert client.decisions == {}


def test_rows_that_are_being_published_are_a_success(client, caplog):
    caplog.set_level(logging.INFO)
    client.is_published = False
    sink = stream_sink()
    sink.commit(written(sink, [b"a"]), 7)
    assert "batch 7 of query is committed; its rows are still being published" in caplog.messages


def test_an_abort_drops_what_is_staged_and_nothing_else(client):
    sink = stream_sink()
    messages = written(sink, [b"a"], [b"b"])
    written(sink, [b"of another try"])
    sink.abort([messages[0], None, messages[1]], 7)
    assert client.staged_values() == {1: [b"of another try"]}
    with pytest.raises(TxnAbortedError) as raised:
        sink.commit(messages, 7)
    assert "write it again" in raised.value.__notes__[0]
    sink.commit(written(sink, [b"a"], [b"b"]), 7)
    assert client.values() == {1: [b"a", b"b"]}


def test_an_abort_after_a_commit_that_only_seemed_to_fail(client):
    sink = stream_sink()
    messages = written(sink, [b"a"])
    sink.commit(messages, 7)
    sink.abort(messages, 7)
    sink.commit(written(sink, [b"a"]), 7)
    assert client.values() == {1: [b"a"]}


def test_an_abort_never_fails(client, caplog):
    def refused(parts):
        raise ConnectError("refused")

    client.abort_txns = refused
    sink = stream_sink()
    sink.abort(written(sink, [b"a"]), 7)
    sink.abort([None], 7)
    assert len([each for each in caplog.messages if "could not be given up: refused" in each]) == 0
    assert len([each for each in caplog.messages if "refused" in each]) == 1


def test_a_task_of_no_micro_batch_is_an_error(client):
    needs_ids = pytest.raises(ConfigurationError, match="delivery: exactly-once needs the ids")
    with running_task({}), needs_ids:
        stream_sink().write(iter([rows(b"a")]))
    stream_sink(delivery=AT_LEAST_ONCE).write(iter([rows(b"a")]))
    assert client.values() == {1: [b"a"]}


def test_at_least_once_rows_are_there_at_once_and_stay(client, caplog):
    sink = stream_sink(delivery=AT_LEAST_ONCE)
    messages = written(sink, [b"a"], [b"b"])
    assert client.values() == {1: [b"a", b"b"]}
    sink.abort([*messages, None], 7)
    sink.commit([*messages, replace(messages[0], skipped_count=3)], 7)
    assert client.decisions == {}
    assert client.values() == {1: [b"a", b"b"]}
    assert caplog.messages == ["bad rows of batch 7 skipped=3 dead_letters=0"]


def test_a_server_without_transactions(client):
    def declined(*_, **__):
        raise UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "COMMIT_TXN")

    client.commit_txn = declined
    sink = stream_sink()
    with pytest.raises(ConfigurationError, match="delivery=at-least-once"):
        sink.commit(written(sink, []), 7)


def test_more_parts_than_a_decision_can_name(client):
    def refuse(*_, **__):
        raise HeaderError("CommitTxnRequest encodes to 5000000 bytes")

    client.commit_txn = refuse
    sink = stream_sink()
    told = "batch 7 of query: 2 tasks wrote 2 parts, one for.*repartition"
    with pytest.raises(ConfigurationError, match=told):
        sink.commit(written(sink, [b"a"], [b"b"]), 7)


def test_too_many_parts_are_not_sent_at_all(client):
    sink = stream_sink()
    told = "batch 7 of query: 3 tasks wrote 3 parts, one for.*2 are allowed.*repartition"
    with pytest.raises(ConfigurationError, match=told):
        commit_two(client, written(sink, [b"a"], [b"b"], [b"c"]))
    assert client.decisions == {}
    commit_two(client, written(sink, [b"a"], [b"b"]))


def commit_two(client, messages):
    """Commit a batch of two parts at most."""
    batch_commit.commit_staged(client, messages, KEY, OnReplayMismatch.FAIL, parts_max=2)


def batch_sink(*streams, **delivery):
    return SbpBatchWriter(sink_options(*streams, delivery=DeliveryOptions(**delivery)))


def test_each_batch_write_is_one_of_its_own(client):
    for _ in range(2):
        sink = batch_sink("s1")
        messages = written(sink, [b"a"], [b"b"])
        pickle.loads(pickle.dumps(sink)).commit(messages)
    assert client.values() == {1: [b"a", b"b"] * 2}
    assert len(client.decisions) == 2
    assert all(producer.startswith(ONE_SHOT_PREFIX) for producer in client.decisions)


def test_a_numbered_batch_write_is_done_once(client):
    for version, value in ((4, b"a"), (4, b"a"), (5, b"b"), (4, b"a")):
        sink = batch_sink("s1", key=BatchKey("app", version))
        sink.commit(written(sink, [value]))
    with pytest.raises(ReplayMismatchError, match="another txnAppId"):
        sink.commit(written(sink, [b"too late"]))
    assert client.values() == {1: [b"a", b"b"]}


def test_streams_are_emptied_of_what_was_there_before_and_only_when_all_is_committed(client):
    first = batch_sink("s1")
    first.commit(written(first, [b"a", b"b"]))
    sink = batch_sink("s1", is_truncating=True)
    messages = written(sink, [b"c"])
    client.commit_txn, commit_txn = None, client.commit_txn
    with pytest.raises(TypeError):
        sink.commit(messages)
    assert client.trims == []
    client.commit_txn = commit_txn
    for _ in range(2):
        sink.commit(messages)
    assert client.trims == [{1: 2}] * 2
    by_column = batch_sink(is_truncating=True)
    batch = pa.record_batch({"stream": ["s1", "s2"], "value": pa.array([b"d", b"e"])})
    by_column.commit([by_column.write(iter([batch]))])
    assert client.trims[2:] == [{1: 3, 2: 0}]


def test_an_overwrite_keeps_the_old_rows_until_the_new_ones_are_readable(client):
    first = batch_sink("s1")
    first.commit(written(first, [b"a"]))
    client.is_published = False
    sink = batch_sink("s1", is_truncating=True)
    messages = written(sink, [b"b"])
    asked, commit_txn = [], client.commit_txn

    def published_at_the_third_time(*args, **more):
        assert client.trims == []
        asked.append(args)
        client.is_published = len(asked) == 3
        return commit_txn(*args, **more)

    client.commit_txn = published_at_the_third_time
    sink.commit(messages)
    assert len(asked) == 3
    assert client.trims == [{1: 1}]


def test_an_overwrite_keeps_the_old_rows_if_the_new_ones_stay_unreadable(client):
    client.is_published = False
    sink = batch_sink("s1", is_truncating=True)
    messages = written(sink, [b"b"])
    with pytest.raises(NotTrimmedError, match=r"is committed.*were not trimmed.*write again"):
        batch_commit.commit_and_trim(
            client, messages, KEY, OnReplayMismatch.FAIL, publish_wait_ms=0
        )
    assert client.trims == []


@pytest.mark.parametrize("is_published", [False, True])
def test_an_overwrite_that_loses_rows_keeps_the_old_ones(client, caplog, is_published):
    client.is_published = is_published
    sink = batch_sink("s1", is_truncating=True)
    messages = written(sink, [b"b", b"c"])
    commit_txn = client.commit_txn

    def given_up_meanwhile(producer, number, parts, **more):
        return replace(commit_txn(producer, number, parts, **more), lost=tuple(parts))

    client.commit_txn = given_up_meanwhile
    with pytest.raises(NotTrimmedError, match=r"lost 2 of its rows.*were not trimmed: write again"):
        sink.commit(messages)
    assert client.trims == []
    assert "lost_rows=2" in caplog.text


def test_a_trim_that_fails_is_reported_with_what_became_of_the_rows(client):
    def refused(offsets):
        raise ConnectError("refused")

    client.trim_streams = refused
    sink = batch_sink("s1", is_truncating=True)
    with pytest.raises(NotTrimmedError, match=r"is committed.*see both: refused"):
        sink.commit(written(sink, [b"b"]))


def test_the_stream_of_dead_letters_is_not_emptied(client):
    letters = BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("s99"))
    client.published = {1: [{"value": b"a"}], 99: [{"value": b"of others"}]}
    delivery = DeliveryOptions(is_truncating=True)
    bad = pa.record_batch({"value": pa.array([b"b", bytes(RECORD_BYTES_MAX)])})
    named = SbpBatchWriter(sink_options("s1", "s2", bad_records=letters, delivery=delivery))
    named.commit([named.write(iter([bad]))])
    by_column = SbpBatchWriter(sink_options(bad_records=letters, delivery=delivery))
    batch = pa.record_batch({"stream": ["s3", "nowhere"], "value": pa.array([b"d", b"e"])})
    by_column.commit([by_column.write(iter([batch]))])
    assert client.trims == [{1: 1, 2: 0}, {3: 0}]
    assert len(client.published[99]) == 3


def test_streams_that_get_no_rows_are_emptied_if_options_name_them(client):
    client.published = {1: [{"value": b"a"}]}
    sink = batch_sink("s1", is_truncating=True)
    sink.commit(written(sink, []))
    assert client.trims == [{1: 1}]


def test_the_same_call_may_come_again(client):
    options = SinkOptions(SERVERS, sink_options("s1").targets)
    staged = write_rows([rows(b"a")], client, options, StagedFor(KEY, is_repeatable=True))
    for _ in range(3):
        commit_staged(client, [staged], KEY, OnReplayMismatch.FAIL)
    assert client.values() == {1: [b"a"]}
