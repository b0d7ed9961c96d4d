"""The knowledge of all parsers: the stream, and what plain records get that bring none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.app.encoding import Target
from sbp_core.errors import RecordBatchError
from sbp_core.records import ROWS_SCHEMA
from sbp_core.records.json_parsing import RowFault

Piece = pa.RecordBatch | None
"""Rows of the stream. None: no more input is there now, and the rows before have waited for it."""

PLACE_COLUMNS: Final = frozenset({"stream", "offset"})
"""Where records were that `sbp consume` wrote. They are no part of plain records, and left out."""
_HEADERS: Final = ROWS_SCHEMA.field("headers").type


@dataclass(frozen=True, slots=True)
class Defaults:
    """Key, headers and time of plain records that bring none.

    The time is in microseconds since the epoch; None is the time at which a record is read.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_us: int | None = None

    @property
    def time_us(self) -> int:
        """The time of a record that is read now."""
        return time.time_ns() // 1000 if self.timestamp_us is None else self.timestamp_us

    def filled(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of ROWS_SCHEMA with key and headers where they have none."""
        key, value, headers, timestamp = rows.columns
        if self.key is not None:
            key = pc.fill_null(key, pa.scalar(self.key, pa.binary()))
        if self.headers:
            headers = pc.fill_null(headers, pa.scalar(list(self.headers), _HEADERS))
        return pa.RecordBatch.from_arrays([key, value, headers, timestamp], schema=ROWS_SCHEMA)


@dataclass(frozen=True, slots=True)
class Parsing:
    """How an input is to be read: for which stream, and with which options."""

    target: Target
    defaults: Defaults = Defaults()
    key_separator: bytes | None = None


def parse_until_fault(
    lines: Sequence[tuple[int, bytes]], parse: Callable[[Sequence[bytes]], pa.RecordBatch]
) -> tuple[pa.RecordBatch, RecordBatchError | None]:
    """Return the rows of numbered lines up to the first that has a fault, and its error."""
    try:
        return parse([line for _, line in lines]), None
    except RowFault as fault:
        rows, earlier = parse_until_fault(lines[: fault.index], parse)
        error = RecordBatchError(f"line {lines[fault.index][0]}: {fault.reason}")
        return rows, earlier or error
