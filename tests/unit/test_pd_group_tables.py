"""The members of groups in the metadata store."""

import pytest

from sbp_core.group_limits import GATEWAYS_GROUP
from sbp_core.pd.groups.group import Group, Member
from sbp_core.pd.model import CursorChange, NewStream
from sbp_core.pd.streams.cursor_handlers import list_groups_after

GROUP = "g"


@pytest.fixture
def store(home):
    return home.open()


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


def member(member_id, *patterns, subject=None):
    return Member(member_id, patterns, 1_000, 2_000, subject)


def joined(store, stream_ids, *members):
    for each in members:
        before = store.groups.maybe_group(GROUP) or Group(100)
        eligible = dict.fromkeys([*before.members, each.member_id], frozenset(stream_ids))
        store.groups.change(GROUP, before, before.with_member(each, eligible))
    return store.groups.maybe_group(GROUP)


def test_a_group_is_as_it_was_stored_also_after_a_crash(home):
    store = home.open()
    streams = create(store, "a", "b", "c")
    first, second = member("m", "a", "b*"), member("n", "*", subject="CN=n")
    before = joined(store, streams, first, second)
    assert before.members["m"].patterns == ("a", "b*")
    assert before.members["n"].subject == "CN=n"
    assert [each.revoked for each in before.holdings.values()] == [None, None, 102]
    assert home.crash().groups.maybe_group(GROUP) == before


def test_a_member_sees_its_part_of_a_group_and_changes_that_of_its_heir(store):
    streams = create(store, "a", "b")
    group = joined(store, streams, member("m", "*"), member("n", "*"))
    part = store.groups.maybe_group(GROUP, "m")
    assert part.members.keys() == {"m"}
    assert part.holdings == group.holdings
    after = part.after_heartbeat("m", part.generation, part.assigned("m"))
    store.groups.change(GROUP, part, after)
    assert store.groups.maybe_group(GROUP) == Group(103, group.members, after.holdings)
    assert store.groups.maybe_group(GROUP, "n").assigned("n") == [streams[1]]
    assert store.groups.maybe_group(GROUP, "nobody").members == {}


@pytest.mark.parametrize("count_max", [1, 2])
def test_groups_with_members_are_listed_among_those_with_cursors(store, count_max):
    (stream,) = create(store, "a")
    for name in ("b", "d"):
        store.cursors.commit(name, [CursorChange(stream, 0)], 7)
    for name in ("a", "b", "c", "e", GATEWAYS_GROUP):
        group = Group(100).with_member(member("m", "*"), {"m": frozenset()})
        store.groups.change(name, Group(100), group)
    listed, name = [], ""
    while part := list_groups_after(store, name, count_max=count_max):
        listed += [(each.group, each.committed_at_ms) for each in part]
        name = part[-1].group
    assert listed == [("a", -1), ("b", 7), ("c", -1), ("d", 7), ("e", -1)]
