"""The audit trail: an event for each management operation, whatever came of it.

`MANAGEMENT` declares which operations these are. The `AuditTrail` of a server makes an
`AuditedCall` for each request of one, and it sees what the handler decodes and answers: no handler
takes part. An event is a JSON object in the logger `sbp.audit`; a `LineFile` writes them to a file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final

from msgspec import Struct

from sbp_core.errors import HeaderError, Outcome, SbpError, StatusCode
from sbp_core.server.trust import ServerRole, Standing
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.headers import REQUEST_TABLES, RESULT_FIELDS, Status, decode_header
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error, status_for

EVENTS: Final = logging.getLogger("sbp.audit")


@dataclass(frozen=True, slots=True)
class Managed:
    """A management operation. `items` is the field of its request with one entry per object.

    With `only_if`, a field of the request or of an item, only those count that have this value.
    """

    items: str | None = None
    only_if: tuple[str, object] | None = None

    def is_meant(self, item: object, request: object) -> bool:
        """Whether an object of a request counts."""
        if self.only_if is None:
            return True
        name, value = self.only_if
        return bool(getattr(item if hasattr(item, name) else request, name) == value)


MANAGEMENT: Final[Mapping[Opcode, Managed]] = {
    Opcode.CREATE_STREAMS: Managed("streams"),
    Opcode.UPDATE_STREAMS: Managed("streams"),
    Opcode.DELETE_STREAMS: Managed("streams"),
    Opcode.TRIM_STREAMS: Managed("trimmed_streams"),
    Opcode.SEAL_RANGE: Managed("ranges"),
    Opcode.CREATE_RANGE: Managed(),
    Opcode.REGISTER_SCHEMAS: Managed("schemas"),
    Opcode.DRAIN_SERVERS: Managed("server_ids"),
    Opcode.MOVE_RANGES: Managed("moves"),
    Opcode.CHANGE_GRANTS: Managed("grants"),
    Opcode.TAKE_CUT: Managed(),
    Opcode.RESTORE_METADATA: Managed(),
    Opcode.COMMIT_CURSORS: Managed("cursors", only_if=("next_offset", -1)),
    Opcode.COMMIT_TXN: Managed(only_if=("give_up", True)),
}
"""Each other operation reads, or belongs to the work of producers, readers and servers."""

_OUTCOMES: Final = {
    Outcome.APPLIED: "done",
    Outcome.NOT_APPLIED: "refused",
    Outcome.UNKNOWN: "unknown",
}
_NOT_SHOWN: Final = frozenset({"timeout_ms", "throttle_time_ms"})
_NOT_GIVEN: Final = -1
_TEXT_LENGTH_MAX: Final = 1_024
"""Characters of a text in an event: more than any that a server accepts."""


class AuditTrail:
    """The audit trail of one server, `server`; its events go to the logger."""

    def __init__(self, server: str) -> None:
        self._server = server

    def maybe_call(self, opcode: Opcode, header: Buffer, peer_name: str) -> AuditedCall | None:
        """Return what follows a request of a management operation; None for other operations."""
        if opcode not in MANAGEMENT:
            return None
        return AuditedCall(opcode, header, self, peer_name.partition(", ")[0])

    @property
    def is_on(self) -> bool:
        """Whether events go anywhere."""
        return EVENTS.isEnabledFor(logging.INFO)

    def write(self, event: Mapping[str, object], time_ms: int) -> None:
        """Write an event of that time, in ms since the epoch.

        Operations of servers are of level debug: trims by retention would fill a log.
        """
        time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        event = {"time": time, "server": self._server, **event}
        level = logging.DEBUG if event.get("role") in set(ServerRole) else logging.INFO
        if EVENTS.isEnabledFor(level):
            EVENTS.log(level, "%s", json.dumps(event))


class AuditedCall:
    """One request of a management operation; `end` writes its events, once."""

    def __init__(self, opcode: Opcode, header: Buffer, trail: AuditTrail, peer: str) -> None:
        self._opcode = opcode
        self._header = header
        self._trail = trail
        self._peer = peer
        self._request: object = None
        self._results: list[Any] = []
        self._status: Status | None = None
        self._is_answered = False
        self._is_over = False

    def decoded(self, request: object) -> None:
        """The handler has read the request."""
        self._request = request

    def answered(self, response: Any, *, is_end: bool) -> None:
        """The handler has a response frame."""
        self._status, self._is_answered = response.status, is_end
        self._results += getattr(response, RESULT_FIELDS.get(type(response), ""), ())

    def failed(self, error: Exception) -> None:
        """The answer is an error."""
        self._is_answered = True
        known = error if isinstance(error, SbpError) else SbpError("unexpected; see the log")
        self._results, self._status = [], status_for(known)

    def end(self, standing: Standing, time_ms: int) -> None:
        """Write the events; without an answer, as when the peer leaves, the outcome is unknown."""
        if self._is_over or not self._trail.is_on:
            return
        self._is_over = True
        managed = MANAGEMENT[self._opcode]
        if self._request is None:
            with suppress(HeaderError):
                self._request = decode_header(REQUEST_TABLES[self._opcode], self._header)
        event: dict[str, object] = {
            "operation": self._opcode.name,
            "peer": self._peer,
            "role": _role_of(standing),
        }
        if standing.identity is not None:
            event["identity"] = str(standing.identity)
        if self._request is None:
            if managed.only_if is None:
                self._write(event, None, time_ms)
            return
        items: Sequence[object] = [self._request]
        results: list[Any] = []
        if managed.items is not None:
            items = getattr(self._request, managed.items)
            event |= _scalars(self._request)
            results = self._results[: len(items)]
        for item, result in zip_longest(items, results):
            if managed.is_meant(item, self._request):
                named = {"server_id": item} if isinstance(item, int) else _scalars(item)
                self._write(event | _scalars(_maybe_stream(result)) | named, result, time_ms)

    def _write(self, event: dict[str, object], result: Any, time_ms: int) -> None:
        """Write one event; results are in the order of the request, so one may be missing."""
        if result is None and not self._is_answered:
            self._trail.write(event | {"outcome": "unknown"}, time_ms)
            return
        status = getattr(result, "status", None) or self._status
        error = maybe_error(status)
        event["outcome"] = "done" if error is None else _OUTCOMES[error.outcome]
        if error is not None:
            event |= {"status": _name_of(error.code), "message": _cut(error.message)}
        self._trail.write(event, time_ms)


def _role_of(standing: Standing) -> str:
    if standing.is_placement_driver:
        return ServerRole.PLACEMENT_DRIVER
    return ServerRole.RANGE_SERVER if standing.server_ids else "client"


def _name_of(code: int) -> str:
    try:
        return StatusCode(code).name
    except ValueError:
        return str(code)


def _maybe_stream(result: Any) -> Any:
    """Return the stream in a result: the id of a new stream is only there."""
    for name in ("stream", "updated_stream", "deleted_stream"):
        if getattr(result, name, None) is not None:
            return getattr(result, name)
    return None


def _scalars(table: Any) -> dict[str, object]:
    """Return the fields of a table, and of tables in it, that are set to a number or a text."""
    if not isinstance(table, Struct):
        return {}
    found: dict[str, object] = {}
    defaults = dict(zip(table.__struct_fields__, table.__struct_defaults__, strict=False))
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if isinstance(value, Struct) and not isinstance(value, Status):
            found |= _scalars(value)
        elif name == "properties" and value:  # not the values, which may be long or secret
            found[name] = _cut(", ".join(each.key or "" for each in value))
        elif not isinstance(value, int | str) or name in _NOT_SHOWN:
            continue
        elif value not in (defaults[name], _NOT_GIVEN):
            found[name] = _cut(value)
    return found


def _cut(value: int | str) -> int | str:
    is_long = isinstance(value, str) and len(value) > _TEXT_LENGTH_MAX
    return f"{str(value)[:_TEXT_LENGTH_MAX]}..." if is_long else value
