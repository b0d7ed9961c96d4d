"""Frames: the layout, the encoder and the incremental decoder (SPEC "Frames").

Big-endian:

    offset  size  field
    0       4     length
    4       1     magic code, 23
    5       2     operation code
    7       1     flags
    8       4     call id (the specification's stream identifier)
    12      1     header format, 1 = FlatBuffers
    13      3     header length
    16      H     extended header
    16+H    P     payload
    16+H+P  4     CRC-32 of the payload, 0 when there is none

so `length` = 16 + H + P, and a frame takes length + 4 bytes in all. Extension: in a frame with the
flag HEADER_CHECKSUM, on a connection that agreed on it, the CRC-32 is of all that stands before it.

Another extension is the payload of a frame with the flag COMPRESSED: its uncompressed length (u32),
then zstd, which notices a false length. The checksum is of the compressed bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from sbp_core import limits
from sbp_core.errors import FrameError
from sbp_core.wire.checksum import Buffer, crc32, crc32_joined
from sbp_core.wire.opcodes import KNOWN_OPCODES, Flag

MAGIC: Final = 23
HEADER_FORMAT_FLATBUFFERS: Final = 1

_RESPONSE, _END, _SYSTEM_ERROR, _COMPRESSED, _HEADER_CHECKSUM = (
    flag.value
    for flag in (Flag.RESPONSE, Flag.END, Flag.SYSTEM_ERROR, Flag.COMPRESSED, Flag.HEADER_CHECKSUM)
)
"""As plain numbers: arithmetic with members of a Flag is slow."""

_PREFIX: Final = struct.Struct(">IBHBII")
_CHECKSUM: Final = struct.Struct(">I")
_LENGTH_OFFSET: Final = 4
_PAYLOAD_ALIGNMENT_BYTES: Final = 8
"""Record batches in payloads, and columns in record batches, are aligned to this."""

_UNCOMPRESSED_LENGTH: Final = struct.Struct(">I")
_CODEC: Final = pa.Codec("zstd")
_GAIN_MIN: Final = 8
"""A payload that compression does not shorten by an eighth is sent uncompressed."""


class Frame(Struct, frozen=True):
    """One frame. `header` and `payload` are raw bytes.

    The payload of a decoded frame belongs to the receiver, which may write to it.
    """

    opcode: int
    flags: int
    call_id: int
    header: Buffer = b""
    payload: Buffer = b""

    @property
    def is_response(self) -> bool:
        """SPEC "Flags", 0x01."""
        return bool(self.flags & _RESPONSE)

    @property
    def is_end(self) -> bool:
        """SPEC "Flags", 0x02: the last frame of a response."""
        return bool(self.flags & _END)

    @property
    def is_system_error(self) -> bool:
        """SPEC "Flags", 0x04: the header is a SystemErrorResponse."""
        return bool(self.flags & _SYSTEM_ERROR)

    @property
    def is_compressed(self) -> bool:
        """Whether the payload is compressed, where both ends agreed on it."""
        return bool(self.flags & _COMPRESSED)


def encode_frame(
    opcode: int,
    flags: int,
    call_id: int,
    header: bytes = b"",
    payload: Sequence[Buffer] = (),
    *,
    payload_crc32: int | None = None,
    covers_header: bool = False,
    bytes_max: int = limits.FRAME_BYTES_MAX,
) -> list[Buffer]:
    """Return the buffers of one frame, in order; the parts of `payload` are not copied.

    `payload_crc32` is the CRC-32 of the payload where it is known already. `covers_header` sets
    HEADER_CHECKSUM and makes the checksum one of the whole frame. Raises FrameError when the header
    is larger than allowed, or the length of the frame more than the `bytes_max` of its receiver.
    """
    payload_bytes = sum(len(part) for part in payload)
    length = limits.FRAME_BYTES_MIN + len(header) + payload_bytes
    if length > bytes_max:
        raise FrameError(
            f"a frame of {length} bytes passes the limit of {bytes_max};"
            " send fewer or smaller batches in one frame"
        )
    if len(header) > limits.HEADER_BYTES_MAX:
        raise FrameError(f"a header of {len(header)} bytes passes {limits.HEADER_BYTES_MAX}")
    if covers_header:
        flags |= _HEADER_CHECKSUM
    header_word = HEADER_FORMAT_FLATBUFFERS << 24 | len(header)
    head = _PREFIX.pack(length, MAGIC, opcode, flags, call_id, header_word) + header
    if payload_crc32 is None:
        checksum = crc32([head, *payload] if covers_header else payload)
    elif covers_header:
        checksum = crc32_joined(crc32([head]), payload_crc32, payload_bytes)
    else:
        checksum = payload_crc32
    return [head, *payload, _CHECKSUM.pack(checksum)]


class DecoderState(enum.Enum):
    """The meaning of the next bytes of the connection."""

    PREFIX = "the first 16 bytes of a frame"
    BODY = "the header, payload and checksum of a frame"
    DISCARD = "the rest of a frame that is thrown away"
    BROKEN = "unreadable"


class HeaderChecksum(enum.Enum):
    """The meaning of the flag HEADER_CHECKSUM to a decoder."""

    IGNORED = "nothing was agreed on: the flag is one of the unused ones"
    ACCEPTED = "agreed on: from the first frame that has the flag on, all must have it"
    REQUIRED = "every frame must have the flag"


class FrameDecoder:
    """Incremental decoder: bytes in, frames out, refusing at the earliest byte.

    Bytes come in either through `receive_data`, or without a copy through `get_buffer` /
    `buffer_updated` (the shape of asyncio.BufferedProtocol and socket.recv_into). Then `frames`
    yields what is complete. A frame with the wrong magic or an unknown opcode is skipped, as SPEC
    "Magic Code" and "Operation Code" demand. FrameError means that the connection cannot be read
    any further; it is raised again by every later call. `frame_count` counts the complete frames,
    `discarded_count` the skipped frames; `awaited_opcode` is the opcode of an incomplete
    frame, else 0. `header_checksum` is for the owner to set. A length of more than `bytes_max`
    is refused.
    """

    def __init__(self, bytes_max: int = limits.FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.state = DecoderState.PREFIX
        self.header_checksum = HeaderChecksum.IGNORED
        self.frame_count = 0
        self.discarded_count = 0
        self.awaited_opcode = 0
        self._bad_magic_run = 0
        self._buffer = _allocate(limits.RECEIVE_BUFFER_BYTES)
        self._start = 0
        self._end = 0
        self._frame_bytes = 0
        self._lead_bytes = 0
        self._discard_bytes = 0
        self._error: FrameError | None = None

    @property
    def seen_count(self) -> int:
        """Frames that the peer sent, including frames that were skipped or are being skipped."""
        return self.frame_count + self.discarded_count

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete; valid once `frames` is exhausted."""
        return self._end > self._start or self.state is DecoderState.DISCARD

    @property
    def is_mid_body(self) -> bool:
        """Whether a frame is known to be incomplete, so that `frames` has nothing yet."""
        return self.state is DecoderState.BODY and self._end - self._start < self._frame_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that are to come before there is anything to do; 1 where that is not known."""
        if self.state is DecoderState.BODY:
            return max(1, self._frame_bytes - (self._end - self._start))
        return max(1, self._discard_bytes)

    @property
    def large_frame_bytes(self) -> int:
        """Bytes of the frame that is being received, once its buffer has to grow for it; else 0.

        An announced length alone is no reason: as much as the buffer holds has to be there.
        """
        if self._frame_bytes <= limits.RECEIVE_BUFFER_BYTES:
            return 0
        return self._frame_bytes if self.pending_bytes >= limits.RECEIVE_BUFFER_BYTES else 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that are here and not handed out, of the frame that is being received."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go: at least one byte long."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > limits.RECEIVE_BUFFER_BYTES:  # a large header was in it
                self._buffer = _allocate(limits.RECEIVE_BUFFER_BYTES)
        if self._end == len(self._buffer):
            self._make_room()
        return self._buffer[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Accept `count` bytes that were written into the last `get_buffer`."""
        self._end += count

    def drop(self) -> None:
        """Release the received bytes: nothing more will be read."""
        self._buffer = _NO_BUFFER
        self._start = self._end = 0

    def receive_data(self, data: Buffer) -> None:
        """Copy bytes in. For tests and callers that have the bytes already."""
        rest = memoryview(data)
        while rest:
            with self.get_buffer() as target:
                count = min(len(target), len(rest))
                target[:count] = rest[:count]
            self.buffer_updated(count)
            rest = rest[count:]

    def frames(self) -> Iterator[Frame]:
        """Yield the complete frames. Raises FrameError when the bytes are no frames."""
        if self._error is not None:
            raise self._error
        try:
            while (frame := self._next_frame()) is not None:
                yield frame
        except FrameError as error:
            self.state = DecoderState.BROKEN
            self._error = error
            raise

    def _next_frame(self) -> Frame | None:
        while True:
            if self.state is DecoderState.DISCARD:
                if not self._skip_buffered():
                    return None
            elif self.state is DecoderState.PREFIX:
                if not self._read_prefix():
                    return None
            elif self._end - self._start < self._frame_bytes:
                return None
            else:
                return self._take_frame()

    def _read_prefix(self) -> bool:
        """Look at the bytes of a prefix as they come; whether the state moved on."""
        available = self._end - self._start
        if available < _LENGTH_OFFSET:
            return False
        length = int.from_bytes(self._buffer[self._start : self._start + _LENGTH_OFFSET], "big")
        if length > self._bytes_max or length < limits.FRAME_BYTES_MIN:
            raise FrameError(
                f"frame length {length} is outside {limits.FRAME_BYTES_MIN}"
                f"..{self._bytes_max}: the peer does not speak SBP, or sends too much"
            )
        if available == _LENGTH_OFFSET:
            return False
        if self._buffer[self._start + _LENGTH_OFFSET] != MAGIC:
            self._skip_foreign_frame(length)
            return True
        if available < _PREFIX.size:
            return False
        _, _, opcode, _, _, header_word = _PREFIX.unpack_from(self._buffer, self._start)
        self._bad_magic_run = 0
        if opcode not in KNOWN_OPCODES:
            self._discard(length)
            return True
        if header_word >> 24 != HEADER_FORMAT_FLATBUFFERS:
            raise FrameError(f"header format {header_word >> 24} is unknown, only 1 is defined")
        header_bytes = header_word & 0xFFFFFF
        if header_bytes > min(length - limits.FRAME_BYTES_MIN, limits.HEADER_BYTES_MAX):
            raise FrameError(f"header length {header_bytes} does not fit a frame of {length}")
        self._frame_bytes = length + _CHECKSUM.size
        self.awaited_opcode = opcode
        self._lead_bytes = -(_PREFIX.size + header_bytes) % _PAYLOAD_ALIGNMENT_BYTES
        self.state = DecoderState.BODY
        return True

    def _skip_foreign_frame(self, length: int) -> None:
        if self.header_checksum is HeaderChecksum.REQUIRED:
            raise FrameError("a frame without the magic code among those with a header checksum")
        self._bad_magic_run += 1
        if self._bad_magic_run > limits.BAD_MAGIC_FRAMES_MAX:
            raise FrameError(
                f"{self._bad_magic_run} frames in a row without the magic code {MAGIC}:"
                " the peer does not speak SBP"
            )
        self._discard(length)

    def _discard(self, length: int) -> None:
        """Begin to skip a frame of this announced length."""
        self.discarded_count += 1
        self._discard_bytes = length + _CHECKSUM.size
        self.state = DecoderState.DISCARD

    def _skip_buffered(self) -> bool:
        """Drop what is buffered of a frame that is skipped; whether it is over."""
        count = min(self._discard_bytes, self._end - self._start)
        self._start += count
        self._discard_bytes -= count
        if self._discard_bytes:
            self._start = self._end = 0
            return False
        self.state = DecoderState.PREFIX
        return True

    def _take_frame(self) -> Frame:
        _, _, opcode, flags, call_id, header_word = _PREFIX.unpack_from(self._buffer, self._start)
        header_end = self._start + _PREFIX.size + (header_word & 0xFFFFFF)
        frame_end = self._start + self._frame_bytes
        payload_end = frame_end - _CHECKSUM.size
        self.frame_count += 1
        header = bytes(self._buffer[self._start + _PREFIX.size : header_end])
        (checksum,) = _CHECKSUM.unpack_from(self._buffer, payload_end)
        covered_from = self._start if self._covers_header(flags) else header_end
        covered = self._buffer[covered_from:payload_end]
        if covered and crc32([covered]) != checksum:
            raise FrameError(
                f"call {call_id} (opcode {opcode:#06x}, {payload_end - header_end} bytes of"
                " payload) does not match its checksum"
            )
        payload = self._take_payload(header_end, payload_end, frame_end)
        self._frame_bytes = self.awaited_opcode = 0
        self.state = DecoderState.PREFIX
        return Frame(opcode, flags, call_id, header, payload)

    def _covers_header(self, flags: int) -> bool:
        """Whether the checksum of the frame at hand is of all of it."""
        if self.header_checksum is HeaderChecksum.IGNORED:
            return False
        if flags & _HEADER_CHECKSUM:
            self.header_checksum = HeaderChecksum.REQUIRED
        elif self.header_checksum is HeaderChecksum.REQUIRED:
            raise FrameError("a frame without a header checksum, which was agreed on")
        return self.header_checksum is HeaderChecksum.REQUIRED

    def _take_payload(self, start: int, end: int, frame_end: int) -> Buffer:
        """Hand the payload out: a small one copied, a large one together with its buffer."""
        if end - start < limits.RECEIVE_BUFFER_BYTES // 4:
            payload: Buffer = bytearray(self._buffer[start:end])
            self._start = frame_end
            return payload
        payload = self._buffer[start:end]
        rest = self._buffer[frame_end : self._end]
        self._buffer = _allocate(max(limits.RECEIVE_BUFFER_BYTES, len(rest) + 1))
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        return payload

    def _make_room(self) -> None:
        """Move what is buffered to the front of a buffer with more room, at last for all of it.

        A frame is placed so that its payload is aligned.
        """
        pending = self._end - self._start
        is_large = pending >= limits.RECEIVE_BUFFER_BYTES
        wanted = min(self._frame_bytes, limits.RECEIVE_GROWTH_FACTOR * pending) if is_large else 0
        start = self._lead_bytes if self._frame_bytes else 0
        end = start + pending
        fresh = _allocate(start + max(limits.RECEIVE_BUFFER_BYTES, wanted, 2 * pending))
        fresh[start:end] = self._buffer[self._start : self._end]
        self._buffer = fresh
        self._start, self._end = start, end


