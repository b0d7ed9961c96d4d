"""The metrics of landing: how far each stream is in its table, and how far behind its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sbp_core.operating.cursor_lag import Lag
from sbp_core.server.metrics import Catalog, Reading

if TYPE_CHECKING:
    from sbp_core.lake.landing import Landing

METRICS: Final = Catalog()
STREAMS_MAX: Final = 200
_OF = f", of the {STREAMS_MAX} streams that fail or lag most"

_STREAMS: Final = METRICS.gauge(
    "sbp_lake_streams",
    "Streams that `sbp lake` lands in tables (`all`), and those that fail now (`failing`).",
    "state",
)
_FAILING: Final = METRICS.gauge(
    "sbp_lake_failing",
    "1 if the last attempt to land a stream failed, and nothing has landed since, else 0"
    + _OF
    + ".",
    "stream",
)
_ERRORS: Final = METRICS.counter(
    "sbp_lake_errors_total", "Attempts to land a stream that failed" + _OF + ".", "stream"
)
_LANDED: Final = METRICS.gauge(
    "sbp_lake_landed_offset", "Offset below which all records of a stream have landed.", "stream"
)
_LAG: Final = METRICS.gauge(
    "sbp_lake_lag_records",
    "Records of a stream that have not landed. Read every 10 s; missing if a server does not tell.",
    "stream",
)
_LAG_SECONDS: Final = METRICS.gauge(
    "sbp_lake_lag_seconds",
    "Age of the first record that has not landed; 0 if all have. Missing if a server does not"
    " tell.",
    "stream",
)
_RETENTION: Final = METRICS.gauge(
    "sbp_lake_retention_seconds",
    "Age at which records of the stream are removed, also before they have landed. Missing if they"
    " are kept for ever.",
    "stream",
)
_LOST: Final = METRICS.gauge(
    "sbp_lake_lost_records", "Records that were trimmed before they had landed.", "stream"
)
_FILES: Final = METRICS.gauge("sbp_lake_files", "Data files of the table of a stream.", "stream")
_BYTES: Final = METRICS.gauge("sbp_lake_bytes", "Bytes of these files.", "stream")


def read(landings: Iterable[Landing], lags: Mapping[int, Lag]) -> Iterator[Reading]:
    """Yield the metrics of streams that land; `lags` are by stream id, without unknown ones."""

    def urgency(landing: Landing) -> tuple[bool, int]:
        lag = lags.get(landing.stream.stream_id)
        return landing.state.error is not None, (lag.lag_records or 0) if lag else 0

    found = sorted(landings, key=urgency, reverse=True)
    yield _STREAMS.of(len(found), "all")
    yield _STREAMS.of(sum(each.state.error is not None for each in found), "failing")
    for each in found[:STREAMS_MAX]:
        yield from _of_stream(each, lags.get(each.stream.stream_id))


def _of_stream(landing: Landing, lag: Lag | None) -> Iterator[Reading]:
    state, stream = landing.state, landing.stream
    retention_ms = stream.retention_period_ms
    lost = sum(end - start for start, end in state.gaps)
    lost += (lag.lost_records or 0) if lag else 0
    values = {
        _FAILING: state.error is not None,
        _ERRORS: landing.error_count,
        _LANDED: state.landed_offset,
        _LAG: lag.lag_records if lag else None,
        _LAG_SECONDS: lag.lag_ms / 1000 if lag and lag.lag_ms is not None else None,
        _RETENTION: retention_ms / 1000 if retention_ms else None,
        _LOST: lost,
        _FILES: state.files,
        _BYTES: state.bytes,
    }
    for metric, value in values.items():
        if value is not None:
            yield metric.of(value, stream.label)
