"""`sbp lag`: how far consumer groups are behind their streams."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from sbp_core import limits
from sbp_core.cli.connect import connect, find_reach, readable_end
from sbp_core.cli.output import write_json, write_table
from sbp_core.cli.parsing import add_client_options
from sbp_core.client import Client, CursorInfo, GroupInfo, Reach, StreamBounds, StreamInfo
from sbp_core.errors import NotFoundError
from sbp_core.wording import counted

_HEADING = ("STREAM", "ID", "CURSOR", "TAIL", "LAG", "BEHIND", "COMMITTED", "")


def add_lag(parser: ArgumentParser) -> None:
    """Declare `sbp lag`."""
    parser.description = (
        "Compare the cursors of a consumer group with the tails of their streams: in records, and"
        " by the age of the record that is to be read next. Without a group, list the groups."
    )
    add_client_options(parser)
    parser.add_argument("group", nargs="?", metavar="GROUP")
    parser.set_defaults(run=lag)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind a stream; only the cursor is known of one that was deleted.

    `tail_offset` and what follows from it is None also if the server of the tail is down.

    `lag_records` are there to be read, `lost_records` were trimmed before they were read. `lag_ms`
    is the age of the record that is to be read next, 0 at the tail.
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
        """The problem of the cursor, or nothing."""
        if self.tail_offset is None:
            return "deleted" if self.stream is None else "the server of its tail is down"
        if self.lost_records:
            return f"{counted(self.lost_records, 'record')} trimmed before the group read them"
        if self.next_offset > self.tail_offset:
            return "the cursor is beyond the tail"
        return ""


def lag(options: Namespace) -> int:
    """Compare a group's cursors with the tails of their streams; without a group, list those."""
    with connect(options) as client:
        now_ms = time.time_ns() // 1_000_000
        if options.group is None:
            _write_groups(client.list_groups(), now_ms, is_json=options.json)
            return 0
        cursors = client.describe_cursors(options.group)
        if not cursors:
            raise NotFoundError.of(
                f"group {options.group} has no cursors; `sbp lag` lists the groups that have some"
            )
        found = _find_lags(client, cursors, now_ms)
    if options.json:
        for each in found:
            write_json({"group": options.group, **asdict(each)})
    else:
        write_table(_HEADING, [*(_row(each, now_ms) for each in found), _total(found)])
    return 0


def _write_groups(groups: Sequence[GroupInfo], now_ms: int, *, is_json: bool) -> None:
    if is_json:
        for each in groups:
            write_json(asdict(each))
    else:
        rows = [(each.group, _ago(each.committed_at_ms, now_ms)) for each in groups]
        write_table(("GROUP", "COMMITTED"), rows)


def _find_lags(client: Client, cursors: Sequence[CursorInfo], now_ms: int) -> list[Lag]:
    existing = client.find_streams([cursor.stream_id for cursor in cursors])
    infos = {info.stream_id: info for info in existing}
    reaches = find_reach(client, list(infos))
    behind = {
        cursor.stream_id: cursor.next_offset
        for cursor in cursors
        if cursor.stream_id in infos
        and cursor.next_offset < readable_end(reaches[cursor.stream_id])
    }
    times = client.append_times(behind, timeout_ms=limits.CONNECT_TIMEOUT_MS)

    def maybe_age_ms(stream_id: int) -> int | None:
        if stream_id in behind and stream_id not in times:
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
    """Compare a cursor with its stream; None stands for one that was deleted."""
    place = cursor.stream_id, cursor.next_offset, cursor.committed_at_ms
    if info is None or held is None:
        return Lag(*place)
    if held.next_offset is None:
        return Lag(*place, info.label, held.start_offset)
    first = max(cursor.next_offset, held.start_offset)
    return Lag(
        cursor.stream_id,
        cursor.next_offset,
        cursor.committed_at_ms,
        info.label,
        held.start_offset,
        held.next_offset,
        lag_records=max(held.next_offset - first, 0),
        lost_records=first - cursor.next_offset,
        lag_ms=lag_ms,
    )


def _row(each: Lag, now_ms: int) -> tuple[object, ...]:
    behind = None if each.lag_ms is None else _duration(each.lag_ms)
    cells = (each.tail_offset, each.lag_records, behind)
    known = ("-" if cell is None else cell for cell in cells)
    ago = _ago(each.committed_at_ms, now_ms)
    return (each.stream or "-", each.stream_id, each.next_offset, *known, ago, each.remark)


def _total(found: Sequence[Lag]) -> tuple[object, ...]:
    """Return the row of the sum, and of the longest time."""
    records = sum(each.lag_records or 0 for each in found)
    longest_ms = max(each.lag_ms or 0 for each in found)
    return ("total", "", "", "", records, _duration(longest_ms), "", "")


def _ago(time_ms: int, now_ms: int) -> str:
    return f"{_duration(max(now_ms - time_ms, 0))} ago"


def _duration(duration_ms: int) -> str:
    try:
        return str(timedelta(seconds=duration_ms // 1000))
    except OverflowError:
        return f"{duration_ms // 1000} s"
