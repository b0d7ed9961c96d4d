"""Whether rows are plain records or columns of typed streams, and what to do with columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sbp_spark.options.reading import OptionReader
from sbp_spark.options.targets import Routing

_OF_COLUMNS: Final = ("mergeSchema", "routingColumn", "timestampColumn")


class Encoding(Enum):
    """Values of the sink's option `encoding`."""

    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """How columns are written.

    `is_merging` lets the schemas of streams grow; the columns named may tell a row's stream, and
    its time.
    """

    is_merging: bool = False
    routing_column: str | None = None
    timestamp_column: str | None = None


def read_columns(reader: OptionReader) -> ColumnOptions | None:
    """Return how columns are written, None if plain records are."""
    words = [each.value for each in Encoding]
    encoding = Encoding(reader.choice("encoding", words, Encoding.ROWS.value))
    is_merging = reader.flag("mergeSchema", default=False)
    routing_column = reader.maybe_text("routingColumn")
    timestamp_column = reader.maybe_text("timestampColumn")
    if encoding is Encoding.ROWS:
        for name in filter(reader.is_given, _OF_COLUMNS):
            wrong = "is given without encoding=columns, and plain records have no columns"
            reader.add_fault(name, wrong, "both", "add encoding=columns, or remove it")
        return None
    if not reader.is_given("stream") and not reader.is_given("streams"):
        wrong = "is columns without stream or streams; a column stream would be data like others"
        reader.add_fault("encoding", wrong, "both", 'add .option("stream", "name")')
    _check_routing(reader)
    return ColumnOptions(is_merging, routing_column, timestamp_column)


def _check_routing(reader: OptionReader) -> None:
    """Note what contradicts itself in how a row gets one of several streams."""
    routing = (reader.maybe_text("routing") or "").lower()
    if reader.is_given("routingColumn"):
        if not reader.is_given("streams"):
            wrong = "is given without streams, so there is nothing to choose among"
            remedy = "add streams, or remove it"
            reader.add_fault("routingColumn", wrong, "several streams", remedy)
        if routing == Routing.ROUND_ROBIN.value:
            wrong = "is given beside routing=round-robin, which looks at no column"
            reader.add_fault("routingColumn", wrong, "one of the two", "remove one of them")
    elif routing == Routing.KEY.value:
        wrong = "is key without routingColumn, and columns have no key of their own"
        remedy = "add routingColumn, or remove it"
        reader.add_fault("routing", wrong, "a column to choose by", remedy)
