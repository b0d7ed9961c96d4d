"""Metrics of streaming queries for Prometheus (`sbp_spark.query_metrics`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from sbp_core.client import Credentials, Tls
from sbp_spark.operations.query_lag import LagListener, StreamLag

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Query:
    """The last progress of a query, and the sum of the rows of all."""

    label: str
    row_count: int
    progress: StreamingQueryProgress
    streams: Sequence[StreamLag]


_Gauge = tuple[str, str, Callable[[_T], float | None]]

_QUERY_GAUGES: Final[Sequence[_Gauge[StreamingQueryProgress]]] = (
    ("batch_id", "The number of the last micro-batch", lambda shown: shown.batchId),
    (
        "batch_duration_seconds",
        "How long the last micro-batch took, with planning and commit",
        lambda shown: shown.batchDuration / 1000,
    ),
    (
        "input_rows_per_second",
        "Rows that arrived per second, in the last micro-batch",
        lambda shown: shown.inputRowsPerSecond,
    ),
    (
        "processed_rows_per_second",
        "Rows that the query processed per second, in the last micro-batch",
        lambda shown: shown.processedRowsPerSecond,
    ),
)
_STREAM_GAUGES: Final[Sequence[_Gauge[StreamLag]]] = (
    ("lag_records", "Records of the stream that were not read", lambda lag: lag.record_count),
    (
        "lag_bytes",
        "About how long the records that were not read are",
        lambda lag: lag.size_bytes,
    ),
    (
        "lag_seconds",
        "How long ago the oldest record that was not read was appended",
        lambda lag: None if lag.age_ms is None else lag.age_ms / 1000,
    ),
    (
        "stream_stalled",
        "Whether the query leaves the stream out, as its range server is down",
        lambda lag: lag.stalled_since_ms is not None,
    ),
)


class QueryMetrics(LagListener, Collector):
    """Shows the progress and the lag of running queries to a registry of `prometheus_client`.

    It is a listener for `spark.streams.addListener` and a collector for `registry.register`. The
    metrics are `sbp_query_*`, with the label `query` (the name of the query, else its id); those of
    a stream also have `stream` (its name, without an `endpoint` its id). A query has metrics from
    its first micro-batch to its end. Values that are not known have no sample. `endpoint`, `tls`
    and `credentials` are those of `LagListener`.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(endpoint, self._set_lag, tls=tls, credentials=credentials)
        self._queries: dict[str, _Query] = {}
        self._lock = threading.Lock()  # Spark's thread sets, the registry's thread collects

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Keep the progress, and the lag if the query has sbp sources."""
        shown = event.progress
        key = str(shown.id)
        with self._lock:
            before = self._queries.get(key)
            self._queries[key] = _Query(
                label=shown.name or key,
                row_count=shown.numInputRows + (before.row_count if before else 0),
                progress=shown,
                streams=before.streams if before else (),
            )
        super().onQueryProgress(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Forget the query."""
        with self._lock:
            self._queries.pop(str(event.id), None)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry would collect to find the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; called by the registry."""
        with self._lock:
            queries = list(self._queries.values())
        rows = CounterMetricFamily(
            "sbp_query_input_rows", "Rows that the query has read", labels=["query"]
        )
        for query in queries:
            rows.add_metric([query.label], query.row_count)
        yield rows
        shown = [([query.label], query.progress) for query in queries]
        yield from _families(_QUERY_GAUGES, ["query"], shown)
        lags = [
            ([query.label, each.stream or str(each.stream_id)], each)
            for query in queries
            for each in query.streams
        ]
        yield from _families(_STREAM_GAUGES, ["query", "stream"], lags)

    def _set_lag(self, progress: Mapping[str, Any], found: Sequence[StreamLag]) -> None:
        key = str(progress["id"])
        with self._lock:
            if (query := self._queries.get(key)) is not None:
                self._queries[key] = replace(query, streams=found)


def _families(
    gauges: Sequence[_Gauge[_T]], labels: Sequence[str], shown: Sequence[tuple[list[str], _T]]
) -> Iterable[Metric]:
    for name, doc, read in gauges:
        family = GaugeMetricFamily(f"sbp_query_{name}", doc, labels=labels)
        for values, each in shown:
            if (value := read(each)) is not None:
                family.add_metric(values, value)
        yield family
