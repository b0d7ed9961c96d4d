"""One run of a streaming query: from a source offset forward to the partitions of a micro-batch.

    SourceOffset -> Snapshot -> Backlog -> ends -> SourceOffset -> partitions

`StreamWatch` makes the snapshot of the streams, `find_backlog` the backlog, and `Admission` decides
how much of the backlog a micro-batch takes. Each value is made from the value before it, and is
never changed. Only the snapshot needs the placement driver: one LIST_RANGES for each micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyspark.sql.types import StructType

from sbp_core.client import RangeInfo, StoreCommit, StreamInfo
from sbp_spark.options.source import SourceOptions, parse_source_options
from sbp_spark.reading.input_partitions import SpanPartition, plan_read
from sbp_spark.reading.layout import QueryColumns
from sbp_spark.reading.offsets import INITIAL, Interval, SourceOffset, advance, intervals, nonempty
from sbp_spark.reading.partition_planning import RecordSizeEstimates
from sbp_spark.reading.source_streams import find_columns
from sbp_spark.streaming.admission import Admission
from sbp_spark.streaming.backlog import NO_BACKLOG, Backlog, added_streams, find_backlog
from sbp_spark.streaming.commits import Commits
from sbp_spark.streaming.loss_policy import LossPolicy
from sbp_spark.streaming.stream_watch import Snapshot, StreamWatch, is_plausible

AT_ONCE_S: Final = 0.05
"""With its default trigger, which has no interval, Spark asks again within this time."""


@dataclass(frozen=True)
class Decision:
    """The micro-batch from `start` to `end`, and the snapshot of the streams that decided it.

    `start_json` and `end_json` are the same offsets as Spark has them. `is_idle`: nothing is read,
    and that stays so as long as the snapshot is the same, whatever time it is.
    """

    start_json: Mapping[str, Any]
    end_json: dict[str, Any]
    start: SourceOffset
    end: SourceOffset
    snapshot: Snapshot
    is_idle: bool

    @cached_property
    def known(self) -> Mapping[int, int]:
        """The next offset to read of each stream, by id."""
        return self.end.next_offsets()


class QueryRun:
    """The state that the micro-batches of one run share. A restarted query begins without it."""

    def __init__(self, options: SourceOptions, columns: QueryColumns, watch: StreamWatch) -> None:
        self.options = options
        self.commits = Commits(watch.looking, options.commits)
        self._columns = columns
        self._watch = watch
        self._losses = LossPolicy(options.on_data_loss, watch.client)
        self._sizes = RecordSizeEstimates(watch.looking)
        self._admission = Admission(options.limits, self._sizes)
        self._snapshot = Snapshot()
        self._last: Decision | None = None
        self._idle_since_s = -AT_ONCE_S
        """When Spark was told last that there is nothing new."""
        self._added: frozenset[int] | None = None
        """The streams that this start of the query has added to those of its checkpoint."""
        self._is_available_now = False
        self._targets: dict[int, int] | None = None
        """Where a run with Trigger.AvailableNow ends in each stream, by id."""

    @classmethod
    def start(cls, given: Mapping[str, str], schema: StructType) -> QueryRun:
        """Check the options and the columns of `schema`, and find the streams. Raises SbpError."""
        options = parse_source_options(given, streaming=True)
        watch = StreamWatch(options)
        streams = watch.streams()
        columns = find_columns(watch.client, options, streams).for_query(schema)
        return cls(options.knowing(streams.values()), columns, watch)

    def start_of_fresh_query(self) -> SourceOffset:
        """Return the offset before the first micro-batch: starts are not resolved yet."""
        return INITIAL

    def stop_at_tails(self) -> None:
        """End the run at the tails as they are now. Raises SbpError."""
        self._snapshot = self._watch.look()
        self._is_available_now = True

    def latest_seen(self) -> SourceOffset | None:
        """Return the tails as they were last seen; None before the first look."""
        seen = self._snapshot
        return SourceOffset(seen.positions(), stalled=seen.stalled) if seen.streams else None

    def decide(self, start: dict[str, Any], *, is_unlimited: bool) -> dict[str, Any]:
        """Return where the micro-batch from `start` ends. Raises SbpError."""
        self._admission.on_asked()
        if time.monotonic() - self._idle_since_s < AT_ONCE_S:
            self._watch.wait_for_news(self._snapshot)
        self._idle_since_s = -AT_ONCE_S
        last, self._last = self._last, None
        if last is not None and last.end_json != start:
            last = None
        offset = SourceOffset.from_json(start) if last is None else last.end
        self._snapshot = self._look(offset, last)
        commit = self._losses.settle_put_back(offset, self._watch.looking.last_commit)
        if last is not None and last.is_idle and last.snapshot is self._snapshot:
            self._stay(last, is_unlimited=is_unlimited)
            self._last = last
        else:
            self._last = self._decide(start, offset, commit, is_unlimited=is_unlimited)
        if self._last.is_idle:
            self._idle_since_s = time.monotonic()
        return self._last.end_json

    def _look(self, offset: SourceOffset, last: Decision | None) -> Snapshot:
        """Return the streams as they are now.

        With Trigger.AvailableNow only one look counts, unless it is not plausible. Raises SbpError.
        """
        known = offset.next_offsets() if last is None else last.known
        if self._is_available_now and (
            self._targets is not None or is_plausible(self._snapshot, known)
        ):
            return self._snapshot
        return self._watch.look(known, believed=None if last is None else last.snapshot)

    def _stay(self, last: Decision, *, is_unlimited: bool) -> None:
        """Go on with what depends on the time: commits, the pace, and the wait for more records."""
        self.commits.on_processed(last.end)
        if not is_unlimited:
            self._admit(NO_BACKLOG)

    def _decide(
        self,
        start: dict[str, Any],
        offset: SourceOffset,
        commit: StoreCommit | None,
        *,
        is_unlimited: bool,
    ) -> Decision:
        """Decide the micro-batch from `offset`, which is `start` parsed. Raises SbpError."""
        snapshot = self._snapshot
        begin, gone = self._losses.settle_gone(offset, snapshot)
        self.commits.on_processed(begin)
        if self._added is None:
            # If streams were deleted, a new stream may be one of them, created again.
            new = () if gone else added_streams(self.options, begin, snapshot)
            self._added = frozenset(new)
        client = self._watch.client
        backlog = find_backlog(client, self.options, begin, snapshot, self._added)
        self._losses.settle_trimmed(backlog.losses)
        if self._is_available_now:
            if self._targets is None:
                self._targets = dict(backlog.tails)
            backlog = backlog.until(self._targets)
        ends = backlog.all_ends() if is_unlimited else self._admit(backlog)
        lost = self._losses.to_report([*gone, *backlog.losses])
        end = advance(begin, backlog.positions(ends), lost, backlog.stalled, commit=commit)
        is_idle = end is offset and backlog.is_settled and not self._is_available_now
        return Decision(start, end.to_json(), offset, end, snapshot, is_idle)

    def _admit(self, backlog: Backlog) -> dict[int, int]:
        return self._admission.ends(backlog, is_waiting_allowed=not self._is_available_now)

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[SpanPartition]:
        """Return the partitions of a micro-batch. Raises SbpError."""
        last = self._last
        is_decided_now = last is not None and (last.start_json, last.end_json) == (start, end)
        if last is None or not is_decided_now or self._is_available_now:
            self._last = None
            return self._plan_later(SourceOffset.from_json(start), SourceOffset.from_json(end))
        wanted = nonempty(intervals(last.start, last.end))
        known = self._watch.maybe_ranges([each.stream_id for each in wanted])
        return self._plan(wanted, last.snapshot.streams, known)

    def _plan_later(self, start: SourceOffset, end: SourceOffset) -> list[SpanPartition]:
        """Plan a micro-batch that was decided a while ago, perhaps by an earlier run.

        The streams may have changed since, so the servers are asked about them. Raises SbpError.
        """
        wanted = nonempty(intervals(start, end))
        if not wanted:
            return []
        streams = self._watch.streams()
        client = self._watch.client
        self._losses.settle_put_back(end, client.last_commit)
        there = self._losses.settle_unreadable(end, wanted, streams)
        stream_ids = [each.stream_id for each in there]
        if left := set(stream_ids) - streams.keys():
            found = client.find_streams(sorted(left))
            streams = {**streams, **{info.stream_id: info for info in found}}
        known = client.list_ranges(stream_ids, as_of=self._watch.revision) if there else {}
        return self._plan(there, streams, known)

    def _plan(
        self,
        wanted: Sequence[Interval],
        streams: Mapping[int, StreamInfo],
        known: Mapping[int, Sequence[RangeInfo]] | None,
    ) -> list[SpanPartition]:
        planned = plan_read(
            self._watch.client,
            self.options,
            wanted,
            streams,
            self._columns,
            known_ranges=known,
            sizes=self._sizes,
            is_repeatable=True,
        )
        self._losses.note(planned.losses)
        return planned.partitions

    def on_logged(self, end: dict[str, Any]) -> None:
        """Trim what was read before `end`, as Spark has logged the batch after it."""
        self.commits.on_commit(SourceOffset.from_json(end), self._snapshot)
