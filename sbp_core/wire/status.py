"""Status tables <-> exceptions (SPEC "Shared tables").

Servers call `status_for` with the error of a request; clients call `check_status` or `maybe_error`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from sbp_core.errors import (
    ConfigurationError,
    FrameError,
    HeaderError,
    LogCorruptionError,
    LogError,
    RecordBatchError,
    SbpError,
    SchemaError,
    StatusCode,
    StatusError,
    error_for_code,
)
from sbp_core.wire.headers import PlacementDriverCluster, Status, decode_header

_FAULTS_OF_REQUESTS: Final = (
    FrameError,
    HeaderError,
    RecordBatchError,
    SchemaError,
    ConfigurationError,
)

SUCCESS: Final = Status(code=StatusCode.NONE)


def is_success(status: Status | None) -> bool:
    """Whether a status means success; a missing status does."""
    return status is None or status.code == StatusCode.NONE


def check_status(status: Status | None) -> None:
    """Raise the StatusError of an error status; return on success."""
    error = maybe_error(status)
    if error is not None:
        raise error


def maybe_error(status: Status | None) -> StatusError | None:
    """Return the exception of an error status, None on success."""
    if status is None or is_success(status):
        return None
    message = status.message or "the server gave no message"
    return error_for_code(status.code, message, status.detail)


def status_for(error: SbpError) -> Status:
    """Return the status that reports `error` to a peer."""
    if isinstance(error, StatusError):
        return Status(code=error.code, message=error.message, detail=error.detail)
    if isinstance(error, _FAULTS_OF_REQUESTS):
        return Status(code=StatusCode.INVALID_REQUEST, message=str(error))
    if isinstance(error, LogCorruptionError):
        return Status(code=StatusCode.RS_DATA_CORRUPTED, message=str(error))
    if isinstance(error, LogError):
        return Status(code=StatusCode.RS_INTERNAL, message=str(error))
    return Status(code=StatusCode.UNKNOWN, message=str(error))


def with_message(error: SbpError, before: str, after: str = "") -> SbpError:
    """Return a copy of `error` whose message has text around it."""
    if isinstance(error, StatusError):
        text = f"{before}{error.message}{after}"
        status_error = type(error)(error.code, text, error.detail)
        status_error.throttle_time_ms = error.throttle_time_ms
        fresh: SbpError = status_error
    else:
        fresh = type(error)(f"{before}{error}{after}")
    fresh.outcome = error.outcome
    fresh.__cause__ = error
    return fresh


def with_duration(header: Any, seconds: float) -> object:
    """Return the header of an answer whose status says for how long its call was served."""
    status = replace(header.status or Status(), handler_duration_us=round(1e6 * seconds))
    return replace(header, status=status)


def maybe_cluster(detail: bytes) -> PlacementDriverCluster | None:
    """Return the cluster in the `detail` of PD_NOT_LEADER; None if it has no such table.

    SPEC "Shared tables".
    """
    try:
        return decode_header(PlacementDriverCluster, detail)
    except HeaderError:
        return None


def shown(text: str) -> str:
    """Return a peer's text for a message: on one line, quoted, and never long."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
