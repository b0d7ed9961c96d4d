"""The bodies of STAGED and TXN_END entries: staged batches, and how their transactions end.

A STAGED entry holds a batch without offsets. The base offset in its header is -1; in a rewritten
segment, where entries have moved, it is the position of the first write. This *birth position*
identifies the batch from then on. Body, numbers big-endian:

    0     length of the transaction's id   u8
    1-    the id                           ASCII
          sequence                         u32
          the batch

A TXN_END entry publishes staged batches, or drops them. Published batches get the offsets from its
base offset on, in its order. An entry that drops has the base offset -1, and drops all batches of
its transactions in its range, or in all ranges of the stream if the range is -1. Body, big-endian:

    0     version      u8   1
    1     flags        u8   1 if it publishes
    2-5   id count     u32
    6-9   batch count  u32
    10-   for each id: its length u8, the id, and how many of the batches are its own, u32

Behind that, if it publishes, columns of its batches, little-endian: birth position i64, length of
the entry u32, records u32.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sbp_core.errors import LogCorruptionError
from sbp_core.limits import TXN_ID_LENGTH_MAX
from sbp_core.log.entry import Entry, Location, unpack_at
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import Buffer

_LENGTH: Final = struct.Struct(">B")
_COUNT: Final = struct.Struct(">I")
_END: Final = struct.Struct(">BBII")
_VERSION: Final = 1
_IS_COMMIT: Final = 1
_COLUMNS: Final[tuple[tuple[str, np.dtype[Any]], ...]] = (
    ("q", np.dtype("<i8")),
    ("I", np.dtype("<u4")),
    ("I", np.dtype("<u4")),
)

STAGED_BATCH_BYTES: Final = sum(dtype.itemsize for _, dtype in _COLUMNS)
"""Bytes of a batch in the end of its transaction, and in a snapshot."""


class BatchColumns:
    """Columns of staged batches: position of the first write, length of the entry, records.

    One thread may add while others read: the number of positions is the number of batches.
    """

    __slots__ = ("lengths", "positions", "record_counts")

    def __init__(self) -> None:
        self.lengths = array("I")
        self.record_counts = array("I")
        self.positions = array("q")  # written last

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.positions)

    def append(self, position: int, length: int, record_count: int) -> None:
        """Add a batch."""
        self.lengths.append(length)
        self.record_counts.append(record_count)
        self.positions.append(position)

    def extend(self, other: BatchColumns) -> None:
        """Add batches."""
        self.lengths += other.lengths
        self.record_counts += other.record_counts
        self.positions += other.positions

    def rows(self) -> StagedRows:
        """Return positions and lengths, in the order of addition."""
        positions = np.frombuffer(self.positions.tobytes(), np.int64)
        lengths = np.frombuffer(self.lengths.tobytes(), np.uint32, len(positions))
        return StagedRows(positions, lengths)

    def encode(self) -> bytes:
        """Return the bytes of all columns."""
        count = len(self)
        columns = (self.positions, self.lengths, self.record_counts)
        return b"".join(
            np.frombuffer(column.tobytes(), dtype.newbyteorder("="), count).astype(dtype).tobytes()
            for column, (_, dtype) in zip(columns, _COLUMNS, strict=True)
        )


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Positions of the first write of staged batches, in order, and lengths of their entries."""

    positions: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.uint32]

    @classmethod
    def together(cls, parts: Sequence[StagedRows]) -> StagedRows:
        """Return the union of `parts`, in order."""
        positions = np.concatenate([np.empty(0, np.int64), *(each.positions for each in parts)])
        lengths = np.concatenate([np.empty(0, np.uint32), *(each.lengths for each in parts)])
        positions, at = np.unique(positions, return_index=True)
        return cls(positions, lengths[at])

    def holds(self, position: int) -> bool:
        """Whether a batch with this position is among these."""
        at = int(self.positions.searchsorted(position))
        return at < len(self.positions) and bool(self.positions[at] == position)

    def bytes_between(self, base: int, end: int) -> int:
        """Return the bytes of the batches with positions in [base, end)."""
        first, last = self.positions.searchsorted((base, end))
        return int(self.lengths[first:last].sum(dtype=np.int64))


def decode_columns(data: memoryview, count: int) -> BatchColumns:
    """Return the batches from the bytes of their columns. Raises LogCorruptionError."""
    if len(data) != count * STAGED_BATCH_BYTES:
        raise LogCorruptionError(
            f"{count} staged batches take {count * STAGED_BATCH_BYTES} bytes, not {len(data)}"
        )
    columns: list[array[Any]] = []
    start = 0
    for code, dtype in _COLUMNS:
        values = np.frombuffer(data, dtype, count, start).astype(dtype.newbyteorder("="))
        columns.append(array(code, values.tobytes()))
        start += count * dtype.itemsize
    found = BatchColumns()
    found.positions, found.lengths, found.record_counts = columns
    return found


def prefix_length(txn_id: str) -> int:
    """Return the length of what is in front of a batch in a STAGED entry."""
    return _LENGTH.size + len(txn_id) + _COUNT.size


def encode_prefix(txn_id: str, sequence: int) -> bytes:
    """Return the bytes in front of a batch in a STAGED entry."""
    return encode_txn_id(txn_id) + _COUNT.pack(sequence)


