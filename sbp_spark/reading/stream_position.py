"""How far a stream is read, and how a checkpoint writes that for all the streams of a query.

A query of thousands of streams has its positions written and parsed, in Python and in Java, each
time Spark asks for news. They are one text, as JSON with an object for each stream takes forty
times as long.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from sbp_core.errors import SbpError

CREATED_UNKNOWN: Final = -1
"""`created_at_ms` of a stream whose placement driver does not tell it; it fits any other."""
NEW_CHECKPOINT: Final = "start the query with a new checkpointLocation"

_INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = "(0|[1-9][0-9]{0,18})"
_ENTRY: Final = re.compile(
    f"{_NUMBER}={_NUMBER}(?:@{_NUMBER})?"
    + "".join(f"(?:,{name}={_NUMBER})?" for name in ("base", "end", "target", "until"))
)
_GRAMMAR: Final = (
    "STREAM_ID=NEXT_OFFSET@CREATED_MS, perhaps with ,base= ,end= ,target= ,until= in this order,"
    " each a whole number within int64"
)


class CheckpointError(SbpError):
    """The checkpoint holds an offset that this source cannot go on from."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far one stream is read: `next_offset` is the next one to read.

    `stream_id` and `created_at_ms` (Unix time) together identify the stream: one that is deleted
    and created anew differs in one of them. `base_offset` is the resolved start, known only in
    the first end offset in which the stream appears. `end_offset` is where reading ends, if that
    was resolved from the tail or from a time: it is kept as long as the query asks for such an
    end. `end_time_ms` (Unix time) is that time; without `end_offset` it has not come yet.
    `target_offset` is how far a run with Trigger.AvailableNow goes that is not there yet.
    """

    stream_id: int
    created_at_ms: int
    next_offset: int
    base_offset: int | None = None
    end_offset: int | None = None
    target_offset: int | None = None
    end_time_ms: int | None = None

    def is_same_stream(self, other: StreamPosition) -> bool:
        """Whether both are positions in one and the same incarnation of a stream."""
        created = {self.created_at_ms, other.created_at_ms} - {CREATED_UNKNOWN}
        return self.stream_id == other.stream_id and len(created) <= 1


def positions_text(positions: Iterable[StreamPosition]) -> str:
    """Return the positions of all streams, in the order of their ids: equal ones as equal text."""
    return " ".join(map(_entry, sorted(positions, key=attrgetter("stream_id"))))


def parse_positions(value: object) -> dict[int, StreamPosition]:
    """Return the positions that a text tells, by stream id. Raises CheckpointError."""
    if not isinstance(value, str):
        raise foreign(value, f"streams to be a text of {_GRAMMAR}")
    entries = value.split(" ") if value else []
    positions = {at.stream_id: at for at in map(_parse_entry, entries)}
    if len(positions) < len(entries):
        raise foreign(value, "each stream once")
    return positions


def parse_first_version(value: object) -> dict[int, StreamPosition]:
    """Return the positions of offsets of version 1: an object for each stream, by its id.

    Raises CheckpointError.
    """
    if not isinstance(value, Mapping):
        raise foreign(value, "streams to be an object")
    return {at.stream_id: at for at in (_parse_object(*item) for item in value.items())}


def parse_stream_id(key: object) -> int:
    """Return the id that is the key of a JSON object. Raises CheckpointError."""
    if not isinstance(key, str) or not (key.isascii() and key.isdecimal() and len(key) <= 19):
        raise foreign(key, "a stream id in decimal digits as key")
    stream_id = int(key)
    if str(stream_id) != key or stream_id > _INT64_MAX:
        raise foreign(key, "a stream id without leading zeros, within int64, as key")
    return stream_id


def foreign(value: object, expected: str) -> CheckpointError:
    """Return the error for what no offset of this source has in it."""
    return CheckpointError(
        f"the checkpoint holds no offset of the sbp source: {reprlib.repr(value)}; expected"
        f" {expected}; was it written by another source, or edited? restore it, or"
        f" {NEW_CHECKPOINT}"
    )


def _entry(at: StreamPosition) -> str:
    created = "" if at.created_at_ms == CREATED_UNKNOWN else f"@{at.created_at_ms}"
    base = "" if at.base_offset is None else f",base={at.base_offset}"
    end = "" if at.end_offset is None else f",end={at.end_offset}"
    target = "" if at.target_offset is None else f",target={at.target_offset}"
    until = "" if at.end_time_ms is None else f",until={at.end_time_ms}"
    return f"{at.stream_id}={at.next_offset}{created}{base}{end}{target}{until}"


def _parse_entry(entry: str) -> StreamPosition:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise foreign(entry, _GRAMMAR)
    stream_id, next_offset, created_at_ms, *more = (
        None if number is None else int(number) for number in match.groups()
    )
    assert stream_id is not None
    assert next_offset is not None
    if created_at_ms is None:
        created_at_ms = CREATED_UNKNOWN
    if max(stream_id, next_offset, created_at_ms, *filter(None, more)) > _INT64_MAX:
        raise foreign(entry, _GRAMMAR)
    return _checked(StreamPosition(stream_id, created_at_ms, next_offset, *more))


def _parse_object(key: object, value: object) -> StreamPosition:
    stream_id = parse_stream_id(key)
    where = f"stream {stream_id}"
    required, optional = {"created", "next"}, {"base", "end", "target", "until"}
    if not isinstance(value, Mapping) or not required <= value.keys() <= required | optional:
        raise foreign(
            value, f"an object with created, next and perhaps base, end, target, until for {where}"
        )
    for name in value:
        low = CREATED_UNKNOWN if name == "created" else 0
        number = value[name]
        if type(number) is not int or not low <= number <= _INT64_MAX:
            raise foreign(
                number, f"{name} of {where} to be a whole number from {low} to {_INT64_MAX}"
            )
    ends = (value.get(name) for name in ("base", "end", "target", "until"))
    return _checked(StreamPosition(stream_id, value["created"], value["next"], *ends))


def _checked(position: StreamPosition) -> StreamPosition:
    if position.base_offset is not None and position.base_offset > position.next_offset:
        raise foreign(
            position.base_offset, f"base of stream {position.stream_id} not to be above its next"
        )
    return position
