"""Consecutive small record batches, decoded together.

Arrow needs about 20 us for a message, however few rows it has: the time to copy ten KiB. Here the
messages of one schema are joined buffer by buffer, as Arrow's columnar format lays them out:

    any column        a bit for each row, 0 for null; may be missing where none is
    fixed width       the values
    binary, string    one offset (i32) more than rows, into the bytes that follow
    list, map         one offset more than rows, into the rows of the column within
    struct            the columns within, as long as it

Messages that cannot be joined, or have other columns, are left to Arrow, which reports the error.
Start with `decode_batches` (rows) and `maybe_columns_together` (columns of a typed stream).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.records.arrow_body import decode_joined, maybe_buffer_count
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    Outline,
    are_sound,
    check_outline,
    read_outline,
)
from sbp_core.records.encodings import decode_batch, encoding_of
from sbp_core.records.encodings.rows_encoding import ROWS_SCHEMA
from sbp_core.records.envelope import Envelope
from sbp_core.records.stream_schema import StreamSchema, check_required

_SMALL_BYTES: Final = 32 * limits.KIB
_ROWS_MESSAGE: Final = bytes(ROWS_SCHEMA.serialize())

_Ints = npt.NDArray[np.int64]

_OFFSET: Final = np.dtype("<i4")
_BITS: Final = 8


class Small(NamedTuple):
    """A small batch: its decoded size, and the outline of its message if that is unchecked."""

    decoded_bytes: int
    unchecked: Outline | None


class Run:
    """Small batches in one encoding and schema; or a single one of any kind."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.row_count = 0
        self.decoded_bytes = 0
        self._unchecked: list[Outline] = []

    def takes(self, envelope: Envelope) -> bool:
        """Whether a small batch may be added."""
        return not self.envelopes or _kind(self.envelopes[0]) == _kind(envelope)

    def add(self, envelope: Envelope, small: Small | None) -> None:
        """Add a batch."""
        self.envelopes.append(envelope)
        self.row_count += envelope.record_count
        if small is not None:
            self.decoded_bytes += small.decoded_bytes
            if small.unchecked is not None:
                self._unchecked.append(small.unchecked)

    def maybe_joined(
        self, schema: pa.Schema, schema_message: bytes, wanted: Sequence[int] | None = None
    ) -> pa.RecordBatch | None:
        """Return the rows of all batches, fully validated; None for one, or if one is damaged.

        The batches have `schema`; `schema_message` encodes it as at the begin of an Arrow stream.
        If `wanted` is given, only the columns at these indexes are decoded and validated.
        """
        if len(self.envelopes) == 1 or not are_sound(self._unchecked):
            return None
        bodies = [each.body for each in self.envelopes]
        with contextlib.suppress(pa.ArrowException, OSError):
            if len(self._unchecked) == len(bodies):
                gathered = maybe_join_columns(bodies, self._unchecked, schema, wanted)
                if gathered is not None:
                    return gathered
            return decode_joined(bodies, schema_message, wanted)
        return None


def small_runs(
    envelopes: Iterable[Envelope], *, rows_enough: int, bytes_enough: int
) -> Iterator[Run]:
    """Yield all batches in their order, small ones of a kind together, any other alone.

    A run ends when it has `rows_enough` rows or decodes to `bytes_enough` bytes. Raises
    DamagedBatchError for a message that is no rows of Arrow's, before batches that come earlier.
    """
    run = Run()
    for envelope in envelopes:
        small = maybe_small(envelope)
        if run.envelopes and (small is None or not run.takes(envelope)):
            yield run
            run = Run()
        run.add(envelope, small)
        if small is None or run.row_count >= rows_enough or run.decoded_bytes >= bytes_enough:
            yield run
            run = Run()
    if run.envelopes:
        yield run


