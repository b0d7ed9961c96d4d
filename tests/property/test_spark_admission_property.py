from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbp_spark.admission import admit

offsets = st.integers(0, 50)
stream_ids = st.integers(0, 2**63 - 1)
starts_of = st.dictionaries(stream_ids, offsets, max_size=8)
limits = st.integers(0, 120)
turns = st.integers(0, 10**6)


@st.composite
def situations(draw):
    starts = draw(starts_of)
    tails = {stream_id: draw(offsets) for stream_id in starts if draw(st.integers(0, 5))}
    return starts, tails


def backlogs_of(starts, tails):
    return {
        stream_id: max(0, tails.get(stream_id, start) - start)
        for stream_id, start in starts.items()
    }


@given(situations(), st.none() | limits, turns)
def test_ends_stay_in_bounds_and_the_total_is_exact(situation, records_max, turn):
    starts, tails = situation
    ends = admit(starts, tails, records_max=records_max, turn=turn)
    assert ends.keys() == starts.keys()
    backlogs = backlogs_of(starts, tails)
    for stream_id, start in starts.items():
        assert start <= ends[stream_id] <= start + backlogs[stream_id]
    total = sum(ends.values()) - sum(starts.values())
    backlog = sum(backlogs.values())
    assert total == (backlog if records_max is None else min(backlog, records_max))


@given(situations(), limits, turns)
def test_shares_are_max_min_fair(situation, records_max, turn):
    """Nobody who wants more gets over one record less than anybody else."""
    starts, tails = situation
    ends = admit(starts, tails, records_max=records_max, turn=turn)
    grants = {stream_id: ends[stream_id] - start for stream_id, start in starts.items()}
    backlogs = backlogs_of(starts, tails)
    for stream_id, grant in grants.items():
        if grant < backlogs[stream_id]:
            assert grant >= max(grants.values()) - 1


@given(situations(), limits, turns, st.randoms())
def test_the_order_of_the_streams_does_not_matter(situation, records_max, turn, random):
    starts, tails = situation
    shuffled = list(starts.items())
    random.shuffle(shuffled)
    expected = admit(starts, tails, records_max=records_max, turn=turn)
    assert admit(dict(shuffled), tails, records_max=records_max, turn=turn) == expected


@given(
    st.integers(1, 9),
    st.integers(1, 12),
    turns,
    st.data(),
)
def test_no_stream_starves_whatever_the_others_do(stream_count, records_max, turn, data):
    starts = dict.fromkeys(range(stream_count), 0)
    hungry = data.draw(st.sampled_from(sorted(starts)))
    within = -(-stream_count // records_max)
    for next_turn in range(turn, turn + within):
        tails = {stream_id: data.draw(st.integers(0, 3)) for stream_id in starts}
        tails[hungry] = 1 + tails[hungry]
        if admit(starts, tails, records_max=records_max, turn=next_turn)[hungry] > 0:
            return
    raise AssertionError(f"stream {hungry} got nothing in {within} turns")


@given(st.integers(2, 8), st.integers(1, 40), st.integers(0, 100))
def test_equal_streams_get_equal_service_over_a_round(stream_count, records_max, turn):
    starts = dict.fromkeys(range(stream_count), 0)
    tails = dict.fromkeys(starts, 1000)
    served = dict.fromkeys(starts, 0)
    for next_turn in range(turn, turn + stream_count):
        for stream_id, end in admit(starts, tails, records_max=records_max, turn=next_turn).items():
            served[stream_id] += end
    assert set(served.values()) == {records_max}
