"""Transactions of the blocking and the asyncio client: batches staged in each range."""

from __future__ import annotations

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, AppendOutcome, RangeInfo, Transaction
from sbp_core.client.operations.router import Router
from sbp_core.errors import ConfigurationError, RangeSealedError, StatusCode
from tests.support.cluster import rows_batch

SEALED = StatusCode.RANGE_ALREADY_SEALED


def items(*values, stream_id=1):
    """Batches of one record for each letter."""
    return [
        AppendItem(stream_id, rows_batch([bytes([byte]) for byte in value])) for value in values
    ]


def test_nothing_is_staged_in_the_beginning() -> None:
    assert Transaction("t").parts() == ()


def test_a_transaction_does_one_thing_at_a_time() -> None:
    transaction = Transaction("t")
    first = transaction._begin()
    with pytest.raises(ConfigurationError, match="one append at a time"):
        transaction._begin()
    assert not transaction.has_failed
    first.end((), is_complete=True)
    transaction._begin()


PIECE = RangeInfo(1, 0, 0, None, 0, ("127.0.0.1:1",))


def test_a_number_that_a_range_refused_is_not_lost() -> None:
    """A server that dies before its seal is on disk has an open range again, without a gap."""
    transaction = Transaction("t")
    staging = transaction._begin()
    staging.add(items(b"a", b"b", b"c", b"d"))
    assert [staging.marks(index, PIECE).sequence for index in range(3)] == [0, 1, 2]
    staging.on_appended(0, AppendOutcome(1, -1, 7))
    staging.on_refused(1, RangeSealedError(SEALED, ""))
    assert staging.marks(1, PIECE).sequence == 1
    assert staging.marks(2, PIECE).sequence == 2, "its outcome is unknown"
    assert staging.marks(3, PIECE).sequence == 3
    for index in (1, 2):
        staging.on_refused(index, RangeSealedError(SEALED, ""))
    assert [staging.marks(index, PIECE).sequence for index in (1, 2)] == [1, 2]


def test_a_range_that_another_thread_looks_up_is_not_gone() -> None:
    router = Router()
    router.learn(1, [PIECE])
    staging = Transaction("t")._begin()
    staging.add(items(b"a"))
    staging.marks(0, staging.range_for(0, 1, router))
    router.forget(1)
    with pytest.raises(RangeSealedError, match="looked up again") as caught:
        staging.range_for(0, 1, router)
    assert caught.value.retriable
    router.learn(1, [PIECE])
    assert staging.range_for(0, 1, router) == PIECE


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * (limits.TXN_ID_LENGTH_MAX + 1)])
def test_a_transaction_needs_a_name_that_servers_take(name) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a transaction"):
        Transaction(name)
