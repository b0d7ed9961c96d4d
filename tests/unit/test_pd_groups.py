"""A consumer group: who holds each stream, and what late messages may change."""

import pytest

from sbp_core.errors import StreamNotHeldError
from sbp_core.pd.groups.group import Group, Member

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


def test_a_late_commit_of_an_earlier_holding_is_refused():
    group = joined(Group(10), "a")
    before = group.generation
    group = left(given_up(joined(group, "b"), "a"), "b")
    assert group.assigned("a") == [1, 2]
    group.check_holds("a", before, 1)
    for generation in (before, group.generation - 1):
        with pytest.raises(StreamNotHeldError, match="holds stream 2 again, since generation"):
            group.check_holds("a", generation, 2)
    group.check_holds("a", group.generation, 2)
