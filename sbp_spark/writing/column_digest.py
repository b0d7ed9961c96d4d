"""A digest of typed rows that depends neither on their order, nor on how their schema grows.

As that of plain rows it is a sum of hashes, one for each row, joined by `join_digests`. A row's
hash is made of a sum, too: of hashes of its values, each with the name of its column. A null adds
nothing to it. So neither the order of columns counts, nor whether a column is null or not there;
and since numbers are hashed as the widest type of their kind, nor whether a type was widened since.
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
    STEP,
    WORD_BYTES,
    Hashes,
    hash_lists,
    hash_octets,
    mix,
    mixed,
    set_nulls,
)

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
