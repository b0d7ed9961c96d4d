"""State machines as total tables: the connection and the call. The events of a connection.

For every state and input a table has the next state or a refusal. Both ends of a connection obey
the same tables (SPEC "GOAWAY", "Flags"). A connection reports events to its owner.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from msgspec import Struct

from sbp_core.errors import SbpError
from sbp_core.wire.frame import Frame

S = TypeVar("S", bound=enum.Enum)
I = TypeVar("I", bound=enum.Enum)  # noqa: E741


class Symbol(enum.Enum):
    """A state or an input, hashed by identity: hashing by name is slower."""

    __hash__ = object.__hash__


REFUSED: Final = None
"""The entry of a table for an input that is not allowed."""


@dataclass(frozen=True, slots=True)
class Machine(Generic[S, I]):
    """A named table of transitions. Construction fails unless the table is total."""

    name: str
    states: type[S]
    inputs: type[I]
    table: Mapping[S, Mapping[I, S | None]]

    def __post_init__(self) -> None:
        for state in self.states:
            missing = set(self.inputs) - set(self.table.get(state, {}))
            if missing:
                raise AssertionError(f"{self.name}: {state} has no entry for {missing}")

    def maybe_next(self, state: S, received: I) -> S | None:
        """Return the state after `received`, None when it is refused in `state`."""
        return self.table[state][received]


def row(inputs: type[I], **targets: S) -> dict[I, S | None]:
    """Return the row of a table: the next state by name of the input; other inputs are refused."""
    unknown = targets.keys() - inputs.__members__.keys()
    if unknown:
        raise AssertionError(f"{inputs.__name__} has no {unknown}")
    return {each: targets.get(each.name, REFUSED) for each in inputs}


class ConnectionState(Symbol):
    """Life of a connection."""

    OPEN = "open"
    DRAINING = "draining"
    """GOAWAY was sent or received: open calls finish, new ones are refused."""
    CLOSED = "closed"


class ConnectionInput(Symbol):
    """The inputs of a connection."""

    START_CALL = "start a call"
    RECEIVE_REQUEST = "receive a request"
    SEND_GOAWAY = "send GOAWAY"
    RECEIVE_GOAWAY = "receive GOAWAY"
    CLOSE = "close, lose or break the connection"


_OPEN, _DRAINING, _CLOSED = ConnectionState

CONNECTION: Final = Machine(
    "connection",
    ConnectionState,
    ConnectionInput,
    {
        _OPEN: row(
            ConnectionInput,
            START_CALL=_OPEN,
            RECEIVE_REQUEST=_OPEN,
            SEND_GOAWAY=_DRAINING,
            RECEIVE_GOAWAY=_DRAINING,
            CLOSE=_CLOSED,
        ),
        _DRAINING: row(ConnectionInput, RECEIVE_GOAWAY=_DRAINING, CLOSE=_CLOSED),
        _CLOSED: row(ConnectionInput, CLOSE=_CLOSED),
    },
)


class CallState(Symbol):
    """Life of a call: one request frame and the frames that answer it."""

    WAITING = "waiting for the first response frame"
    STREAMING = "some response frames passed, the last one did not"
    ABANDONED = "the caller gave up; answers are dropped"
    FINISHED = "the last response frame passed"


class CallInput(Symbol):
    """The inputs of a call."""

    PART = "a response frame without the end flag"
    END = "the last response frame"
    ABANDON = "the caller's deadline passed or it stopped listening"


_WAITING, _STREAMING, _ABANDONED, _FINISHED = CallState

CALL: Final = Machine(
    "call",
    CallState,
    CallInput,
    {
        _WAITING: row(CallInput, PART=_STREAMING, END=_FINISHED, ABANDON=_ABANDONED),
        _STREAMING: row(CallInput, PART=_STREAMING, END=_FINISHED, ABANDON=_ABANDONED),
        _ABANDONED: row(CallInput, PART=_ABANDONED, END=_FINISHED, ABANDON=_ABANDONED),
        _FINISHED: row(CallInput, ABANDON=_FINISHED),
    },
)


class RequestReceived(Struct, frozen=True):
    """A request of the peer; answer it with `send_response`."""

    frame: Frame


class RequestRefused(Struct, frozen=True):
    """A refused request of the peer; answer it with a system error of `error`."""

    frame: Frame
    error: SbpError


class ResponseReceived(Struct, frozen=True):
    """A frame that answers call `call_id`; the last one if `frame.is_end`."""

    call_id: int
    frame: Frame


class CallFailed(Struct, frozen=True):
    """Call `call_id` ends without its (complete) answer."""

    call_id: int
    error: SbpError


class GoawayReceived(Struct, frozen=True):
    """The peer accepts no new calls, and will answer the open calls."""


class ConnectionBroken(Struct, frozen=True):
    """The bytes of the peer cannot be decoded further: send the pending bytes, then close."""

    error: SbpError


Event = (
    RequestReceived
    | RequestRefused
    | ResponseReceived
    | CallFailed
    | GoawayReceived
    | ConnectionBroken
)
