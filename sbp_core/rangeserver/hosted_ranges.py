"""The ranges that a server hosts: their states and offsets.

Offsets are assigned when a batch is queued for the next group commit, and become readable when that
commit is durable. So `assigned_offset` runs ahead of `next_offset`, and no client reads a record
that a crash could take back.

A replicated range has copies on other servers (replicating/primary.py). Its records become readable
when they are committed, which a secondary learns from the primary. Only the primary assigns
offsets. A fenced range accepts nothing more. The range is settled when its entries are the decided
ones, and sealed then.
"""

from __future__ import annotations

import enum
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from sbp_core.errors import (
    NotFoundError,
    RangeNotFoundError,
    RangeSealedError,
    StatusCode,
    StatusError,
    invalid,
)
from sbp_core.log.states.range_states import NO_TIME, LoggedRange, RangeKey, RangeState
from sbp_core.replication import Prefix
from sbp_core.session.states import Machine, row
from sbp_core.wording import counted

_LOG: Final = logging.getLogger(__name__)


class RangeInput(enum.Enum):
    """Operations on a hosted range: the inputs of its state machine."""

    APPEND = "append"
    FETCH = "fetch"
    FENCE = "fence"
    SEAL = "seal"
    TRIM = "trim"
    DELETE = "delete"


_OPEN, _FENCED, _SEALED, _DELETED = RangeState

_REVISION_BITS: Final = 62
"""Random bits of the first revision. Later revisions still fit into an i64."""

_row: Final = partial(row, RangeInput)

RANGE: Final = Machine(
    "range",
    RangeState,
    RangeInput,
    {
        _OPEN: _row(
            APPEND=_OPEN, FETCH=_OPEN, FENCE=_FENCED, SEAL=_SEALED, TRIM=_OPEN, DELETE=_DELETED
        ),
        _FENCED: _row(FETCH=_FENCED, FENCE=_FENCED, SEAL=_SEALED, TRIM=_FENCED, DELETE=_DELETED),
        _SEALED: _row(FETCH=_SEALED, SEAL=_SEALED, TRIM=_SEALED, DELETE=_DELETED),
        _DELETED: _row(DELETE=_DELETED),
    },
)

_REACHED_BY: Final = {
    _FENCED: RangeInput.FENCE,
    _SEALED: RangeInput.SEAL,
    _DELETED: RangeInput.DELETE,
}
"""The input that leads into a state of the log."""


