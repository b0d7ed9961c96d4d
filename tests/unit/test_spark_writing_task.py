"""Writing the rows of a task: converted, routed, batched, and acknowledged or staged."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import ConfigurationError, ConnectError, NotFoundError, TxnEndedError
from sbp_core.limits import RECORD_BYTES_MAX
from sbp_core.records import ROWS_SCHEMA, decode_envelope, record_sizes
from sbp_spark.options.sink import Batching, BatchKey
from sbp_spark.options.sink_targets import BadRecordPolicy, Creation, OnBadRecord
from sbp_spark.options.stream_selection import StreamRef
from sbp_spark.writing.bad_records import ERROR_HEADER, STREAM_HEADER, BadRecordError
from sbp_spark.writing.payload import fill_times, to_rows
from sbp_spark.writing.sending import SendingPace
from sbp_spark.writing.sinks import StagedFor, write_rows
from tests.support.scripted_client import WritingClient, sink_options

NOW_US = 1_700_000_000_000_000
ROUTED = sink_options()
KEY = BatchKey("query", 3)
DEAD_LETTERS = BadRecordPolicy(OnBadRecord.DEAD_LETTER, StreamRef("s99"))
SKIP = BadRecordPolicy(OnBadRecord.SKIP)


def routed(*rows):
    """A batch of (stream, value)."""
    streams, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch(
        {"stream": pa.array(streams, pa.string()), "value": pa.array(values, pa.binary())}
    )


def keyed(*rows):
    """A batch of (key, value)."""
    keys, values = zip(*rows, strict=True)
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values)})


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=5)), max_size=30), max_size=8
    ),
    st.booleans(),
)
def test_every_stream_gets_its_rows_in_their_order(batches, is_staged):
    client = WritingClient()
    given_batches = [routed(*((f"s{number}", value) for number, value in rows)) for rows in batches]
    if is_staged:
        message = write_rows(given_batches, client, ROUTED, StagedFor(KEY, is_repeatable=True))
        found = client.staged_values()
    else:
        message = write_rows(given_batches, client, ROUTED)
        found = client.values()
    expected = {}
    for number, value in (row for rows in batches for row in rows):
        expected.setdefault(number, []).append(value)
    assert found == expected
    items = [item for each in client.appends for item in each]
    assert message.record_count == sum(len(rows) for rows in batches)
    assert message.stream_count == len(expected)
    assert (message.batch_count, message.size_bytes) == (
        len(items),
        sum(len(item.batch) for item in items),
    )


def test_each_try_stages_under_an_id_of_its_own_and_says_what():
    client = WritingClient()
    batch = routed(("s1", b"a"), ("s2", b"b"), ("s1", b"c"))
    staged_for = StagedFor(KEY, is_repeatable=True)
    first, second = (
        write_rows([batch], client, ROUTED, staged_for, partition_id=7) for _ in range(2)
    )
    (txn_id,) = {part[0] for part in first.parts}
    assert txn_id.startswith("query.3.")
    assert sorted(part[1:] for part in first.parts) == [(1, 0, 2, 1), (2, 0, 1, 1)]
    assert (first.producer, first.batch_number, first.partition_id) == ("query", 3, 7)
    assert {part[0] for part in second.parts}.isdisjoint({txn_id})
    assert first.digest == second.digest != 0
    assert client.values() == {}


def test_the_digest_tells_over_which_streams_rows_are_spread():
    staged_for = StagedFor(KEY, is_repeatable=True)
    batch = keyed((b"1", b"x"), (None, b"y"), (b"3", b"z"))

    def digest(*streams, batches=(batch,), partition_id=0):
        options = sink_options(*streams)
        client = WritingClient()
        return write_rows(batches, client, options, staged_for, partition_id=partition_id).digest

    assert digest("s1", "s2") != digest("s3", "s4")
    assert digest("s1", "s2") != digest("s1", "s2", "s3")
    assert digest("s1", "s2") == digest("s2", "s1", partition_id=1)
    assert digest("s1", "s2") == digest("s1", "s2", batches=(batch.slice(1), batch.slice(0, 1)))


def test_the_digest_of_dead_letters_does_not_depend_on_the_rows_beside_them():
    staged_for = StagedFor(KEY, is_repeatable=True)
    options = sink_options(bad_records=DEAD_LETTERS)
    rows = [
        routed(("s1", bytes(RECORD_BYTES_MAX + 10))),
        routed(("s1", bytes(RECORD_BYTES_MAX + 5_000))),
        routed(("nowhere", b"a"), ("s1", b"b")),
        routed(("elsewhere", b"c"), (None, b"d")),
    ]
    together = pa.Table.from_batches(rows).combine_chunks().to_batches()

    def digest(batches):
        return write_rows(batches, WritingClient(), options, staged_for).digest

    assert digest(rows) == digest(rows[::-1]) == digest(together)
    assert digest(rows[:3]) != digest([*rows[:2], routed(("nowhere", b"e"), ("s1", b"b"))])


def test_no_digest_is_made_that_nothing_will_be_compared_with():
    once = StagedFor(KEY, is_repeatable=False)
    assert write_rows([routed(("s1", b"a"))], WritingClient(), ROUTED, once).digest == 0


def test_a_server_without_transactions_is_reported_with_the_remedy():
    client = WritingClient(has_transactions=False)
    with pytest.raises(ConfigurationError, match="set delivery=at-least-once"):
        write_rows([routed(("s1", b"a"))], client, ROUTED, StagedFor(KEY, is_repeatable=True))


AT_ONCE = SendingPace(waiting_bytes_max=0, append_bytes=1)


def test_a_staging_that_is_dropped_early_is_left_to_the_commit():
    client = WritingClient()

    def batches():
        yield routed(("s1", b"a"))
        yield routed(("s2", b"b"))
        while not client.staged:
            time.sleep(0.001)
        client.drop_all()
        yield routed(("s1", b"c"), ("s3", b"d"))
        yield routed(("s4", b"e"))

    dropped = write_rows(
        batches(), client, ROUTED, StagedFor(KEY, is_repeatable=True), pace=AT_ONCE
    )
    rows = [routed(("s1", b"a"), ("s2", b"b"), ("s1", b"c"), ("s3", b"d"), ("s4", b"e"))]
    whole = write_rows(rows, client, ROUTED, StagedFor(KEY, is_repeatable=True))
    assert (dropped.record_count, dropped.digest) == (whole.record_count, whole.digest)
    assert {part[0] for part in dropped.parts} == client.ended
    with pytest.raises(TxnEndedError):
        write_rows(batches(), client, ROUTED, StagedFor(KEY, is_repeatable=False), pace=AT_ONCE)


def test_a_server_without_writers_gets_plain_appends():
    client = WritingClient(has_transactions=False, has_writers=False)
    write_rows([routed(("s1", b"a"), ("s2", b"b"))], client, ROUTED)
    assert client.values() == {1: [b"a"], 2: [b"b"]}


def test_a_name_and_an_id_of_one_stream_keep_the_order_of_their_rows():
    client = WritingClient()
    write_rows([routed(("s5", b"a"), ("5", b"b"), ("s5", b"c"), ("s1", b"x"))], client, ROUTED)
    assert client.values() == {5: [b"a", b"b", b"c"], 1: [b"x"]}


def test_the_option_wins_over_the_column():
    client = WritingClient()
    write_rows([routed(("nowhere", b"a"), (None, b"b"))], client, sink_options("7"))
    assert client.values() == {7: [b"a", b"b"]}
    assert client.described == [[7]]


def test_ids_tell_the_stream_where_no_name_does():
    client = WritingClient()
    values = {"value": pa.array([b"a", b"b"])}
    ids = pa.array([8, 9])
    write_rows([pa.record_batch({"stream_id": ids, **values})], client, ROUTED)
    names = pa.array(["s1", None])
    write_rows([pa.record_batch({"stream": names, "stream_id": ids, **values})], client, ROUTED)
    write_rows([pa.record_batch({"stream": ids, **values})], client, ROUTED)
    assert client.values() == {8: [b"a", b"a"], 9: [b"b", b"b", b"b"], 1: [b"a"]}


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (None, r"column stream is null.*\(row 1 of 3 in a batch; 1 of them"),
        ("nowhere", "column stream: not found: stream 'nowhere'"),
        ("1000", "column stream: not found: stream '1000'"),
        ("a b", "column stream: 'a b' is no stream name"),
        ("", "column stream: '' is no stream name"),
    ],
)
def test_rows_that_name_no_stream_are_refused(stream, told):
    client = WritingClient()
    batch = routed(("s1", b"a"), (stream, b"b"), ("s2", b"c"))
    with pytest.raises(BadRecordError, match="onBadRecord=skip") as raised:
        write_rows([batch], client, ROUTED)
    assert raised.match(told)
    assert client.values() == {}
    skipping = write_rows([batch], client, sink_options(bad_records=SKIP))
    assert (skipping.record_count, skipping.skipped_count) == (2, 1)
    assert client.values() == {1: [b"a"], 2: [b"c"]}
    keeping = write_rows([batch], client, sink_options(bad_records=DEAD_LETTERS))
    assert (keeping.record_count, keeping.dead_letter_count) == (3, 1)
    (letter,) = client.published[99]
    assert letter["value"] == b"b"
    headers = dict(letter["headers"])
    assert b"stream" in headers[ERROR_HEADER]
    assert headers.get(STREAM_HEADER) == (None if stream is None else stream.encode())


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"stream_id": [1, -1, 2]}, "column stream_id is -1, which is no stream id"),
        ({"stream_id": [-1, -1, -1]}, "column stream_id is -1, which is no stream id"),
        ({"stream": [1, -7, 2]}, "column stream is -7, which is no stream id"),
        ({"stream": ["s1", None, "s2"], "stream_id": [0, -1, 0]}, "stream or stream_id is -1,"),
        ({"stream_id": [1, 1000, 2]}, "column stream_id: not found: stream '1000'"),
    ],
)
def test_a_number_is_an_id_and_never_a_name(columns, told):
    client = WritingClient()
    batch = pa.record_batch({**columns, "value": [b"a", b"b", b"c"]})
    creating = sink_options(creation=Creation())
    with pytest.raises(BadRecordError, match=told):
        write_rows([batch], client, creating)
    letters = replace(creating, bad_records=DEAD_LETTERS)
    assert write_rows([batch], client, letters).dead_letter_count in {1, 3}
    named = {dict(letter["headers"])[STREAM_HEADER] for letter in client.published[99]}
    assert named <= {b"-1", b"-7", b"1000"}
    assert client.created == []


def test_a_text_may_be_a_name_that_looks_like_a_negative_number():
    client = WritingClient()
    write_rows([routed(("-1", b"a"))], client, sink_options(creation=Creation()))
    assert client.values() == {client.names["-1"]: [b"a"]}


def test_an_option_that_names_no_stream_fails_whatever_is_done_with_bad_rows():
    with pytest.raises(
        NotFoundError, match="option stream: not found: stream 'nowhere'; set createS"
    ):
        write_rows(
            [routed(("s1", b"a"))], WritingClient(), sink_options("nowhere", bad_records=SKIP)
        )


def test_a_record_that_is_too_large():
    large = routed(("s1", b"a"), ("s1", bytes(RECORD_BYTES_MAX)), ("s1", b"c"))
    with pytest.raises(BadRecordError, match=r"a record of \d+ bytes.*row 1 of 3"):
        write_rows([large], WritingClient(), ROUTED)
    client = WritingClient()
    write_rows([large], client, sink_options(bad_records=DEAD_LETTERS))
    assert client.values() == {1: [b"a", b"c"], 99: [None]}
    (letter,) = client.published[99]
    assert b"--record-bytes-max" in dict(letter["headers"])[ERROR_HEADER]


def test_each_stream_has_the_limit_of_its_server():
    def rows(stream, *sizes):
        return [(stream, bytes(size)) for size in sizes]

    own_bytes = int(record_sizes(to_rows(routed(("s1", b""))))[0])
    edge = 2 * RECORD_BYTES_MAX - own_bytes
    sizes = (edge - 1, edge, edge + 1)
    batch = routed(*rows("s1", *sizes), *rows("s2", 1, RECORD_BYTES_MAX - own_bytes, edge))
    client = WritingClient()
    client.record_sizes = {1: 2 * RECORD_BYTES_MAX}
    write_rows([batch], client, sink_options(bad_records=DEAD_LETTERS))
    written = client.values()
    assert list(map(len, written[1])) == [edge - 1, edge]
    assert list(map(len, written[2])) == [1, RECORD_BYTES_MAX - own_bytes]
    assert client.asked_sizes == [[1, 2]]
    two, one = [dict(each["headers"])[ERROR_HEADER].decode() for each in client.published[99]]
    assert f"at most {2 * RECORD_BYTES_MAX} are allowed" in two
    assert f"at most {RECORD_BYTES_MAX} are allowed" in one


def test_limits_that_do_not_matter_are_not_requested():
    client = WritingClient()
    write_rows([routed(("s1", bytes(RECORD_BYTES_MAX // 2 + 1)))], client, ROUTED)
    assert client.asked_sizes == []


def test_headers_that_are_no_text():
    good = pa.array([[("a", b"1")], [("bb", b"2")], None], ROWS_SCHEMA.field("headers").type)
    keys = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xff")],
    )
    headers = pa.MapArray.from_arrays(pa.array([0, 1, 2, 2], pa.int32()), keys, good.items)
    batch = pa.record_batch({"headers": headers, "value": pa.array([b"a", b"b", b"c"])})
    with pytest.raises(BadRecordError, match=r"not UTF-8; correct it \(row 1 of 3"):
        write_rows([batch], WritingClient(), sink_options("s1"))
    client = WritingClient()
    write_rows([batch], client, sink_options("s1", bad_records=DEAD_LETTERS))
    assert client.values() == {1: [b"a", b"c"], 99: [b"b"]}
    (letter,) = client.published[99]
    assert [name for name, _ in letter["headers"]] == [ERROR_HEADER]


def test_a_stream_that_is_no_text_is_a_bad_row():
    names = pa.array([b"s1", b"s\xff", b"s\xff", b"s2"]).view(pa.string())
    batch = pa.record_batch({"stream": names, "value": pa.array([b"a", b"b", b"c", b"d"])})
    with pytest.raises(BadRecordError, match=r"is no stream name.*row 1 of 4 in a batch; 2 of"):
        write_rows([batch], WritingClient(), ROUTED)
    client = WritingClient()
    write_rows([batch], client, sink_options(bad_records=DEAD_LETTERS))
    assert client.values() == {1: [b"a"], 2: [b"d"], 99: [b"b", b"c"]}
    assert dict(client.published[99][0]["headers"])[STREAM_HEADER] == rb"s\xff"


def test_a_dead_letter_has_the_beginning_of_a_long_name():
    client = WritingClient()
    name = "ä" * RECORD_BYTES_MAX
    write_rows([routed((name, b"a"))], client, sink_options(bad_records=DEAD_LETTERS))
    (letter,) = client.published[99]
    assert letter["value"] == b"a"
    assert dict(letter["headers"])[STREAM_HEADER] == "ä".encode() * 2048


def test_a_row_that_is_bad_twice_is_counted_once():
    client = WritingClient()
    batch = routed(("nowhere", bytes(RECORD_BYTES_MAX)))
    message = write_rows([batch], client, sink_options(bad_records=SKIP))
    assert message.skipped_count == 1


def test_waiting_rows_are_bounded_over_all_streams():
    client = WritingClient()
    client_seen = []

    def batches():
        for number in range(100):
            client_seen.append(sum(map(len, client.values().values())))
            yield routed((f"s{number}", bytes(1_000)))

    pace = SendingPace(waiting_bytes_max=10_000, append_bytes=1)
    write_rows(batches(), client, ROUTED, pace=pace)
    lag = [number - seen for number, seen in enumerate(client_seen)]
    assert max(lag) < 40
    assert sum(map(len, client.values().values())) == 100


def test_how_rows_are_put_together_is_an_option():
    client = WritingClient()
    options = sink_options("s1", batching=Batching(records_max=3, compression="zstd"))
    write_rows([keyed(*((None, bytes(1_000)) for _ in range(10)))], client, options)
    items = [item for each in client.appends for item in each]
    assert [decode_envelope(item.batch).record_count for item in items] == [3, 3, 3, 1]
    assert all(len(item.batch) < 1_500 for item in items)
    client = WritingClient()
    options = sink_options("s1", batching=Batching(target_bytes=2_000))
    write_rows([keyed(*((None, bytes(1_000)) for _ in range(10)))], client, options)
    assert len([item for each in client.appends for item in each]) >= 5


def test_rows_that_linger_are_sent():
    now = [0]
    pace = SendingPace(now_ms=lambda: now[0])
    client = WritingClient()

    def batches():
        for at in (0, 60, 120, 130):
            now[0] = at
            yield routed(("s1", b"%d" % at))

    write_rows(batches(), client, sink_options(batching=Batching(linger_ms=100)), pace=pace)
    assert [decode_envelope(items[0].batch).record_count for items in client.appends] == [3, 1]


def test_no_failed_append_is_forgotten_when_later_ones_succeed():
    class OnceBrokenClient(WritingClient):
        is_broken = True

        def append(self, items, **kind):
            if self.is_broken:
                self.is_broken = False
                raise ConnectError("refused")
            return super().append(items, **kind)

    with pytest.raises(ConnectError, match="refused"):
        write_rows(
            [routed(("s1", b"%d" % number)) for number in range(5)],
            OnceBrokenClient(),
            ROUTED,
            pace=AT_ONCE,
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
    rows = fill_times(to_rows(batch), NOW_US)
    assert rows.schema.equals(ROWS_SCHEMA)
    assert rows.column("headers").to_pylist() == headers
    assert rows.column("value").to_pylist() == ["ä".encode(), None]
    assert rows.column("key").to_pylist() == [b"k", b""]
    assert rows.column("timestamp").to_pylist() == [
        datetime(1970, 1, 1, 0, 0, 0, 5, UTC),
        datetime.fromtimestamp(NOW_US / 1_000_000, UTC),
    ]


def test_columns_that_are_not_there_are_null():
    rows = to_rows(pa.record_batch({"value": pa.array([b"a"])}))
    assert rows.column("key").to_pylist() == rows.column("headers").to_pylist() == [None]
    assert rows.column("timestamp").null_count == 1
    assert fill_times(rows, NOW_US).column("timestamp").null_count == 0
