"""A consumer group: who holds each stream, and what late messages may change."""

import pytest

from sbp_core.errors import MemberUnknownError, StreamNotHeldError
from sbp_core.pd.groups.group import Group, GroupState, Holding, Member

STREAMS = frozenset({1, 2})


def member(member_id):
    return Member(member_id, ("*",), 1_000, 1_000)


def joined(group, *member_ids):
    for each in member_ids:
        eligible = dict.fromkeys([*group.members, each], STREAMS)
        group = group.with_member(member(each), eligible)
    return group


def left(group, member_id):
    others = group.members.keys() - {member_id}
    return group.without_members([member_id], dict.fromkeys(others, STREAMS))


def given_up(group, member_id):
    """The group after a member has done what the last answer asks for."""
    return group.after_heartbeat(member_id, group.generation, group.assigned(member_id))


def test_a_stream_moves_only_after_its_holder_has_given_it_up():
    group = joined(Group(10), "a")
    assert (group.generation, group.state) == (11, GroupState.STABLE)
    assert group.assigned("a") == [1, 2]
    group = joined(group, "b")
    assert group.state is GroupState.REBALANCING
    assert (group.assigned("a"), group.assigned("b")) == ([1], [])
    assert group.after_heartbeat("a", group.generation, {1, 2}) is group
    group.check_holds("a", group.generation, 2)  # it commits what it has read
    group = group.after_heartbeat("a", group.generation, {1})
    assert (group.assigned("a"), group.assigned("b")) == ([1], [2])
    assert group.state is GroupState.STABLE
    assert group.holdings[2] == Holding(2, "b", since=group.generation)


def test_the_streams_of_a_member_that_is_gone_have_holders_at_once():
    group = given_up(joined(Group(10), "a", "b"), "a")
    group = left(group, "a")
    assert group.assigned("b") == [1, 2]
    assert left(group, "b").state is GroupState.EMPTY


def test_a_heartbeat_from_before_the_revocation_gives_nothing_up():
    """The member learns of the stream by an answer that is still on its way."""
    group = joined(Group(10), "a")
    before = group.generation
    group = joined(group, "b")
    assert group.after_heartbeat("a", before, {1}) is group
    assert group.after_heartbeat("a", group.generation, {1}) is not group


def test_a_revocation_that_is_taken_back_needs_another_one():
    group = joined(Group(10), "a", "b")
    revoked = group.generation
    group = left(group, "b")
    assert group.assigned("a") == [1, 2]
    group = joined(group, "c")
    assert group.after_heartbeat("a", revoked, {1}) is group
    assert given_up(group, "a").assigned("c") == [2]


def test_a_late_commit_of_an_earlier_holding_is_refused():
    group = joined(Group(10), "a")
    before = group.generation
    group = left(given_up(joined(group, "b"), "a"), "b")
    assert group.assigned("a") == [1, 2]
    group.check_holds("a", before, 1)
    with pytest.raises(StreamNotHeldError, match="holds stream 2 again, since generation"):
        group.check_holds("a", before, 2)
    group.check_holds("a", group.generation, 2)


def test_a_commit_of_a_stream_that_another_member_holds_is_refused():
    group = given_up(joined(Group(10), "a", "b"), "a")
    for member_id, stream_id in (("a", 2), ("b", 1), ("a", 9)):
        with pytest.raises(StreamNotHeldError, match="does not hold"):
            group.check_holds(member_id, group.generation, stream_id)


def test_a_member_that_was_expelled_and_joined_again_is_another_one():
    group = joined(Group(10), "a")
    before = group.generation
    group = joined(left(group, "a"), "a")
    assert group.member("a", group.generation).joined == group.generation
    for generation in (before, group.generation + 1):
        with pytest.raises(MemberUnknownError, match="another life"):
            group.member("a", generation)
    with pytest.raises(MemberUnknownError, match="not a member"):
        group.member("b", group.generation)


def test_a_join_that_is_repeated_changes_nothing():
    group = joined(Group(10), "a", "b")
    assert joined(group, "a") is group


def test_a_stream_that_nobody_reads_any_more_is_revoked_and_then_held_by_nobody():
    group = joined(Group(10), "a")
    group = group.rebalanced({"a": frozenset({1, 3})})
    assert group.assigned("a") == [1, 3]
    group = given_up(group, "a")
    assert group.holdings.keys() == {1, 3}
    assert group.rebalanced({"a": frozenset({1, 3})}) is group
