r"""The index of a full segment: `<base of the segment, 20 digits>.idx`.

Header (big-endian):

    bytes   field          type  meaning
    0-7     magic                "SBPIDX\r\n"
    8-11    version        u32   3, or 4 if a range is replicated
    12-15   generation     u32   of the segment
    16-23   base           u64   of the segment
    24-31   segment_bytes  u64   length of the segment's file
    32-39   range_count    u64
    40-47   row_count      u64
    48-55   moved_count    u64
    56-63   latest_ms      u64   the latest time of a batch
    64-71   staged_bytes   u64   bytes of the STAGED entries in the segment
    72-75   body_crc       u32   CRC-32C of all behind the header
    76-79   crc            u32   CRC-32C of the 76 bytes before

Body: columns, little-endian, one after the other. `ranges` are all ranges at the end of the
segment, by stream and index; `row_end` is the end of the rows of each. `rows` are the batches that
the segment lists, by range and offset. `prefix_bytes` is 0 for a batch that was appended with its
offsets, which is in the segment itself. Other batches were staged, in this segment or an earlier
one: `position` is the position of their first write, `prefix_bytes` the bytes in front of the batch
in its entry. `moved` are batches that were staged in this segment, if it was rewritten: position of
their first write, and present position, by the first.

    ranges  stream_id i64, start_offset i64, next_offset i64, row_end i64
    rows    base_offset i64, position i64, time_ms u64
    moved   birth_position i64, moved_position i64
    rows    count u32, length u32
    ranges  range_index i32, state_code u8
    rows    prefix_bytes u8
    ranges  seq i64, highest_seq i64, 16 bytes of digest: in version 4 only, see state_snapshot.py

The file can be rebuilt from its segment, so it is written without a sync and verified when it is
read. The index of a rewritten segment is synced before the segment, because a rebuild needs the
snapshot of the next segment as well. The file is read whole and never mapped: a mapped file that is
truncated kills its reader (SIGBUS), and bytes could change after the check. An index is written
only after the next segment is durable: recovery takes an index as the proof that its segment has a
successor.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sbp_core.errors import LogCorruptionError
from sbp_core.log.disk import Disk, DiskFile
from sbp_core.log.segment import Segment
from sbp_core.log.segment_rows import BatchRows, RangeRows, SegmentRows
from sbp_core.log.states.range_states import STATE_CODES, LoggedRange, RangeKey, RangeState
from sbp_core.log.states.staged_entries import STAGED_BATCH_BYTES, StagedRows
from sbp_core.log.states.state_snapshot import REPLICA_COLUMNS, STATE_COLUMNS, ranges_of
from sbp_core.segment_format import CHECKSUM_BYTES, is_intact, with_checksum
from sbp_core.wire.checksum import Buffer, crc32c

INDEX_MAGIC: Final = b"SBPIDX\r\n"
INDEX_VERSION: Final = 3
REPLICA_INDEX_VERSION: Final = 4

_FIELDS: Final = struct.Struct(">8sIIQQQQQQQI")
_I8: Final = np.dtype("<i8")
_U8: Final = np.dtype("<u8")
_I4: Final = np.dtype("<i4")
_U4: Final = np.dtype("<u4")
_U1: Final = np.dtype("u1")
_COLUMNS: Final[tuple[tuple[str, np.dtype[Any], str], ...]] = (
    ("stream_id", _I8, "ranges"),
    ("start_offset", _I8, "ranges"),
    ("next_offset", _I8, "ranges"),
    ("row_end", _I8, "ranges"),
    ("base_offset", _I8, "rows"),
    ("position", _I8, "rows"),
    ("time_ms", _U8, "rows"),
    ("birth_position", _I8, "moved"),
    ("moved_position", _I8, "moved"),
    ("count", _U4, "rows"),
    ("length", _U4, "rows"),
    ("range_index", _I4, "ranges"),
    ("state_code", _U1, "ranges"),
    ("prefix_bytes", _U1, "rows"),
    *((name, dtype, "replicas") for name, dtype in REPLICA_COLUMNS),
)
_IDENTITY_FIELDS: Final = 5
"""Fields of the header that identify the segment, and its state."""
_FENCED_CODE: Final = STATE_CODES.index(RangeState.FENCED)

INDEX_HEADER_BYTES: Final = _FIELDS.size + CHECKSUM_BYTES


def index_path(directory: Path, base: int) -> Path:
    """Return the path of the index of the segment that starts at position `base`."""
    return directory / f"{base:020d}.idx"


def encode_index(
    segment: Segment, ranges: Sequence[LoggedRange], rows: SegmentRows
) -> list[Buffer]:
    """Return the bytes of an index; `ranges` are the sorted ranges at the end of the segment."""
    empty = RangeRows()
    found = [rows.maybe_rows(logged.key) or empty for logged in ranges]
    row_ends = np.cumsum([len(each.base_offset) for each in found], dtype=_I8)
    moved = sorted(rows.moved.items())
    special = {
        "row_end": row_ends,
        "birth_position": [birth for birth, _ in moved],
        "moved_position": [position for _, position in moved],
    }
    is_replicated = any(logged.prefix is not None for logged in ranges)
    owners = {"ranges": ranges, "replicas": ranges if is_replicated else ()}
    columns = {
        name: np.array(special[name], dtype).tobytes()
        if name in special
        else np.array([getattr(logged, name) for logged in owners[owner]], dtype).tobytes()
        if owner in owners
        else _joined([getattr(each, name) for each in found], dtype)
        for name, dtype, owner in _COLUMNS
    }
    body = list(columns.values())
    fields = _FIELDS.pack(
        INDEX_MAGIC,
        REPLICA_INDEX_VERSION if is_replicated else INDEX_VERSION,
        segment.generation,
        segment.base,
        segment.size,
        len(ranges),
        int(row_ends[-1]) if ranges else 0,
        len(moved),
        int(np.frombuffer(columns["time_ms"], _U8).max(initial=0)),
        rows.staged_bytes,
        crc32c(body),
    )
    return [with_checksum(fields), *body]


def _joined(columns: Sequence[Any], dtype: np.dtype[Any]) -> bytes:
    """Join arrays of machine integers, in the byte order of the file."""
    joined = b"".join(columns)
    return np.frombuffer(joined, dtype.newbyteorder("=")).astype(dtype, copy=False).tobytes()


def open_index(disk: Disk, directory: Path, segment: Segment) -> SegmentIndex:
    """Read the index of `segment`. Raises LogCorruptionError if it is damaged, or OSError."""
    with closing(disk.open(index_path(directory, segment.base), is_writable=False)) as file:
        return read_index(file, segment)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of an index. `latest_ms` is the latest time of a batch."""

    version: int
    range_count: int
    row_count: int
    moved_count: int
    latest_ms: int
    staged_bytes: int
    body_crc: int

    @property
    def counts(self) -> dict[str, int]:
        """The length of a column, by its owner."""
        return {
            "ranges": self.range_count,
            "rows": self.row_count,
            "moved": self.moved_count,
            "replicas": self.range_count if self.version == REPLICA_INDEX_VERSION else 0,
        }


