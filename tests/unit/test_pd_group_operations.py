"""Groups in the metadata store: members that are silent, new streams, rights, another leader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core import group_limits
from sbp_core.access.rights import Grant, Right, SubjectRights
from sbp_core.errors import InvalidRequestError
from sbp_core.pd.groups import group_operations
from sbp_core.pd.groups.eligibility import StreamNames
from sbp_core.pd.groups.group import Member
from sbp_core.pd.groups.group_operations import GroupOperations
from sbp_core.pd.model import NewStream

GROUP = "g"
SESSION_MS, HANDOVER_MS = 10_000, 30_000
SWEEP_SECONDS = group_limits.GROUP_SWEEP_MS / 1000


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


class Leader:
    """A placement driver that leads: its store, what it has in memory, and its clock."""

    def __init__(self, store, now=0.0, **limits):
        self.store, self.now = store, now
        self.operations = GroupOperations(**limits)
        self.operations.resume(store, now)

    def join(self, member_id, *patterns, subject=None):
        member = Member(member_id, patterns or ("*",), SESSION_MS, HANDOVER_MS, subject)
        group = self.operations.join(self.store, GROUP, member, self.now, 1_000)
        return group.assigned(member_id)

    def beat(self, member_id, held=()):
        """A heartbeat of a member that knows everything; what is assigned to it."""
        known = self.store.groups.maybe_group(GROUP)
        group = self.operations.heartbeat(
            self.store,
            GROUP,
            member_id,
            generation=0 if known is None else known.generation,
            held=frozenset(held),
            now=self.now,
        )
        return group.assigned(member_id)

    def look(self):
        for find in (self.operations.overdue, self.operations.outdated):
            for name in find(self.store, self.now):
                self.operations.tend(self.store, name, self.now)

    def pass_time(self, seconds, **beating):
        """Look every half a second, with heartbeats of members that hold streams."""
        end = self.now + seconds
        while self.now < end:
            self.now += SWEEP_SECONDS
            for member_id, held in beating.items():
                self.beat(member_id, held)
            self.look()

    def members(self):
        group = self.store.groups.maybe_group(GROUP)
        return set() if group is None else set(group.members)


@pytest.fixture
def store(home):
    return home.open()


def test_a_member_that_gives_nothing_up_is_expelled_after_its_hand_over_timeout(store):
    streams = create(store, "s", "t")
    leader = Leader(store)
    leader.join("a")
    leader.join("b")
    leader.pass_time(SWEEP_SECONDS, a=streams, b=())  # asked from here on
    leader.pass_time(HANDOVER_MS / 1000 - SWEEP_SECONDS, a=streams, b=())
    assert leader.members() == {"a", "b"}
    leader.pass_time(SWEEP_SECONDS, a=streams, b=())
    assert leader.members() == {"b"}
    assert leader.beat("b") == streams


def test_the_next_hand_over_has_a_time_of_its_own(store):
    streams = create(store, "s", "t", "u", "v")
    leader = Leader(store)
    leader.join("a")
    for others in (["b"], ["b", "c"]):
        leader.join(others[-1])
        held = leader.store.groups.maybe_group(GROUP).assigned("a")
        rest = dict.fromkeys(others, streams)
        leader.pass_time(HANDOVER_MS / 1000 - 1, a=streams, **rest)
        assert leader.beat("a", held) == held
    assert leader.members() == {"a", "b", "c"}


def test_a_pause_of_the_placement_driver_expels_nobody(store):
    create(store, "s")
    leader = Leader(store)
    leader.join("a")
    leader.look()
    leader.now += 1_000
    leader.look()
    assert leader.members() == {"a"}
    leader.pass_time(SESSION_MS / 1000)
    assert leader.members() == set()


def test_the_next_leader_goes_on_with_the_members_and_waits_for_each(home):
    store = home.open()
    streams = create(store, "s", "t")
    first = Leader(store, now=500.0)
    assert first.join("a") == streams
    first.join("b")
    after = Leader(home.crash(), now=7.0)
    after.pass_time(SESSION_MS / 1000 - SWEEP_SECONDS)
    assert after.members() == {"a", "b"}
    assert after.beat("a", streams[:1]) == streams[:1]
    assert after.beat("b") == streams[1:]
    after.pass_time(SWEEP_SECONDS)
    assert after.members() == {"a", "b"}
    after.pass_time(SESSION_MS / 1000)
    assert after.members() == set()


STARS = st.sampled_from(["", "*"])
NAMES = st.none() | st.text("_ab.-", min_size=1, max_size=3)
PATTERNS = st.just("*") | st.builds(str.__add__, st.text("_ab-", min_size=1, max_size=2), STARS)


@given(st.lists(st.tuples(st.integers(1, 9), NAMES)), st.lists(PATTERNS, max_size=6))
def test_patterns_match_as_those_of_grants_do(changes, patterns):
    streams, names = StreamNames(), {}
    for stream_id, name in changes:
        if name in names.values():  # names are unique: the stream of this name is deleted
            deleted = next(key for key, each in names.items() if each == name)
            del names[deleted]
            streams.discard(deleted)
        else:
            names[stream_id] = name
            streams.put(stream_id, name)
    granted = SubjectRights(Grant("", Right.READ, each) for each in patterns)
    expected = {key for key, name in names.items() if Right.READ in granted.on(name)}
    assert streams.matching(patterns) == expected
    assert StreamNames(names.items()).matching(patterns) == expected


def test_a_member_gets_streams_that_its_identity_may_read(store):
    one, two = create(store, "orders.1", "orders.2")
    store.grants.change([Grant("eve", Right.READ, "orders.2")], is_revoked=False)
    store.grants.change([Grant("eve", Right.APPEND, "orders.1")], is_revoked=False)
    leader = Leader(store)
    assert leader.join("a", "orders.*", subject="eve") == [two]
    leader.pass_time(SWEEP_SECONDS, a=[two])
    store.grants.change([Grant("eve", Right.READ, "*")], is_revoked=False)
    leader.pass_time(group_operations._REFRESH_SECONDS + SWEEP_SECONDS, a=[two])
    assert leader.beat("a") == [one, two]


def test_a_group_and_a_cluster_have_so_many_members_at_most(new_home):
    leader = Leader(new_home().open(members_max=2))
    leader.join("a")
    leader.join("b")
    with pytest.raises(InvalidRequestError, match="members_max of the placement driver allows 2"):
        leader.join("c")
    leader.join("b")
    leader = Leader(new_home().open(), members_max=1)
    leader.join("a")
    with pytest.raises(InvalidRequestError, match="group g has 1 members, the most"):
        leader.join("b")
    leader.join("a")


def test_a_group_has_so_many_patterns_at_most(store):
    leader = Leader(store)
    for member_id, count in (("a", 6_000), ("b", 4_000), ("b", 1), ("c", 3_999)):
        leader.join(member_id, *(f"s{number}" for number in range(count)))
    with pytest.raises(InvalidRequestError, match="group g would subscribe to 10001 names"):
        leader.join("d", "s")
    assert leader.members() == {"a", "b", "c"}


def test_streams_beyond_the_limit_are_left_out_and_logged(store, caplog):
    streams = create(store, "s", "t", "u")
    assert Leader(store, streams_max=2).join("a") == streams[:2]
    assert "group streams left out group=g streams=3 limit=2" in caplog.text


def test_a_group_that_was_empty_begins_above_its_earlier_generations(store):
    leader = Leader(store)
    leader.join("a")
    before = store.groups.maybe_group(GROUP).generation
    assert before > 1_000
    leader.operations.leave(store, GROUP, "a")
    assert store.groups.names() == []
    member = Member("a", ("*",), SESSION_MS, HANDOVER_MS)
    group = leader.operations.join(store, GROUP, member, leader.now, 2_000)
    assert group.generation > before
