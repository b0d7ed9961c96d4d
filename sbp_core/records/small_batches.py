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
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from sbp_core.errors import DamagedBatchError, RecordBatchError, SchemaError
from sbp_core.records.arrow_body import decode_joined, maybe_buffer_count
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    Ints,
    Outline,
    Outlines,
    check_outline,
    maybe_outlines,
    read_outline,
)
from sbp_core.records.encodings import decode_batch, encoding_of
from sbp_core.records.encodings.rows_encoding import ROWS_SCHEMA
from sbp_core.records.envelope import Envelope
from sbp_core.records.splitting import ALIKE_MIN, SMALL_BYTES
from sbp_core.records.stream_schema import StreamSchema, check_required

_AT_ONCE: Final = 1_000
"""Batches that are measured before the first of them is decoded."""
_ROWS_MESSAGE: Final = bytes(ROWS_SCHEMA.serialize())

_OFFSET: Final = np.dtype("<i4")
_BITS: Final = 8


class Small(NamedTuple):
    """A small batch: its decoded size, and the outline of its message if that is unchecked."""

    decoded_bytes: int
    unchecked: Outline | None

    @property
    def shape(self) -> tuple[int, int] | None:
        """The bytes of nodes and of buffers in its outline; messages of a run have as many."""
        outline = self.unchecked
        return None if outline is None else (len(outline.nodes), len(outline.buffers))


@dataclass(frozen=True, slots=True)
class Run:
    """Small batches in one encoding and schema; or a single one of any kind.

    `outlines` are there if the messages are uncompressed, and unchecked.
    """

    envelopes: Sequence[Envelope]
    outlines: Outlines | None = None

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], smalls: Sequence[Small]) -> Run:
        """Return a run of batches of one shape."""
        unchecked = [each.unchecked for each in smalls if each.unchecked is not None]
        return cls(envelopes, Outlines.of(unchecked) if unchecked else None)

    def between(self, start: int, end: int) -> Run:
        """Return some of its batches."""
        outlines = self.outlines and self.outlines.between(start, end)
        return Run(self.envelopes[start:end], outlines)

    def maybe_joined(
        self, schema: pa.Schema, schema_message: bytes, wanted: Sequence[int] | None = None
    ) -> pa.RecordBatch | None:
        """Return the rows of all batches, fully validated; None for one, or if one is damaged.

        The batches have `schema`; `schema_message` encodes it as at the begin of an Arrow stream.
        If `wanted` is given, only the columns at these indexes are decoded and validated.
        """
        outlines = self.outlines
        if len(self.envelopes) == 1 or not (outlines is None or outlines.are_sound()):
            return None
        bodies = [each.body for each in self.envelopes]
        with contextlib.suppress(pa.ArrowException, OSError):
            if outlines is not None:
                gathered = maybe_join_columns(bodies, outlines, schema, wanted)
                if gathered is not None:
                    return gathered
            return decode_joined(bodies, schema_message, wanted)
        return None


def small_runs(
    envelopes: Iterable[Envelope], *, rows_enough: int, bytes_enough: int
) -> Iterator[Run]:
    """Yield all batches in their order, small ones of a kind together, any other alone.

    A run ends when it has `rows_enough` rows or decodes to `bytes_enough` bytes. Raises
    DamagedBatchError for a message that is no rows of Arrow's, behind the batches before it.
    """
    for kind, group in groupby(envelopes, _maybe_kind):
        if kind is None:
            yield from (Run([each]) for each in group)
            continue
        while batches := list(islice(group, _AT_ONCE)):
            for run, sizes in _measured(batches):
                yield from _cut(run, sizes, rows_enough, bytes_enough)


def _maybe_kind(envelope: Envelope) -> tuple[str | None, ...] | None:
    """Return what batches have in common that may be decoded together; None for a large batch."""
    body = envelope.body
    is_short = len(body) < SMALL_BYTES and len(body) % BUFFER_ALIGNMENT_BYTES == 0
    if not is_short or envelope.rows is not None or envelope.is_skipped:
        return None
    if not encoding_of(envelope).is_message:
        return None
    return (
        envelope.encoding,
        envelope.schema_fingerprint,
        envelope.projection,
        envelope.timestamp_column,
    )


def _measured(batches: Sequence[Envelope]) -> Iterator[tuple[Run, Ints]]:
    """Yield batches of a kind in runs, and how many bytes each decodes to.

    Raises DamagedBatchError, behind the batches before the damaged one.
    """
    first = _maybe_small(batches[0])
    if first is not None and first.unchecked is not None and len(batches) >= ALIKE_MIN:
        bodies = [each.body for each in batches]
        counts = np.array([each.record_count for each in batches], np.int64)
        outlines = maybe_outlines(bodies, first.unchecked, counts)
        if outlines is not None:
            yield Run(batches, outlines), outlines.buffers_bytes
            return
    measured: list[tuple[Envelope, Small | None]] = []
    damage: DamagedBatchError | None = None
    for each in batches:
        try:
            measured.append((each, _maybe_small(each)))
        except DamagedBatchError as error:
            damage = error
            break
    for common, group in groupby(measured, _maybe_common):
        envelopes, smalls = zip(*group, strict=True)
        if common is None:
            yield from ((Run([each]), np.zeros(1, np.int64)) for each in envelopes)
        else:
            sizes = np.array([each.decoded_bytes for each in smalls], np.int64)
            yield Run.of(envelopes, smalls), sizes
    if damage is not None:
        raise damage


