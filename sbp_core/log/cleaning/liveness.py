"""Which batches are live: those of streams that were not deleted, from where these begin.

A batch that was staged is live while it is undecided; once it is published, as its offsets are. One
that was dropped is dead. The segment in which it stands does not tell: the segments that published
batches do. So all of them are asked before anything of any of them is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from sbp_core.errors import LogCorruptionError
from sbp_core.log.batch_lookup import Extent
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry, Location
from sbp_core.log.index_file import SegmentIndex, SegmentUse
from sbp_core.log.segment import Segment, corruption
from sbp_core.log.states.range_states import RangeKey, RangeState
from sbp_core.log.states.staged_entries import StagedRows
from sbp_core.segment_format import EntryKind, segment_path

_OFFSET_MAX: Final = 2**63 - 1


def live_from(log: Log, key: RangeKey) -> int:
    """Return the offset from which on the records of a range are live."""
    logged = log.maybe_range(key)
    if logged is None or logged.state is RangeState.DELETED:
        return _OFFSET_MAX
    return logged.start_offset


@dataclass(frozen=True, slots=True)
class Liveness:
    """The live batches of a log's full segments at `extent`; some may be dead by now.

    Never the other way round, though more may be published since. `staged` are the batches that
    were staged and are live, by where they were written first. Where that is not known because of
    damage, all of them count as live.
    """

    log: Log
    extent: Extent
    staged: StagedRows
    is_known: bool

    def is_live(self, entry: Entry, location: Location) -> bool:
        """Whether an entry of a full segment has to stay: a batch, or the end of transactions."""
        if entry.kind is not EntryKind.STAGED:
            end_offset = entry.base_offset + entry.count
            return end_offset > live_from(self.log, (entry.stream_id, entry.range_index))
        birth_position = location.position if entry.base_offset < 0 else entry.base_offset
        return not self.is_known or self.staged.holds(birth_position)

    def weigh(self, extent: Extent, at: int) -> SegmentUse:
        """Return what a full segment holds. Raises LogCorruptionError if that cannot be told."""
        segment, index = extent.sealed[at], self.log.lookup.index(extent, at)
        if index.may_hide(partial(live_from, self.log)):
            path = segment_path(self.log.directory, segment.base)
            raise corruption(path, segment.base, "it is not known which batches it published")
        return self._weigh(segment, index)

    def weigh_active(self) -> SegmentUse:
        """Return what the segment holds that groups are appended to."""
        return self._weigh(*self.log.active_index())

    def _weigh(self, segment: Segment, index: SegmentIndex) -> SegmentUse:
        live_bytes = index.staged_bytes
        if self.is_known:
            live_bytes = self.staged.bytes_between(segment.base, segment.end)
        return index.held(partial(live_from, self.log), live_bytes)


class LivenessSeeker:
    """Finds out what is live in one log, again and again. It belongs to one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._has_published: dict[Segment, bool] = {}
        """Whether a full segment tells of batches that were staged."""

    def find(self) -> Liveness:
        """Look at the whole log. Raises LogError when the disk fails.

        Undecided batches are read before published ones: rows are there before a batch is staged
        no more, so whatever it becomes meanwhile, it is found. And what is staged from now on does
        not stand in the full segments of the extent that was taken before.
        """
        log, extent = self._log, self._log.extent
        starts = partial(live_from, log)
        found = [log.staged.rows()]
        is_known = True
        later = log.extent
        for at, segment in enumerate(later.sealed):
            if self._has_published.get(segment, True):
                try:
                    index = log.lookup.index(later, at)
                except LogCorruptionError:
                    is_known = False
                    continue
                is_known = is_known and not index.may_hide(starts)
                self._has_published[segment] = index.has_published or not index.is_whole
                if index.has_published:
                    found.append(index.published_rows(starts))
        found.append(later.rows.published_rows(starts))
        self._has_published = {
            segment: known
            for segment in later.sealed
            if (known := self._has_published.get(segment)) is not None
        }
        return Liveness(log, extent, StagedRows.together(found), is_known)
