"""A reset of a group's cursors: its preview, and what stops it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.client import CursorInfo, Reach, StreamInfo, UnavailableRange
from sbp_core.errors import ConfigurationError, ConnectError, InvalidRequestError
from sbp_core.operating.cursor_moves import (
    CursorMove,
    MoveRow,
    find_changed,
    lookup_times,
    parse_targets,
    plan_deletion,
    plan_reset,
    read_moves,
    write_moves,
)
from sbp_core.operating.stream_position import Position, PositionKind

CURSORS = [CursorInfo(1, 20, 0), CursorInfo(2, 5, 0), CursorInfo(3, 40, 0)]
INFOS = {each: StreamInfo(each, f"s{each}", 1, 0, 0) for each in (1, 2, 3)}
REACHES = {1: Reach(1, 0, 30), 2: Reach(2, 10, 30), 3: Reach(3, 0, 30)}


def planned(text: str, times=None, reaches=REACHES, infos=INFOS) -> dict[int, MoveRow]:
    targets = parse_targets(CURSORS, text, {})
    rows = plan_reset(CURSORS, infos, reaches, targets, times or {})
    return {row.stream_id: row for row in rows}


def test_a_move_back_reads_again_what_is_there():
    rows = planned("earliest")
    assert {each: rows[each].effect for each in rows} == {
        1: "20 records read again",
        2: "nothing is skipped: those records were trimmed",
        3: "30 records read again",  # the cursor was beyond the tail
    }
    assert rows[1].difference == -20
    assert rows[2].move == CursorMove(2, 5, 10)


def test_a_move_ahead_skips_what_is_there():
    rows = planned("latest")
    assert rows[1].effect == "10 records skipped"
    assert rows[2].effect == "20 records skipped"  # those from 5 to 9 were trimmed
    assert rows[3].effect == "it was beyond the tail"


def test_a_cursor_that_stays_is_left_out():
    assert set(planned("20")) == {2, 3}


def test_a_time_is_what_the_servers_found():
    targets = parse_targets(CURSORS, "2025-01-31", {})
    assert set(lookup_times(targets)) == {1, 2, 3}
    rows = planned("2025-01-31", {1: 19, 3: 30})
    assert rows[1].effect == "1 record read again"
    assert rows[2].move is None
    assert "stream 2 does not answer" in rows[2].refusal


def test_what_cannot_move_says_why_and_the_others_can():
    down = UnavailableRange(20, None, "a:1", ConnectError("a:1 is down"))
    rows = planned(
        "latest",
        reaches={1: Reach(1, 0, None, (down,)), 2: REACHES[2]},
        infos={1: INFOS[1], 2: INFOS[2]},
    )
    assert [rows[each].refusal for each in (1, 2, 3)] == [
        "a:1 is down",
        "",
        "the stream is deleted",
    ]
    assert read_moves(write_moves(list(rows.values()))) == [CursorMove(2, 5, 30)]


def test_each_stream_has_its_own_target_unless_there_is_one_for_all():
    each = {1: "20", 2: " earliest ", 3: ""}
    earliest, latest = Position(PositionKind.EARLIEST), Position(PositionKind.LATEST)
    assert parse_targets(CURSORS, "", each) == {2: earliest}
    assert parse_targets(CURSORS, "latest", each) == dict.fromkeys((1, 2, 3), latest)
    with pytest.raises(ConfigurationError, match="stream 3: 'soon' is not earliest"):
        parse_targets(CURSORS, "", {3: "soon"})


def test_a_deletion_is_a_move_to_nowhere():
    rows = plan_deletion(CURSORS, {1: INFOS[1]}, [])
    assert [(row.stream, row.stream_id) for row in rows] == [("s1", 1), ("-", 2), ("-", 3)]
    (row,) = plan_deletion(CURSORS, INFOS, [2])
    assert row.move is not None
    assert row.move.is_deletion
    assert write_moves([row]) == "2:5:-1"


offsets = st.integers(0, 2**63 - 1)


@given(st.lists(st.builds(CursorMove, offsets, offsets, offsets | st.just(-1)), min_size=1))
def test_a_form_carries_the_moves_of_its_preview(moves):
    rows = [MoveRow("s", each.stream_id, each.old_offset, each) for each in moves]
    assert read_moves(write_moves(rows)) == moves


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3,", "1:2:-2", "a:2:3", "1:2:3:4", "1:2:٣"])
def test_another_text_is_no_move(text):
    with pytest.raises(InvalidRequestError, match="use the form of a preview"):
        read_moves(text)


def test_cursors_that_moved_since_the_preview_are_named():
    moves = [CursorMove(1, 20, 0), CursorMove(2, 4, 0), CursorMove(9, 1, 0)]
    assert find_changed(moves[:1], CURSORS) == []
    assert find_changed(moves, CURSORS) == [
        "the cursor of stream 2 went from 4 to 5",
        "the cursor of stream 9 is deleted by now",
    ]