def _maybe_common(measured: tuple[Envelope, Small | None]) -> tuple[object] | None:
    """Return what the batches of a run have in common; None for a large batch, which is alone."""
    small = measured[1]
    return None if small is None else (small.shape,)


def _cut(run: Run, sizes: Ints, rows_enough: int, bytes_enough: int) -> Iterator[Run]:
    """Yield a run in parts that have enough rows or bytes."""
    counts = np.array([each.record_count for each in run.envelopes], np.int64)
    rows, size = np.cumsum(counts), np.cumsum(sizes)
    start = rows_before = bytes_before = 0
    while start < len(rows):
        is_enough = (
            np.searchsorted(rows, rows_before + rows_enough),
            np.searchsorted(size, bytes_before + bytes_enough),
        )
        end = min(int(min(is_enough)) + 1, len(rows))
        yield run.between(start, end)
        start, rows_before, bytes_before = end, int(rows[end - 1]), int(size[end - 1])


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
    return None if _maybe_kind(envelope) is None else _maybe_small(envelope)


def _maybe_small(envelope: Envelope) -> Small | None:
    body = envelope.body
    try:
        outline = read_outline(body, record_count=envelope.record_count)
        if outline.compression is None:
            return Small(outline.buffers_bytes, outline)
        decoded_bytes = check_outline(outline, body).decoded_bytes
    except RecordBatchError as error:
        raise envelope.damage(error) from error
    return Small(decoded_bytes, None) if decoded_bytes < SMALL_BYTES else None


class _MisfitError(Exception):
    """The columns are not to be gathered here."""


def maybe_join_columns(
    bodies: Sequence[memoryview],
    outlines: Outlines,
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
        for index, field in enumerate(schema):
            if wanted is not None and index not in wanted:
                gatherer.skip(field.type)
                continue
            columns.append(gatherer.column(field.type, outlines.row_counts))
            fields.append(field)
        gatherer.finish()
    except _MisfitError:
        return None
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    batch.validate(full=True)
    return batch


class _Pairs:
    """Pairs of i64, as many in each message; the pairs at one index are taken together."""

    def __init__(self, pairs: Ints) -> None:
        self._pairs = pairs
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether exactly all were taken or skipped."""
        return bool(self._at == self._pairs.shape[1])

    def next(self) -> tuple[Ints, Ints]:
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

    def __init__(self, bodies: Sequence[memoryview], outlines: Outlines) -> None:
        starts = outlines.buffers_starts.tolist()
        self._view = memoryview(
            b"".join([body[at:] for body, at in zip(bodies, starts, strict=True)])
        )
        self._bytes = np.frombuffer(self._view, np.uint8)
        self._nodes = _Pairs(outlines.nodes)
        self._buffers = _Pairs(outlines.buffers)
        self._starts = np.cumsum(outlines.buffers_bytes) - outlines.buffers_bytes

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

    def column(self, kind: pa.DataType, lengths: Ints) -> pa.Array:
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

    def _next_buffer(self) -> tuple[Ints, Ints]:
        """Return where the next buffer of each message begins, and its bytes."""
        starts, sizes = self._buffers.next()
        return self._starts + starts, sizes

    def _validity(self, lengths: Ints, null_counts: Ints) -> pa.Buffer | None:
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

    def _bits(self, starts: Ints, sizes: Ints, counts: Ints) -> npt.NDArray[np.bool_]:
        if np.any(_BITS * sizes < counts):
            raise _MisfitError
        at = _spread(_BITS * starts, counts)
        found = self._bytes[at >> 3] >> (at & 7).astype(np.uint8)
        bits: npt.NDArray[np.bool_] = np.not_equal(found & 1, 0)
        return bits

    def _values(self, kind: pa.DataType, lengths: Ints) -> pa.Buffer:
        starts, sizes = self._next_buffer()
        bit_counts = kind.bit_width * lengths
        if np.any(_BITS * sizes < bit_counts):
            raise _MisfitError
        return pa.py_buffer(self._join(starts, bit_counts // _BITS))

    def _offsets(self, lengths: Ints) -> tuple[pa.Buffer, Ints, Ints]:
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

    def _bytes_between(self, firsts: Ints, lasts: Ints) -> pa.Buffer:
        starts, sizes = self._next_buffer()
        if np.any(lasts > sizes):
            raise _MisfitError
        return pa.py_buffer(self._join(starts + firsts, lasts - firsts))

    def _join(self, starts: Ints, sizes: Ints) -> bytes:
        """Return the bytes at these places, one behind the other."""
        size = int(sizes[0])
        if size and np.all(sizes == size):
            return sliding_window_view(self._bytes, size)[starts].tobytes()
        is_some, view = sizes > 0, self._view
        begins, ends = starts[is_some].tolist(), (starts + sizes)[is_some].tolist()
        return b"".join([view[at:end] for at, end in zip(begins, ends, strict=True)])


def _spread(starts: Ints, counts: Ints) -> Ints:
    """Return starts[0], starts[0] + 1 ..., `counts[0]` of them, then those from starts[1] on."""
    before = np.cumsum(counts) - counts
    spread: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
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
