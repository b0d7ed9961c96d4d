"""The metrics of a range server, and why it is not ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import SbpError
from sbp_core.log.durable_log import Log
from sbp_core.log.readable_log import LogState
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.hosting import RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from sbp_core.rangeserver.housekeeping.keeper import Housekeeping
from sbp_core.rangeserver.membership import Membership
from sbp_core.rangeserver.replicating.scrubbing import Scrubber
from sbp_core.rangeserver.server_load import Metrics
from sbp_core.rangeserver.stream_traffic import NAMED_MAX, REST
from sbp_core.server.listener import Listener
from sbp_core.server.metrics import Catalog, Reading
from sbp_core.server.runtime import Clock
from sbp_core.server.served import Unready

_NAMES_WAIT_SECONDS: Final = 1.0

METRICS: Final = Catalog()

_APPENDS: Final = METRICS.counter("sbp_append_batches_total", "Batches in APPEND requests.")
_APPEND_FAILURES: Final = METRICS.counter(
    "sbp_append_failures_total", "Batches among these that were refused."
)
_APPEND_RECORDS: Final = METRICS.counter(
    "sbp_append_records_total", "Records of batches that were written, staged ones included."
)
_APPEND_BYTES: Final = METRICS.counter(
    "sbp_append_bytes_total", "Bytes that these batches take in the log."
)
_THROTTLED: Final = METRICS.counter(
    "sbp_append_throttled_total",
    "Batches that were refused because too many waited for the disk (`memory`), or too little of"
    " the disk is free (`disk`).",
    "reason",
)
_FETCHES: Final = METRICS.counter("sbp_fetch_ranges_total", "Reads in FETCH requests, one a range.")
_FETCH_FAILURES: Final = METRICS.counter(
    "sbp_fetch_failures_total", "Reads among these that were refused."
)
_FETCH_RECORDS: Final = METRICS.counter("sbp_fetch_records_total", "Records that were read.")
_FETCH_BYTES: Final = METRICS.counter("sbp_fetch_bytes_total", "Bytes of batches that were read.")
_READS: Final = METRICS.counter(
    "sbp_fetch_frames_total",
    "Frames with batches, by where these came from: `memory` of the server or its page cache, or a"
    " `thread` that may have waited for the disk.",
    "source",
)
_GROUP_ENTRIES: Final = METRICS.histogram(
    "sbp_group_commit_entries", "Entries that were written and synced together."
)
_GROUP_BYTES: Final = METRICS.histogram("sbp_group_commit_bytes", "Bytes of such a group.")
_GROUP_SECONDS: Final = METRICS.histogram(
    "sbp_group_commit_seconds", "Time to write a group, and to sync it if that is due."
)
_WRITE_AGE: Final = METRICS.gauge(
    "sbp_log_write_age_seconds",
    "How long the oldest write or sync in progress has taken; 0 if there is none. A disk that"
    " hangs lets it grow.",
)
_PENDING: Final = METRICS.gauge("sbp_log_pending_bytes", "Bytes that wait for the disk.")
_SEGMENTS: Final = METRICS.gauge("sbp_log_segments", "Files of the log.")
_LOG_BYTES: Final = METRICS.gauge("sbp_log_bytes", "Bytes of these files.")
_LOG_FAILED: Final = METRICS.gauge(
    "sbp_log_failed", "1 if the log could not be written, which ends the server, else 0."
)
_DAMAGED: Final = METRICS.gauge(
    "sbp_log_damaged_ranges", "Ranges with damage in this log that is not mended."
)
_FREE: Final = METRICS.gauge("sbp_disk_free_bytes", "Free space of the disk of the log.")
_FLOOR: Final = METRICS.gauge(
    "sbp_disk_free_floor_bytes", "Free space below which appends are refused."
)
_SHORT: Final = METRICS.gauge(
    "sbp_disk_short", "1 if an append may be refused for want of free space, else 0."
)
_STUCK: Final = METRICS.gauge(
    "sbp_disk_stuck",
    "1 if the disk has too little room even to free what was trimmed or deleted, else 0.",
)
_FREED: Final = METRICS.counter("sbp_cleaner_freed_bytes_total", "Bytes that the cleaner freed.")
_REMOVED: Final = METRICS.counter(
    "sbp_cleaner_segments_total", "Segments that the cleaner `removed` or `rewritten`.", "result"
)
_MERGED: Final = METRICS.counter(
    "sbp_cleaner_merged_batches_total", "Small batches that became parts of larger ones."
)
_TRIMS: Final = METRICS.counter(
    "sbp_retention_trims_total", "Times that a stream was trimmed by its retention."
)
_RETENTION_OVERDUE: Final = METRICS.gauge(
    "sbp_retention_overdue_seconds",
    "How long a round of retention by age has been due: its clock is not believed, or the placement"
    " driver does not answer. 0 if rounds succeed.",
)
_RULE: Final = (
    f" `stream` is the name, or the id of a stream without one. {NAMED_MAX} streams have a series,"
    f" which counts what the stream carried while it had the series; `{REST}` counts all else."
    " A stream keeps its series until it is deleted, or another stream carries more between two"
    " scrapes than this one in about ten."
)
_STREAM_APPEND_BYTES: Final = METRICS.counter(
    "sbp_stream_append_bytes_total",
    f"As `sbp_append_bytes_total`, by stream.{_RULE}",
    "stream",
)
_STREAM_APPEND_RECORDS: Final = METRICS.counter(
    "sbp_stream_append_records_total", "As `sbp_append_records_total`, by stream.", "stream"
)
_STREAM_FETCH_BYTES: Final = METRICS.counter(
    "sbp_stream_fetch_bytes_total", "As `sbp_fetch_bytes_total`, by stream.", "stream"
)
_STREAM_FETCH_RECORDS: Final = METRICS.counter(
    "sbp_stream_fetch_records_total", "As `sbp_fetch_records_total`, by stream.", "stream"
)
_STREAM_BYTES: Final = METRICS.gauge(
    "sbp_stream_bytes",
    "Bytes in the log that the stream's batches take here, of the streams with a series. Measured"
    " when retention is applied (`retention_check_interval_ms`).",
    "stream",
)
_STREAMS: Final = METRICS.gauge("sbp_streams", "Streams with ranges here.")
_LED: Final = METRICS.gauge("sbp_led_ranges", "Open ranges with replicas that are led here.")
_LAG_ENTRIES: Final = METRICS.gauge(
    "sbp_replica_lag_entries", "Entries of ranges led here that a server lacks.", "peer"
)
_LAG_BYTES: Final = METRICS.gauge("sbp_replica_lag_bytes", "Bytes of these entries.", "peer")
_LAG_SECONDS: Final = METRICS.gauge(
    "sbp_replica_lag_seconds", "How long a server has lacked entries of some range.", "peer"
)
_LOST: Final = METRICS.gauge(
    "sbp_replicas_lost", "Copies at a server that cannot be continued.", "peer"
)
_PEER_DOWN: Final = METRICS.gauge(
    "sbp_replica_peer_down", "1 if the last entries could not be sent to a server, else 0.", "peer"
)
_MISSING: Final = METRICS.gauge(
    "sbp_missing_replicas",
    "Ranges led here with a replica that has lacked entries for some time, and damaged ones.",
)
_STAGED: Final = METRICS.gauge(
    "sbp_staged_transactions", "Transactions with staged batches here, counted in each range."
)
_STAGED_AGE: Final = METRICS.gauge(
    "sbp_staged_transaction_age_seconds", "Age of the oldest of them; 0 if there is none."
)
_WRITERS: Final = METRICS.gauge("sbp_writers", "Writers that number their batches, remembered.")
_DRIVER_REACHED: Final = METRICS.gauge(
    "sbp_placement_driver_reached", "1 if the last heartbeat was answered, else 0."
)


@dataclass(frozen=True, slots=True)
class Observation:
    """The parts of a serving range server, and its metrics."""

    log: Log
    committer: GroupCommitter
    host: RangeHost
    metrics: Metrics
    listener: Listener
    membership: Membership
    disk_space: DiskSpace
    scrubber: Scrubber
    housekeeping: Housekeeping
    missing_replicas: Callable[[], int]
    clock: Clock

    def unready(self) -> Iterator[Unready]:
        """Yield the reasons why clients cannot append, or read everything."""
        if self.committer.failed.done():
            yield Unready(
                "log_failed", f"the log cannot be written: {self.committer.failed.result()}"
            )
        if self.disk_space.is_short:
            yield Unready(
                "disk_full",
                f"the disk has {self.disk_space.free_bytes} bytes free, and appends are refused"
                f" below {self.disk_space.floor_bytes}: make room on it, or trim streams",
            )
        if not self.membership.is_driver_reached:
            yield Unready(
                "placement_driver_unreachable",
                "the placement driver did not answer the last heartbeat: what is known here is"
                " served, and no new range",
            )

    async def read(self) -> AsyncIterator[Reading]:
        """Yield the present metrics."""
        for each in (*self.listener.read_metrics(), *self._requests(), *self._disk()):
            yield each
        for address, lag in (await self.host.primary.lags()).items():
            yield _LAG_ENTRIES.of(lag.entries, address)
            yield _LAG_BYTES.of(lag.byte_count, address)
            yield _LAG_SECONDS.of(lag.seconds, address)
            yield _LOST.of(lag.lost_count, address)
            yield _PEER_DOWN.of(lag.is_down, address)
        live = self.host.table.live_streams()
        yield _STREAMS.of(len(live))
        for each in await self._streams(live):
            yield each
        yield _LED.of(len(self.host.primary.led()))
        yield _MISSING.of(self.missing_replicas())
        yield _WRITERS.of(len(self.log.writers))
        yield _DRIVER_REACHED.of(self.membership.is_driver_reached)
        staged = self.log.staged.stagings()
        yield _STAGED.of(len(staged))
        now_ms = self.clock.wall_ms()
        oldest_ms = min((each.staged_at_ms for each in staged), default=now_ms)
        yield _STAGED_AGE.of(max(0, now_ms - oldest_ms) / 1000)

    async def _streams(self, live: Sequence[int]) -> list[Reading]:
        """Return the series of streams. A stream whose name is unknown counts as the rest."""
        streams = self.metrics.streams
        names: dict[int, str] = {}
        if candidates := streams.candidates(live):
            with suppress(SbpError, TimeoutError):
                asked = self.membership.find_names(candidates)
                found = await asyncio.wait_for(asked, _NAMES_WAIT_SECONDS)
                names = {each: name or str(each) for each, name in found.items()}
        streams.settle(names)
        readings: list[Reading] = []
        for name, traffic in streams.read():
            readings += [
                _STREAM_APPEND_BYTES.of(traffic.appended_bytes, name),
                _STREAM_APPEND_RECORDS.of(traffic.appended_records, name),
                _STREAM_FETCH_BYTES.of(traffic.fetched_bytes, name),
                _STREAM_FETCH_RECORDS.of(traffic.fetched_records, name),
            ]
        sizes = self.housekeeping.stream_bytes
        return readings + [
            _STREAM_BYTES.of(sizes[stream_id], name)
            for stream_id, name in streams.named.items()
            if stream_id in sizes
        ]

    def _requests(self) -> Iterator[Reading]:
        appends, fetches = self.metrics.appends, self.metrics.fetches
        yield _APPENDS.of(appends.requests)
        yield _APPEND_FAILURES.of(appends.failures)
        yield _APPEND_RECORDS.of(appends.records)
        yield _APPEND_BYTES.of(appends.byte_count)
        for reason, count in self.metrics.throttled.items():
            yield _THROTTLED.of(count, reason)
        yield _FETCHES.of(fetches.requests)
        yield _FETCH_FAILURES.of(fetches.failures)
        yield _FETCH_RECORDS.of(fetches.records)
        yield _FETCH_BYTES.of(fetches.byte_count)
        for source, count in self.metrics.reads.items():
            yield _READS.of(count, source)
        groups = self.committer.tally
        yield _GROUP_ENTRIES.of(groups.entries)
        yield _GROUP_BYTES.of(groups.byte_counts)
        yield _GROUP_SECONDS.of(groups.seconds)

    def _disk(self) -> Iterator[Reading]:
        began_at = self.committer.write_began_at
        yield _WRITE_AGE.of(0.0 if began_at is None else self.clock.monotonic() - began_at)
        yield _PENDING.of(self.committer.pending_bytes)
        extent = self.log.extent
        yield _SEGMENTS.of(len(extent.sealed) + 1)
        active_bytes = self.log.end_position - extent.active.segment.base
        yield _LOG_BYTES.of(sum([each.size for each in extent.sealed]) + active_bytes)
        yield _LOG_FAILED.of(self.log.state is LogState.FAILED)
        yield _DAMAGED.of(self.scrubber.damaged_count)
        if self.disk_space.free_bytes is not None:
            yield _FREE.of(self.disk_space.free_bytes)
        yield _FLOOR.of(self.disk_space.floor_bytes)
        yield _SHORT.of(self.disk_space.is_short)
        yield _STUCK.of(self.housekeeping.freer.is_stuck)
        cleaned = self.housekeeping.cleaned
        yield _FREED.of(cleaned.freed_bytes)
        yield _REMOVED.of(cleaned.removed_count, "removed")
        yield _REMOVED.of(cleaned.rewritten_count, "rewritten")
        yield _MERGED.of(cleaned.merged_count)
        yield _TRIMS.of(self.housekeeping.trim_count)
        yield _RETENTION_OVERDUE.of(self.housekeeping.overdue_seconds)
