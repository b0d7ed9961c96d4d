"""Arrow's encapsulated record batch message, checked before Arrow reads it.

    0xFFFFFFFF | length of the metadata i32 | Message (FlatBuffers) | buffers

Numbers are little-endian. Arrow checks the metadata's structure by itself, but believes what it
says: a compressed buffer starts with the size that it will have, and Arrow allocates that much.
The tables here are the parts of Arrow's Message.fbs that are needed, with its ids.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import chain
from operator import add, le, or_
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import HeaderError, RecordBatchError
from sbp_core.wire.flat import Field, Scalar, Schema, Structs, Table

BUFFER_ALIGNMENT_BYTES: Final = 8

_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = struct.Struct("<Ii")
_PAIR: Final = struct.Struct("<qq")
PREFIX_BYTES: Final = _PREFIX.size
_I64_BYTES: Final = 8
_UNALIGNED: Final = BUFFER_ALIGNMENT_BYTES - 1
_UNCOMPRESSED_BYTES: Final = struct.Struct("<q")
_STORED_RAW: Final = -1
VERSION_5: Final = 4
_HEADER_RECORD_BATCH: Final = 3
_CODECS: Final = (0, 1)  # LZ4_FRAME, ZSTD
_METHOD_BUFFER: Final = 0


class BodyCompression(Struct, frozen=True, gc=False):
    """How the buffers are compressed."""

    codec: int = 0
    method: int = 0


class RecordBatchHeader(Struct, frozen=True, gc=False):
    """Table RecordBatch: nodes are (length, null count), buffers (offset, length)."""

    length: int = 0
    nodes: tuple[tuple[int, int], ...] = ()
    buffers: tuple[tuple[int, int], ...] = ()
    compression: BodyCompression | None = None


class MessageKind(Struct, frozen=True, gc=False):
    """Table Message, up to the tag of its header's type."""

    version: int = 0
    header_type: int = 0


class Message(Struct, frozen=True, gc=False):
    """Table Message whose header is a RecordBatch."""

    version: int = 0
    header_type: int = 0
    header: RecordBatchHeader | None = None
    body_length: int = 0


KIND_LAYOUT: Final = (
    Field("version", 0, Scalar("h"), 0),
    Field("header_type", 1, Scalar("B"), 0),
)

_TABLES: Final[Mapping[type[Struct], tuple[Field, ...]]] = {
    BodyCompression: (
        Field("codec", 0, Scalar("b"), 0),
        Field("method", 1, Scalar("b"), 0),
    ),
    RecordBatchHeader: (
        Field("length", 0, Scalar("q"), 0),
        Field("nodes", 1, Structs("qq")),
        Field("buffers", 2, Structs("qq")),
        Field("compression", 3, Table("BodyCompression")),
    ),
    MessageKind: KIND_LAYOUT,
    Message: (
        *KIND_LAYOUT,
        Field("header", 2, Table("RecordBatchHeader")),
        Field("body_length", 3, Scalar("q"), 0),
    ),
}

MESSAGE_SCHEMA: Final = Schema(_TABLES, bytes_max=limits.ARROW_METADATA_BYTES_MAX)
_UNVERIFIED_SCHEMA: Final = Schema(_TABLES, bytes_max=limits.ARROW_METADATA_BYTES_MAX)
"""Remembers the layouts that Arrow did not check apart from the layouts that it checked."""

_VARYING: Final = ("header.length", "header.nodes", "header.buffers", "body_length")
"""The contents in which messages of one schema differ."""


Ints = npt.NDArray[np.int64]


class Outline(NamedTuple):
    """The columns as a message declares them, unchecked; `nodes`, `buffers` are pairs of i64."""

    row_count: int
    nodes: bytes
    buffers: bytes
    compression: BodyCompression | None
    buffers_start: int
    buffers_bytes: int


@dataclass(frozen=True, slots=True)
class MessageSize:
    """How many bytes the buffers of a message decode to, and whether they are compressed."""

    decoded_bytes: int
    is_compressed: bool


def check_record_batch_message(data: memoryview, *, record_count: int) -> MessageSize:
    """Check that `data` is one record batch message of `record_count` rows, safe to hand to Arrow.

    Nothing is decompressed. Raises RecordBatchError: another kind of message, a part outside the
    data, or decoded sizes that sum up to more than `limits.DECODED_BATCH_BYTES_MAX`.
    """
    return check_outline(read_outline(data, record_count=record_count), data)


