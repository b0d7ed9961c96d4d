"""The tables of the connection and of the call, seen from either end (SPEC "GOAWAY", "Flags")."""

from __future__ import annotations

from typing import Final

from sbp_core.session.machine import REFUSED, Machine, Symbol


class ConnectionState(Symbol):
    """Life of a connection."""

    OPEN = "open"
    DRAINING = "draining"
    """GOAWAY was sent or received: open calls finish, new ones are refused."""
    CLOSED = "closed"


class ConnectionInput(Symbol):
    """What happens to a connection."""

    START_CALL = "start a call"
    RECEIVE_REQUEST = "receive a request"
    RECEIVE_RESPONSE = "receive a response"
    GOAWAY = "send or receive GOAWAY"
    CLOSE = "close, lose or break the connection"


_OPEN, _DRAINING, _CLOSED = ConnectionState

CONNECTION: Final = Machine(
    "connection",
    ConnectionState,
    ConnectionInput,
    {
        _OPEN: {
            ConnectionInput.START_CALL: _OPEN,
            ConnectionInput.RECEIVE_REQUEST: _OPEN,
            ConnectionInput.RECEIVE_RESPONSE: _OPEN,
            ConnectionInput.GOAWAY: _DRAINING,
            ConnectionInput.CLOSE: _CLOSED,
        },
        _DRAINING: {
            ConnectionInput.START_CALL: REFUSED,
            ConnectionInput.RECEIVE_REQUEST: REFUSED,
            ConnectionInput.RECEIVE_RESPONSE: _DRAINING,
            ConnectionInput.GOAWAY: _DRAINING,
            ConnectionInput.CLOSE: _CLOSED,
        },
        _CLOSED: {
            ConnectionInput.START_CALL: REFUSED,
            ConnectionInput.RECEIVE_REQUEST: REFUSED,
            ConnectionInput.RECEIVE_RESPONSE: REFUSED,
            ConnectionInput.GOAWAY: REFUSED,
            ConnectionInput.CLOSE: _CLOSED,
        },
    },
)


class CallState(Symbol):
    """Life of a call: one request frame and the frames that answer it."""

    WAITING = "waiting for the first response frame"
    STREAMING = "some response frames passed, the last one did not"
    ABANDONED = "the caller gave up; answers are dropped"
    FINISHED = "the last response frame passed"


class CallInput(Symbol):
    """What happens to a call."""

    PART = "a response frame without the end flag"
    END = "the last response frame"
    ABANDON = "the caller's deadline passed or it stopped listening"


_WAITING, _STREAMING, _ABANDONED, _FINISHED = CallState

CALL: Final = Machine(
    "call",
    CallState,
    CallInput,
    {
        _WAITING: {
            CallInput.PART: _STREAMING,
            CallInput.END: _FINISHED,
            CallInput.ABANDON: _ABANDONED,
        },
        _STREAMING: {
            CallInput.PART: _STREAMING,
            CallInput.END: _FINISHED,
            CallInput.ABANDON: _ABANDONED,
        },
        _ABANDONED: {
            CallInput.PART: _ABANDONED,
            CallInput.END: _FINISHED,
            CallInput.ABANDON: _ABANDONED,
        },
        _FINISHED: {
            CallInput.PART: REFUSED,
            CallInput.END: REFUSED,
            CallInput.ABANDON: _FINISHED,
        },
    },
)
