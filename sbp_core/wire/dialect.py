"""The dialects of servers: where one differs from the specification.

Their description is in docs/reference/protocol.md.

A server speaks one dialect to all clients. A client recognises it by the success code of the answer
to its greeting, and adapts. `elasticstream-2023-04` is that of the batched servers of April 2023.
Later ones greet alike and end at a batched header: see `check_is_batched`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from sbp_core.errors import (
    ConfigurationError,
    HeaderError,
    SbpError,
    StatusCode,
    StatusError,
    UnsupportedError,
)
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.headers import (
    RESULT_FIELDS,
    FetchResult,
    ListRangesResponse,
    ListRangesResult,
    Status,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import EXTENSIONS, Opcode
from sbp_core.wire.status import SUCCESS, is_success, status_for


class Dialect(enum.StrEnum):
    """The dialect of a server, by its name in settings."""

    SPECIFICATION = "specification"
    ELASTICSTREAM_2023_04 = "elasticstream-2023-04"


class ServerRole(enum.StrEnum):
    """The two kinds of servers."""

    PLACEMENT_DRIVER = "placement driver"
    RANGE_SERVER = "range server"


def parse_dialect(text: str) -> Dialect:
    """Return the dialect of that name. Raises ConfigurationError when there is none."""
    try:
        return Dialect(text)
    except ValueError:
        raise ConfigurationError(f"dialect {text!r} is none of {', '.join(Dialect)}") from None


# A client's side.


def dialect_of(status: Status | None) -> Dialect:
    """Return the dialect in which an answer says success."""
    is_1200 = status is not None and status.code == StatusCode.OK
    return Dialect.ELASTICSTREAM_2023_04 if is_1200 else Dialect.SPECIFICATION


def opcode_of(operation: Opcode, dialect: Dialect) -> Opcode:
    """Return the opcode by which servers of a dialect know an operation.

    The batched servers described ranges with 0x2004, which is CREATE_RANGE to a placement driver.
    Raises UnsupportedError for an extension: they do not know it and would leave it unanswered.
    """
    if dialect is Dialect.SPECIFICATION:
        return operation
    if operation in EXTENSIONS:
        raise UnsupportedError(
            StatusCode.UNSUPPORTED_OPERATION,
            f"the server speaks {dialect}, which has no {operation.name}; nothing was sent",
        )
    return Opcode.CREATE_RANGE if operation is Opcode.DESCRIBE_RANGE else operation


_AT_ONCE: Final = frozenset(
    {Opcode.PING, Opcode.APPEND, Opcode.FETCH, Opcode.SEAL_RANGE, Opcode.SYNC_RANGES}
)
"""The same to servers of either dialect, or for range servers that a placement driver has named."""


def depends_on_dialect(operation: Opcode) -> bool:
    """Whether a client has to know the dialect before it can ask for an operation."""
    return operation not in _AT_ONCE


def is_for_driver(operation: Opcode) -> bool:
    """Whether batched servers know an operation, and it is placement drivers that serve it.

    Or HEARTBEAT, which all serve. ElasticStream's range servers would not answer the probe.
    """
    return operation not in _AT_ONCE | EXTENSIONS and operation is not Opcode.DESCRIBE_RANGE


def check_is_batched(header: Buffer) -> None:
    """Raise UnsupportedError if LIST_RANGES for no owner was answered in the tables of May 2023 on.

    That question is the only one that both kinds of placement drivers understand. The status is
    field 2 of the batched answer, and field 0 of the later one, as in a system error.
    """
    with contextlib.suppress(HeaderError):
        status = decode_header(ListRangesResponse, header).status
        if status is not None or decode_system_error(header).status is None:
            return
    raise UnsupportedError.of(
        "the server speaks ElasticStream's protocol of May 2023 or later, of one item per request,"
        f" which is not supported; {Dialect.ELASTICSTREAM_2023_04} and the specification are. Use"
        " the placement driver of another cluster; nothing else was sent to this one"
    )


_SECONDS_MAX: Final = 10**10
"""As seconds this is the year 2286, as milliseconds April 1970: a smaller number is seconds."""


def append_time_ms(answered: int, dialect: Dialect) -> int:
    """Return the time of an append in ms; ElasticStream's servers answer seconds, ours ms."""
    is_seconds = dialect is not Dialect.SPECIFICATION and 0 < answered < _SECONDS_MAX
    return answered * 1000 if is_seconds else answered


# A server's side.

_CODES: Final[Mapping[int, int]] = {
    StatusCode.NONE: StatusCode.OK,
    StatusCode.INVALID_REQUEST: StatusCode.BAD_REQUEST,
    StatusCode.UNSUPPORTED_VERSION: StatusCode.UNSUPPORTED_OPERATION,
    StatusCode.PD_NOT_LEADER: StatusCode.ES_PD_NOT_LEADER,
}
"""The specification's codes in the other dialect, but for UNKNOWN, which depends on the server."""

_FAILURE: Final[Mapping[ServerRole, StatusCode]] = {
    ServerRole.PLACEMENT_DRIVER: StatusCode.PD_INTERNAL,
    ServerRole.RANGE_SERVER: StatusCode.RS_INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Speech:
    """Translates between handlers, which follow the specification, and the dialect of a server."""

    role: ServerRole
    dialect: Dialect = Dialect.SPECIFICATION

    @property
    def is_foreign(self) -> bool:
        """Whether this is another dialect than the specification's.

        Its peers know one frame per answer and no features, and expect an answer to GOAWAY.
        """
        return self.dialect is not Dialect.SPECIFICATION

    def operation_of(self, opcode: int) -> Opcode:
        """Return what a request with this opcode asks for. Raises ValueError for an unknown one."""
        operation = Opcode(opcode)
        is_at_range_server = self.is_foreign and self.role is ServerRole.RANGE_SERVER
        if is_at_range_server and operation is Opcode.CREATE_RANGE:
            return Opcode.DESCRIBE_RANGE
        return operation

    def answer(self, header: Any) -> Any:
        """Return the header of an answer in the dialect."""
        if not self.is_foreign:
            return header
        changes: dict[str, Any] = {"status": self._status(header.status)}
        results = RESULT_FIELDS.get(type(header))
        if results is not None:
            changes[results] = tuple(map(self._result, getattr(header, results)))
        return replace(header, **changes)

    def error(self, error: SbpError) -> SbpError:
        """Return the error for a system error frame, with the dialect's code."""
        if not self.is_foreign:
            return error
        status = self._status(status_for(error))
        return StatusError(status.code, status.message or "", status.detail)

    def _result(self, result: Any) -> Any:
        """Peers need a status everywhere, and have their own for nothing to read or to list."""
        if not hasattr(result, "status"):
            return result
        status = result.status or SUCCESS
        if isinstance(result, FetchResult) and is_success(status) and not result.batch_count:
            status = Status(code=StatusCode.NO_NEW_RECORD)
        elif isinstance(result, ListRangesResult) and status.code == StatusCode.NOT_FOUND:
            status = SUCCESS
        return replace(result, status=self._status(status))

    def _status(self, status: Status | None) -> Status:
        status = status or SUCCESS
        code = _CODES.get(status.code, status.code)
        if code == StatusCode.UNKNOWN:
            code = _FAILURE[self.role]
        return replace(status, code=code)


def merge_answers(parts: list[Any]) -> Any:
    """Return one header with the results of all; its other fields are those of the last."""
    last = parts[-1]
    results = RESULT_FIELDS.get(type(last))
    if results is None or len(parts) == 1:
        return last
    merged = tuple(result for part in parts for result in getattr(part, results))
    return replace(last, **{results: merged})
