"""The record batches of a payload, one after the other.

Reading an envelope takes Python 4 us, as long as to copy some KiB. A stream has many small batches
whose metadata are laid out alike. After a small batch, the sizes of the batches behind it are read
at the place where its own size is. Then all of their heads are compared with its head, and read, at
once. Batches that differ are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from sbp_core import limits
from sbp_core.records.batch_meta import maybe_meta_template
from sbp_core.records.envelope import HEAD_BYTES_MIN, MAGIC, OFFSET_MAX, Envelope, decode_envelope
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.flat import Bytes2D

SMALL_BYTES: Final = 32 * limits.KIB
"""The size below which batches are read together."""
ALIKE_MIN: Final = 16
"""The number of batches from which on it takes less time to read them together."""
_ALIKE_MAX: Final = 1_024
"""The number of batches that are read together at most."""

_FIXED: Final = np.dtype([("magic", "u1"), ("base_offset", ">i8"), ("meta_bytes", ">i4")])
_SAME_TEXTS: Final = ("encoding", "schema_fingerprint", "timestamp_column", "projection")


def split_envelopes(payload: Buffer) -> Iterator[Envelope]:
    """Yield the record batches that stand back to back in a payload, in their order.

    SPEC "FETCH". Raises RecordBatchError at the first batch that cannot be read.
    """
    view = memoryview(payload).cast("B")
    position = one_by_one = 0
    while position < len(view):
        envelope = decode_envelope(view, position)
        yield envelope
        start, position = position, position + envelope.length_bytes
        if one_by_one:
            one_by_one -= 1
        elif envelope.length_bytes < SMALL_BYTES:
            alike = _Alike(view, start, envelope)
            for found in alike.envelopes():
                yield found
                position += found.length_bytes
            one_by_one = alike.tried_count


class _Alike:
    """The batches behind the batch `first` at `start` that differ from it in little."""

    def __init__(self, view: memoryview, start: int, first: Envelope) -> None:
        self._view = view
        self._start = start
        self._first = first
        self._head_bytes = first.length_bytes - len(first.body)
        self.tried_count = 0
        """How many batches were looked at in vain: they are not looked at again and again."""

    def envelopes(self) -> list[Envelope]:
        """Return some batches, perhaps not all that there are."""
        template = maybe_meta_template(self._head_bytes - HEAD_BYTES_MIN)
        if template is None or not _is_plain(template.places):
            return []
        starts, ends = self._walk(template.places.body_bytes)
        self.tried_count = len(starts)
        if len(starts) <= ALIKE_MIN:
            return []
        whole = np.frombuffer(self._view, np.uint8)
        heads = sliding_window_view(whole, self._head_bytes)[starts]
        meta_rows = heads[:, HEAD_BYTES_MIN:]
        count = template.fitting_count(meta_rows)
        if not count:
            return []
        fixed = np.ascontiguousarray(heads[:count, :HEAD_BYTES_MIN]).view(_FIXED)[:, 0]
        metas = template.columns(meta_rows[:count])
        is_alike = self._is_alike(fixed, metas)
        misfits = np.flatnonzero(~is_alike)
        count = int(misfits[0]) if misfits.size else count
        self.tried_count -= count
        return self._made(starts[:count], ends[:count], fixed, metas)[1:]

    def _walk(self, place: slice) -> tuple[list[int], list[int]]:
        """Return where batches start and end, from the first on; `place` is where the size is."""
        view, head_bytes, size_bytes = self._view, self._head_bytes, len(self._view)
        text_start, text_end = HEAD_BYTES_MIN + place.start, HEAD_BYTES_MIN + place.stop
        at = self._start
        starts: list[int] = []
        ends: list[int] = []
        while at + head_bytes <= size_bytes and len(starts) < _ALIKE_MAX:
            text = bytes(view[at + text_start : at + text_end])
            if not text.isdigit():
                break
            end = at + head_bytes + int(text)
            if end > size_bytes or end - at >= SMALL_BYTES:
                break
            starts.append(at)
            ends.append(end)
            at = end
        return starts, ends

    def _is_alike(self, fixed: npt.NDArray[Any], metas: Any) -> npt.NDArray[np.bool_]:
        """Whether each batch has the texts of the first, and passes what is checked of any."""
        counts, offsets = metas.record_count.astype(np.int64), fixed["base_offset"]
        is_alike: npt.NDArray[np.bool_] = (
            (fixed["magic"] == MAGIC)
            & (fixed["meta_bytes"] == self._head_bytes - HEAD_BYTES_MIN)
            & (counts >= 1)
            & (counts <= limits.BATCH_RECORDS_MAX)
            & (offsets >= 0)
            & (offsets <= OFFSET_MAX - counts)
        )
        for name in _SAME_TEXTS:
            found: Bytes2D | None = getattr(metas, name)
            if found is not None:
                wanted = getattr(self._first, name).encode()
                is_alike &= (found == np.frombuffer(wanted, np.uint8)).all(axis=1)
        return is_alike

    def _made(
        self, starts: list[int], ends: list[int], fixed: npt.NDArray[Any], metas: Any
    ) -> list[Envelope]:
        first, view, head_bytes = self._first, self._view, self._head_bytes
        counts = metas.record_count[: len(starts)].tolist()
        return list(
            map(
                Envelope,
                _each(metas.stream_id),
                fixed["base_offset"].tolist(),
                counts,
                _each(metas.base_timestamp_ms),
                repeat(first.encoding),
                [view[at + head_bytes : end] for at, end in zip(starts, ends, strict=True)],
                [end - at for at, end in zip(starts, ends, strict=True)],
                repeat(first.schema_fingerprint),
                repeat(first.timestamp_column),
                counts,
                repeat(first.projection),
            )
        )


def _is_plain(places: Any) -> bool:
    """Whether batches name their sizes and encodings, and nothing that is checked one by one."""
    named = (places.record_count, places.encoding, places.body_bytes)
    return all(isinstance(each, slice) for each in named) and (
        places.statistics is None and places.skipped is None
    )


def _each(column: Any) -> Any:
    """Return the numbers of a column; a field that is not there is 0 in all batches."""
    return column.tolist() if isinstance(column, np.ndarray) else repeat(column)
