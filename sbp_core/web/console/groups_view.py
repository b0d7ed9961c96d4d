"""Consumer groups as their pages show them: which ones are behind, by how much, for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from sbp_core.client import GroupInfo
from sbp_core.client.group_lag import Lag
from sbp_core.client.group_members import MemberInfo
from sbp_core.operating.samples import Samples
from sbp_core.web.console.charts import LINES_MAX, Chart, Series, draw
from sbp_core.web.console.tables import Column

_NAMED_MAX: Final = 10
"""Streams of a member that are named; the others are counted."""


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
    Column("lag", "Records behind", lambda row: row.lag, is_number=True),
    Column("streams", "Streams", lambda row: row.stream_count, is_number=True),
    Column("committed", "Committed", lambda row: row.committed_at_ms, is_number=True),
)


LAG_COLUMNS: Final[tuple[Column[Lag], ...]] = (
    Column("stream", "Stream", lambda each: each.stream and each.stream.lower()),
    Column("next", "Reads next", lambda each: each.next_offset, is_number=True),
    Column("end", "End", lambda each: each.tail_offset, is_number=True),
    Column("lag", "Records behind", lambda each: each.lag_records, is_number=True),
    Column("time", "Time behind", lambda each: each.lag_ms, is_number=True),
    Column("committed", "Committed", lambda each: each.committed_at_ms, is_number=True),
    Column("remark", "Remark", lambda each: each.remark or None),
)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group in all its streams; `longest_ms` is None if the time of one is not known.

    `committed_at_ms` is the time of the last commit of any cursor; None without cursors.
    """

    records: int
    longest_ms: int | None
    committed_at_ms: int | None
    chart: Chart


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group: the streams that it reads, and those that it is to give up."""

    member_id: str
    subject: str
    patterns: str
    reads: str
    gives_up: str


def group_path(group: str) -> str:
    """Return the path of the page of a group."""
    return f"/groups/{quote(group, safe='')}"


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


def make_members(
    members: Sequence[MemberInfo], names: Mapping[int, str | None]
) -> tuple[MemberRow, ...]:
    """Return the members of a group; `names` are those of streams, by id, as far as known."""

    def named(stream_ids: Sequence[int]) -> str:
        shown = [names.get(each) or str(each) for each in stream_ids[:_NAMED_MAX]]
        rest = len(stream_ids) - len(shown)
        return ", ".join(shown) + (f" and {rest} more" if rest else "")

    return tuple(
        MemberRow(
            each.member_id,
            each.subject or "",
            ", ".join(each.patterns),
            named(each.stream_ids),
            named(each.revoked_ids),
        )
        for each in members
    )


def make_group(group: str, lags: Sequence[Lag], samples: Samples, now_ms: float) -> GroupView:
    """Return what the page of a group shows; its chart has the streams that lag most."""
    ages_ms = [each.lag_ms for each in lags if each.lag_records]
    return GroupView(
        sum(each.lag_records or 0 for each in lags),
        None if None in ages_ms else max(filter(None, ages_ms), default=0),
        max((each.committed_at_ms for each in lags), default=None),
        draw("Records behind", _series(group, lags, samples), now_ms, ""),
    )


def _series(group: str, lags: Sequence[Lag], samples: Samples) -> list[Series]:
    """Return the lag over time of the streams that lag most, and of all if there are more."""
    worst = sorted(lags, key=lambda each: each.lag_records or 0, reverse=True)
    named = worst if len(worst) <= LINES_MAX else worst[: LINES_MAX - 1]
    series = [
        Series(
            each.stream or str(each.stream_id),
            [
                (sample.at_ms, sample.records[group, each.stream_id])
                for sample in samples.lags
                if (group, each.stream_id) in sample.records
            ],
        )
        for each in named
    ]
    if len(worst) > len(named):
        sums = [(sample.at_ms, sample.by_group()) for sample in samples.lags]
        points = [(at_ms, by_group[group]) for at_ms, by_group in sums if group in by_group]
        series.append(Series("all streams", points))
    return series
