"""`sbp lag`: how far consumer groups are behind their streams; `sbp groups` shows the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from sbp_core import limits
from sbp_core.cli.commands import Command
from sbp_core.cli.connect import connect, find_reach, suggestion
from sbp_core.cli.options import ClientOptions, client_options
from sbp_core.cli.output import write_json, write_table
from sbp_core.errors import NotFoundError, UnsupportedError
from sbp_core.operating.cursor_lag import Lag, measure_group, unread_offsets

if TYPE_CHECKING:
    from sbp_core.client import Client, CursorInfo, GroupDescription

_HEADING = ("STREAM", "ID", "CURSOR", "TAIL", "LAG", "BEHIND", "COMMITTED", "MEMBER", "")


@click.command(cls=Command, example="sbp lag billing")
@click.argument("group", required=False)
@client_options
def lag(options: ClientOptions, group: str | None) -> int:
    """Compare the cursors of a consumer group with the tails of their streams.

    Lag is shown in records, and by the age of the record that is to be read next. In a group with
    members, each stream shows the member that reads it. Without GROUP, show the sums of all groups.
    """
    with connect(options) as client:
        if group is None:
            _write_all(client, is_json=options.json)
            return 0
        found = find_lags(client, find_cursors(client, group))
        described = describe_members(client, group)
    if options.json:
        for each in lag_objects(found, described):
            write_json({"group": group, **each})
    else:
        write_lags(found, described)
    return 0


def _write_all(client: Client, *, is_json: bool) -> None:
    """Write how far each group is behind: its streams for programs, its sum for people."""
    rows = []
    groups = client.list_groups()
    lags = find_group_lags(
        client, {each.group: client.describe_cursors(each.group) for each in groups}
    )
    for each in groups:
        found = lags[each.group]
        if is_json:
            for lag_of_stream in lag_objects(found, describe_members(client, each.group)):
                write_json({"group": each.group, **lag_of_stream})
        ago = show_age(each.committed_at_ms, _now_ms())
        rows.append((each.group, len(found), *_sums(found), ago))
    if not is_json:
        write_table(("GROUP", "STREAMS", "LAG", "BEHIND", "COMMITTED"), rows)


def write_groups(client: Client, *, is_json: bool) -> None:
    """Write the groups, and when each committed."""
    groups, now_ms = client.list_groups(), _now_ms()
    if is_json:
        for each in groups:
            write_json(asdict(each))
    else:
        rows = [(each.group, show_age(each.committed_at_ms, now_ms)) for each in groups]
        write_table(("GROUP", "COMMITTED"), rows)


def find_cursors(client: Client, group: str) -> list[CursorInfo]:
    """Return the cursors of a group. Raises NotFoundError if it has none."""
    cursors = client.describe_cursors(group)
    if not cursors:
        near = suggestion([group], [each.group for each in client.list_groups()])
        raise NotFoundError.of(
            f"group {group} has no cursors; {near or '`sbp groups list` shows the groups'}"
        )
    return cursors


def describe_members(client: Client, group: str) -> GroupDescription:
    """Return the members of a group; none if the servers know no members."""
    try:
        return client.describe_group(group)
    except UnsupportedError:
        from sbp_core.client import GroupDescription

        return GroupDescription(group, -1, ())


def find_lags(client: Client, cursors: Sequence[CursorInfo]) -> list[Lag]:
    """Return how far behind each cursor of a group is, within seconds."""
    return find_group_lags(client, {"": cursors})[""]


def find_group_lags(
    client: Client, groups: Mapping[str, Sequence[CursorInfo]]
) -> dict[str, list[Lag]]:
    """Return how far behind the cursors of groups are; the streams of all are looked at once."""
    stream_ids = {cursor.stream_id for cursors in groups.values() for cursor in cursors}
    infos = {info.stream_id: info for info in client.find_streams([*stream_ids])}
    reaches = find_reach(client, list(infos))
    unread = {group: unread_offsets(cursors, reaches) for group, cursors in groups.items()}
    times = _append_times(client, {place for each in unread.values() for place in each.items()})
    now_ms = _now_ms()
    return {
        group: measure_group(
            cursors,
            infos,
            reaches,
            {place[0]: times[place] for place in unread[group].items() if place in times},
            now_ms,
        )
        for group, cursors in groups.items()
    }


def _append_times(
    client: Client, places: set[tuple[int, int]]
) -> dict[tuple[int, int], int | None]:
    """Return when the records at places, (stream id, offset) each, were appended.

    Each question is about one record of every stream. The streams of a server that does not answer
    are left out.
    """
    times: dict[tuple[int, int], int | None] = {}
    while places:
        some = dict(places)
        found = client.append_times(some, timeout_ms=limits.CONNECT_TIMEOUT_MS)
        times |= {(each, some[each]): time_ms for each, time_ms in found.items()}
        places = {each for each in places - some.items() if each[0] in found}
    return times


def lag_objects(found: Sequence[Lag], described: GroupDescription) -> list[Mapping[str, object]]:
    """Return the lags as objects, each with the member that reads the stream."""
    holders = described.holders
    return [{**asdict(each), "member": holders.get(each.stream_id)} for each in found]


def write_lags(found: Sequence[Lag], described: GroupDescription) -> None:
    """Write a table of the lags, and their sum."""
    holders, now_ms = described.holders, _now_ms()
    rows = [_row(each, holders.get(each.stream_id), now_ms) for each in found]
    write_table(_HEADING, [*rows, _total(found)])


def show_age(time_ms: int | None, now_ms: int) -> str:
    """Return how long ago a time was, both in ms since 1970; never, without one."""
    return "never" if time_ms is None else f"{_duration(max(now_ms - time_ms, 0))} ago"


def _row(each: Lag, member: str | None, now_ms: int) -> tuple[object, ...]:
    behind = None if each.lag_ms is None else _duration(each.lag_ms)
    cells = (each.tail_offset, each.lag_records, behind)
    known = ("-" if cell is None else cell for cell in cells)
    ago = show_age(each.committed_at_ms, now_ms)
    place = (each.stream or "-", each.stream_id, each.next_offset)
    return (*place, *known, ago, member or "-", each.remark)


def _total(found: Sequence[Lag]) -> tuple[object, ...]:
    """Return the row of the sums."""
    return ("total", "", "", "", *_sums(found), "", "", "")


def _sums(found: Sequence[Lag]) -> tuple[object, object]:
    """Return the records that are behind, and the longest time."""
    longest_ms = max((each.lag_ms or 0 for each in found), default=0)
    return sum(each.lag_records or 0 for each in found), _duration(longest_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _duration(duration_ms: int) -> str:
    try:
        return str(timedelta(seconds=duration_ms // 1000))
    except OverflowError:
        return f"{duration_ms // 1000} s"
