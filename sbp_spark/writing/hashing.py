"""Hashes of 64 bits of whole columns at once, for digests.

Each word of a value is mixed and multiplied by a constant of its place; the hash is made of their
sum and the length. Bytes behind the end count as 0, so words of 0 add nothing. As a value's hash
is a sum, it does not matter how many of its words are gathered at once, with those of all other
values; that is chosen by how long the values are. It tells what changed by accident, no more.
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
LONG_BYTES: Final = 16_384
"""Longer bytes are hashed one by one, by a function that needs no constant for each word."""

_PART_BYTES: Final = 245_760
"""So many bytes are gathered at once: with what is made of them they stay in the processor's
cache."""

STEP: Final = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_SECOND: Final = np.uint64(0x94D049BB133111EB)
NULL: Final = np.uint64(0xD6E8FEB86659FD93)
"""The hash of null, whatever the column is."""


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
    octets = memoryview(buffer or b"")
    is_long = lengths > LONG_BYTES
    if is_long.any():
        hashes = np.empty(len(starts), dtype=np.uint64)
        for index in np.flatnonzero(is_long):
            value = octets[starts[index] : starts[index] + lengths[index]]
            digest = blake2b(value, digest_size=WORD_BYTES).digest()
            hashes[index] = int.from_bytes(digest, "little")
        short = np.flatnonzero(~is_long)
        hashes[short] = _sum_values(octets, starts[short], lengths[short])
    else:
        hashes = _sum_values(octets, starts, lengths)
    hashes += lengths.view(np.uint64) * MIX_FIRST
    return mixed(hashes)


def _sum_values(octets: memoryview, starts: _Lengths, lengths: _Lengths) -> Hashes:
    """Return the sums of all words of each value, which are in their order and not long."""
    sums = np.empty(len(starts), dtype=np.uint64)
    ends = starts + lengths
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        stop = max(int(np.searchsorted(ends, begin + _PART_BYTES, side="right")), first + 1)
        part = slice(first, stop)
        found = octets[begin : ends[stop - 1] + LONG_BYTES]
        missing_bytes = int(ends[stop - 1]) - begin + LONG_BYTES - len(found)
        padded = found if missing_bytes == 0 else b"".join((found, bytes(missing_bytes)))
        sums[part] = _sum_part(padded, starts[part] - begin, lengths[part])
        first = stop
    return sums


def _sum_part(octets: bytes | memoryview, starts: _Lengths, lengths: _Lengths) -> Hashes:
    """Return the sums of values in these bytes, behind each of which are LONG_BYTES more."""
    sums = np.zeros(len(starts), dtype=np.uint64)
    unfinished: slice | npt.NDArray[np.int64] = slice(None)
    left = lengths
    longest = int(lengths.max())
    place = 0
    while True:
        count = _words_at_once(left, longest - place * WORD_BYTES)
        at_each_octet = np.ndarray(
            (len(octets) - LONG_BYTES + 1,),
            dtype=f"V{count * WORD_BYTES}",
            buffer=octets,
            strides=(1,),
        )
        gathered = at_each_octet[starts[unfinished] + place * WORD_BYTES]
        words = gathered.view("<u8").reshape(len(gathered), count)
        _clear_behind(words, left)
        sums[unfinished] += _sum_words(words, place)
        place += count
        if longest <= place * WORD_BYTES:
            return sums
        unfinished = np.flatnonzero(lengths > place * WORD_BYTES)
        left = lengths[unfinished] - place * WORD_BYTES


def _words_at_once(left: _Lengths, longest: int) -> int:
    """Return how many words to gather of values that have so many bytes left, at most `longest`.

    All, unless most of what is gathered would then lie behind their ends.
    """
    mean = int(left.sum()) // len(left)
    return max(-(-(longest if longest <= 2 * mean else mean) // WORD_BYTES), 1)


def _clear_behind(words: Hashes, left: _Lengths) -> None:
    """Make 0 of what is gathered of each value, in a row of words, behind its end."""
    count = words.shape[1]
    shortest = int(left.min())
    if shortest >= count * WORD_BYTES:
        return
    last = np.minimum(left // WORD_BYTES, count - 1)
    whole = shortest // WORD_BYTES
    if whole < count - 1:
        places = np.arange(whole, count, dtype=np.int16)
        np.copyto(words[:, whole:], 0, where=places > last.astype(np.int16)[:, np.newaxis])
    kept = _WORD_MASKS[np.minimum(left - last * WORD_BYTES, WORD_BYTES)]
    last += np.arange(0, words.size, count)
    words.reshape(-1)[last] &= kept


def _sum_words(words: Hashes, place: int) -> Hashes:
    """Return the sum of each row of words, the first of which is at this place of its value.

    Changes them.
    """
    words ^= words >> np.uint64(29)
    sums: Hashes = np.einsum("ij,j->i", words, _PLACE_CONSTANTS[place : place + words.shape[1]])
    return sums


def _constants(count: int) -> Hashes:
    """Return odd numbers that look like random ones."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * STEP
    return mixed(steps) | np.uint64(1)


_PLACE_CONSTANTS: Final = _constants(LONG_BYTES // WORD_BYTES)
_WORD_MASKS: Final = ~np.left_shift(
    np.uint64(2**64 - 1), np.arange(WORD_BYTES + 1, dtype=np.uint64) * 8
)
"""The bits that count of a word of which so many bytes do."""
