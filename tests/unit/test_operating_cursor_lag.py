"""The lag of a consumer group, from what a client knows."""

from __future__ import annotations

from sbp_core.client import CursorInfo, Reach, StreamBounds, StreamInfo, UnavailableRange
from sbp_core.errors import ConnectError
from sbp_core.operating.cursor_lag import Lag, measure, measure_group, unread_offsets

INFO = StreamInfo(5, "s", 1, 0, 0)


def test_a_cursor_that_fits_no_stream_is_remarked_on():
    cursor = CursorInfo(5, 7, 100)
    assert measure(cursor, None, None, 0) == Lag(5, 7, 100)
    assert measure(cursor, None, None, 0).remark == "deleted"
    ahead = measure(cursor, INFO, StreamBounds(5, 0, 4), 0)
    assert (ahead.lag_records, ahead.lost_records) == (0, 0)
    assert ahead.remark == "the cursor is beyond the tail"
    emptied = measure(cursor, INFO, StreamBounds(5, 9, 9), 0)
    assert (emptied.lag_records, emptied.lost_records) == (0, 2)


def test_the_age_is_that_of_the_record_to_be_read_next():
    cursors = [CursorInfo(1, 2, 0), CursorInfo(2, 4, 0), CursorInfo(3, 0, 0), CursorInfo(9, 0, 0)]
    infos = {each: StreamInfo(each, f"s{each}", 1, 0, 0) for each in (1, 2, 3)}
    reaches = {each: Reach(each, 0, 4) for each in infos}
    assert unread_offsets(cursors, reaches) == {1: 2, 3: 0}
    found = measure_group(cursors, infos, reaches, {1: 700}, 1_000)
    assert [(each.lag_records, each.lag_ms) for each in found] == [
        (2, 300),
        (0, 0),
        (4, None),  # the server did not say in time
        (None, None),  # deleted
    ]


def test_a_stream_whose_tail_is_not_known_is_readable_up_to_its_last_range():
    down = UnavailableRange(3, None, "a:1", ConnectError("down"))
    reach = Reach(5, 0, None, (down,))
    assert unread_offsets([CursorInfo(5, 2, 0)], {5: reach}) == {5: 2}
    assert unread_offsets([CursorInfo(5, 3, 0)], {5: reach}) == {}
    assert measure(CursorInfo(5, 2, 0), INFO, reach, 0).remark == "the server of its tail is down"
