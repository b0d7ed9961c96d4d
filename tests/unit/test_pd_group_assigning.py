"""Which member is to read each stream."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.pd.groups.assigning import assign

MEMBERS = ("a", "b", "c", "d", "e")
STREAMS = st.frozensets(st.integers(1, 12))
ELIGIBLE = st.dictionaries(st.sampled_from(MEMBERS), STREAMS, min_size=1)
PLANNED = st.dictionaries(st.integers(1, 14), st.sampled_from(MEMBERS))


def equal(members, stream_count):
    return dict.fromkeys(members, frozenset(range(stream_count)))


def loads_of(target, members):
    found = Counter(target.values())
    return [found[member] for member in members]


def test_a_member_that_comes_gets_its_share_and_no_other_stream_moves():
    before = assign(equal("ab", 9), {})
    after = assign(equal("abc", 9), before)
    assert sorted(loads_of(after, "abc")) == [3, 3, 3]
    assert {after[each] for each in before if after[each] != before[each]} == {"c"}


def test_the_streams_of_a_member_that_left_are_spread_and_no_other_stream_moves():
    before = assign(equal("abc", 9), {})
    after = assign(equal("ab", 9), before)
    assert sorted(loads_of(after, "ab")) == [4, 5]
    assert all(after[each] == owner for each, owner in before.items() if owner != "c")


def test_a_stream_that_only_one_member_reads_is_its_own():
    eligible = {"a": frozenset({1, 2, 3, 4}), "b": frozenset({1}), "c": frozenset()}
    assert assign(eligible, {1: "a", 9: "c"}) == {1: "b", 2: "a", 3: "a", 4: "a"}


@given(ELIGIBLE, PLANNED)
def test_each_stream_has_one_eligible_member_and_no_single_move_balances_better(eligible, planned):
    target = assign(eligible, planned)
    assert target.keys() == frozenset().union(*eligible.values())
    loads = Counter(target.values())
    for stream_id, member in target.items():
        assert stream_id in eligible[member]
        others = [each for each, streams in eligible.items() if stream_id in streams]
        assert all(loads[member] - loads[each] < 2 for each in others)


@given(ELIGIBLE, PLANNED)
def test_a_decision_stands_once_it_is_carried_out(eligible, planned):
    target = assign(eligible, planned)
    assert assign(eligible, target) == target
