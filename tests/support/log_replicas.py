"""Helpers of the tests of replicated ranges in the log."""

from __future__ import annotations

from collections.abc import Iterable

from log_stagings import KEY

from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.portable import decode_portable, encode_portable, summary, to_local
from sbp_core.log.states.range_states import LoggedRange, range_created
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind

CREATED = range_created(*KEY, 0, 77, is_replicated=True)


def logged(log: Log, key: tuple[int, int] = KEY) -> LoggedRange:
    found = log.maybe_range(key)
    assert found is not None
    return found


def prefix_of(*entries: Entry) -> Prefix:
    prefix = Prefix()
    for entry in entries:
        prefix = prefix.extended(summary(entry))
    return prefix


def portable_bytes(*entries: Entry) -> memoryview:
    return memoryview(b"".join(part for entry in entries for part in encode_portable(entry)))


def in_transit(entries: Iterable[Entry]) -> list[Entry]:
    return decode_portable(portable_bytes(*entries))


def feed(log: Log, entries: Iterable[Entry]) -> None:
    """Append portable entries, each mark in one group with its batch."""
    group: list[Entry] = []
    for entry in entries:
        group.append(to_local(entry, log.staged))
        if entry.kind is not EntryKind.WRITER_MARK:
            log.append(group)
            group = []
    log.append(group)
