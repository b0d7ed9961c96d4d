"""Hashes of 64 bits of whole columns at once, for digests.

Octets are hashed in blocks of 64, gathered for all rows at once: each word of a block is mixed and
multiplied by a constant of its place, and the sum is chained to that of the blocks before it.
Octets behind the end count as 0, words of 0 add nothing, and the length is mixed in at the end.
Where no value has more than one word, that is all that is gathered; its hash is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
_Lengths = npt.NDArray[np.int64]

WORD_BYTES: Final = 8
_BLOCK_WORDS: Final = 8
_BLOCK_BYTES: Final = _BLOCK_WORDS * WORD_BYTES
_LONG_BYTES: Final = 2048
"""Longer octets are hashed one by one: then a call for each costs less than the blocks."""

_VALUES_AT_ONCE: Final = 4096
"""So many blocks fit into the processor's cache."""

STEP: Final = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_SECOND: Final = np.uint64(0x94D049BB133111EB)
NULL: Final = np.uint64(0xD6E8FEB86659FD93)
"""The hash of null, whatever the column is."""
_ALL: Final = np.uint64(2**64 - 1)


def mixed(hashes: Hashes) -> Hashes:
    """Return numbers each bit of which depends on all bits of the one that was given."""
    found = hashes.copy()
    mix(found, np.empty_like(found))
    return found


def mix(hashes: Hashes, spare: Hashes) -> None:
    """Do the same in place; `spare` is room for as many numbers."""
    hashes ^= np.right_shift(hashes, 30, out=spare)
    hashes *= MIX_FIRST
    hashes ^= np.right_shift(hashes, 27, out=spare)
    hashes *= MIX_SECOND
    hashes ^= np.right_shift(hashes, 31, out=spare)


def set_nulls(hashes: Hashes, array: pa.Array) -> None:
    """Put NULL where the array is null."""
    if array.null_count:
        hashes[np.asarray(array.is_null())] = NULL


def hash_lists(array: pa.Array, elements: Callable[[slice], Hashes]) -> Hashes:
    """Return a hash of each list or map, in the order of its elements; null is like no other.

    `elements` gives the hashes of those elements of all lists that are in a slice.
    """
    bounds = _bounds(array, np.int32)
    found = slice(int(bounds[0]), int(bounds[-1]))
    bounds -= found.start
    lengths = np.diff(bounds)
    hashes = lengths.view(np.uint64) * MIX_FIRST
    if bounds[-1]:
        places = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
        each = mixed(elements(found) + places.view(np.uint64) * MIX_SECOND)
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(each, dtype=np.uint64)])
        hashes += sums[bounds[1:]] - sums[bounds[:-1]]
    hashes = mixed(hashes)
    set_nulls(hashes, array)
    return hashes


def hash_octets(array: pa.Array) -> Hashes:
    """Return a hash of each value of a binary or string array; null is like no value."""
    starts, lengths = _places(array)
    hashes = _hash_places(array.buffers()[2], starts, lengths)
    set_nulls(hashes, array)
    return hashes


def _bounds(array: pa.Array, kind: type[np.int32] | type[np.int64]) -> npt.NDArray[np.int64]:
    count = len(array)
    if count == 0:
        return np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(array.buffers()[1], dtype=kind)
    return offsets[array.offset : array.offset + count + 1].astype(np.int64)


def _places(array: pa.Array) -> tuple[_Lengths, _Lengths]:
    """Return where the values of a binary or string array begin, and how long they are."""
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    bounds = _bounds(array, np.int64 if is_large else np.int32)
    return bounds[:-1], np.diff(bounds)


def _hash_places(buffer: pa.Buffer | None, starts: _Lengths, lengths: _Lengths) -> Hashes:
    hashes = np.zeros(len(starts), dtype=np.uint64)
    octets = memoryview(buffer or b"")
    data = np.frombuffer(octets, dtype=np.uint8)
    is_long = lengths > _LONG_BYTES
    if is_long.any():
        for index in np.flatnonzero(is_long):
            value = octets[starts[index] : starts[index] + lengths[index]]
            digest = blake2b(value, digest_size=WORD_BYTES).digest()
            hashes[index] = int.from_bytes(digest, "little")
        short = np.flatnonzero(~is_long)
        hashes[short] = _hash_blocks(data, starts[short], lengths[short])
    elif lengths.max(initial=0) <= WORD_BYTES:
        hashes = _hash_words(data, starts, lengths)
    else:
        hashes = _hash_blocks(data, starts, lengths)
    hashes += lengths.view(np.uint64) * MIX_FIRST
    return mixed(hashes)


def _hash_words(data: npt.NDArray[np.uint8], starts: _Lengths, lengths: _Lengths) -> Hashes:
    """Return what `_hash_blocks` does, of values of one word at most."""
    if len(starts) == 0:
        return np.zeros(0, dtype=np.uint64)
    first, stop = int(starts[0]), int(starts[-1] + lengths[-1])
    padded = np.zeros(stop - first + WORD_BYTES, dtype=np.uint8)
    padded[: stop - first] = data[first:stop]
    at_each_octet = np.ndarray((stop - first + 1,), dtype="<u8", buffer=padded, strides=(1,))
    words: Hashes = at_each_octet[starts - first]
    words &= _WORD_MASKS[lengths]
    words ^= words >> np.uint64(29)
    words *= _PLACE_CONSTANTS[0]
    return words


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
            chained = hashes[active] * MIX_SECOND
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
    steps = np.arange(1, count + 1, dtype=np.uint64) * STEP
    return mixed(steps) | np.uint64(1)


def _sum_words(words: Hashes, left: _Lengths) -> Hashes:
    """Return the sum of the words of each block, of which `left` octets count; changes them."""
    count = min(-(-int(left.max()) // WORD_BYTES), _BLOCK_WORDS)
    words = words[:, :count]
    for index in range(int(left.min()) // WORD_BYTES, count):
        bits = np.maximum((left - index * WORD_BYTES) * 8, 0).view(np.uint64)
        words[:, index] &= ~np.left_shift(_ALL, bits)
    folded = words >> np.uint64(29)
    folded ^= words
    sums: Hashes = np.einsum("ij,j->i", folded, _PLACE_CONSTANTS[:count])
    return sums


_PLACE_CONSTANTS: Final = _constants(_BLOCK_WORDS)
_WORD_MASKS: Final = ~np.left_shift(_ALL, np.arange(WORD_BYTES + 1, dtype=np.uint64) * 8)
"""The bits that count of a word with so many octets."""
