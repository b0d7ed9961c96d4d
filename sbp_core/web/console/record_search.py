"""The search for the records of a page: from an offset on, with a filter, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sbp_core import limits
from sbp_core.client import AsyncClient, SchemaVersion, StreamInfo
from sbp_core.errors import ConfigurationError, DamagedBatchError, SbpError
from sbp_core.quantities import quoted
from sbp_core.records.stream_decoder import Records, StreamDecoder
from sbp_core.web.records.record_answers import fetch_records
from sbp_core.wording import listed

SEARCH_SECONDS: Final = 2.0
SEARCH_BYTES_MAX: Final = 64 * limits.MIB
"""A search ends after this time, or this much of the stream; its page goes on behind it."""
_WAIT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Conditions on a record, all of which have to hold; an empty one holds for every record.

    `text` is anywhere in its values, in any case. `key` is the whole key of a plain record.
    `header` and `column` are a name, which has to be there and not null, or name=value; the name of
    a column may be a path such as `address.city`.
    """

    text: str = ""
    key: str = ""
    header: str = ""
    column: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether every record fits."""
        return not (self.text or self.key or self.header or self.column)

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record fits, as `Records.describe` yields it."""
        columns = record.get("columns")
        if self.key and (columns is not None or _plain(record["key"]) != self.key):
            return False
        if self.header and not _has_header(record.get("headers"), self.header):
            return False
        if self.column and not _has_column(columns, self.column):
            return False
        if not self.text:
            return True
        text = self.text.lower()
        values = columns or {each: record.get(each) for each in ("key", "value", "headers")}
        return any(text in each.lower() for value in values.values() for each in _texts(value))


def check_column(condition: str, versions: Sequence[SchemaVersion]) -> None:
    """Raise ConfigurationError if a condition on a column fits no record of any of these schemas.

    A path such as `address.city` is checked up to the first dot.
    """
    name = condition.partition("=")[0]
    columns = dict.fromkeys(each for version in versions for each in version.schema.arrow.names)
    if name in columns or name.partition(".")[0] in columns:
        return
    there = f"the stream has {listed(columns)}"
    known = there if columns else "the records of the stream have none"
    raise ConfigurationError(f"no column {quoted(name)}: {known}")


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that fit, of one batch: as objects of JSON, and as rows of Arrow."""

    records: tuple[dict[str, Any], ...]
    rows: pa.RecordBatch

    def last(self, count: int) -> Piece:
        """Return the last records, `count` at most."""
        first = max(len(self.records) - count, 0)
        return Piece(self.records[first:], self.rows.slice(first))


@dataclass(slots=True)
class Found:
    """The outcome of a search: `pieces` of the offsets [start, end).

    `faults` are batches that cannot be decoded; the search goes on behind them.
    """

    start: int
    end: int
    pieces: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records that fit, in the order of their offsets."""
        return [record for piece in self.pieces for record in piece.records]

    def add(self, further: Found) -> None:
        """Join the outcome of the search that went on behind this one."""
        self.end = further.end
        self.pieces += further.pieces
        self.faults += further.faults

    def newest(self, count: int) -> Found:
        """Return the last records, `count` at most, and the part of the stream that has them."""
        if len(self.records) <= count:
            return self
        kept: list[Piece] = []
        left = count
        for piece in reversed(self.pieces):
            if left:
                kept.insert(0, piece.last(left))
                left -= len(kept[0].records)
        return Found(kept[0].records[0]["offset"], self.end, kept, self.faults)


class Search:
    """A search in the span of offsets [start, end) for records that fit, `count_max` at most.

    It ends when it has read `bytes_max` of stored batches.
    """

    def __init__(
        self,
        info: StreamInfo,
        span: tuple[int, int],
        wanted: RecordFilter,
        count_max: int,
        *,
        bytes_max: int = SEARCH_BYTES_MAX,
    ) -> None:
        self._info = info
        self._span = span
        self._wanted = wanted
        self._left = count_max
        self._bytes_max = bytes_max
        self._decoder = StreamDecoder(info.stream_id, *span)
        self._found = Found(span[0], span[0])

    async def run(self, client: AsyncClient) -> Found:
        """Return the records that are found within the bounds of a search.

        Raises SbpError if nothing can be read; where something was, the result has the error.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + SEARCH_SECONDS
        read_bytes, (start, end), decoder = 0, self._span, self._decoder
        while self._left and not decoder.is_done:
            if read_bytes >= self._bytes_max or loop.time() > give_up_at:
                break
            try:
                batches = await fetch_records(
                    client, decoder, self._info.stream_id, end, wait_ms=_WAIT_MS
                )
            except DamagedBatchError as error:  # the search goes on behind it
                self._found.faults.append(str(error))
                self._found.end = decoder.next_offset = error.end_offset
                continue
            except SbpError as error:
                if self._found.end == start:
                    raise
                self._found.faults.append(str(error))
                break
            if not batches:
                break
            read_bytes += sum(each.rows.nbytes for each in batches)
            await asyncio.to_thread(self._choose, batches)
        return self._found

    def _choose(self, batches: Sequence[Records]) -> None:
        """Add the records that fit."""
        for each in batches:
            if not self._left:
                return
            piece, self._found.end = _choose(each, self._wanted, self._left, self._info.label)
            if piece.records:
                self._found.pieces.append(piece)
                self._left -= len(piece.records)


def _choose(
    decoded: Records, wanted: RecordFilter, count_max: int, label: str
) -> tuple[Piece, int]:
    """Return the first records that fit, and the offset behind the last record that was checked."""
    records, indexes = [], []
    for index, record in enumerate(decoded.describe(label)):
        if wanted.fits(record):
            records.append(record)
            indexes.append(index)
            if len(records) == count_max:
                break
    looked_at = indexes[-1] + 1 if len(records) == count_max else decoded.rows.num_rows
    rows = decoded.rows.take(pa.array(indexes, pa.int64()))
    return Piece(tuple(records), rows), decoded.base_offset + looked_at


def _texts(value: Any) -> Iterator[str]:
    """Yield a value as text, and the parts that it has."""
    text = _plain(value)
    if text is not None:
        yield text
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, str) and isinstance(parts, Iterable):
        for part in parts:
            yield from _texts(part)


def _has_header(headers: Sequence[tuple[str, Any]] | None, condition: str) -> bool:
    name, has_value, value = condition.partition("=")
    return any(
        each == name and (not has_value or _plain(content) == value)
        for each, content in headers or ()
    )


def _has_column(columns: Mapping[str, Any] | None, condition: str) -> bool:
    name, has_value, value = condition.partition("=")
    return any(
        _plain(found) == value if has_value else found is not None
        for found in _columns(columns, name)
    )


def _columns(columns: Any, name: str) -> Iterator[Any]:
    """Yield the value of a column of this name, or of the part of a struct at this path."""
    if not isinstance(columns, Mapping):
        return
    if name in columns:
        yield columns[name]
    outer, dot, rest = name.partition(".")
    if dot and outer in columns:
        yield from _columns(columns[outer], rest)


def _plain(value: Any) -> str | None:
    """Return a value as a condition writes it: text as it is, others as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
