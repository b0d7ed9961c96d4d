"""The interface of a measured system: places for rows, which Spark reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness.model import BenchmarkError, Shape

Append = Callable[[bytes], None]
"""Appends one value, and returns when it is acknowledged."""


WRITTEN: Final = ("stream", "key", "value")
"""The columns of a record that are written into streams, as in Kafka: the writer sets the
time of each record."""


class Store(Protocol):
    """Where the rows of a shape are, or go to: streams, a topic, or memory."""

    @property
    def shape(self) -> Shape:
        """The rows, with the names of streams that are this store's alone."""
        ...

    def rows(self) -> DataFrame:
        """Return all rows, to be read in a batch."""
        ...

    def streamed_rows(self) -> DataFrame:
        """Return all rows from the first on, to be read by a query."""
        ...

    def batch_writer(self, rows: DataFrame) -> DataFrameWriter:
        """Return the writer of rows with the columns of the in-memory source."""
        ...

    def stream_writer(self, rows: DataFrame) -> DataStreamWriter:
        """Return the same for a query."""
        ...

    def stored_rows(self) -> int:
        """Return how many rows are here."""
        ...


class Log(Store, Protocol):
    """A store on a server."""

    def values(self) -> DataFrame:
        """Return the column `value` of all rows, to be read in a batch."""
        ...

    def values_writer(self, values: DataFrame) -> DataFrameWriter:
        """Return the writer of a column `value` into the first stream."""
        ...

    def appending(self) -> AbstractContextManager[Append]:
        """Give what appends single values to the first stream."""
        ...


class System(Protocol):
    """Something that is measured."""

    def new_store(self, shape: Shape) -> Store:
        """Return a store for the rows of a shape: an empty one, if it is on a server."""
        ...


class LogSystem(System, Protocol):
    """A log on a server of its own."""

    @property
    def server_pid(self) -> int:
        """The process of the server."""
        ...

    def new_store(self, shape: Shape) -> Log:
        """Return an empty store for the rows of a shape."""
        ...

    def with_tasks(self, tasks: int) -> LogSystem:
        """Return the same server with another number of tasks that read, at least."""
        ...


def check_stored(store: Store) -> None:
    """Raise BenchmarkError unless a store holds as many rows as its shape says."""
    stored, wanted = store.stored_rows(), store.shape.rows
    if stored != wanted:
        raise BenchmarkError(f"{wanted} rows were written, but {stored} are stored")