def read_index_header(file: DiskFile, segment: Segment) -> IndexHeader:
    """Return the header of the index of `segment`. Raises LogCorruptionError or OSError."""
    head = file.pread(INDEX_HEADER_BYTES, 0)
    if len(head) < INDEX_HEADER_BYTES or not is_intact(head, _FIELDS.size):
        raise LogCorruptionError("its header is damaged")
    magic, version, generation, base, size, *rest = _FIELDS.unpack_from(head)
    if magic != INDEX_MAGIC or version not in {INDEX_VERSION, REPLICA_INDEX_VERSION}:
        raise LogCorruptionError(f"it has format version {version}, not {INDEX_VERSION}")
    if (generation, base, size) != (segment.generation, segment.base, segment.size):
        raise LogCorruptionError("it belongs to another state of the segment")
    return IndexHeader(version, *rest)


def read_index(file: DiskFile, segment: Segment) -> SegmentIndex:
    """Read `file` whole, as the index of `segment`.

    Raises LogCorruptionError with the reason if it is not that, or damaged, or OSError.
    """
    header = read_index_header(file, segment)
    length = INDEX_HEADER_BYTES + sum(
        header.counts[owner] * dtype.itemsize for _, dtype, owner in _COLUMNS
    )
    if file.size() != length:
        raise LogCorruptionError(f"it has {file.size()} bytes, expected {length}")
    data = memoryview(file.pread(length, 0))
    if len(data) != length:
        raise LogCorruptionError(f"it was cut to {len(data)} bytes while it was read")
    crc = crc32c((data[INDEX_HEADER_BYTES:],))
    if crc != header.body_crc:
        raise LogCorruptionError(f"it has the checksum {crc:08x}, expected {header.body_crc:08x}")
    return SegmentIndex(data)


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """Bytes and streams of all batches of a segment, and of its live batches.

    The bytes of a staged batch count in the segment that staged it, its stream in the segment that
    published it. `has_unsettled`: the segment has entries that other replicas may need.
    """

    held_bytes: int
    live_bytes: int
    stream_ids: frozenset[int]
    live_stream_ids: frozenset[int]
    has_unsettled: bool = False


