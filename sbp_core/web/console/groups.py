"""Consumer groups: the list, one group with its lag, and how its cursors are moved or deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from sbp_core import limits
from sbp_core.client import AsyncClient, CursorInfo, GroupInfo, Reach, StreamInfo
from sbp_core.client.types import GroupDescription
from sbp_core.errors import NotFoundError, RefusedError, StatusCode, UnsupportedError
from sbp_core.operating.cursor_lag import Lag, measure_group, unread_offsets
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
from sbp_core.operating.samples import Samples
from sbp_core.web.console.charts import LINES_MAX, SPANS, Series, draw, span_of
from sbp_core.web.console.site import Done, Question, Visit, check_typed, get, post
from sbp_core.web.console.sorting import Column, make_table, parse_count
from sbp_core.web.console.words import counted
from sbp_core.wording import listed

_ANSWER_MS: Final = 3_000
"""How long a page waits for range servers, before it shows the rest without them."""
_FIELD: Final = "to-"
"""The field of a stream in the form of a reset begins so; its id follows."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list; `lag` and `stream_count` are None if it was not sampled yet."""

    group: str
    committed_at_ms: int | None
    lag: int | None
    stream_count: int | None

    @property
    def path(self) -> str:
        """The page of the group."""
        return group_path(self.group)


COLUMNS: Final[tuple[Column[GroupRow], ...]] = (
    Column("group", "Group", lambda row: row.group.lower()),
    Column("lag", "Lag", lambda row: row.lag, is_number=True),
    Column("streams", "Streams", lambda row: row.stream_count, is_number=True),
    Column("committed", "Committed", lambda row: row.committed_at_ms, is_number=True),
)
LAG_COLUMNS: Final[tuple[Column[Lag], ...]] = (
    Column("stream", "Stream", lambda each: each.stream and each.stream.lower()),
    Column("next", "Reads next", lambda each: each.next_offset, is_number=True),
    Column("end", "End", lambda each: each.tail_offset, is_number=True),
    Column("lag", "Lag", lambda each: each.lag_records, is_number=True),
    Column("time", "Time lag", lambda each: each.lag_ms, is_number=True),
    Column("committed", "Committed", lambda each: each.committed_at_ms, is_number=True),
    Column("remark", "Remark", lambda each: each.remark or None),
)


def group_path(group: str) -> str:
    """Return the path of the page of a group."""
    return f"/groups/{quote(group, safe='')}"


async def show_all(visit: Visit) -> Response:
    """Show the groups that the caller sees."""
    samples, query = visit.samples(), visit.query
    rows = make_rows(await visit.client.list_groups(), samples, query.get("search", ""))
    return visit.page(
        *("groups.html", "Groups"),
        table=make_table(rows, COLUMNS, query, visit.path),
        unsampled=samples.unsampled_groups,
    )


def make_rows(groups: Sequence[GroupInfo], samples: Samples, search: str) -> list[GroupRow]:
    """Return the groups whose name has the text that is searched for, in any case."""
    wanted = search.strip().lower()
    lags: dict[str, list[int]] = {}
    if samples.lags:
        for (group, _), count in samples.lags[-1].records.items():
            lags.setdefault(group, []).append(count)
    return [
        GroupRow(
            info.group,
            info.committed_at_ms,
            sum(lags[info.group]) if info.group in lags else None,
            len(lags[info.group]) if info.group in lags else None,
        )
        for info in groups
        if wanted in info.group.lower()
    ]


async def show_one(visit: Visit) -> Response:
    """Show how far a group is behind each of its streams."""
    group, client, now_ms = visit.named("group"), visit.client, time.time_ns() // 1_000_000
    described = await _maybe_described(client, group)
    members = described.members if described else ()
    cursors = await client.describe_cursors(group)
    if not cursors and not members:
        raise _no_cursors(group)
    infos, reaches = await _find_streams(client, cursors)
    unread = unread_offsets(cursors, reaches)
    times = await client.append_times(unread, timeout_ms=limits.CONNECT_TIMEOUT_MS)
    lags = measure_group(cursors, infos, reaches, times, now_ms)
    series, span = lag_series(group, lags, visit.samples()), span_of(visit.query)
    return visit.page(
        *("group.html", f"Group {group}"),
        group_path=group_path(group),
        described=described,
        names={each.stream_id: each.stream or str(each.stream_id) for each in lags},
        holders=described.holders if described else {},
        records=sum(each.lag_records or 0 for each in lags),
        longest_ms=longest_ms(lags),
        committed_at_ms=max((each.committed_at_ms for each in lags), default=None),
        span=span,
        chart=draw("Records behind", series, now_ms, "", SPANS[span]),
        table=make_table(lags, LAG_COLUMNS, visit.query, visit.path),
    )


def longest_ms(lags: Sequence[Lag]) -> int | None:
    """Return the longest time behind a stream; None if the time of one is not known."""
    ages_ms = [each.lag_ms for each in lags if each.lag_records]
    return None if None in ages_ms else max(filter(None, ages_ms), default=0)


