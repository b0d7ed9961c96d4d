"""`sbp groups`: list and describe consumer groups, move and delete their cursors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from sbp_core import limits
from sbp_core.cli.commands import Actions
from sbp_core.cli.confirming import write_effects, yes_option
from sbp_core.cli.connect import STREAM, connect, find_reach, parse_stream
from sbp_core.cli.group_lag import (
    describe_members,
    find_cursors,
    find_lags,
    lag_objects,
    write_groups,
    write_lags,
)
from sbp_core.cli.options import POSITION, ClientOptions, client_options
from sbp_core.cli.output import write_json, write_line, write_notice, write_table
from sbp_core.errors import NotFoundError, RefusedError, SbpError, StatusCode
from sbp_core.operating.cursor_moves import (
    MoveRow,
    find_changed,
    lookup_times,
    member_obstacle,
    plan_deletion,
    plan_reset,
)
from sbp_core.operating.stream_position import Position
from sbp_core.wording import counted, listed

if TYPE_CHECKING:
    from sbp_core.client import Client, CursorInfo, GroupDescription

_MEMBERS: Final = ("MEMBER", "SUBJECT", "SUBSCRIBED TO", "READS", "GIVES UP")
_MOVES: Final = ("STREAM", "ID", "FROM", "TO", "DIFFERENCE", "EFFECT")

_streams = click.option(
    "--stream",
    "streams",
    type=STREAM,
    multiple=True,
    metavar="NAME_OR_ID",
    help="Only in this stream; may be repeated.",
)


groups: Final = Actions(
    "groups", help="List and describe consumer groups, move and delete their cursors."
)


@groups.command("list", example="sbp groups list")
@client_options
def list_all(options: ClientOptions) -> int:
    """List the consumer groups, and when each committed last."""
    with connect(options) as client:
        write_groups(client, is_json=options.json)
    return 0


@groups.command(example="sbp groups describe billing")
@click.argument("group")
@client_options
def describe(options: ClientOptions, group: str) -> int:
    """Show the members of a group, and how far it is behind in each stream."""
    with connect(options) as client:
        described = describe_members(client, group)
        cursors = (
            client.describe_cursors(group) if described.members else find_cursors(client, group)
        )
        lags = find_lags(client, cursors)
        held = client.find_streams([*described.holders])
    if options.json:
        streams = lag_objects(lags, described)
        write_json({**asdict(described), "state": described.state, "streams": streams})
        return 0
    write_line(f"{group}: {described.state}, {counted(len(described.members), 'member')}")
    if described.members:
        _write_members(described, {each.stream_id: each.label for each in held})
    if lags:
        write_lags(lags, described)
    return 0


@groups.command(example="sbp groups reset billing --to -10m --yes")
@click.argument("group")
@_streams
@click.option(
    "--to",
    "position",
    type=POSITION,
    required=True,
    help="earliest, latest, an offset, -N (N records before the tail), a time of append such as"
    " 2025-01-31T09:30 (UTC), or one before now such as -10m.",
)
@yes_option
@client_options
def reset(
    options: ClientOptions, group: str, streams: Sequence[str], position: Position, *, yes: bool
) -> int:
    """Move the cursors of a group. Without --yes it is only shown what would happen.

    A group with members is refused: stop them first. Either all cursors move, or none.
    """
    with connect(options) as client:
        cursors = _chosen(client, group, streams)
        found = client.find_streams([each.stream_id for each in cursors])
        infos = {each.stream_id: each for each in found}
        targets = dict.fromkeys((each.stream_id for each in cursors), position)
        times = lookup_times(targets)
        offsets = (
            client.lookup_offsets(times, timeout_ms=limits.CONNECT_TIMEOUT_MS) if times else {}
        )
        rows = plan_reset(cursors, infos, find_reach(client, list(infos)), targets, offsets)
        _carry_out(client, group, rows, "moved", is_wanted=yes, is_json=options.json)
    return 0


@groups.command(example="sbp groups delete billing --stream archive --yes")
@click.argument("group")
@_streams
@yes_option
@client_options
def delete(options: ClientOptions, group: str, streams: Sequence[str], *, yes: bool) -> int:
    """Delete the cursors of a group. Without --yes it is only shown what would happen.

    Its consumers then begin where their settings say, as those of a new group do. A group with
    members is refused: stop them first.
    """
    with connect(options) as client:
        cursors = _chosen(client, group, streams)
        found = client.find_streams([each.stream_id for each in cursors])
        rows = plan_deletion(cursors, {each.stream_id: each for each in found}, ())
        _carry_out(client, group, rows, "deleted", is_wanted=yes, is_json=options.json)
    return 0


def _chosen(client: Client, group: str, streams: Sequence[str]) -> list[CursorInfo]:
    """Return the cursors of a group in these streams, in all without any. Raises NotFoundError."""
    cursors = find_cursors(client, group)
    if not streams:
        return cursors
    wanted = {
        each.stream_id: each for each in client.describe_streams([*map(parse_stream, streams)])
    }
    missing = wanted.keys() - {each.stream_id for each in cursors}
    if missing:
        names = listed(sorted(wanted[each].label for each in missing))
        raise NotFoundError.of(f"group {group} has no cursor in {names}")
    return [each for each in cursors if each.stream_id in wanted]


def _carry_out(
    client: Client,
    group: str,
    rows: Sequence[MoveRow],
    verb: str,
    *,
    is_wanted: bool,
    is_json: bool,
) -> None:
    """Show what moves; make the moves if that is wanted. Raises RefusedError, SbpError."""
    described = describe_members(client, group)
    obstacle = member_obstacle(group, len(described.members)) if described.members else None
    if is_wanted:
        if obstacle is not None:
            raise RefusedError(StatusCode.CONFLICT, obstacle)
        _commit(client, group, rows, verb)
    _write_moves(group, rows, is_done=is_wanted, is_json=is_json)
    if is_json:
        return
    if is_wanted:
        write_line(f"{verb}: {counted(len(rows), 'cursor')} of group {group}")
    elif not rows:
        write_line(f"no cursor of group {group} would be {verb}")
    elif obstacle is None:
        write_effects((), verb, is_done=False, is_json=False)
    if obstacle is not None:
        write_notice(obstacle)


def _commit(client: Client, group: str, rows: Sequence[MoveRow], verb: str) -> None:
    """Move cursors: all, or none if one cannot move or was moved by others just now."""
    refused = [f"stream {each.stream}: {each.refusal}" for each in rows if each.refusal]
    if refused:
        raise SbpError(
            f"nothing was {verb}: {listed(refused, '; ')}. Name the others with --stream, or retry"
            " later"
        )
    moves = [each.move for each in rows if each.move is not None]
    changed = find_changed(moves, client.describe_cursors(group))
    if changed:
        raise RefusedError(
            StatusCode.CONFLICT,
            f"nothing was {verb}: {listed(changed, '; ')}. Stop the consumers of the group first",
        )
    if moves:
        client.commit_cursors(group, {each.stream_id: each.new_offset for each in moves})


def _write_moves(group: str, rows: Sequence[MoveRow], *, is_done: bool, is_json: bool) -> None:
    if is_json:
        for each in rows:
            shown = {
                "group": group,
                "stream": each.stream,
                "stream_id": each.stream_id,
                "from": each.old_offset,
                "to": _maybe_target(each),
                "difference": each.difference,
                "effect": each.effect,
                "refusal": each.refusal or None,
                "done": is_done,
            }
            write_json(shown)
    elif rows:
        write_table(_MOVES, [_move_row(each) for each in rows])


def _move_row(row: MoveRow) -> tuple[object, ...]:
    target = _maybe_target(row)
    difference = "-" if row.difference is None else f"{row.difference:+}"
    place = (row.stream, row.stream_id, row.old_offset, "-" if target is None else target)
    return (*place, difference, row.effect or row.refusal)


def _maybe_target(row: MoveRow) -> int | None:
    """Return where a cursor will be; None if it cannot move, or is to be deleted."""
    return None if row.move is None or row.move.is_deletion else row.move.new_offset


def _write_members(described: GroupDescription, names: Mapping[int, str]) -> None:
    def named(stream_ids: Sequence[int]) -> str:
        return ", ".join(names.get(each, str(each)) for each in stream_ids) or "-"

    rows = [
        (
            each.member_id,
            each.subject or "-",
            ", ".join(each.patterns),
            named(each.stream_ids),
            named(each.revoked_ids),
        )
        for each in described.members
    ]
    write_table(_MEMBERS, rows)
