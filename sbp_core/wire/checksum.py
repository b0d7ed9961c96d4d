"""Checksums: CRC-32 of frame payloads, CRC-32C of log entries."""

from __future__ import annotations

from collections.abc import Iterable

import crc32c as _crc32c
from isal import isal_zlib

Buffer = bytes | bytearray | memoryview


def crc32(parts: Iterable[Buffer]) -> int:
    """CRC-32 (zlib's, the protocol's payload checksum) of the concatenation of `parts`."""
    value = 0
    for part in parts:
        value = isal_zlib.crc32(part, value)
    return value


def crc32_joined(before: int, after: int, after_bytes: int) -> int:
    """CRC-32 of bytes with the CRC-32 `before` and of `after_bytes` bytes with `after`."""
    return isal_zlib.crc32_combine(before, after, after_bytes)


def crc32c(parts: Iterable[Buffer], value: int = 0) -> int:
    """CRC-32C (Castagnoli, the log's) of `parts`, behind bytes that have the CRC-32C `value`."""
    for part in parts:
        value = _crc32c.crc32c(part, value)
    return value
