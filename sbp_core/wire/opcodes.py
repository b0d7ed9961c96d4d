"""Operation codes (SPEC "Operations"), as schemas/headers.fbs declares them, and flags."""

from __future__ import annotations

import enum

from sbp_core.wire._generated import WITH_PAYLOAD, Opcode

__all__ = ["KNOWN_OPCODES", "WITH_PAYLOAD", "Flag", "Opcode"]


class Flag(enum.IntFlag):
    """Bits of a frame's flags byte (SPEC "Flags"); bits that are not listed are ignored.

    COMPRESSED and HEADER_CHECKSUM are extensions: they mean something only on a connection whose
    two ends agreed on the feature of that name.
    """

    REQUEST = 0x00
    RESPONSE = 0x01
    END = 0x02
    SYSTEM_ERROR = 0x04
    COMPRESSED = 0x08
    HEADER_CHECKSUM = 0x10


KNOWN_OPCODES = frozenset(int(opcode) for opcode in Opcode)
