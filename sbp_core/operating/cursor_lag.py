"""How far the cursors of a consumer group are behind their streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client.types import CursorInfo, Reach, StreamBounds, StreamInfo


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind a stream. A deleted stream has only the cursor.

    `lag_records` can still be read, `lost_records` were trimmed before they were read. `lag_ms` is
    the age of the next record to read, 0 at the tail. `tail_offset` and these are None also if the
    server of the tail is down.
    """

    stream_id: int
    next_offset: int
    committed_at_ms: int
    stream: str | None = None
    start_offset: int | None = None
    tail_offset: int | None = None
    lag_records: int | None = None
    lost_records: int | None = None
    lag_ms: int | None = None

    @property
    def remark(self) -> str:
        """The problem of the cursor in words, or an empty text."""
        if self.tail_offset is None:
            return "deleted" if self.stream is None else "the server of its tail is down"
        if self.lost_records:
            return f"{counted(self.lost_records, 'record')} trimmed before the group read them"
        if self.next_offset > self.tail_offset:
            return "the cursor is beyond the tail"
        return ""


def unread_offsets(cursors: Sequence[CursorInfo], reaches: Mapping[int, Reach]) -> dict[int, int]:
    """Return the cursors that are at a record, by stream id.

    `AsyncClient.append_times` returns when these records were appended.
    """
    return {
        cursor.stream_id: cursor.next_offset
        for cursor in cursors
        if cursor.stream_id in reaches
        and cursor.next_offset < reaches[cursor.stream_id].readable_end
    }


def measure_group(
    cursors: Sequence[CursorInfo],
    infos: Mapping[int, StreamInfo],
    reaches: Mapping[int, Reach],
    times: Mapping[int, int | None],
    now_ms: int,
) -> list[Lag]:
    """Compare the cursors of a group with their streams; `infos` lacks deleted streams.

    `times` are the append times, in ms, of the records at `unread_offsets`, without unknown times.
    """
    unread = unread_offsets(cursors, reaches)

    def maybe_age_ms(stream_id: int) -> int | None:
        if stream_id in unread and stream_id not in times:
            return None
        return max(now_ms - (times.get(stream_id) or now_ms), 0)

    return [
        measure(
            cursor,
            infos.get(cursor.stream_id),
            reaches.get(cursor.stream_id),
            maybe_age_ms(cursor.stream_id),
        )
        for cursor in cursors
    ]


def measure(
    cursor: CursorInfo,
    info: StreamInfo | None,
    held: StreamBounds | Reach | None,
    lag_ms: int | None,
) -> Lag:
    """Compare a cursor with its stream; `info` None stands for a deleted stream."""
    place = cursor.stream_id, cursor.next_offset, cursor.committed_at_ms
    if info is None or held is None:
        return Lag(*place)
    if held.next_offset is None:
        return Lag(*place, info.label, held.start_offset)
    first = max(cursor.next_offset, held.start_offset)
    return Lag(
        *place,
        info.label,
        held.start_offset,
        held.next_offset,
        lag_records=max(held.next_offset - first, 0),
        lost_records=first - cursor.next_offset,
        lag_ms=lag_ms,
    )
