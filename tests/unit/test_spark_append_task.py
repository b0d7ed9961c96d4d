"""Writing the rows of a task: converted, routed, batched and acknowledged."""

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import AppendOutcome, StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    NotFoundError,
    RecordBatchError,
    StatusCode,
)
from sbp_core.limits import MIB, RECORD_BYTES_MAX
from sbp_core.records import ROWS_SCHEMA, decode_envelope, decode_rows
from sbp_spark import append_task
from sbp_spark.append_task import append_rows, to_rows
from sbp_spark.options import StreamRef

NOW_US = 1_700_000_000_000_000


class FakeClient:
    """Has the streams s0, s1 ... s99 with the ids 0, 1 ... 99, and keeps what is appended."""

    def __init__(self):
        self.appends = []
        self.described = []

    def describe_streams(self, refs):
        self.described.append(list(refs))
        names = {f"s{number}": number for number in range(100)}
        missing = [ref for ref in refs if names.get(ref, ref) not in range(100)]
        if missing:
            raise NotFoundError(StatusCode.NOT_FOUND, f"not found: {missing}")
        return [StreamInfo(names.get(ref, ref), str(ref), 1, 0, 0) for ref in refs]

    def append(self, items, *, retry_unknown=False):
        assert retry_unknown
        self.appends.append(list(items))
        return [AppendOutcome(item.stream_id, 0, 0) for item in items]

    def values(self):
        """Values by stream id, in the order in which they were appended."""
        found = {}
        for item in (each for items in self.appends for each in items):
            envelope = decode_envelope(item.batch)
            assert envelope.stream_id == item.stream_id
            found.setdefault(item.stream_id, []).extend(
                decode_rows(envelope).column("value").to_pylist()
            )
        return found


def routed(*rows):
    """A batch of (stream, value)."""
    streams, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch(
        {"stream": pa.array(streams, pa.string()), "value": pa.array(values, pa.binary())}
    )


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=5)), max_size=30), max_size=8
    )
)
def test_every_stream_gets_its_rows_in_their_order(batches):
    client = FakeClient()
    message = append_rows(
        [routed(*((f"s{number}", value) for number, value in rows)) for rows in batches],
        client,
        None,
    )
    expected = {}
    for number, value in (row for rows in batches for row in rows):
        expected.setdefault(number, []).append(value)
    assert client.values() == expected
    items = [item for each in client.appends for item in each]
    assert message.record_count == sum(len(rows) for rows in batches)
    assert message.stream_count == len(expected)
    assert (message.batch_count, message.size_bytes) == (
        len(items),
        sum(len(item.batch) for item in items),
    )


def test_a_name_and_an_id_of_one_stream_keep_the_order_of_their_rows():
    client = FakeClient()
    append_rows([routed(("s5", b"a"), ("5", b"b"), ("s5", b"c"), ("s1", b"x"))], client, None)
    assert client.values() == {5: [b"a", b"b", b"c"], 1: [b"x"]}


def test_names_are_looked_up_once():
    client = FakeClient()
    batch = routed(("s1", b"a"), ("s2", b"b"))
    append_rows([batch, batch, routed(("s2", b"c"), ("s3", b"d"))], client, None)
    assert client.described == [["s1", "s2"], ["s3"]]


def test_the_option_wins_over_the_column():
    client = FakeClient()
    append_rows([routed(("nowhere", b"a"), (None, b"b"))], client, StreamRef("7"))
    assert client.values() == {7: [b"a", b"b"]}
    assert client.described == [[7]]


def test_many_streams_share_an_append():
    client = FakeClient()
    append_rows([routed(*((f"s{n % 100}", b"%d" % n) for n in range(1_000)))], client, None)
    assert [len(items) for items in client.appends] == [100]


def test_no_rows_ask_nobody():
    client = FakeClient()
    message = append_rows([routed()], client, None)
    assert (message.record_count, message.batch_count, message.stream_count) == (0, 0, 0)
    assert client.described == client.appends == []


@pytest.mark.parametrize(
    ("stream", "error", "told"),
    [
        (None, ConfigurationError, "column stream is null in 1 of 2 rows"),
        ("nowhere", NotFoundError, "column stream: not found: .'nowhere'."),
        ("a b", ConfigurationError, "column stream: 'a b' is no stream name"),
        ("", ConfigurationError, "column stream: '' is no stream name"),
    ],
)
def test_rows_that_name_no_stream_are_refused(stream, error, told):
    client = FakeClient()
    with pytest.raises(error, match=told):
        append_rows([routed(("s1", b"a"), (stream, b"b"))], client, None)
    assert client.appends == []


