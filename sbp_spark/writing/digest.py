"""A digest of rows that does not depend on their order, nor on how they were divided.

Each row gets a hash of 64 bits from its key, value, headers, timestamp and stream; the digest is
their sum modulo 2^64. So the rows of a micro-batch have the same digest when they are computed
again in other partitions. It tells another content from the same one; it is no protection from
someone who looks for collisions.

Octets are hashed in blocks of 64, gathered for all rows at once: each word of a block is mixed and
multiplied by a constant of its place, and the sum is chained to that of the blocks before it.
Octets behind the end count as 0, words of 0 add nothing, and the length is mixed in at the end.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core.records import ROWS_SCHEMA

Hashes = npt.NDArray[np.uint64]
_Lengths = npt.NDArray[np.int64]

DIGEST_BYTES: Final = 8
_MODULUS: Final = 2**64

_WORD_BYTES: Final = 8
_BLOCK_WORDS: Final = 8
_BLOCK_BYTES: Final = _BLOCK_WORDS * _WORD_BYTES
_LONG_BYTES: Final = 2048
"""Longer octets are hashed one by one: then a call for each costs less than the blocks."""

_VALUES_AT_ONCE: Final = 4096
"""So many blocks fit into the processor's cache."""

_ALL: Final = np.uint64(2**64 - 1)
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_SECOND: Final = np.uint64(0x94D049BB133111EB)
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
"""The hash of null, whatever the column is."""


def digest_of(rows: pa.RecordBatch, stream_ids: int | npt.NDArray[np.int64]) -> int:
    """Return the digest of rows of ROWS_SCHEMA that belong to these streams: one, or one for each.

    Digests of several batches are joined by `join_digests`.
    """
    if rows.num_rows == 0:
        return 0
    key, value, headers, timestamp = (rows.column(field.name) for field in ROWS_SCHEMA)
    total = np.full(rows.num_rows, stream_ids).view(np.uint64)
    for hashes in (
        hash_octets(key),
        hash_octets(value),
        _hash_headers(headers),
        _hash_times(timestamp),
    ):
        total *= _STEP
        total += hashes
    return int(_mixed(total).sum(dtype=np.uint64))


def join_digests(first: int, second: int) -> int:
    """Return the digest of the rows of both."""
    return (first + second) % _MODULUS


def encode_digest(digest: int) -> bytes:
    """Return a digest as the placement driver keeps it."""
    return digest.to_bytes(DIGEST_BYTES, "big")


def hash_octets(array: pa.Array) -> Hashes:
    """Return a hash of each value of a binary or string array; null is like no value."""
    starts, lengths = _places(array)
    hashes = _hash_places(array.buffers()[2], starts, lengths)
    _set_nulls(hashes, array)
    return hashes


def _places(array: pa.Array) -> tuple[_Lengths, _Lengths]:
    """Return where the values of a binary or string array begin, and how long they are."""
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    count = len(array)
    if count == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64 if is_large else np.int32)
    bounds = offsets[array.offset : array.offset + count + 1].astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _hash_places(buffer: pa.Buffer | None, starts: _Lengths, lengths: _Lengths) -> Hashes:
    hashes = np.zeros(len(starts), dtype=np.uint64)
    octets = memoryview(buffer or b"")
    data = np.frombuffer(octets, dtype=np.uint8)
    is_long = lengths > _LONG_BYTES
    if is_long.any():
        for index in np.flatnonzero(is_long):
            value = octets[starts[index] : starts[index] + lengths[index]]
            digest = blake2b(value, digest_size=_WORD_BYTES).digest()
            hashes[index] = int.from_bytes(digest, "little")
        short = np.flatnonzero(~is_long)
        hashes[short] = _hash_blocks(data, starts[short], lengths[short])
    else:
        hashes = _hash_blocks(data, starts, lengths)
    hashes += lengths.view(np.uint64) * _MIX_FIRST
    return _mixed(hashes)


def _hash_blocks(data: npt.NDArray[np.uint8], starts: _Lengths, lengths: _Lengths) -> Hashes:
    """Return the sums of all blocks of each value, chained."""
    hashes = np.empty(len(starts), dtype=np.uint64)
    blocks = _Blocks(data)
    for first in range(0, len(starts), _VALUES_AT_ONCE):
        part = slice(first, first + _VALUES_AT_ONCE)
        hashes[part] = _hash_some(blocks, starts[part], lengths[part])
    return hashes


