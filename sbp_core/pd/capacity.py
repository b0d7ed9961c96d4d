"""How many streams, ranges, cursors and decisions the metadata may hold; more are refused.

Everything that clients can create without end has a limit here, or grows with something that has
one: replicas with ranges, writers and schemas with streams (SCHEMA_VERSIONS_MAX each), parts with
decisions. Range servers take 100 bytes each, and an id by itself takes none. Each start of the
placement driver takes 60 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.server.settings import integer_setting


@dataclass(frozen=True, kw_only=True)
class CapacityLimits:
    """The settings of the placement driver that bound its metadata."""

    streams_max: int = integer_setting(
        "Streams in the cluster; creating more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.STREAMS_MAX,
        unit="streams",
    )
    ranges_per_stream_max: int = integer_setting(
        "Ranges of one stream that are not trimmed; creating more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.RANGES_PER_STREAM_MAX,
        unit="ranges",
    )
    cursors_max: int = integer_setting(
        "Cursors of all consumer groups together; creating more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.CURSORS_MAX,
        unit="cursors",
    )
    decisions_max: int = integer_setting(
        "Committed batches of producers that are kept; committing more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.DECISIONS_MAX,
        unit="batches",
    )
    aborted_txns_max: int = integer_setting(
        "Aborted transactions that are kept, for 30 days; aborting more is refused.",
        1,
        limits.ROWS_MAX,
        default=limits.ABORTED_TXNS_MAX,
        unit="transactions",
    )


class Capacity:
    """Checks the limits against the number of rows of each table."""

    def __init__(self, count: Callable[[str], int], capacity_limits: CapacityLimits) -> None:
        self._count = count
        self._limits = capacity_limits

    def check_streams(self, more: int) -> None:
        """Raise InvalidRequestError unless there may be `more` streams."""
        self._check("streams", more, "streams_max", self._limits.streams_max)

    def check_ranges(self, stream_id: int, range_count: int) -> None:
        """Raise InvalidRequestError unless a stream may have another range."""
        limit = self._limits.ranges_per_stream_max
        if range_count >= limit:
            which = f"ranges of stream {stream_id}"
            raise _refusal(which, "trim the stream", "ranges_per_stream_max", limit)

    def cursor_capacity(self) -> int:
        """Return how many more cursors there may be."""
        return max(0, self._limits.cursors_max - self._count("cursors"))

    def cursors_refusal(self) -> InvalidRequestError:
        """Return the error of a cursor beyond the limit."""
        return _refusal(*_WORDS["cursors"], "cursors_max", self._limits.cursors_max)

    def check_decisions(self) -> None:
        """Raise InvalidRequestError if there are too many, in the transaction that adds one."""
        self._check("txns", 0, "decisions_max", self._limits.decisions_max)

    def check_aborted(self) -> None:
        """Raise InvalidRequestError if there are too many, in the transaction that adds some."""
        self._check("aborted_txns", 0, "aborted_txns_max", self._limits.aborted_txns_max)

    def _check(self, table: str, more: int, setting: str, limit: int) -> None:
        if self._count(table) + more > limit:
            raise _refusal(*_WORDS[table], setting, limit)


_WORDS: Final = {
    "streams": ("streams", "delete some"),
    "cursors": ("cursors of consumer groups", "forget some"),
    "txns": ("decided batches of transactions that are kept", "use fewer producers"),
    "aborted_txns": ("aborted transactions that are kept", "wait until some are forgotten"),
}
"""By table: what is in it, and how to have fewer."""


def _refusal(noun: str, remedy: str, setting: str, limit: int) -> InvalidRequestError:
    return InvalidRequestError(
        StatusCode.INVALID_REQUEST,
        f"{setting} of the placement driver allows {limit} {noun}, and that many exist: {remedy},"
        " or raise the setting",
    )
