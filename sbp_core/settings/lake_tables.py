"""The tables of streams by patterns of their names, as `lake_tables` sets them.

    orders-*=sales.{stream}     each stream whose name begins so has a table of its own
    audit=compliance.audit      one stream

Patterns are written as in grants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from sbp_core.errors import ConfigurationError
from sbp_core.quantities import quoted

_TABLE_NAME: Final = re.compile(r"[\w-]+(\.[\w-]+)+", re.ASCII)
_ANY: Final = "*"
_STREAM: Final = "{stream}"


class TableRule(NamedTuple):
    """The table of the streams that match a pattern; `{stream}` in it is the stream's name."""

    pattern: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rule that a text is. Raises ConfigurationError."""
        pattern, _, table = text.partition("=")
        own = _STREAM in table or not pattern.endswith(_ANY)
        is_pattern = pattern and _ANY not in pattern[:-1]
        if not (own and is_pattern and is_table_name(table.replace(_STREAM, "x"))):
            raise ConfigurationError(
                f"lake_tables: {quoted(text)} is no rule: write PATTERN=NAMESPACE.TABLE, such as"
                " orders-*=sales.{stream}; a pattern for many streams needs {stream} in the table"
            )
        return cls(pattern, table)

    def maybe_table(self, stream: str) -> str | None:
        """Return the table of a stream; None if the stream does not match."""
        is_match = stream == self.pattern or (
            self.pattern.endswith(_ANY) and stream.startswith(self.pattern[:-1])
        )
        return self.table.replace(_STREAM, stream) if is_match else None


def maybe_table(rules: Iterable[TableRule], stream: str | None) -> str | None:
    """Return the table that the first matching rule gives to a stream. A stream needs a name."""
    found = (None if stream is None else rule.maybe_table(stream) for rule in rules)
    return next(filter(None, found), None)


def is_table_name(name: str) -> bool:
    """Whether a text names a table in a namespace."""
    return _TABLE_NAME.fullmatch(name) is not None