class HostedRange:
    """One range on this server. Only `RangeTable` changes its state."""

    def __init__(self, stream_id: int, range_index: int, start_offset: int) -> None:
        self.stream_id = stream_id
        self.range_index = range_index
        self.state = RangeState.OPEN
        self.start_offset = start_offset
        """Offset of the first record that was not trimmed."""
        self.next_offset = start_offset
        """Offset after the last readable record, the high-water mark."""
        self.assigned_offset = start_offset
        self.is_replicated = False
        self.is_led = False
        """Whether this process is the primary of the replicated range."""
        self._committed_offset = start_offset
        """Offset after the last record of a replicated range that is known to be committed."""
        self.durable = Prefix()
        """The durable entries of a replicated range here; if it is led here, the committed ones."""
        self._durable_offset = start_offset
        self._is_end_durable = False
        self.created_at_ms = NO_TIME
        """Creation time of the stream, NO_TIME if the log does not have it."""
        self.revision = -1
        """Revision of the table at the last change of this range."""

    @property
    def key(self) -> RangeKey:
        """Key in the log: (stream id, range index)."""
        return self.stream_id, self.range_index

    @property
    def end_offset(self) -> int | None:
        """Offset where the range ends, which is final; None before.

        A seal that waits for the disk is not final. A crash would take the seal back, and batches
        below it: others must not build on an end that is higher than what is left.
        """
        is_final = self.state is RangeState.DELETED or (
            self.state is RangeState.SEALED and self._is_end_durable
        )
        return self.assigned_offset if is_final else None

    @property
    def is_incomplete_copy(self) -> bool:
        """Whether other servers may have committed records that are unknown here."""
        is_led = self.is_led and self.state is RangeState.OPEN
        return self.is_replicated and not is_led and self.end_offset is None

    def unknown(self, what: str) -> RangeNotFoundError:
        """Return the error of a request that an incomplete copy cannot answer."""
        return RangeNotFoundError.of(
            f"the copy of range {self.range_index} of stream {self.stream_id} here may lack"
            f" committed entries, so it is not known {what}; ask another server or try again"
        )

    def publish(self, logged: LoggedRange) -> None:
        """Apply the committed state; changes that were submitted since then stay.

        For a replicated range that is not led here, `logged` is the durable state.
        """
        self.start_offset = logged.start_offset
        self.created_at_ms = logged.created_at_ms
        self.is_replicated = logged.is_replicated
        self.durable = logged.prefix or self.durable
        self._durable_offset = logged.next_offset
        self._is_end_durable = logged.state in {RangeState.SEALED, RangeState.DELETED}
        is_settled = logged.state is RangeState.SEALED
        if is_settled and self.is_replicated:  # the decided end may be below assigned offsets
            self.assigned_offset = logged.next_offset
        self.assigned_offset = max(self.assigned_offset, logged.next_offset)
        if is_settled or self.is_led or not self.is_replicated:
            self._committed_offset = logged.next_offset
        self._show_committed()
        reached_by = _REACHED_BY.get(logged.state)
        if reached_by is not None:  # None from the table: a range deleted since then stays deleted
            self.state = RANGE.maybe_next(self.state, reached_by) or self.state

    def note_committed(self, offset: int) -> bool:
        """Note that records below `offset` are committed; return whether more is readable."""
        before = self.next_offset
        self._committed_offset = max(self._committed_offset, offset)
        self._show_committed()
        return self.next_offset > before

    def _show_committed(self) -> None:
        self.next_offset = max(self.start_offset, min(self._durable_offset, self._committed_offset))

    def receive(self, asked: RangeInput) -> None:
        """Change the state by the table. Raises RangeSealedError or NotFoundError for a refusal.

        A replicated range that is not led here refuses appends as a sealed range does, so that its
        writers ask the placement driver for the open range.
        """
        target = RANGE.maybe_next(self.state, asked)
        is_elsewhere = self.is_replicated and not self.is_led and asked is RangeInput.APPEND
        if target is not None and not is_elsewhere:
            self.state = target
        elif self.state is RangeState.SEALED:
            raise RangeSealedError.of(
                f"range {self.range_index} of stream {self.stream_id} was sealed at offset"
                f" {self.assigned_offset}; the stream goes on in the next range"
            )
        elif self.state is not RangeState.DELETED:
            raise RangeSealedError.of(
                f"range {self.range_index} of stream {self.stream_id} accepts nothing more at this"
                " server, which is not its primary or was fenced; the stream goes on in the next"
                " range"
            )
        else:
            raise NotFoundError.of(f"stream {self.stream_id} was deleted")

    def assign(self, record_count: int) -> int:
        """Assign the next `record_count` offsets; return the first."""
        self.receive(RangeInput.APPEND)
        base_offset = self.assigned_offset
        if base_offset + record_count >= 2**63:
            raise invalid(
                f"stream {self.stream_id} has no offsets left for {counted(record_count, 'record')}"
            )
        self.assigned_offset += record_count
        return base_offset


