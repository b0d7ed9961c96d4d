"""Where reading starts and ends: positions as the user names them, before any stream is looked at.

Positions are offsets or times. Times are ISO 8601, milliseconds since 1970, or a duration before
now. To add a kind of position, add a class here, and a branch where it becomes an offset:
`sbp_spark.reading.locating`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from sbp_core.errors import ConfigurationError
from sbp_core.limits import GROUP_NAME_LENGTH_MAX
from sbp_spark.options.declaring import (
    INT64_MAX,
    TIME_UNITS,
    Given,
    Kind,
    Option,
    OptionReader,
    maybe_scaled,
    named,
    option,
    shown,
    word,
)
from sbp_spark.options.stream_selection import FoundStream, parse_stream_ref

_EARLIEST_IN_JSON: Final = -2
_LATEST_IN_JSON: Final = -1
_GROUP_PREFIX: Final = "group:"
GROUP: Final = named(GROUP_NAME_LENGTH_MAX)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that is still stored."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The tail, behind the last record."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """A certain record."""

    offset: int


@dataclass(frozen=True, slots=True)
class BeforeTail:
    """A number of records before the tail, or the first record if there are fewer."""

    record_count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that was appended at a time (Unix time) or later, or else the tail.

    `must_exist`: if there is no such record, that is an error.
    """

    time_ms: int
    must_exist: bool = False


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record that was appended `duration_ms` ago or later, or else the tail."""

    duration_ms: int
    must_exist: bool = False


@dataclass(frozen=True, slots=True)
class AtCursor:
    """Where a consumer group reads next; the first record if it has never read the stream."""

    group: str


InsidePosition: TypeAlias = Earliest | Latest | AtOffset | BeforeTail
"""Positions that the bounds of a stream determine."""
Position: TypeAlias = InsidePosition | AtTime | Ago | AtCursor


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for each stream: one `everywhere`, or `by_stream` (name or id), None the other.

    `option` is the option that names them. `found` maps the names to the streams that had them when
    the query began: a name means that stream as long as it exists, even if it is renamed.
    """

    everywhere: Position | None
    by_stream: Mapping[str, Position] = field(default_factory=dict)
    option: str = field(default="startingOffsets", compare=False)
    found: Mapping[str, FoundStream] = field(default_factory=dict, compare=False)

    def all(self) -> list[Position]:
        """Return every position that is named."""
        return [*self.by_stream.values()] if self.everywhere is None else [self.everywhere]


class ValueSyntax(NamedTuple):
    """How the values of a JSON object are parsed, and the values that are possible."""

    parse: Callable[[object], Position | None]
    example: str
    possible: str


def offsets(*, is_start: bool) -> Kind[Positions | None]:
    """Return what startingOffsets or endingOffsets name."""

    def parse(given: Given) -> Positions | None:
        position = _maybe_word(given.text, is_start=is_start)
        if position is not None:
            return Positions(position, option=given.name)
        syntax = ValueSyntax(
            lambda value: _maybe_offset(value, is_start=is_start),
            '{"stream": 42}',
            "a whole number: an offset, -2 (earliest) or -1 (latest)"
            + (', or "group:NAME"' if is_start else ""),
        )
        found = maybe_object(given, syntax)
        if found is None:
            words = "earliest, latest, group:NAME" if is_start else "latest"
            given.refuse(f"{words}, -1000 (records before the tail) or JSON like {syntax.example}")
        return found

    return Kind(parse)


def maybe_object(given: Given, syntax: ValueSyntax) -> Positions | None:
    """Return the positions of a JSON object with a value for each stream, None if it is none.

    Mistakes inside of it are noted as faults.
    """
    try:
        # An object becomes a tuple of pairs, so that a repeated key is seen.
        pairs = json.loads(given.text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, tuple):
        return None
    found: dict[str, Position] = {}
    seen: set[str] = set()
    for stream, value in pairs:
        if stream in seen:
            given.refuse("each stream once", f"names {shown(stream)} more than once")
            continue
        seen.add(stream)
        try:
            parse_stream_ref(stream)
        except ConfigurationError as error:
            given.refuse(f"JSON like {syntax.example}", f"names no stream: {error}")
        position = syntax.parse(value)
        if position is None:
            wrong = f"has for {shown(stream)} the value {shown(str(value))}"
            given.refuse(syntax.possible, wrong)
        else:
            found[stream] = position
    return Positions(None, found, given.name)


def _maybe_word(text: str, *, is_start: bool) -> Position | None:
    """Return the position of all streams, None if the text means none."""
    if text.lower() == "earliest":
        return Earliest()
    if text.lower() == "latest":
        return Latest()
    if re.fullmatch(r"-[0-9]{1,19}", text) and 0 < -int(text) <= INT64_MAX:
        return BeforeTail(-int(text))
    return _maybe_cursor(text) if is_start else None


