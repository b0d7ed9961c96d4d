from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbp_spark.streaming.admission import admit

offsets = st.integers(0, 50)
stream_ids = st.integers(0, 2**63 - 1)
starts_of = st.dictionaries(stream_ids, offsets, max_size=8)
limits = st.integers(1, 120)
byte_limits = st.integers(1, 5000)
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


@st.composite
def sized_situations(draw):
    starts, tails = draw(situations())
    return starts, tails, {stream_id: draw(st.integers(1, 200)) for stream_id in starts}


@given(sized_situations(), st.none() | limits, byte_limits, turns)
def test_no_limit_is_exceeded_and_something_is_always_read(situation, records_max, bytes_max, turn):
    starts, tails, sizes = situation
    limit = {"records_max": records_max, "bytes_max": bytes_max, "record_bytes": sizes}
    ends = admit(starts, tails, turn=turn, **limit)
    grants = {stream_id: ends[stream_id] - start for stream_id, start in starts.items()}
    backlogs = backlogs_of(starts, tails)
    assert all(0 <= grants[each] <= backlogs[each] for each in starts)
    count = sum(grants.values())
    total = sum(grants[each] * sizes[each] for each in starts)
    assert records_max is None or count <= records_max
    assert total <= bytes_max or count == 1
    if sum(backlogs.values()) > 0:
        assert count > 0
    wanted = [sizes[each] for each in starts if grants[each] < backlogs[each]]
    is_full = count == records_max or total >= bytes_max
    assert is_full or all(total + size > bytes_max for size in wanted)


@given(situations(), limits, turns)
def test_shares_are_in_proportion_to_the_backlogs(situation, records_max, turn):
    starts, tails = situation
    ends = admit(starts, tails, records_max=records_max, turn=turn)
    backlogs = backlogs_of(starts, tails)
    total = sum(backlogs.values())
    for stream_id, start in starts.items():
        fair = backlogs[stream_id] * min(1, records_max / max(1, total))
        assert abs(ends[stream_id] - start - fair) <= 2


@given(situations(), limits, turns, st.randoms())
def test_the_order_of_the_streams_does_not_matter(situation, records_max, turn, random):
    starts, tails = situation
    shuffled = list(starts.items())
    random.shuffle(shuffled)
    expected = admit(starts, tails, records_max=records_max, turn=turn)
    assert admit(dict(shuffled), tails, records_max=records_max, turn=turn) == expected


@given(
    st.integers(1, 9),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 300),
    turns,
    st.data(),
)
def test_no_stream_starves_whatever_the_others_do(stream_count, records_max, bytes_max, turn, data):
    starts = dict.fromkeys(range(stream_count), 0)
    sizes = {stream_id: data.draw(st.integers(1, 200)) for stream_id in starts}
    limit = {"records_max": records_max, "bytes_max": bytes_max, "record_bytes": sizes}
    hungry = data.draw(st.sampled_from(sorted(starts)))
    for next_turn in range(turn, turn + stream_count):
        tails = {stream_id: data.draw(st.integers(0, 10**6)) for stream_id in starts}
        tails[hungry] = 1
        if admit(starts, tails, turn=next_turn, **limit)[hungry] > 0:
            return
    raise AssertionError(f"stream {hungry} got nothing in {stream_count} turns")


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 60), min_size=1, max_size=6),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 300),
    turns,
)
def test_everything_is_read_in_the_end(tails, records_max, bytes_max, turn):
    at = dict.fromkeys(tails, 0)
    limit = {"records_max": records_max, "bytes_max": bytes_max}
    for next_turn in range(turn, turn + sum(tails.values())):
        at = admit(at, tails, turn=next_turn, record_bytes=dict.fromkeys(tails, 9), **limit)
    assert at == tails


def test_huge_backlogs_do_not_round():
    starts = {1: 0, 2: 0}
    ends = admit(starts, {1: 2**63 - 1, 2: 2**63 - 1}, records_max=2**60 + 1)
    assert sorted(ends.values()) == [2**59, 2**59 + 1]
