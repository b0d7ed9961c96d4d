"""Audit events as their page shows them: read from the records of `_audit`, and filtered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROWS_MAX: Final = 100
"""Events of a page."""
SEARCHED_MAX: Final = 5_000
"""Records that one page looks at, however few of them fit the filter."""
OUTCOMES: Final = ("done", "refused", "unknown")
_COLUMNS: Final = frozenset(
    {"time", "server", "operation", "peer", "role", "identity", "outcome", "status", "message"}
)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A management operation; texts are empty if the record does not have them.

    `details` are the object of the operation and what it set, as (name, value).
    """

    offset: int
    time: str = ""
    server: str = ""
    operation: str = ""
    identity: str = ""
    peer: str = ""
    role: str = ""
    outcome: str = ""
    status: str = ""
    message: str = ""
    details: tuple[tuple[str, str], ...] = ()

    @property
    def is_readable(self) -> bool:
        """Whether the record is an event; without the protection others can append there."""
        return bool(self.operation)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Parts of the identity and of the operation that events have, and their outcome."""

    identity: str = ""
    operation: str = ""
    outcome: str = ""

    def accepts(self, event: AuditEvent) -> bool:
        """Whether an event is to be shown. Upper and lower case are the same."""
        return (
            self.identity.lower() in event.identity.lower()
            and self.operation.lower() in event.operation.lower()
            and self.outcome in {"", event.outcome}
        )


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Events, newest first, and the offsets [searched_from, searched_to) that were looked at.

    `next_end` is where a page of older events ends; None if there are none.
    """

    events: tuple[AuditEvent, ...]
    searched_from: int
    searched_to: int
    next_end: int | None


class EventSearch:
    """Collects the events of a page from records, in blocks from the newest to the oldest.

    `first` is the oldest record that may be looked at, `end` the one behind the newest.
    """

    def __init__(self, wanted: EventFilter, first: int, end: int) -> None:
        self._wanted = wanted
        self._first = min(first, end)
        self._end = self._at = end
        self._events: list[AuditEvent] = []

    def maybe_block(self, record_count: int) -> tuple[int, int] | None:
        """Return the offsets [start, end) to read next; None if the page is complete."""
        is_full = len(self._events) >= ROWS_MAX
        if is_full or self._at <= self._first or self._end - self._at >= SEARCHED_MAX:
            return None
        return max(self._at - record_count, self._first), self._at

    def add(self, start: int, records: Sequence[tuple[int, object]]) -> None:
        """Look at the records of a block from offset `start` on, as (offset, value)."""
        for offset, value in reversed(records):
            event = parse_event(offset, value)
            if self._wanted.accepts(event):
                self._events.append(event)
                if len(self._events) >= ROWS_MAX:
                    self._at = offset
                    return
        self._at = start

    def page(self) -> AuditPage:
        """Return what was found."""
        next_end = self._at if self._at > self._first else None
        return AuditPage(tuple(self._events), self._at, self._end, next_end)


def parse_event(offset: int, value: object) -> AuditEvent:
    """Return the event of a record whose value is JSON; one without an operation if it is none."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return AuditEvent(offset, details=(("record", _shown(value)),))
    texts = {name: _shown(each) for name, each in found.items() if name in _COLUMNS}
    others = [(name, _shown(each)) for name, each in found.items() if name not in _COLUMNS]
    return AuditEvent(offset, details=tuple(others), **texts)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
