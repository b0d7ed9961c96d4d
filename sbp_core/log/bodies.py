"""Bodies of batches: read from the disk and verified, or kept in memory since they were written.

A whole body that rotted on the disk is never served. Batches that lie close together are read in
one go. The header of an entry follows from the body, its place and its range, so an index that is
wrong is noticed as well. A batch that was staged has the body that was appended: it does not say
its base offset.

A body may also be read in parts (`open_body`). Then the checksum of its entry's header is compared,
and that of the body is not: damage within is found by whole reads and by the scrub.

The bodies that were appended last are kept for readers that follow the tail. They are what was
received and written, so they need neither the disk nor a check again; and the checksum that frames
need of them is made once, however often they are sent.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.entry import Entry, Location, decode_entry, encode_entry
from sbp_core.log.segment import corruption, naming_damage
from sbp_core.log.segment_rows import Slot
from sbp_core.log.states.range_states import RangeKey
from sbp_core.segment_format import ENTRY_HEADER_BYTES, EntryKind, decode_entry_header
from sbp_core.wire.checksum import Buffer, crc32

_LOG: Final = logging.getLogger(__name__)

_SPAN_WASTE_MAX: Final = 2
"""Read batches in one go while at most half of the bytes belong to other ranges."""


class RecentBody:
    """One body, which does not change."""

    __slots__ = ("_crc32", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._crc32: int | None = None

    @property
    def crc32(self) -> int:
        """Its CRC-32."""
        if self._crc32 is None:
            self._crc32 = crc32((self.data,))
        return self._crc32


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of the first of the batches that were asked for.

    `error` says why the next one could not be read: LogCorruptionError if it is damaged. `recent`
    are all of them if they were kept in memory.
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
    """Return the bodies of `slots`, which are batches of one range, up to the first that fails.

    All are from `recent`, or all are read and verified. Unless it `may_wait` for the disk, a body
    that is not in the page cache fails as well.
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
    """The body of one batch, to be read in parts; `front` are its first bytes."""

    front: memoryview
    _slot: Slot
    _may_wait: bool

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of the body, unverified. Raises LogError."""
        first = self._slot.location.end - self._slot.body_length
        return memoryview(_read(self._slot, first + start, end - start, may_wait=self._may_wait))


def open_body(key: RangeKey, slot: Slot, front_bytes: int, *, may_wait: bool) -> OpenBody:
    """Return the body of `slot`, a batch of the range `key`, with up to `front_bytes` of it.

    The header of the entry is verified, and is that of this batch. Raises LogError; reading parts
    does, too.
    """
    position = slot.location.position
    before_bytes = ENTRY_HEADER_BYTES + slot.prefix_bytes
    length = min(before_bytes + front_bytes, slot.location.length)
    data = memoryview(_read(slot, position, length, may_wait=may_wait))
    with naming_damage(slot.view.file.path, position):
        header = decode_entry_header(data[:ENTRY_HEADER_BYTES], position)
    kind, base_offset = EntryKind.BATCH, slot.base_offset
    if slot.prefix_bytes:
        kind, base_offset = EntryKind.STAGED, slot.birth_position
    expected = (slot.location.length, kind, *key, base_offset, slot.count)
    if (header.length, *header[3:]) != expected:
        reason = f"another entry, {header.kind.name}, is in its place"
        raise _not_served(key, slot, reason)
    return OpenBody(data[before_bytes:], slot, may_wait)


def _read(slot: Slot, position: int, length: int, *, may_wait: bool) -> Buffer:
    """Return bytes of the segment of `slot`. Raises LogError, also for those not in memory."""
    view = slot.view
    found = view.read(position, length) if may_wait else view.maybe_read_cached(position, length)
    if found is None:
        raise LogError(f"{view.file.path} is not in memory")
    return found


def _extent(span: Sequence[Slot]) -> tuple[int, int]:
    """Return where a run of batches begins, and its bytes."""
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
    """Cut `slots` into runs that are worth one read each."""
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
    if slot.prefix_bytes:
        expected = Entry(EntryKind.STAGED, *key, slot.birth_position, slot.count, body)
    else:
        expected = Entry(EntryKind.BATCH, *key, slot.base_offset, slot.count, body)
    if data[:ENTRY_HEADER_BYTES] == encode_entry(expected, position)[0]:
        return body[slot.prefix_bytes :]
    try:
        found = decode_entry(data, position)
        reason = f"another entry, {found.kind.name}, is in its place"
    except LogError as error:
        reason = str(error)
    raise _not_served(key, slot, reason)


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
    """At most `bytes_max` bytes of bodies; the oldest go first.

    With the buffers around them they take twice that at most, and a frame more. They are found by
    the positions at which they were written, those that were staged too. One thread may keep while
    others look.
    """

    def __init__(self, bytes_max: int = limits.RECENT_BODIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._bodies: dict[int, RecentBody] = {}
        self._order: deque[int] = deque()

    def keep(self, entries: Sequence[Entry], locations: Sequence[Location]) -> None:
        """Keep the batches among entries that were written as a group; they do not change any more.

        Staged ones are kept if their prefix is beside the body. A buffer that several came in
        is kept for as long as any of them is.
        """
        kept = {
            location.position: memoryview(entry.body)
            for entry, location in zip(entries, locations, strict=True)
            if entry.kind is EntryKind.BATCH or entry.prefix
        }
        used_bytes: Counter[int] = Counter()
        for body in kept.values():
            used_bytes[id(body.obj)] += len(body)
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
        """Return the bodies of `slots`; None unless all are here.

        None as well if one is in a segment that was rewritten, which moved it.
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
