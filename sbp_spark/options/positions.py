"""Positions in streams as the user says them, before any stream is looked at.

A further kind of position is one more class here, and one more branch where it becomes an offset:
in `sbp_spark.reading.locating.locate`, or in `sbp_spark.reading.locating` if a server has to be
asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from sbp_core.errors import ConfigurationError
from sbp_core.limits import GROUP_NAME_LENGTH_MAX
from sbp_spark.options.declaring import INT64_MAX, Given, Kind, named, shown
from sbp_spark.options.streams import FoundStream, parse_stream_ref

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
    """So many records before the tail, or the first record if there are fewer."""

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
    """The same for the time that is so long before now."""

    duration_ms: int
    must_exist: bool = False


@dataclass(frozen=True, slots=True)
class AtCursor:
    """Where a consumer group reads next; the first record if it has never read the stream."""

    group: str


InsidePosition: TypeAlias = Earliest | Latest | AtOffset | BeforeTail
"""What the bounds of a stream are enough for."""
Position: TypeAlias = InsidePosition | AtTime | Ago | AtCursor


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for each stream: one `everywhere`, or `by_stream` (name or id), None the other.

    `option` is the one that names them. `found` are the streams that had these names when a query
    began: as long as one exists it is the one that is meant, whatever it is called by now.
    """

    everywhere: Position | None
    by_stream: Mapping[str, Position] = field(default_factory=dict)
    option: str = field(default="startingOffsets", compare=False)
    found: Mapping[str, FoundStream] = field(default_factory=dict, compare=False)

    def all(self) -> list[Position]:
        """Return every position that is named."""
        return [*self.by_stream.values()] if self.everywhere is None else [self.everywhere]


class ValueSyntax(NamedTuple):
    """How the values of a JSON object are read, and what is said of those that mean nothing."""

    maybe_position: Callable[[object], Position | None]
    example: str
    remedy: str


def offsets(*, is_start: bool) -> Kind[Positions | None]:
    """Return what startingOffsets or endingOffsets name."""

    def parse(given: Given) -> Positions | None:
        position = _maybe_word(given.text, is_start=is_start)
        if position is not None:
            return Positions(position, option=given.name)
        syntax = ValueSyntax(
            lambda value: _maybe_offset(value, is_start=is_start),
            '{"stream": 42}',
            "give a whole number: an offset, -2 (earliest) or -1 (latest)"
            + (', or "group:NAME"' if is_start else ""),
        )
        found = maybe_object(given, syntax)
        if found is None:
            words = "earliest, latest, group:NAME" if is_start else "latest"
            expected = f"{words}, -1000 (records before the tail) or JSON like {syntax.example}"
            given.refuse(f"is {shown(given.text)}", expected, "correct it")
        return found

    return Kind(parse)


def maybe_object(given: Given, syntax: ValueSyntax) -> Positions | None:
    """Return the positions of a JSON object with a value for each stream, None if it is none.

    What is wrong inside of it is noted as a fault.
    """
    try:
        # An object becomes a tuple of pairs, so that a repeated key is seen.
        pairs = json.loads(given.text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, tuple):
        return None
    expected = f"JSON like {syntax.example}"
    found: dict[str, Position] = {}
    seen: set[str] = set()
    for stream, value in pairs:
        if stream in seen:
            wrong, remedy = f"names {shown(stream)} more than once", "name each stream once"
            given.refuse(wrong, expected, remedy)
            continue
        seen.add(stream)
        try:
            parse_stream_ref(stream)
        except ConfigurationError as error:
            given.refuse(f"names no stream: {error}", expected, "correct it")
        position = syntax.maybe_position(value)
        if position is None:
            wrong = f"has for {shown(stream)} the value {shown(str(value))}"
            given.refuse(wrong, expected, syntax.remedy)
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
    """Return what a value of the JSON object means, None if it means nothing."""
    if isinstance(value, str) and is_start:
        return _maybe_cursor(value)
    if type(value) is not int or not _EARLIEST_IN_JSON <= value <= INT64_MAX:
        return None
    if value == _EARLIEST_IN_JSON:
        return Earliest()
    return Latest() if value == _LATEST_IN_JSON else AtOffset(value)