def decode_prefix(body: Buffer) -> tuple[str, int]:
    """Return the transaction's id and the sequence of a staged batch. Raises LogCorruptionError."""
    txn_id, position = decode_txn_id(body, 0)
    (sequence,) = unpack_at(_COUNT, body, position)
    return txn_id, sequence


def encode_txn_id(txn_id: str) -> bytes:
    """Return the bytes of an id: its length, and the id."""
    return _LENGTH.pack(len(txn_id)) + txn_id.encode("ascii")


def decode_txn_id(data: Buffer, position: int) -> tuple[str, int]:
    """Return the id at `position`, and the position behind it. Raises LogCorruptionError."""
    (length,) = unpack_at(_LENGTH, data, position)
    start = position + _LENGTH.size
    encoded = bytes(data[start : start + length])
    try:
        txn_id = encoded.decode("ascii")
    except UnicodeDecodeError as error:
        raise LogCorruptionError("the id of a transaction is not ASCII") from error
    if len(encoded) < length or length > TXN_ID_LENGTH_MAX:
        raise LogCorruptionError("the id of a transaction is cut off, or too long")
    return txn_id, start + length


def maybe_kept(entry: Entry, location: Location, *, is_unsettled: bool) -> Entry | None:
    """Return an entry as a rewrite of its segment writes it, None if it is dropped.

    Kept are batches, ends that publish batches, and all numbered entries of unsettled ranges. A
    staged batch gets its birth position.
    """
    if entry.kind is EntryKind.STAGED:
        return entry if entry.base_offset >= 0 else replace(entry, base_offset=location.position)
    is_published = entry.kind is EntryKind.TXN_END and entry.count
    return entry if is_unsettled or is_published or entry.kind is EntryKind.BATCH else None


@dataclass(frozen=True, slots=True)
class EndedBatches:
    """The content of a TXN_END entry: ids, the number of batches of each, and the batches."""

    is_commit: bool
    txn_ids: tuple[str, ...]
    batch_counts: tuple[int, ...]
    batches: BatchColumns

    def prefix_lengths(self) -> array[int]:
        """Return the length of the prefix of each batch in its entry."""
        lengths = np.array(list(map(prefix_length, self.txn_ids)), np.uint8)
        return array("B", lengths.repeat(self.batch_counts).tobytes())


def encode_end(
    txn_ids: Sequence[str], batches: Sequence[BatchColumns], *, is_commit: bool
) -> bytes:
    """Return the body of a TXN_END entry; `batches` has the batches of each id."""
    together = BatchColumns()
    for each in batches:
        together.extend(each)
    head = _END.pack(_VERSION, _IS_COMMIT if is_commit else 0, len(txn_ids), len(together))
    ids = b"".join(
        encode_txn_id(txn_id) + _COUNT.pack(len(own))
        for txn_id, own in zip(txn_ids, batches, strict=True)
    )
    return head + ids + together.encode()


def portable_end(entry: Entry) -> bytes:
    """Return the body of a TXN_END entry without its batches, which have positions in one log.

    Raises LogCorruptionError.
    """
    is_commit, txn_ids, _, _ = _decode_ids(memoryview(entry.body))
    return encode_end(txn_ids, [BatchColumns()] * len(txn_ids), is_commit=is_commit)


def decode_portable_end(entry: Entry) -> tuple[bool, tuple[str, ...]]:
    """Return whether a TXN_END publishes, and its ids. Raises LogCorruptionError."""
    is_commit, txn_ids, _, _ = _decode_ids(memoryview(entry.body))
    return is_commit, tuple(txn_ids)


def decode_end(entry: Entry) -> EndedBatches:
    """Return the content of a TXN_END entry. Raises LogCorruptionError."""
    body = memoryview(entry.body)
    is_commit, txn_ids, batch_counts, position = _decode_ids(body)
    batches = decode_columns(body[position:], sum(batch_counts))
    if min(batches.record_counts, default=1) < 1 or sum(batches.record_counts) != entry.count:
        raise LogCorruptionError(
            f"a TXN_END names batches of {sum(batches.record_counts)} records, expected"
            f" {entry.count}"
        )
    return EndedBatches(is_commit, tuple(txn_ids), tuple(batch_counts), batches)


def _decode_ids(body: memoryview) -> tuple[bool, list[str], list[int], int]:
    """Return whether an end publishes, its ids, their batch counts, and the position behind."""
    version, flags, id_count, batch_count = unpack_at(_END, body, 0)
    if version != _VERSION:
        raise LogCorruptionError("the end of a transaction has an unknown version")
    position = _END.size
    txn_ids: list[str] = []
    batch_counts: list[int] = []
    for _ in range(id_count):
        txn_id, position = decode_txn_id(body, position)
        (own_count,) = unpack_at(_COUNT, body, position)
        position += _COUNT.size
        txn_ids.append(txn_id)
        batch_counts.append(own_count)
    if sum(batch_counts) != batch_count:
        raise LogCorruptionError(
            f"transactions of {sum(batch_counts)} batches end, and {batch_count} are named"
        )
    return bool(flags & _IS_COMMIT), txn_ids, batch_counts, position