def _maybe_cursor(text: str) -> AtCursor | None:
    if not text.startswith(_GROUP_PREFIX):
        return None
    group = GROUP.parse(Given("group", text.removeprefix(_GROUP_PREFIX), []))
    return None if group is None else AtCursor(group)


def _maybe_offset(value: object, *, is_start: bool) -> Position | None:
    """Parse a value of the JSON object. Return None if it is no position."""
    if isinstance(value, str) and is_start:
        return _maybe_cursor(value)
    if type(value) is not int or not _EARLIEST_IN_JSON <= value <= INT64_MAX:
        return None
    if value == _EARLIEST_IN_JSON:
        return Earliest()
    return Latest() if value == _LATEST_IN_JSON else AtOffset(value)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = INT64_MAX // 1000
_EXPECTED: Final = (
    "a time since 1970 such as 2026-01-31T09:30 (UTC, unless it names a zone), milliseconds since"
    " 1970 (8 digits are a date), or -10m (before now; also ms, s, h, d)"
)
_Bounds: TypeAlias = tuple[Option[Positions | None], ...]


class PastEnd(Enum):
    """Values of startingOffsetsByTimestampStrategy: the meaning of a start past the last record."""

    ERROR = "error"
    LATEST = "latest"


def maybe_time(value: object, *, is_start: bool) -> Position | None:
    """Parse a time. Return None if the value is no time.

    By default, only a start that is named itself has to have a record: it may
    be mistaken, while a time before now lies behind the last record of a stream that is quiet.
    """
    if isinstance(value, str) and value.startswith("-"):
        duration_ms = maybe_scaled(value[1:], TIME_UNITS)
        return None if duration_ms is None or value[-1].isdigit() else Ago(duration_ms)
    time_ms = _maybe_time_ms(value)
    if time_ms is None or not 0 <= time_ms <= _TIME_MS_MAX:
        return None
    return AtTime(time_ms, must_exist=is_start)