def test_a_record_that_is_too_large_is_named():
    large = routed(("s1", b"a"), ("s1", bytes(RECORD_BYTES_MAX)))
    with pytest.raises(RecordBatchError, match="record 1") as raised:
        append_rows([large], FakeClient(), None)
    assert "stream with id 1" in raised.value.__notes__[0]


def test_what_waits_is_bounded_over_all_streams(monkeypatch):
    monkeypatch.setattr(append_task, "WAITING_BYTES_MAX", 10_000)
    monkeypatch.setattr(append_task, "APPEND_BYTES", 1)
    client = FakeClient()
    client_seen = []

    def batches():
        for number in range(100):
            client_seen.append(sum(map(len, client.values().values())))
            yield routed((f"s{number}", bytes(1_000)))

    append_rows(batches(), client, None)
    lag = [number - seen for number, seen in enumerate(client_seen)]
    assert max(lag) < 40
    assert sum(map(len, client.values().values())) == 100


def test_large_input_goes_out_in_several_appends():
    client = FakeClient()
    batches = [routed(("s1", bytes(MIB)), ("s1", bytes(MIB))) for _ in range(10)]
    append_rows(batches, client, None)
    assert len(client.appends) > 3
    assert client.values() == {1: [bytes(MIB)] * 20}


def test_one_append_is_in_flight_while_the_next_is_built(monkeypatch):
    monkeypatch.setattr(append_task, "APPEND_BYTES", 1)
    monkeypatch.setattr(append_task, "WAITING_BYTES_MAX", 0)
    started, answered = threading.Event(), threading.Event()
    at_once = []

    class SlowClient(FakeClient):
        def append(self, items, *, retry_unknown=False):
            at_once.append(threading.current_thread())
            started.set()
            assert answered.wait(10)
            assert at_once.pop() is threading.current_thread()
            return super().append(items, retry_unknown=retry_unknown)

    def batches():
        yield routed(("s1", b"a"))
        assert started.wait(10)  # the first append runs, and more rows are asked for
        answered.set()
        yield routed(("s1", b"b"))

    client = SlowClient()
    append_rows(batches(), client, None)
    assert client.values() == {1: [b"a", b"b"]}


def test_a_failed_append_fails_the_task():
    class BrokenClient(FakeClient):
        def append(self, items, *, retry_unknown=False):
            raise ConnectError("refused")

    with pytest.raises(ConnectError, match="refused"):
        append_rows([routed(("s1", b"a"))], BrokenClient(), None)


def test_no_failed_append_is_forgotten_when_later_ones_succeed(monkeypatch):
    monkeypatch.setattr(append_task, "APPEND_BYTES", 1)
    monkeypatch.setattr(append_task, "WAITING_BYTES_MAX", 0)

    class OnceBrokenClient(FakeClient):
        is_broken = True

        def append(self, items, *, retry_unknown=False):
            if self.is_broken:
                self.is_broken = False
                raise ConnectError("refused")
            return super().append(items, retry_unknown=retry_unknown)

    with pytest.raises(ConnectError, match="refused"):
        append_rows(
            [routed(("s1", b"%d" % number)) for number in range(5)], OnceBrokenClient(), None
        )


def test_spark_s_columns_become_rows():
    headers = [[("a", b"1"), ("b", None)], None]
    batch = pa.record_batch(
        {
            "offset": pa.array([1, 2]),
            "headers": pa.array(
                headers, pa.map_(pa.string(), pa.field("value", pa.binary(), nullable=True))
            ),
            "timestamp": pa.array([5, None], pa.timestamp("us", tz="Europe/Berlin")),
            "value": pa.array(["ä", None], pa.string()),
            "key": pa.array([b"k", b""], pa.large_binary()),
        }
    )
    rows = to_rows(batch, now_us=NOW_US)
    assert rows.schema.equals(ROWS_SCHEMA)
    assert rows.column("headers").to_pylist() == headers
    assert rows.column("value").to_pylist() == ["ä".encode(), None]
    assert rows.column("key").to_pylist() == [b"k", b""]
    assert rows.column("timestamp").to_pylist() == [
        datetime(1970, 1, 1, 0, 0, 0, 5, UTC),
        datetime.fromtimestamp(NOW_US / 1_000_000, UTC),
    ]


def test_columns_that_are_not_there_are_null():
    rows = to_rows(pa.record_batch({"value": pa.array([b"a"])}), now_us=NOW_US)
    assert rows.column("key").to_pylist() == rows.column("headers").to_pylist() == [None]
    assert rows.column("timestamp").null_count == 0
