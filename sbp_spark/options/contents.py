"""What a source gives of records: rows or columns, and what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sbp_spark.options.reading import OptionReader


class SourceEncoding(Enum):
    """Values of the option `encoding` of a source; AUTO: columns if a stream has a schema."""

    AUTO = "auto"
    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class Contents:
    """What is read: headers are a part of rows only, metadata stand beside columns only."""

    encoding: SourceEncoding = SourceEncoding.AUTO
    include_headers: bool = False
    include_metadata: bool = False


def read_contents(reader: OptionReader) -> Contents:
    """Return what is read; after a fault the result has no meaning."""
    words = [each.value for each in SourceEncoding]
    contents = Contents(
        SourceEncoding(reader.choice("encoding", words, SourceEncoding.AUTO.value)),
        reader.flag("includeHeaders", default=False),
        reader.flag("includeMetadata", default=False),
    )
    if contents.include_headers and contents.encoding is SourceEncoding.COLUMNS:
        wrong = "is given with encoding=columns, and columns have no headers"
        reader.add_fault("includeHeaders", wrong, "it with rows", "remove one of them")
    if contents.include_metadata and contents.encoding is SourceEncoding.ROWS:
        wrong = "is given with encoding=rows, which have these columns of themselves"
        reader.add_fault("includeMetadata", wrong, "it with columns", "remove one of them")
    if (
        contents.include_headers
        and contents.include_metadata
        and contents.encoding is SourceEncoding.AUTO
    ):
        wrong = "is given beside includeHeaders"
        expected = "this one with columns, that one with rows"
        reader.add_fault("includeMetadata", wrong, expected, "remove one of them")
    return contents