def lag_series(group: str, lags: Sequence[Lag], samples: Samples) -> list[Series]:
    """Return the lag over time of the streams that lag most, and of all if there are more."""
    worst = sorted(lags, key=lambda each: each.lag_records or 0, reverse=True)
    named = worst if len(worst) <= LINES_MAX else worst[: LINES_MAX - 1]
    series = []
    for each in named:
        found = [(past.at_ms, past.maybe_lag(group, each.stream_id)) for past in samples.lags]
        points = [(at_ms, lag) for at_ms, lag in found if lag is not None]
        series.append(Series(each.stream or str(each.stream_id), points))
    if len(worst) > len(named):
        sums = [
            (past.at_ms, past.by_group[group]) for past in samples.lags if group in past.by_group
        ]
        series.append(Series("all streams", sums))
    return series


async def ask_reset(visit: Visit) -> Response:
    """Show the form of a reset; with targets, what it would do."""
    group, query, client = visit.named("group"), visit.query, visit.client
    cursors, infos, reaches = await _existing(visit)
    fields = {
        int(name.removeprefix(_FIELD)): text
        for name, text in query.items()
        if name.startswith(_FIELD) and parse_count(name.removeprefix(_FIELD)) is not None
    }
    if "together" not in query and not fields:
        lags = measure_group(cursors, infos, reaches, {}, 0)
        return visit.page(
            *("group_reset.html", f"Move the cursors of group {group}"),
            group=group,
            group_path=group_path(group),
            lags=lags[:FIELDS_MAX],
            rest_count=max(len(lags) - FIELDS_MAX, 0),
        )
    targets = parse_targets(cursors, query.get("together", ""), fields)
    times = lookup_times(targets)
    found = await client.lookup_offsets(times, timeout_ms=_ANSWER_MS) if times else {}
    question = Question(
        title=f"Move the cursors of group {group}?",
        facts=[
            "Consumers without membership that run now may commit over it: stop them before.",
            "If a cursor moves before this is confirmed, none is moved.",
        ],
        button="Move the cursors",
        back=f"{group_path(group)}/reset",
    )
    return await _ask_moves(visit, plan_reset(cursors, infos, reaches, targets, found), question)


async def ask_deletion(visit: Visit) -> Response:
    """Show what it means to delete the cursors of a group, or its cursor in one stream."""
    group = visit.named("group")
    cursors, infos, _ = await _existing(visit)
    stream_id = parse_count(visit.query.get("stream", ""))
    question = Question(
        title=f"Delete cursors of group {group}?",
        facts=[
            "Its consumers then begin where their settings say, as the consumers of a new group do."
        ],
        button="Delete",
        back=group_path(group),
        typed=group,
        is_destructive=True,
    )
    rows = plan_deletion(cursors, infos, [] if stream_id is None else [stream_id])
    return await _ask_moves(visit, rows, question)


async def _ask_moves(visit: Visit, rows: Sequence[MoveRow], question: Question) -> Response:
    group = visit.named("group")
    described = await _maybe_described(visit.client, group)
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
    return visit.ask(question, "group_moves.html", rows=shown)


async def reset(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Move the cursors as the preview showed it."""
    return await _move(visit, fields, "moved")


async def delete(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Delete the cursors that the preview showed."""
    check_typed(visit.named("group"), fields.get("typed", ""))
    return await _move(visit, fields, "deleted")


async def _move(visit: Visit, fields: Mapping[str, str], verb: str) -> Done:
    """Commit the moves of a form, unless a cursor is no longer where the preview showed it."""
    group, client = visit.named("group"), visit.client
    moves = read_moves(fields.get("moves", ""))
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


def _no_cursors(group: str) -> NotFoundError:
    return NotFoundError.of(f"group {group} has no cursors")


async def _maybe_described(client: AsyncClient, group: str) -> GroupDescription | None:
    """Return the members of a group; None if the servers know no members."""
    try:
        return await client.describe_group(group)
    except UnsupportedError:
        return None


async def _existing(
    visit: Visit,
) -> tuple[list[CursorInfo], dict[int, StreamInfo], dict[int, Reach]]:
    """Return the cursors of a group and their streams. Raises NotFoundError without cursors."""
    cursors = await visit.client.describe_cursors(visit.named("group"))
    if not cursors:
        raise _no_cursors(visit.named("group"))
    return (cursors, *await _find_streams(visit.client, cursors))


async def _find_streams(
    client: AsyncClient, cursors: Sequence[CursorInfo]
) -> tuple[dict[int, StreamInfo], dict[int, Reach]]:
    """Return the streams that still exist, and how far they can be read, by id."""
    existing = await client.find_streams([cursor.stream_id for cursor in cursors])
    infos = {info.stream_id: info for info in existing}
    return infos, await client.reach(dict.fromkeys(infos), timeout_ms=_ANSWER_MS, spared={})


ROUTES: Final = (
    get("/groups", show_all),
    get("/groups/{group}", show_one),
    get("/groups/{group}/reset", ask_reset),
    post("/groups/{group}/reset", reset),
    get("/groups/{group}/delete", ask_deletion),
    post("/groups/{group}/delete", delete),
)
