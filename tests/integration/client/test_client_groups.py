"""Members of groups in both clients, against answers that a server may give."""

from __future__ import annotations

import pytest

from sbp_core.client import GroupDescription, MemberInfo, Membership
from sbp_core.errors import (
    MemberUnknownError,
    StatusCode,
    StatusError,
    StreamNotHeldError,
    UnsupportedError,
)
from sbp_core.wire.headers import (
    CommitCursorsResponse,
    Cursor,
    DescribeGroupResponse,
    Feature,
    GroupHeartbeatResponse,
    GroupMember,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, ScriptedPeer, reset, status

MEMBERSHIP = Membership("g", "m", 7, (1, 2), 6_000)


@pytest.fixture
def server(peer: ScriptedPeer) -> ScriptedPeer:
    """A placement driver that knows members of groups."""
    accepted = (Feature("groups"),)
    peer.script(Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(features=accepted)))
    return peer


def beat(generation: int, *stream_ids: int):
    return lambda exchange: exchange.answer(
        GroupHeartbeatResponse(generation=generation, stream_ids=stream_ids)
    )


def test_a_member_has_one_id_however_often_its_join_is_sent(make, server) -> None:
    def join(exchange: Exchange) -> None:
        exchange.answer(JoinGroupResponse(generation=5, stream_ids=(1, 2)))

    server.script(Opcode.JOIN_GROUP, reset, join)
    driver = make(server.endpoint)
    found = driver.do("join_group", "g", ["orders-*"], session_timeout_ms=6_000)
    first, second = (each.header for each in server.seen(Opcode.JOIN_GROUP))
    assert first == second
    assert (first.group, first.patterns, first.session_timeout_ms) == ("g", ("orders-*",), 6_000)
    assert found == Membership("g", first.member_id, 5, (1, 2), 6_000)
    assert len(found.member_id) == 32
    other = driver.do("join_group", "g", ["*"])
    assert other.member_id != found.member_id


def test_a_heartbeat_names_what_is_held_and_returns_what_is_assigned(make, server) -> None:
    server.script(Opcode.GROUP_HEARTBEAT, reset, beat(8, 2, 3))
    found = make(server.endpoint).do("group_heartbeat", MEMBERSHIP, {2, 1})
    assert found == Membership("g", "m", 8, (2, 3), 6_000)
    for exchange in server.seen(Opcode.GROUP_HEARTBEAT):
        assert (exchange.header.generation, exchange.header.stream_ids) == (7, (1, 2))
        assert exchange.header.timeout_ms == 2_000


def test_an_answer_of_an_earlier_generation_changes_nothing(make, server) -> None:
    server.script(Opcode.GROUP_HEARTBEAT, beat(6, 9))
    assert make(server.endpoint).do("group_heartbeat", MEMBERSHIP, ()) == MEMBERSHIP


def test_a_member_that_was_expelled_learns_it_without_a_retry(make, server) -> None:
    code = StatusCode.MEMBER_UNKNOWN
    server.script(
        Opcode.GROUP_HEARTBEAT,
        lambda each: each.answer(GroupHeartbeatResponse(status=status(code))),
    )
    with pytest.raises(MemberUnknownError):
        make(server.endpoint).do("group_heartbeat", MEMBERSHIP, ())
    assert len(server.seen(Opcode.GROUP_HEARTBEAT)) == 1


def test_a_commit_of_a_member_names_it_and_its_generation(make, server) -> None:
    refused = (Cursor(1, 5), Cursor(2, status=status(StatusCode.STREAM_NOT_HELD)))
    server.script(
        Opcode.COMMIT_CURSORS, lambda each: each.answer(CommitCursorsResponse(cursors=refused))
    )
    with pytest.raises(StreamNotHeldError, match="cursor of stream 2"):
        make(server.endpoint).do("commit_cursors", "g", {1: 5, 2: 5}, membership=MEMBERSHIP)
    (exchange,) = server.seen(Opcode.COMMIT_CURSORS)
    assert (exchange.header.member_id, exchange.header.generation) == ("m", 7)


def test_the_members_of_a_group_are_described(make, server) -> None:
    a = GroupMember("a", ("*",), 6_000, 9_000, (1, 2), (3,), "CN=a")
    b = GroupMember("b", ("x",), 6_000, 9_000)

    def describe(exchange: Exchange) -> None:
        exchange.answer(DescribeGroupResponse(generation=8, members=(a,)), is_end=False)
        exchange.answer(DescribeGroupResponse(generation=8, members=(b,)))

    server.script(Opcode.DESCRIBE_GROUP, describe)
    found = make(server.endpoint).do("describe_group", "g")
    assert found.members == (
        MemberInfo("a", ("*",), (1, 2), (3,), 6_000, 9_000, "CN=a"),
        MemberInfo("b", ("x",), (), (), 6_000, 9_000, None),
    )
    assert (found.generation, found.state) == (8, "rebalancing")
    assert found.holders == {1: "a", 2: "a", 3: "a"}
    assert GroupDescription("g", 8, found.members[1:]).state == "stable"
    assert GroupDescription("g", -1, ()).state == "empty"


def test_a_leave_may_be_repeated(make, server) -> None:
    server.script(Opcode.LEAVE_GROUP, reset, lambda each: each.answer(LeaveGroupResponse()))
    make(server.endpoint).do("leave_group", "g", "m")
    assert [each.header.member_id for each in server.seen(Opcode.LEAVE_GROUP)] == ["m", "m"]


@pytest.mark.parametrize(
    ("method", "arguments", "opcode"),
    [
        ("join_group", ("g", ["*"]), Opcode.JOIN_GROUP),
        ("group_heartbeat", (MEMBERSHIP, ()), Opcode.GROUP_HEARTBEAT),
        ("leave_group", ("g", "m"), Opcode.LEAVE_GROUP),
        ("describe_group", ("g",), Opcode.DESCRIBE_GROUP),
    ],
)
def test_a_server_without_members_is_asked_nothing(make, peer, method, arguments, opcode) -> None:
    with pytest.raises(UnsupportedError, match="members of consumer groups: upgrade") as caught:
        make(peer.endpoint).do(method, *arguments)
    assert isinstance(caught.value, StatusError)
    assert peer.seen(opcode) == []
