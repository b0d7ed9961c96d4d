"""Ids of transactions name the batch that they belong to."""

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.limits import PRODUCER_LENGTH_MAX, TXN_ID_LENGTH_MAX
from sbp_core.wire.txn_id import (
    copy_of,
    is_producer,
    is_txn_id,
    maybe_batch_of,
    original_of,
    txn_id_of,
)

PRODUCERS = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
UNIQUE = st.from_regex(r"[0-9a-f]{1,32}", fullmatch=True)


@given(PRODUCERS, st.integers(0, 2**63 - 1), UNIQUE, st.integers(0, 2**31 - 1))
def test_an_id_tells_its_batch_and_so_does_a_copy(producer, batch_number, unique, index) -> None:
    txn_id = txn_id_of(producer, batch_number, unique)
    assert is_producer(producer)
    assert is_txn_id(txn_id)
    assert maybe_batch_of(txn_id) == (producer, batch_number)
    copy = copy_of(txn_id, index)
    assert is_txn_id(copy)
    assert copy != txn_id
    assert original_of(copy) == original_of(txn_id) == txn_id
    assert maybe_batch_of(copy) == (producer, batch_number)


def test_other_ids_tell_nothing() -> None:
    for text in ("6f1c", "orders.17", "orders.-1.6f1c", "orders.017.6f1c", ".17.6f1c", "a b.1.x"):
        assert maybe_batch_of(text) is None


def test_texts_that_are_no_id() -> None:
    assert not is_txn_id("")
    assert not is_txn_id("a b")
    assert not is_txn_id("x" * (TXN_ID_LENGTH_MAX + 1))
    assert not is_producer("x" * (PRODUCER_LENGTH_MAX + 1))
    assert not is_producer("a~b")
