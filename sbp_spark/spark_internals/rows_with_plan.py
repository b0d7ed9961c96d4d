"""Giving Spark the rows of a micro-batch together with its plan.

It depends on the class of Spark's own reader that brings rows with a plan, and on when Spark looks
for it: between `partitions` and the next call. Where there is no such class, tasks read the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import pyarrow as pa


def maybe_own_reader() -> type | None:
    """Return the class of Spark's own reader that brings rows with a plan, if it has one."""
    try:
        module = import_module("pyspark.sql.datasource_internal")
    except ImportError:
        return None
    found = getattr(module, "_SimpleStreamReaderWrapper", None)
    return found if isinstance(found, type) and hasattr(found, "getCache") else None


OWN_READER: Final = maybe_own_reader()


class RowsWithPlan:
    """A part of a reader whose `partitions` may have read the only partition that it returns.

    Spark keeps such rows as a block, and the task reads that instead of starting Python. If the
    block is lost, it reads the partition as it always does.
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
        return type(self) if self._maybe_rows is None or OWN_READER is None else OWN_READER
