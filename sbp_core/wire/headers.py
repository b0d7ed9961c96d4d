"""The typed header of every frame: which table goes with which opcode, and the codec both ways.

SPEC "Extended Header" and "Frame Definitions". The tables themselves come from schemas/headers.fbs;
this module re-exports them, so nothing else imports generated code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from sbp_core.wire._generated import headers as _tables
from sbp_core.wire._generated.headers import *  # noqa: F403
from sbp_core.wire._generated.headers import LAYOUTS, WRITERS, SystemErrorResponse
from sbp_core.wire.flat import Schema, Table, Vector
from sbp_core.wire.opcodes import Opcode

__all__ = [
    "REQUEST_TABLES",
    "RESPONSE_TABLES",
    "RESULT_FIELDS",
    "decode_header",
    "decode_measured",
    "decode_system_error",
    "encode_header",
]
__all__ += _tables.__all__

T = TypeVar("T")

_SCHEMA: Final = Schema(LAYOUTS, WRITERS)

_TABLES: Final[Mapping[Opcode, tuple[type, type]]] = {
    Opcode.HEARTBEAT: (_tables.HeartbeatRequest, _tables.HeartbeatResponse),
    Opcode.ALLOCATE_ID: (_tables.IdAllocationRequest, _tables.IdAllocationResponse),
    Opcode.APPEND: (_tables.AppendRequest, _tables.AppendResponse),
    Opcode.FETCH: (_tables.FetchRequest, _tables.FetchResponse),
    Opcode.END_TXN: (_tables.EndTxnRequest, _tables.EndTxnResponse),
    Opcode.LIST_RANGES: (_tables.ListRangesRequest, _tables.ListRangesResponse),
    Opcode.SEAL_RANGE: (_tables.SealRangesRequest, _tables.SealRangesResponse),
    Opcode.SYNC_RANGES: (_tables.SyncRangesRequest, _tables.SyncRangesResponse),
    Opcode.CREATE_RANGE: (_tables.CreateRangeRequest, _tables.CreateRangeResponse),
    Opcode.DESCRIBE_RANGE: (_tables.DescribeRangesRequest, _tables.DescribeRangesResponse),
    Opcode.LOOKUP_OFFSETS: (_tables.LookupOffsetsRequest, _tables.LookupOffsetsResponse),
    Opcode.CREATE_STREAMS: (_tables.CreateStreamsRequest, _tables.CreateStreamsResponse),
    Opcode.DELETE_STREAMS: (_tables.DeleteStreamsRequest, _tables.DeleteStreamsResponse),
    Opcode.UPDATE_STREAMS: (_tables.UpdateStreamsRequest, _tables.UpdateStreamsResponse),
    Opcode.DESCRIBE_STREAMS: (_tables.DescribeStreamsRequest, _tables.DescribeStreamsResponse),
    Opcode.TRIM_STREAMS: (_tables.TrimStreamsRequest, _tables.TrimStreamsResponse),
    Opcode.COMMIT_CURSORS: (_tables.CommitCursorsRequest, _tables.CommitCursorsResponse),
    Opcode.DESCRIBE_CURSORS: (_tables.DescribeCursorsRequest, _tables.DescribeCursorsResponse),
    Opcode.REGISTER_SCHEMAS: (_tables.RegisterSchemasRequest, _tables.RegisterSchemasResponse),
    Opcode.DESCRIBE_SCHEMAS: (_tables.DescribeSchemasRequest, _tables.DescribeSchemasResponse),
    Opcode.REPORT_METRICS: (_tables.ReportMetricsRequest, _tables.ReportMetricsResponse),
    Opcode.DESCRIBE_PD_CLUSTER: (
        _tables.DescribePlacementDriverClusterRequest,
        _tables.DescribePlacementDriverClusterResponse,
    ),
    Opcode.COMMIT_TXN: (_tables.CommitTxnRequest, _tables.CommitTxnResponse),
    Opcode.DESCRIBE_TXNS: (_tables.DescribeTxnsRequest, _tables.DescribeTxnsResponse),
}
"""Request and response of each opcode; PING and GOAWAY carry a header that nobody interprets."""

REQUEST_TABLES: Final[Mapping[Opcode, type]] = {
    opcode: request for opcode, (request, _) in _TABLES.items()
}
RESPONSE_TABLES: Final[Mapping[Opcode, type]] = {
    opcode: response for opcode, (_, response) in _TABLES.items()
}

RESULT_FIELDS: Final[Mapping[type, str]] = {
    table: field.name
    for table in RESPONSE_TABLES.values()
    for field in LAYOUTS[table]
    if isinstance(field.kind, Vector) and isinstance(field.kind.element, Table)
}
"""The one field of a response table that has an entry for each item; not every table has one."""


def encode_header(header: object) -> bytes:
    """Return the bytes of a header table. Raises HeaderError when it is larger than allowed."""
    return _SCHEMA.encode(header)


def decode_header(table: type[T], data: bytes | bytearray | memoryview) -> T:
    """Verify and copy a header into its table. Raises HeaderError when it is not a valid one."""
    return _SCHEMA.decode(table, data)


def decode_measured(table: type[T], data: bytes | bytearray | memoryview) -> tuple[T, int]:
    """Return what `decode_header` does, and the bytes of memory that it counts for."""
    return _SCHEMA.decode_measured(table, data)


def decode_system_error(data: bytes | bytearray | memoryview) -> SystemErrorResponse:
    """Decode the header of a frame whose system error flag is set. Raises HeaderError."""
    return decode_header(SystemErrorResponse, data)
