"""Options of a read of metadata: which table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sbp_spark.options.reading import OptionReader
from sbp_spark.options.servers import Servers, read_endpoint
from sbp_spark.options.table import SOURCE_OPTIONS


class Table(Enum):
    """Values of the option `table`."""

    STREAMS = "streams"
    RANGES = "ranges"
    CURSORS = "cursors"


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Which table of which cluster is read."""

    servers: Servers
    table: Table


def is_table_given(options: Mapping[str, str]) -> bool:
    """Whether metadata are to be read, not records."""
    return any(key.lower() == "table" for key in options)


def parse_catalog_options(options: Mapping[str, str]) -> CatalogOptions:
    """Return the options of a read of metadata, `table` among them; those about records are faults.

    Raises ConfigurationError with one line per fault.
    """
    reader = OptionReader(options, SOURCE_OPTIONS, frozenset())
    words = [each.value for each in Table]
    table = Table(reader.choice("table", words, Table.STREAMS.value))
    endpoint = read_endpoint(reader)
    for name in (spec.name for spec in SOURCE_OPTIONS):
        if name not in {"endpoint", "table"} and reader.is_given(name):
            wrong = "is given beside table, and is about records"
            reader.add_fault(name, wrong, "endpoint and table only", "remove one of them")
    reader.check_faults("tables")
    assert endpoint is not None
    return CatalogOptions(Servers(endpoint), table)
