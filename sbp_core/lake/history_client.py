"""A client to which a stream begins where its table does.

    LIST_RANGES        the table is a range in front of all others, whose server is LAKE
    DESCRIBE_RANGE     the first offset is the table's
    OFFSETS by time    records of the table come first; their own time counts
    FETCH              offsets below the start of the log come from the table's files

So a reader that plans by these answers reads the table and then the log, each offset once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from sbp_core.client import BoundsView, Client
from sbp_core.client.types import (
    FetchItem,
    FetchOutcome,
    RangeInfo,
    Reach,
    ReceivedBatches,
    StreamBounds,
    StreamInfo,
)
from sbp_core.errors import ConfigurationError, OffsetOutOfRangeError, SbpError
from sbp_core.lake import TABLE_PROPERTY
from sbp_core.lake.catalog import describe_error

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sbp_core.lake.history import TableHistory

LAKE: Final = "lake"
"""The server of the range that is the table."""
_LOOK_SECONDS: Final = 60.0
"""Pause between looks whether a stream has a table now, or a table more records."""


@dataclass(frozen=True, slots=True)
class _View(BoundsView):
    """Bounds with the starts of the tables, made of the bounds of the log."""

    log: BoundsView = field(default_factory=lambda: BoundsView({}))


class HistoryClient(Client):
    """A client of a cluster and of the catalog with the tables of its streams.

    Streams without a table, and tables without records, are read as by any client.
    """

    def __init__(
        self, endpoint: str, *, open_catalog: Callable[[], Catalog], **settings: Any
    ) -> None:
        super().__init__(endpoint, **settings)
        self._open_catalog = open_catalog
        self._catalog: Catalog | None = None
        self._known: dict[int, tuple[float, TableHistory | None]] = {}
        self._log_starts: dict[int, int] = {}
        self._lock = threading.RLock()

    def list_ranges(
        self, stream_ids: Sequence[int], *, as_of: int | None = None
    ) -> dict[int, tuple[RangeInfo, ...]]:
        """Return the ranges of each stream, with those that are parts of its table."""
        found = super().list_ranges(stream_ids, as_of=as_of)
        for stream_id, known in self._histories(stream_ids).items():
            ranges = found[stream_id]
            if ranges:
                log_start = min(each.start_offset for each in ranges)
                history = self._up_to(stream_id, known, log_start)
                parts = (
                    RangeInfo(stream_id, -1, start, end, end, (LAKE,))
                    for start, end in history.parts(log_start)
                )
                found[stream_id] = (*parts, *ranges)
        return found

    def stream_bounds(self, stream_ids: Sequence[int]) -> list[StreamBounds]:
        """Return where each stream begins and ends now, in the order of `stream_ids`."""
        histories = self._histories(stream_ids)
        return [
            replace(each, start_offset=self._start(each.stream_id, each.start_offset, histories))
            for each in super().stream_bounds(stream_ids)
        ]

    def watch_bounds(
        self, stream_ids: Sequence[int], earlier: BoundsView | None = None
    ) -> BoundsView:
        """Return where streams begin and end now, the same bounds if nothing has changed."""
        before = earlier if isinstance(earlier, _View) else None
        log = super().watch_bounds(stream_ids, earlier if before is None else before.log)
        histories = self._histories(stream_ids)
        bounds: Mapping[int, StreamBounds] = {
            stream_id: replace(
                each, start_offset=self._start(stream_id, each.start_offset, histories)
            )
            for stream_id, each in log.bounds.items()
        }
        if before is not None and bounds == before.bounds:
            bounds = before.bounds
        return _View(bounds, log.basis, log.revision, log)

    def reach(self, positions: Mapping[int, int | None], **options: Any) -> dict[int, Reach]:
        """Return how far streams can be read from a position; None is their first record."""
        found = super().reach(positions, **options)
        histories = self._histories(positions)
        return {
            stream_id: replace(
                each, start_offset=self._start(stream_id, each.start_offset, histories)
            )
            for stream_id, each in found.items()
        }

    def stored_bytes(self, stream_ids: Sequence[int], **options: Any) -> dict[int, int]:
        """Return the bytes of each stream in the log and in its files."""
        found = super().stored_bytes(stream_ids, **options)
        for stream_id, history in self._histories(found).items():
            found[stream_id] += history.bytes
        return found

    def lookup_offsets(
        self,
        timestamps: Mapping[int, int],
        *,
        start_offsets: Mapping[int, int] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, int]:
        """Return where to start in each stream for what was written since a time, in us."""
        found = super().lookup_offsets(
            timestamps, start_offsets=start_offsets, timeout_ms=timeout_ms
        )
        histories = self._histories(found)
        for stream_id, history in histories.items():
            start = max(history.start, (start_offsets or {}).get(stream_id, 0))
            with self._lock:
                end = min(history.end, self._log_start(stream_id))
                older = history.find_time(timestamps[stream_id], start, end)
            if older is not None:
                found[stream_id] = older
        return found

    def fetch(
        self, items: Sequence[FetchItem], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> Generator[FetchOutcome, None, None]:
        """Yield one outcome per item, from the table below the start of the log."""
        remote = []
        histories = self._histories({each.stream_id for each in items})
        for index, item in enumerate(items):
            history = histories.get(item.stream_id)
            if history is not None and self._is_history(item, history):
                yield self._from_table(index, item, history)
            else:
                remote.append(index)
        if not remote:
            return
        asked = [items[each] for each in remote]
        for outcome in super().fetch(asked, max_wait_ms=max_wait_ms, min_bytes=min_bytes):
            index = remote[outcome.item_index]
            item, error = items[index], outcome.error
            history = histories.get(item.stream_id)
            if (
                isinstance(error, OffsetOutOfRangeError)
                and error.bounds is not None
                and history is not None
            ):  # trimmed since its start was asked for
                self._log_starts[item.stream_id] = error.bounds[0]
                history = self._up_to(item.stream_id, history, error.bounds[0])
                if self._is_history(item, history):
                    yield self._from_table(index, item, history)
                    continue
            yield replace(outcome, item_index=index)

    def _is_history(self, item: FetchItem, history: TableHistory) -> bool:
        within = history.start <= item.fetch_offset < history.end
        return within and item.fetch_offset < self._log_start(item.stream_id)

    def _from_table(self, index: int, item: FetchItem, history: TableHistory) -> FetchOutcome:
        from sbp_core.lake.history import Wanted

        end = min(history.end, self._log_start(item.stream_id))
        end = end if item.end_offset is None else min(end, item.end_offset)
        error: SbpError | None = None
        payload, next_offset = b"", item.fetch_offset
        wanted = Wanted(item.projections, item.filters)
        with self._lock:
            try:
                payload, next_offset = history.read(next_offset, end, item.max_bytes, wanted)
            except FileNotFoundError:  # compacted since, and removed
                self._known.pop(item.stream_id)
                (history,) = self._histories([item.stream_id]).values()
                payload, next_offset = history.read(next_offset, end, item.max_bytes, wanted)
            except SbpError as raised:
                error = raised
        batches = ReceivedBatches(memoryview(payload), next_offset)
        return FetchOutcome(index, item.stream_id, batches, error)

    def _start(self, stream_id: int, log_start: int, histories: Mapping[int, TableHistory]) -> int:
        history = histories.get(stream_id)
        return log_start if history is None else min(log_start, history.start)

    def _log_start(self, stream_id: int) -> int:
        """Return a start of the log that is not above the present one."""
        if stream_id not in self._log_starts:
            (bounds,) = super().stream_bounds([stream_id])
            self._log_starts[stream_id] = bounds.start_offset
        return self._log_starts[stream_id]

    def _up_to(self, stream_id: int, history: TableHistory, log_start: int) -> TableHistory:
        """Return the table, loaded again if it lacks records that the log no longer has."""
        self._log_starts[stream_id] = max(log_start, self._log_starts.get(stream_id, 0))
        if history.end >= log_start:
            return history
        with self._lock:
            self._known.pop(stream_id, None)
            return self._histories([stream_id]).get(stream_id, history)

    def _histories(self, stream_ids: Collection[int]) -> dict[int, TableHistory]:
        """Return the tables of those streams that have one with records."""
        now = time.monotonic()
        with self._lock:
            unknown = [
                each
                for each in stream_ids
                if each not in self._known
                or (self._known[each][1] is None and self._known[each][0] < now)
            ]
            if unknown:
                self._known |= {
                    stream_id: (now + _LOOK_SECONDS, history)
                    for stream_id, history in self._open(unknown)
                }
            known = {each: self._known[each][1] for each in stream_ids}
            return {each: history for each, history in known.items() if history is not None}

    def _open(self, stream_ids: Sequence[int]) -> Iterator[tuple[int, TableHistory | None]]:
        streams = {each.stream_id: each for each in self.find_streams(stream_ids)}
        properties = self.describe_properties(list(streams))
        for stream_id in stream_ids:
            name = properties.get(stream_id, {}).get(TABLE_PROPERTY)
            yield stream_id, None if name is None else self._open_table(streams[stream_id], name)

    def _open_table(self, stream: StreamInfo, name: str) -> TableHistory | None:
        """Return the table of a stream, None if nothing has landed and nothing was trimmed.

        Raises ConfigurationError if it cannot be read.
        """
        from pyiceberg.exceptions import NoSuchTableError

        from sbp_core.lake.history import TableHistory
        from sbp_core.lake.table import LakeTable

        self._catalog = catalog = self._catalog or self._open_catalog()
        versions = self.describe_schemas([stream.stream_id])[stream.stream_id]
        schema = versions[-1].schema if versions else None
        try:
            table = LakeTable(catalog.load_table(name), stream)
            history = TableHistory(table, stream.stream_id, schema)
        except NoSuchTableError:
            (bounds,) = super().stream_bounds([stream.stream_id])
            if not bounds.start_offset:
                return None
            raise ConfigurationError(
                f"stream {stream.label} begins at offset {bounds.start_offset}, and its table"
                f" {name} is not in the catalog: name the catalog of `sbp lake`, or set history=off"
            ) from None
        except SbpError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"table {name} of stream {stream.label} cannot be read:"
                f" {describe_error(error, catalog)}; to read the log alone, set history=off"
            ) from error
        return history if history.end else None
