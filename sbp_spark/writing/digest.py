"""A digest of rows that does not depend on their order, nor on how they were divided.

Each row gets a hash of 64 bits from its key, value, headers, timestamp and stream; the digest is
their sum modulo 2^64. So the rows of a micro-batch have the same digest when they are computed
again in other partitions. It tells another content from the same one; it is no protection from
someone who looks for collisions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_spark.writing.hashing import (
    NULL,
    STEP,
    Hashes,
    hash_lists,
    hash_octets,
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