def decode_batches(
    envelopes: Iterable[Envelope], *, rows_enough: int, bytes_enough: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all record batches in their order, and join small batches.

    Small batches are joined until they have `rows_enough` rows or decode to `bytes_enough` bytes.
    Any other is decoded alone, as by `decode_batch`. Raises RecordBatchError.
    """
    for run in small_runs(envelopes, rows_enough=rows_enough, bytes_enough=bytes_enough):
        together = maybe_rows_together(run)
        if together is None:
            yield from map(decode_batch, run.envelopes)
        else:
            yield together


def maybe_rows_together(run: Run) -> pa.RecordBatch | None:
    """Return the rows of small batches of whole rows, fully validated.

    Return None for a single batch, for other batches, and if a batch is damaged: the caller then
    decodes batch by batch.
    """
    first = run.envelopes[0]
    is_whole_rows = not encoding_of(first).is_typed and first.projection is None
    return run.maybe_joined(ROWS_SCHEMA, _ROWS_MESSAGE) if is_whole_rows else None


def maybe_columns_together(
    run: Run, schema: StreamSchema, names: Collection[str]
) -> pa.RecordBatch | None:
    """Return the columns of small batches of columns, which are all of `schema`.

    The columns are `names`, in the order of the schema; no others are looked at. Return None for a
    single batch, and if a batch is damaged: `decode_columns` then decodes batch by batch.
    """
    wanted = [index for index, name in enumerate(schema.arrow.names) if name in names]
    batch = run.maybe_joined(schema.arrow, schema.encode(), wanted or None)
    if batch is None:
        return None
    batch = batch if wanted else batch.select(wanted)
    try:
        check_required(batch)
    except SchemaError:
        return None
    return batch


def maybe_small(envelope: Envelope) -> Small | None:
    """Return the size of a batch if it may be decoded with others, None for a large batch.

    Return None as well if the encoding has no Arrow messages. Raises DamagedBatchError if the body
    should be an Arrow message and is not.
    """
    body = envelope.body
    if envelope.is_skipped or envelope.rows is not None:
        return None
    is_short = len(body) < _SMALL_BYTES and len(body) % BUFFER_ALIGNMENT_BYTES == 0
    if not is_short or not encoding_of(envelope).is_message:
        return None
    try:
        outline = read_outline(body, record_count=envelope.record_count)
        if outline.compression is None:
            return Small(outline.buffers_bytes, outline)
        decoded_bytes = check_outline(outline, body).decoded_bytes
    except RecordBatchError as error:
        raise envelope.damage(error) from error
    return Small(decoded_bytes, None) if decoded_bytes < _SMALL_BYTES else None


def _kind(envelope: Envelope) -> tuple[str | None, ...]:
    return (
        envelope.encoding,
        envelope.schema_fingerprint,
        envelope.projection,
        envelope.timestamp_column,
    )


class _MisfitError(Exception):
    """The columns are not to be gathered here."""


def maybe_join_columns(
    bodies: Sequence[memoryview],
    outlines: Sequence[Outline],
    schema: pa.Schema,
    wanted: Collection[int] | None = None,
) -> pa.RecordBatch | None:
    """Return the rows of several messages one after the other, fully validated.

    The `outlines` of all `bodies` are sound, and of uncompressed messages. If `wanted` is given,
    only the columns at these indexes are looked at. Return None if the messages need Arrow's own
    decoder. Raises ArrowException when the joined columns are no valid data.
    """
    try:
        gatherer = _Gatherer(bodies, outlines)
        columns, fields = [], []
        row_counts = np.array([each.row_count for each in outlines], np.int64)
        for index, field in enumerate(schema):
            if wanted is not None and index not in wanted:
                gatherer.skip(field.type)
                continue
            columns.append(gatherer.column(field.type, row_counts))
            fields.append(field)
        gatherer.finish()
    except _MisfitError:
        return None
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    batch.validate(full=True)
    return batch


class _Pairs:
    """Pairs of i64, as many in each message; the pairs at one index are taken together."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        if len(set(map(len, parts))) != 1:
            raise _MisfitError
        self._pairs = np.frombuffer(b"".join(parts), "<i8").reshape(len(parts), -1, 2)
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether exactly all were taken or skipped."""
        return self._at == self._pairs.shape[1]

    def next(self) -> tuple[_Ints, _Ints]:
        """Return the first and the second numbers of the next pair of each message."""
        if self._at >= self._pairs.shape[1]:
            raise _MisfitError
        pairs = self._pairs[:, self._at]
        self._at += 1
        return pairs[:, 0], pairs[:, 1]

    def skip(self, count: int) -> None:
        """Pass over some."""
        self._at += count


class _Gatherer:
    """Walks the columns of all messages at once: node by node, buffer by buffer."""

    def __init__(self, bodies: Sequence[memoryview], outlines: Sequence[Outline]) -> None:
        self._view = memoryview(
            b"".join(
                [body[each.buffers_start :] for body, each in zip(bodies, outlines, strict=True)]
            )
        )
        self._bytes = np.frombuffer(self._view, np.uint8)
        sizes = np.array([each.buffers_bytes for each in outlines], np.int64)
        self._nodes = _Pairs([each.nodes for each in outlines])
        self._buffers = _Pairs([each.buffers for each in outlines])
        self._starts = np.cumsum(sizes) - sizes

    def finish(self) -> None:
        """Raise _MisfitError when the messages have more columns than were walked."""
        if not (self._nodes.is_over and self._buffers.is_over):
            raise _MisfitError

    def skip(self, kind: pa.DataType) -> None:
        """Pass over a column."""
        self._nodes.skip(1)
        self._buffers.skip(_buffer_count(kind))
        for child in _children(kind):
            self.skip(child)

    def column(self, kind: pa.DataType, lengths: _Ints) -> pa.Array:
        """Return the next column; `lengths` are its rows in each message."""
        node_lengths, null_counts = self._nodes.next()
        row_count = int(lengths.sum())
        is_too_long = row_count > _BITS * len(self._view)  # to allocate before it is checked
        if is_too_long or not np.array_equal(node_lengths, lengths):
            raise _MisfitError
        if _buffer_count(kind) == 0:
            return pa.nulls(row_count)
        validity = self._validity(lengths, null_counts)
        buffers = [validity]
        children: list[pa.Array] = []
        if pa.types.is_boolean(kind):
            buffers.append(_packed(self._bits(*self._next_buffer(), lengths)))
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            offsets, firsts, lasts = self._offsets(lengths)
            buffers += [offsets, self._bytes_between(firsts, lasts)]
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            offsets, firsts, lasts = self._offsets(lengths)
            if firsts.any():
                raise _MisfitError
            buffers.append(offsets)
            children.append(self.column(_children(kind)[0], lasts))
        elif pa.types.is_struct(kind):
            children += [self.column(child, lengths) for child in _children(kind)]
        else:
            buffers.append(self._values(kind, lengths))
        null_count = int(null_counts.sum())
        return pa.Array.from_buffers(kind, row_count, buffers, null_count, children=children)

    def _next_buffer(self) -> tuple[_Ints, _Ints]:
        """Return where the next buffer of each message begins, and its bytes."""
        starts, sizes = self._buffers.next()
        return self._starts + starts, sizes

    def _validity(self, lengths: _Ints, null_counts: _Ints) -> pa.Buffer | None:
        starts, sizes = self._next_buffer()
        if not null_counts.any():
            return None
        has_nulls = null_counts > 0
        valid = np.ones(int(lengths.sum()), np.bool_)
        valid[np.repeat(has_nulls, lengths)] = self._bits(
            starts[has_nulls], sizes[has_nulls], lengths[has_nulls]
        )
        if valid.size - np.count_nonzero(valid) != null_counts.sum():
            raise _MisfitError
        return _packed(valid)

    def _bits(self, starts: _Ints, sizes: _Ints, counts: _Ints) -> npt.NDArray[np.bool_]:
        if np.any(_BITS * sizes < counts):
            raise _MisfitError
        at = _spread(_BITS * starts, counts)
        found = self._bytes[at >> 3] >> (at & 7).astype(np.uint8)
        bits: npt.NDArray[np.bool_] = np.not_equal(found & 1, 0)
        return bits

    def _values(self, kind: pa.DataType, lengths: _Ints) -> pa.Buffer:
        starts, sizes = self._next_buffer()
        bit_counts = kind.bit_width * lengths
        if np.any(_BITS * sizes < bit_counts):
            raise _MisfitError
        return pa.py_buffer(self._join(starts, bit_counts // _BITS))

    def _offsets(self, lengths: _Ints) -> tuple[pa.Buffer, _Ints, _Ints]:
        """Return offsets for all rows, from 0, and each message's own first and last one."""
        starts, sizes = self._next_buffer()
        is_there = (lengths > 0) | (sizes > 0)  # without rows it may be missing
        counts = np.where(is_there, lengths + 1, 0)
        if np.any(sizes < _OFFSET.itemsize * counts):
            raise _MisfitError
        found = np.frombuffer(self._join(starts, _OFFSET.itemsize * counts), _OFFSET)
        ends = np.cumsum(counts)
        firsts, lasts = np.zeros_like(lengths), np.zeros_like(lengths)
        firsts[is_there] = found[(ends - counts)[is_there]]
        lasts[is_there] = found[ends[is_there] - 1]
        widths = np.delete(np.diff(found.astype(np.int64)), ends[is_there][:-1] - 1)
        if np.any(widths < 0) or np.any(firsts < 0):
            raise _MisfitError
        joined = np.zeros(len(widths) + 1, _OFFSET)
        np.cumsum(widths, out=joined[1:])
        return pa.py_buffer(joined), firsts, lasts

    def _bytes_between(self, firsts: _Ints, lasts: _Ints) -> pa.Buffer:
        starts, sizes = self._next_buffer()
        if np.any(lasts > sizes):
            raise _MisfitError
        return pa.py_buffer(self._join(starts + firsts, lasts - firsts))

    def _join(self, starts: _Ints, sizes: _Ints) -> bytes:
        is_some, view = sizes > 0, self._view
        begins, ends = starts[is_some].tolist(), (starts + sizes)[is_some].tolist()
        return b"".join([view[at:end] for at, end in zip(begins, ends, strict=True)])


def _spread(starts: _Ints, counts: _Ints) -> _Ints:
    """Return starts[0], starts[0] + 1 ..., `counts[0]` of them, then those from starts[1] on."""
    before = np.cumsum(counts) - counts
    spread: _Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return spread


def _packed(bits: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the columns that are within one of this type."""
    return [kind.field(index).type for index in range(kind.num_fields)]


def _buffer_count(kind: pa.DataType) -> int:
    count = maybe_buffer_count(kind)
    if count is None:
        raise _MisfitError
    return count
