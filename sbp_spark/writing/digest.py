"""Digests of rows that do not depend on their order, nor on how they were divided.

Each row gets a hash of 64 bits from its values and its stream; the digest is their sum modulo 2^64.
So the rows of a micro-batch have the same digest when they are computed again in other partitions.
It tells another content from the same one; it is no protection from someone who looks for
collisions.

Columns are hashed by name, and a null adds nothing: so neither their order counts, nor whether one
is null or not there. Numbers are hashed as the widest type of their kind, so a column may be
widened in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_spark.writing.hashing import (
    NULL,
    STEP,
    WORD_BYTES,
    Hashes,
    hash_lists,
    hash_octets,
    mix,
    mixed,
    set_nulls,
)

_SUM_BYTES: Final = 8
_VERSION: Final = b"\x02"
"""Of the hashes: to be changed with them. The first version was not written in front of the sum."""
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
        hash_octets(key),
        hash_octets(value),
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
        lambda part: hash_octets(headers.keys[part]) * STEP + hash_octets(headers.items[part]),
    )


def _hash_times(times: pa.Array) -> Hashes:
    if times.null_count == len(times):
        return np.full(len(times), NULL)
    values = np.frombuffer(times.buffers()[1], dtype=np.uint64)
    hashes = mixed(values[times.offset : times.offset + len(times)])
    set_nulls(hashes, times)
    return hashes


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
    octets = blake2b(name.encode(), digest_size=WORD_BYTES).digest()
    return np.uint64(int.from_bytes(octets, "little"))


def _hash_values(array: pa.Array) -> Hashes:
    """Return a number for each value, the same only for the same value; of nulls any."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return hash_octets(array)
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
    """Return what is left of each number, not of its digits: 1.5 is 1.50."""
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
