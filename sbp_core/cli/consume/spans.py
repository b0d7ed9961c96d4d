"""Which parts of which streams are read: names, ids and patterns, from a position to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sbp_core.app.positions import Selection, Span
from sbp_core.cli.connect import find_reach, parse_stream
from sbp_core.cli.values import check_interval
from sbp_core.client import Client, Reach
from sbp_core.errors import NotFoundError, OffsetOutOfRangeError
from sbp_core.operating.stream_position import Position, PositionKind, find_offset
from sbp_core.wording import listed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that are asked for, before any stream is looked at.

    Streams are names, ids, and begins of names followed by `*`. `last` is a number of records
    before the end, which stands in place of `start`. Without `end` that is the tail, or, to
    `follow`, nowhere. In streams that a `group` has cursors in, it starts there.
    """

    streams: tuple[str, ...]
    start: Position
    end: Position | None
    last: int | None
    group: str | None
    is_following: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The streams to read, and the part of each, by id.

    In `open_ended` ones the tail was not known: more has to be read behind their spans.
    """

    selection: Selection
    spans: Mapping[int, Span]
    open_ended: frozenset[int]


def make_plan(client: Client, wanted: Wanted) -> Plan:
    """Return what to read.

    Raises ConfigurationError for an end before the start, NotFoundError, OffsetOutOfRangeError,
    SbpError.
    """
    patterns = [each for each in wanted.streams if "*" in each]
    stream_ids = _find_streams(client, wanted.streams, patterns)
    if patterns and not stream_ids and not wanted.is_following:
        raise NotFoundError.of(f"no stream has a name such as {listed(patterns)}")
    prefixes = Selection.of(patterns).prefixes if patterns and wanted.is_following else frozenset()
    selection = Selection(frozenset(), prefixes, frozenset(stream_ids))
    if not stream_ids:
        return Plan(selection, {}, frozenset())
    reaches = find_reach(client, stream_ids)
    finder = _Finder(client, wanted, reaches)
    spans = {each: finder.span(each) for each in stream_ids}
    if not any(_is_in_order(each) for each in spans.values()):
        first = next(iter(spans.values()))
        check_interval(first.start_offset, first.end_offset or 0)
    open_ended = {
        each
        for each in stream_ids
        if wanted.end is None and finder.reaches[each].next_offset is None
    }
    return Plan(selection, spans, frozenset(open_ended))


def _is_in_order(span: Span) -> bool:
    return span.end_offset is None or span.start_offset <= span.end_offset


def rest_of(client: Client, plan: Plan) -> Plan:
    """Return what is left of the open-ended streams, once their tails are known."""
    ids = plan.open_ended
    spans = {}
    for bounds in client.stream_bounds([*ids]):
        read = plan.spans[bounds.stream_id]
        start = max(read.start_offset, read.end_offset or 0)
        spans[bounds.stream_id] = Span(start, bounds.next_offset)
    return Plan(Selection(frozenset(), frozenset(), ids), spans, frozenset())


def _find_streams(client: Client, texts: Sequence[str], patterns: Sequence[str]) -> list[int]:
    """Return the ids of the streams that are named, or match. Raises NotFoundError."""
    named = list(dict.fromkeys(parse_stream(each) for each in texts if each not in patterns))
    found = client.describe_streams(named) if named else []
    if patterns:
        found += Selection.of(patterns).of_streams(client.list_streams())
    return list(dict.fromkeys(each.stream_id for each in found))


class _Finder:
    """Finds where the parts of streams begin and end."""

    def __init__(self, client: Client, wanted: Wanted, reaches: Mapping[int, Reach]) -> None:
        self._client = client
        self._wanted = wanted
        self.reaches = dict(reaches)
        ids = list(reaches)
        self._cursors = {
            each.stream_id: each.next_offset
            for each in (client.describe_cursors(wanted.group, ids) if wanted.group else ())
        }
        self._at_start = self._look_up(wanted.start)
        self._at_end = self._look_up(wanted.end)

    def span(self, stream_id: int) -> Span:
        """Return the part of a stream."""
        wanted = self._wanted
        cursor = self._cursors.get(stream_id)
        if wanted.end is not None:
            end = self._offset(stream_id, wanted.end, self._at_end)
        else:
            if wanted.last is not None:
                self._learn_tail(stream_id)
            end = self.reaches[stream_id].readable_end
        if cursor is not None:
            start = cursor
        elif wanted.last is not None:
            start = max(end - wanted.last, self.reaches[stream_id].start_offset)
        else:
            start = self._offset(stream_id, wanted.start, self._at_start)
            if wanted.end is None:
                end = self.reaches[stream_id].readable_end  # the tail may be known now
        return Span(start, None if wanted.is_following else end)

    def _offset(self, stream_id: int, position: Position, found: Mapping[int, int]) -> int:
        at = self.reaches[stream_id]
        if position.kind is PositionKind.OFFSET:
            if at.start_offset <= position.number <= at.readable_end:
                return position.number
        elif position.kind in {PositionKind.EARLIEST, PositionKind.TIME}:
            return find_offset(position, at, found.get(stream_id))
        try:
            return find_offset(position, self._learn_tail(stream_id))
        except OffsetOutOfRangeError as error:
            error.add_note("see --from, --to and `sbp streams describe`")
            raise

    def _learn_tail(self, stream_id: int) -> Reach:
        """Return how far a stream goes, waiting for the server of its tail. Raises SbpError."""
        at = self.reaches[stream_id]
        if at.next_offset is None:
            (bounds,) = self._client.stream_bounds([stream_id])
            at = replace(at, start_offset=bounds.start_offset, next_offset=bounds.next_offset)
            self.reaches[stream_id] = at
        return at

    def _look_up(self, position: Position | None) -> Mapping[int, int]:
        if position is None or position.kind is not PositionKind.TIME:
            return {}
        return self._client.lookup_offsets(dict.fromkeys(self.reaches, position.number))
