"""Digests of rows that depend neither on their order nor on how they were partitioned.

Each row gets a hash of 64 bits from its values and its stream; the digest is their sum modulo 2^64.
So the rows of a micro-batch have the same digest when they are computed again in other partitions.
The digest detects accidental differences; it does not resist deliberate collisions.

Columns are hashed by name, and a null adds nothing: so neither their order counts, nor whether a
column is null or missing. Numbers are hashed as the widest type of their kind, so a column may be
widened in between.

Whole columns are hashed at once. Each word of a value is mixed and multiplied by a constant of its
position; the hash is made of their sum and the length. Bytes behind the end count as 0, so words of
0 add nothing. As the hash of a value is a sum, the number of words that are gathered at once does
not matter; it is chosen by how long the values are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
_Lengths = npt.NDArray[np.int64]

WORD_BYTES: Final = 8
LONG_BYTES: Final = 16_384
"""Longer bytes are hashed one by one, by a function that needs no constant for each word."""

_PART_BYTES: Final = 245_760
"""Bytes that are gathered at once: with the arrays made of them they stay in the processor's
cache."""

STEP: Final = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_SECOND: Final = np.uint64(0x94D049BB133111EB)
NULL: Final = np.uint64(0xD6E8FEB86659FD93)
"""The hash of null, whatever the column is."""


def mixed(hashes: Hashes) -> Hashes:
    """Return each number mixed, so that each bit depends on all bits of the number."""
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


def hash_bytes(array: pa.Array) -> Hashes:
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
    data = memoryview(buffer or b"")
    is_long = lengths > LONG_BYTES
    if is_long.any():
        hashes = np.empty(len(starts), dtype=np.uint64)
        for index in np.flatnonzero(is_long):
            value = data[starts[index] : starts[index] + lengths[index]]
            digest = blake2b(value, digest_size=WORD_BYTES).digest()
            hashes[index] = int.from_bytes(digest, "little")
        short = np.flatnonzero(~is_long)
        hashes[short] = _sum_values(data, starts[short], lengths[short])
    else:
        hashes = _sum_values(data, starts, lengths)
    hashes += lengths.view(np.uint64) * MIX_FIRST
    return mixed(hashes)


def _sum_values(data: memoryview, starts: _Lengths, lengths: _Lengths) -> Hashes:
    """Return the sums of all words of each value, which are in their order and not long."""
    sums = np.empty(len(starts), dtype=np.uint64)
    ends = starts + lengths
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        stop = max(int(np.searchsorted(ends, begin + _PART_BYTES, side="right")), first + 1)
        part = slice(first, stop)
        found = data[begin : ends[stop - 1] + LONG_BYTES]
        missing_bytes = int(ends[stop - 1]) - begin + LONG_BYTES - len(found)
        padded = found if missing_bytes == 0 else b"".join((found, bytes(missing_bytes)))
        sums[part] = _sum_part(padded, starts[part] - begin, lengths[part])
        first = stop
    return sums


def _sum_part(data: bytes | memoryview, starts: _Lengths, lengths: _Lengths) -> Hashes:
    """Return the sums of values in `data`, which has LONG_BYTES more behind each value."""
    sums = np.zeros(len(starts), dtype=np.uint64)
    unfinished: slice | npt.NDArray[np.int64] = slice(None)
    left = lengths
    longest = int(lengths.max())
    place = 0
    while True:
        count = _words_at_once(left, longest - place * WORD_BYTES)
        at_each_byte = np.ndarray(
            (len(data) - LONG_BYTES + 1,),
            dtype=f"V{count * WORD_BYTES}",
            buffer=data,
            strides=(1,),
        )
        gathered = at_each_byte[starts[unfinished] + place * WORD_BYTES]
        words = gathered.view("<u8").reshape(len(gathered), count)
        _clear_behind(words, left)
        sums[unfinished] += _sum_words(words, place)
        place += count
        if longest <= place * WORD_BYTES:
            return sums
        unfinished = np.flatnonzero(lengths > place * WORD_BYTES)
        left = lengths[unfinished] - place * WORD_BYTES


def _words_at_once(left: _Lengths, longest: int) -> int:
    """Return how many words to gather of values with `left` bytes each, at most `longest`.

    All words, unless most of the gathered words would then lie behind the ends of values.
    """
    mean = int(left.sum()) // len(left)
    return max(-(-(longest if longest <= 2 * mean else mean) // WORD_BYTES), 1)


def _clear_behind(words: Hashes, left: _Lengths) -> None:
    """Set the gathered bytes behind the end of each value to 0."""
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
    """Return the sum of each row of words, whose first word is at `place` of its value.

    Changes the words.
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
"""By how many bytes of a word count: the bits of them."""


_SUM_BYTES: Final = 8
_VERSION: Final = b"\x02"
"""Version of the hashes, to be changed with them. Version 1 had no prefix before the sum."""
_MODULUS: Final = 2**64