def _maybe_time_ms(value: object) -> int | None:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str):
        return None
    # Eight digits are a date of ISO 8601 without hyphens: as milliseconds they would be of the
    # first hours of 1970, before there was any record.
    if re.fullmatch(r"[0-9]{1,7}|[0-9]{9,19}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _time(*, is_start: bool) -> Kind[Positions | None]:
    """Return the time that is meant for every stream."""

    def parse(given: Given) -> Positions | None:
        position = maybe_time(given.text, is_start=is_start)
        if position is not None:
            return Positions(position, option=given.name)
        by_stream = f"{given.name.removesuffix('Timestamp')}OffsetsByTimestamp"
        given.refuse(f"{_EXPECTED}; {by_stream} takes times by stream")
        return None

    return Kind(parse)


def _times(*, is_start: bool) -> Kind[Positions | None]:
    """Return the time of each stream."""
    syntax = ValueSyntax(
        lambda value: maybe_time(value, is_start=is_start),
        '{"stream": "2026-01-31"}',
        _EXPECTED,
    )

    def parse(given: Given) -> Positions | None:
        found = maybe_object(given, syntax)
        if found is None:
            for_all = f"{given.name.removesuffix('OffsetsByTimestamp')}Timestamp"
            given.refuse(f"JSON like {syntax.example}; {for_all} takes one time for all streams")
        return found

    return Kind(parse)


STARTS: Final[_Bounds] = (
    option(
        "startingOffsets",
        offsets(is_start=True),
        None,
        unset="latest (streaming), earliest (batch)",
    ).doc(
        "Where a new query starts in each stream: `earliest`, `latest`, `-1000` (a number of"
        " records before the tail, but not before the first), `group:NAME` (where a consumer group"
        " reads next), or a JSON object with an offset for every stream, by name or id (-2"
        ' earliest, -1 latest, or "group:NAME"). A restarted query continues from its checkpoint; a'
        " stream that was added to `streams` starts as in a new query, unless another one was"
        " deleted: then it may be that one, created again, and is read from its first record. A"
        " batch cannot start at the latest offset. A stream that a group has never read is read"
        " from the first record; records behind its cursor that were trimmed since are lost, see"
        " `failOnDataLoss`."
    ),
    option("startingTimestamp", _time(is_start=True), None, unset="none").doc(
        "Instead of `startingOffsets`: start at the first record, in the order of offsets, that was"
        " appended at this time or later, so none of them is missed. ISO 8601, such as"
        " `2026-01-31T09:30` (UTC) or `2026-01-31T09:30+01:00`; milliseconds since 1970, though 8"
        " digits are a date, `20260131`; or `-10m`, a duration before now (ms, s, m, h, d). The"
        " time of an append is that of the range server's clock, in ms. Now is the time of the"
        " driver's clock when a new query plans its first micro-batch, or when a batch is planned;"
        " for a stream that waits for a range server then (`maxRangeStall`), when the wait began."
    ),
    option("startingOffsetsByTimestamp", _times(is_start=True), None, unset="none").doc(
        'The same as a JSON object with a time for every stream, by name or id: `{"orders":'
        ' "2026-01-31", "17": 1769817600000, "clicks": "-10m"}`.'
    ),
)
STRATEGY: Final = option(
    "startingOffsetsByTimestampStrategy",
    word(PastEnd),
    None,
    unset="error (latest for times like -10m)",
).doc(
    "Meaning of a starting time for a stream that has no record of that time or later: `error`, or"
    " `latest`, the tail as it is then; later records are read, whatever their time is. A stream"
    " that had to wait for a range server (`maxRangeStall`) while others were read uses `latest`,"
    " with a warning in the log, so that a running query does not fail."
)
ENDS: Final[_Bounds] = (
    option(
        "endingOffsets", offsets(is_start=False), None, unset="none (streaming), latest (batch)"
    ).doc(
        "Where reading ends in each stream, exclusive; spelled as startingOffsets, without"
        " earliest. In a batch it lies within the stream. A streaming query continues until it is"
        " there, then it idles, or is over with Trigger.AvailableNow. There, `latest` and `-1000`"
        " mean the tail as the query first saw it, kept in the checkpoint: that counts, also if the"
        " query is started again with another one of the two."
    ),
    option("endingTimestamp", _time(is_start=False), None, unset="none").doc(
        "Instead of `endingOffsets`: end at the first record, in the order of offsets, that was"
        " appended at this time or later, exclusive. Times are spelled as in `startingTimestamp`."
        " Where there is no such record, a batch ends at the tail. A streaming query continues"
        " until there is one, whatever time it is: later appends may still be from before. That"
        " end, and what `-10m` meant at the start, is kept in the checkpoint; `-20m` after a"
        " restart changes nothing then. Records behind the end are not read, even if a server's"
        " clock, set back or behind that of the server before, gave them an earlier time."
    ),
    option("endingOffsetsByTimestamp", _times(is_start=False), None, unset="none").doc(
        "The same as a JSON object with a time for every stream, by name or id."
    ),
)


def read_starting(reader: OptionReader) -> Positions | None:
    """Return where a new query starts, None if it is not given, or after a fault."""
    by_offset, *by_time = [each.name for each in STARTS]
    past_end = reader.value(STRATEGY)
    found = [reader.value(each) for each in STARTS]
    reader.check_single(STARTS)
    if reader.is_given(STRATEGY.name) and not any(reader.is_given(name) for name in by_time):
        wrong = f"is given without {' or '.join(by_time)}"
        reader.add_fault(STRATEGY.name, wrong, "add one of them, or remove it")
    if reader.streaming is False and found[0] is not None and Latest() in found[0].all():
        wrong = "is latest (-1) in a batch read, which would read nothing"
        reader.add_fault(by_offset, wrong, "start earlier, or use readStream")
    starting = next((each for each in found if each is not None), None)
    if starting is None or past_end is None:
        return starting
    return _past_end(starting, must_exist=past_end is PastEnd.ERROR)


def _past_end(positions: Positions, *, must_exist: bool) -> Positions:
    """Return the positions, in which every time has to have a record, or none has to."""

    def decided(position: Position) -> Position:
        if isinstance(position, AtTime | Ago):
            return replace(position, must_exist=must_exist)
        return position

    everywhere = None if positions.everywhere is None else decided(positions.everywhere)
    by_stream = {name: decided(each) for name, each in positions.by_stream.items()}
    return replace(positions, everywhere=everywhere, by_stream=by_stream)


def read_ending(reader: OptionReader) -> Positions | None:
    """Return where reading ends, None if it is not given, or after a fault."""
    found = [reader.value(each) for each in ENDS]
    reader.check_single(ENDS)
    if found[0] is not None and Earliest() in found[0].all():
        wrong = "is earliest (-2), so nothing would be read"
        reader.add_fault(ENDS[0].name, wrong, "end later, or leave it out")
    return next((each for each in found if each is not None), None)


def check_order(reader: OptionReader, starting: Positions, ending: Positions) -> None:
    """Note every end that lies before its start, wherever the streams begin and end."""
    pairs = [("every stream", starting.everywhere, ending.everywhere)]
    named = starting.by_stream.keys() | ending.by_stream.keys()
    pairs += [
        (
            shown(name),
            starting.by_stream.get(name, starting.everywhere),
            ending.by_stream.get(name, ending.everywhere),
        )
        for name in sorted(named)
    ]
    for where, start, end in pairs:
        match start, end:
            case (AtOffset(first), AtOffset(stop)) | (AtTime(first), AtTime(stop)):
                is_before = stop < first
            case (BeforeTail(first), BeforeTail(stop)) | (Ago(first), Ago(stop)):
                is_before = stop > first
            case _:
                is_before = isinstance(start, Latest) and isinstance(end, BeforeTail)
        if is_before:
            wrong = f"ends {where} before {starting.option} starts it"
            reader.add_fault(ending.option, wrong, "end later, or start earlier")
