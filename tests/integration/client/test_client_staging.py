"""Transactions of the blocking and the asyncio client: batches staged in each range."""

from __future__ import annotations

import pytest

from sbp_core.client import AppendItem, Transaction, TxnPart, Writer
from sbp_core.errors import (
    ConfigurationError,
    ConnectionLostError,
    NotFoundError,
    Outcome,
    RecordBatchError,
    StatusCode,
    TxnEndedError,
    UnsupportedError,
)
from sbp_core.wire.headers import Feature, HeartbeatResponse
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import rows_batch
from tests.support.scripted_peer import NO_RETRY, append_handler, placed, ranges, reset


def accepting(peer):
    """Let a peer agree to transactions, and stage all that it gets."""
    accepted = (Feature("transactions"),)
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(features=accepted)))
    peer.script(Opcode.APPEND, append_handler())
    return peer


@pytest.fixture
def server(peer):
    """A server that knows transactions, with one stream."""
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    return accepting(peer)


def items(*values, stream_id=1):
    """Batches of one record for each letter."""
    return [
        AppendItem(stream_id, rows_batch([bytes([byte]) for byte in value])) for value in values
    ]


def test_entries_possibly_staged_in_a_deleted_range_are_an_error(make, peers) -> None:
    pd, old, new = peers(), accepting(peers()), accepting(peers())
    pd.script(
        Opcode.LIST_RANGES,
        ranges(placed(1, 0, 0, -1, old.endpoint)),
        ranges(placed(1, 1, 5, -1, new.endpoint)),
    )
    old.script(Opcode.APPEND, reset)
    transaction = Transaction("t")
    driver = make(pd.endpoint)
    with pytest.raises(NotFoundError, match="where a batch may be staged, was trimmed"):
        driver.do("append", items(b"a"), transaction=transaction)
    assert new.seen(Opcode.APPEND) == []


def test_a_transaction_that_failed_is_over(make, server) -> None:
    server.script(Opcode.APPEND, append_handler(n1=StatusCode.TXN_ENDED))
    transaction = Transaction("t")
    driver = make(server.endpoint)
    with pytest.raises(TxnEndedError, match="item 1 of 2"):
        driver.do("append", items(b"a", b"b"), transaction=transaction)
    assert transaction.has_failed
    assert transaction.parts() == (TxnPart("t", 1, 0, 1, 1),)
    with pytest.raises(ConfigurationError, match="has failed"):
        driver.do("append", items(b"c"), transaction=transaction)
    assert len(server.seen(Opcode.APPEND)) == 1


def test_possibly_staged_entries_are_to_be_dropped(make, server) -> None:
    server.script(Opcode.APPEND, reset)
    transaction = Transaction("t")
    with pytest.raises(ConnectionLostError) as caught:
        make(server.endpoint, retry=NO_RETRY).do("append", items(b"a"), transaction=transaction)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert transaction.parts() == (TxnPart("t", 1, 0, 0, 0),)


def test_a_server_that_does_not_know_transactions_is_not_asked(make, peer) -> None:
    peer.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, peer.endpoint)))
    with pytest.raises(UnsupportedError, match="does not know transactions") as caught:
        make(peer.endpoint).do("append", items(b"a"), transaction=Transaction("t"))
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert peer.seen(Opcode.APPEND) == []


def test_a_transaction_has_no_writer(make, server) -> None:
    transaction = Transaction("t")
    driver = make(server.endpoint)
    with pytest.raises(ConfigurationError, match="without writer"):
        driver.do("append", items(b"a"), transaction=transaction, writer=Writer())
    with pytest.raises(RecordBatchError):
        driver.do("append", [AppendItem(1, b"no batch")], transaction=transaction)
    assert not transaction.has_failed
    assert server.requests == []
