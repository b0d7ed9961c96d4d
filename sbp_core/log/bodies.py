"""Read the bodies of batches from the disk and verify them, or take them from memory.

A whole body that rotted on the disk is never served. The expected header of an entry follows from
body, position and range, so a wrong index is noticed as well. Batches that lie close together are
read in one go. The body of a staged batch is as it was appended, without its base offset.

A body may also be read in parts (`open_body`). Then only the header's checksum is verified: damage
in the body is found by whole reads and by the scrub.

`RecentBodies` keeps the bodies that were appended last, for readers that follow the tail. These
bodies need neither a read nor a check, and their checksum for frames is computed once.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.entry import Entry, HeaderFields, Location, decode_entry, encode_header
from sbp_core.log.segment import corruption, naming_damage
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryKind, decode_entry_header
from sbp_core.wire.checksum import Buffer, crc32

_LOG: Final = logging.getLogger(__name__)

_SPAN_WASTE_MAX: Final = 2
"""Batches are read in one go while at most half of the bytes belong to other ranges."""


class RecentBody:
    """An immutable body, and its checksum once it was needed."""

    __slots__ = ("_crc32", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._crc32: int | None = None

    @property
    def crc32(self) -> int:
        """CRC-32 of the body."""
        if self._crc32 is None:
            self._crc32 = crc32((self.data,))
        return self._crc32


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of the first of the requested batches.

    `error` says why the next batch could not be read: LogCorruptionError if it is damaged. `recent`
    has all bodies if they were in memory, else none.
    """

    data: tuple[memoryview, ...]
    error: LogError | None = None
    recent: tuple[RecentBody, ...] = ()


def read_bodies(
    key: RangeKey,
    slots: Sequence[Slot],
    recent: RecentBodies | None = None,
    *,
    may_wait: bool = True,
) -> Bodies:
    """Return the bodies of `slots`, batches of one range, up to the first that fails.

    Either all come from `recent`, or all are read and verified. Without `may_wait` a body that is
    not in the page cache fails, too.
    """
    kept = None if recent is None else recent.maybe_bodies(slots)
    if kept is not None:
        return Bodies(tuple([body.data for body in kept]), recent=kept)
    data: list[memoryview] = []
    try:
        for span in _spans(slots):
            data += _cut(key, span, _read(span[0], *_extent(span), may_wait=may_wait))
    except LogError as error:
        if may_wait:
            _LOG.error("batch not readable: %s", error)
        return Bodies(tuple(data), error)
    return Bodies(tuple(data))


