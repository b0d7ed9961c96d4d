"""The states of ranges: entries in, states out.

A snapshot, the first group of a segment, carries the states of all ranges in chunks, behind what is
known of writers and of transactions (state_snapshot.py). Each chunk is a SNAPSHOT entry:
`base_offset` is the number of ranges in all chunks, `count` that in this one. Its body is columns
of `count` values each, little-endian, one after the other: stream_id i64, start_offset i64,
next_offset i64, range_index i32, state_code u8, created_at_ms i64. The last column is left out
where it is not known of any range, as in logs of earlier versions.

The body of a RANGE_CREATED entry is a version, 1, and created_at_ms, a little-endian i64; or empty
if that is not known, as in logs of earlier versions.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from sbp_core.errors import LogCorruptionError
from sbp_core.log.entry import Entry
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.log.states.writer_states import WriterStates
from sbp_core.segment_format import EntryKind

STATE_COLUMNS: Final = (
    ("stream_id", np.dtype("<i8")),
    ("start_offset", np.dtype("<i8")),
    ("next_offset", np.dtype("<i8")),
    ("range_index", np.dtype("<i4")),
    ("state_code", np.dtype("u1")),
)
"""The columns that index files have, too."""
_CREATED_COLUMN: Final = ("created_at_ms", np.dtype("<i8"))
_ALL_COLUMNS: Final = (*STATE_COLUMNS, _CREATED_COLUMN)
_CREATED_BODY: Final = struct.Struct("<Bq")
_CREATED_VERSION: Final = 1
NO_TIME: Final = -1
"""In place of the time when a stream was created: not known."""


class RangeState(enum.Enum):
    """Life of a range, which goes this way only."""

    OPEN = "open"
    SEALED = "sealed"
    DELETED = "deleted"

    def or_later(self, other: RangeState) -> RangeState:
        """Return the later of both."""
        return max(self, other, key=_STATES.index)


_STATES: Final = tuple(RangeState)

RangeKey = tuple[int, int]
"""(stream id, range index)."""


@dataclass(frozen=True, slots=True)
class LoggedRange:
    """A range as the log has it: records [start_offset, next_offset), the first not trimmed."""

    stream_id: int
    range_index: int
    start_offset: int
    next_offset: int
    state: RangeState = RangeState.OPEN
    created_at_ms: int = field(default=NO_TIME, compare=False)
    """When the placement driver created the stream: another one may have had its id before."""

    @property
    def key(self) -> RangeKey:
        """Its stream and index."""
        return self.stream_id, self.range_index

    @property
    def state_code(self) -> int:
        """Its state as a number, for the column of that name; it grows with the range's life."""
        return _STATES.index(self.state)


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Records [base_offset, end_offset) of a range; staged ones have no offsets, both are -1."""

    stream_id: int
    range_index: int
    base_offset: int
    end_offset: int

    @classmethod
    def of(cls, entry: Entry) -> RecordSpan:
        """Return the records of a batch, or those that an end of transactions published."""
        if entry.kind is EntryKind.STAGED:
            return cls(entry.stream_id, entry.range_index, -1, -1)
        end_offset = entry.base_offset + entry.count
        return cls(entry.stream_id, entry.range_index, entry.base_offset, end_offset)

    def __str__(self) -> str:
        what = "records of a transaction"
        if self.base_offset >= 0:
            what = f"offsets [{self.base_offset}, {self.end_offset})"
        return f"{what} of range {self.range_index} of stream {self.stream_id}"


class RangeStates:
    """The states of all ranges, the `writers` of their streams, and what is `staged` for these.

    All at one position of the log. Writers and what is staged have folds of their own, for which
    they need the places and times of entries.
    """

    def __init__(
        self,
        ranges: Iterable[LoggedRange] = (),
        writers: WriterStates | None = None,
        staged: StagedStates | None = None,
    ) -> None:
        self.writers = WriterStates() if writers is None else writers
        self.staged = StagedStates() if staged is None else staged
        self._streams: dict[int, dict[int, LoggedRange]] = {}
        for logged in ranges:
            self._put(logged)

    def __iter__(self) -> Iterator[LoggedRange]:
        """Iterate over all ranges by stream and index."""
        for _, ranges in sorted(self._streams.items()):
            for _, logged in sorted(ranges.items()):
                yield logged

    def after(self, entries: Iterable[Entry]) -> dict[RangeKey, LoggedRange]:
        """Return the ranges that `entries` change, as they are after the last one.

        Raises LogCorruptionError when an entry contradicts those before it.
        """
        changed: dict[RangeKey, LoggedRange] = {}
        for entry in entries:
            for logged in self._touched(entry, changed):
                changed[logged.key] = logged
        return changed

    def update(self, changed: Mapping[RangeKey, LoggedRange]) -> None:
        """Move on to what `after` returned."""
        for logged in changed.values():
            self._put(logged)

    def maybe_range(self, key: RangeKey) -> LoggedRange | None:
        """Return a range. Safe in any thread, also while another one updates."""
        stream_id, range_index = key
        return self._streams.get(stream_id, {}).get(range_index)

    def forget_deleted(self, held: Container[int]) -> None:
        """Forget the streams of which all ranges are deleted, but for the ids in `held`."""
        for stream_id, ranges in list(self._streams.items()):
            is_deleted = all(each.state is RangeState.DELETED for each in ranges.values())
            if is_deleted and stream_id not in held:
                del self._streams[stream_id]
                self.staged.forget(stream_id)

    def restore_tails(self, tails: Iterable[LoggedRange]) -> tuple[RecordSpan, ...]:
        """Let ranges be as they were before entries of theirs were lost; return the lost records.

        Their writers are forgotten, as their last batches are not known.
        """
        lost = []
        for tail in tails:
            found = self.maybe_range(tail.key)
            if found == tail:
                continue
            start = max(tail.start_offset, 0 if found is None else found.next_offset)
            if start < tail.next_offset:
                lost.append(RecordSpan(*tail.key, start, tail.next_offset))
            self._put(tail)
            self.writers.forget_before(tail.stream_id, max(self._streams[tail.stream_id]))
        return tuple(lost)

    def forget_writers(self) -> None:
        """Forget the writers of all streams: entries may be missing that said more of them."""
        self.writers.forget_all({stream_id: max(own) for stream_id, own in self._streams.items()})

    def apply(self, entry: Entry) -> Sequence[LoggedRange]:
        """Move on to what one entry makes of the ranges, and return these. Raises as `after`."""
        touched = self._touched(entry, {})
        for logged in touched:
            self._put(logged)
        return touched

    def _put(self, logged: LoggedRange) -> None:
        ranges = self._streams.setdefault(logged.stream_id, {})
        known = ranges.get(logged.range_index)
        if known is not None and logged.created_at_ms == NO_TIME != known.created_at_ms:
            logged = replace(logged, created_at_ms=known.created_at_ms)
        ranges[logged.range_index] = logged

    def _touched(
        self, entry: Entry, changed: Mapping[RangeKey, LoggedRange]
    ) -> Sequence[LoggedRange]:
        match entry.kind:
            case EntryKind.BATCH:
                return (_grown(self._known(entry, changed), entry),)
            case EntryKind.STAGED:
                _check_staged(self._known(entry, changed), entry)
                return ()
            case EntryKind.TXN_END if entry.base_offset >= 0:
                return (_grown(self._known(entry, changed), entry),)
            case EntryKind.RANGE_CREATED:
                # A range may be announced and looked up at the same time: the first entry counts.
                if self._maybe_range(entry, changed) is not None:
                    return ()
                at = entry.base_offset
                created = _created_at_ms(entry)
                return (
                    LoggedRange(entry.stream_id, entry.range_index, at, at, created_at_ms=created),
                )
            case EntryKind.SEAL:
                return (_no_earlier_than(self._known(entry, changed), RangeState.SEALED),)
            case EntryKind.TRIM:
                ranges = self._ranges_of(entry.stream_id, changed)
                return [_trimmed(logged, entry.base_offset) for logged in ranges]
            case EntryKind.STREAM_DELETED:
                ranges = self._ranges_of(entry.stream_id, changed)
                return [_no_earlier_than(logged, RangeState.DELETED) for logged in ranges]
            case EntryKind.WRITER_MARK | EntryKind.RANGE_WRITERS | EntryKind.TXN_END:
                return ()
            case _:
                raise LogCorruptionError(
                    f"an entry of kind {entry.kind.name} is not one of a range"
                )

    def _maybe_range(
        self, entry: Entry, changed: Mapping[RangeKey, LoggedRange]
    ) -> LoggedRange | None:
        key = (entry.stream_id, entry.range_index)
        return changed.get(key) or self.maybe_range(key)

    def _known(self, entry: Entry, changed: Mapping[RangeKey, LoggedRange]) -> LoggedRange:
        found = self._maybe_range(entry, changed)
        if found is None:
            raise LogCorruptionError(
                f"an entry of range {entry.range_index} of stream {entry.stream_id}, which was"
                f" never created"
            )
        return found

    def _ranges_of(
        self, stream_id: int, changed: Mapping[RangeKey, LoggedRange]
    ) -> Iterable[LoggedRange]:
        own = {logged.key: logged for logged in self._streams.get(stream_id, {}).values()}
        own |= {key: logged for key, logged in changed.items() if key[0] == stream_id}
        return own.values()


def _check_staged(logged: LoggedRange, entry: Entry) -> None:
    if logged.state is not RangeState.OPEN or entry.count < 1:
        raise LogCorruptionError(
            f"{entry.count} records cannot be staged in range {logged.range_index} of stream"
            f" {logged.stream_id}, which is {logged.state.name}"
        )


def _grown(logged: LoggedRange, entry: Entry) -> LoggedRange:
    """Return a range after a batch, or after the end of transactions that published some."""
    is_empty = entry.kind is EntryKind.BATCH and entry.count < 1
    if logged.state is not RangeState.OPEN or is_empty or entry.base_offset != logged.next_offset:
        raise LogCorruptionError(
            f"{entry.count} records of a {entry.kind.name} at offset {entry.base_offset} cannot"
            f" follow in range {logged.range_index} of stream {logged.stream_id}, which is"
            f" {logged.state.name}: expected at least 1 record at offset {logged.next_offset}"
        )
    return LoggedRange(
        logged.stream_id,
        logged.range_index,
        logged.start_offset,
        logged.next_offset + entry.count,
        RangeState.OPEN,
        logged.created_at_ms,
    )


def _trimmed(logged: LoggedRange, offset: int) -> LoggedRange:
    """Not beyond its end, and never back."""
    start_offset = max(logged.start_offset, min(offset, logged.next_offset))
    return replace(logged, start_offset=start_offset)


def _no_earlier_than(logged: LoggedRange, state: RangeState) -> LoggedRange:
    return replace(logged, state=logged.state.or_later(state))


def range_created(stream_id: int, range_index: int, start_offset: int, created_at_ms: int) -> Entry:
    """Return the entry that begins a range; NO_TIME if it is not known when its stream was made."""
    body = b""
    if created_at_ms != NO_TIME:
        body = _CREATED_BODY.pack(_CREATED_VERSION, created_at_ms)
    return Entry(EntryKind.RANGE_CREATED, stream_id, range_index, start_offset, 0, body)


def _created_at_ms(entry: Entry) -> int:
    """Return when the stream was created, by a RANGE_CREATED entry of this version."""
    if len(entry.body) != _CREATED_BODY.size:
        return NO_TIME
    version, created_at_ms = _CREATED_BODY.unpack(entry.body)
    return int(created_at_ms) if version == _CREATED_VERSION else NO_TIME


def encode_states(ranges: Sequence[LoggedRange]) -> bytes:
    """Return the columns of `ranges`."""
    is_dated = any(logged.created_at_ms != NO_TIME for logged in ranges)
    return b"".join(
        np.array([getattr(logged, name) for logged in ranges], dtype).tobytes()
        for name, dtype in (_ALL_COLUMNS if is_dated else STATE_COLUMNS)
    )


def states_lengths(count: int) -> tuple[int, int]:
    """Return the two lengths in bytes that the columns of `count` ranges may have."""
    return count * _bytes_of(_ALL_COLUMNS), count * _bytes_of(STATE_COLUMNS)


def decode_states(data: memoryview, count: int) -> list[LoggedRange]:
    """Return `count` ranges from their columns, the last of which may be missing.

    Raises LogCorruptionError.
    """
    dated_bytes, undated_bytes = states_lengths(count)
    kinds = _ALL_COLUMNS if len(data) == dated_bytes else STATE_COLUMNS
    if len(data) not in {dated_bytes, undated_bytes}:
        raise LogCorruptionError(f"{count} states take {dated_bytes} bytes, not {len(data)}")
    columns: list[list[int]] = []
    start = 0
    for _, dtype in kinds:
        columns.append(np.frombuffer(data, dtype, count, start).tolist())
        start += count * dtype.itemsize
    stream_ids, starts, nexts, indexes, codes, *created = columns
    if max(codes, default=0) >= len(_STATES):
        raise LogCorruptionError(f"{max(codes)} is no state of a range")
    states = (_STATES[code] for code in codes)
    times = created[0] if created else [NO_TIME] * count
    return list(map(LoggedRange, stream_ids, indexes, starts, nexts, states, times))


def _bytes_of(columns: Sequence[tuple[str, np.dtype[Any]]]) -> int:
    return sum(dtype.itemsize for _, dtype in columns)
