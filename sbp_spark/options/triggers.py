"""How much a micro-batch takes, and how long it waits: for more, or for a server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sbp_spark.options.reading import OptionReader

_DELAY_MS_DEFAULT: Final = 15 * 60 * 1000
_NAMES: Final = (
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "targetBatchDuration",
    "maxRangeStall",
    "availableNowEnd",
)


class AvailableNowEnd(Enum):
    """Values of availableNowEnd: where a run ends that goes on with one that was cut short."""

    KEPT = "kept"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Bounds of one micro-batch over all streams; None is no bound.

    With fewer than `records_min` records there is none, unless the last one was `delay_ms_max` ago.
    It takes as many as are read and processed in `target_ms`, as far as that is known.
    Servers that have been away for `stall_ms_max` are not waited for any longer. A run with
    Trigger.AvailableNow that goes on with one that was cut short ends at `available_now_end`.
    """

    records_max: int | None = None
    bytes_max: int | None = None
    records_min: int | None = None
    delay_ms_max: int = _DELAY_MS_DEFAULT
    target_ms: int | None = None
    stall_ms_max: int | None = None
    available_now_end: AvailableNowEnd = AvailableNowEnd.KEPT


def read_limits(reader: OptionReader, *, is_batch: bool) -> TriggerLimits:
    """Return the limits of a trigger; each of them is a fault in a batch."""
    records_max = reader.maybe_count("maxRecordsPerTrigger")
    bytes_max = reader.maybe_size_bytes("maxBytesPerTrigger")
    records_min = reader.maybe_count("minRecordsPerTrigger")
    delay_ms = reader.maybe_duration_ms("maxTriggerDelay")
    target_ms = reader.maybe_duration_ms("targetBatchDuration")
    stall_ms_max = reader.maybe_duration_ms("maxRangeStall")
    words = [each.value for each in AvailableNowEnd]
    available_now_end = reader.choice("availableNowEnd", words, AvailableNowEnd.KEPT.value)
    if records_max is not None and records_min is not None and records_min > records_max:
        reader.add_fault(
            "minRecordsPerTrigger",
            f"is {records_min}, above maxRecordsPerTrigger, {records_max}",
            "no minimum above the maximum",
            "lower the one, or raise the other",
        )
    if delay_ms is not None and not reader.is_given("minRecordsPerTrigger"):
        reader.add_fault(
            "maxTriggerDelay",
            "delays nothing",
            "it beside minRecordsPerTrigger",
            "add that, or remove it",
        )
    for name in _NAMES if is_batch else ():
        if reader.is_given(name):
            wrong = "is given in a batch read, which has no triggers"
            reader.add_fault(name, wrong, "it in readStream only", "remove it")
    delay_ms_max = _DELAY_MS_DEFAULT if delay_ms is None else delay_ms
    return TriggerLimits(
        records_max,
        bytes_max,
        records_min,
        delay_ms_max,
        target_ms,
        stall_ms_max,
        AvailableNowEnd(available_now_end),
    )
