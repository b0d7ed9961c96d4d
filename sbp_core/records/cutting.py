"""Cutting columns out of a stored record batch, by what a `Projection` keeps (projection.py).

    stored    envelope | metadata of the message | buffers
    cut       envelope | metadata of the message | runs of these buffers

Envelope and metadata are written again, the runs are copied unchanged. The first bytes of a batch
tell which other bytes are needed, so a reader of files reads no others. Nothing is decoded or
decompressed. A batch that differs from what its projection expects is not cut.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from sbp_core import filter_limits, limits
from sbp_core.errors import HeaderError, invalid
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    PREFIX_BYTES,
    Outline,
    encode_metadata,
    find_buffers,
    join_pairs,
    read_outline,
    split_pairs,
)
from sbp_core.records.encodings import ENCODINGS
from sbp_core.records.envelope import HEAD_BYTES_MIN, announced_head_bytes, encode_head, read_head
from sbp_core.wire._generated import Projection

_METADATA_BYTES: Final = struct.Struct("<4xi")
_SHARE_MAX: Final = 3 / 4
"""The part of the buffers that may be left for a cut to be worth it."""
_KEPT_LENGTH: Final = 32
"""Characters of a fingerprint: a longer name might not fit into the envelope."""
_PAIR_BYTES: Final = 16
_KNOWN_COUNT: Final = 64
_KNOWN_BYTES_MAX: Final = 16 * limits.KIB
"""Metadata and bits that are remembered with what is left of them: some MiB at most."""
FRONT_BYTES: Final = 8 * limits.KIB
"""Read of a batch first: mostly more than what is in front of its buffers."""


class Cut(NamedTuple):
    """A batch with some of its columns: `head`, then the stored bytes in `runs` (start, end)."""

    head: bytes
    runs: tuple[tuple[int, int], ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch that results."""
        return len(self.head) + sum(end - start for start, end in self.runs)


def _front_bytes(front: memoryview) -> int:
    """Return how many of the first bytes of a batch have to be known to cut it, unchecked.

    `front` has some of them; if the result is more, there may be more to know, too.
    """
    if len(front) < HEAD_BYTES_MIN:
        return HEAD_BYTES_MIN
    body_start = announced_head_bytes(front)
    if body_start < 0 or len(front) < body_start + PREFIX_BYTES:
        return body_start + PREFIX_BYTES
    (metadata_bytes,) = _METADATA_BYTES.unpack_from(front, body_start)
    return body_start + PREFIX_BYTES + int(metadata_bytes)


def known_front(
    front: memoryview, size_bytes: int, read: Callable[[int, int], memoryview]
) -> memoryview:
    """Return enough of the first bytes of a batch of `size_bytes` to cut it, `front` if it is.

    `read` returns the bytes of the batch from a start to an end. Its exceptions are raised.
    """
    while (needed_bytes := min(_front_bytes(front), size_bytes)) > len(front):
        front = read(0, needed_bytes)
    return front


def check_projections(projections: Sequence[Projection]) -> None:
    """Raise InvalidRequestError unless the projections of an item are within the limits."""
    for each in projections:
        size_bytes = len(each.nodes) + len(each.buffers)
        if size_bytes > filter_limits.PROJECTION_BYTES_MAX:
            raise invalid(
                f"a projection of a FETCH for schema {each.schema!r:.100} has {size_bytes} bytes of"
                f" bits; expected {filter_limits.PROJECTION_BYTES_MAX} at most, which is enough for"
                " the largest schema of a stream"
            )


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
    if fitting is None or len(fitting.kept or "") != _KEPT_LENGTH:
        return None
    message = front[body_start:]
    metadata = bytes(message[: find_buffers(message)])
    key_bytes = len(metadata) + len(fitting.nodes) + len(fitting.buffers)
    rest = _known_cut_message if key_bytes <= _KNOWN_BYTES_MAX else _maybe_cut_message
    found = rest(
        metadata, size_bytes - body_start, meta.record_count, fitting.nodes, fitting.buffers
    )
    if found is None:
        return None
    named = meta._replace(body_bytes=str(found.size_bytes), projection=fitting.kept)
    try:
        head = encode_head(named, base_offset)
    except HeaderError:  # there is no room for one more property
        return None
    runs = tuple([(body_start + begin, body_start + end) for begin, end in found.runs])
    return Cut(head + found.metadata, runs)


class _CutMessage(NamedTuple):
    """A message that was cut: its metadata, its buffers as runs of the stored message, its size."""

    metadata: bytes
    runs: tuple[tuple[int, int], ...]
    size_bytes: int


def _maybe_cut_message(
    metadata: bytes, message_bytes: int, record_count: int, nodes: bytes, buffers: bytes
) -> _CutMessage | None:
    """Return what a projection leaves of a message with this metadata; None if it is not cut."""
    outline = read_outline(
        memoryview(metadata),
        record_count=record_count,
        is_for_arrow=False,
        message_bytes=message_bytes,
    )
    found = _maybe_runs(outline, nodes, buffers)
    if found is None:
        return None
    cut, runs = found
    if cut.buffers_bytes > outline.buffers_bytes * _SHARE_MAX:
        return None
    start, left = outline.buffers_start, encode_metadata(cut)
    placed = tuple((start + begin, start + end) for begin, end in runs)
    return _CutMessage(left, placed, len(left) + cut.buffers_bytes)


_known_cut_message: Final = lru_cache(_KNOWN_COUNT)(_maybe_cut_message)
"""Batches with as many records have equal metadata, if their columns have a fixed width."""


def _maybe_runs(
    outline: Outline, kept_nodes: bytes, kept_buffers: bytes
) -> tuple[Outline, Sequence[tuple[int, int]]] | None:
    """Return the message that is left, and which runs of the buffers it has; None if none can be.

    Buffers have to lie one behind the other: so a cut is never larger than the batch.
    """
    nodes = _maybe_indexes(kept_nodes, len(outline.nodes) // _PAIR_BYTES)
    buffers = _maybe_indexes(kept_buffers, len(outline.buffers) // _PAIR_BYTES)
    if nodes is None or buffers is None:
        return None
    starts, lengths = split_pairs(outline.buffers)
    moved: list[tuple[int, int]] = []
    runs: list[tuple[int, int]] = []
    size_bytes = behind = 0
    for index in buffers:
        start, length = starts[index], lengths[index]
        end = start + length + -length % BUFFER_ALIGNMENT_BYTES
        if not behind <= start <= end <= outline.buffers_bytes or start % BUFFER_ALIGNMENT_BYTES:
            return None
        moved.append((size_bytes, length))
        size_bytes += end - start
        behind = end
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        elif start < end:
            runs.append((start, end))
    picked = [outline.nodes[at * _PAIR_BYTES : (at + 1) * _PAIR_BYTES] for at in nodes]
    return outline._replace(
        nodes=b"".join(picked), buffers=join_pairs(moved), buffers_bytes=size_bytes
    ), runs


def _maybe_indexes(bits: bytes, count: int) -> list[int] | None:
    """Return the indexes of the bits that are set; None unless there are bits for `count` parts."""
    if len(bits) != -(-count // 8):
        return None
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little")
    found: list[int] = np.flatnonzero(flags).tolist()
    return found
