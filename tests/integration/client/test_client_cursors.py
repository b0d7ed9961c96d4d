"""Cursors of both clients against answers that a server may give, and some that it may not."""

from __future__ import annotations

import pytest

from sbp_core.client import CursorInfo, GroupInfo
from sbp_core.errors import InvalidRequestError, ProtocolError, StatusCode
from sbp_core.wire.headers import CommitCursorsResponse, Cursor, DescribeCursorsResponse
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, reset, status


def commit(exchange: Exchange) -> None:
    exchange.answer(CommitCursorsResponse(cursors=exchange.header.cursors))


def described(*cursors: Cursor):
    return lambda exchange: exchange.answer(DescribeCursorsResponse(cursors=cursors))


def test_a_commit_whose_answer_is_lost_is_repeated(make, peer) -> None:
    peer.script(Opcode.COMMIT_CURSORS, reset, commit)
    make(peer.endpoint).do("commit_cursors", "g", {7: 5, 3: -1})
    for exchange in peer.seen(Opcode.COMMIT_CURSORS):
        assert exchange.header.group == "g"
        assert [(each.stream_id, each.next_offset) for each in exchange.header.cursors] == [
            (7, 5),
            (3, -1),
        ]
    assert len(peer.seen(Opcode.COMMIT_CURSORS)) == 2


def test_a_cursor_that_is_refused_is_named(make, peer) -> None:
    refused = (Cursor(7, 5), Cursor(3, status=status(StatusCode.INVALID_REQUEST)))
    peer.script(
        Opcode.COMMIT_CURSORS, lambda each: each.answer(CommitCursorsResponse(cursors=refused))
    )
    with pytest.raises(InvalidRequestError, match="cursor of stream 3: scripted"):
        make(peer.endpoint).do("commit_cursors", "g", {7: 5, 3: 1})


@pytest.mark.parametrize("cursors", [(), (Cursor(7, 5),), (Cursor(3, 1), Cursor(7, 5))])
def test_an_answer_to_something_else_is_none(make, peer, cursors) -> None:
    peer.script(
        Opcode.COMMIT_CURSORS, lambda each: each.answer(CommitCursorsResponse(cursors=cursors))
    )
    peer.script(Opcode.DESCRIBE_CURSORS, described(*cursors))
    driver = make(peer.endpoint)
    with pytest.raises(ProtocolError, match="says nothing about some of the 2 cursors"):
        driver.do("commit_cursors", "g", {7: 5, 3: 1})
    with pytest.raises(ProtocolError, match="says nothing about some of the 2 cursors"):
        driver.do("describe_cursors", "g", [7, 3])


def test_cursors_and_groups_are_read(make, peer) -> None:
    peer.script(
        Opcode.DESCRIBE_CURSORS,
        reset,
        described(Cursor(7, 5, 100), Cursor(9), Cursor(3, 0, 90)),
        described(Cursor(group="g", committed_at_ms=100), Cursor(group="h", committed_at_ms=1)),
        described(Cursor(7, status=status(StatusCode.INVALID_REQUEST))),
    )
    driver = make(peer.endpoint)
    assert driver.do("describe_cursors", "g", [7, 9, 3, 7]) == [
        CursorInfo(7, 5, 100),
        CursorInfo(3, 0, 90),
    ]
    assert driver.do("list_groups") == [GroupInfo("g", 100), GroupInfo("h", 1)]
    assert peer.seen(Opcode.DESCRIBE_CURSORS)[-1].header.group is None
    with pytest.raises(InvalidRequestError, match="cursor of stream 7"):
        driver.do("describe_cursors", "g")