@dataclass(frozen=True, slots=True)
class ListedBatches:
    """The batches that a segment lists, as columns, by stream, range and offset.

    `is_own`: the batch was not staged, and its range has a single replica. `is_live`: the batch
    reaches beyond the start of its range.
    """

    stream_id: npt.NDArray[np.int64]
    range_index: npt.NDArray[np.int32]
    base_offset: npt.NDArray[np.int64]
    count: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint32]
    time_ms: npt.NDArray[np.uint64]
    is_own: npt.NDArray[np.bool_]
    is_live: npt.NDArray[np.bool_]


class SegmentIndex:
    """The index of one segment, over verified bytes.

    Without `is_whole`, damage to the segment may hide rows.
    """

    def __init__(self, data: Buffer, *, is_whole: bool = True) -> None:
        self.is_whole = is_whole
        self.size_bytes = len(data)
        fields = _FIELDS.unpack_from(data)
        header = IndexHeader(fields[1], *fields[_IDENTITY_FIELDS:])
        self.latest_ms = header.latest_ms
        self.staged_bytes = header.staged_bytes
        counts = header.counts
        self._columns: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
        start = INDEX_HEADER_BYTES
        for name, dtype, owner in _COLUMNS:
            self._columns[name] = np.frombuffer(data, dtype, counts[owner], start)
            start += counts[owner] * dtype.itemsize

    def ranges(self) -> list[LoggedRange]:
        """Return all ranges at the end of the segment."""
        return self._ranges(slice(None))

    def maybe_range(self, key: RangeKey) -> LoggedRange | None:
        """Return a range at the end of the segment, None if it did not exist then."""
        at = self._maybe_range(key)
        return None if at is None else self._ranges(slice(at, at + 1))[0]

    def _ranges(self, rows: slice) -> list[LoggedRange]:
        times: list[int] = []
        columns = [self._columns[name][rows].tolist() for name, _ in STATE_COLUMNS]
        numbers = [self._columns[name][rows].tolist() for name, _ in REPLICA_COLUMNS]
        return ranges_of(*columns, times, *(numbers if numbers[0] else ()))

    def seq(self, key: RangeKey) -> int:
        """Return the number of entries of a replicated range at the end of the segment, or 0."""
        at, seqs = self._maybe_range(key), self._columns["seq"]
        return 0 if at is None or not len(seqs) else int(seqs[at])

    def next_offset(self, key: RangeKey) -> int:
        """Return the next offset of a range at the end of the segment, -1 if it did not exist."""
        at = self._maybe_range(key)
        return -1 if at is None else int(self._columns["next_offset"][at])

    def maybe_rows(self, key: RangeKey) -> BatchRows[npt.NDArray[Any]] | None:
        """Return the batches of a range, at least one, or None."""
        rows = self._rows(key)
        if rows.start == rows.stop:
            return None
        columns = {
            name: self._columns[name][rows] for name, _, owner in _COLUMNS if owner == "rows"
        }
        return BatchRows(columns, is_time_ordered=self._is_time_ordered)

    def maybe_moved(self, birth_position: int) -> int | None:
        """Return the present position of a batch that was staged at `birth_position`."""
        births = self._columns["birth_position"]
        at = int(births.searchsorted(birth_position))
        if at == len(births) or births[at] != birth_position:
            return None
        return int(self._columns["moved_position"][at])

    @cached_property
    def _is_time_ordered(self) -> bool:
        """Whether the times of each range never go back."""
        times = self._columns["time_ms"]
        goes_back = times[1:] < times[:-1]
        ends = self._columns["row_end"]
        goes_back[ends[(ends > 0) & (ends < len(times))] - 1] = False  # between two ranges
        return not bool(goes_back.any())

    def may_hide(self, live_from: Callable[[RangeKey], int]) -> bool:
        """Whether damage may hide that the segment published live batches."""
        return not self.is_whole and any(
            logged.next_offset > live_from(logged.key) for logged in self.ranges()
        )

    @cached_property
    def has_published(self) -> bool:
        """Whether the segment published staged batches."""
        return bool(self._columns["prefix_bytes"].any())

    def published_rows(self, live_from: Callable[[RangeKey], int]) -> StagedRows:
        """Return the live batches that were staged; `live_from` returns where a range begins."""
        wanted = (self._columns["prefix_bytes"] > 0) & self._is_live(live_from)
        return StagedRows(self._columns["position"][wanted], self._columns["length"][wanted])

    def listed(self, live_from: Callable[[RangeKey], int]) -> ListedBatches:
        """Return all batches; `live_from` returns the offset where a range begins."""
        columns = self._columns
        row_counts = np.diff(columns["row_end"], prepend=0)
        is_own = columns["prefix_bytes"] == 0
        # A fenced range is replicated, also while its records are copied and it has no numbers.
        is_fenced = columns["state_code"] == _FENCED_CODE
        is_own &= ~is_fenced.repeat(row_counts)
        if len(columns["seq"]):
            is_own &= (columns["seq"] < 0).repeat(row_counts)
        return ListedBatches(
            columns["stream_id"].repeat(row_counts),
            columns["range_index"].repeat(row_counts),
            columns["base_offset"],
            columns["count"],
            columns["length"],
            columns["time_ms"],
            is_own,
            self._is_live(live_from),
        )

    def replicated_ranges(self) -> list[RangeKey]:
        """Return the replicated ranges that have numbered entries."""
        if not len(self._columns["seq"]):
            return []
        return [logged.key for logged in self.ranges() if logged.prefix is not None]

    def held(self, live_from: Callable[[RangeKey], int], staged_live_bytes: int) -> SegmentUse:
        """Return the use of the segment; `live_from` returns the offset where a range begins.

        `staged_live_bytes` is the live part of the batches staged in the segment. A batch that the
        segment published counts with the bytes that name it in the end of its transaction.
        """
        is_live = self._is_live(live_from)
        is_published = self._columns["prefix_bytes"] > 0
        length = np.where(is_published, STAGED_BATCH_BYTES, self._columns["length"])
        row_counts = np.diff(self._columns["row_end"], prepend=0)
        stream_ids = self._columns["stream_id"].repeat(row_counts)
        return SegmentUse(
            int(length.sum(dtype=_I8)) + self.staged_bytes,
            int(length[is_live | self._is_named_with_live(is_live)].sum(dtype=_I8))
            + staged_live_bytes,
            frozenset(np.unique(stream_ids).tolist()),
            frozenset(np.unique(stream_ids[is_live]).tolist()),
        )

    def _is_named_with_live(self, is_live: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the batches that were published together with a live batch.

        One entry names all of them, and a rewrite keeps this entry whole.
        """
        times, is_published = self._columns["time_ms"], self._columns["prefix_bytes"] > 0
        is_first = np.ones(len(times), np.bool_)
        is_first[1:] = (times[1:] != times[:-1]) | (is_published[1:] != is_published[:-1])
        row_ends = self._columns["row_end"]
        is_first[row_ends[row_ends < len(times)]] = True
        (starts,) = is_first.nonzero()
        is_any_live = np.logical_or.reduceat(is_live, starts) if len(starts) else is_live
        named: npt.NDArray[np.bool_] = is_any_live.repeat(np.diff(starts, append=len(times)))
        return named & is_published

    def _is_live(self, live_from: Callable[[RangeKey], int]) -> npt.NDArray[np.bool_]:
        row_counts = np.diff(self._columns["row_end"], prepend=0)
        (used,) = row_counts.nonzero()
        stream_ids, range_indexes = self._columns["stream_id"], self._columns["range_index"]
        keys = zip(stream_ids[used].tolist(), range_indexes[used].tolist(), strict=True)
        starts = np.array([live_from(key) for key in keys], _I8).repeat(row_counts[used])
        is_live: npt.NDArray[np.bool_] = (
            self._columns["base_offset"] + self._columns["count"] > starts
        )
        return is_live

    def _rows(self, key: RangeKey) -> slice:
        """Return the rows of a range; an empty slice if it has none."""
        at = self._maybe_range(key)
        if at is None:
            return slice(0, 0)
        row_ends = self._columns["row_end"]
        return slice(int(row_ends[at - 1]) if at else 0, int(row_ends[at]))

    def _maybe_range(self, key: RangeKey) -> int | None:
        stream_id, range_index = key
        stream_ids, range_indexes = self._columns["stream_id"], self._columns["range_index"]
        start = int(stream_ids.searchsorted(stream_id, "left"))
        end = int(stream_ids.searchsorted(stream_id, "right"))
        at = start + int(range_indexes[start:end].searchsorted(range_index))
        return at if at < end and range_indexes[at] == range_index else None