def digest_of(rows: pa.RecordBatch, stream_ids: int | npt.NDArray[np.int64]) -> int:
    """Return the digest of rows of ROWS_SCHEMA that belong to these streams: one, or one for each.

    Digests of several batches are joined by `join_digests`.
    """
    if rows.num_rows == 0:
        return 0
    key, value, headers, timestamp = rows.columns
    total = np.full(rows.num_rows, stream_ids).view(np.uint64)
    for hashes in (
        hash_bytes(key),
        hash_bytes(value),
        _hash_headers(headers),
        _hash_times(timestamp),
    ):
        total *= STEP
        total += hashes
    return int(mixed(total).sum(dtype=np.uint64))


def join_digests(first: int, second: int) -> int:
    """Return the digest of the rows of both."""
    return (first + second) % _MODULUS


def encode_digest(digest: int) -> bytes:
    """Return a digest as the placement driver keeps it: the version of the hashes, then the sum."""
    return _VERSION + digest.to_bytes(_SUM_BYTES, "big")


def are_comparable(first: bytes, second: bytes) -> bool:
    """Whether the same rows have the same digest in both forms: they are of the same version."""
    return len(first) == len(second) and first[: len(_VERSION)] == second[: len(_VERSION)]


def _hash_headers(headers: pa.Array) -> Hashes:
    if headers.null_count == len(headers):
        return np.full(len(headers), NULL)
    return hash_lists(
        headers,
        lambda part: hash_bytes(headers.keys[part]) * STEP + hash_bytes(headers.items[part]),
    )


def _hash_times(times: pa.Array) -> Hashes:
    if times.null_count == len(times):
        return np.full(len(times), NULL)
    return _hash_elements(times)


_PRIMES: Final = (2**31 - 1, 2**31 - 19)
"""Modulo these, decimals of any scale are compared: then the power of ten has an inverse."""


def digest_of_columns(rows: pa.RecordBatch, stream_ids: int | npt.NDArray[np.int64]) -> int:
    """Return the digest of rows that belong to these streams: one, or one for each."""
    if rows.num_rows == 0:
        return 0
    total = _sum_fields(zip(rows.schema.names, rows.columns, strict=True), rows.num_rows)
    total *= STEP
    total += np.full(rows.num_rows, stream_ids).view(np.uint64)
    return int(mixed(total).sum(dtype=np.uint64))


def _sum_fields(fields: Iterable[tuple[str, pa.Array]], count: int) -> Hashes:
    """Return the sums over the columns, or over the fields of a struct."""
    total = np.zeros(count, dtype=np.uint64)
    spare = np.empty_like(total)
    for name, array in fields:
        hashes = _hash_values(array)
        hashes ^= _seed(name)
        mix(hashes, spare)
        if array.null_count:
            hashes[np.asarray(array.is_null())] = 0
        total += hashes
    return total


@lru_cache(maxsize=1024)
def _seed(name: str) -> np.uint64:
    seed = blake2b(name.encode(), digest_size=WORD_BYTES).digest()
    return np.uint64(int.from_bytes(seed, "little"))


def _hash_values(array: pa.Array) -> Hashes:
    """Return a number for each value, the same only for the same value; of nulls any."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return hash_bytes(array)
    if pa.types.is_floating(kind):
        return _hash_floats(array)
    if pa.types.is_decimal128(kind):
        return _hash_decimals(array)
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        fields = zip(names, array.flatten(), strict=True)
        return mixed(_sum_fields(fields, len(array)))
    if pa.types.is_map(kind):
        return hash_lists(
            array,
            lambda part: (
                _hash_elements(array.keys[part]) * STEP + _hash_elements(array.items[part])
            ),
        )
    if pa.types.is_list(kind):
        return hash_lists(array, lambda part: _hash_elements(array.values[part]))
    if pa.types.is_boolean(kind):
        return _hash_integers(array.cast(pa.int8()))
    return _hash_integers(array)


def _hash_elements(array: pa.Array) -> Hashes:
    """Return a hash of each value; in lists and maps null is one, too."""
    hashes = mixed(_hash_values(array))
    set_nulls(hashes, array)
    return hashes


def _hash_floats(array: pa.Array) -> Hashes:
    kind = np.dtype(np.float32 if array.type.bit_width == 32 else np.float64)
    values = _view(array, kind).astype(np.float64)
    values += 0.0  # makes 0 of -0
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _hash_decimals(array: pa.Array) -> Hashes:
    """Return remainders of each number, whatever its scale is: 1.5 is 1.50."""
    words = _view(array, np.dtype(f"V{2 * WORD_BYTES}")).view(np.uint64).reshape(-1, 2)
    low, high = words[:, 0], words[:, 1].view(np.int64)
    hashes = np.zeros(len(array), dtype=np.int64)
    for prime in _PRIMES:
        rest = high % prime * (2**64 % prime) + (low % np.uint64(prime)).view(np.int64)
        hashes <<= 32
        hashes |= rest % prime * pow(10, -array.type.scale, prime) % prime
    return hashes.view(np.uint64)


def _hash_integers(array: pa.Array) -> Hashes:
    kind = np.dtype(f"i{array.type.bit_width // 8}")
    return _view(array, kind).astype(np.int64).view(np.uint64)


def _view(array: pa.Array, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values of an array of fixed width, whatever they are where it is null."""
    if len(array) == 0:
        return np.zeros(0, dtype=kind)
    values = np.frombuffer(array.buffers()[1], dtype=kind)
    return values[array.offset : array.offset + len(array)]
