"""The lag of a streaming query, stream by stream (`sbp_spark.lag`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sbp_core.client import Credentials, Tls, parse_endpoints
from sbp_core.errors import SbpError
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options.endpoints import Servers
from sbp_spark.reading.offsets import CheckpointError, SourceOffset
from sbp_spark.reading.partition_planning import RecordSizeEstimates
from sbp_spark.reporting import LOG

_ANSWER_MS: Final = 1_000
"""How long a range server has to answer; values that need its answer are None otherwise."""


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How far a query is behind in one stream. Values that are not known are None.

    `record_count` records exist and are not read, from `next_offset` on; the number is not known
    for a stalled stream. `size_bytes` is about how long they are: one record batch of them is
    looked at. `age_ms` is how long ago the oldest of them was appended, by the range server's
    clock, 0 if there is none. `stalled_since_ms` is since when (UTC) the query leaves the stream
    out because a range server is down.
    """

    stream_id: int
    next_offset: int | None
    record_count: int | None
    stalled_since_ms: int | None = None
    stream: str | None = None
    size_bytes: int | None = None
    age_ms: int | None = None


def lag(
    progress: Mapping[str, Any],
    endpoint: str | None = None,
    *,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
) -> list[StreamLag]:
    """Return how far a query is behind in each stream of its sbp sources.

    `progress` is a StreamingQueryProgress, such as `query.lastProgress`, or its parsed JSON.
    Without an `endpoint` (the placement driver's) only the progress counts: then there are no
    names, sizes and ages, and records that came since the micro-batch began are not counted. With
    `tls` the servers are asked over TLS, with the token that `credentials` name. Raises SbpError
    when the placement driver does not answer.
    """
    sources = _sources(progress)
    if endpoint is not None and sources:
        meter = _Meter(endpoint, tls, credentials)
        sources = [meter.measure(each) for each in sources]
    return [each for source in sources for each in source]


class LagListener(StreamingQueryListener):
    """Reports how far queries are behind, after each of their micro-batches.

    `on_lag` gets the progress and its `lag`; without it, that goes to the log (`sbp_spark`, INFO).
    If the placement driver of `endpoint` is down, the lag is the lag by the progress. For
    `spark.streams.addListener`; it runs on the driver, in Spark's thread for listeners, and keeps
    that waiting while it asks.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        on_lag: Callable[[Mapping[str, Any], Sequence[StreamLag]], None] | None = None,
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._on_lag = on_lag or log_lag
        self._meter = None if endpoint is None else _Meter(endpoint, tls, credentials)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Report how far the query is behind, if it has sbp sources."""
        sources = _sources(event.progress)
        if not sources:
            return
        if self._meter is not None:
            try:
                sources = [self._meter.measure(each) for each in sources]
            except SbpError as error:
                LOG.warning("lag is taken from the query's progress error=%s", error)
        self._on_lag(event.progress, [each for source in sources for each in source])

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""


def log_lag(progress: Mapping[str, Any], found: Sequence[StreamLag]) -> None:
    """Write how far a query is behind over all streams to the log."""
    LOG.info(
        "query %s batch %s is behind by %s records, %s bytes (estimated), the oldest %s ms old;"
        " %d of %d streams are stalled",
        progress["name"] or progress["id"],
        progress["batchId"],
        _over_all(sum, [each.record_count for each in found]),
        _over_all(sum, [each.size_bytes for each in found]),
        _over_all(max, [each.age_ms for each in found]),
        sum(each.stalled_since_ms is not None for each in found),
        len(found),
    )


def _over_all(combine: Callable[[Sequence[int]], int], values: Sequence[int | None]) -> str:
    """Describe the value over all streams: a lower bound if some values are not known."""
    known = [each for each in values if each is not None]
    if len(known) == len(values):
        return str(combine(known or [0]))
    return f"at least {combine(known)}" if known and combine(known) else "an unknown number of"


class _Meter:
    """Asks a cluster how far its streams are beyond what a query has read."""

    def __init__(self, endpoint: str, tls: Tls | None, credentials: Credentials | None) -> None:
        servers = Servers(parse_endpoints(endpoint), tls=tls, credentials=credentials)
        self._client = client_for(servers, Patience.STARTING)
        self._sizes = RecordSizeEstimates(self._client)

    def measure(self, found: Sequence[StreamLag]) -> list[StreamLag]:
        """Return the lags as they are now; streams that were deleted are left out."""
        existing = self._client.find_streams([each.stream_id for each in found])
        infos = {info.stream_id: info for info in existing}
        there = [each for each in found if each.stream_id in infos]
        positions = {each.stream_id: each.next_offset for each in there}
        reaches = self._client.reach(positions, timeout_ms=_ANSWER_MS, spared={})
        starts, tails = {}, {}
        for stream_id, at in reaches.items():
            next_offset = positions[stream_id]
            if next_offset is not None and at.next_offset is not None and not at.unavailable:
                starts[stream_id] = max(next_offset, at.start_offset)
                tails[stream_id] = max(starts[stream_id], at.next_offset)
        behind = {each: start for each, start in starts.items() if start < tails[each]}
        sizes = self._sizes.estimate(behind, tails)
        times_ms = self._client.append_times(behind, timeout_ms=_ANSWER_MS)
        now_ms = time.time_ns() // 1_000_000
        measured = []
        for each in there:
            named = replace(each, stream=infos[each.stream_id].label)
            if each.stream_id in starts:
                count = tails[each.stream_id] - starts[each.stream_id]
                is_unknown = each.stream_id in behind and each.stream_id not in times_ms
                time_ms = times_ms.get(each.stream_id) or now_ms
                named = replace(
                    named,
                    record_count=count,
                    size_bytes=count * sizes.get(each.stream_id, 0),
                    age_ms=None if is_unknown else max(0, now_ms - time_ms),
                )
            measured.append(named)
        return measured


def _sources(progress: Mapping[str, Any]) -> list[list[StreamLag]]:
    """Return the lags that a progress reports, for each of its sbp sources."""
    found = []
    for source in progress["sources"]:
        end = _maybe_offset(source["endOffset"])
        latest = _maybe_offset(source["latestOffset"])
        if end is not None:
            found.append(list(_compare(end, latest or SourceOffset({}, stalled=end.stalled))))
    return found


def _compare(end: SourceOffset, latest: SourceOffset) -> Iterator[StreamLag]:
    for stream_id in sorted(end.streams.keys() | latest.stalled.keys()):
        at, tail = end.streams.get(stream_id), latest.streams.get(stream_id)
        is_known = stream_id not in latest.stalled  # otherwise the tail is how far one can read
        count = max(0, tail.next_offset - at.next_offset) if at and tail and is_known else None
        next_offset = None if at is None else at.next_offset
        yield StreamLag(stream_id, next_offset, count, latest.stalled.get(stream_id))


def _maybe_offset(value: object) -> SourceOffset | None:
    """Parse an offset. Return None if there is no offset yet, or if another source wrote it."""
    try:
        return SourceOffset.from_json(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, CheckpointError):
        return None