@dataclass(frozen=True, slots=True)
class OpenBody:
    """The body of a batch that is read in parts; `front` has its first bytes."""

    front: memoryview
    _slot: Slot
    _may_wait: bool

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of the body, unverified. Raises LogError."""
        first = self._slot.location.end - self._slot.body_length
        return memoryview(_read(self._slot, first + start, end - start, may_wait=self._may_wait))


def open_body(key: RangeKey, slot: Slot, front_bytes: int, *, may_wait: bool) -> OpenBody:
    """Open the body of `slot`, a batch of the range `key`, and read up to `front_bytes` of it.

    Raises LogError, also if the header of the entry is damaged or of another batch.
    """
    position = slot.location.position
    before_bytes = ENTRY_HEADER_BYTES + slot.prefix_bytes
    length = min(before_bytes + front_bytes, slot.location.length)
    data = memoryview(_read(slot, position, length, may_wait=may_wait))
    with naming_damage(slot.view.file.path, position):
        header = decode_entry_header(data[:ENTRY_HEADER_BYTES], position)
    if (header.length, *header[3:]) != (slot.location.length, *_expected(key, slot)):
        reason = f"another entry, {header.kind.name}, is in its place"
        raise _not_served(key, slot, reason)
    return OpenBody(data[before_bytes:], slot, may_wait)


def _read(slot: Slot, position: int, length: int, *, may_wait: bool) -> Buffer:
    """Return bytes of the segment of `slot`. Raises LogError, also if reading had to wait."""
    view = slot.view
    found = view.read(position, length) if may_wait else view.maybe_read_cached(position, length)
    if found is None:
        raise LogError(f"{view.file.path} is not in memory")
    return found


def _extent(span: Sequence[Slot]) -> tuple[int, int]:
    """Return the position and the length of a run of batches."""
    first = span[0].location.position
    return first, span[-1].location.end - first


def _cut(key: RangeKey, span: Sequence[Slot], found: Buffer) -> Iterator[memoryview]:
    """Yield the verified bodies of a run of batches. Raises LogCorruptionError."""
    data = memoryview(found)
    first, _ = _extent(span)
    for slot in span:
        start = slot.location.position - first
        yield _verified(key, slot, data[start : start + slot.location.length])


def _spans(slots: Sequence[Slot]) -> Iterator[Sequence[Slot]]:
    """Split `slots` into runs that are worth one read each."""
    start = wanted = 0
    for at, slot in enumerate(slots):
        length = slot.location.end - slots[start].location.position
        wanted += slot.location.length
        if (
            slot.view is not slots[start].view
            or length > _SPAN_WASTE_MAX * wanted
            or (at > start and slot.location.position < slots[at - 1].location.end)
        ):
            yield slots[start:at]
            start, wanted = at, slot.location.length
    if slots:
        yield slots[start:]


def _verified(key: RangeKey, slot: Slot, data: memoryview) -> memoryview:
    """Return the body of the batch in `data`. Raises LogCorruptionError."""
    position = slot.location.position
    body = data[ENTRY_HEADER_BYTES:]
    # The header that the body must have follows from body, position and range. To compare it is
    # faster than to decode the entry, and notices an index that points to another batch.
    if data[:ENTRY_HEADER_BYTES] == encode_header(_expected(key, slot), (body,), position):
        return body[slot.prefix_bytes :]
    try:
        found = decode_entry(data, position)
        reason = f"another entry, {found.kind.name}, is in its place"
    except LogError as error:
        reason = str(error)
    raise _not_served(key, slot, reason)


def _expected(key: RangeKey, slot: Slot) -> HeaderFields:
    """Return the fields of the entry that the log must have for a slot."""
    if slot.prefix_bytes:
        return EntryKind.STAGED, *key, slot.birth_position, slot.count
    return EntryKind.BATCH, *key, slot.base_offset, slot.count


def _not_served(key: RangeKey, slot: Slot, reason: str) -> LogCorruptionError:
    return corruption(
        slot.view.file.path,
        slot.location.position,
        f"the batch of offsets [{slot.base_offset}, {slot.end_offset}) of range {key[1]} of stream"
        f" {key[0]} cannot be served: {reason}",
    )


_BATCH_COST_BYTES: Final = 512
"""Memory of a batch besides its body, roughly."""


class RecentBodies:
    """A cache of at most `bytes_max` bytes of bodies; the oldest is evicted first.

    With the buffers around them the bodies take at most twice that, and a frame more. The key is
    the position at which a batch was written first. One thread keeps bodies while others look.
    """

    def __init__(self, bytes_max: int = limits.RECENT_BODIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._bodies: dict[int, RecentBody] = {}
        self._order: deque[int] = deque()

    def keep(self, entries: Sequence[Entry], locations: Sequence[Location]) -> None:
        """Keep the batches of a group that was written; their buffers must not change any more.

        Staged batches are kept if their prefix is beside the body.
        """
        kept = {
            location.position: memoryview(entry.body)
            for entry, location in zip(entries, locations, strict=True)
            if entry.kind is EntryKind.BATCH or entry.prefix
        }
        used_bytes: Counter[int] = Counter()
        for body in kept.values():
            used_bytes[id(body.obj)] += len(body)
        # A body is a view into the frame it came in, and keeps all of that alive. If most of the
        # frame is not kept, a copy of the body takes less memory.
        for position, body in kept.items():
            is_worth_its_buffer = memoryview(body.obj).nbytes <= 2 * used_bytes[id(body.obj)]
            self._keep(position, body if is_worth_its_buffer else memoryview(bytes(body)))

    def _keep(self, position: int, body: memoryview) -> None:
        self._bodies[position] = RecentBody(body)
        self._order.append(position)
        self._bytes += len(body) + _BATCH_COST_BYTES
        while self._bytes > self._bytes_max:
            oldest = self._bodies.pop(self._order.popleft())
            self._bytes -= len(oldest.data) + _BATCH_COST_BYTES

    def maybe_bodies(self, slots: Sequence[Slot]) -> tuple[RecentBody, ...] | None:
        """Return the bodies of `slots`; None if one is missing, or in a rewritten segment.

        A rewrite moves entries, so positions there are not those of the first write.
        """
        bodies = []
        for slot in slots:
            if slot.view.segment.generation:
                return None
            body = self._bodies.get(slot.location.position)
            if body is None:
                return None
            bodies.append(body)
        return tuple(bodies)
