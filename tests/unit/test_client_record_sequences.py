"""Appending to data nodes of ElasticStream: record sequences go, no other encoding is sent."""

from __future__ import annotations

import pyarrow as pa
import pytest
from client_answers import NO_RETRY
from core_cluster import rows_batch, values_of
from elasticstream_peer import OK, ElasticStreamPeer
from java_sdk import read_batches

from sbp_core.client import AppendItem, Dialect, FetchItem, Writer
from sbp_core.errors import ConfigurationError, InvalidRequestError, Outcome, StatusCode
from sbp_core.records import ROWS_SCHEMA, StreamSchema, encode_columns, encode_sequences
from sbp_core.wire.headers import ListRangesResponse
from sbp_core.wire.opcodes import Opcode

pytest_plugins = ["client_fixtures"]


@pytest.fixture
def server(peer) -> ElasticStreamPeer:
    return ElasticStreamPeer(peer, 7, 8)


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
    read, rest = read_batches(bytes(fetched.payload), 2)
    found = [(record.offset, record.body) for _, records in read for record in records]
    assert (found, rest) == (values_of(fetched.payload), b"")


@pytest.mark.parametrize("batch", [rows_batch([b"a"]), columns_batch()], ids=["rows", "columns"])
def test_another_encoding_is_refused_by_name_and_never_sent(make, server, batch) -> None:
    driver = make(server.endpoint)
    named = r"elasticstream-2023-04, .*in encoding '(rows|columns)'.*encode_sequences"
    for options in ({}, {"retry_unknown": True}, {"writer": Writer()}):
        with pytest.raises(ConfigurationError, match=named) as caught:
            driver.do("append", [AppendItem(7, batch)], **options)
        assert caught.value.outcome is Outcome.NOT_APPLIED
    assert not server.peer.seen(Opcode.APPEND)
    with pytest.raises(ConfigurationError, match=r"item 1 of 2 .*1 of 2 batches were appended"):
        driver.do("append", [*sequences(b"a"), AppendItem(7, batch)])
    assert len(server.batches[7]) == 1


def test_the_dialect_is_asked_for_once(make, server) -> None:
    driver = make(server.endpoint)
    assert [driver.do("dialect") for _ in range(2)] == [Dialect.ELASTICSTREAM_2023_04] * 2
    (asked,) = server.peer.seen(Opcode.LIST_RANGES)
    assert asked.header.range_owners == ()


def test_the_dialect_is_not_asked_for_when_it_was_seen(make, server) -> None:
    driver = make(server.endpoint)
    driver.do("list_ranges", [7])
    assert driver.do("dialect") is Dialect.ELASTICSTREAM_2023_04
    assert len(server.peer.seen(Opcode.LIST_RANGES)) == 1


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


def test_a_failure_to_ask_is_no_dialect(make, server) -> None:
    """It is raised, and asked again the next time."""
    failing = ListRangesResponse(status=type(OK)(1500, "down"))
    server.peer.script(Opcode.LIST_RANGES, lambda each: each.answer(failing), server.list_ranges)
    driver = make(server.endpoint, retry=NO_RETRY)
    with pytest.raises(Exception, match="down"):
        driver.do("dialect")
    assert driver.do("dialect") is Dialect.ELASTICSTREAM_2023_04
