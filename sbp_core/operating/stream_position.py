"""Positions in a stream as people write them: earliest, latest, an offset, -N, a time, -10m."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from sbp_core.errors import ConfigurationError, OffsetOutOfRangeError, SbpError
from sbp_core.quantities import is_offset, parse_duration_ms, parse_timestamp, quoted

if TYPE_CHECKING:  # `sbp streams --help` imports this module, and no client
    from sbp_core.client.types import Reach

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PositionKind(enum.Enum):
    """The base of a position; `Position.number` is in its unit."""

    EARLIEST = "the first record"
    LATEST = "the tail"
    OFFSET = "an offset"
    BEFORE_LATEST = "a number of records before the tail"
    TIME = "the first record appended at a time, in us (UTC), or later"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in any stream. `find_offset` finds its offset in one stream."""

    kind: PositionKind
    number: int = 0


def parse_position(text: str, *, clock: Callable[[], int] = time.time_ns) -> Position:
    """Parse a position. Raises ConfigurationError.

    The text is `earliest`, `latest`, an offset, -N for the last N records, a time such as
    2025-01-31T09:30 (UTC), or a time before now such as -90s, -10m, -12h or -7d. `clock` returns
    the time in ns since 1970.
    """
    match text:
        case "earliest":
            return Position(PositionKind.EARLIEST)
        case "latest":
            return Position(PositionKind.LATEST)
    if is_offset(text):
        return Position(PositionKind.OFFSET, int(text))
    if is_offset(text.removeprefix("-")):
        return Position(PositionKind.BEFORE_LATEST, int(text[1:]))
    try:
        if text.startswith("-"):
            before_us = parse_duration_ms(text[1:]) * 1000
            return Position(PositionKind.TIME, max(clock() // 1000 - before_us, 0))
        return position_at(parse_timestamp(text))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{quoted(text)} is not earliest, latest, an offset, -N for the last N records, a time"
            " since 1970 such as 2025-01-31T09:30:00, or one before now such as -10m"
        ) from error


def position_at(moment: datetime) -> Position:
    """Return the position of a time."""
    return Position(PositionKind.TIME, (moment - _EPOCH) // timedelta(microseconds=1))


def check_order(start: Position, end: Position) -> None:
    """Raise ConfigurationError if the start is behind the end in every stream."""
    if _is_backwards(start, end):
        raise ConfigurationError("the start is behind the end, which is exclusive: exchange them")


def _is_backwards(start: Position, end: Position) -> bool:
    if start.kind is not end.kind:
        return start.kind is PositionKind.LATEST or end.kind is PositionKind.EARLIEST
    if start.kind is PositionKind.BEFORE_LATEST:
        return start.number < end.number
    return start.number > end.number


def find_offset(position: Position, at: Reach, found_by_time: int | None = None) -> int:
    """Return the offset of a position in a stream.

    `found_by_time` is the result of `AsyncClient.lookup_offsets` for a TIME, None if a server did
    not answer. Raises OffsetOutOfRangeError for an offset that the stream does not have, SbpError
    for a position that depends on a server that is down.
    """
    match position.kind:
        case PositionKind.EARLIEST:
            return at.start_offset
        case PositionKind.TIME if found_by_time is not None:
            return found_by_time
        case PositionKind.OFFSET if at.next_offset is not None:
            if not at.start_offset <= position.number <= at.next_offset:
                raise OffsetOutOfRangeError.of(
                    f"offset {position.number}: stream {at.stream_id} has offsets"
                    f" {at.start_offset} to {at.next_offset}, exclusive; name one from"
                    f" {at.start_offset} to {at.next_offset}, or earliest or latest"
                )
            return position.number
        case PositionKind.LATEST if at.next_offset is not None:
            return at.next_offset
        case PositionKind.BEFORE_LATEST if at.next_offset is not None:
            return max(at.next_offset - position.number, at.start_offset)
    if at.unavailable:
        raise at.unavailable[-1].error
    raise SbpError(f"a server of stream {at.stream_id} does not answer: retry later")