def read_outline(
    data: memoryview,
    *,
    record_count: int | None,
    is_for_arrow: bool = True,
    message_bytes: int | None = None,
) -> Outline:
    """Return the outline of `data` if that is one record batch message of `record_count` rows.

    Without `is_for_arrow` the metadata are enough; `message_bytes` is then the size of the message.
    None for `record_count` allows any number of rows.

    It is not safe to hand to Arrow before `check_outline`. A server passes `is_for_arrow=False`: it
    stores bodies unread, so a hostile one must not even reach Arrow's check of the metadata. Raises
    RecordBatchError.
    """
    schema = MESSAGE_SCHEMA if is_for_arrow else _UNVERIFIED_SCHEMA
    buffers_start = find_buffers(data)
    encoded = bytes(data[PREFIX_BYTES:buffers_start])
    found = schema.maybe_recognise(Message, encoded)
    compression, length, nodes, buffers, body_length = found or _decode_header(schema, encoded)
    buffers_bytes = (len(data) if message_bytes is None else message_bytes) - buffers_start
    if body_length != buffers_bytes:
        raise RecordBatchError(
            f"Arrow message announces {body_length} bytes of buffers, but {buffers_bytes} follow"
            " its metadata"
        )
    if record_count is not None and length != record_count:
        raise RecordBatchError(
            f"Arrow message of {length} rows in a record batch that declares {record_count} records"
        )
    if found is None:
        if is_for_arrow:
            _check_by_arrow(data)
        schema.remember(Message, encoded, compression, _VARYING)
    return Outline(length, nodes, buffers, compression, buffers_start, body_length)


def check_outline(outline: Outline, data: memoryview) -> MessageSize:
    """Check the columns that the message `data` declares, so that it is safe to decode.

    Raises RecordBatchError.
    """
    return check_sizes(outline, decoded_sizes(outline, data))


def check_sizes(outline: Outline, sizes: Sequence[int]) -> MessageSize:
    """Do what `check_outline` does, with the known `decoded_sizes` of the buffers."""
    lengths, null_counts = split_pairs(outline.nodes)
    if null_counts and (min(null_counts) < 0 or not all(map(le, null_counts, lengths))):
        length, null_count = next(
            pair for pair in zip(lengths, null_counts, strict=True) if not 0 <= pair[1] <= pair[0]
        )
        raise RecordBatchError(
            f"Arrow message with a column of length {length} and {null_count} nulls"
        )
    _check_compression(outline.compression)
    decoded_bytes = sum(sizes)
    if decoded_bytes > limits.DECODED_BATCH_BYTES_MAX:
        raise RecordBatchError(
            f"record batch declares {decoded_bytes} bytes of decoded data, more than the"
            f" {limits.DECODED_BATCH_BYTES_MAX} allowed; write smaller batches"
        )
    return MessageSize(decoded_bytes, outline.compression is not None)


def encode_metadata(outline: Outline) -> bytes:
    """Return a message up to its buffers; `outline` says how many bytes these have, and where."""
    pairs = (zip(*split_pairs(each), strict=True) for each in (outline.nodes, outline.buffers))
    nodes, buffers = map(tuple, pairs)
    header = RecordBatchHeader(outline.row_count, nodes, buffers, outline.compression)
    message = Message(VERSION_5, _HEADER_RECORD_BATCH, header, outline.buffers_bytes)
    encoded = MESSAGE_SCHEMA.encode(message)
    encoded += bytes(-(PREFIX_BYTES + len(encoded)) % BUFFER_ALIGNMENT_BYTES)
    return _PREFIX.pack(_CONTINUATION, len(encoded)) + encoded


