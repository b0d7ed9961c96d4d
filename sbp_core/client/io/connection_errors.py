"""Why a connection of a client could not be made, or ended."""

from __future__ import annotations

import os
import socket

from sbp_core import limits
from sbp_core.errors import ConnectError, ConnectionLostError, SbpError


def connect_failed(endpoint: str, failure: Exception, connect_seconds: float) -> ConnectError:
    """Return the error of a connection that could not be made, with the system's reason."""
    reason = str(failure)
    if isinstance(failure, TimeoutError):
        reason = f"no answer within {connect_seconds:g} s"
    elif isinstance(failure, socket.gaierror):
        reason = str(failure.strerror)
    elif isinstance(failure, OSError) and failure.errno is not None and failure.errno > 0:
        reason = os.strerror(failure.errno)
    return ConnectError(f"cannot connect to {endpoint}: {reason}")


def not_sent(endpoint: str, reason: SbpError) -> ConnectError:
    """Return the error of a call on a connection that ended before, for this reason."""
    if isinstance(reason, ConnectError):
        return reason
    return ConnectError(f"nothing was sent to {endpoint}: {reason}")


def lost(endpoint: str, reason: object) -> ConnectionLostError:
    """Return the error of a connection that ended while calls were open."""
    return ConnectionLostError(f"the connection to {endpoint} ended: {reason}")


def unread(unsent_bytes: int) -> str:
    """Return why a connection is ended on which the server reads nothing."""
    return (
        f"the server has read nothing for {limits.WRITE_STALL_MS} ms, and {unsent_bytes} bytes wait"
        " to be sent"
    )
