"""Cutting columns out of a stored record batch, by what a `Projection` keeps (projection.py).

    stored    envelope | metadata of the message | buffers
    cut       envelope | metadata of the message | runs of these buffers

Envelope and metadata are written again, the runs are copied as they are. So it is known from the
first bytes of a batch which of the others are needed: a reader of files reads no others. Nothing is
decoded or decompressed, and a batch that is not as its projection expects is not cut.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sbp_core import limits
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    PREFIX_BYTES,
    Outline,
    encode_metadata,
    read_outline,
)
from sbp_core.records.encodings import ENCODINGS
from sbp_core.records.envelope import BatchMeta, encode_head, read_head
from sbp_core.wire._generated import Projection

_METADATA_BYTES: Final = struct.Struct("<4xi")
_SHARE_MAX: Final = 3 / 4
"""What is left of a batch, at most, for a cut to be worth it."""
_Pairs = npt.NDArray[np.int64]


class Cut(NamedTuple):
    """A batch with some of its columns: `head`, then the stored bytes in `runs` (start, end)."""

    head: bytes
    runs: tuple[tuple[int, int], ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch that results."""
        return len(self.head) + sum(end - start for start, end in self.runs)


def front_bytes(front: memoryview) -> int:
    """Return how many of the first bytes of a batch have to be known to cut it.

    `front` has some of them; if the result is more, there may be more to know, too. Raises
    RecordBatchError.
    """
    _, _, body_start = read_head(front, 0)
    if len(front) < body_start + PREFIX_BYTES:
        return body_start + PREFIX_BYTES
    (metadata_bytes,) = _METADATA_BYTES.unpack_from(front, body_start)
    return body_start + PREFIX_BYTES + int(metadata_bytes)


def maybe_cut(
    front: memoryview, size_bytes: int, projections: Sequence[Projection], base_offset: int
) -> Cut | None:
    """Return how to cut the batch of `size_bytes` that begins with `front`.

    The result has this base offset. None if it is not worth it, or no projection fits: the batch is
    to be read whole. Raises RecordBatchError.
    """
    if size_bytes < limits.CUT_BATCH_BYTES_MIN:
        return None
    meta, _, body_start = read_head(front, 0)
    encoding = ENCODINGS.get(meta.encoding)
    if encoding is None or not encoding.is_message:
        return None
    fingerprint = meta.schema_fingerprint if encoding.is_typed else None
    fitting = next((each for each in projections if each.schema == fingerprint), None)
    if fitting is None:
        return None
    outline = read_outline(
        front[body_start:],
        record_count=meta.record_count,
        is_for_arrow=False,
        message_bytes=size_bytes - body_start,
    )
    found = _maybe_runs(outline, fitting)
    if found is None:
        return None
    cut, runs = found
    if cut.buffers_bytes > outline.buffers_bytes * _SHARE_MAX:
        return None
    start = body_start + outline.buffers_start
    return Cut(
        _head(meta, cut, fitting, base_offset),
        tuple((start + begin, start + end) for begin, end in runs),
    )


def _maybe_runs(
    outline: Outline, projection: Projection
) -> tuple[Outline, Sequence[tuple[int, int]]] | None:
    """Return the message that is left, and which runs of the buffers it has; None if none can be.

    Buffers have to lie one behind the other: so a cut is never larger than the batch.
    """
    nodes = _maybe_picked(outline.nodes, projection.nodes)
    buffers = _maybe_picked(outline.buffers, projection.buffers)
    if nodes is None or buffers is None:
        return None
    starts, lengths = buffers.T
    if np.any((starts < 0) | (lengths < 0) | (lengths > outline.buffers_bytes)):
        return None
    ends = starts + lengths + -lengths % BUFFER_ALIGNMENT_BYTES
    gaps = starts - np.concatenate(([0], ends[:-1])) if len(starts) else starts
    is_apart = np.any(starts % BUFFER_ALIGNMENT_BYTES) or np.any(gaps < 0)
    if is_apart or (len(ends) and ends[-1] > outline.buffers_bytes):
        return None
    moved = np.stack((starts - np.cumsum(gaps), lengths), axis=1)
    firsts = np.flatnonzero(np.concatenate(([True], gaps[1:] > 0))[: len(gaps)])
    lasts = np.concatenate((firsts[1:], [len(gaps)]))[: len(firsts)] - 1
    runs = [
        (int(begin), int(end))
        for begin, end in zip(starts[firsts], ends[lasts], strict=True)
        if begin < end
    ]
    size_bytes = sum(end - begin for begin, end in runs)
    encoded = [each.astype("<i8").tobytes() for each in (nodes, moved)]
    return outline._replace(nodes=encoded[0], buffers=encoded[1], buffers_bytes=size_bytes), runs


def _maybe_picked(pairs: bytes, bits: bytes) -> _Pairs | None:
    """Return the pairs whose bits are set; None unless there are as many bits as pairs."""
    found = np.frombuffer(pairs, "<i8").reshape(-1, 2)
    if len(bits) != -(-len(found) // 8):
        return None
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(found), bitorder="little")
    return found[flags.astype(np.bool_)]


def _head(meta: BatchMeta, cut: Outline, projection: Projection, base_offset: int) -> bytes:
    metadata = encode_metadata(cut)
    body_bytes = str(len(metadata) + cut.buffers_bytes)
    named = meta._replace(body_bytes=body_bytes, projection=projection.kept)
    return encode_head(named, base_offset) + metadata
