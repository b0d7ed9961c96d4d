"""`sbp lag`: how far consumer groups are behind their streams."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta

import click

from sbp_core import limits
from sbp_core.cli.client_options import ClientOptions, client_options
from sbp_core.cli.connect import connect, find_reach
from sbp_core.cli.output import write_json, write_table
from sbp_core.client import Client, CursorInfo, GroupInfo
from sbp_core.client.group_lag import Lag, measure_group, unread_offsets
from sbp_core.errors import NotFoundError, UnsupportedError

_HEADING = ("STREAM", "ID", "CURSOR", "TAIL", "LAG", "BEHIND", "COMMITTED", "MEMBER", "")


@click.command()
@click.argument("group", required=False)
@client_options
def lag(options: ClientOptions, group: str | None) -> int:
    """Compare the cursors of a consumer group with the tails of their streams.

    Lag is shown in records, and by the age of the record that is to be read next. In a group with
    members, each stream shows the member that reads it. Without GROUP, list the groups.
    """
    with connect(options) as client:
        now_ms = time.time_ns() // 1_000_000
        if group is None:
            _write_groups(client.list_groups(), now_ms, is_json=options.json)
            return 0
        cursors = client.describe_cursors(group)
        if not cursors:
            raise NotFoundError.of(
                f"group {group} has no cursors; `sbp lag` lists the groups that have some"
            )
        found = _find_lags(client, cursors, now_ms)
        members = _find_members(client, group)
    if options.json:
        for each in found:
            member = members.get(each.stream_id)
            write_json({"group": group, **asdict(each), "member": member})
    else:
        rows = [_row(each, members.get(each.stream_id), now_ms) for each in found]
        write_table(_HEADING, [*rows, _total(found)])
    return 0


def _find_members(client: Client, group: str) -> Mapping[int, str]:
    """Return the member that reads each stream, by id; none if the servers know no members."""
    try:
        return client.describe_group(group).holders
    except UnsupportedError:
        return {}


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
    unread = unread_offsets(cursors, reaches)
    times = client.append_times(unread, timeout_ms=limits.CONNECT_TIMEOUT_MS)
    return measure_group(cursors, infos, reaches, times, now_ms)


def _row(each: Lag, member: str | None, now_ms: int) -> tuple[object, ...]:
    behind = None if each.lag_ms is None else _duration(each.lag_ms)
    cells = (each.tail_offset, each.lag_records, behind)
    known = ("-" if cell is None else cell for cell in cells)
    ago = _ago(each.committed_at_ms, now_ms)
    place = (each.stream or "-", each.stream_id, each.next_offset)
    return (*place, *known, ago, member or "-", each.remark)


def _total(found: Sequence[Lag]) -> tuple[object, ...]:
    """Return the row of the sum, and of the longest time."""
    records = sum(each.lag_records or 0 for each in found)
    longest_ms = max(each.lag_ms or 0 for each in found)
    return ("total", "", "", "", records, _duration(longest_ms), "", "", "")


def _ago(time_ms: int, now_ms: int) -> str:
    return f"{_duration(max(now_ms - time_ms, 0))} ago"


def _duration(duration_ms: int) -> str:
    try:
        return str(timedelta(seconds=duration_ms // 1000))
    except OverflowError:
        return f"{duration_ms // 1000} s"
