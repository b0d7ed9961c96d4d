"""Where reading starts and ends: positions as the user says them, before any stream is looked at.

A further kind of position is one more class here, one more branch in `sbp_spark.positions.locate`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sbp_core.errors import ConfigurationError
from sbp_spark.options.reading import INT64_MAX, OptionReader, shown
from sbp_spark.options.streams import parse_stream_ref

_EARLIEST_IN_JSON: Final = -2
_LATEST_IN_JSON: Final = -1


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


Position: TypeAlias = Earliest | Latest | AtOffset | BeforeTail


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for each stream: one `everywhere`, or `by_stream` (name or id), None the other."""

    everywhere: Position | None
    by_stream: Mapping[str, Position] = field(default_factory=dict)

    def all(self) -> list[Position]:
        """Return every position that is named."""
        return [*self.by_stream.values()] if self.everywhere is None else [self.everywhere]


def read_starting(reader: OptionReader, *, is_batch: bool) -> Positions | None:
    """Return where a new query starts, None if nothing is said of it or after a fault."""
    name = "startingOffsets"
    found = _read_positions(reader, name, "earliest, latest")
    if is_batch and found is not None and Latest() in found.all():
        wrong = "is latest (-1) in a batch read, which would read nothing"
        remedy = "start earlier, or use readStream"
        reader.add_fault(name, wrong, "earliest (-2) or offsets", remedy)
    return found


def read_ending(reader: OptionReader) -> Positions | None:
    """Return where reading ends, None if nothing is said of it or after a fault."""
    name = "endingOffsets"
    found = _read_positions(reader, name, "latest")
    if found is not None and Earliest() in found.all():
        wrong = "is earliest (-2), so nothing would be read"
        reader.add_fault(name, wrong, "latest (-1) or offsets", "end later, or leave it out")
    return found


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
            case AtOffset(first), AtOffset(stop) if stop < first:
                what = f"ends {where} at {stop}, but startingOffsets starts it at {first}"
            case BeforeTail(first), BeforeTail(stop) if stop > first:
                what = f"ends {where} {stop} records before its tail, but it starts {first} before"
            case Latest(), BeforeTail(stop):
                what = f"ends {where} {stop} records before its tail, but it starts at the latest"
            case _:
                continue
        reader.add_fault(
            "endingOffsets", what, "no end before its start", "end later, or start earlier"
        )


def _read_positions(reader: OptionReader, name: str, words: str) -> Positions | None:
    """Return the positions of an option, None if it is absent; `words` are those that it takes."""
    text = reader.maybe_text(name)
    if text is None:
        return None
    if text.lower() == "earliest":
        return Positions(Earliest())
    if text.lower() == "latest":
        return Positions(Latest())
    if re.fullmatch(r"-[0-9]{1,19}", text) and 0 < -int(text) <= INT64_MAX:
        return Positions(BeforeTail(-int(text)))
    try:
        # An object becomes a tuple of pairs, so that a repeated key is seen.
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, tuple):
        expected = f'{words}, -1000 (records before the tail) or JSON like {{"stream": 42}}'
        reader.add_fault(name, f"is {shown(text)}", expected, "correct it")
        return None
    return Positions(None, _read_pairs(reader, name, pairs))


def _read_pairs(
    reader: OptionReader, name: str, pairs: tuple[tuple[str, object], ...]
) -> dict[str, Position]:
    expected = 'JSON like {"stream": 42}'
    found: dict[str, Position] = {}
    seen: set[str] = set()
    for stream, value in pairs:
        if stream in seen:
            wrong, remedy = f"names {shown(stream)} more than once", "name each stream once"
            reader.add_fault(name, wrong, expected, remedy)
            continue
        seen.add(stream)
        try:
            parse_stream_ref(stream)
        except ConfigurationError as error:
            reader.add_fault(name, f"names no stream: {error}", expected, "correct it")
        position = _maybe_position(value)
        if position is None:
            wrong = f"has for {shown(stream)} the value {shown(str(value))}"
            remedy = "give a whole number: an offset, -2 (earliest) or -1 (latest)"
            reader.add_fault(name, wrong, expected, remedy)
        else:
            found[stream] = position
    return found


def _maybe_position(value: object) -> Position | None:
    """Return what a value of the JSON object means, None if it means nothing."""
    if type(value) is not int or not _EARLIEST_IN_JSON <= value <= INT64_MAX:
        return None
    if value == _EARLIEST_IN_JSON:
        return Earliest()
    return Latest() if value == _LATEST_IN_JSON else AtOffset(value)
