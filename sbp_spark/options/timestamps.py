"""Times as the user says them: ISO 8601, milliseconds since 1970, or so long before now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from sbp_spark.options.positions import Ago, AtTime, Position, Positions, ValueSyntax, maybe_object
from sbp_spark.options.reading import INT64_MAX, TIME_UNITS, OptionReader, maybe_scaled, shown

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = INT64_MAX // 1000
_EXPECTED: Final = (
    "a time since 1970 such as 2026-01-31T09:30 (UTC, unless it names a zone), milliseconds since"
    " 1970 (8 digits are a date), or -10m (before now; also ms, s, h, d)"
)
STRATEGY: Final = "startingOffsetsByTimestampStrategy"


class PastEnd(Enum):
    """Values of startingOffsetsByTimestampStrategy: what a start past the last record means."""

    ERROR = "error"
    LATEST = "latest"


def read_past_end(reader: OptionReader) -> PastEnd | None:
    """Return what a start past the last record means, None if nothing is said of it."""
    if not reader.is_given(STRATEGY):
        return None
    words = [each.value for each in PastEnd]
    return PastEnd(reader.choice(STRATEGY, words, PastEnd.ERROR.value))


def read_timestamp(
    reader: OptionReader, name: str, past_end: PastEnd | None = PastEnd.LATEST
) -> Positions | None:
    """Return the time that is meant for every stream, None if it is absent or after a fault."""
    text = reader.maybe_text(name)
    if text is None:
        return None
    position = maybe_time(text, past_end)
    if position is not None:
        return Positions(position, option=name)
    remedy = "correct it"
    if text.startswith("{"):
        remedy = f"give times by stream in {name.removesuffix('Timestamp')}OffsetsByTimestamp"
    reader.add_fault(name, f"is {shown(text)}", _EXPECTED, remedy)
    return None


def read_timestamps(
    reader: OptionReader, name: str, past_end: PastEnd | None = PastEnd.LATEST
) -> Positions | None:
    """Return the time of each stream, None if it is absent or after a fault."""
    text = reader.maybe_text(name)
    if text is None:
        return None
    syntax = ValueSyntax(
        lambda value: maybe_time(value, past_end), '{"stream": "2026-01-31"}', f"give {_EXPECTED}"
    )
    found = maybe_object(reader, name, text, syntax)
    if found is None:
        remedy = f"give one time for all in {name.removesuffix('OffsetsByTimestamp')}Timestamp"
        reader.add_fault(name, f"is {shown(text)}", f"JSON like {syntax.example}", remedy)
    return found


def maybe_time(value: object, past_end: PastEnd | None) -> Position | None:
    """Return what a value means, None if it is no time.

    Unless something else is said, only a time that is named itself has to have a record: it may be
    mistaken, while one before now lies behind the last record of a stream that is quiet.
    """
    if isinstance(value, str) and value.startswith("-"):
        duration_ms = maybe_scaled(value[1:], TIME_UNITS)
        if duration_ms is None or value[-1].isdigit():
            return None
        return Ago(duration_ms, must_exist=past_end is PastEnd.ERROR)
    time_ms = _maybe_time_ms(value)
    if time_ms is None or not 0 <= time_ms <= _TIME_MS_MAX:
        return None
    return AtTime(time_ms, must_exist=past_end is not PastEnd.LATEST)


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