class Outlines:
    """Outlines of uncompressed messages that have as many columns, as arrays.

    `nodes` and `buffers` are n messages x columns or buffers x 2.
    """

    def __init__(
        self, row_counts: Ints, nodes: Ints, buffers: Ints, starts: Ints, sizes: Ints
    ) -> None:
        self.row_counts = row_counts
        self.nodes = nodes
        self.buffers = buffers
        self.buffers_starts = starts
        self.buffers_bytes = sizes

    @classmethod
    def of(cls, outlines: Sequence[Outline]) -> Outlines:
        """Return some outlines as arrays; they have as many nodes, and as many buffers."""
        count = len(outlines)
        numbers = [(each.row_count, each.buffers_start, each.buffers_bytes) for each in outlines]
        row_counts, starts, sizes = np.array(numbers, np.int64).reshape(count, 3).T
        nodes, buffers = (
            np.frombuffer(b"".join(parts), "<i8").reshape(count, -1, 2)
            for parts in ([each.nodes for each in outlines], [each.buffers for each in outlines])
        )
        return cls(row_counts, nodes, buffers, starts, sizes)

    def between(self, start: int, end: int) -> Outlines:
        """Return the outlines of some of the messages."""
        part = slice(start, end)
        return Outlines(
            self.row_counts[part],
            self.nodes[part],
            self.buffers[part],
            self.buffers_starts[part],
            self.buffers_bytes[part],
        )

    def are_sound(self) -> bool:
        """Whether all messages pass `check_outline`, if each is a small one.

        Messages whose buffers overlap are not sound: they decode to more bytes than they have.
        """
        lengths, null_counts = self.nodes[..., 0], self.nodes[..., 1]
        offsets, sizes = self.buffers[..., 0], self.buffers[..., 1]
        ends = self.buffers_bytes[:, np.newaxis]
        return bool(
            np.all((null_counts >= 0) & (null_counts <= lengths))
            and np.all((offsets >= 0) & (sizes >= 0) & (sizes <= ends) & (offsets <= ends - sizes))
            and not np.any(offsets % BUFFER_ALIGNMENT_BYTES)
            and sizes.sum() <= self.buffers_bytes.sum()
        )


def maybe_outlines(
    bodies: Sequence[memoryview], first: Outline, record_counts: Ints
) -> Outlines | None:
    """Return the outlines that `read_outline` would return of uncompressed messages.

    `first` is the outline of the first message. Return None if any other is laid out differently,
    or is not of as many records.
    """
    start, count = first.buffers_start, len(bodies)
    template = MESSAGE_SCHEMA.maybe_excerpt(Message, start - PREFIX_BYTES)
    fronts = np.frombuffer(b"".join([body[:start] for body in bodies]), np.uint8)
    if template is None or first.compression is not None or fronts.size != count * start:
        return None
    fronts = fronts.reshape(count, start)
    rows, prefixes = fronts[:, PREFIX_BYTES:], fronts[:, :PREFIX_BYTES]
    if (prefixes != prefixes[0]).any() or template.fitting_count(rows) != count:
        return None
    _, lengths, nodes, buffers, body_lengths = template.columns(rows)
    sizes = np.fromiter(map(len, bodies), np.int64, count) - start
    if not (np.array_equal(lengths, record_counts) and np.array_equal(body_lengths, sizes)):
        return None
    nodes, buffers = (each.view("<i8").reshape(count, -1, 2) for each in (nodes, buffers))
    return Outlines(lengths, nodes, buffers, np.full(count, start), sizes)


def find_buffers(
    data: memoryview, *, metadata_bytes_max: int = limits.ARROW_METADATA_BYTES_MAX
) -> int:
    """Return where the buffers of a message start; its metadata is between PREFIX_BYTES and there.

    Raises RecordBatchError.
    """
    if len(data) < _PREFIX.size:
        raise RecordBatchError(f"Arrow message cut off after {len(data)} bytes")
    continuation, metadata_bytes = _PREFIX.unpack_from(data)
    if continuation != _CONTINUATION:
        raise RecordBatchError("body is no encapsulated Arrow message: its first bytes are wrong")
    metadata_bytes_max = min(len(data) - _PREFIX.size, metadata_bytes_max)
    if not 0 < metadata_bytes <= metadata_bytes_max:
        raise RecordBatchError(
            f"Arrow message announces {metadata_bytes} bytes of metadata; expected 1 to"
            f" {metadata_bytes_max}"
        )
    buffers_start = _PREFIX.size + int(metadata_bytes)
    if buffers_start % BUFFER_ALIGNMENT_BYTES:
        raise RecordBatchError(f"Arrow message with unaligned metadata of {metadata_bytes} bytes")
    return buffers_start


