"""Where reading starts and ends: which option says it, and what contradicts itself."""

from __future__ import annotations

from typing import Final

from sbp_spark.options.positions import (
    Ago,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Positions,
    read_offsets,
)
from sbp_spark.options.reading import OptionReader, shown
from sbp_spark.options.timestamps import (
    STRATEGY,
    read_past_end,
    read_timestamp,
    read_timestamps,
)

_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def read_starting(reader: OptionReader, *, is_batch: bool) -> Positions | None:
    """Return where a new query starts, None if nothing is said of it or after a fault."""
    by_offset, by_time, by_times = _STARTS
    past_end = read_past_end(reader)
    found = [
        read_offsets(reader, by_offset, is_start=True),
        read_timestamp(reader, by_time, past_end),
        read_timestamps(reader, by_times, past_end),
    ]
    _check_single(reader, _STARTS)
    if past_end is not None and not (reader.is_given(by_time) or reader.is_given(by_times)):
        wrong, expected = "decides nothing", f"it beside {by_time} or {by_times}"
        reader.add_fault(STRATEGY, wrong, expected, "add one of them, or remove it")
    if is_batch and found[0] is not None and Latest() in found[0].all():
        wrong = "is latest (-1) in a batch read, which would read nothing"
        remedy = "start earlier, or use readStream"
        reader.add_fault(by_offset, wrong, "earliest (-2) or offsets", remedy)
    return next((each for each in found if each is not None), None)


def read_ending(reader: OptionReader) -> Positions | None:
    """Return where reading ends, None if nothing is said of it or after a fault."""
    by_offset, by_time, by_times = _ENDS
    found = [
        read_offsets(reader, by_offset, is_start=False),
        read_timestamp(reader, by_time),
        read_timestamps(reader, by_times),
    ]
    _check_single(reader, _ENDS)
    if found[0] is not None and Earliest() in found[0].all():
        wrong = "is earliest (-2), so nothing would be read"
        reader.add_fault(by_offset, wrong, "latest (-1) or offsets", "end later, or leave it out")
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
            case AtOffset(first), AtOffset(stop) if stop < first:
                what = f"ends {where} at {stop}, but {starting.option} starts it at {first}"
            case BeforeTail(first), BeforeTail(stop) if stop > first:
                what = f"ends {where} {stop} records before its tail, but it starts {first} before"
            case Latest(), BeforeTail(stop):
                what = f"ends {where} {stop} records before its tail, but it starts at the latest"
            case AtTime(first), AtTime(stop) if stop < first:
                what = f"ends {where} {first - stop} ms before {starting.option} starts it"
            case Ago(first), Ago(stop) if stop > first:
                what = f"ends {where} {stop} ms before now, but it starts {first} ms before"
            case _:
                continue
        reader.add_fault(
            ending.option, what, "no end before its start", "end later, or start earlier"
        )


def _check_single(reader: OptionReader, names: tuple[str, ...]) -> None:
    given = [name for name in names if reader.is_given(name)]
    if len(given) > 1:
        wrong = f"is given beside {' and '.join(given[1:])}"
        reader.add_fault(given[0], wrong, f"one of {', '.join(names)}", "keep one of them")
