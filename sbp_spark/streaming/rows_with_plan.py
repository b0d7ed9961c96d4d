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


def can_be_copied(rows: pa.RecordBatch) -> bool:
    """Whether Spark can keep these rows as a block, for which it copies them.

    Spark copies the elements of an array of numbers, booleans or times before it looks for nulls
    among them, and so the values of a map. Arrow refuses to read such a null, unless options of the
    JVM forbid it to check. A task never copies arrays as a whole.
    """
    return not any(map(_has_null_element, rows.columns))


def _has_null_element(array: pa.Array) -> bool:
    """Whether a list or a map in a column may have a null of a type of fixed width inside."""
    kind = array.type
    if pa.types.is_struct(kind):
        return any(_has_null_element(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return any(map(_is_or_has_null, (array.keys, array.items)))
    return pa.types.is_list(kind) and _is_or_has_null(array.values)


def _is_or_has_null(elements: pa.Array) -> bool:
    is_null = elements.null_count > 0 and pa.types.is_primitive(elements.type)
    return is_null or _has_null_element(elements)
