"""Client calls about the placement driver's metadata as a whole: revision, last commit."""

from __future__ import annotations

import pytest

from sbp_core.client import MetadataChanges, StoreCommit
from sbp_core.errors import StatusCode
from sbp_core.wire.headers import ListRangesResponse
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, status

LIFE = "0-0123456789abcdef"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ListRangesResponse(revision=-1), None),
        (ListRangesResponse(revision=0), MetadataChanges(0, None)),
        (ListRangesResponse(revision=5), MetadataChanges(5, frozenset())),
        (ListRangesResponse(revision=7), MetadataChanges(7, None)),
        (ListRangesResponse(revision=7, lists_changes=True), MetadataChanges(7, frozenset())),
        (
            ListRangesResponse(revision=7, lists_changes=True, changed_streams=(2, 1)),
            MetadataChanges(7, frozenset({1, 2})),
        ),
    ],
)
def test_changes_are_asked_for_without_naming_a_stream(make, peer, answer, told) -> None:
    def handle(exchange: Exchange) -> None:
        assert exchange.header.range_owners == ()
        assert exchange.header.since_revision == 5
        exchange.answer(answer)

    peer.script(Opcode.LIST_RANGES, handle)
    assert make(peer.endpoint).do("metadata_changes", 5) == told


def test_a_server_that_wants_streams_to_be_named_counts_no_revisions(make, peer) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.answer(ListRangesResponse(status=status(StatusCode.INVALID_REQUEST)))

    peer.script(Opcode.LIST_RANGES, refuse)
    assert make(peer.endpoint).do("metadata_changes") is None


def test_the_last_commit_is_remembered_and_others_are_asked_for(make, peer) -> None:
    asked = []

    def answer(exchange: Exchange) -> None:
        header = exchange.header
        asked.append((header.store_commit, header.store_life))
        exchange.answer(
            ListRangesResponse(
                revision=1,
                store_commit=len(asked),
                store_life=LIFE,
                lacks_commit=header.store_life == "lost",
            )
        )

    peer.script(Opcode.LIST_RANGES, answer)
    driver = make(peer.endpoint)
    assert driver.client.last_commit is None
    driver.do("metadata_changes")
    assert driver.client.last_commit == StoreCommit(1, LIFE)
    assert driver.do("has_commit", StoreCommit(7, "lost")) is False
    assert driver.do("has_commit", StoreCommit(7, LIFE)) is True
    assert driver.client.last_commit == StoreCommit(3, LIFE)
    assert asked == [(-1, None), (7, "lost"), (7, LIFE)]


@pytest.mark.parametrize(
    ("number", "life", "is_counted"),
    [
        (1, None, False),
        (-1, LIFE, True),
        (1, "", False),
        (1, "x" * 33, True),
        (1, "a b", True),
        (1, "\u00e9", True),
        (1, "\n", True),
    ],
)
def test_a_commit_that_none_can_be_is_not_remembered(make, peer, number, life, is_counted) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        lambda each: each.answer(ListRangesResponse(store_commit=number, store_life=life)),
    )
    driver = make(peer.endpoint)
    driver.do("metadata_changes")
    assert driver.client.last_commit is None
    assert driver.do("has_commit", StoreCommit(1, LIFE)) is (True if is_counted else None)


def test_a_placement_driver_that_wants_streams_to_be_named_tells_no_commit(make, peer) -> None:
    peer.script(
        Opcode.LIST_RANGES,
        lambda each: each.answer(ListRangesResponse(status=status(StatusCode.INVALID_REQUEST))),
    )
    assert make(peer.endpoint).do("has_commit", StoreCommit(1, LIFE)) is None
