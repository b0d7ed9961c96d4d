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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

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
from sbp_core.records import Envelope

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sbp_core.lake.history import TableHistory

LAKE: Final = "lake"
"""The server of the range that is the table."""
_LOOK_SECONDS: Final = 60.0
"""Pause between looks whether a stream has a table now."""
_LOADS_MAX: Final = 3
"""How often a table is loaded again because files of it were removed in between."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _View(BoundsView):
    """Bounds with the starts of the tables, made of the bounds of the log."""

    log: BoundsView = field(default_factory=lambda: BoundsView({}))


class _Known(NamedTuple):
    """A table, None if there was none, and where the log of its stream began at that time."""

    history: TableHistory | None
    loaded_at: float
    log_start: int


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
        self._known: dict[int, _Known] = {}
        self._log_starts: dict[int, int] = {}
        self._lock = threading.RLock()

    def list_ranges(
        self, stream_ids: Sequence[int], *, as_of: int | None = None
    ) -> dict[int, tuple[RangeInfo, ...]]:
        """Return the ranges of each stream, with those that are parts of its table."""
        found = super().list_ranges(stream_ids, as_of=as_of)
        log_starts = {
            stream_id: min(each.start_offset for each in ranges)
            for stream_id, ranges in found.items()
            if ranges
        }
        for stream_id, history in self._histories(log_starts).items():
            parts = (
                RangeInfo(stream_id, -1, start, end, end, (LAKE,))
                for start, end in history.parts(log_starts[stream_id])
            )
            found[stream_id] = (*parts, *found[stream_id])
        return found

    def stream_bounds(self, stream_ids: Sequence[int]) -> list[StreamBounds]:
        """Return where each stream begins and ends now, in the order of `stream_ids`."""
        found = super().stream_bounds(stream_ids)
        starts = self._starts({each.stream_id: each.start_offset for each in found})
        return [replace(each, start_offset=starts[each.stream_id]) for each in found]

    def watch_bounds(
        self, stream_ids: Sequence[int], earlier: BoundsView | None = None
    ) -> BoundsView:
        """Return where streams begin and end now, the same bounds if nothing has changed."""
        before = earlier if isinstance(earlier, _View) else None
        log = super().watch_bounds(stream_ids, earlier if before is None else before.log)
        starts = self._starts({key: each.start_offset for key, each in log.bounds.items()})
        bounds: Mapping[int, StreamBounds] = {
            stream_id: replace(each, start_offset=starts[stream_id])
            for stream_id, each in log.bounds.items()
        }
        if before is not None and bounds == before.bounds:
            bounds = before.bounds
        return _View(bounds, log.basis, log.revision, log)

    def reach(self, positions: Mapping[int, int | None], **options: Any) -> dict[int, Reach]:
        """Return how far streams can be read from a position; None is their first record."""
        found = super().reach(positions, **options)
        starts = self._starts({key: each.start_offset for key, each in found.items()})
        return {
            stream_id: replace(each, start_offset=starts[stream_id])
            for stream_id, each in found.items()
        }

    def stored_bytes(self, stream_ids: Sequence[int], **options: Any) -> dict[int, int]:
        """Return the bytes of each stream in the log and in its files."""
        found = super().stored_bytes(stream_ids, **options)
        for stream_id, history in self._histories(dict.fromkeys(found)).items():
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
        log = {each.stream_id: each.start_offset for each in super().stream_bounds([*found])}
        for stream_id, history in self._histories(log).items():
            start = max(history.start, (start_offsets or {}).get(stream_id, 0))
            end = min(history.end, log[stream_id])
            older = self._read(
                *(stream_id, history),
                methodcaller("find_time", timestamps[stream_id], start, end),
            )
            if older is not None:
                found[stream_id] = older
        return found

    def fetch(
        self, items: Sequence[FetchItem], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> Generator[FetchOutcome, None, None]:
        """Yield one outcome per item, from the table below the start of the log."""
        remote = []
        histories = self._histories({each.stream_id: None for each in items})
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
            if isinstance(error, OffsetOutOfRangeError) and error.bounds is not None:
                # trimmed since the start of the log was asked for
                history = self._histories({item.stream_id: error.bounds[0]}).get(item.stream_id)
                if history is not None and self._is_history(item, history):
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
        found: tuple[Envelope, ...] = ()
        next_offset = item.fetch_offset
        wanted = Wanted(item.projections, item.filters)
        try:
            found, next_offset = self._read(
                *(item.stream_id, history),
                methodcaller("read", item.fetch_offset, end, item.max_bytes, wanted),
            )
        except SbpError as raised:
            error = raised
        batches = ReceivedBatches(memoryview(b""), next_offset, found)
        return FetchOutcome(index, item.stream_id, batches, error)

    def _read(self, stream_id: int, history: TableHistory, read: Callable[[Any], T]) -> T:
        """Return what `read` finds in a table, which is loaded again if its files are gone."""
        with self._lock:
            for _ in range(_LOADS_MAX):
                with suppress(FileNotFoundError):  # compacted since, and removed
                    return read(history)
                self._known.pop(stream_id, None)
                history = self._histories({stream_id: None}).get(stream_id, history)
            return read(history)

    def _starts(self, log_starts: Mapping[int, int]) -> dict[int, int]:
        """Return where each stream begins: in its table, or where its log does."""
        histories = self._histories(log_starts)
        return {
            stream_id: min(start, histories[stream_id].start) if stream_id in histories else start
            for stream_id, start in log_starts.items()
        }

    def _log_start(self, stream_id: int) -> int:
        """Return a start of the log that is not above the present one."""
        if stream_id not in self._log_starts:
            (bounds,) = super().stream_bounds([stream_id])
            self._log_starts[stream_id] = bounds.start_offset
        return self._log_starts[stream_id]

    def _histories(self, log_starts: Mapping[int, int | None]) -> dict[int, TableHistory]:
        """Return the tables of those streams that have one with records.

        `log_starts` are where the logs begin now, None if that is not asked for. A table that lacks
        records which the log no longer has is loaded again, and so is one that was not there.
        """
        with self._lock:
            for stream_id, start in log_starts.items():
                if start is not None:
                    self._log_starts[stream_id] = max(start, self._log_starts.get(stream_id, 0))
            unknown = [each for each in log_starts if self._is_outdated(each)]
            if unknown:
                at = time.monotonic()
                for stream_id, history in self._open(unknown):
                    start = self._log_starts.get(stream_id, 0)
                    self._known[stream_id] = _Known(history, at, start)
            known = {each: self._known[each].history for each in log_starts}
            return {each: history for each, history in known.items() if history is not None}

    def _is_outdated(self, stream_id: int) -> bool:
        known, log_start = self._known.get(stream_id), self._log_starts.get(stream_id, 0)
        if known is None:
            return True
        if known.history is None and time.monotonic() > known.loaded_at + _LOOK_SECONDS:
            return True
        end = 0 if known.history is None else known.history.end
        return end < log_start and known.log_start < log_start

    def _open(self, stream_ids: Sequence[int]) -> Iterator[tuple[int, TableHistory | None]]:
        streams = {each.stream_id: each for each in self.find_streams(stream_ids)}
        properties = self.describe_properties(list(streams))
        for stream_id in stream_ids:
            name = properties.get(stream_id, {}).get(TABLE_PROPERTY)
            yield stream_id, None if name is None else self._open_table(streams[stream_id], name)

    def _open_table(
        self, stream: StreamInfo, name: str, loads_left: int = _LOADS_MAX
    ) -> TableHistory | None:
        """Return the table of a stream, None if nothing has landed and nothing was trimmed.

        Raises ConfigurationError if it cannot be read.
        """
        from pyiceberg.exceptions import NoSuchTableError

        from sbp_core.lake.history import TableHistory
        from sbp_core.lake.table import LakeTable

        self._catalog = catalog = self._catalog or self._open_catalog()
        try:
            table = LakeTable(catalog.load_table(name), stream)
            # Asked for behind the table, so that the table has no column that the schema lacks.
            versions = self.describe_schemas([stream.stream_id])[stream.stream_id]
            schema = versions[-1].schema if versions else None
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
            if isinstance(error, FileNotFoundError) and loads_left:  # its snapshot was removed
                return self._open_table(stream, name, loads_left - 1)
            raise ConfigurationError(
                f"table {name} of stream {stream.label} cannot be read:"
                f" {describe_error(error, catalog)}; to read the log alone, set history=off"
            ) from error
        return history if history.end else None
