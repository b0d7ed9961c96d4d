"""The sink of a streaming query. At least once: what a task wrote before it failed stays."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sbp_spark.append_task import write_rows
from sbp_spark.options import SinkOptions


class SbpStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch; they are readable before the batch is committed."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of one task; return when all of them are acknowledged."""
        return write_rows(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: the rows are in their streams."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave what was written: an abort may follow a commit that took effect."""
