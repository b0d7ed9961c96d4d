"""Operation codes (SPEC "Frame Definitions") and frame flags (SPEC "Flags")."""

from __future__ import annotations

import enum


class Opcode(enum.IntEnum):
    """The specification's operations, then the extensions on codes that it leaves free."""

    PING = 0x0001
    GOAWAY = 0x0002
    HEARTBEAT = 0x0003
    ALLOCATE_ID = 0x0004
    APPEND = 0x1001
    FETCH = 0x1002
    END_TXN = 0x1003
    LIST_RANGES = 0x2001
    SEAL_RANGE = 0x2002
    SYNC_RANGES = 0x2003
    CREATE_RANGE = 0x2004
    DESCRIBE_RANGE = 0x2005
    LOOKUP_OFFSETS = 0x2006
    CREATE_STREAMS = 0x3001
    DELETE_STREAMS = 0x3002
    UPDATE_STREAMS = 0x3003
    DESCRIBE_STREAMS = 0x3004
    TRIM_STREAMS = 0x3005
    COMMIT_CURSORS = 0x3006
    DESCRIBE_CURSORS = 0x3007
    REGISTER_SCHEMAS = 0x3008
    DESCRIBE_SCHEMAS = 0x3009
    REPORT_METRICS = 0x4001
    DESCRIBE_PD_CLUSTER = 0x4002
    COMMIT_TXN = 0x7001
    DESCRIBE_TXNS = 0x7002


class Flag(enum.IntFlag):
    """Bits of a frame's flags byte; bits that are not listed are ignored.

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
