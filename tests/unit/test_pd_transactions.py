"""Decisions of transactions in the metadata store: the first one counts, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest

from sbp_core import limits
from sbp_core.access.rights import CLAIM_MS
from sbp_core.errors import (
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    TxnAbortedError,
)
from sbp_core.limits import ABORTED_TXNS_KEPT_MS, TXN_ID_LENGTH_MAX, TXNS_KEPT_PER_PRODUCER
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.model import NewStream, RangeRecord, SealedRange
from sbp_core.pd.txns.decisions import (
    Decision,
    Manifest,
    Part,
    Verdict,
    check_manifest,
    check_parts,
)
from sbp_core.wire.txn_id import copy_of, one_shot_producer

DIGEST = b"12345678"


@pytest.fixture
def store(home):
    opened = home.open()
    opened.create_streams([NewStream(name, 1, 1, 0, (1,)) for name in ("a", "b")], 5)
    return opened


@pytest.fixture
def txns(store):
    return store.transactions


def part(txn_id: str, stream_id: int = 1, range_index: int = 0, count: int = 5) -> Part:
    return Part(txn_id, stream_id, range_index, count)


def sized(txn_id: str, record_count: int, batch_count: int) -> Part:
    return Part(txn_id, 1, 0, record_count, batch_count)


def manifest(batch_number: int, *parts: Part, producer: str = "p", digest=DIGEST) -> Manifest:
    return Manifest(producer, batch_number, parts, sum(each.record_count for each in parts), digest)


def commit(txns, batch_number: int, *parts: Part, producer: str = "p", **bounds: int) -> int:
    decision = txns.commit(manifest(batch_number, *parts, producer=producer), 9, **bounds)
    assert not decision.is_replay
    return decision.txn.txn_number


def publish(txns, number: int) -> None:
    for txn in txns.unpublished():
        if txn.txn_number == number:
            txns.record_published([(number, each.stream_id) for each in txn.parts])


def test_a_number_that_leaps_is_refused_and_changes_nothing(txns):
    assert commit(txns, 2**62) == 1  # the first one is free
    leap = limits.BATCH_NUMBER_LEAP_MAX
    commit(txns, 5, producer="q")
    for number in (5 + leap + 1, 2**63 - 1):
        with pytest.raises(InvalidRequestError, match=r"last batch is 5.*batch_number_leap_max"):
            txns.commit(manifest(number, part("t"), producer="q"), 9)
    assert txns.maybe_last_batch("q") == 5
    commit(txns, 5 + leap, part("t"), producer="q")
    commit(txns, 5 + 3 * leap, producer="q", leap_max=2 * leap)
    assert txns.commit(manifest(6, producer="q"), 9) == Decision(is_replay=True, txn=None)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (part("p.2.a", 3), NotFoundError),
        (part("p.2.a", 1, 1), TxnAbortedError),
        (part("gone"), TxnAbortedError),
        (part("free"), InvalidRequestError),
    ],
)
def test_a_refused_commit_decides_nothing(txns, wrong, error):
    commit(txns, 1, part("free", 2), producer="q")
    assert txns.abort([part("gone")], 9) == [Verdict.GIVEN_UP]
    with pytest.raises(error):
        txns.commit(manifest(2, part("p.2.z"), wrong), 9)
    assert txns.maybe_last_batch("p") is None
    assert len(txns.unpublished()) == 1
    commit(txns, 2, part("p.2.z"))


def test_no_more_is_kept_than_is_asked_for(txns):
    open_number = commit(txns, 0, part("p.0.a"))
    for batch_number in range(1, TXNS_KEPT_PER_PRODUCER + 4):
        commit(txns, batch_number)
    kept = [each.batch_number for each in txns.txns_after(-1, 100)]
    assert kept == [0, *range(4, TXNS_KEPT_PER_PRODUCER + 4)], "an unpublished batch is kept"
    old = txns.commit(manifest(2), 9)
    assert (old.is_replay, old.txn) == (True, None)
    publish(txns, open_number)
    commit(txns, 100)
    assert txns.txns_after(-1, 100)[0].batch_number == 5
    assert txns.abort([part("x")], 0) == [Verdict.GIVEN_UP]
    assert txns.abort([part("y")], ABORTED_TXNS_KEPT_MS) == [Verdict.GIVEN_UP]
    assert len(txns.aborted_after("", 10)) == 2
    assert txns.abort([part("z")], ABORTED_TXNS_KEPT_MS + 1) == [Verdict.GIVEN_UP]
    assert [each.txn_id for each in txns.aborted_after("", 10)] == ["y", "z"]


def test_producers_of_one_batch_are_forgotten_some_time_after(txns):
    published, hidden, newer = (one_shot_producer() for _ in range(3))
    commit(txns, 0, producer=published)
    number = commit(txns, 0, part("x"), producer=hidden)
    commit(txns, 0, producer="p")
    later = 9 + limits.ONE_SHOT_KEPT_MS
    txns.commit(manifest(0, producer=newer), later)
    assert txns.commit(manifest(0, producer=published), later).is_replay
    txns.commit(manifest(1), later + 1)
    producers = [each.producer for each in txns.txns_after(-1, 10)]
    assert producers == [hidden, "p", newer, "p"]
    publish(txns, number)
    txns.commit(manifest(2), later + 1)
    assert [each.producer for each in txns.txns_after(-1, 10)] == ["p", newer, "p", "p"]


def test_few_rows_are_looked_at(tmp_path):
    """Neither to tell what is known of a producer, nor to forget those of one batch."""
    store = open_store(tmp_path)
    asked = []
    store.database._file.set_trace_callback(asked.append)
    store.transactions.txns_after(-1, 10, "p")
    commit(store.transactions, 1)
    store.database._file.set_trace_callback(None)
    plans = []
    for statement in asked:
        if "FROM txns" in statement and not statement.startswith("--"):
            rows = store.database._file.execute(f"EXPLAIN QUERY PLAN {statement}")
            plans += [row[3] for row in rows]
    store.close()
    assert any("(producer=?)" in plan for plan in plans), plans
    assert any("txns_one_shot (decided_at_ms<?)" in plan for plan in plans), plans
    assert not any(plan.startswith("SCAN txns") for plan in plans), plans


def test_a_range_is_looked_up_once(txns):
    asked = Counter()

    def has(name, found, *key):
        asked[name] += 1
        return found(*key)

    counted = {
        name: partial(has, name, getattr(txns, name)) for name in ("has_stream", "has_range")
    }
    ledger = SimpleNamespace(is_aborted=txns.is_aborted, is_named=txns.is_named, **counted)
    check_parts(ledger, [part(f"p.1.{number}") for number in range(50)])
    assert asked == {"has_stream": 1, "has_range": 1}


def test_a_trim_leaves_the_ranges_that_publishing_needs(store, txns):
    number = commit(txns, 1, part("p.1.a"))
    for index in range(3):
        store.seal_ranges([SealedRange(1, index, 10 * index + 10)])
        store.create_ranges([RangeRecord(1, index + 1, 10 * index + 10, None, 1, (1,))])
    store.trim_streams([(1, 25)])
    kept = store.ranges_after((-1, -1), 10, stream_id=1, server_id=None)
    assert [(each.range_index, each.start_offset) for each in kept] == [
        (0, 10),
        (1, 20),
        (2, 25),
        (3, 30),
    ]
    publish(txns, number)
    store.trim_streams([(1, 25)])
    kept = store.ranges_after((-1, -1), 10, stream_id=1, server_id=None)
    assert [each.range_index for each in kept] == [2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        Manifest("", 1, (), 0, DIGEST),
        Manifest("a b", 1, (), 0, DIGEST),
        Manifest("p", -1, (), 0, DIGEST),
        Manifest("p", 1, (), 0, b"1234567"),
        Manifest("p", 1, (), 0, b"1" * 33),
        manifest(1, part("")),
        manifest(1, part("a b")),
        manifest(1, part(copy_of("x", 0))),
        manifest(1, part("x" * (TXN_ID_LENGTH_MAX - 10))),
        manifest(1, part("x", count=-1)),
        manifest(1, part("x"), part("x", count=4)),
        manifest(1, part("p.2.a")),
        manifest(1, part("q.1.a")),
        manifest(1, part("x", count=2**31), part("y", count=2**31)),
        manifest(1, sized("x", 2, limits.TXN_BATCHES_MAX), sized("y", 2, 1)),
    ],
)
def test_manifests_that_make_no_sense(wrong):
    with pytest.raises(InvalidRequestError):
        check_manifest(wrong)


def test_a_lost_part_of_a_decision_is_recorded(txns):
    parts = (part("p.1.a"), part("p.1.a", 2), part("one", count=2))
    number = commit(txns, 1, *parts)
    found = txns.give_up(number, 1, 9)
    assert (found.batch_number, found.parts, found.given_up) == (
        1,
        parts[1:2],
        (parts[0], parts[2]),
    )
    assert txns.give_up(number, 1, 10) == found
    assert txns.maybe_decided("p", 1) == Decision(is_replay=True, txn=found)
    assert txns.maybe_decided("p", 2) is txns.maybe_decided("q", 1) is None
    assert txns.abort([part("p.1.a"), part("p.1.a", 2)], 9) == [Verdict.DEAD, Verdict.KEPT]
    assert txns.abort([part("one", count=-1)], 9) == [Verdict.DEAD]
    with pytest.raises(TxnAbortedError):
        commit(txns, 2, part("one"))
    publish(txns, number)
    assert txns.unpublished() == []


@pytest.mark.parametrize("producer", ["p", "once-p"])
def test_a_lost_part_of_a_decision_is_kept_whatever_follows(txns, producer):
    number = commit(txns, 1, part("one"), producer=producer)
    told_until_ms = 9 + ABORTED_TXNS_KEPT_MS
    lost = txns.give_up(number, 1, 9)
    for later in range(2, TXNS_KEPT_PER_PRODUCER + 3):
        txns.commit(manifest(later, producer=producer), told_until_ms)
    assert txns.maybe_decided(producer, 1) == Decision(is_replay=True, txn=lost)
    assert txns.abort([part("one", count=-1)], 9) == [Verdict.DEAD]
    txns.commit(manifest(99, producer=producer), told_until_ms + 1)
    assert txns.maybe_decided(producer, 1) == Decision(is_replay=True, txn=None)
    assert txns.abort([part("one", count=-1)], 9) == [Verdict.KEPT], "nothing is known any more"


def test_a_producer_belongs_to_the_subject_of_its_first_batch(store):
    def commit(number, subject):
        parts = (Part(f"p.{number}.x", 1, 0, 5),)
        manifest = Manifest("p", number, parts, 5, DIGEST, subject)
        return store.transactions.commit(manifest, 5)

    assert store.transactions.maybe_owner("p") is None
    commit(1, None)
    commit(2, "me")
    assert store.transactions.maybe_owner("p") == "me"
    for number in (1, 2, 3):
        with pytest.raises(PermissionDeniedError, match="belongs to another identity than 'you'"):
            commit(number, "you")
    with pytest.raises(PermissionDeniedError):
        store.transactions.abort([Part("p.3.x", 1, 0, 5)], 5, "you")
    assert commit(2, "me").is_replay
    assert not commit(3, "me").is_replay
    assert store.transactions.abort([Part("p.4.x", 1, 0, 5)], 5, "me") == [Verdict.GIVEN_UP]
    assert store.transactions.abort([Part("p.5.x", 1, 0, 5)], 5) == [Verdict.GIVEN_UP]


def test_a_claim_counts_until_the_first_decision_and_outlives_the_placement_driver(home):
    store = home.open()
    store.create_streams([NewStream("a", 1, 1, 0, (1,))], 5)
    assert store.transactions.claim(["p.0.x", "p.0.y", "plain"], "me", 5) == []
    store = home.crash()
    txns = store.transactions
    assert txns.claim(["p.1.z", "q.0.x", "plain"], "you", 6) == ["p.1.z", "plain"]
    for producer, txn_id in (("p", "p.0.x"), ("r", "plain")):
        theirs = Manifest(producer, 0, (part(txn_id),), 5, DIGEST, "you")
        with pytest.raises(PermissionDeniedError, match="belongs to another identity than 'you'"):
            txns.commit(theirs, 7)
        with pytest.raises(PermissionDeniedError):
            txns.abort([part(txn_id)], 7, "you")
    txns.commit(Manifest("p", 0, (part("p.0.x"), part("plain")), 10, DIGEST, "me"), 7)
    assert store.capacity.counts()["producer_claims"][0] == 1, "that of q"
    assert txns.maybe_owner("p") == "me"
    assert txns.claim(["p.1.z"], "you", 8) == ["p.1.z"]


def test_a_claim_is_kept_as_long_as_something_may_be_staged_under_it(txns):
    last_ms = limits.STAGED_TIMEOUT_MS_MAX + 24 * CLAIM_MS
    txns.claim(["p.0.x", "q.0.x"], "me", 0)
    txns.claim(["p.0.x"], "me", 1)
    assert txns.claim(["p.0.x", "q.0.x"], "you", last_ms) == ["p.0.x", "q.0.x"]
    assert txns.claim(["p.0.x", "q.0.x"], "you", last_ms + 1) == ["p.0.x"]
