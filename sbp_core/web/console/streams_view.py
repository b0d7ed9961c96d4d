"""The list of streams as values: what its table shows, and how it sorts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.client import StreamInfo
from sbp_core.operating.samples import Samples
from sbp_core.quantities import show_retention
from sbp_core.web.console.tables import Column


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream in the list. None: not known, as its server is down or nothing was sampled yet."""

    info: StreamInfo
    record_count: int | None
    end_offset: int | None
    size_bytes: int | None
    rate: float | None
    lag: int | None
    retention: str

    @property
    def is_unreachable(self) -> bool:
        """Whether the server that knows its end does not answer."""
        return self.end_offset is None


COLUMNS: Final[tuple[Column[StreamRow], ...]] = (
    Column("name", "Stream", lambda row: row.info.label.lower()),
    Column("id", "Id", lambda row: -row.info.stream_id, is_number=True),
    Column("records", "Records", lambda row: row.record_count, is_number=True),
    Column("end", "End", lambda row: row.end_offset, is_number=True),
    Column("size", "Size", lambda row: row.size_bytes, is_number=True),
    Column("rate", "Records per second", lambda row: row.rate, is_number=True),
    Column("lag", "Largest lag", lambda row: row.lag, is_number=True),
    Column("replicas", "Replicas", lambda row: row.info.replica_count, is_number=True),
    Column("retention", "Retention", lambda row: _retention_order(row.info)),
)


def make_rows(streams: Sequence[StreamInfo], samples: Samples, search: str) -> list[StreamRow]:
    """Return the streams whose name or id has the text that is searched for, in any case."""
    wanted = search.strip().lower()
    ends, rates = samples.newest, samples.rates()
    lags = samples.lags[-1].by_stream() if samples.lags else {}
    rows = []
    for info in streams:
        stream_id = info.stream_id
        if wanted not in info.label.lower() and wanted != str(stream_id):
            continue
        end = None if ends is None else ends.maybe_end(stream_id)
        start = samples.starts.get(stream_id)
        held = None if end is None or start is None else end - start
        size, rate, lag = samples.sizes.get(stream_id), rates.get(stream_id), lags.get(stream_id)
        rows.append(StreamRow(info, held, end, size, rate, lag, retention_text(info)))
    return rows


def retention_text(info: StreamInfo) -> str:
    """Return how long, and how much of, a stream is kept."""
    return show_retention(info.retention_period_ms, info.retention_bytes)


def _retention_order(info: StreamInfo) -> tuple[float, float]:
    return (
        info.retention_period_ms or float("inf"),
        info.retention_bytes or float("inf"),
    )