class RangeTable:
    """All ranges of a server, by stream and index. `publish` and `move` change them.

    `revision` counts changes from a random number on, so that a revision from before a restart is
    not mistaken for a revision of this process.
    """

    def __init__(self, ranges: Iterable[LoggedRange] = ()) -> None:
        self._streams: dict[int, dict[int, HostedRange]] = {}
        self._latest: dict[int, HostedRange] = {}
        self._foreign: dict[int, StatusError] = {}
        """The refusal of each stream whose id the placement driver gave to another stream."""
        self._by_change: OrderedDict[RangeKey, HostedRange] = OrderedDict()
        self._first_revision = self.revision = secrets.randbits(_REVISION_BITS)
        for logged in ranges:
            self.publish(logged)

    def live_streams(self) -> list[int]:
        """Return the ids of the streams that were not deleted."""
        return [
            stream_id
            for stream_id, latest in self._latest.items()
            if latest.state is not RangeState.DELETED
        ]

    def may_be_another(self, stream_id: int, created_at_ms: int) -> bool:
        """Whether the stream here with this id was created at another time."""
        held = max(
            (each.created_at_ms for each in self._streams.get(stream_id, {}).values()),
            default=NO_TIME,
        )
        return NO_TIME not in {held, created_at_ms} and held != created_at_ms

    def is_own(self, stream_id: int, created_at_ms: int) -> bool:
        """Whether the stream here, if any, is the placement driver's stream with this id.

        If it is another stream, the stream here is refused from now on.
        """
        is_other = self.may_be_another(stream_id, created_at_ms)
        if is_other and stream_id not in self._foreign:
            held = max(each.created_at_ms for each in self._streams[stream_id].values())
            self._foreign[stream_id] = StatusError(
                StatusCode.CONFLICT,
                f"this server holds a stream {stream_id} that was created at {held} ms, the"
                f" placement driver has given the id to one that was created at {created_at_ms} ms:"
                " its metadata were put back to an older copy. Bring the newest metadata back, or"
                " delete the stream and create it again. The records here are kept",
            )
            _LOG.error("stream refused: %s", self._foreign[stream_id])
        elif not is_other and created_at_ms != NO_TIME:
            self._foreign.pop(stream_id, None)
        return not is_other

    def has_stream(self, stream_id: int) -> bool:
        """Whether any range of the stream is hosted here, also a deleted one."""
        return stream_id in self._streams

    def has_range(self, stream_id: int, range_index: int) -> bool:
        """Whether a range is hosted here."""
        return range_index in self._streams.get(stream_id, ())

    def has_whole_ranges(self, stream_id: int, range_indexes: range) -> bool:
        """Whether all these ranges are hosted here with all their entries.

        A replicated range has them only when it is settled.
        """
        own = self._streams.get(stream_id, {})
        return all(
            range_index in own
            and (not own[range_index].is_replicated or own[range_index].end_offset is not None)
            for range_index in range_indexes
        )

    def replicated(self) -> list[HostedRange]:
        """Return the replicated ranges that are neither settled nor deleted here."""
        return [
            hosted
            for ranges in self._streams.values()
            for hosted in ranges.values()
            if hosted.is_replicated and hosted.end_offset is None
        ]

    def lacks(self, stream_id: int, range_index: int, *, is_append: bool) -> bool:
        """Whether a request needs a range that only the placement driver may know."""
        latest = self._latest.get(stream_id)
        if latest is None:
            return True
        if latest.state is RangeState.DELETED:
            return False
        is_unknown = range_index >= 0 and range_index not in self._streams[stream_id]
        is_over = latest.state is not RangeState.OPEN or (
            latest.is_replicated and not latest.is_led
        )
        return is_unknown or (is_append and is_over)

    def ranges_of(self, stream_id: int) -> list[HostedRange]:
        """Return the stream's ranges here, by index. Raises RangeNotFoundError if there is none."""
        ranges = self._streams.get(stream_id)
        if not ranges:
            raise _not_found(stream_id, -1)
        self._check_own(stream_id)
        return [ranges[range_index] for range_index in sorted(ranges)]

    def bounds_of(self, stream_id: int) -> tuple[int, int]:
        """Return the bounds [start, next) of a stream here. Raises RangeNotFoundError."""
        ranges = self.ranges_of(stream_id)
        return first_offset(ranges), ranges[-1].next_offset

    def maybe_range(self, key: RangeKey) -> HostedRange | None:
        """Return a range, also of a refused stream; None if it is not hosted here."""
        stream_id, range_index = key
        return self._streams.get(stream_id, {}).get(range_index)

    def range_at(self, stream_id: int, range_index: int) -> HostedRange:
        """Return a range; index -1 means the stream's latest range. Raises RangeNotFoundError."""
        if range_index < 0:
            hosted = self._latest.get(stream_id)
        else:
            hosted = self.maybe_range((stream_id, range_index))
        if hosted is None:
            raise _not_found(stream_id, range_index)
        self._check_own(stream_id)
        return hosted

    def publish(self, logged: LoggedRange) -> None:
        """Apply the committed state of a range, new or known."""
        ranges = self._streams.setdefault(logged.stream_id, {})
        hosted = ranges.get(logged.range_index)
        if hosted is None:
            hosted = HostedRange(logged.stream_id, logged.range_index, logged.start_offset)
            ranges[logged.range_index] = hosted
            self._latest[logged.stream_id] = ranges[max(ranges)]
        hosted.publish(logged)
        self._on_changed(hosted)

    def note_committed(self, hosted: HostedRange, offset: int) -> bool:
        """Note committed records of a replicated range; return whether more is readable."""
        is_more = hosted.note_committed(offset)
        if is_more:
            self._on_changed(hosted)
        return is_more

    def move(self, hosted: HostedRange, asked: RangeInput) -> None:
        """Change the state of a range before the log has it. Raises as `receive`."""
        hosted.receive(asked)
        self._on_changed(hosted)

    def maybe_changed(self, since_revision: int, count_max: int) -> list[HostedRange] | None:
        """Return the ranges that changed since a revision, the latest change first.

        None for more than `count_max` ranges, or for a revision of another table.
        """
        if not self._first_revision <= since_revision <= self.revision:
            return None
        changed: list[HostedRange] = []
        for hosted in reversed(self._by_change.values()):
            if hosted.revision <= since_revision:
                break
            if len(changed) >= count_max:
                return None
            changed.append(hosted)
        return changed

    def _check_own(self, stream_id: int) -> None:
        foreign = self._foreign.get(stream_id)
        if foreign is not None:
            raise foreign

    def _on_changed(self, hosted: HostedRange) -> None:
        self.revision += 1
        hosted.revision = self.revision
        self._by_change[hosted.key] = hosted
        self._by_change.move_to_end(hosted.key)


