"""How many streams, ranges, cursors, members and decisions the metadata may hold.

More are refused. Everything that clients can create without end has a limit here, or grows with
something that has one: replicas with ranges, writers and schemas with streams (SCHEMA_VERSIONS_MAX
each), parts with decisions, streams of a group with members (GROUP_STREAMS_MAX each). Range servers
take 100 bytes each, and an id by itself takes none. Each start of the placement driver takes 60
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sbp_core.errors import InvalidRequestError, invalid
from sbp_core.settings.server_settings import CapacityLimits

_TABLES: Final = {
    "streams": ("streams_max", "streams", "delete some"),
    "cursors": ("cursors_max", "cursors of consumer groups", "forget some"),
    "group_members": ("members_max", "members of consumer groups", "let some leave"),
    "txns": (
        "decisions_max",
        "decided batches of transactions that are kept",
        "use fewer producers",
    ),
    "producer_claims": (
        "decisions_max",
        "producers that have staged batches, and no decision,",
        "commit as fewer producers, or wait until some are forgotten",
    ),
    "aborted_txns": (
        "aborted_txns_max",
        "aborted transactions that are kept",
        "wait until some are forgotten",
    ),
}
"""By table: the setting that limits its rows, the noun for them, and how to have fewer."""


class Capacity:
    """Checks the limits against the number of rows of each table."""

    def __init__(self, count: Callable[[str], int], capacity_limits: CapacityLimits) -> None:
        self._count = count
        self._limits = capacity_limits

    def left(self, table: str) -> int:
        """Return how many more rows a table may have; negative if it has too many."""
        limit: int = getattr(self._limits, _TABLES[table][0])
        return limit - self._count(table)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of rows of each table that has a limit, and the limit."""
        return {
            table: (self._count(table), getattr(self._limits, setting))
            for table, (setting, *_) in _TABLES.items()
        }

    def check(self, table: str, more: int = 0) -> None:
        """Raise InvalidRequestError unless a table may have `more` rows.

        A transaction that has added rows checks it without `more` before it commits.
        """
        if self.left(table) < more:
            raise self.refusal(table)

    def check_ranges(self, stream_id: int, range_count: int) -> None:
        """Raise InvalidRequestError unless a stream may have another range."""
        if range_count >= self._limits.ranges_per_stream_max:
            noun = f"ranges of stream {stream_id}"
            raise self._refusal("ranges_per_stream_max", noun, "trim the stream")

    def refusal(self, table: str) -> InvalidRequestError:
        """Return the error of a row beyond the limit of a table."""
        return self._refusal(*_TABLES[table])

    def _refusal(self, setting: str, noun: str, remedy: str) -> InvalidRequestError:
        return invalid(
            f"{setting} of the placement driver allows {getattr(self._limits, setting)} {noun}, and"
            f" that many exist: {remedy}, or raise the setting"
        )