def _decode_header(
    schema: Schema, encoded: bytes
) -> tuple[BodyCompression | None, int, bytes, bytes, int]:
    """Return compression, length, nodes, buffers and length of the body, as the metadata has it."""
    message = _decode_message(schema, encoded)
    header = message.header
    if header is None:
        raise RecordBatchError("Arrow message of a record batch without one: its header is missing")
    nodes, buffers = map(join_pairs, (header.nodes, header.buffers))
    return header.compression, header.length, nodes, buffers, message.body_length


def _check_by_arrow(data: memoryview) -> None:
    """Let Arrow check the metadata's structure, where it demands more than this module.

    So a message that Arrow would refuse alone is also refused when it is joined with others.
    """
    try:
        pa.ipc.read_message(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise RecordBatchError(f"Arrow message: {error}") from error


def _decode_message(schema: Schema, encoded: bytes) -> Message:
    """Return the metadata; another kind of message is named even where it reads as no Message."""
    try:
        message = schema.decode(Message, encoded)
        _check_kind(message)
    except HeaderError as error:
        with contextlib.suppress(HeaderError):
            _check_kind(schema.decode(MessageKind, encoded))
        raise RecordBatchError(f"metadata of the Arrow message: {error}") from error
    return message


def _check_kind(message: Message | MessageKind) -> None:
    if message.version != VERSION_5 or message.header_type != _HEADER_RECORD_BATCH:
        raise RecordBatchError(
            f"Arrow message of type {message.header_type}, version {message.version}; expected a"
            f" record batch ({_HEADER_RECORD_BATCH}) of version {VERSION_5}"
        )


def _check_compression(compression: BodyCompression | None) -> None:
    if compression is None:
        return
    if compression.codec not in _CODECS or compression.method != _METHOD_BUFFER:
        raise RecordBatchError(
            f"Arrow message with compression codec {compression.codec}, method"
            f" {compression.method}; this version reads lz4 (0) and zstd (1), method 0"
        )


def decoded_sizes(outline: Outline, data: memoryview) -> Sequence[int]:
    """Return the bytes that each buffer of the message `data` decodes to, as it declares them.

    Raises RecordBatchError for a buffer that lies outside of the message, or is not aligned.
    """
    offsets, lengths = split_pairs(outline.buffers)
    if not offsets:
        return ()
    start, size_bytes = outline.buffers_start, outline.buffers_bytes
    together = reduce(or_, offsets)  # negative if one is, and aligned if all are
    is_inside = together >= 0 and min(lengths) >= 0
    if not is_inside or max(map(add, offsets, lengths)) > size_bytes:
        offset, length = next(
            (offset, length)
            for offset, length in zip(offsets, lengths, strict=True)
            if offset < 0 or length < 0 or offset + length > size_bytes
        )
        raise RecordBatchError(
            f"Arrow buffer of {length} bytes at {offset} lies outside the {size_bytes}"
            " bytes of the message"
        )
    if together & _UNALIGNED:
        offset = next(each for each in offsets if each & _UNALIGNED)
        raise RecordBatchError(f"Arrow buffer at unaligned byte {offset}")
    if outline.compression is None:
        return lengths
    return [
        _declared_bytes(data[start + offset : start + offset + length]) if length else 0
        for offset, length in zip(offsets, lengths, strict=True)
    ]


def split_pairs(pairs: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the second numbers of the nodes or buffers of an `Outline`."""
    numbers = _numbers(len(pairs) // _I64_BYTES).unpack(pairs)
    return numbers[::2], numbers[1::2]


def join_pairs(pairs: Collection[tuple[int, int]]) -> bytes:
    """Return what `split_pairs` would split."""
    return _numbers(2 * len(pairs)).pack(*chain.from_iterable(pairs))


@lru_cache(64)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}q")


def _declared_bytes(buffer: memoryview) -> int:
    """Return the size that a compressed buffer says it has when it is decoded."""
    if len(buffer) < _UNCOMPRESSED_BYTES.size:
        raise RecordBatchError(f"compressed Arrow buffer of {len(buffer)} bytes is cut off")
    (declared_bytes,) = _UNCOMPRESSED_BYTES.unpack_from(buffer)
    if declared_bytes == _STORED_RAW:
        return len(buffer) - _UNCOMPRESSED_BYTES.size
    if declared_bytes < 0:
        raise RecordBatchError(f"compressed Arrow buffer declares {declared_bytes} bytes")
    return int(declared_bytes)