_NO_BUFFER: Final = memoryview(bytearray())


def _allocate(size: int) -> memoryview:
    """Return `size` bytes that are not touched: memory is used as it is written to."""
    return np.empty(size, np.uint8).data


def maybe_compress(
    payload: Sequence[Buffer], bytes_max: int = limits.FRAME_BYTES_MAX
) -> bytes | None:
    """Return the compressed form of the concatenation of `payload`, None when it gains little.

    A payload of more than `bytes_max`, which its receiver refuses, is not compressed.
    """
    length = sum(len(part) for part in payload)
    if not limits.COMPRESSION_BYTES_MIN <= length <= bytes_max:
        return None
    whole = payload[0] if len(payload) == 1 else b"".join(payload)
    compressed: bytes = _CODEC.compress(whole, asbytes=True)
    is_worth_it = len(compressed) + _UNCOMPRESSED_LENGTH.size <= length - length // _GAIN_MIN
    is_allowed = length <= limits.COMPRESSION_RATIO_MAX * len(compressed)
    return _UNCOMPRESSED_LENGTH.pack(length) + compressed if is_worth_it and is_allowed else None


def decompress(payload: Buffer, bytes_max: int = limits.FRAME_BYTES_MAX) -> memoryview:
    """Return the payload that `maybe_compress` made shorter; it may be written to.

    Raises FrameError when it is damaged, or announces more than a frame of `bytes_max` or
    COMPRESSION_RATIO_MAX allows; nothing is allocated for it then.
    """
    if len(payload) < _UNCOMPRESSED_LENGTH.size:
        raise FrameError(f"a compressed payload of {len(payload)} bytes is cut off")
    (length,) = _UNCOMPRESSED_LENGTH.unpack_from(payload)
    compressed = memoryview(payload)[_UNCOMPRESSED_LENGTH.size :]
    if length > min(bytes_max, limits.COMPRESSION_RATIO_MAX * len(compressed)):
        raise FrameError(
            f"{len(compressed)} compressed bytes announce {length}, more than a frame or"
            f" {limits.COMPRESSION_RATIO_MAX} times as much"
        )
    try:
        whole = _CODEC.decompress(pa.py_buffer(compressed), decompressed_size=length)
    except (OSError, ValueError) as error:
        raise FrameError(f"a compressed payload cannot be read: {error}") from error
    return memoryview(whole).cast("B")
