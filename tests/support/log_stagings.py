"""Helpers of the tests of transactions in the log: entries, and the records readable from them."""

from __future__ import annotations

from collections.abc import Sequence

from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.states.staged_states import Staging, commit_entry, drop_entry, staged_entry

KEY = (1, 0)


def staged(txn_id: str, sequence: int, body: bytes = b"staged", count: int = 1) -> Entry:
    return staged_entry(*KEY, txn_id, sequence, count, body)


def staging(log: Log, txn_id: str, key: tuple[int, int] = KEY) -> Staging:
    found = log.staged.maybe_staging(*key, txn_id)
    assert found is not None
    return found


def commit(log: Log, *txn_ids: str, key: tuple[int, int] = KEY) -> Entry:
    """The entry that publishes what is staged, at the end of its range."""
    logged = log.maybe_range(key)
    assert logged is not None
    return commit_entry(*key, logged.next_offset, [staging(log, each, key) for each in txn_ids])


def drop(*txn_ids: str, key: tuple[int, int] = KEY) -> Entry:
    return drop_entry(*key, txn_ids)


def bodies(log: Log, offset: int = 0, key: tuple[int, int] = KEY) -> Sequence[bytes]:
    """The batches of a range from an offset on, each without what is in front of it."""
    slots = list(log.batches_from(key, offset))
    read = read_bodies(key, slots)
    assert read.error is None, read.error
    return [bytes(each) for each in read.data]


def staged_bodies(log: Log, txn_id: str, key: tuple[int, int] = KEY) -> Sequence[bytes]:
    read = read_bodies(key, list(log.staged_from(staging(log, txn_id, key), 0)))
    assert read.error is None, read.error
    return [bytes(each) for each in read.data]
