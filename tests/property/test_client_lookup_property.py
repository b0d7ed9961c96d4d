"""Many servers' answers to a lookup by time, made into one: never a record too late."""

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client.operations.time_lookup import TimedOffset, first_found
from sbp_core.client.types import RangeInfo

TIMES = st.lists(st.integers(0, 9), max_size=4)
PLACED = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), TIMES), min_size=1, max_size=5)


@given(PLACED, st.integers(0, 10), st.booleans(), st.integers(0, 3), st.booleans())
def test_the_first_of_all_servers_is_found(placed, time_ms, is_open, trimmed, is_unheard):
    """The last server may not have heard of the last range yet, if that is empty."""
    ranges, records, held = [], [], {}
    for index, (server, times) in enumerate(placed):
        start = len(records)
        is_last = index == len(placed) - 1
        end = None if is_last and is_open else start + len(times)
        ranges.append(RangeInfo(5, index, start, end, start, (server,)))
        records += times
        if not (is_last and is_open and not times and is_unheard and server in held):
            held.setdefault(server, []).append(range(start, len(records)))
    trimmed = min(trimmed, len(placed[0][1]))
    ranges[0] = RangeInfo(5, 0, trimmed, ranges[0].end_offset, 0, ranges[0].servers)
    answers = {
        server: next(
            (TimedOffset(at, records[at]) for own in mine for at in own if records[at] >= time_ms),
            TimedOffset(mine[-1].stop, None),
        )
        for server, mine in held.items()
    }
    found = first_found(ranges, answers)
    expected = [at for at, written_ms in enumerate(records) if written_ms >= time_ms]
    if not expected:
        assert found == TimedOffset(len(records), None)
    else:
        assert found == TimedOffset(max(expected[0], trimmed), records[expected[0]])