def _hash_some(blocks: _Blocks, starts: _Lengths, lengths: _Lengths) -> Hashes:
    hashes = np.zeros(len(starts), dtype=np.uint64)
    active: npt.NDArray[np.int64] | slice = slice(None)
    for position in range(0, int(lengths.max()), _BLOCK_BYTES):
        left = lengths - position
        if int(left.min()) <= 0:
            active = np.flatnonzero(left > 0)
        summed = _sum_words(blocks.at(starts[active] + position), left[active])
        if position:
            chained = hashes[active] * _MIX_SECOND
            chained ^= chained >> np.uint64(32)
            summed += chained
        hashes[active] = summed
    return hashes


class _Blocks:
    """The blocks of some octets at any position, as if zeros came behind the end."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self._first_late = max(len(data) - _BLOCK_BYTES + 1, 0)
        self._whole = _overlapping(data)
        late = np.zeros(len(data) - self._first_late + _BLOCK_BYTES, dtype=np.uint8)
        late[: len(data) - self._first_late] = data[self._first_late :]
        self._late = _overlapping(late)

    def at(self, positions: npt.NDArray[np.int64]) -> Hashes:
        """Return the words of the blocks at these positions, which lie within the octets.

        As an array of one row for each block.
        """
        is_late = positions >= self._first_late
        if not is_late.any():
            found = self._whole[positions]
        elif is_late.all():
            found = self._late[positions - self._first_late]
        else:
            found = self._whole[np.where(is_late, 0, positions)]
            found[is_late] = self._late[positions[is_late] - self._first_late]
        return found.view("<u8").reshape(len(positions), _BLOCK_WORDS)


def _overlapping(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Return a view of the blocks that begin at each octet."""
    count = max(len(data) - _BLOCK_BYTES + 1, 0)
    return np.ndarray((count,), dtype=f"V{_BLOCK_BYTES}", buffer=data, strides=(1,))


def _constants(count: int) -> Hashes:
    """Return odd numbers that look like random ones."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * _STEP
    return _mixed(steps) | np.uint64(1)


def _sum_words(words: Hashes, left: _Lengths) -> Hashes:
    """Return the sum of the words of each block, of which `left` octets count; changes them."""
    count = min(-(-int(left.max()) // _WORD_BYTES), _BLOCK_WORDS)
    words = words[:, :count]
    for index in range(int(left.min()) // _WORD_BYTES, count):
        bits = np.maximum((left - index * _WORD_BYTES) * 8, 0).view(np.uint64)
        words[:, index] &= ~np.left_shift(_ALL, bits)
    mixed = words >> np.uint64(29)
    mixed ^= words
    sums: Hashes = np.einsum("ij,j->i", mixed, _PLACE_CONSTANTS[:count])
    return sums


def _hash_headers(headers: pa.Array) -> Hashes:
    """Return a hash of each list of headers, in their order."""
    count = len(headers)
    if headers.null_count == count:
        return np.full(count, _NULL)
    offsets = np.frombuffer(headers.buffers()[1], dtype=np.int32)
    bounds = offsets[headers.offset : headers.offset + count + 1].astype(np.int64)
    first = int(bounds[0])
    bounds -= first
    lengths = np.diff(bounds)
    hashes = lengths.view(np.uint64) * _MIX_FIRST
    if bounds[-1]:
        keys, values = (each.slice(first, bounds[-1]) for each in (headers.keys, headers.items))
        places = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
        each = hash_octets(keys) * _STEP + hash_octets(values)
        each = _mixed(each + places.view(np.uint64) * _MIX_SECOND)
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(each, dtype=np.uint64)])
        hashes += sums[bounds[1:]] - sums[bounds[:-1]]
    hashes = _mixed(hashes)
    _set_nulls(hashes, headers)
    return hashes


def _hash_times(times: pa.Array) -> Hashes:
    values = np.frombuffer(times.buffers()[1], dtype=np.uint64)
    hashes = _mixed(values[times.offset : times.offset + len(times)])
    _set_nulls(hashes, times)
    return hashes


def _set_nulls(hashes: Hashes, array: pa.Array) -> None:
    if array.null_count:
        hashes[np.asarray(array.is_null())] = _NULL


def _mixed(hashes: Hashes) -> Hashes:
    """Return numbers each bit of which depends on all bits of the one that was given."""
    mixed = hashes ^ (hashes >> np.uint64(30))
    mixed *= _MIX_FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


_PLACE_CONSTANTS: Final = _constants(_BLOCK_WORDS)
