"""Consumer groups: the list, one group with its lag, and how its cursors are moved or deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core import limits
from sbp_core.client import AsyncClient, CursorInfo, Reach, StreamInfo
from sbp_core.client.group_lag import Lag, measure_group, unread_offsets
from sbp_core.client.group_members import GroupDescription
from sbp_core.errors import NotFoundError, RefusedError, StatusCode, UnsupportedError
from sbp_core.operating.cursor_moves import (
    FIELDS_MAX,
    MOVES_MAX,
    MoveRow,
    find_changed,
    lookup_times,
    member_obstacle,
    parse_targets,
    plan_deletion,
    plan_reset,
    read_moves,
    write_moves,
)
from sbp_core.web.console.actions import Question, act, ask
from sbp_core.web.console.groups_view import (
    COLUMNS,
    LAG_COLUMNS,
    group_path,
    make_group,
    make_members,
    make_rows,
)
from sbp_core.web.console.site import Site
from sbp_core.web.console.submissions import Done, check_typed
from sbp_core.web.console.tables import make_table, parse_count
from sbp_core.web.console.words import counted
from sbp_core.wording import listed

_ANSWER_MS: Final = 3_000
"""How long range servers are waited for, to show what is known without them."""
_FIELD: Final = "to-"
"""The field of a stream in the form of a reset begins so; its id follows."""


async def show_all(request: Request) -> Response:
    """Show the groups that the caller sees."""
    site = Site.of(request)
    client = await site.client(request)
    samples = await site.samples(request)
    query = request.query_params
    rows = make_rows(await client.list_groups(), samples, query.get("search", ""))
    table = make_table(rows, COLUMNS, query, request.url.path)
    return site.page(
        request, "groups.html", "Groups", table=table, unsampled=samples.unsampled_groups
    )


async def show_one(request: Request) -> Response:
    """Show how far a group is behind each of its streams."""
    site, group = Site.of(request), request.path_params["group"]
    client = await site.client(request)
    samples = await site.samples(request)
    now_ms = time.time_ns() // 1_000_000
    described = await _maybe_described(client, group)
    cursors = await client.describe_cursors(group)
    if not cursors and (described is None or not described.members):
        raise _no_cursors(group)
    lags = await _measure(client, cursors, now_ms)
    path = group_path(group)
    names = {each.stream_id: each.stream for each in lags}
    return site.page(
        *(request, "group.html", f"Group {group}"),
        path=path,
        state=None if described is None else described.state,
        members=make_members(described.members if described else (), names),
        holders=described.holders if described else {},
        view=make_group(group, lags, samples, now_ms),
        table=make_table(lags, LAG_COLUMNS, request.query_params, path),
    )


async def ask_reset(request: Request) -> Response:
    """Show the form of a reset; with targets, what it would do."""
    site, group = Site.of(request), request.path_params["group"]
    client, query = await site.client(request), request.query_params
    cursors = await _cursors(client, group)
    infos, reaches = await _find_streams(client, cursors)
    fields = {
        int(name.removeprefix(_FIELD)): text
        for name, text in query.items()
        if name.startswith(_FIELD) and parse_count(name.removeprefix(_FIELD)) is not None
    }
    if "together" not in query and not fields:
        lags = measure_group(cursors, infos, reaches, {}, 0)
        return site.page(
            *(request, "group_reset.html", f"Move the cursors of group {group}"),
            group=group,
            path=group_path(group),
            lags=lags[:FIELDS_MAX],
            rest_count=max(len(lags) - FIELDS_MAX, 0),
        )
    targets = parse_targets(cursors, query.get("together", ""), fields)
    times = lookup_times(targets)
    found = await client.lookup_offsets(times, timeout_ms=_ANSWER_MS) if times else {}
    rows = plan_reset(cursors, infos, reaches, targets, found)
    question = Question(
        title=f"Move the cursors of group {group}?",
        facts=[
            "Consumers without membership that run now may commit over it: stop them before.",
            "If a cursor moves before this is confirmed, none is moved.",
        ],
        button="Move the cursors",
        back=f"{group_path(group)}/reset",
    )
    return await _ask_moves(request, rows, question)


async def ask_deletion(request: Request) -> Response:
    """Show what it means to delete the cursors of a group, or that of one stream."""
    group = request.path_params["group"]
    client = await Site.of(request).client(request)
    cursors = await _cursors(client, group)
    infos, _ = await _find_streams(client, cursors)
    stream_id = parse_count(request.query_params.get("stream", ""))
    rows = plan_deletion(cursors, infos, [] if stream_id is None else [stream_id])
    question = Question(
        title=f"Delete cursors of group {group}?",
        facts=["Its consumers then begin where their settings say, as those of a new group do."],
        button="Delete",
        back=group_path(group),
        typed=group,
        is_destructive=True,
    )
    return await _ask_moves(request, rows, question)


async def reset(request: Request) -> Response:
    """Move the cursors as the preview showed it."""
    fields = await Site.of(request).form(request)
    return await _move(request, fields, "moved")


async def delete(request: Request) -> Response:
    """Delete the cursors that the preview showed."""
    fields = await Site.of(request).form(request)
    check_typed(request.path_params["group"], fields.get("typed", ""))
    return await _move(request, fields, "deleted")


async def _ask_moves(request: Request, rows: Sequence[MoveRow], question: Question) -> Response:
    group = request.path_params["group"]
    described = await _maybe_described(await Site.of(request).client(request), group)
    shown, rest = rows[:MOVES_MAX], len(rows) - MOVES_MAX
    moves = write_moves(shown)
    if not moves:
        question = replace(question, facts=["No cursor would move."], button=None, typed=None)
    elif described is not None and described.members:
        obstacle = member_obstacle(group, len(described.members))
        question = replace(question, facts=[obstacle], button=None, typed=None)
    elif rest > 0:
        more = f"{counted(rest, 'more cursor')}: confirm these first, then ask again."
        question = replace(question, facts=[*question.facts, more])
    question = replace(question, carried={"moves": moves})
    return ask(request, question, "group_moves.html", rows=shown)


async def _move(request: Request, fields: Mapping[str, str], verb: str) -> Response:
    """Commit the moves of a form, unless a cursor is no longer where the preview showed it."""
    group = request.path_params["group"]
    client = await Site.of(request).client(request)
    moves = read_moves(fields.get("moves", ""))

    async def commit() -> Done:
        changed = find_changed(moves, await client.describe_cursors(group))
        if changed:
            raise RefusedError(
                StatusCode.CONFLICT,
                f"nothing was {verb}: {listed(changed, '; ')}. Look at a new preview",
            )
        await client.commit_cursors(group, {each.stream_id: each.new_offset for each in moves})
        is_left = bool(await client.describe_cursors(group))
        notice = f"{verb}: {counted(len(moves), 'cursor')} of group {group}"
        return Done(group_path(group) if is_left else "/groups", (notice,))

    return await act(request, fields, commit)


async def _cursors(client: AsyncClient, group: str) -> list[CursorInfo]:
    """Return the cursors of a group. Raises NotFoundError if it has none."""
    cursors = await client.describe_cursors(group)
    if not cursors:
        raise _no_cursors(group)
    return cursors


def _no_cursors(group: str) -> NotFoundError:
    return NotFoundError.of(f"group {group} has no cursors")


async def _maybe_described(client: AsyncClient, group: str) -> GroupDescription | None:
    """Return the members of a group; None if the servers know no members."""
    try:
        return await client.describe_group(group)
    except UnsupportedError:
        return None


async def _find_streams(
    client: AsyncClient, cursors: Sequence[CursorInfo]
) -> tuple[dict[int, StreamInfo], dict[int, Reach]]:
    """Return the streams that still exist, and how far they can be read, by id."""
    existing = await client.find_streams([cursor.stream_id for cursor in cursors])
    infos = {info.stream_id: info for info in existing}
    return infos, await client.reach(dict.fromkeys(infos), timeout_ms=_ANSWER_MS, spared={})


async def _measure(client: AsyncClient, cursors: Sequence[CursorInfo], now_ms: int) -> list[Lag]:
    infos, reaches = await _find_streams(client, cursors)
    unread = unread_offsets(cursors, reaches)
    times = await client.append_times(unread, timeout_ms=limits.CONNECT_TIMEOUT_MS)
    return measure_group(cursors, infos, reaches, times, now_ms)


ROUTES: Final = (
    Route("/groups", show_all, methods=["GET"]),
    Route("/groups/{group}", show_one, methods=["GET"]),
    Route("/groups/{group}/reset", ask_reset, methods=["GET"]),
    Route("/groups/{group}/reset", reset, methods=["POST"]),
    Route("/groups/{group}/delete", ask_deletion, methods=["GET"]),
    Route("/groups/{group}/delete", delete, methods=["POST"]),
)
