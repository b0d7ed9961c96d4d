"""Which streams have series of their own, and that no counter goes backwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.rangeserver.stream_traffic import REST, StreamTraffic

MAX = 3


def scrape(
    traffic: StreamTraffic, live: list[int], *, is_named: bool = True
) -> dict[str, tuple[int, int, int, int]]:
    """Read the series as `/metrics` does; the placement driver tells names while `is_named`."""
    wanted = traffic.candidates(live)
    traffic.settle({each: f"s{each}" for each in wanted} if is_named else {})
    return {
        name: (
            each.appended_bytes,
            each.appended_records,
            each.fetched_bytes,
            each.fetched_records,
        )
        for name, each in traffic.read()
    }


def carry(traffic: StreamTraffic, stream_id: int, byte_count: int) -> None:
    traffic.recent[stream_id].appended_bytes += byte_count
    traffic.recent[stream_id].appended_records += 1


def appended(found: dict[str, tuple[int, int, int, int]]) -> dict[str, int]:
    return {name: counts[0] for name, counts in found.items()}


def test_all_directions_are_counted() -> None:
    traffic = StreamTraffic(MAX)
    carry(traffic, 1, 10)
    traffic.recent[1].fetched_bytes += 7
    traffic.recent[1].fetched_records += 2
    assert scrape(traffic, [1]) == {"s1": (10, 1, 7, 2), REST: (0, 0, 0, 0)}


def test_the_streams_that_carry_most_have_series() -> None:
    traffic = StreamTraffic(MAX)
    for stream_id in range(1, 6):
        carry(traffic, stream_id, 10 * stream_id)
    assert appended(scrape(traffic, [*range(1, 6)])) == {"s5": 50, "s4": 40, "s3": 30, REST: 30}


def test_a_stream_that_carries_as_much_does_not_take_the_series_of_another() -> None:
    traffic, live = StreamTraffic(MAX), [1, 2, 3, 4]
    for stream_id in live[:MAX]:
        carry(traffic, stream_id, 10)
    scrape(traffic, live)
    for _ in range(5):
        for stream_id in live:
            carry(traffic, stream_id, 10)
        found = scrape(traffic, live)
    assert appended(found) == {"s1": 60, "s2": 60, "s3": 60, REST: 50}


def test_a_flood_takes_the_series_of_the_stream_that_carries_least() -> None:
    traffic, live = StreamTraffic(MAX), [1, 2, 3, 4]
    for stream_id in live[:MAX]:
        carry(traffic, stream_id, 10 * stream_id)
    scrape(traffic, live)
    carry(traffic, 1, 1)
    carry(traffic, 4, 1000)
    assert appended(scrape(traffic, live)) == {"s2": 20, "s3": 30, "s4": 1000, REST: 1}


def test_a_deleted_stream_makes_room() -> None:
    traffic = StreamTraffic(MAX)
    for stream_id in (1, 2, 3, 4):
        carry(traffic, stream_id, 10)
    scrape(traffic, [1, 2, 3, 4])
    carry(traffic, 1, 5)
    assert appended(scrape(traffic, [2, 3, 4])) == {"s2": 10, "s3": 10, "s4": 0, REST: 15}


def test_while_names_are_not_known_the_rest_counts() -> None:
    traffic = StreamTraffic(MAX)
    carry(traffic, 1, 10)
    assert appended(scrape(traffic, [1], is_named=False)) == {REST: 10}
    carry(traffic, 1, 5)
    assert appended(scrape(traffic, [1])) == {"s1": 5, REST: 10}


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 8), st.integers(0, 100)), max_size=8),
            st.sets(st.integers(1, 8)),
            st.booleans(),
        )
    )
)
def test_no_series_goes_backwards_and_nothing_is_lost(
    rounds: list[tuple[list[tuple[int, int]], set[int], bool]],
) -> None:
    traffic = StreamTraffic(MAX)
    before: dict[str, int] = {}
    carried = counted = 0
    for batches, live, is_named in rounds:
        for stream_id, byte_count in batches:
            carry(traffic, stream_id, byte_count)
            carried += byte_count
        found = appended(scrape(traffic, sorted(live), is_named=is_named))
        assert len(found) <= MAX + 1
        assert all(value >= before.get(name, 0) for name, value in found.items())
        counted += sum(value - before.get(name, 0) for name, value in found.items())
        assert counted == carried
        before = found