def first_offset(ranges: Sequence[HostedRange]) -> int:
    """Return the start of a stream's ranges; ranges that were trimmed away do not count."""
    held = (each for each in ranges if each.start_offset < each.next_offset)
    return next(held, ranges[-1]).start_offset


def check_latest(latest: HostedRange, range_index: int) -> None:
    """Raise unless `range_index` is -1 or the index of the stream's `latest` range.

    Raises RangeSealedError for an earlier range, RangeNotFoundError for a later range.
    """
    if range_index < 0 or range_index == latest.range_index:
        return
    if range_index < latest.range_index:
        raise RangeSealedError.of(
            f"range {range_index} of stream {latest.stream_id} is not the open one, which is"
            f" {latest.range_index}"
        )
    raise _not_found(latest.stream_id, range_index)


def unsettled(stream_id: int, range_index: int) -> RangeNotFoundError:
    """Return the error of a repeat in an ended range, which may be on too few disks."""
    return RangeNotFoundError.of(
        f"range {range_index} of stream {stream_id} has ended, and it is not known yet that enough"
        " servers have settled it, so what was done in it is not confirmed again; try again"
    )


def _not_found(stream_id: int, range_index: int) -> RangeNotFoundError:
    which = f"range {range_index}" if range_index >= 0 else "no range"
    return RangeNotFoundError.of(
        f"{which} of stream {stream_id} is {'not ' if range_index >= 0 else ''}hosted here"
    )
