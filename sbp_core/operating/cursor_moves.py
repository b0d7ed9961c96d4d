"""Resets of a group's cursors: the rows of a preview, and the moves that its form carries.

The form has each cursor as it was at the preview. `find_changed` compares the moves with the
present cursors before anything is committed, so nobody commits a move that the preview did not
show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp_core.errors import ConfigurationError, InvalidRequestError, SbpError
from sbp_core.operating.stream_position import Position, PositionKind, find_offset, parse_position
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client import CursorInfo, Reach, StreamInfo

FIELDS_MAX: Final = 100
"""Streams of a group that have a field each. Larger groups have one field for all streams."""
MOVES_MAX: Final = 1_000
"""Cursors that one form moves: more do not fit into it."""
_MOVE: Final = re.compile(r"(\d{1,19}):(\d{1,19}):(-1|\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class CursorMove:
    """A cursor before and after a reset; `new_offset` is NO_CURSOR if it is to be deleted."""

    stream_id: int
    old_offset: int
    new_offset: int

    @property
    def is_deletion(self) -> bool:
        """Whether the group forgets the stream."""
        from sbp_core.client import NO_CURSOR

        return self.new_offset == NO_CURSOR


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A line of the preview, with a `move`, or with a `refusal`: why the cursor cannot move."""

    stream: str
    stream_id: int
    old_offset: int
    move: CursorMove | None = None
    difference: int | None = None
    effect: str = ""
    refusal: str = ""


def parse_targets(
    cursors: Sequence[CursorInfo], together: str, each: Mapping[int, str]
) -> dict[int, Position]:
    """Return the positions that the fields of a reset name, by stream id.

    `together` is the text for all cursors; if it is empty, `each` has a text for each stream.
    Streams without a text, or with their present offset, are left out. Raises ConfigurationError.
    """
    targets: dict[int, Position] = {}
    for cursor in cursors:
        text = (together or each.get(cursor.stream_id, "")).strip()
        if not text or text == str(cursor.next_offset):
            continue
        try:
            targets[cursor.stream_id] = parse_position(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"stream {cursor.stream_id}: {error}") from error
    return targets


def lookup_times(targets: Mapping[int, Position]) -> dict[int, int]:
    """Return the times to look up, in us, by stream id."""
    return {
        stream_id: target.number
        for stream_id, target in targets.items()
        if target.kind is PositionKind.TIME
    }


def plan_reset(
    cursors: Sequence[CursorInfo],
    infos: Mapping[int, StreamInfo],
    reaches: Mapping[int, Reach],
    targets: Mapping[int, Position],
    found_by_time: Mapping[int, int],
) -> list[MoveRow]:
    """Return a row for each cursor that a reset would move, or cannot move."""
    rows = []
    for cursor in cursors:
        target, stream_id = targets.get(cursor.stream_id), cursor.stream_id
        if target is None:
            continue
        info, reach = infos.get(stream_id), reaches.get(stream_id)
        place = (info.label if info else "-", stream_id, cursor.next_offset)
        if info is None or reach is None:
            rows.append(MoveRow(*place, refusal="the stream is deleted"))
            continue
        try:
            offset = find_offset(target, reach, found_by_time.get(stream_id))
        except SbpError as error:
            rows.append(MoveRow(*place, refusal=str(error)))
            continue
        difference = offset - cursor.next_offset
        if difference:
            move = CursorMove(stream_id, cursor.next_offset, offset)
            rows.append(MoveRow(*place, move, difference, _effect(move, reach)))
    return rows


def plan_deletion(
    cursors: Sequence[CursorInfo], infos: Mapping[int, StreamInfo], stream_ids: Sequence[int]
) -> list[MoveRow]:
    """Return a row for each cursor to delete: of these streams, or of all if none is named."""
    from sbp_core.client import NO_CURSOR

    return [
        MoveRow(
            infos[cursor.stream_id].label if cursor.stream_id in infos else "-",
            cursor.stream_id,
            cursor.next_offset,
            CursorMove(cursor.stream_id, cursor.next_offset, NO_CURSOR),
            effect="the group no longer knows where it was in the stream",
        )
        for cursor in cursors
        if not stream_ids or cursor.stream_id in stream_ids
    ]


def write_moves(rows: Sequence[MoveRow]) -> str:
    """Return the moves of a preview as the text that its form carries."""
    moves = [row.move for row in rows if row.move is not None]
    return ",".join(f"{each.stream_id}:{each.old_offset}:{each.new_offset}" for each in moves)


def read_moves(text: str) -> list[CursorMove]:
    """Parse the text of `write_moves`. Raises InvalidRequestError."""
    moves = []
    for part in text.split(","):
        found = _MOVE.fullmatch(part)
        if found is None:
            raise InvalidRequestError.of(
                f"{part[:60]!a} is not a move of a cursor: use the form of a preview"
            )
        moves.append(CursorMove(*map(int, found.groups())))
    return moves


def member_obstacle(group: str, member_count: int) -> str:
    """Return why the cursors of a group with members cannot be moved, and the remedy."""
    return (
        f"Group {group} has {counted(member_count, 'member')}, and only members commit its cursors"
        " now: stop them, wait until they have left or are expelled, and look at a new preview."
    )


def find_changed(moves: Sequence[CursorMove], cursors: Sequence[CursorInfo]) -> list[str]:
    """Return a sentence for each cursor that changed since the preview."""
    now = {cursor.stream_id: cursor.next_offset for cursor in cursors}
    changed = []
    for move in moves:
        offset = now.get(move.stream_id)
        if offset is None:
            changed.append(f"the cursor of stream {move.stream_id} is deleted by now")
        elif offset != move.old_offset:
            changed.append(
                f"the cursor of stream {move.stream_id} went from {move.old_offset} to {offset}"
            )
    return changed


def _effect(move: CursorMove, reach: Reach) -> str:
    """Return the effect of a move on the group: records that are read again or skipped."""
    old_offset, new_offset = move.old_offset, move.new_offset
    if new_offset < old_offset:
        again = min(old_offset, reach.readable_end) - new_offset
        return f"{counted(again, 'record')} read again" if again > 0 else "it was beyond the tail"
    skipped = new_offset - max(old_offset, reach.start_offset)
    if skipped <= 0:
        return "nothing is skipped: those records were trimmed"
    return f"{counted(skipped, 'record')} skipped"
