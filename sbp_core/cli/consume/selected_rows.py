"""Records of one stream, with their offsets, and which of them and of their columns are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.app.record import Batch
from sbp_core.cli.connect import find_stream
from sbp_core.client import Client
from sbp_core.errors import ConfigurationError
from sbp_core.records.evolution import map_columns
from sbp_core.wording import listed

_PLAIN_COLUMNS: Final = ("stream", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of a stream in the order of their offsets: those of a batch, or some of them.

    `columns` are those of a typed stream, and those of ROWS_SCHEMA of any other.
    """

    stream: str
    offsets: pa.Int64Array
    times: pa.TimestampArray
    columns: pa.RecordBatch
    is_typed: bool

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return all records of a batch."""
        return cls(batch.stream, batch.offsets, batch.times, batch.rows, batch.is_typed)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end_offset(self) -> int:
        """The offset behind the last record; there is one."""
        last: int = self.offsets[-1].as_py()
        return last + 1

    def first(self, count: int) -> Rows:
        """Return at most `count` of them."""
        return replace(
            self,
            offsets=self.offsets[:count],
            times=self.times[:count],
            columns=self.columns[:count],
        )


def with_key(rows: Rows, key: bytes) -> Rows:
    """Return the records with a key. Raises ConfigurationError for a stream without keys."""
    if rows.is_typed:
        raise ConfigurationError(f"stream {rows.stream} has columns and no keys: leave --key out")
    is_wanted = pc.equal(rows.columns.column("key"), pa.scalar(key))
    return replace(
        rows,
        offsets=rows.offsets.filter(is_wanted),
        times=rows.times.filter(is_wanted),
        columns=rows.columns.filter(is_wanted),
    )


class Choice:
    """The columns that are wanted, by name, or all; of typed streams in their newest schema.

    Beside its columns any stream has `stream`, `offset` and `timestamp`.
    """

    def __init__(self, client: Client, names: Sequence[str] | None) -> None:
        self._client = client
        self._names = names
        self._schemas: dict[str, pa.Schema] = {}

    def of(self, rows: Rows) -> pa.RecordBatch:
        """Return the wanted columns. Raises ConfigurationError for one that is not there."""
        own = map_columns(rows.columns, self._schema(rows)) if rows.is_typed else rows.columns
        names = self._names or (own.schema.names if rows.is_typed else _PLAIN_COLUMNS)
        added = {
            "stream": lambda: pa.repeat(rows.stream, len(rows)),
            "offset": lambda: rows.offsets,
            "timestamp": lambda: rows.times,
        }
        missing = [each for each in names if each not in own.schema.names and each not in added]
        if missing:
            raise ConfigurationError(
                f"stream {rows.stream} has no column {listed([*map(ascii, missing)])}; it has"
                f" {listed(dict.fromkeys([*own.schema.names, *added]))}"
            )
        columns, fields = [], []
        for name in names:
            is_own = name in own.schema.names
            columns.append(own.column(name) if is_own else added[name]())
            fields.append(own.schema.field(name) if is_own else pa.field(name, columns[-1].type))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _schema(self, rows: Rows) -> pa.Schema:
        if rows.stream not in self._schemas:
            stream_id = find_stream(self._client, rows.stream).stream_id
            versions = self._client.describe_schemas([stream_id], newest_only=True)
            self._schemas[rows.stream] = versions[stream_id][-1].schema.arrow
        return self._schemas[rows.stream]
