"""Appending to data nodes of ElasticStream: record sequences go, no other encoding is sent."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from sbp_core.client import AppendItem, Dialect, FetchItem, Writer
from sbp_core.errors import (
    ConfigurationError,
    InvalidRequestError,
    Outcome,
    StatusCode,
    StatusError,
)
from sbp_core.records import ROWS_SCHEMA, StreamSchema, encode_columns, encode_sequences
from sbp_core.wire.headers import (
    HeartbeatResponse,
    ListRangesResponse,
    ListRangesResult,
    RangeCriteria,
    Status,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import rows_batch, values_of
from tests.support.dialect import OK, ElasticStreamPeer, stored_records
from tests.support.scripted_peer import NO_RETRY, Exchange, placed


@pytest.fixture
def server(peers) -> ElasticStreamPeer:
    return ElasticStreamPeer(peers(), peers(), 7, 8)


def sequences(*values: bytes, stream_id: int = 7) -> list[AppendItem]:
    rows = pa.RecordBatch.from_pylist([{"value": value} for value in values], schema=ROWS_SCHEMA)
    batches = encode_sequences(rows, stream_id=stream_id, timestamp_ms=5)
    return [AppendItem(stream_id, batch) for batch in batches]


def columns_batch() -> bytes:
    batch = pa.record_batch({"id": pa.array([1], pa.int64())})
    return encode_columns(batch, StreamSchema(batch.schema), stream_id=7, timestamp_ms=5)


def test_sequences_are_appended_and_read_by_both_clients(make, server) -> None:
    driver = make(server.endpoint)
    outcomes = driver.do("append", sequences(b"a", b"b"), retry_unknown=True)
    outcomes += driver.do("append", sequences(b"c"), retry_unknown=True)
    assert [each.base_offset for each in outcomes] == [0, 2]
    (fetched,) = driver.fetch([FetchItem(7, 0, None, 1 << 20)])
    assert values_of(fetched.payload) == [(0, b"a"), (1, b"b"), (2, b"c")]
    found = [(each.offset, each.body) for each in stored_records(server.endpoint, 7)]
    assert found == values_of(fetched.payload)


@pytest.mark.parametrize("batch", [rows_batch([b"a"]), columns_batch()], ids=["rows", "columns"])
def test_another_encoding_is_refused_by_name_and_never_sent(make, server, batch) -> None:
    driver = make(server.endpoint)
    named = r"elasticstream-2023-04, .*in encoding '(rows|columns)'.*encode_sequences"
    for options in ({}, {"retry_unknown": True}, {"writer": Writer()}):
        with pytest.raises(ConfigurationError, match=named) as caught:
            driver.do("append", [AppendItem(7, batch)], **options)
        assert caught.value.outcome is Outcome.NOT_APPLIED
    assert server.next_offset(7) == 0
    with pytest.raises(ConfigurationError, match=r"item 1 of 2 .*1 of 2 batches were appended"):
        driver.do("append", [*sequences(b"a"), AppendItem(7, batch)])
    assert server.next_offset(7) == 1


@pytest.mark.parametrize("looks", ["dialect", "list_ranges"])
def test_the_dialect_is_asked_for_once(make, peer, looks) -> None:
    """Not at all where ranges were looked up before."""
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(status=OK)))
    listed = ListRangesResult(RangeCriteria(stream_id=7), (placed(7, 0, 0, -1, "x:1"),), OK)
    answer = ListRangesResponse(0, (listed,), OK)
    peer.script(Opcode.LIST_RANGES, lambda each: each.answer(answer))
    driver = make(peer.endpoint)
    driver.do(looks, *([[7]] if looks == "list_ranges" else []))
    asked_count = len(peer.seen(Opcode.LIST_RANGES))
    assert driver.do("dialect") is Dialect.ELASTICSTREAM_2023_04
    assert len(peer.seen(Opcode.LIST_RANGES)) == asked_count


@pytest.mark.parametrize("refuses", [False, True], ids=["answers", "refuses"])
def test_any_other_placement_driver_speaks_the_specification(make, peer, refuses) -> None:
    def answer(exchange) -> None:
        if refuses:
            exchange.fail(InvalidRequestError(StatusCode.INVALID_REQUEST, "name a stream"))
        else:
            exchange.answer(ListRangesResponse(revision=3))

    peer.script(Opcode.LIST_RANGES, answer)
    driver = make(peer.endpoint, retry=NO_RETRY)
    assert driver.do("dialect") is Dialect.SPECIFICATION


def test_a_failure_to_ask_is_no_dialect(make, peer) -> None:
    """It is raised, and asked again the next time."""
    answers = ListRangesResponse(status=Status(1500, "down")), ListRangesResponse(status=OK)
    peer.script(Opcode.LIST_RANGES, *(partial(Exchange.answer, header=each) for each in answers))
    driver = make(peer.endpoint, retry=NO_RETRY)
    with pytest.raises(StatusError, match="down"):
        driver.do("dialect")
    assert driver.do("dialect") is Dialect.ELASTICSTREAM_2023_04
