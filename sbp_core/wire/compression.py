"""Compressed payloads, an extension: uncompressed length (u32, big-endian), compressed octets.

The codec is zstd, which notices a false length; a frame's checksum is of the compressed octets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import FrameError
from sbp_core.wire.checksum import Octets

_LENGTH: Final = struct.Struct(">I")
_CODEC: Final = pa.Codec("zstd")
_GAIN_MIN: Final = 8
"""A payload that does not become shorter by one part in so many is sent as it is."""


def maybe_compress(payload: Sequence[Octets]) -> bytes | None:
    """Return the compressed form of the concatenation of `payload`, None when it gains little."""
    length = sum(len(part) for part in payload)
    if not limits.COMPRESSION_BYTES_MIN <= length <= limits.FRAME_BYTES_MAX:
        return None
    whole = payload[0] if len(payload) == 1 else b"".join(payload)
    compressed: bytes = _CODEC.compress(whole, asbytes=True)
    is_worth_it = len(compressed) + _LENGTH.size <= length - length // _GAIN_MIN
    is_allowed = length <= limits.COMPRESSION_RATIO_MAX * len(compressed)
    return _LENGTH.pack(length) + compressed if is_worth_it and is_allowed else None


def decompress(payload: Octets) -> memoryview:
    """Return the payload that `maybe_compress` made shorter; it may be written to.

    Raises FrameError when it is damaged, or announces more than a frame or COMPRESSION_RATIO_MAX
    allows; nothing is allocated for it then.
    """
    if len(payload) < _LENGTH.size:
        raise FrameError(f"a compressed payload of {len(payload)} octets is cut off")
    (length,) = _LENGTH.unpack_from(payload)
    compressed = memoryview(payload)[_LENGTH.size :]
    if length > min(limits.FRAME_BYTES_MAX, limits.COMPRESSION_RATIO_MAX * len(compressed)):
        raise FrameError(
            f"{len(compressed)} compressed octets announce {length}, more than a frame or"
            f" {limits.COMPRESSION_RATIO_MAX} times as much"
        )
    try:
        whole = _CODEC.decompress(pa.py_buffer(compressed), decompressed_size=length)
    except (OSError, ValueError) as error:
        raise FrameError(f"a compressed payload cannot be read: {error}") from error
    return memoryview(whole).cast("B")
