"""The ranges that a server hosts: their states, offsets and batches, rebuilt from the log.

Offsets are assigned when a batch is queued for the next group commit, in queue order, and become
readable when that commit is durable. So `assigned_offset` runs ahead of `next_offset`, and nobody
ever reads what a crash could take back.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from sbp_core.errors import (
    InvalidRequestError,
    LogCorruptionError,
    NotFoundError,
    RangeNotFoundError,
    RangeSealedError,
    StatusCode,
)
from sbp_core.log.entry import Entry, EntryKind, Location
from sbp_core.log.index import RangeIndex
from sbp_core.session.machine import REFUSED, Machine


class RangeState(enum.Enum):
    """Life of a hosted range."""

    OPEN = "open"
    SEALED = "sealed"
    DELETED = "deleted"


class RangeInput(enum.Enum):
    """What may be asked of a hosted range."""

    APPEND = "append"
    FETCH = "fetch"
    SEAL = "seal"
    TRIM = "trim"
    DELETE = "delete"


_OPEN, _SEALED, _DELETED = RangeState

RANGE: Final = Machine(
    "range",
    RangeState,
    RangeInput,
    {
        _OPEN: {
            RangeInput.APPEND: _OPEN,
            RangeInput.FETCH: _OPEN,
            RangeInput.SEAL: _SEALED,
            RangeInput.TRIM: _OPEN,
            RangeInput.DELETE: _DELETED,
        },
        _SEALED: {
            RangeInput.APPEND: REFUSED,
            RangeInput.FETCH: _SEALED,
            RangeInput.SEAL: _SEALED,
            RangeInput.TRIM: _SEALED,
            RangeInput.DELETE: _DELETED,
        },
        _DELETED: {
            RangeInput.APPEND: REFUSED,
            RangeInput.FETCH: REFUSED,
            RangeInput.SEAL: REFUSED,
            RangeInput.TRIM: REFUSED,
            RangeInput.DELETE: _DELETED,
        },
    },
)


class HostedRange:
    """One range on this server."""

    def __init__(self, stream_id: int, range_index: int, start_offset: int) -> None:
        self.stream_id = stream_id
        self.range_index = range_index
        self.state = RangeState.OPEN
        self.index = RangeIndex(start_offset)
        self.assigned_offset = start_offset

    @property
    def start_offset(self) -> int:
        """Offset of the first record that was not trimmed."""
        return self.index.start_offset

    @property
    def next_offset(self) -> int:
        """Offset after the last durable record."""
        return self.index.next_offset

    @property
    def maybe_end_offset(self) -> int | None:
        """Offset where the range ends for ever, None while it is open."""
        return None if self.state is RangeState.OPEN else self.assigned_offset

    def receive(self, asked: RangeInput) -> None:
        """Move on by the table. Raises RangeSealedError or NotFoundError where it refuses."""
        target = RANGE.maybe_next(self.state, asked)
        if target is not None:
            self.state = target
        elif self.state is RangeState.SEALED:
            raise RangeSealedError(
                StatusCode.RANGE_ALREADY_SEALED,
                f"range {self.range_index} of stream {self.stream_id} was sealed at offset"
                f" {self.assigned_offset}; the stream goes on in the next range",
            )
        else:
            raise NotFoundError(StatusCode.NOT_FOUND, f"stream {self.stream_id} was deleted")

    def assign(self, record_count: int) -> int:
        """Take the next `record_count` offsets for a batch; return the first."""
        self.receive(RangeInput.APPEND)
        base_offset = self.assigned_offset
        if base_offset + record_count >= 2**63:
            raise InvalidRequestError(
                StatusCode.INVALID_REQUEST,
                f"stream {self.stream_id} has no offsets left for {record_count} records",
            )
        self.assigned_offset += record_count
        return base_offset


class RangeTable:
    """All ranges of a server, by stream and index. Changed by log entries only, in log order."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[int, HostedRange]] = {}

    @property
    def open_range_count(self) -> int:
        """Ranges that take appends."""
        return sum(
            hosted.state is RangeState.OPEN
            for ranges in self._streams.values()
            for hosted in ranges.values()
        )

    def has_stream(self, stream_id: int) -> bool:
        """Whether any range of the stream is hosted here, deleted ones included."""
        return stream_id in self._streams

    def has_range(self, stream_id: int, range_index: int) -> bool:
        """Whether this very range is hosted here."""
        return range_index in self._streams.get(stream_id, ())

    def lacks(self, stream_id: int, range_index: int, *, is_append: bool) -> bool:
        """Whether the placement driver may know a range that is wanted and not known here."""
        ranges = self._streams.get(stream_id)
        if not ranges:
            return True
        last = ranges[max(ranges)]
        if last.state is RangeState.DELETED:
            return False
        is_unknown = range_index >= 0 and range_index not in ranges
        return is_unknown or (is_append and last.state is RangeState.SEALED)

    def ranges_of(self, stream_id: int) -> list[HostedRange]:
        """Return the stream's ranges here, oldest first. Raises RangeNotFoundError if none is."""
        ranges = self._streams.get(stream_id)
        if not ranges:
            raise _not_found(stream_id, -1)
        return [ranges[range_index] for range_index in sorted(ranges)]

    def bounds_of(self, stream_id: int) -> tuple[int, int]:
        """Return [start, next) of what the server has of a stream. Raises RangeNotFoundError."""
        ranges = self.ranges_of(stream_id)
        return first_offset(ranges), ranges[-1].next_offset

    def range_at(self, stream_id: int, range_index: int) -> HostedRange:
        """Return a range; index -1 means the stream's latest here. Raises RangeNotFoundError."""
        ranges = self.ranges_of(stream_id)
        if range_index < 0:
            return ranges[-1]
        for hosted in ranges:
            if hosted.range_index == range_index:
                return hosted
        raise _not_found(stream_id, range_index)

    def apply(self, entry: Entry, location: Location) -> None:
        """Take in one durable entry: after its group commit, or at recovery.

        Raises LogCorruptionError when the entry contradicts those before it.
        """
        match entry.kind:
            case EntryKind.RANGE_CREATED:
                # A range may be announced and looked up at the same time: the first entry counts.
                ranges = self._streams.setdefault(entry.stream_id, {})
                if entry.range_index not in ranges:
                    ranges[entry.range_index] = HostedRange(
                        entry.stream_id, entry.range_index, entry.base_offset
                    )
            case EntryKind.BATCH:
                hosted = self._logged(entry, location)
                hosted.index.append(entry.base_offset, entry.count, location)
                hosted.assigned_offset = max(hosted.assigned_offset, hosted.next_offset)
            case EntryKind.SEAL:
                self._logged(entry, location).receive(RangeInput.SEAL)
            case EntryKind.TRIM:
                for hosted in self._streams.get(entry.stream_id, {}).values():
                    hosted.index.trim(entry.base_offset)
            case EntryKind.STREAM_DELETED:
                for hosted in self._streams.get(entry.stream_id, {}).values():
                    hosted.receive(RangeInput.DELETE)
            case _:
                raise LogCorruptionError(
                    f"log position {location.position}: entries of kind {entry.kind.name} were"
                    " written by a newer version; run that version on this folder"
                )

    def _logged(self, entry: Entry, location: Location) -> HostedRange:
        if not self.has_range(entry.stream_id, entry.range_index):
            raise LogCorruptionError(
                f"log position {location.position}: an entry of range {entry.range_index} of"
                f" stream {entry.stream_id}, which was never created"
            )
        return self._streams[entry.stream_id][entry.range_index]


def first_offset(ranges: Sequence[HostedRange]) -> int:
    """Return where the ranges of a stream begin; ranges that were trimmed away do not count."""
    held = (each for each in ranges if each.start_offset < each.next_offset)
    return next(held, ranges[-1]).start_offset


def _not_found(stream_id: int, range_index: int) -> RangeNotFoundError:
    which = f"range {range_index}" if range_index >= 0 else "no range"
    return RangeNotFoundError(
        StatusCode.RANGE_NOT_FOUND,
        f"{which} of stream {stream_id} is {'not ' if range_index >= 0 else ''}hosted here",
    )
