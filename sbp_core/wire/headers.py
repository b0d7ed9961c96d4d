"""The typed header of every frame: which table goes with which opcode, and the codec both ways.

SPEC "Headers" and "Operations". The tables themselves come from schemas/headers.fbs;
this module re-exports them, so nothing else imports generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from sbp_core.wire._generated import *  # noqa: F403
from sbp_core.wire._generated import (
    LAYOUTS,
    OPERATIONS,
    WITH_PAYLOAD,
    WRITERS,
    Opcode,
    SystemErrorResponse,
)
from sbp_core.wire.flat import Schema, Table, Vector

_SCHEMA: Final = Schema(LAYOUTS, WRITERS)

REQUEST_TABLES: Final[Mapping[Opcode, type]] = {
    opcode: request for opcode, (request, _) in OPERATIONS.items()
}
"""The request of each opcode; the header of PING and GOAWAY is not interpreted."""
RESPONSE_TABLES: Final[Mapping[Opcode, type]] = {
    opcode: response for opcode, (_, response) in OPERATIONS.items()
}

RESULT_FIELDS: Final[Mapping[type, str]] = {
    table: field.name
    for table in RESPONSE_TABLES.values()
    for field in LAYOUTS[table]
    if isinstance(field.kind, Vector) and isinstance(field.kind.element, Table)
}
"""The one field of a response table that has an entry for each item; not every table has one."""


ITEM_FIELDS: Final[Mapping[type, tuple[str, ...]]] = {
    table: tuple(field.name for field in LAYOUTS[table] if isinstance(field.kind, Vector))
    for opcode, table in REQUEST_TABLES.items()
    if opcode not in WITH_PAYLOAD
}
"""The fields of a request table with an entry for each item; the payload bounds other requests."""

encode_header: Final = _SCHEMA.encode
decode_header: Final = _SCHEMA.decode
decode_measured: Final = _SCHEMA.decode_measured


_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_THROTTLE_SLOTS: Final = {
    opcode: 4 + _U16.size * field.id  # behind the sizes of the vtable and of the table
    for opcode, table in RESPONSE_TABLES.items()
    for field in LAYOUTS[table]
    if field.name == "throttle_time_ms"
}


def throttle_ms_in(opcode: int, header: bytes | bytearray | memoryview) -> int:
    """Return the `throttle_time_ms` of an answer without decoding the rest; 0 if it has none.

    Nothing else is checked, so another header than a valid one of this opcode may have any.
    """
    slot = _THROTTLE_SLOTS.get(opcode)  # type: ignore[call-overload]
    if slot is None:
        return 0
    try:
        (table,) = _I32.unpack_from(header)
        vtable = table - _I32.unpack_from(header, table)[0]
        if slot >= _U16.unpack_from(header, vtable)[0]:
            return 0
        (place,) = _U16.unpack_from(header, vtable + slot)
        throttle_ms: int = _I32.unpack_from(header, table + place)[0] if place else 0
    except struct.error:
        return 0
    return max(throttle_ms, 0)


def decode_system_error(data: bytes | bytearray | memoryview) -> SystemErrorResponse:
    """Decode the header of a frame whose system error flag is set. Raises HeaderError."""
    return decode_header(SystemErrorResponse, data)
