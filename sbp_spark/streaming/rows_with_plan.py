"""Giving Spark the rows of a micro-batch together with its plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper


class RowsWithPlan:
    """A part of a reader whose `partitions` may have read the only partition that it returns.

    Spark keeps such rows as a block, and the task reads that instead of starting Python. If the
    block is lost, it reads the partition as it always does. Spark wants rows from a reader class of
    its own only, for which it looks between `partitions` and the next call.
    """

    _maybe_rows: list[pa.RecordBatch] | None = None

    def getCache(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of the micro-batch that was just planned, once."""
        rows, self._maybe_rows = self._maybe_rows, None
        assert rows is not None
        return iter(rows)

    @property  # type: ignore[misc]  # it cannot be set
    def __class__(self) -> type:
        """What `isinstance` sees: Spark's own reader as long as there are rows to be had."""
        return type(self) if self._maybe_rows is None else _SimpleStreamReaderWrapper
