"""The snapshot at the start of a segment: the states of ranges, writers and transactions there.

The snapshot is the first group of the segment. Its entries, in this order: SNAPSHOT_WRITERS,
SNAPSHOT_STAGED, and at least one SNAPSHOT. The first two are left out if they would be empty.

A SNAPSHOT_WRITERS entry has `count` records, each a stream_id i64 and a writer (writer_states.py).
`base_offset` is the number of these entries, `range_index` counts them. A record without a writer
id has as its last sequence the index of the range from which on the stream's writers are known.

The joined bodies of the SNAPSHOT_STAGED entries are the records of staged_states.py; `base_offset`
and `range_index` are as above.

A SNAPSHOT entry has the states of a chunk of ranges: `base_offset` is the number of ranges in all
chunks, `count` the number in this chunk. Its body is columns of `count` values each, little-endian,
one after the other: stream_id i64, start_offset i64, next_offset i64, range_index i32, state_code
u8, created_at_ms i64, seq i64, highest_seq i64, and 16 bytes of digest. The last three columns are
left out if no range is replicated; seq is -1 for a range that is not replicated. created_at_ms is
left out, too, if it is unknown for all ranges, as in logs of earlier versions. The state codes are
OPEN 0, SEALED 1, DELETED 2, FENCED 3. Index files and high-water marks have these columns, too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np

from sbp_core import limits
from sbp_core.errors import LogCorruptionError
from sbp_core.log.entry import Entry, unpack_at
from sbp_core.log.states.range_states import NO_TIME, STATE_CODES, LoggedRange, RangeStates
from sbp_core.log.states.replicated_entries import decoded_prefix
from sbp_core.log.states.staged_states import StagedStates, decode_staged
from sbp_core.log.states.writer_states import (
    WriterState,
    WriterStates,
    decode_writer,
    encode_writer,
)
from sbp_core.replication import DIGEST_BYTES
from sbp_core.segment_format import EntryKind

STATE_COLUMNS: Final = (
    ("stream_id", np.dtype("<i8")),
    ("start_offset", np.dtype("<i8")),
    ("next_offset", np.dtype("<i8")),
    ("range_index", np.dtype("<i4")),
    ("state_code", np.dtype("u1")),
)
"""The columns that index files have as well."""
REPLICA_COLUMNS: Final = (
    ("seq", np.dtype("<i8")),
    ("highest_seq", np.dtype("<i8")),
    ("digest", np.dtype(f"V{DIGEST_BYTES}")),
)
"""Further columns, if any range is replicated."""
_DATED_COLUMNS: Final = (*STATE_COLUMNS, ("created_at_ms", np.dtype("<i8")))
_ALL_COLUMNS: Final = (*_DATED_COLUMNS, *REPLICA_COLUMNS)


def encode_snapshot(
    states: RangeStates, *, ranges_per_entry: int = limits.SNAPSHOT_RANGES_PER_ENTRY
) -> list[Entry]:
    """Return the entries of a snapshot of `states`, at least one SNAPSHOT entry.

    Ranges come last: a crash leaves the beginning of a group, so a snapshot with all ranges is
    complete.
    """
    ranges = list(states)
    chunks = _chunks(ranges, ranges_per_entry)
    return [
        *encode_writer_snapshot(states.writers),
        *encode_staged_snapshot(states.staged),
        *(
            Entry(EntryKind.SNAPSHOT, 0, index, len(ranges), len(chunk), encode_states(chunk))
            for index, chunk in enumerate(chunks or [[]])
        ),
    ]


class _Parts:
    """Counts the entries of one kind; each entry has the number of all."""

    def __init__(self) -> None:
        self.added_count = 0
        self.expected_count = 0

    @property
    def is_whole(self) -> bool:
        return self.added_count == self.expected_count

    def add(self, entry: Entry) -> None:
        if entry.range_index != self.added_count:
            raise LogCorruptionError(
                f"part {entry.range_index} of {entry.kind.name} is found where part"
                f" {self.added_count} should be"
            )
        self.added_count += 1
        self.expected_count = entry.base_offset


class SnapshotReader:
    """Joins the entries of a snapshot."""

    def __init__(self) -> None:
        self.ranges: list[LoggedRange] = []
        self.writers = WriterStates()
        self.staged = StagedStates()
        self._expected_count = -1
        self._parts = {EntryKind.SNAPSHOT_WRITERS: _Parts(), EntryKind.SNAPSHOT_STAGED: _Parts()}
        self._staged_bodies: list[bytes] = []

    @property
    def is_complete(self) -> bool:
        """Whether all ranges are there. Ranges come last, so the rest is there as well."""
        return len(self.ranges) == self._expected_count

    @property
    def has_all_but_ranges(self) -> bool:
        """Whether all writers and all stagings are there."""
        return all(parts.is_whole for parts in self._parts.values())

    def states(self) -> RangeStates:
        """Return the states of a complete snapshot."""
        return RangeStates(self.ranges, self.writers, self.staged)

    def add(self, entry: Entry) -> bool:
        """Add the next entry of the segment; return whether it completes the snapshot.

        Raises LogCorruptionError if it does not follow.
        """
        if entry.kind in self._parts:
            self._add_part(entry)
            return False
        expected = entry.base_offset if self._expected_count < 0 else self._expected_count
        if entry.kind is not EntryKind.SNAPSHOT or entry.base_offset != expected:
            raise LogCorruptionError(
                f"an entry of kind {entry.kind.name} is found where the segment's snapshot of its"
                f" ranges should go on: {len(self.ranges)} of {expected} are here"
            )
        for kind, parts in self._parts.items():
            if not parts.is_whole:
                raise LogCorruptionError(
                    f"the segment's snapshot has {parts.added_count} of {parts.expected_count}"
                    f" entries of kind {kind.name}"
                )
        self._expected_count = expected
        self.ranges += decode_states(memoryview(entry.body), entry.count)
        return self.is_complete

    def _add_part(self, entry: Entry) -> None:
        if self._expected_count >= 0:
            raise LogCorruptionError(
                f"{entry.kind.name} is found behind the snapshot of the segment's ranges"
            )
        parts = self._parts[entry.kind]
        parts.add(entry)
        if entry.kind is EntryKind.SNAPSHOT_WRITERS:
            for stream_id, writer in decode_writer_snapshot(entry):
                self.writers.restore(stream_id, writer)
            return
        self._staged_bodies.append(bytes(entry.body))
        if parts.is_whole:
            self.staged = decode_staged(b"".join(self._staged_bodies))
            self._staged_bodies.clear()


_Values = TypeVar("_Values", bytes, list[bytes], list[LoggedRange])
_STREAM: Final = struct.Struct(">q")


def encode_writer_snapshot(states: WriterStates) -> list[Entry]:
    """Return the SNAPSHOT_WRITERS entries of `states`, none if there is nothing to say."""
    records = [
        _STREAM.pack(stream_id) + encode_writer(writer) for stream_id, writer in states.snapshot()
    ]
    chunks = _chunks(records, limits.SNAPSHOT_WRITERS_PER_ENTRY)
    return [
        Entry(EntryKind.SNAPSHOT_WRITERS, 0, at, len(chunks), len(chunk), b"".join(chunk))
        for at, chunk in enumerate(chunks)
    ]


def decode_writer_snapshot(entry: Entry) -> Sequence[tuple[int, WriterState]]:
    """Return the records of one SNAPSHOT_WRITERS entry. Raises LogCorruptionError."""
    data, position = bytes(entry.body), 0
    records = []
    while position < len(data):
        (stream_id,) = unpack_at(_STREAM, data, position)
        writer, position = decode_writer(data, position + _STREAM.size)
        records.append((stream_id, writer))
    if len(records) != entry.count:
        raise LogCorruptionError(f"a snapshot entry has {len(records)} writers, not {entry.count}")
    return records


def encode_staged_snapshot(
    states: StagedStates, *, chunk_bytes: int = limits.SNAPSHOT_STAGED_BYTES
) -> list[Entry]:
    """Return the SNAPSHOT_STAGED entries of `states`, none if there is nothing to say."""
    chunks = _chunks(states.encode(), chunk_bytes)
    return [
        Entry(EntryKind.SNAPSHOT_STAGED, 0, at, len(chunks), 0, chunk)
        for at, chunk in enumerate(chunks)
    ]


def _chunks(values: _Values, size: int) -> list[_Values]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def encode_states(ranges: Sequence[LoggedRange]) -> bytes:
    """Return the columns of `ranges`."""
    columns: Sequence[tuple[str, np.dtype[Any]]] = STATE_COLUMNS
    if any(logged.prefix is not None for logged in ranges):
        columns = _ALL_COLUMNS
    elif any(logged.created_at_ms != NO_TIME for logged in ranges):
        columns = _DATED_COLUMNS
    return b"".join(
        np.array([getattr(logged, name) for logged in ranges], dtype).tobytes()
        for name, dtype in columns
    )


def states_lengths(count: int) -> tuple[int, ...]:
    """Return the possible lengths in bytes of the columns of `count` ranges, longest first."""
    forms = (_ALL_COLUMNS, _DATED_COLUMNS, STATE_COLUMNS)
    return tuple(count * _bytes_of(columns) for columns in forms)


def decode_states(data: memoryview, count: int) -> list[LoggedRange]:
    """Return `count` ranges from their columns; the last columns may be missing.

    Raises LogCorruptionError.
    """
    lengths = states_lengths(count)
    if len(data) not in lengths:
        raise LogCorruptionError(f"{count} states take {lengths[1]} bytes, not {len(data)}")
    columns: list[list[Any]] = []
    start = 0
    for _, dtype in _ALL_COLUMNS:
        if start == len(data):
            break
        columns.append(np.frombuffer(data, dtype, count, start).tolist())
        start += count * dtype.itemsize
    return ranges_of(*columns)


def ranges_of(  # noqa: PLR0917 - the columns, in their order
    stream_ids: Sequence[int] = (),
    starts: Sequence[int] = (),
    nexts: Sequence[int] = (),
    indexes: Sequence[int] = (),
    codes: Sequence[int] = (),
    times: Sequence[int] = (),
    *numbers: Sequence[Any],
) -> list[LoggedRange]:
    """Return ranges from columns; the last columns may be missing.

    Raises LogCorruptionError for an unknown state.
    """
    if max(codes, default=0) >= len(STATE_CODES):
        raise LogCorruptionError(f"unknown state {max(codes)} of a range")
    states = [STATE_CODES[code] for code in codes]
    fields = [stream_ids, indexes, starts, nexts, states, times or [NO_TIME] * len(codes)]
    if numbers:
        seqs, highest_seqs, digests = numbers
        fields.append(
            [
                None if seq < 0 else decoded_prefix(seq, digest)
                for seq, digest in zip(seqs, digests, strict=True)
            ]
        )
        fields.append(highest_seqs)
    return list(map(LoggedRange, *fields))


def _bytes_of(columns: Sequence[tuple[str, np.dtype[Any]]]) -> int:
    return sum(dtype.itemsize for _, dtype in columns)
