"""The states of ranges: fold entries into states.

The body of a RANGE_CREATED entry is a version, 1, and created_at_ms, a little-endian i64; or empty
if the time is unknown, as in logs of earlier versions. The version is 2 if the range is replicated:
its entries are numbered (replicated_entries.py), and it ends by FENCED and SETTLED, never by SEAL.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sbp_core.errors import LogCorruptionError
from sbp_core.log.entry import Entry
from sbp_core.log.states.replicated_entries import NO_DIGEST, decode_settled, number_after
from sbp_core.log.states.staged_states import StagedStates
from sbp_core.log.states.writer_states import WriterStates
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind

_CREATED_BODY: Final = struct.Struct("<Bq")
_CREATED_VERSION: Final = 1
_REPLICATED_VERSION: Final = 2
OFFSET_MAX: Final = 2**63 - 1
_NO_ENTRIES: Final = Prefix()
NO_TIME: Final = -1
"""In place of the creation time of a stream, if unknown."""


class RangeState(enum.Enum):
    """The states of a range. A range moves only forward in this order."""

    OPEN = "open"
    FENCED = "fenced"
    SEALED = "sealed"
    DELETED = "deleted"

    def or_later(self, other: RangeState) -> RangeState:
        """Return the later of both states."""
        return max(self, other, key=_STATES.index)


_STATES: Final = tuple(RangeState)
STATE_CODES: Final = (
    RangeState.OPEN,
    RangeState.SEALED,
    RangeState.DELETED,
    RangeState.FENCED,
)

RangeKey = tuple[int, int]
"""(stream id, range index)."""


@dataclass(frozen=True, slots=True)
class LoggedRange:
    """A range in the log: records [start_offset, next_offset), without the trimmed ones.

    `prefix` has the entries of a replicated range up to the first gap, `highest_seq` is the number
    of its last entry. The two differ if entries in between are damaged. While records are copied
    without entries (COPY_BEGUN), the range is fenced and has no prefix.
    """

    stream_id: int
    range_index: int
    start_offset: int
    next_offset: int
    state: RangeState = RangeState.OPEN
    created_at_ms: int = field(default=NO_TIME, compare=False)
    """When the placement driver created the stream; tells streams with the same id apart."""
    prefix: Prefix | None = None
    highest_seq: int = 0

    @property
    def key(self) -> RangeKey:
        """Stream id and range index."""
        return self.stream_id, self.range_index

    @property
    def state_code(self) -> int:
        """The state as a number, for the column of that name."""
        return STATE_CODES.index(self.state)

    @property
    def seq(self) -> int:
        """The number of entries before the first gap, -1 if the range is not replicated."""
        return -1 if self.prefix is None else self.prefix.seq

    @property
    def digest(self) -> bytes:
        """The digest of these entries, zeros if there are none."""
        return (self.prefix.digest if self.prefix is not None else b"") or NO_DIGEST

    @property
    def is_replicated(self) -> bool:
        """Whether the range has replicas on other servers."""
        return self.prefix is not None or self.state is RangeState.FENCED

    @property
    def is_whole(self) -> bool:
        """Whether no entry is missing."""
        return self.prefix is None or self.prefix.seq == self.highest_seq

    @property
    def is_unsettled(self) -> bool:
        """Whether other replicas may need entries of the range."""
        return self.prefix is not None and self.state in {RangeState.OPEN, RangeState.FENCED}


def prefix_of(logged: LoggedRange | None) -> Prefix:
    """Return the numbered entries of a range; none for an unknown one, or one without numbers."""
    return _NO_ENTRIES if logged is None or logged.prefix is None else logged.prefix


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Records [base_offset, end_offset) of a range; both are -1 for staged records."""

    stream_id: int
    range_index: int
    base_offset: int
    end_offset: int

    @classmethod
    def of(cls, entry: Entry) -> RecordSpan:
        """Return the records of a batch, or the records that the end of transactions published."""
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
    """The states at one position of the log: ranges, `writers` and `staged` batches.

    `apply` and `after` fold entries into ranges only. Writers and staged batches have folds of
    their own, because these need the locations and times of entries.
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

    def after(
        self, entries: Iterable[Entry], *, is_damaged: bool = False
    ) -> dict[RangeKey, LoggedRange]:
        """Return the ranges that `entries` change, after the last entry.

        With `is_damaged` the bodies of the entries are lost. Raises LogCorruptionError if an entry
        contradicts the entries before it.
        """
        changed: dict[RangeKey, LoggedRange] = {}
        for entry in entries:
            for logged in self._touched(entry, changed, is_damaged=is_damaged):
                changed[logged.key] = logged
        return changed

    def update(self, changed: Mapping[RangeKey, LoggedRange]) -> None:
        """Apply the result of `after`."""
        for logged in changed.values():
            self._put(logged)

    def maybe_range(self, key: RangeKey) -> LoggedRange | None:
        """Return a range. Safe in any thread, also while another thread updates."""
        stream_id, range_index = key
        return self._streams.get(stream_id, {}).get(range_index)

    def forget_deleted(self, held: Container[int]) -> None:
        """Forget the deleted streams that are not in `held`."""
        for stream_id, ranges in list(self._streams.items()):
            is_deleted = all(each.state is RangeState.DELETED for each in ranges.values())
            if is_deleted and stream_id not in held:
                del self._streams[stream_id]
                self.staged.forget(stream_id)

    def restore_tails(self, tails: Iterable[LoggedRange]) -> tuple[RecordSpan, ...]:
        """Set ranges to their states before entries were lost; return the lost records.

        Their writers are forgotten, because their last batches are unknown. A replicated range
        keeps the prefix that is here, and is not whole any more.
        """
        lost = []
        for tail in tails:
            found = self.maybe_range(tail.key)
            if found == tail:
                continue
            start = max(tail.start_offset, 0 if found is None else found.next_offset)
            if start < tail.next_offset:
                lost.append(RecordSpan(*tail.key, start, tail.next_offset))
            prefix = prefix_of(found)
            is_lost = tail.prefix is not None and prefix.seq < tail.prefix.seq
            restored = replace(tail, prefix=prefix) if is_lost else tail
            if tail.is_replicated and tail.prefix is None:  # records in the middle may be missing
                restored = replace(tail, prefix=Prefix(), highest_seq=1)
            self._put(restored)
            self.writers.forget_before(tail.stream_id, max(self._streams[tail.stream_id]))
        return tuple(lost)

    def forget_writers(self) -> None:
        """Forget the writers of all streams, because their last entries may be missing."""
        self.writers.forget_all({stream_id: max(own) for stream_id, own in self._streams.items()})

    def apply(self, entry: Entry, *, is_damaged: bool = False) -> Sequence[LoggedRange]:
        """Apply one entry; return the changed ranges. Raises as `after`."""
        touched = self._touched(entry, {}, is_damaged=is_damaged)
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
        self, entry: Entry, changed: Mapping[RangeKey, LoggedRange], *, is_damaged: bool
    ) -> Sequence[LoggedRange]:
        match entry.kind:
            case EntryKind.BATCH:
                return (_grown(self._known(entry, changed), entry, is_damaged=is_damaged),)
            case EntryKind.STAGED:
                logged = self._known(entry, changed)
                _check_staged(logged, entry)
                return _numbered(logged, entry, is_damaged=is_damaged)
            case EntryKind.TXN_END if entry.base_offset >= 0:
                return (_grown(self._known(entry, changed), entry, is_damaged=is_damaged),)
            case EntryKind.RANGE_CREATED:
                # A range may be looked up twice at the same time. The first entry counts.
                if self._maybe_range(entry, changed) is not None:
                    return ()
                return (_created(entry),)
            case EntryKind.SEAL | EntryKind.FENCED | EntryKind.SETTLED:
                return (_ended(self._known(entry, changed), entry),)
            case EntryKind.COPY_BEGUN:
                return (_copied_from(self._known(entry, changed), entry),)
            case EntryKind.TRIM:
                ranges = self._ranges_of(entry.stream_id, changed)
                return [_trimmed(logged, entry.base_offset) for logged in ranges]
            case EntryKind.STREAM_DELETED:
                ranges = self._ranges_of(entry.stream_id, changed)
                return [_no_earlier_than(logged, RangeState.DELETED) for logged in ranges]
            case EntryKind.TXN_END if entry.range_index < 0:
                for logged in self._ranges_of(entry.stream_id, changed):
                    if logged.is_unsettled:
                        raise _contradiction(logged, entry, "a TXN_END of each of its ranges")
                return ()
            case EntryKind.WRITER_MARK | EntryKind.RANGE_WRITERS | EntryKind.TXN_END:
                found = self._maybe_range(entry, changed)
                return () if found is None else _numbered(found, entry, is_damaged=is_damaged)
            case _:
                raise LogCorruptionError(
                    f"an entry of kind {entry.kind.name} does not belong to a range"
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


def _is_growing(logged: LoggedRange) -> bool:
    """Whether entries may follow. A fenced range gets the entries that it lacks."""
    return logged.state in {RangeState.OPEN, RangeState.FENCED}


def _check_staged(logged: LoggedRange, entry: Entry) -> None:
    if not _is_growing(logged) or entry.count < 1:
        raise LogCorruptionError(
            f"{entry.count} records cannot be staged in range {logged.range_index} of stream"
            f" {logged.stream_id}, which is {logged.state.name}"
        )


def _grown(logged: LoggedRange, entry: Entry, *, is_damaged: bool) -> LoggedRange:
    """Return a range after a batch, or after the end of transactions that published batches."""
    # The placement driver lists a range with its present start. A copy that begins after a trim
    # still gets all entries of the range, with records before that start.
    if logged.prefix is not None and entry.base_offset < logged.next_offset == logged.start_offset:
        logged = replace(logged, start_offset=entry.base_offset, next_offset=entry.base_offset)
    is_empty = entry.kind is EntryKind.BATCH and entry.count < 1
    if not _is_growing(logged) or is_empty or entry.base_offset != logged.next_offset:
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
        logged.state,
        logged.created_at_ms,
        *_numbers_after(logged, entry, is_damaged=is_damaged),
    )


def _numbered(logged: LoggedRange, entry: Entry, *, is_damaged: bool) -> Sequence[LoggedRange]:
    """Return a replicated range after an entry that changes only its numbers; else nothing."""
    if logged.prefix is None or (
        entry.kind is EntryKind.TXN_END and not logged.is_unsettled  # drops what was left staged
    ):
        return ()
    if not logged.is_unsettled:
        raise _contradiction(logged, entry, "no further entries")
    prefix, highest_seq = _numbers_after(logged, entry, is_damaged=is_damaged)
    return (replace(logged, prefix=prefix, highest_seq=highest_seq),)


def _numbers_after(
    logged: LoggedRange, entry: Entry, *, is_damaged: bool
) -> tuple[Prefix | None, int]:
    """Return the prefix and the highest number of a range after an entry."""
    if logged.prefix is None:
        return None, 0
    is_behind_gap = is_damaged or not logged.is_whole
    prefix = logged.prefix if is_behind_gap else number_after(logged.prefix, entry)
    return prefix, logged.highest_seq + 1


def _ended(logged: LoggedRange, entry: Entry) -> LoggedRange:
    """Return a range after SEAL; a replicated range after FENCED or SETTLED."""
    if entry.kind is EntryKind.SEAL:
        if logged.prefix is not None:
            raise _contradiction(logged, entry, "FENCED and SETTLED, as it is replicated")
        return _no_earlier_than(logged, RangeState.SEALED)
    if not logged.is_replicated:
        raise _contradiction(logged, entry, "SEAL, as it is not replicated")
    if entry.kind is EntryKind.FENCED:
        return _no_earlier_than(logged, RangeState.FENCED)
    return _settled(logged, entry)


def _settled(logged: LoggedRange, entry: Entry) -> LoggedRange:
    """Return a replicated range after its SETTLED entry. Raises LogCorruptionError.

    A range with damaged entries is settled but not whole, unless they were mended.
    """
    settled = decode_settled(entry)
    prefix, end, end_offset = logged.prefix, settled.end, entry.base_offset
    if logged.state is RangeState.DELETED:
        return logged
    if prefix is None:  # its records were copied
        if end_offset != logged.next_offset:
            raise _contradiction(logged, entry, f"an end at offset {logged.next_offset}")
        return replace(logged, state=RangeState.SEALED, prefix=end, highest_seq=end.seq)
    is_here = end.seq <= prefix.seq or settled.is_mended
    if (logged.is_whole and not is_here) or (end.seq == prefix.seq and end != prefix):
        raise _contradiction(logged, entry, f"an end in entries 1 to {prefix.seq}")
    if end_offset > logged.next_offset or (
        not logged.is_unsettled and end_offset != logged.next_offset
    ):
        raise _contradiction(logged, entry, f"an end at offset {logged.next_offset}")
    return replace(
        logged,
        start_offset=min(logged.start_offset, end_offset),
        next_offset=end_offset,
        state=logged.state.or_later(RangeState.SEALED),
        prefix=end if is_here else prefix,
        highest_seq=end.seq,
    )


def _copied_from(logged: LoggedRange, entry: Entry) -> LoggedRange:
    """Return a fenced range after COPY_BEGUN: it gets records from the base offset on.

    Raises LogCorruptionError unless the records here end at that offset or before it, or none of
    them is kept.
    """
    if logged.state is RangeState.DELETED:
        return logged
    is_empty = logged.start_offset == logged.next_offset
    is_behind = entry.base_offset >= logged.next_offset
    is_possible = is_empty or is_behind or entry.base_offset == logged.start_offset
    if logged.state is not RangeState.FENCED or not logged.is_whole or not is_possible:
        raise _contradiction(logged, entry, f"a fenced range that ends at {logged.next_offset}")
    start_offset = logged.start_offset
    if is_empty or entry.base_offset > logged.next_offset:
        start_offset = entry.base_offset
    return replace(
        logged,
        start_offset=start_offset,
        next_offset=entry.base_offset,
        prefix=None,
        highest_seq=0,
    )


def _contradiction(logged: LoggedRange, entry: Entry, expected: str) -> LogCorruptionError:
    return LogCorruptionError(
        f"a {entry.kind.name} cannot follow in range {logged.range_index} of stream"
        f" {logged.stream_id}, which is {logged.state.name}: expected {expected}"
    )


def _created(entry: Entry) -> LoggedRange:
    created_at_ms, is_replicated = _decode_created(entry)
    return LoggedRange(
        entry.stream_id,
        entry.range_index,
        entry.base_offset,
        entry.base_offset,
        created_at_ms=created_at_ms,
        prefix=Prefix() if is_replicated else None,
    )


def _trimmed(logged: LoggedRange, offset: int) -> LoggedRange:
    """Return a range after a trim, which neither passes its end nor goes back."""
    start_offset = max(logged.start_offset, min(offset, logged.next_offset))
    return replace(logged, start_offset=start_offset)


def _no_earlier_than(logged: LoggedRange, state: RangeState) -> LoggedRange:
    return replace(logged, state=logged.state.or_later(state))


def range_created(
    stream_id: int,
    range_index: int,
    start_offset: int,
    created_at_ms: int,
    *,
    is_replicated: bool = False,
) -> Entry:
    """Return the entry that begins a range; `created_at_ms` is that of its stream, or NO_TIME."""
    body = b""
    if is_replicated:
        body = _CREATED_BODY.pack(_REPLICATED_VERSION, created_at_ms)
    elif created_at_ms != NO_TIME:
        body = _CREATED_BODY.pack(_CREATED_VERSION, created_at_ms)
    return Entry(EntryKind.RANGE_CREATED, stream_id, range_index, start_offset, 0, body)


def _decode_created(entry: Entry) -> tuple[int, bool]:
    """Return the creation time of the stream, and whether the range is replicated."""
    if len(entry.body) != _CREATED_BODY.size:
        return NO_TIME, False
    version, created_at_ms = _CREATED_BODY.unpack(entry.body)
    is_known = version in {_CREATED_VERSION, _REPLICATED_VERSION}
    return int(created_at_ms) if is_known else NO_TIME, version == _REPLICATED_VERSION
